package files

import (
	"context"

	"connectrpc.com/connect"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
)

// maxCursor bounds a cursor, in bytes.
const maxCursor = 64

// journal opens the journal for a request.
func (s *Service) journal(m interface {
	GetUser() string
	GetPath() string
	GetRecursive() bool
	GetSince() string
},
) (*journal, error) {
	if err := checkPaths(m.GetPath()); err != nil {
		return nil, err
	}
	if len(m.GetSince()) > maxCursor {
		return nil, invalid("the cursor is not one of an earlier answer")
	}
	u, err := s.user(m.GetUser())
	if err != nil {
		return nil, err
	}
	return s.journals.open(journalKey{uid: u.UID, root: m.GetPath(), recursive: m.GetRecursive()}, u)
}

// Watch streams the changes below a folder until the client disconnects.
func (s *Service) Watch(ctx context.Context, r *connect.Request[guestv1.WatchRequest], stream *connect.ServerStream[guestv1.WatchResponse]) error {
	j, err := s.journal(r.Msg)
	if err != nil {
		return err
	}
	defer s.journals.release(j)
	const atOnce = 1000
	cursor, first := r.Msg.Since, true
	for {
		n := j.since(cursor, atOnce)
		if first || n.position.Reset_ {
			start := n.position
			if len(n.changes) > 0 {
				start = &guestv1.WatchPosition{Cursor: cursor} // the changes follow
			}
			if err := stream.Send(&guestv1.WatchResponse{Event: &guestv1.WatchResponse_Position{Position: start}}); err != nil {
				return err
			}
			first = false
		}
		for _, c := range n.changes {
			if err := stream.Send(&guestv1.WatchResponse{Event: &guestv1.WatchResponse_Change{Change: c}}); err != nil {
				return err
			}
		}
		cursor = n.position.Cursor
		if len(n.changes) == atOnce {
			continue
		}
		if n.err != nil {
			return n.err
		}
		select {
		case <-n.more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Changes returns the changes since a cursor.
func (s *Service) Changes(_ context.Context, r *connect.Request[guestv1.ChangesRequest]) (*connect.Response[guestv1.ChangesResponse], error) {
	j, err := s.journal(r.Msg)
	if err != nil {
		return nil, err
	}
	defer s.journals.release(j)
	n := j.since(r.Msg.Since, maxChanges)
	if n.err != nil && len(n.changes) == 0 {
		return nil, n.err
	}
	return connect.NewResponse(&guestv1.ChangesResponse{Position: n.position, Changes: n.changes}), nil
}
