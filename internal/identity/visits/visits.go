// Package visits knows the requests under way by who they are of, so that those of
// who may do nothing any more can be ended.
package visits

import "context"

// Set is the requests under way, each by a key. The zero value is empty. Callers
// hold a lock of theirs around every call, also around that of leave.
type Set[K comparable] struct{ inside map[K]map[*visit]struct{} }

type visit struct{ end context.CancelCauseFunc }

// Enter adds a request. The context that it returns ends once leave is called,
// which must be, or with the cause that End says.
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

// Keys returns whose requests are under way.
func (s *Set[K]) Keys() []K {
	all := make([]K, 0, len(s.inside))
	for key := range s.inside {
		all = append(all, key)
	}
	return all
}

// End ends the requests of a key.
func (s *Set[K]) End(key K, cause error) {
	for v := range s.inside[key] {
		v.end(cause)
	}
}
