package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/lead"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// lastCalls is how long the calls in progress may take when a leader resigns. Calls that
// take longer cannot write any more, and the next leader finishes or undoes them.
const lastCalls = 8 * time.Second

// sandboxes is the session manager that leads, for a gateway: at the configured address, or
// without one at the address in the leader's record.
func (r *role) sandboxes() *rpc.Sandboxes {
	address := r.at(config.RoleSessionManager, r.cfg.SessionManagerURL)
	if r.cfg.SessionManagerURL != "" {
		return rpc.NewSandboxes(address, r.self)
	}
	return rpc.NewLeader(leaderAt(address, r.store.LeaderOf), r.self)
}

// holderFile holds the identity under which a process of a role led last, or tried to.
func holderFile(layout launch.Layout, role string) string {
	return filepath.Join(layout.Sockets(), role+".holder")
}

// claim is the claim of this process to lead a role. It ends the term of the process
// before it, whose work is lost: this process has its lock.
func (j *joined) claim(ctx context.Context, role, address string) (sandbox.LeaderClaim, error) {
	c := sandbox.LeaderClaim{Role: role, Holder: rand.Text(), Address: address}
	file := holderFile(j.layout, role)
	before, err := durable.KeptIdentity(file)
	if err != nil {
		return c, fmt.Errorf("read the identity of the process before: %w", err)
	}
	if before != "" {
		if err := j.store.Resign(ctx, c.Role, before); err != nil {
			j.log.Warn("ending the term of the process before failed; its lease must expire first", telemetry.KeyError, err)
		}
	}
	if err := durable.Write(file, []byte(c.Holder+"\n"), 0o600); err != nil {
		return c, fmt.Errorf("keep the identity of this process: %w", err)
	}
	return c, nil
}

// leadership runs the session manager of a process in each of its terms: a new one each
// time, because another process may have changed the records in between.
type leadership struct {
	role      *role
	placement sandbox.Placement
	lives     *lives
	collect   *collecting

	mu      sync.Mutex
	term    *lead.Term // nil: this process stands by
	manager *session.Manager
	calls   *sync.WaitGroup // of manager
}

// leads reports whether this process leads.
func (l *leadership) leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term != nil && l.term.Lasts()
}

// join is an rpc.Leading.
func (l *leadership) join() (rpc.Manager, func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == nil || !l.term.Lasts() {
		return nil, nil
	}
	l.calls.Add(1)
	return l.manager, l.calls.Done
}

// begin lets calls join m.
func (l *leadership) begin(t *lead.Term, m *session.Manager) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term, l.manager, l.calls = t, m, &sync.WaitGroup{}
}

// end lets no more calls join, and waits for those in progress while the term lasts.
func (l *leadership) end() {
	l.mu.Lock()
	t, calls := l.term, l.calls
	l.term, l.manager = nil, nil
	l.mu.Unlock()
	left := make(chan struct{})
	go func() {
		defer close(left)
		calls.Wait()
	}()
	select {
	case <-left:
	case <-t.Lost():
	case <-time.After(lastCalls):
	}
}

// serve leads for one term.
func (l *leadership) serve(ctx context.Context, t *lead.Term) error {
	store := l.role.store.Under(t.Leader, t.Lose)
	hooks := deliveries{store, t}
	if err := l.role.hooks.Open(ctx, hooks); err != nil {
		if errors.Is(err, sandbox.Unavailable) {
			t.Lose() // to try again
		}
		return fmt.Errorf("webhooks: %w", err)
	}
	self := l.role.self
	self.Epoch = t.Epoch
	nodes := rpc.NewNodes(l.role.store.Nodes, self)
	defer nodes.Close()
	manager := l.role.manager(store, l.lives, nodes, l.placement, nodeGrace)
	l.begin(t, manager)
	g, working := errgroup.WithContext(ctx)
	g.Go(func() error { return manager.Run(working) })
	g.Go(func() error { return l.role.hooks.Deliver(working, hooks) })
	g.Go(func() error { return l.collect.run(working, store) })
	<-working.Done()
	l.end()
	return g.Wait()
}

// deliveries are the webhooks' rows for a leader: once its term is over, nothing is due. A
// delivery cannot be taken back, so that the record of it is refused does not suffice.
type deliveries struct {
	sandbox.WebhookStore
	term *lead.Term
}

func (d deliveries) DueDeliveries(ctx context.Context, webhook string, now time.Time, limit int) ([]sandbox.Delivery, error) {
	due, err := d.WebhookStore.DueDeliveries(ctx, webhook, now, limit)
	if err == nil && !d.term.Lasts() {
		return nil, sandbox.ErrNotLeading
	}
	return due, err
}
