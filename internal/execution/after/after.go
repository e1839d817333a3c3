// Package after defers work of a request until its response is sent: work that the
// client need not wait for.
package after

import (
	"context"
	"sync"
)

type key struct{}

// rest holds the deferred work of one request.
type rest struct {
	mu    sync.Mutex
	begun bool
	do    []func()
}

// With returns ctx for a request, and begin, which does what was put off, in
// order. It is called once, when the answer has gone out or there will be none.
func With(ctx context.Context) (_ context.Context, begin func()) {
	r := new(rest)
	return context.WithValue(ctx, key{}, r), r.begin
}

// Pending reports whether anything of the request of ctx was put off.
func Pending(ctx context.Context) bool {
	r, _ := ctx.Value(key{}).(*rest)
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.do) > 0
}

// Answer has do called once the request of ctx is answered, by the goroutine that
// answers it; at once when it is, or when ctx is of no request. do must not wait
// for anything.
func Answer(ctx context.Context, do func()) {
	r, _ := ctx.Value(key{}).(*rest)
	if r == nil || !r.put(do) {
		do()
	}
}

// put reports whether it put do off.
func (r *rest) put(do func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun {
		r.do = append(r.do, do)
	}
	return !r.begun
}

func (r *rest) begin() {
	r.mu.Lock()
	do := r.do
	r.begun, r.do = true, nil
	r.mu.Unlock()
	for _, f := range do {
		f()
	}
}
