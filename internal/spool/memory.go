package spool

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Memory bounds the bytes that large messages take at a time which must be held
// whole, of all owners and of each. Who waits is served in the order of coming, and
// nobody while another of the same owner keeps its share. Its methods are safe for
// concurrent use.
type Memory struct {
	total, own int64
	all        *semaphore.Weighted

	mu     sync.Mutex
	owners map[string]*share
}

// share is what one owner may take.
type share struct {
	left  *semaphore.Weighted
	users int
}

// NewMemory returns a Memory of total bytes, of which one owner gets own at most.
func NewMemory(total, own int64) *Memory {
	return &Memory{total: total, own: min(own, total), all: semaphore.NewWeighted(total), owners: map[string]*share{}}
}

type ownerKey struct{}

// owned is whose a request is.
type owned struct {
	memory *Memory
	owner  string

	mu   sync.Mutex
	held []func()
	over bool
}

// With has what is held for the request of ctx count as owner's. release gives back
// what the request still holds.
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

// small is how many bytes are held without counting.
const small = 256 << 10

// Hold waits until the request of ctx may hold n bytes in memory, which release
// gives back; more than an owner may take count as that. It returns Exhausted when
// that takes too long. A context without an owner has no bound.
func Hold(ctx context.Context, n int64) (release func(), err error) {
	o, ok := ctx.Value(ownerKey{}).(*owned)
	if !ok || n <= small {
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

// tooMuch is why somebody waited in vain.
func tooMuch(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := sandbox.Errorf(sandbox.Exhausted, "too many large answers are under way; read them, or ask for less at a time")
	err.RetryAfter = retryAfter
	return err
}

// shareOf returns what an owner may take, until leave is called.
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

// answerCopies is how often what an answer tells is in memory until it is sent: as it
// was gathered, and as JSON, which may have six times as many bytes.
const answerCopies = 8

// A Gather is an answer that is put together in memory. What is large counts, until
// the request is over, as the most that it may become: who has a part of an answer
// never waits for room for the rest.
type Gather struct {
	Most int64 // bytes
	have int64
	held bool
}

// Add counts n bytes more, as Hold does.
func (g *Gather) Add(ctx context.Context, n int) error {
	if g.have += int64(n); g.have <= small || g.held {
		return nil
	}
	g.held = true
	return HoldToTheEnd(ctx, answerCopies*g.Most)
}
