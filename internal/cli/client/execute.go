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
)

// ExecuteRequest asks for one execution. Zero fields mean the server's
// defaults; without a SandboxID one is borrowed.
type ExecuteRequest struct {
	SandboxID string            `json:"sandbox_id,omitempty"`
	Code      string            `json:"code"`
	Language  string            `json:"language,omitempty"`
	ContextID string            `json:"context_id,omitempty"`
	Timeout   *float64          `json:"timeout_seconds,omitempty"` // 0: no limit; needs a SandboxID
	Env       map[string]string `json:"env,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	User      string            `json:"user,omitempty"`
	Stdin     []byte            `json:"stdin_base64,omitempty"`
	MaxOutput int               `json:"max_output_bytes,omitempty"`

	Key string `json:"-"` // idempotency key; needs a SandboxID
	// Last is the ID of the last event of it that is known; empty for the first
	// request with Key, FromStart when none is.
	Last string `json:"-"`
}

// FromStart is the ID of the event before the first one.
const FromStart = "0.0.0"

// header is what a request says beside its body.
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

// ExecuteResult is how an execution ended.
type ExecuteResult struct {
	SandboxID string  `json:"sandbox_id"`
	ProcessID string  `json:"process_id"`
	Next      int64   `json:"next_offset"` // of the output of the process
	Status    string  `json:"status"`
	Stdout    string  `json:"stdout"`
	Stderr    string  `json:"stderr"`
	ExitCode  int     `json:"exit_code"`
	Results   []Value `json:"results"`
	Error     *struct {
		Name    string `json:"name"`
		Message string `json:"message"`
	} `json:"error"`

	Raw json.RawMessage `json:"-"` // all of it, as the server said it
}

// UnmarshalJSON keeps the text beside the fields.
func (r *ExecuteResult) UnmarshalJSON(raw []byte) error {
	type fields ExecuteResult
	if err := json.Unmarshal(raw, (*fields)(r)); err != nil {
		return err
	}
	r.Raw = append(json.RawMessage(nil), raw...)
	return nil
}

// Value is a rich result: one value in one or more representations, by the
// API's names for them ("text", "png", ...), each as JSON.
type Value map[string]json.RawMessage

// Text returns the representation kind when it is there and a string.
func (v Value) Text(kind string) (string, bool) {
	var s *string
	if json.Unmarshal(v[kind], &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}

// Event is what happens while code runs.
type Event struct {
	Kind      string // "start", "stdout", "stderr", "display" or "dropped"
	ID        string // Stream goes on after it; may be empty
	ProcessID string // of "start"
	Output    []byte // of "stdout" and "stderr"
	Value     Value  // of "display"
	Dropped   int64  // of "dropped": bytes of output that are kept no more
}

const execute = "/api/v1/execute"

// Execute runs code to its end and answers with all of it. The end of ctx ends
// the code; with a Key it has a moment in which it can be asked for again.
func (c *Client) Execute(ctx context.Context, r ExecuteRequest) (ExecuteResult, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return ExecuteResult{}, err
	}
	resp, err := c.do(ctx, request{
		method: http.MethodPost, path: execute, body: bytes.NewReader(body), kind: jsonType, header: r.header(),
	})
	if err != nil {
		return ExecuteResult{}, err
	}
	var result ExecuteResult
	return result, decode(resp, &result)
}

// EndExecution ends what an execution with this key started in a Sandbox.
func (c *Client) EndExecution(ctx context.Context, id, key string) error {
	resp, err := c.do(ctx, request{
		method: http.MethodDelete, path: execute, query: ofSandbox(id), header: http.Header{idempotencyKey: {key}},
	})
	if err != nil {
		return err
	}
	return decode(resp, nil)
}

// Stream is Execute that calls emit for what happens meanwhile, one call at a
// time. An error of emit ends the code and is returned.
func (c *Client) Stream(ctx context.Context, r ExecuteRequest, emit func(Event) error) (ExecuteResult, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return ExecuteResult{}, err
	}
	header := r.header()
	header.Set("Accept", "text/event-stream")
	resp, err := c.do(ctx, request{
		method: http.MethodPost, path: execute, body: bytes.NewReader(body), kind: jsonType, header: header,
	})
	if err != nil {
		return ExecuteResult{}, err
	}
	defer resp.Body.Close()
	var result *ExecuteResult
	err = events(resp, func(id, kind string, data []byte) error {
		if kind == "result" {
			result = &ExecuteResult{}
			return parse(data, result)
		}
		e, known, err := eventOf(id, kind, data)
		if err != nil || !known {
			return err
		}
		return emit(e)
	})
	if err != nil {
		return ExecuteResult{}, err
	}
	if result == nil {
		return ExecuteResult{}, broken(resp, io.ErrUnexpectedEOF)
	}
	return *result, nil
}

// eventOf reads an event that is not the last; known is false for one of a later
// version of the server.
func eventOf(id, kind string, data []byte) (e Event, known bool, err error) {
	e = Event{ID: id, Kind: kind}
	switch kind {
	case "display":
		return e, true, parse(data, &e.Value)
	case "stdout", "stderr", "start", "dropped":
		var fields struct {
			outputText
			ProcessID string `json:"process_id"`
			Bytes     int64  `json:"bytes"`
		}
		err := parse(data, &fields)
		e.Output, e.ProcessID, e.Dropped = fields.output(), fields.ProcessID, fields.Bytes
		return e, true, err
	}
	return e, false, nil
}

// outputText is output as JSON carries it: as text, and as base64 where the text is
// not exactly what was written.
type outputText struct {
	Text   string `json:"text"`
	Base64 []byte `json:"base64"`
}

// output is what was written.
func (t outputText) output() []byte {
	if t.Base64 != nil {
		return t.Base64
	}
	return []byte(t.Text)
}

// events calls each for every server-sent event of an answer, until its end.
// An event "error" ends it and is returned. What each is given is valid until
// it returns.
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
	var body struct {
		Error struct {
			Code    sandbox.Code `json:"code"`
			Message string       `json:"message"`
			Retry   int          `json:"retry_after_seconds"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &body); err != nil || body.Error.Code == "" {
		return sandbox.Errorf(sandbox.Unavailable, "the server said that it failed, and not why")
	}
	e := sandbox.Errorf(body.Error.Code, "%s", body.Error.Message)
	e.RetryAfter = time.Duration(min(max(body.Error.Retry, 0), 86400)) * time.Second
	return e
}
