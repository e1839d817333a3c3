package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// handle makes a route an http.Handler: it checks who asks, bounds the body,
// turns an error or a panic into an answer, and writes the request's one log
// line.
func (s *Server) handle(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := requestID(r)
		out := &writer{ResponseWriter: w, flow: http.NewResponseController(w)}
		out.Header().Set("X-Request-Id", id)
		out.Header().Set("X-Content-Type-Options", "nosniff")
		s.metrics.inFlight.Inc()
		defer s.metrics.inFlight.Dec()

		who, err := s.answer(rt, out, r)
		broken := s.conclude(out, r, err)
		took := time.Since(start)
		s.metrics.request(rt, out.status, took)
		s.logRequest(rt, r, id, who, out, err, took)
		if broken {
			panic(http.ErrAbortHandler) // the only way to tell that what was sent is not all
		}
	})
}

// answer runs the handler of a route for whoever may use it. A panic becomes an
// error.
func (s *Server) answer(rt route, w *writer, r *http.Request) (who sandbox.Identity, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if rt.access == tenant {
		if who, err = s.Tokens.identify(r); err != nil {
			w.Header().Set("WWW-Authenticate", `Bearer realm="cloud-sandbox"`)
			s.refuseBody(w, r)
			return who, err
		}
	}
	body, err := newBody(w, r, rt.maxBody)
	if err != nil {
		s.refuseBody(w, r)
		return who, err
	}
	bounded := *r // the server looks at the body of r itself when it closes the connection
	bounded.Body = body
	return who, rt.answer(w, &bounded, who)
}

// refuseBody keeps a body that nobody reads from holding the connection.
func (s *Server) refuseBody(w *writer, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		w.Header().Set("Connection", "close")
		_ = w.flow.SetReadDeadline(time.Now().Add(time.Second)) // not all writers can
	}
}

// conclude tells the client of err, unless it is gone or has been told. It
// reports whether an answer that was begun breaks off.
func (s *Server) conclude(w *writer, r *http.Request, err error) (broken bool) {
	if err == nil {
		if w.status == 0 {
			w.status = http.StatusOK
		}
		return false
	}
	var answered *rest.Answered
	switch {
	case w.gone || clientLeft(r, err):
		w.status = status.ClientClosed
		return true
	case errors.As(err, &answered):
		return false
	case w.status != 0:
		return true
	}
	if cause := context.Cause(r.Context()); errors.Is(err, context.Canceled) && cause != nil {
		err = cause
	}
	f := status.Of(err)
	if f.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfterSeconds))
	}
	for _, name := range []string{"Content-Length", "Content-Disposition", "Content-Range", "Accept-Ranges", "Last-Modified"} {
		w.Header().Del(name) // of an answer that was not begun
	}
	_ = rest.Reply(w, f.Status, status.Body{Error: f}) // a client that is gone hears nothing
	return false
}

// clientLeft reports whether a request failed because its client went away.
func clientLeft(r *http.Request, err error) bool {
	return errors.Is(err, context.Canceled) && context.Cause(r.Context()) == context.Canceled
}

func (s *Server) logRequest(rt route, r *http.Request, id string, who sandbox.Identity, w *writer, err error, took time.Duration) {
	level := slog.LevelInfo
	if rt.quiet {
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.String(telemetry.KeyRequest, id),
		slog.String(telemetry.KeyMethod, truncate(r.Method, 16)),
		slog.String(telemetry.KeyRoute, rt.path),
		slog.Int(telemetry.KeyStatus, w.status),
		slog.Float64(telemetry.KeyDuration, float64(took.Microseconds())/1000),
	}
	if who.Tenant != "" {
		attrs = append(attrs, slog.String(telemetry.KeyTenant, string(who.Tenant)))
	}
	if err != nil {
		code := sandbox.CodeOf(err)
		attrs = append(attrs, slog.String(telemetry.KeyCode, string(code)), slog.String(telemetry.KeyError, truncate(err.Error(), 8<<10)))
		switch {
		case w.status == status.ClientClosed:
		case code == sandbox.Internal && w.status >= 500:
			level = slog.LevelError
		case code == sandbox.Unavailable || code == sandbox.Timeout:
			level = slog.LevelWarn
		}
	}
	s.Log.LogAttrs(context.WithoutCancel(r.Context()), level, "request", attrs...)
}

func truncate(s string, max int) string {
	if len(s) > max {
		return s[:max]
	}
	return s
}

var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// requestID is the client's own, when it is harmless in a log, or a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); requestIDPattern.MatchString(id) {
		return id
	}
	return rand.Text()
}
