package server

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// KillBiggest ends the process that uses most memory, and with it the rest of
// the run whose leader it is or whose mark it carries. It returns 0 when there
// is none. It is called when memory is used up, so it allocates little.
func (g *Guest) KillBiggest() (pid int, bytes int64) {
	for _, t := range tasks() {
		if n := rss(t.pid); n > bytes {
			pid, bytes = t.pid, n
		}
	}
	if pid == 0 {
		return 0, 0
	}
	g.blame(pid)
	_ = unix.Kill(pid, unix.SIGKILL)
	return pid, bytes
}

// blame notes the run that a process belongs to as ended by lack of memory.
func (g *Guest) blame(pid int) {
	g.mu.Lock()
	runs := make([]*run, 0, len(g.active))
	for _, r := range g.active {
		runs = append(runs, r)
	}
	g.mu.Unlock()
	t, _ := readTask(pid)
	for _, r := range runs {
		if r.leader == pid || t.session == r.leader || marked(pid, r.mark) {
			r.mu.Lock()
			r.oom = true
			r.mu.Unlock()
		}
	}
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
