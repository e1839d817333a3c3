package rpc

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	healthv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/grpc/health/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/grpc/health/v1/healthv1connect"
)

const (
	healthName = healthv1connect.HealthName
	// watchEvery is the interval of checking a watched health.
	watchEvery = time.Second
	maxHealth  = 4 << 10 // bytes of a request, and of an answer that is only read to its end
)

// Health is the status of a process in grpc.health.v1: either all of its services are
// serving, or none is.
type Health struct {
	// Ready reports whether the process can do its work.
	Ready func(context.Context) bool
	// Draining is closed when the process takes no more work. From then on it is not
	// serving, regardless of Ready, and watches end after the last status.
	Draining <-chan struct{}
}

// health serves a Health.
type health struct {
	Health
	services []string
}

func healthHandler(h Health, services []string) (string, http.Handler) {
	return healthv1connect.NewHealthHandler(health{h, services}, connect.WithReadMaxBytes(maxHealth))
}

func (h health) draining() bool {
	select {
	case <-h.Draining:
		return true
	default:
		return false
	}
}

func (h health) status(ctx context.Context, service string) healthv1.HealthCheckResponse_ServingStatus {
	switch {
	case service != "" && service != healthName && !slices.Contains(h.services, service):
		return healthv1.HealthCheckResponse_SERVICE_UNKNOWN
	case h.draining() || !h.Ready(ctx):
		return healthv1.HealthCheckResponse_NOT_SERVING
	}
	return healthv1.HealthCheckResponse_SERVING
}

// Check answers with the current status.
func (h health) Check(ctx context.Context, r *connect.Request[healthv1.HealthCheckRequest]) (*connect.Response[healthv1.HealthCheckResponse], error) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	status := h.status(ctx, r.Msg.Service)
	if status == healthv1.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, Public(sandbox.Errorf(sandbox.NotFound, "no service %.64q here", r.Msg.Service))
	}
	return connect.NewResponse(&healthv1.HealthCheckResponse{Status: status}), nil
}

// Watch sends the status and each change of it, until the process drains.
func (h health) Watch(ctx context.Context, r *connect.Request[healthv1.HealthCheckRequest], out *connect.ServerStream[healthv1.HealthCheckResponse]) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	said := healthv1.HealthCheckResponse_UNKNOWN
	for {
		last := h.draining() // before the status, which then includes it
		if status := h.status(ctx, r.Msg.Service); status != said && ctx.Err() == nil {
			said = status
			if err := out.Send(&healthv1.HealthCheckResponse{Status: status}); err != nil {
				return err
			}
		}
		if last {
			return Public(sandbox.Errorf(sandbox.Unavailable, "the server is shutting down"))
		}
		select {
		case <-ctx.Done():
			return Public(context.Cause(ctx))
		case <-tick.C:
		case <-h.Draining:
		}
	}
}

// writeReady writes the body of /ready.
func (s *Server) writeReady(w io.Writer, reasons []string) error {
	lead := ""
	if s.Leads != nil {
		lead = "standby"
		if s.Leads() {
			lead = "leader"
		}
	}
	return json.NewEncoder(w).Encode(struct {
		Ready   bool     `json:"ready"`
		Reasons []string `json:"reasons"`
		Lead    string   `json:"lead,omitempty"`
	}{len(reasons) == 0, append([]string{}, reasons...), lead})
}
