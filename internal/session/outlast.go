package session

import (
	"context"
	"time"
)

// leavePatience is how long a request continues after its client disconnected, if no
// other caller waits for the Sandbox. After it, a request in a Node's queue leaves the
// queue.
const leavePatience = 10 * time.Second

// detached returns a detached context, bounded by limit, for work on a Sandbox that the
// caller has locked. After the client disconnects, it lasts for leavePatience, and longer
// while others wait for the Sandbox.
func (m *Manager) detached(client context.Context, id string, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(client), limit)
	left := make(chan struct{})
	stop := context.AfterFunc(client, func() {
		defer close(left)
		for sleep(ctx, leavePatience) == nil {
			if !m.locks.contended(id) {
				cancel()
			}
		}
	})
	return ctx, func() {
		cancel()
		if !stop() {
			<-left
		}
	}
}

// contended reports whether another caller waits for the lock of id.
func (l *locks) contended(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.held[id]
	return k != nil && k.users > 1
}
