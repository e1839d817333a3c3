// Package inflight tracks in-flight requests per key, so that they can be cancelled on
// suspension.
package inflight

import "context"

// Requests holds the in-flight requests by key. The zero value is empty. Callers hold
// their own lock around every call, also of leave.
type Requests[K comparable] struct{ byKey map[K]map[*request]struct{} }

type request struct{ end context.CancelCauseFunc }

// Enter adds a request. The returned context ends with leave, which must be called, or
// with the cause given to End.
func (r *Requests[K]) Enter(ctx context.Context, key K) (_ context.Context, leave func()) {
	ctx, end := context.WithCancelCause(ctx)
	v := &request{end}
	if r.byKey == nil {
		r.byKey = map[K]map[*request]struct{}{}
	}
	if r.byKey[key] == nil {
		r.byKey[key] = map[*request]struct{}{}
	}
	r.byKey[key][v] = struct{}{}
	return ctx, func() {
		end(nil)
		if delete(r.byKey[key], v); len(r.byKey[key]) == 0 {
			delete(r.byKey, key)
		}
	}
}

// Keys returns the keys with in-flight requests.
func (r *Requests[K]) Keys() []K {
	all := make([]K, 0, len(r.byKey))
	for key := range r.byKey {
		all = append(all, key)
	}
	return all
}

// End cancels the requests of a key.
func (r *Requests[K]) End(key K, cause error) {
	for v := range r.byKey[key] {
		v.end(cause)
	}
}
