package rest

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// Headers, or trailers, of plain output.
const (
	headerNext    = "X-Next-Offset"
	headerDropped = "X-Dropped"
	headerState   = "X-Process-State"
)

// outputQuery selects the output that a client asks for.
type outputQuery struct {
	ref    execution.ProcessRef
	from   int64
	follow bool
	stream string // empty: both
}

func (q outputQuery) wants(p execution.OutputPiece) bool {
	return q.stream == "" || (q.stream == "stderr") == p.Stderr
}

func outputQueryOf(r *http.Request) (outputQuery, error) {
	ref, more, err := processRef(r, "from", "follow", "stream")
	q := outputQuery{ref: ref, stream: more["stream"]}
	if err != nil {
		return q, err
	}
	from := more["from"]
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		from = last
	}
	if q.from, err = parseOffset(from, 0); err != nil {
		return q, err
	}
	if q.stream != "" && q.stream != "stdout" && q.stream != "stderr" {
		return q, sandbox.Errorf(sandbox.Invalid, "stream must be stdout or stderr")
	}
	q.follow, err = parseFlag("follow", more["follow"])
	return q, err
}

// parseOffset reads an offset; a negative one counts from the end.
func parseOffset(s string, absent int64) (int64, error) {
	if s == "" {
		return absent, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, sandbox.Errorf(sandbox.Invalid, "from must be a whole number of bytes: from the beginning, or negative from the end")
	}
	return n, nil
}

// ReadProcessOutput answers GET /api/v1/processes/{id}/output with bytes, with
// server-sent events or over a WebSocket.
func (a *API) ReadProcessOutput(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	q, err := outputQueryOf(r)
	switch {
	case err != nil:
		return err
	case wantsSocket(r):
		return a.outputSocket(w, r, who, q)
	case acceptsEvents(r):
		return a.outputEvents(w, r, who, q)
	}
	return a.outputBytes(w, r, who, q)
}

// outputBytes answers with the bytes alone. Values that are known only after the last
// byte are sent as trailers.
func (a *API) outputBytes(w http.ResponseWriter, r *http.Request, who sandbox.Identity, q outputQuery) error {
	flow := http.NewResponseController(w)
	h := w.Header()
	var next, dropped int64
	begun := false
	return a.Executions.ReadOutput(r.Context(), who.Tenant, q.ref, q.from, q.follow, func(p *execution.Process, o execution.Output) error {
		if !begun {
			begun = true
			dropped, next = gapAtStart(q, p, o), max(o.Next, p.OutputStart)
			h.Set("Content-Type", "application/octet-stream")
			h.Set("Content-Security-Policy", "sandbox")
			h.Set("Cache-Control", "no-store")
			if q.follow {
				h.Set("Trailer", strings.Join([]string{headerNext, headerDropped, headerState}, ", "))
			} else {
				setOutputHead(h, max(p.OutputEnd, next), dropped, *p)
			}
			w.WriteHeader(http.StatusOK)
			return flow.Flush()
		}
		for _, piece := range o.Pieces {
			dropped += piece.Offset - next
			next = piece.Offset + int64(len(piece.Data))
			if !q.wants(piece) {
				continue
			}
			if _, err := w.Write(piece.Data); err != nil {
				return err
			}
		}
		if p == nil {
			return flow.Flush()
		}
		if q.follow {
			setOutputHead(h, o.Next, dropped, *p)
		}
		return nil
	})
}

// gapAtStart is how many of the requested bytes are no longer kept.
func gapAtStart(q outputQuery, p *execution.Process, o execution.Output) int64 {
	if q.from < 0 {
		return 0
	}
	return max(p.OutputStart-o.Next, 0)
}

func setOutputHead(h http.Header, next, dropped int64, p execution.Process) {
	h.Set(headerNext, strconv.FormatInt(next, 10))
	h.Set(headerDropped, strconv.FormatInt(dropped, 10))
	h.Set(headerState, stateOf(p))
}

// sink receives output events, over any transport.
type sink interface {
	start(v v1.Process) error
	send(e v1.OutputEvent) error
	end(v v1.Process) error
}

// tell turns output into events. A character that is cut between two pieces of its
// stream is joined; the event before it ends where the character begins.
func (a *API) tell(ctx context.Context, who sandbox.Identity, q outputQuery, to sink) error {
	t := teller{query: q, to: to}
	begun := false
	return a.Executions.ReadOutput(ctx, who.Tenant, q.ref, q.from, q.follow, func(p *execution.Process, o execution.Output) error {
		if !begun {
			begun = true
			t.next = o.Next
			return to.start(ProcessViewOf(*p))
		}
		for _, piece := range o.Pieces {
			if err := t.piece(piece); err != nil {
				return err
			}
		}
		if p == nil {
			return nil
		}
		if err := t.flush(); err != nil {
			return err
		}
		return to.end(ProcessViewOf(*p))
	})
}

