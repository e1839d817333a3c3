package session

import (
	"context"
	"time"
)

// leavePatience is how long what a client has asked for goes on after it left,
// with nobody else waiting for it. Who waits in a Node's queue then leaves it.
const leavePatience = 10 * time.Second

// outlast returns a context, bounded by limit, for work on a Sandbox that the
// caller has locked: it goes on when the client leaves, as long as others wait
// for the Sandbox, and for leavePatience.
func (m *Manager) outlast(client context.Context, id string, limit time.Duration) (context.Context, context.CancelFunc) {
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

// contended reports whether somebody waits for the lock of id.
func (l *locks) contended(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.held[id]
	return k != nil && k.users > 1
}
