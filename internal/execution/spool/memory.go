package spool

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Memory bounds the memory for large messages that must be held whole, in total and
// for each owner. Requests are served in order of arrival. A request beyond its
// owner's share waits for that share alone, and holds up no other owner. Its methods
// are safe for concurrent use.
type Memory struct {
	total, own int64
	all        *semaphore.Weighted

	mu     sync.Mutex
	owners map[string]*share
}

// share is the memory of one owner.
type share struct {
	left  *semaphore.Weighted
	users int
}

// NewMemory returns a Memory of total bytes, of which one owner gets own at most.
func NewMemory(total, own int64) *Memory {
	return &Memory{total: total, own: min(own, total), all: semaphore.NewWeighted(total), owners: map[string]*share{}}
}

type ownerKey struct{}

// owned is the owner of a request and the memory that the request holds.
type owned struct {
	memory *Memory
	owner  string

	mu   sync.Mutex
	held []func()
	over bool
}

// With charges the memory held for the request of ctx to owner. release gives back
// the memory that the request still holds.
func (m *Memory) With(ctx context.Context, owner string) (_ context.Context, release func()) {
	o := &owned{memory: m, owner: owner}
	return context.WithValue(ctx, ownerKey{}, o), o.release
}

func (o *owned) release() {
	o.mu.Lock()
	held := o.held
	o.held, o.over = nil, true
	o.mu.Unlock()
	for _, release := range held {
		release()
	}
}

// Small is the most bytes that are held without being counted.
const Small = 256 << 10

// Hold waits until the request of ctx may hold n bytes in memory, which release gives
// back. A larger n than an owner's share counts as the share. It returns Exhausted
// when the wait takes too long. A context without an owner has no bound.
func Hold(ctx context.Context, n int64) (release func(), err error) {
	o, ok := ctx.Value(ownerKey{}).(*owned)
	if !ok || n <= Small {
		return func() {}, nil
	}
	return o.memory.hold(ctx, o.owner, n)
}

// HoldToTheEnd is Hold until the request of ctx is over.
func HoldToTheEnd(ctx context.Context, n int64) error {
	release, err := Hold(ctx, n)
	if err != nil {
		return err
	}
	o, ok := ctx.Value(ownerKey{}).(*owned)
	if !ok {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		release()
	} else {
		o.held = append(o.held, release)
	}
	return nil
}

func (m *Memory) hold(ctx context.Context, owner string, n int64) (func(), error) {
	n = min(n, m.own)
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	mine, leave := m.shareOf(owner)
	if mine.left.Acquire(limited, n) != nil {
		leave()
		return nil, tooMuch(ctx)
	}
	if m.all.Acquire(limited, n) != nil {
		mine.left.Release(n)
		leave()
		return nil, tooMuch(ctx)
	}
	return sync.OnceFunc(func() {
		m.all.Release(n)
		mine.left.Release(n)
		leave()
	}), nil
}

// tooMuch is the error of a wait that ended without success.
func tooMuch(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := sandbox.Errorf(sandbox.Exhausted, "too many large requests and answers are in progress; read the answers, or send and request less at a time")
	err.RetryAfter = retryAfter
	return err
}

// shareOf returns an owner's share, which stays valid until leave is called.
func (m *Memory) shareOf(owner string) (s *share, leave func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s = m.owners[owner]
	if s == nil {
		s = &share{left: semaphore.NewWeighted(m.own)}
		m.owners[owner] = s
	}
	s.users++
	return s, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(m.owners, owner)
		}
	}
}

// answerCopies is the memory that an answer takes until it is sent, in multiples of
// its size: once as gathered, and once as JSON, which may be six times as long.
const answerCopies = 8

// A Gather is an answer that is put together in memory. A large one counts, until the
// request is over, as the most that it may become, so that a partial answer never
// waits for memory for the rest.
type Gather struct {
	Most int64 // bytes
	have int64
	held bool
}

// Add counts n bytes more, as Hold does.
func (g *Gather) Add(ctx context.Context, n int) error {
	if g.have += int64(n); g.have <= Small || g.held {
		return nil
	}
	g.held = true
	return HoldToTheEnd(ctx, answerCopies*g.Most)
}
