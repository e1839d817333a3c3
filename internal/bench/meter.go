// Package bench measures a server through its public REST API, as its users would:
// over kept-alive connections, without access to its internals.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// Ours is the name of this product in a Report.
const Ours = "Cloud Sandbox"

// endTime is the timeout for ending a measured Sandbox.
const endTime = time.Minute

// Meter measures one server. Failures of the measured operations are counted. Methods
// return an error only when measuring cannot continue, for example when more than
// half of an operation's rounds failed.
type Meter struct {
	Client *client.Client
	Report *Report
	// PoolSize is the number of Boots that must wait in the server's Pools before a round
	// begins, so that no round pays for the previous one. Zero: no Pool, and Sandboxes
	// start cold.
	PoolSize int
	// Beside measures another product's counterpart of an operation. It is called right
	// after the operation was measured, so that both see the same machine. It returns nil
	// when the operation has no counterpart. A nil Beside measures nothing else.
	Beside func(ctx context.Context, operation string) (*Series, error)
	// BesideFact is Beside for a Fact, by its What.
	BesideFact func(ctx context.Context, what string) (*Fact, error)
}

// add adds Series that were measured together, each with its rival. A failed rival is
// returned as an error, but loses no Series.
func (m *Meter) add(ctx context.Context, all ...*Series) error {
	var errs []error
	for _, s := range all {
		var err error
		s.Rival, err = m.beside(ctx, s.Operation)
		errs = append(errs, err)
	}
	m.Report.Add(all...)
	return errors.Join(errs...)
}

func (m *Meter) beside(ctx context.Context, operation string) (*Series, error) {
	if m.Beside == nil {
		return nil, nil
	}
	s, err := m.Beside(ctx, operation)
	if err != nil {
		return nil, fmt.Errorf("what is beside %q: %w", operation, err)
	}
	return s, s.sum()
}

// addFact adds a Fact with its rival, as add does.
func (m *Meter) addFact(ctx context.Context, f Fact) (err error) {
	if m.BesideFact != nil && f.Rival == nil {
		if f.Rival, err = m.BesideFact(ctx, f.What); err != nil {
			err = fmt.Errorf("what is beside %q: %w", f.What, err)
		}
	}
	m.Report.AddFact(f)
	return err
}

// Acquire measures taking a Sandbox, and then ends it.
func (m *Meter) Acquire(ctx context.Context, operation, goal string, n int) error {
	return m.Rounds(ctx, operation, goal, n, func(ctx context.Context) (time.Duration, error) {
		return m.create(ctx, nil)
	})
}

// AcquireAndRun measures taking a Sandbox and a first command in it, to its end.
func (m *Meter) AcquireAndRun(ctx context.Context, operation, goal, command string, n int) error {
	return m.Rounds(ctx, operation, goal, n, func(ctx context.Context) (time.Duration, error) {
		return m.create(ctx, func(id string) error { return m.execute(ctx, id, "bash", command) })
	})
}

// create measures the time from the call to the end of use. Ending the Sandbox is not
// measured.
func (m *Meter) create(ctx context.Context, use func(id string) error) (time.Duration, error) {
	began := time.Now()
	s, err := m.Client.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	if use != nil {
		err = use(s.ID)
	}
	took := time.Since(began)
	return took, errors.Join(err, m.end(ctx, s.ID))
}

func (m *Meter) end(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	_, err := m.Client.End(ctx, id)
	return err
}

func (m *Meter) execute(ctx context.Context, id, language, code string) error {
	return m.executeIn(ctx, id, client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Language: language, Code: code}})
}

// executeIn runs r in a Sandbox. It returns an error unless r succeeds.
func (m *Meter) executeIn(ctx context.Context, id string, r client.ExecuteRequest) error {
	r.SandboxID = id
	result, err := m.Client.Execute(ctx, r)
	if err == nil && result.Status != "ok" {
		err = fmt.Errorf("%s %q ended with %s: %s", r.Language, r.Code, result.Status, result.Stderr)
	}
	return err
}

// Execute measures running code again and again in one Sandbox.
func (m *Meter) Execute(ctx context.Context, operation, goal, language, code string, n int) error {
	return m.within(ctx, func(id string) error {
		return m.Rounds(ctx, operation, goal, n, func(ctx context.Context) (time.Duration, error) {
			return timed(func() error { return m.execute(ctx, id, language, code) })
		})
	})
}

// Spawn measures running a program, without a shell, to its end in one Sandbox.
func (m *Meter) Spawn(ctx context.Context, operation, goal string, argv []string, n int) error {
	return m.within(ctx, func(id string) error {
		return m.Rounds(ctx, operation, goal, n, func(ctx context.Context) (time.Duration, error) {
			return timed(func() error { return m.spawn(ctx, id, argv) })
		})
	})
}

