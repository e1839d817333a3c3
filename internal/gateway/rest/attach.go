package rest

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
)

// replay bounds the earlier output that is sent to a client on attach, in bytes.
const replay = 64 << 10

// attachment holds the client's identity and the options of its request to attach to a
// Process.
type attachment struct {
	who  sandbox.Identity
	ref  execution.ProcessRef
	from int64
	// pipes is for a Process without a terminal: each piece of output names its stream.
	// Input is queued until the Process takes it, and is acknowledged.
	pipes bool
	// input is the offset of this connection's first input in the whole input of the
	// Process, for a client that may reconnect. nil: it will not reconnect.
	input *int64
	// ends is whether the Process ends with the connection. A client that may reconnect
	// has comeBack to do so, unless it closed the connection itself.
	ends bool
}

const (
	// comeBack is how long a client whose connection was lost has to attach again.
	comeBack = 15 * time.Second
	// comeBackAnew replaces comeBack when this server shuts down, so that the next one
	// can start.
	comeBackAnew = time.Minute
)

func attachmentOf(r *http.Request, who sandbox.Identity) (attachment, error) {
	ref, more, err := processRef(r, "from", "pipes", "input", "end")
	at := attachment{who: who, ref: ref}
	if err != nil {
		return at, err
	}
	if at.from, err = parseOffset(more["from"], -replay); err != nil {
		return at, err
	}
	if at.pipes, err = parseFlag("pipes", more["pipes"]); err != nil {
		return at, err
	}
	if s := more["input"]; s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return at, sandbox.Errorf(sandbox.Invalid, "input must be a number of bytes: how many the process was given before")
		}
		if !at.pipes {
			return at, sandbox.Errorf(sandbox.Invalid, "input is for a process without a terminal: say pipes=true too")
		}
		at.input = &n
	}
	at.ends, err = parseFlag("end", more["end"])
	return at, err
}

// AttachProcess answers GET /api/v1/processes/{id}/attach with a WebSocket of
// bytes in both directions.
func (a *API) AttachProcess(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	at, err := attachmentOf(r, who)
	if err != nil {
		return err
	}
	if !wantsSocket(r) {
		w.Header().Set("Upgrade", "websocket")
		return sandbox.Errorf(sandbox.Invalid, "this path answers with a WebSocket only")
	}
	s, err := a.openSocket(w, r, who, at.ref, socketInput, func(p execution.Process) error {
		if at.pipes && p.PTY != nil {
			return sandbox.Errorf(sandbox.Invalid, "the process has a terminal, which is one stream: leave out pipes")
		}
		return nil
	})
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancel(r.Context())
	defer leave()
	// The end of the request's own context would close the socket without a close
	// frame.
	left, gone := context.WithCancel(context.WithoutCancel(ctx))
	heard := make(chan struct{})
	var saidSo atomic.Bool // the client, that it closes the connection
	go func() {
		defer close(heard)
		defer leave()
		defer gone()
		saidSo.Store(a.hear(ctx, left, s, at))
	}()
	defer func() { leave(); <-heard }()
	// A program in a pipeline may wait for the others, and read nothing meanwhile.
	defer s.keepUnless(left, func() bool { return at.pipes }, func() {})()
	told, err := a.show(ctx, left, s, at)
	if at.ends && (!told || ctx.Err() != nil) {
		a.endAttached(ctx, at, saidSo.Load())
	}
	return s.part(r.Context(), left, err)
}