// teller turns pieces of output into events.
type teller struct {
	query   outputQuery
	to      sink
	next    int64
	streams [2]struct {
		text execution.Text
		from int64 // offset of the incomplete character in text
	}
}

var streamNames = [2]string{"stdout", "stderr"}

func (t *teller) piece(p execution.OutputPiece) error {
	if p.Offset > t.next {
		if err := t.flush(); err != nil {
			return err
		}
		if err := t.to.send(v1.OutputEvent{Event: "dropped", Offset: t.next, Next: p.Offset}); err != nil {
			return err
		}
	}
	t.next = p.Offset + int64(len(p.Data))
	if !t.query.wants(p) {
		return nil
	}
	i := 0
	if p.Stderr {
		i = 1
	}
	s := &t.streams[i]
	e := v1.OutputEvent{Event: streamNames[i], Offset: p.Offset}
	if s.text.Waiting() > 0 {
		e.Offset = s.from
	}
	e.Text, e.Base64 = s.text.Add(p.Data)
	e.Next = t.next - int64(s.text.Waiting())
	if e.Text == "" {
		if e.Offset == p.Offset {
			s.from = p.Offset
		}
		return nil
	}
	s.from = e.Next
	return t.to.send(e)
}

// flush sends the beginnings of characters that will not be completed.
func (t *teller) flush() error {
	for i := range t.streams {
		s := &t.streams[i]
		if text, exact := s.text.End(); text != "" {
			if err := t.to.send(v1.OutputEvent{Event: streamNames[i], Offset: s.from, Next: t.next, Text: text, Base64: exact}); err != nil {
				return err
			}
		}
	}
	return nil
}

// outputEvents answers with server-sent events.
func (a *API) outputEvents(w http.ResponseWriter, r *http.Request, who sandbox.Identity, q outputQuery) error {
	events := newEvents(w)
	defer events.stop()
	err := a.tell(r.Context(), who, q, eventSink{events})
	if err != nil && events.started() {
		return events.fail(err)
	}
	return err
}

type eventSink struct{ events *events }

func (s eventSink) start(v v1.Process) error { return s.events.start(v) }
func (s eventSink) end(v v1.Process) error   { return s.events.send("end", v) }

func (s eventSink) send(e v1.OutputEvent) error {
	name := e.Event
	e.Event = ""
	return s.events.sendID(strconv.FormatInt(e.Next, 10), name, e)
}

// outputSocket answers with a WebSocket of JSON messages.
func (a *API) outputSocket(w http.ResponseWriter, r *http.Request, who sandbox.Identity, q outputQuery) error {
	s, err := a.openSocket(w, r, who, q.ref, socketSilent, func(execution.Process) error { return nil })
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancel(r.Context())
	defer leave()
	left, wait := s.listen(ctx)
	defer wait()
	context.AfterFunc(left, leave)
	defer s.keep(left)()
	err = a.tell(ctx, who, q, socketSink{func(v any) error { return s.json(left, v) }})
	return s.part(r.Context(), left, err)
}

const (
	// socketSilent bounds a message of a client that has no messages to send, in bytes.
	socketSilent = 1 << 10
	// socketInput bounds one message of input, in bytes.
	socketInput = execution.MaxInput
)

// openSocket answers with a WebSocket, once the Process is found and check accepts it:
// afterwards no HTTP status can be sent.
func (a *API) openSocket(w http.ResponseWriter, r *http.Request, who sandbox.Identity, ref execution.ProcessRef, limit int64, check func(execution.Process) error) (*socket, error) {
	p, err := a.Executions.GetProcess(r.Context(), who.Tenant, ref)
	if err != nil {
		return nil, err
	}
	if err := check(p); err != nil {
		return nil, err
	}
	return acceptSocket(w, r, limit)
}

// part closes the socket after err. A client that has left is sent nothing: left has
// then ended before the request.
func (s *socket) part(request, left context.Context, err error) error {
	if left.Err() != nil && request.Err() == nil {
		_ = s.conn.CloseNow()
		return nil
	}
	return s.finish(request, err)
}

// socketSink sends events as JSON messages.
type socketSink struct{ json func(any) error }

func (k socketSink) send(e v1.OutputEvent) error { return k.json(e) }
func (k socketSink) start(v v1.Process) error    { return k.process("start", v) }
func (k socketSink) end(v v1.Process) error      { return k.process("end", v) }
func (k socketSink) process(event string, v v1.Process) error {
	return k.json(struct {
		Event string `json:"event"`
		v1.Process
	}{event, v})
}