// spawn runs a program. It returns an error unless the program succeeds.
func (m *Meter) spawn(ctx context.Context, id string, argv []string) error {
	p, err := m.Client.Start(ctx, v1.StartProcessRequest{Target: v1.Target{SandboxID: id}, Argv: argv})
	if err == nil && (p.State != "ended" || p.Exit() != 0) {
		err = fmt.Errorf("%v is %s with %d", argv, p.State, p.ExitCode)
	}
	return err
}

// Overhead measures the API overhead, with no guest call: the connection,
// authentication and authorization, the store, JSON.
func (m *Meter) Overhead(ctx context.Context, operation, goal string, n int) error {
	return m.within(ctx, func(id string) error {
		return m.Rounds(ctx, operation, goal, n, func(ctx context.Context) (time.Duration, error) {
			return timed(func() error { _, err := m.Client.Get(ctx, id); return err })
		})
	})
}

// Burst measures n concurrent acquires, each by itself.
func (m *Meter) Burst(ctx context.Context, operation, goal string, n int) error {
	if err := m.settle(ctx); err != nil {
		return err
	}
	s := &Series{Operation: operation, Who: Ours, Goal: goal}
	m.Report.Begin()
	ids := make([]string, n)
	AtOnce(s, n, func(i int) error {
		sb, err := m.Client.Acquire(ctx)
		ids[i] = sb.ID
		return err
	})
	return errors.Join(m.endAll(ctx, ids), m.add(ctx, s), context.Cause(ctx))
}

// AtOnce fills s with n concurrent calls of op. Each gets its number, from zero.
func AtOnce(s *Series, n int, op func(int) error) {
	took, errs := make([]time.Duration, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { took[i], errs[i] = timed(func() error { return op(i) }) })
	}
	all.Wait()
	for i := range n {
		s.add(took[i], errs[i])
	}
}

// endAll ends the Sandboxes whose IDs are not empty, a few at a time.
func (m *Meter) endAll(ctx context.Context, ids []string) error {
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, id := range ids {
		if id == "" {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := m.end(ctx, id); !errors.Is(err, sandbox.NotFound) {
				errs[i] = err
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// within calls use with a Sandbox, which it then ends.
func (m *Meter) within(ctx context.Context, use func(id string) error) error {
	s, err := m.Client.Acquire(ctx)
	if err != nil {
		return err
	}
	if err := m.settle(ctx); err != nil {
		return errors.Join(err, m.end(ctx, s.ID))
	}
	return errors.Join(use(s.ID), m.end(ctx, s.ID))
}

// Rounds measures op n times, when the Pools are full, after one warm-up round. op
// returns the time that counts.
func (m *Meter) Rounds(ctx context.Context, operation, goal string, n int, op func(context.Context) (time.Duration, error)) error {
	s := &Series{Operation: operation, Who: Ours, Goal: goal}
	m.Report.Begin()
	err := Repeat(ctx, s, n, func(ctx context.Context) (time.Duration, error) {
		if err := m.settle(ctx); err != nil {
			return 0, err
		}
		return op(ctx)
	})
	if err == nil {
		err = m.add(ctx, s)
	}
	return err
}

// Repeat fills s with n rounds of op, after one warm-up round. It stops when ctx
// ends, or when more than half of the rounds failed.
func Repeat(ctx context.Context, s *Series, n int, op func(context.Context) (time.Duration, error)) error {
	for i := range n + 1 {
		took, err := op(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if i > 0 || err != nil {
			s.add(took, err)
		}
		if s.Failures > (n+1)/2 {
			return fmt.Errorf("%s: most rounds fail: %s", s.Operation, s.Failure)
		}
	}
	return nil
}

// RepeatBoth fills two Series with n rounds of two calls, one after the other, which
// round returns for its number. The first round, of number 0, does not count. The
// steps between the calls are not measured. The first failure ends it.
func RepeatBoth(ctx context.Context, one, two *Series, n int, round func(ctx context.Context, number int) (first, second func() error), between ...func() error) error {
	for i := range n + 1 {
		first, second := round(ctx, i)
		took, err := timed(first)
		for _, step := range between {
			err = cmp.Or(err, step())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", one.Operation, err)
		}
		after, err := timed(second)
		if err != nil {
			return fmt.Errorf("%s: %w", two.Operation, err)
		}
		if i > 0 {
			one.add(took, nil)
			two.add(after, nil)
		}
	}
	return nil
}

// timed measures one call.
func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}
