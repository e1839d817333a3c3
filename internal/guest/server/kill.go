package server

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// KillBiggest ends the Process that uses most memory, with everything in its
// session: no single process of a fork bomb is big. It returns 0 when no run is
// active, or when the host has just killed some itself. Runs are stopped while they
// are compared.
func (g *Guest) KillBiggest() (leader int, bytes int64) {
	if g.Reaper.LackedMemory() {
		return 0, 0
	}
	g.mu.Lock()
	for leader := range g.active {
		_ = unix.Kill(-leader, unix.SIGSTOP)
		defer func() { _ = unix.Kill(-leader, unix.SIGCONT) }()
	}
	g.mu.Unlock()
	all := tasks()
	sums := map[int]int64{}
	for _, t := range all {
		sums[t.session] += rss(t.pid)
	}
	for session, n := range sums {
		if n > bytes {
			leader, bytes = session, n
		}
	}
	if leader == 0 {
		return 0, 0
	}
	if r := g.blame(leader); r != nil {
		killFamily(r, map[int]bool{})
		return leader, bytes
	}
	for _, t := range all {
		if t.session == leader {
			_ = unix.Kill(t.pid, unix.SIGKILL)
		}
	}
	return leader, bytes
}

// blame records that a run is ended by lack of memory and returns it; nil when no
// run has this leader.
func (g *Guest) blame(leader int) *run {
	g.mu.Lock()
	r := g.active[leader]
	g.mu.Unlock()
	if r != nil {
		r.mu.Lock()
		r.oom = true
		r.mu.Unlock()
	}
	return r
}

// TerminateAll sends SIGTERM to everything and returns when all has ended or
// grace is over.
func (g *Guest) TerminateAll(ctx context.Context, grace time.Duration) {
	for _, t := range tasks() {
		_ = unix.Kill(t.pid, unix.SIGTERM)
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for len(tasks()) > 0 {
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}
