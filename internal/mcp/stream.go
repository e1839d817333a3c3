package mcp

import (
	"net/http"
	"sync"
	"time"
)

// keepAliveEvery is the longest silence of an answer. Proxies close connections that
// are silent for longer, mostly after a minute.
const keepAliveEvery = 15 * time.Second

// stream is the answer to a request of MCP, which may be a stream of server-sent events.
type stream struct {
	w    http.ResponseWriter
	done chan struct{}

	mu      sync.Mutex
	alive   bool      // comments are sent during silence
	written time.Time // time of the last write
	ended   bool
	told    sync.WaitGroup
}

func newStream(w http.ResponseWriter) *stream {
	return &stream{w: w, done: make(chan struct{}), written: time.Now()}
}

func (s *stream) Header() http.Header { return s.w.Header() }

func (s *stream) WriteHeader(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.WriteHeader(code)
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = time.Now()
	return s.w.Write(p)
}

// FlushError sends the bytes written so far.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return http.NewResponseController(s.w).Flush()
}

// keepAlive starts to send comments during silence. The answer's headers must be
// complete.
func (s *stream) keepAlive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alive || s.ended {
		return
	}
	s.alive = true
	s.told.Go(func() {
		tick := time.NewTicker(keepAliveEvery / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.comment()
			case <-s.done:
				return
			}
		}
	})
}

// comment sends a comment, which clients ignore, if the answer has been silent.
func (s *stream) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || time.Since(s.written) < keepAliveEvery || s.w.Header().Get("Content-Type") != "text/event-stream" {
		return
	}
	s.written = time.Now()
	if _, err := s.w.Write([]byte(": keep-alive\n\n")); err == nil {
		_ = http.NewResponseController(s.w).Flush() // the next write fails too
	}
}

// end is called when the answer is complete. Nothing is written after it.
func (s *stream) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	close(s.done)
	s.told.Wait()
}
