package server

import (
	"net/http"
	"sync"
	"time"
)

// gatherTime is how long the first of several messages waits for those that
// follow it. Each write to the host wakes four processes on its way.
const gatherTime = 2 * time.Millisecond

// Gathered is h with its flushes put off by gatherTime, so that the messages of
// something that is over at once leave together. Its writers are safe for
// concurrent use.
func Gathered(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := &gatherer{ResponseWriter: w}
		defer g.end()
		h.ServeHTTP(g, r)
	})
}

// gatherer is a response whose flushes wait for one another.
type gatherer struct {
	http.ResponseWriter
	mu    sync.Mutex
	timer *time.Timer // of the flush that waits; nil: there was none
	set   bool        // one waits
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

// Flush has what was written leave soon. It implements http.Flusher.
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
		_ = http.NewResponseController(g.ResponseWriter).Flush() // who writes next learns of the failure
	}
}

// end leaves the rest to the server, which flushes what is over.
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