// endAttached ends a Process whose client has left: at once, or after a delay if the
// client may reconnect. Its errors are ignored: no client is left to receive them, and
// a Sandbox that does not run any more has ended the Process too.
func (a *API) endAttached(ctx context.Context, at attachment, saidSo bool) {
	after := comeBack
	if errors.Is(context.Cause(ctx), sandbox.Unavailable) {
		after = comeBackAnew
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if at.input == nil || saidSo {
		_, _ = a.Executions.EndProcess(ctx, at.who.Tenant, at.ref)
		return
	}
	_ = a.Executions.AbandonProcess(ctx, at.who.Tenant, at.ref, after)
}

// show sends the output of the Process until it has ended, beginning with the end of
// the earlier output. The first result is false when the client did not receive all of
// it.
func (a *API) show(ctx, left context.Context, s *socket, at attachment) (told bool, err error) {
	v := viewer{left: left, s: s, pipes: at.pipes}
	told = true
	err = a.Executions.ReadOutput(ctx, at.who.Tenant, at.ref, at.from, true, func(p *execution.Process, o execution.Output) error {
		err := v.output(p, o)
		told = err == nil
		return err
	})
	return told, err
}

// viewer sends output to one client and merges pieces into few messages.
type viewer struct {
	left  context.Context
	s     *socket
	pipes bool
	begun bool
	next  int64  // offset of the next output
	data  []byte // waits to be sent; in pipes mode after the byte of its stream
}

// output sends one call's output from ReadOutput.
func (v *viewer) output(p *execution.Process, o execution.Output) error {
	if !v.begun {
		v.begun, v.next = true, o.Next
		started := ProcessViewOf(*p)
		return v.s.json(v.left, v1.AttachEvent{Type: "start", Offset: v.next, Process: &started})
	}
	for _, piece := range o.Pieces {
		if err := v.piece(piece); err != nil {
			return err
		}
	}
	if err := v.flush(); err != nil || p == nil {
		return err
	}
	ended := ProcessViewOf(*p)
	return v.s.json(v.left, v1.AttachEvent{Type: "end", Offset: o.Next, Process: &ended})
}

// streamOf is the first byte of an output message in pipes mode: Unix file descriptor
// numbers.
func streamOf(p execution.OutputPiece) byte {
	if p.Stderr {
		return 2
	}
	return 1
}

func (v *viewer) piece(p execution.OutputPiece) error {
	dropped := p.Offset > v.next
	if dropped || v.pipes && len(v.data) > 0 && v.data[0] != streamOf(p) {
		if err := v.flush(); err != nil {
			return err
		}
	}
	if dropped {
		if err := v.s.json(v.left, v1.AttachEvent{Type: "dropped", Offset: v.next, Next: p.Offset}); err != nil {
			return err
		}
	}
	if v.pipes && len(v.data) == 0 {
		v.data = append(v.data, streamOf(p))
	}
	v.data = append(v.data, p.Data...)
	v.next = p.Offset + int64(len(p.Data))
	return nil
}

func (v *viewer) flush() error {
	if len(v.data) == 0 {
		return nil
	}
	limit := socketWrite
	if v.pipes {
		limit = patientWrite
	}
	err := v.s.writeWithin(v.left, limit, websocket.MessageBinary, v.data)
	v.data = v.data[:0]
	return err
}

// hear handles the client's messages until the client leaves or the socket is closed,
// and reports whether the client closed the connection itself. In pipes mode input that
// the Process does not read delays no other message.
func (a *API) hear(ctx, left context.Context, s *socket, at attachment) (saidSo bool) {
	ctx, stop := context.WithCancel(ctx)
	in := inbox{more: make(chan struct{}, 1)}
	in.next.From = at.input
	var feeding sync.WaitGroup
	if at.pipes {
		feeding.Go(func() { a.feed(ctx, left, s, at, &in) })
	}
	defer func() { stop(); feeding.Wait() }()
	for {
		kind, data, err := s.conn.Read(left)
		if err != nil {
			return websocket.CloseStatus(err) != -1
		}
		input, command, err := attachMessageOf(kind, data)
		switch {
		case err != nil:
		case input == nil:
			err = a.command(ctx, at, command)
		case at.pipes:
			if err := in.put(*input); err != nil { // missing input would go unnoticed
				_ = s.refuse(left, err)
				_ = s.conn.Close(websocket.StatusPolicyViolation, string(sandbox.TooLarge))
				return true
			}
		default:
			err = a.Executions.WriteInput(ctx, at.who.Tenant, at.ref, *input)
		}
		if err != nil && s.refuse(left, err) != nil {
			return false
		}
	}
}

// feed writes the input to the Process, however late the Process reads it, and
// acknowledges it.
func (a *API) feed(ctx, left context.Context, s *socket, at attachment, in *inbox) {
	missing := false // earlier input was lost, and the client was sent the error
	for {
		select {
		case <-in.more:
		case <-ctx.Done():
			return
		}
		next := in.take()
		if len(next.Data) == 0 && !next.EOF {
			continue // it was sent with the earlier input
		}
		if missing {
			in.taken(len(next.Data))
			continue
		}
		err := a.Executions.Feed(ctx, at.who.Tenant, at.ref, next)
		in.taken(len(next.Data))
		if err != nil {
			missing = at.input != nil
			err = s.refuse(left, err)
		} else {
			err = s.json(left, v1.AttachEvent{Type: "taken", Bytes: new(len(next.Data))})
		}
		if err != nil { // the client is gone
			return
		}
	}
}

// maxUntaken bounds the input that a client in pipes mode has sent and the Process
// has not taken, in bytes.
const maxUntaken = execution.MaxInput

// inbox holds input until the Process takes it.
type inbox struct {
	more chan struct{} // holds a value while there is input

	mu      sync.Mutex
	next    execution.Input
	untaken int // bytes, including input that feed is writing
}

// put adds input. It returns TooLarge beyond maxUntaken.
func (b *inbox) put(in execution.Input) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.untaken+len(in.Data) > maxUntaken {
		return sandbox.Errorf(sandbox.TooLarge, "more than %d bytes of input are on their way: wait until they are taken", maxUntaken)
	}
	b.untaken += len(in.Data)
	b.next.Data = append(b.next.Data, in.Data...)
	b.next.EOF = b.next.EOF || in.EOF
	select {
	case b.more <- struct{}{}:
	default:
	}
	return nil
}

