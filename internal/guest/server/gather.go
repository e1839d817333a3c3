package server

import (
	"net/http"
	"sync"
	"time"
)

// gatherTime is how long the first of several messages waits for the messages that
// follow. Each write to the host wakes four processes on its way.
const gatherTime = 2 * time.Millisecond

// Gathered delays the flushes of h by gatherTime, so that the messages of a short
// operation are sent together. Its writers are safe for concurrent use.
func Gathered(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := &gatherer{ResponseWriter: w}
		defer g.end()
		h.ServeHTTP(g, r)
	})
}

// gatherer is a response whose flushes are combined.
type gatherer struct {
	http.ResponseWriter
	mu    sync.Mutex
	timer *time.Timer // of the pending flush; nil: no flush yet
	set   bool        // a flush is pending
	ended bool        // the response is no longer ours
}

func (g *gatherer) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ResponseWriter.Write(p)
}

func (g *gatherer) WriteHeader(status int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ResponseWriter.WriteHeader(status)
}

// Flush sends the written data soon. It implements http.Flusher.
func (g *gatherer) Flush() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.set:
	case g.timer == nil:
		g.timer = time.AfterFunc(gatherTime, g.flush)
	default:
		g.timer.Reset(gatherTime)
	}
	g.set = true
}

func (g *gatherer) flush() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.set = false
	if !g.ended {
		_ = http.NewResponseController(g.ResponseWriter).Flush() // the next write reports the failure
	}
}

// end leaves the rest to the server, which flushes a finished response.
func (g *gatherer) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	if g.timer != nil {
		g.timer.Stop()
	}
}

// Unwrap is for http.ResponseController.
func (g *gatherer) Unwrap() http.ResponseWriter { return g.ResponseWriter }
