package rest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// keepAlive is the interval of comments on a quiet stream: shorter than proxies' idle
// timeouts, which are about a minute.
const keepAlive = 15 * time.Second

// events writes server-sent events. Its methods may be called concurrently.
type events struct {
	w    http.ResponseWriter
	flow *http.ResponseController

	mu   sync.Mutex
	quit chan struct{} // closed to end the keeper; nil before the first event
	done chan struct{} // closed when the keeper has ended
}

func newEvents(w http.ResponseWriter) *events {
	return &events{w: w, flow: http.NewResponseController(w)}
}

func (e *events) started() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.quit != nil
}

// start writes the head of the answer and its first event, and keeps the stream
// alive from then on, until stop.
func (e *events) start(v any) error {
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	e.mu.Lock()
	e.quit, e.done = make(chan struct{}), make(chan struct{})
	e.mu.Unlock()
	go e.keep()
	return e.send("start", v)
}

func (e *events) keep() {
	defer close(e.done)
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-tick.C:
			if e.write([]byte(": keep-alive\n\n")) != nil {
				return // the next event, or the end of the request, reports why
			}
		}
	}
}

// stop ends the keeper and waits for it. Nothing may write the answer after the handler
// has returned.
func (e *events) stop() {
	if e.started() {
		close(e.quit)
		<-e.done
	}
}

func (e *events) send(name string, v any) error {
	data, err := json.Marshal(v) // never holds a line break
	if err != nil {
		return err
	}
	return e.write(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, data))
}

// sendLong is sendID for a view with long fields.
func (e *events) sendLong(id, name string, v any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := bufio.NewWriterSize(e.w, longBuffer)
	if id != "" {
		_, _ = fmt.Fprintf(out, "id: %s\n", id) // an error stays until the next write
	}
	_, _ = fmt.Fprintf(out, "event: %s\ndata: ", name)
	if err := writeLong(out, v); err != nil { // never holds a line break
		return err
	}
	_, _ = out.WriteString("\n\n")
	if err := out.Flush(); err != nil {
		return err
	}
	return e.flow.Flush()
}

// sendID is send for an event after which a client can resume; with an empty id it
// cannot resume there.
func (e *events) sendID(id, name string, v any) error {
	if id == "" {
		return e.send(name, v)
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return e.write(fmt.Appendf(nil, "id: %s\nevent: %s\ndata: %s\n\n", id, name, data))
}

func (e *events) write(p []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.w.Write(p); err != nil {
		return err
	}
	return e.flow.Flush()
}

// fail ends the stream with an event that holds err. It returns err wrapped in
// Answered, for the log.
func (e *events) fail(err error) error {
	if sent := e.send("error", v1.FailureBody{Error: status.Of(err)}); sent != nil {
		return err // the client is gone
	}
	return &Answered{err}
}

// Answered is an error that the body has already reported to the client.
type Answered struct{ Err error }

func (a *Answered) Error() string { return a.Err.Error() }
func (a *Answered) Unwrap() error { return a.Err }
