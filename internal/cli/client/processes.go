package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

const processes = "/api/v1/processes"

func processPath(process, call string) string {
	return processes + "/" + url.PathEscape(process) + call
}

func ofSandbox(id string) url.Values { return url.Values{"sandbox_id": {id}} }

// Start starts a process.
func (c *Client) Start(ctx context.Context, r v1.StartProcessRequest) (v1.Process, error) {
	var p v1.Process
	err := c.call(ctx, http.MethodPost, processes, nil, r, &p)
	return p, err
}

// Processes returns the running processes of a Sandbox and the processes that ended
// last, oldest first.
func (c *Client) Processes(ctx context.Context, id string) ([]v1.Process, error) {
	var list v1.Processes
	err := c.call(ctx, http.MethodGet, processes, ofSandbox(id), nil, &list)
	return list.Processes, err
}

// GetProcess returns a process by ID or name.
func (c *Client) GetProcess(ctx context.Context, id, process string) (v1.Process, error) {
	var p v1.Process
	err := c.call(ctx, http.MethodGet, processPath(process, ""), ofSandbox(id), nil, &p)
	return p, err
}

// EndProcess ends a process and everything it started.
func (c *Client) EndProcess(ctx context.Context, id, process string) (v1.Process, error) {
	var p v1.Process
	err := c.call(ctx, http.MethodDelete, processPath(process, ""), ofSandbox(id), nil, &p)
	return p, err
}

// Signal returns a function that sends a signal, by name, to a process and its group.
func (c *Client) Signal(name string) func(ctx context.Context, id, process string) (v1.Process, error) {
	return func(ctx context.Context, id, process string) (v1.Process, error) {
		var p v1.Process
		err := c.call(ctx, http.MethodPost, processPath(process, "/signal"), ofSandbox(id), v1.SignalRequest{Signal: v1.SignalName(name)}, &p)
		return p, err
	}
}

// WriteInput writes bytes to a process's standard input; with eof it closes the input
// after them.
func (c *Client) WriteInput(ctx context.Context, id, process string, data []byte, eof bool) error {
	query := ofSandbox(id)
	query.Set("eof", strconv.FormatBool(eof))
	resp, err := c.do(ctx, request{
		method: http.MethodPost, path: processPath(process, "/stdin"), query: query, body: bytes.NewReader(data), kind: bytesType,
	})
	if err != nil {
		return err
	}
	return decode(resp, nil)
}

// Output calls emit for a process's output from an offset on; a negative offset
// counts from the end. A stream that is not empty selects one stream. With follow it
// waits until the process has ended. It returns the final state of the process.
func (c *Client) Output(ctx context.Context, id, process string, from int64, follow bool, stream string, emit func(v1.OutputEvent) error) (v1.Process, error) {
	query := ofSandbox(id)
	query.Set("from", strconv.FormatInt(from, 10))
	query.Set("follow", strconv.FormatBool(follow))
	if stream != "" {
		query.Set("stream", stream)
	}
	resp, err := c.do(ctx, request{
		method: http.MethodGet, path: processPath(process, "/output"), query: query,
		header: http.Header{"Accept": {"text/event-stream"}},
	})
	if err != nil {
		return v1.Process{}, err
	}
	defer resp.Body.Close()
	var last *v1.Process
	err = events(resp, func(_, kind string, data []byte) error {
		switch kind {
		case "stdout", "stderr", "dropped":
			e := v1.OutputEvent{Event: kind}
			if err := parse(data, &e); err != nil {
				return err
			}
			return emit(e)
		case "end":
			last = &v1.Process{}
			return parse(data, last)
		}
		return nil
	})
	if err == nil && last == nil {
		err = broken(resp, io.ErrUnexpectedEOF)
	}
	if err != nil {
		return v1.Process{}, err
	}
	return *last, nil
}

// maxMessage bounds a message of an attached process, in bytes.
const maxMessage = 16 << 20

// Attached is a connection to a process. One goroutine may read and another
// write. Close it.
type Attached struct {
	conn  *websocket.Conn
	pipes bool
}

