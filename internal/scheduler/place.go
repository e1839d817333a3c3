// Package scheduler chooses the Node that a Boot starts on. Its choice is only a
// proposal: a Node admits or refuses, so a slightly stale view does no harm.
package scheduler

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// refreshEvery is the interval at which Run refreshes the view.
	refreshEvery = 2 * time.Second
	// staleAfter is the age at which Place reads the Store itself.
	staleAfter = 5 * time.Second
	// retryAfter is the Retry-After when no Node is available.
	retryAfter = 5 * time.Second
)

// Scheduler places Boots on the Nodes with a valid Lease. It implements
// sandbox.Placement. Use New; Run is optional and makes Place faster.
type Scheduler struct {
	store sandbox.NodeStore
	log   *slog.Logger

	mu    sync.Mutex
	nodes []sandbox.NodeRecord
	asked time.Time // when the Store was asked for nodes; zero: never
	turn  int       // which Node is tried first
}

var _ sandbox.Placement = (*Scheduler)(nil)

// New returns a Scheduler over the Leases in store. log may be nil.
func New(store sandbox.NodeStore, log *slog.Logger) *Scheduler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Scheduler{store: store, log: log}
}

// Run keeps the view of the Nodes fresh until ctx ends.
func (s *Scheduler) Run(ctx context.Context) error {
	ticker := time.NewTicker(refreshEvery)
	defer ticker.Stop()
	for {
		if err := s.refresh(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("reading the nodes failed; the scheduler uses an old view", telemetry.KeyError, err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Place implements sandbox.Placement. It rotates the Node that comes first.
func (s *Scheduler) Place(ctx context.Context, _ string, _ sandbox.Shape) ([]string, error) {
	names := s.alive()
	if len(names) == 0 {
		// The view may lack the first Node, or a Node whose Lease was renewed just now.
		if err := s.refresh(ctx); err != nil {
			return nil, err
		}
		names = s.alive()
	}
	if len(names) == 0 {
		return nil, &sandbox.Error{Code: sandbox.Exhausted, Detail: "no node is available to run the sandbox", RetryAfter: retryAfter}
	}
	return names, nil
}

// alive returns the Nodes with a valid Lease, or none when the view is too old.
func (s *Scheduler) alive() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Leases run by the Store's clock, and from the question on by this process's
	// monotonic one: its wall clock may be wrong.
	age := time.Since(s.asked)
	if age > staleAfter {
		return nil
	}
	var names []string
	for i := range s.nodes {
		n := s.nodes[(s.turn+i)%len(s.nodes)]
		if n.LeaseLeft > age {
			names = append(names, n.Name)
		}
	}
	s.turn++
	return names
}

func (s *Scheduler) refresh(ctx context.Context) error {
	asked := time.Now()
	nodes, err := s.store.Nodes(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes, s.asked = nodes, asked
	return nil
}
