// Package events serves E2B's events address inside a Sandbox, which the link
// routes here. Programs ask there for their Sandbox's ID, and send logs. The last
// logs are kept for the host.
package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// maxKept bounds the kept logs, in bytes of messages and fields; the oldest are
	// dropped.
	maxKept = 256 << 10
	// logsPerSecond and logsAtOnce are the rate and burst limit of logs.
	logsPerSecond = 100
	logsAtOnce    = 500
)

// Server serves the events address and keeps logs. Use New.
type Server struct {
	guest *server.Guest
	mux   *http.ServeMux
	limit *rate.Limiter

	mu    sync.Mutex
	kept  []entry // oldest first
	bytes int
}

// entry belongs to one owner: a copy of the Sandbox does not show the logs of the
// original.
type entry struct {
	guest.LogEntry
	sandboxID string
	size      int
}

// New returns the service of a Guest.
func New(g *server.Guest) *Server {
	s := &Server{guest: g, mux: http.NewServeMux(), limit: rate.NewLimiter(logsPerSecond, logsAtOnce)}
	s.mux.HandleFunc("GET /me", s.me)
	s.mux.HandleFunc("POST /logs", s.log)
	return s
}

// ServeHTTP answers a request of a program inside.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Server) me(w http.ResponseWriter, _ *http.Request) {
	owner, _ := s.guest.Owner()
	reply(w, map[string]string{"sandboxID": owner.SandboxID})
}

// log stores one JSON object. "message" and "level" are the message and level;
// other values, except objects and lists, are fields.
func (s *Server) log(w http.ResponseWriter, r *http.Request) {
	if !s.limit.Allow() {
		http.Error(w, fmt.Sprintf("more than %d logs a second", logsPerSecond), http.StatusTooManyRequests)
		return
	}
	var body map[string]any
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, guest.MaxLog)).Decode(&body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		http.Error(w, fmt.Sprintf("a log may have at most %d bytes", guest.MaxLog), http.StatusRequestEntityTooLarge)
		return
	case err != nil || body == nil:
		http.Error(w, "a log is an object of JSON", http.StatusBadRequest)
		return
	}
	owner, _ := s.guest.Owner()
	s.keep(entry{LogEntry: entryOf(body), sandboxID: owner.SandboxID})
}

// entryOf converts a program's log to an entry.
func entryOf(body map[string]any) guest.LogEntry {
	e := guest.LogEntry{UnixMillis: time.Now().UnixMilli(), Level: "info", Fields: map[string]string{}}
	if level, ok := body["level"].(string); ok {
		e.Level = level
	}
	e.Message, _ = body["message"].(string)
	delete(body, "message")
	delete(body, "level")
	names := make([]string, 0, len(body))
	for name := range body {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch body[name].(type) {
		case string, bool, float64:
			if len(e.Fields) < guest.MaxLogFields {
				e.Fields[name] = fmt.Sprint(body[name])
			}
		}
	}
	return e
}

func (s *Server) keep(e entry) {
	e.size = len(e.Level) + len(e.Message)
	for name, value := range e.Fields {
		e.size += len(name) + len(value)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, e)
	s.bytes += e.size
	gone := 0
	for s.bytes > maxKept || len(s.kept)-gone > guest.MaxLogs {
		s.bytes -= s.kept[gone].size
		gone++
	}
	s.kept = slices.Delete(s.kept, 0, gone)
}

// Logs answers the host with the logs of the current owner's programs, oldest
// first.
func (s *Server) Logs(w http.ResponseWriter, _ *http.Request) {
	owner, _ := s.guest.Owner()
	out := []guest.LogEntry{}
	s.mu.Lock()
	for _, e := range s.kept {
		if e.sandboxID == owner.SandboxID {
			out = append(out, e.LogEntry)
		}
	}
	s.mu.Unlock()
	reply(w, out)
}

func reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}