// AttachOptions configures Attach.
type AttachOptions struct {
	From int64 // offset of the output to begin with; negative from the end
	// Pipes is for a process without a terminal: its standard error is marked as such,
	// and it takes input when it reads.
	Pipes bool
	// Input, with Pipes, is the number of input bytes that earlier connections sent. A
	// lost connection can then be replaced: input in flight is resent from its offset on,
	// and the process gets it once.
	Input *int64
	// End ends the process when the connection ends; with Input a while after it is
	// lost.
	End bool
}

// MaxUntaken is the most input, in bytes, that may be in flight to a process attached
// with Pipes. Events "taken" acknowledge input.
const MaxUntaken = 1 << 20

// Attach connects to a process.
func (c *Client) Attach(ctx context.Context, id, process string, o AttachOptions) (*Attached, error) {
	token, err := c.bearer(ctx)
	if err != nil {
		return nil, err
	}
	query := ofSandbox(id)
	query.Set("from", strconv.FormatInt(o.From, 10))
	if o.Pipes {
		query.Set("pipes", "true")
	}
	if o.Input != nil {
		query.Set("input", strconv.FormatInt(*o.Input, 10))
	}
	if o.End {
		query.Set("end", "true")
	}
	conn, err := c.socket(ctx, processPath(process, "/attach")+"?"+query.Encode(), token)
	if err != nil {
		return nil, err
	}
	return &Attached{conn, o.Pipes}, nil
}

// socket opens a WebSocket.
func (c *Client) socket(ctx context.Context, path, token string) (*websocket.Conn, error) {
	conn, resp, err := websocket.Dial(ctx, c.base+path, &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}},
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && ctx.Err() == nil {
			return nil, failure(c.base, resp)
		}
		return nil, c.unreachable(ctx, err)
	}
	conn.SetReadLimit(maxMessage)
	return conn, nil
}

// AttachEvent is output of a process, or a message about it.
type AttachEvent struct {
	Output []byte // output of the process; the event then has no message
	Stderr bool   // Output is of standard error, where the streams can be separated
	v1.AttachEvent
}

// Next waits for the next event. A connection that is lost is Unavailable.
func (a *Attached) Next(ctx context.Context) (AttachEvent, error) {
	kind, data, err := a.conn.Read(ctx)
	if err != nil {
		return AttachEvent{}, lost(ctx, err)
	}
	switch {
	case kind == websocket.MessageText:
		var e AttachEvent
		return e, parse(data, &e.AttachEvent)
	case a.pipes && len(data) > 0:
		const stderr = 2
		return AttachEvent{Output: data[1:], Stderr: data[0] == stderr}, nil
	}
	return AttachEvent{Output: data}, nil
}

func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var closed websocket.CloseError
	if errors.As(err, &closed) && closed.Code == websocket.StatusInternalError {
		return sandbox.Errorf(sandbox.Internal, "the server ended the connection: %s", closed.Reason)
	}
	return sandbox.Errorf(sandbox.Unavailable, "the connection to the process was lost").WithCause(err)
}

// Input gives the process bytes to read.
func (a *Attached) Input(ctx context.Context, data []byte) error {
	if err := a.conn.Write(ctx, websocket.MessageBinary, data); err != nil {
		return lost(ctx, err)
	}
	return nil
}

// Signal sends the process and its group a signal, by its name.
func (a *Attached) Signal(ctx context.Context, name string) error {
	return a.say(ctx, struct {
		Type   string `json:"type"`
		Signal string `json:"signal"`
	}{"signal", name})
}

// Resize changes the size of its terminal.
func (a *Attached) Resize(ctx context.Context, size v1.TerminalSize) error {
	return a.say(ctx, struct {
		Type string `json:"type"`
		v1.TerminalSize
	}{"resize", size})
}

// EndInput closes the process's input.
func (a *Attached) EndInput(ctx context.Context) error {
	return a.say(ctx, struct {
		Type string `json:"type"`
	}{"eof"})
}

func (a *Attached) say(ctx context.Context, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := a.conn.Write(ctx, websocket.MessageText, data); err != nil {
		return lost(ctx, err)
	}
	return nil
}

// Close ends the connection; the process keeps running.
func (a *Attached) Close() { _ = a.conn.CloseNow() }
