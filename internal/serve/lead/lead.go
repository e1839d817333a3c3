// Package lead lets one of several processes of a role lead, while the others stand by
// and take over when it ends.
//
// A leader has a lease in the Store, which it renews. It counts its time from before each
// renewal by its monotonic clock, and stops leading before the lease can have expired by
// the Store's clock. That clock alone decides when another process may begin.
package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// life is how long a lease lasts, and renewEvery how often a leader renews it.
	life       = 10 * time.Second
	renewEvery = 3 * time.Second
	// margin is how long before the end of its lease a leader stops.
	margin = time.Second
	// pollEvery is how often a process that stands by looks at the lease.
	pollEvery = time.Second
	// tryLimit bounds one look at the lease, and one renewal.
	tryLimit = 5 * time.Second
	// stopLimit is how long the work of a leader may take to stop.
	// The process then still has time to resign, before it is ended.
	stopLimit = 15 * time.Second
	// resignLimit bounds the resignation of a process that ends.
	resignLimit = 3 * time.Second
)

// store is the part of a Store that keeps the lease.
type store interface {
	Lead(ctx context.Context, c sandbox.LeaderClaim, life time.Duration) (sandbox.Leader, error)
	Resign(ctx context.Context, role, holder string) error
	LeaderOf(ctx context.Context, role string) (sandbox.Leader, error)
}

// Config describes a process that wants to lead a role, and its work as leader. All
// fields are required.
type Config struct {
	Store store
	Claim sandbox.LeaderClaim
	// Serve does the work of a leader for one term. It returns soon after ctx ends. If the
	// term still lasts then, the process ends in an orderly way: Serve may finish work
	// before it returns, and the lease is renewed meanwhile.
	Serve func(ctx context.Context, t *Term) error
	Log   *slog.Logger
}

// A Term is an unbroken time as leader. Its methods are safe for concurrent use.
type Term struct {
	sandbox.Leader

	mu    sync.Mutex
	until time.Time // by the monotonic clock
	lost  chan struct{}
	once  sync.Once
}

// newTerm begins a term with a lease that was requested at asked.
func newTerm(l sandbox.Leader, asked time.Time) *Term {
	return &Term{Leader: l, until: asked.Add(life - margin), lost: make(chan struct{})}
}

// Lasts reports whether this process still leads.
func (t *Term) Lasts() bool {
	select {
	case <-t.lost:
		return false
	default:
		return t.left() > 0
	}
}

// Lose ends the term at once.
func (t *Term) Lose() { t.once.Do(func() { close(t.lost) }) }

// Lost is closed when the term is over before the process ends.
func (t *Term) Lost() <-chan struct{} { return t.lost }

func (t *Term) left() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.until)
}

// renewed prolongs the term by a renewal that was requested at asked.
func (t *Term) renewed(asked time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = asked.Add(life - margin)
}

