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
	Timeout   float64           `json:"timeout_seconds,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	User      string            `json:"user,omitempty"`
	Stdin     string            `json:"stdin,omitempty"`
	MaxOutput int               `json:"max_output_bytes,omitempty"`
}

// ExecuteResult is how an execution ended.
type ExecuteResult struct {
	SandboxID string  `json:"sandbox_id"`
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
	Kind  string // "start", "stdout", "stderr" or "display"
	Text  string // of "stdout" and "stderr"
	Value Value  // of "display"
}

// Execute runs code to its end and answers with all of it. The end of ctx ends
// the code.
func (c *Client) Execute(ctx context.Context, r ExecuteRequest) (ExecuteResult, error) {
	var result ExecuteResult
	err := c.call(ctx, http.MethodPost, "/api/v1/execute", nil, r, &result)
	return result, err
}

// Stream is Execute that calls emit for what happens meanwhile, one call at a
// time. An error of emit ends the code and is returned.
func (c *Client) Stream(ctx context.Context, r ExecuteRequest, emit func(Event) error) (ExecuteResult, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return ExecuteResult{}, err
	}
	resp, err := c.do(ctx, request{
		method: http.MethodPost, path: "/api/v1/execute", body: bytes.NewReader(body), kind: jsonType,
		header: http.Header{"Accept": {"text/event-stream"}},
	})
	if err != nil {
		return ExecuteResult{}, err
	}
	defer resp.Body.Close()
	var result *ExecuteResult
	err = events(resp, func(kind string, data []byte) error {
		switch kind {
		case "stdout", "stderr":
			var text struct {
				Text string `json:"text"`
			}
			return errors.Join(json.Unmarshal(data, &text), emit(Event{Kind: kind, Text: text.Text}))
		case "display":
			e := Event{Kind: kind}
			return errors.Join(json.Unmarshal(data, &e.Value), emit(e))
		case "result":
			result = &ExecuteResult{}
			return json.Unmarshal(data, result)
		}
		return nil
	})
	if err != nil {
		return ExecuteResult{}, err
	}
	if result == nil {
		return ExecuteResult{}, broken(resp, io.ErrUnexpectedEOF)
	}
	return *result, nil
}

// events calls each for every server-sent event of an answer, until its end.
// An event "error" ends it and is returned. What each is given is valid until
// it returns.
func events(resp *http.Response, each func(kind string, data []byte) error) error {
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	kind, data := "", []byte(nil)
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
				if err := each(kind, data); err != nil {
					return err
				}
			}
			kind, data = "", data[:0]
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
