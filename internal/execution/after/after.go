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

// With returns ctx for a request, and begin, which runs the deferred work in order. Call
// begin once, after the response is sent or when there will be none.
func With(ctx context.Context) (_ context.Context, begin func()) {
	r := new(rest)
	return context.WithValue(ctx, key{}, r), r.begin
}

// Pending reports whether the request of ctx has deferred work.
func Pending(ctx context.Context) bool {
	r, _ := ctx.Value(key{}).(*rest)
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.do) > 0
}

// Answer defers do until the request of ctx is answered; the goroutine that answers runs
// it. do runs at once when the answer is already sent or ctx belongs to no request. do
// must not block.
func Answer(ctx context.Context, do func()) {
	r, _ := ctx.Value(key{}).(*rest)
	if r == nil || !r.put(do) {
		do()
	}
}

// put reports whether it deferred do.
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