// Run leads whenever no other process does, until ctx ends or Serve fails in its term. It
// resigns before it returns.
func Run(ctx context.Context, c Config) error {
	for {
		t, err := c.take(ctx)
		if err != nil {
			return err
		}
		if err := c.serve(ctx, t); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// take waits until this process leads; the error is ctx's.
func (c Config) take(ctx context.Context) (*Term, error) {
	standing, failing := "", false
	for {
		asked := time.Now()
		l, err := c.try(ctx)
		switch t := newTerm(l, asked); {
		case err == nil && t.Lasts():
			c.Log.Info("this process leads its role", "epoch", t.Epoch)
			return t, nil
		case err == nil: // the answer came too late: the next try begins another term
		case errors.Is(err, sandbox.Conflict):
			if failing = false; standing != l.Holder {
				standing = l.Holder
				c.Log.Info("this process stands by: another one leads its role", "leader", l.Address)
			}
		case !failing && ctx.Err() == nil:
			failing = true
			c.Log.Warn("taking the lead failed; will retry", telemetry.KeyError, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// try takes the lead if no other process has it. It returns the other one with Conflict.
func (c Config) try(ctx context.Context) (sandbox.Leader, error) {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	l, err := c.Store.LeaderOf(ctx, c.Claim.Role) // reads only: it is asked every second
	switch {
	case err == nil && l.Left > 0 && l.Holder != c.Claim.Holder:
		return l, sandbox.Conflict
	case err != nil && !errors.Is(err, sandbox.NotFound):
		return sandbox.Leader{}, err
	case err == nil && l.Left > 0:
		// The lease belongs to a term that this process has given up. Calls of that
		// term may still be running, so the next term needs another epoch.
		if err := c.Store.Resign(ctx, c.Claim.Role, c.Claim.Holder); err != nil {
			return sandbox.Leader{}, err
		}
	}
	return c.Store.Lead(ctx, c.Claim, life)
}

// serve runs Serve for a term, until that is over or ctx ends. Then it resigns.
func (c Config) serve(ctx context.Context, t *Term) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan error, 1)
	go func() { done <- c.Serve(working, t) }()
	renewing, stopRenewing := context.WithCancel(context.WithoutCancel(ctx))
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		c.renew(renewing, t)
	}()
	stopped, err := c.watch(ctx, t, done)
	if !stopped {
		stop()
		if stopped, err = within(done, stopLimit); !stopped {
			err = fmt.Errorf("the work of a leader did not stop in %v", stopLimit)
		}
	}
	lasted := t.Lasts()
	t.Lose()
	stopRenewing()
	<-renewed
	c.resign(ctx)
	switch {
	case !stopped:
		return err
	case !lasted:
		c.Log.Warn("this process does not lead its role any more", "epoch", t.Epoch, telemetry.KeyError, err)
		return nil
	case ctx.Err() == nil && err == nil:
		return errors.New("the work of a leader ended by itself")
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return nil
	}
	return err
}

// watch waits for the end of Serve, of the term, or of ctx.
func (c Config) watch(ctx context.Context, t *Term, done <-chan error) (stopped bool, err error) {
	for {
		timer := time.NewTimer(t.left())
		select {
		case err := <-done:
			timer.Stop()
			return true, err
		case <-t.lost:
		case <-ctx.Done():
		case <-timer.C:
			if t.left() > 0 { // it was renewed
				continue
			}
			t.Lose()
		}
		timer.Stop()
		return false, nil
	}
}

// within waits for the end of Serve.
func within(done <-chan error, limit time.Duration) (stopped bool, err error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return true, err
	case <-timer.C:
		return false, nil
	}
}

// renew renews the lease of t until ctx ends, or the term does.
func (c Config) renew(ctx context.Context, t *Term) {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.lost:
			return
		case <-ticker.C:
		}
		asked := time.Now()
		l, err := c.lead(ctx)
		switch {
		case errors.Is(err, sandbox.Conflict), err == nil && l.Epoch != t.Epoch:
			t.Lose() // the lease had expired
		case err == nil:
			t.renewed(asked)
		case ctx.Err() == nil:
			c.Log.Warn("renewing the lead failed; will retry", telemetry.KeyError, err)
		}
	}
}

// resign lets another process lead at once.
func (c Config) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignLimit)
	defer cancel()
	if err := c.Store.Resign(ctx, c.Claim.Role, c.Claim.Holder); err != nil {
		c.Log.Warn("resigning from the lead failed; another process leads once the lease has expired", telemetry.KeyError, err)
	}
}

// Hold takes the lead for a process that does the work of its role without terms.
// Conflict if another process leads already. The returned function keeps the lead until
// ctx ends. It retries while the Store is away, and the work continues meanwhile. It
// fails with Conflict when another process leads: then the work must end.
func Hold(ctx context.Context, s store, claim sandbox.LeaderClaim, log *slog.Logger) (keep func(ctx context.Context) error, err error) {
	c := Config{Store: s, Claim: claim, Log: log}
	if _, err := c.lead(ctx); err != nil {
		return nil, err
	}
	return c.hold, nil
}

func (c Config) hold(ctx context.Context) error {
	defer c.resign(ctx)
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if _, err := c.lead(ctx); errors.Is(err, sandbox.Conflict) {
			return err
		} else if err != nil && ctx.Err() == nil {
			c.Log.Warn("holding the lead failed; will retry", telemetry.KeyError, err)
		}
	}
}

// lead takes or renews the lease.
func (c Config) lead(ctx context.Context) (sandbox.Leader, error) {
	attempt, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	return c.Store.Lead(attempt, c.Claim, life)
}
