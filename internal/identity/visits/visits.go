// Package visits tracks in-flight requests per key, so that they can be cancelled on
// suspension.
package visits

import "context"

// Set is the in-flight requests by key. The zero value is empty. Callers hold their own
// lock around every call, also of leave.
type Set[K comparable] struct{ inside map[K]map[*visit]struct{} }

type visit struct{ end context.CancelCauseFunc }

// Enter adds a request. The returned context ends with leave, which must be called, or
// with the cause given to End.
func (s *Set[K]) Enter(ctx context.Context, key K) (_ context.Context, leave func()) {
	ctx, end := context.WithCancelCause(ctx)
	v := &visit{end}
	if s.inside == nil {
		s.inside = map[K]map[*visit]struct{}{}
	}
	if s.inside[key] == nil {
		s.inside[key] = map[*visit]struct{}{}
	}
	s.inside[key][v] = struct{}{}
	return ctx, func() {
		end(nil)
		if delete(s.inside[key], v); len(s.inside[key]) == 0 {
			delete(s.inside, key)
		}
	}
}

// Keys returns the keys with in-flight requests.
func (s *Set[K]) Keys() []K {
	all := make([]K, 0, len(s.inside))
	for key := range s.inside {
		all = append(all, key)
	}
	return all
}

// End cancels the requests of a key.
func (s *Set[K]) End(key K, cause error) {
	for v := range s.inside[key] {
		v.end(cause)
	}
}
