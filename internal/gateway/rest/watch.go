package rest

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// watchRequest asks for changes of files.
type watchRequest struct {
	fileQuery
	Recursive bool   `json:"recursive"`
	Since     string `json:"since"` // a cursor; empty: from now on
	User      string `json:"user"`
}

func (in *watchRequest) read(r *http.Request) error {
	values, err := in.readMore(r, "recursive", "since", "user")
	if err != nil {
		return err
	}
	in.Since, in.User = values.Get("since"), values.Get("user")
	in.Recursive, err = parseFlag("recursive", values.Get("recursive"))
	return err
}

// watchTarget returns the Guest and the checked request.
func (a *API) watchTarget(ctx context.Context, c Call, in *watchRequest) (execution.Trees, execution.WatchRequest, error) {
	req := execution.WatchRequest{Path: in.Path, Recursive: in.Recursive, Since: in.Since, User: in.User}
	if err := req.Complete(); err != nil {
		return nil, req, err
	}
	guest, err := a.guest(ctx, c.Who, in.Target)
	return guest, req, err
}

// ChangeViewOf shows a change.
func ChangeViewOf(c execution.FileChange) v1.FileChange {
	return v1.FileChange{Type: string(c.Type), Path: text(c.Path), Cursor: c.Cursor}
}

// FileChanges returns the changes since a cursor.
func (a *API) FileChanges(ctx context.Context, c Call, in *watchRequest) (v1.FileChanges, error) {
	guest, req, err := a.watchTarget(ctx, c, in)
	if err != nil {
		return v1.FileChanges{}, err
	}
	position, changes, err := guest.Changes(ctx, req)
	list := v1.FileChanges{Cursor: position.Cursor, Reset: position.Reset, Changes: make([]v1.FileChange, len(changes))}
	for i, c := range changes {
		list.Changes[i] = ChangeViewOf(c)
	}
	return list, err
}

// WatchFiles answers GET /api/v1/files/watch with changes as they happen: as
// events, or as messages of a WebSocket.
func (a *API) WatchFiles(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var in watchRequest
	if err := in.read(r); err != nil {
		return err
	}
	guest, req, err := a.watchTarget(r.Context(), Call{Who: who}, &in)
	if err != nil {
		return err
	}
	if wantsSocket(r) {
		return watchSocket(w, r, guest, req)
	}
	req.Since = cmp.Or(req.Since, cursorOf(r.Header.Get("Last-Event-ID")))
	return watchEvents(w, r, guest, req)
}

// cursorOf is the cursor that a browser's EventSource sends when it reconnects.
func cursorOf(id string) string {
	if len(id) > execution.MaxCursor {
		return ""
	}
	return id
}

func watchStartOf(req execution.WatchRequest, p *execution.WatchPosition) v1.WatchStart {
	return v1.WatchStart{Path: text(req.Path), Cursor: p.Cursor, Reset: p.Reset}
}

func watchEvents(w http.ResponseWriter, r *http.Request, guest execution.Trees, req execution.WatchRequest) error {
	out := newEvents(w)
	defer out.stop()
	err := guest.Watch(r.Context(), req, func(e execution.WatchEvent) error {
		switch {
		case e.Change != nil && out.started():
			return out.sendID(e.Change.Cursor, "change", ChangeViewOf(*e.Change))
		case e.Position != nil && out.started():
			return out.sendID(e.Position.Cursor, "reset", watchStartOf(req, e.Position))
		case e.Position != nil:
			if err := out.start(watchStartOf(req, e.Position)); err != nil || r.Method != http.MethodHead {
				return err
			}
			return errEnough
		}
		return errNoStart
	})
	switch {
	case errors.Is(err, errEnough):
		return nil
	case !out.started():
		return err
	}
	if cause := context.Cause(r.Context()); cause != nil {
		err = cause
	}
	return out.fail(err)
}

var (
	// errEnough ends a watch whose client wants no more.
	errEnough = sandbox.Errorf(sandbox.Internal, "that is all")
	// errNoStart reports that the Guest sent no start.
	errNoStart = sandbox.Errorf(sandbox.Unavailable, "the sandbox gives a wrong answer")
)

// maxWatchMessage bounds a message of a client, which sends only control frames, in
// bytes.
const maxWatchMessage = 1 << 10

func watchSocket(w http.ResponseWriter, r *http.Request, guest execution.Trees, req execution.WatchRequest) error {
	ctx, leave := context.WithCancel(r.Context())
	defer leave()
	var s *socket            // once the directory is known to exist
	var left context.Context // ends when the client leaves
	after := func() {}
	defer func() { after() }()
	err := guest.Watch(ctx, req, func(e execution.WatchEvent) error {
		switch {
		case e.Change != nil && s != nil:
			return s.json(left, watchMessage{"change", ChangeViewOf(*e.Change)})
		case e.Position != nil && s != nil:
			return s.json(left, resetMessage{"reset", watchStartOf(req, e.Position)})
		case e.Position == nil:
			return errNoStart
		}
		var err error
		if s, err = acceptSocket(w, r, maxWatchMessage); err != nil {
			return err
		}
		var wait func()
		left, wait = s.listen(ctx)
		context.AfterFunc(left, leave)
		stop := s.keep(left)
		after = func() { stop(); wait() }
		return s.json(left, resetMessage{"start", watchStartOf(req, e.Position)})
	})
	switch {
	case s == nil:
		return err
	case left.Err() != nil && r.Context().Err() == nil:
		_ = s.conn.CloseNow() // the client closed it
		return nil
	}
	return s.finish(r.Context(), err)
}

// watchMessage and resetMessage are events as messages of a WebSocket.
type (
	watchMessage struct {
		Event string `json:"event"`
		v1.FileChange
	}
	resetMessage struct {
		Event string `json:"event"`
		v1.WatchStart
	}
)
