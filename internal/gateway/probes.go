package gateway

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// healthy is a v1.Health byte for byte: probes compare it.
const healthy = `{"service":"gateway","status":"ok"}`

// health answers GET /health: this process serves.
func (s *Server) health(w http.ResponseWriter, _ *http.Request, _ sandbox.Identity) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, err := w.Write([]byte(healthy))
	return err
}

// ready answers GET /ready: 200 when a Node can take Sandboxes. It answers 503, with
// the reasons, when no Node can, records cannot be written or this process is shutting
// down.
func (s *Server) ready(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	state := s.readiness(r.Context())
	if !state.Ready {
		return rest.Reply(w, http.StatusServiceUnavailable, state)
	}
	return rest.Reply(w, http.StatusOK, state)
}

// readiness asks every Node, and the database.
func (s *Server) readiness(ctx context.Context) (state v1.Readiness) {
	state.Reasons = []string{}
	defer func() {
		select {
		case <-s.draining:
			state.Ready, state.Reasons = false, append(state.Reasons, errDraining.Detail)
		default:
		}
	}()
	nodes, err := s.api.NodeStates(ctx)
	if err != nil {
		s.Log.WarnContext(ctx, "listing the nodes failed", telemetry.KeyError, err.Error())
		state.Reasons = append(state.Reasons, "the nodes cannot be listed")
	} else if len(nodes) == 0 {
		state.Reasons = append(state.Reasons, "no node is registered")
	}
	for _, n := range nodes {
		state.Ready = state.Ready || n.Ready
		for _, reason := range n.NotReady {
			state.Reasons = append(state.Reasons, n.Node+": "+reason)
		}
	}
	if s.CheckWrite == nil {
		return state
	}
	if err := s.CheckWrite(ctx); err != nil {
		s.Log.WarnContext(ctx, "the write check of the database failed", telemetry.KeyError, err.Error())
		state.Ready, state.Reasons = false, append(state.Reasons, "the database cannot be written: "+status.Of(err).Message)
	}
	return state
}

// metricsPage answers GET /metrics.
func (s *Server) metricsPage(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, // a Node that does not answer hides no other number
	}).ServeHTTP(w, r)
	return nil
}
