package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/traffic"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// carried is the route of requests to ports of Sandboxes in the metrics.
var carried = route{binding: binding{path: "sandbox port"}}

// carry proxies a request to a port of a Sandbox. The answer is the Sandbox's,
// unchanged.
func (s *Server) carry(w http.ResponseWriter, r *http.Request, to traffic.Target, err error) {
	start := time.Now()
	id := requestID(r)
	out := &seen{ResponseWriter: w}
	s.metrics.inFlight.Inc()
	defer s.metrics.inFlight.Dec()
	defer func() { // also when a panic cuts the answer short
		took := time.Since(start)
		s.metrics.request(carried, out.status, took)
		s.Log.LogAttrs(r.Context(), slog.LevelDebug, "request to a sandbox",
			slog.String(telemetry.KeyRequest, id), slog.String(telemetry.KeyMethod, truncate(r.Method, 16)),
			slog.String(telemetry.KeySandbox, to.SandboxID), slog.Int("port", int(to.Port)),
			slog.Int(telemetry.KeyStatus, out.status), slog.Float64(telemetry.KeyDuration, float64(took.Microseconds())/1000))
	}()
	s.traffic.Serve(out, r.WithContext(telemetry.WithRequest(r.Context(), id)), to, err)
}

// minWoken is the least time that a Sandbox runs after a request to a port wakes it:
// the sender may not know its timeout.
const minWoken = 5 * time.Minute

// wake returns the Sandbox of a request to a port once it runs. A Sandbox that was
// explicitly saved without its memory boots only on request, and not for any traffic to
// a port. If its OnTimeout is to pause without memory, traffic boots it.
func (s *Server) wake(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	if sb.State == sandbox.Paused && sb.OnTimeout != sandbox.OnTimeoutPauseFiles {
		snap, err := s.Snapshots.SnapshotByID(ctx, sb.Tenant, sb.Snapshot)
		if err == nil && !snap.Memory {
			return sb, sandbox.Errorf(sandbox.Conflict, "the sandbox is paused without its memory: resume it")
		}
	}
	paused := sb.State != sandbox.Running
	sb, err := s.guests.Wake(ctx, sb)
	if err != nil || !paused || time.Until(sb.Deadline) >= minWoken-time.Second {
		return sb, err
	}
	longer, err := s.Updates.RunFor(ctx, sb.Tenant, sb.ID, minWoken)
	switch {
	case errors.Is(err, sandbox.Exhausted): // it has reached the maximum running time
		return sb, nil
	case err == nil && longer.State != sandbox.Running: // it was paused meanwhile
		return s.guests.Wake(ctx, longer)
	}
	return longer, err
}

// ours reports whether this installation signed a JWT, or whether the JWT claims to be
// an identity provider's for this installation.
func (s *Server) ours(token string) bool {
	return s.Tokens.Signed(token) || s.Issuers.MayBeValid(token)
}

// seen remembers the status of an answer.
type seen struct {
	http.ResponseWriter
	status int // 0: nothing was answered
}

func (w *seen) WriteHeader(code int) {
	if w.status < 200 { // the last status counts; 1xx precede it
		w.status = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *seen) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the rest.
func (w *seen) Unwrap() http.ResponseWriter { return w.ResponseWriter }
