package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// ExecuteRequest asks for one execution.
type ExecuteRequest struct {
	v1.ExecuteRequest
	Key string // idempotency key; needs a SandboxID
	// Last is the ID of the last event received; empty for the first request with Key,
	// FromStart before any event.
	Last string
}

// FromStart is the ID of the event before the first one.
const FromStart = "0.0.0"

// header returns the headers of the request.
func (r ExecuteRequest) header() http.Header {
	h := http.Header{}
	if r.Key != "" {
		h.Set(idempotencyKey, r.Key)
	}
	if r.Last != "" {
		h.Set("Last-Event-ID", r.Last)
	}
	return h
}

// Event is one event while code runs.
type Event struct {
	Kind      string   // "start", "stdout", "stderr", "display" or "dropped"
	ID        string   // Stream resumes after it; may be empty
	ProcessID string   // of "start"
	Output    []byte   // of "stdout" and "stderr"
	Value     v1.Value // of "display"
	Dropped   int64    // of "dropped": bytes of output that the server discarded
}

const execute = "/api/v1/execute"

// Execute runs code to its end and returns the whole result. The end of ctx ends the
// code; with a Key, the code continues for a moment in which the request can be
// repeated.
func (c *Client) Execute(ctx context.Context, r ExecuteRequest) (v1.ExecuteResult, error) {
	body, err := json.Marshal(r.ExecuteRequest)
	if err != nil {
		return v1.ExecuteResult{}, err
	}
	resp, err := c.do(ctx, request{
		method: http.MethodPost, path: execute, body: bytes.NewReader(body), kind: jsonType, header: r.header(),
	})
	if err != nil {
		return v1.ExecuteResult{}, err
	}
	var result v1.ExecuteResult
	return result, decode(resp, &result)
}

// EndExecution ends the execution with this key in a Sandbox.
func (c *Client) EndExecution(ctx context.Context, id, key string) error {
	resp, err := c.do(ctx, request{
		method: http.MethodDelete, path: execute, query: ofSandbox(id), header: http.Header{idempotencyKey: {key}},
	})
	if err != nil {
		return err
	}
	return decode(resp, nil)
}

// Stream is Execute that calls emit for each event while the code runs, one call at a
// time. An error of emit ends the code and is returned.
func (c *Client) Stream(ctx context.Context, r ExecuteRequest, emit func(Event) error) (v1.ExecuteResult, error) {
	body, err := json.Marshal(r.ExecuteRequest)
	if err != nil {
		return v1.ExecuteResult{}, err
	}
	header := r.header()
	header.Set("Accept", "text/event-stream")
	resp, err := c.do(ctx, request{
		method: http.MethodPost, path: execute, body: bytes.NewReader(body), kind: jsonType, header: header,
	})
	if err != nil {
		return v1.ExecuteResult{}, err
	}
	defer resp.Body.Close()
	var result *v1.ExecuteResult
	err = events(resp, func(id, kind string, data []byte) error {
		if kind == "result" {
			result = &v1.ExecuteResult{}
			return parse(data, result)
		}
		e, known, err := eventOf(id, kind, data)
		if err != nil || !known {
			return err
		}
		return emit(e)
	})
	if err != nil {
		return v1.ExecuteResult{}, err
	}
	if result == nil {
		return v1.ExecuteResult{}, broken(resp, io.ErrUnexpectedEOF)
	}
	return *result, nil
}

// eventOf parses an event that is not the last; known is false for an event of a
// later version of the server.
func eventOf(id, kind string, data []byte) (e Event, known bool, err error) {
	e = Event{ID: id, Kind: kind}
	switch kind {
	case "display":
		return e, true, parse(data, &e.Value)
	case "stdout", "stderr", "start", "dropped":
		var fields struct {
			v1.Output
			ProcessID string `json:"process_id"`
			Dropped   int64  `json:"bytes"`
		}
		err := parse(data, &fields)
		e.Output, e.ProcessID, e.Dropped = fields.Output.Bytes(), fields.ProcessID, fields.Dropped
		return e, true, err
	}
	return e, false, nil
}

// events calls each for every server-sent event of an answer, until its end. An event
// "error" ends it and is returned. each must not keep data after it returns.
func events(resp *http.Response, each func(id, kind string, data []byte) error) error {
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	id, kind, data := "", "", []byte(nil)
	for {
		line, err := readLine(lines, maxReply)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return broken(resp, err)
		}
		switch field, value, _ := bytes.Cut(line, []byte(":")); {
		case len(line) == 0 && kind == "error":
			return eventError(data)
		case len(line) == 0:
			if kind != "" {
				if err := each(id, kind, data); err != nil {
					return err
				}
			}
			id, kind, data = "", "", data[:0]
		case string(field) == "id":
			id = string(bytes.TrimPrefix(value, []byte(" ")))
		case string(field) == "event":
			kind = string(bytes.TrimPrefix(value, []byte(" ")))
		case string(field) == "data":
			data = append(data, bytes.TrimPrefix(value, []byte(" "))...)
		}
	}
}

// readLine returns the next line without its end, at most limit bytes long. It
// is valid until the next read.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if long = append(long, part...); len(long) > limit {
				return nil, errors.New("a line is too long")
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if long != nil {
			part = append(long, part...)
		}
		return bytes.TrimRight(part, "\r\n"), nil
	}
}

func eventError(data []byte) error {
	var body v1.FailureBody
	if err := json.Unmarshal(data, &body); err != nil || body.Error.Code == "" {
		return sandbox.Errorf(sandbox.Unavailable, "the server reported a failure without a reason")
	}
	e := sandbox.Errorf(body.Error.Code, "%s", body.Error.Message)
	e.RetryAfter = time.Duration(min(max(body.Error.RetryAfterSeconds, 0), 86400)) * time.Second
	return e
}
