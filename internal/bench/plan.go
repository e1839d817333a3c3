package bench

import (
	"context"
	"fmt"
)

// Plan is what of a server is measured, and how often. Zero leaves a part out.
type Plan struct {
	Rounds int   // of each operation that takes a Sandbox
	Calls  int   // of each operation within one
	Bursts []int // sizes
	Live   int   // Sandboxes side by side
	Size   int64 // of uploads and downloads, in bytes
	Saves  int   // rounds of pausing, resuming and forking
	Storm  int   // Sandboxes that resume at once
	// Uncached adds resumes after the page cache of this machine was dropped,
	// which takes root.
	Uncached bool
	// Local says that the server is on this machine, whose memory then tells
	// what Sandboxes cost.
	Local bool
}

// Goals of the medians in milliseconds, with the 99th percentiles in brackets.
const (
	goalAcquire     = "3 (15)"
	goalFirst       = "20 (60)"
	goalCold        = "80 (150)"
	goalNodeWarm    = "60"
	goalNodeCold    = "150"
	goalInterpreter = "3 (15)"
	goalSpawn       = "15 (40)"
	goalOverhead    = "1 (5)"
	goalBurst100    = "350"
)

// Run measures what p asks for, in the order of the table in the design.
func (m *Meter) Run(ctx context.Context, p Plan) error {
	steps := []func() error{}
	add := func(when bool, step func() error) {
		if when {
			steps = append(steps, step)
		}
	}
	add(p.Rounds > 0, func() error { return m.creates(ctx, p) })
	add(p.Calls > 0, func() error { return m.calls(ctx, p) })
	for _, n := range p.Bursts {
		add(true, func() error { return m.burst(ctx, n) })
	}
	add(p.Size > 0, func() error { return m.Transfer(ctx, p.Size, 3) })
	add(p.Saves > 0, func() error { return m.Saved(ctx, p.Saves, p.Uncached) })
	add(p.Storm > 0, func() error { return m.storm(ctx, p.Storm) })
	add(p.Live > 0, func() error { return m.Live(ctx, p.Live, p.Local) })
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Meter) creates(ctx context.Context, p Plan) error {
	if m.PoolSize == 0 {
		if err := m.Acquire(ctx, "create cold, until the guest answers", goalCold, p.Rounds); err != nil {
			return err
		}
		return m.AcquireAndRun(ctx, "create until `node -v` has finished, cold", goalNodeCold, "node -v", p.Rounds)
	}
	if err := m.Acquire(ctx, "acquire from a warm pool", goalAcquire, p.Rounds); err != nil {
		return err
	}
	if err := m.AcquireAndRun(ctx, "acquire from a warm pool and execute `true`", goalFirst, "true", p.Rounds); err != nil {
		return err
	}
	return m.AcquireAndRun(ctx, "create until `node -v` has finished, warm", goalNodeWarm, "node -v", p.Rounds)
}

func (m *Meter) calls(ctx context.Context, p Plan) error {
	for _, c := range []struct{ operation, goal, language, code string }{
		{"run `1+1` in a warm Python interpreter", goalInterpreter, "python", "1+1"},
		{"run `1+1` in a warm JavaScript interpreter", goalInterpreter, "javascript", "1+1"},
		{"run `true` in a new bash", "", "bash", "true"},
	} {
		if err := m.Execute(ctx, c.operation, c.goal, c.language, c.code, p.Calls); err != nil {
			return err
		}
	}
	if err := m.Echo(ctx, "a key's echo in a terminal, over a WebSocket", "", p.Calls); err != nil {
		return err
	}
	if err := m.Spawn(ctx, "spawn the program `true` and get its exit code", goalSpawn, []string{"true"}, p.Calls); err != nil {
		return err
	}
	return m.Overhead(ctx, "what a call costs that asks no guest (read a session)", goalOverhead, p.Calls)
}

func (m *Meter) burst(ctx context.Context, n int) error {
	how, goal := "no pool", ""
	if m.PoolSize > 0 {
		how = fmt.Sprintf("pool of %d", m.PoolSize)
	}
	if n == 100 && m.PoolSize >= n {
		goal = goalBurst100
	}
	return m.Burst(ctx, fmt.Sprintf("burst of %d acquires at once, %s", n, how), goal, n)
}