// take removes and returns all the input in b.
func (b *inbox) take() execution.Input {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.next
	b.next = execution.Input{}
	if next.From != nil {
		b.next.From = new(*next.From + int64(len(next.Data)))
	}
	return next
}

// taken makes room for n bytes.
func (b *inbox) taken(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.untaken -= n
}

// refuse sends the client the error of one of its messages.
func (s *socket) refuse(ctx context.Context, err error) error {
	f := status.Of(err)
	return s.json(ctx, v1.AttachEvent{Type: "error", Error: &f})
}

// attachCommand is a text message of a client.
type attachCommand struct {
	Type   string        `json:"type"`
	Cols   int           `json:"cols"`
	Rows   int           `json:"rows"`
	Signal v1.SignalName `json:"signal"`
}

// attachMessageOf reads a message: input, or else a command.
func attachMessageOf(kind websocket.MessageType, data []byte) (*execution.Input, attachCommand, error) {
	var m attachCommand
	if kind == websocket.MessageBinary {
		return &execution.Input{Data: data}, m, nil
	}
	if err := decodeObject(data, &m); err != nil {
		return nil, m, err
	}
	if m.Type == "eof" {
		return &execution.Input{EOF: true}, m, nil
	}
	return nil, m, nil
}

// command executes a text message.
func (a *API) command(ctx context.Context, at attachment, m attachCommand) (err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the use of the Sandbox with the command
	defer cancel()
	switch m.Type {
	case "resize":
		_, err = a.Executions.Resize(ctx, at.who.Tenant, at.ref, execution.TerminalSize{Cols: m.Cols, Rows: m.Rows})
	case "signal":
		_, err = a.Executions.Signal(ctx, at.who.Tenant, at.ref, string(m.Signal))
	default:
		err = sandbox.Errorf(sandbox.Invalid, "type must be resize, signal or eof; input is sent as binary messages")
	}
	return err
}
