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

// watchTarget returns the Guest and the request in the query of a watch.
func (a *API) watchTarget(r *http.Request, who sandbox.Identity) (guest execution.Trees, req execution.WatchRequest, err error) {
	guest, p, more, err := a.fileTarget(r, who, "recursive", "since", "user")
	if err != nil {
		return nil, req, err
	}
	req = execution.WatchRequest{Path: p, Since: more["since"], User: more["user"]}
	if err := req.Complete(); err != nil {
		return nil, req, err
	}
	req.Recursive, err = parseFlag("recursive", more["recursive"])
	return guest, req, err
}

func changeViewOf(c execution.FileChange) v1.FileChange {
	return v1.FileChange{Type: string(c.Type), Path: text(c.Path), Cursor: c.Cursor}
}

// FileChanges answers GET /api/v1/files/changes with the changes since a cursor.
func (a *API) FileChanges(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	guest, req, err := a.watchTarget(r, who)
	if err != nil {
		return err
	}
	position, changes, err := guest.Changes(r.Context(), req)
	if err != nil {
		return err
	}
	reply := v1.FileChanges{Cursor: position.Cursor, Reset: position.Reset, Changes: make([]v1.FileChange, len(changes))}
	for i, c := range changes {
		reply.Changes[i] = changeViewOf(c)
	}
	return Reply(w, http.StatusOK, reply)
}

// WatchFiles answers GET /api/v1/files/watch with changes as they happen: as
// events, or as messages of a WebSocket.
func (a *API) WatchFiles(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	guest, req, err := a.watchTarget(r, who)
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
			return out.sendID(e.Change.Cursor, "change", changeViewOf(*e.Change))
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
			return s.json(left, watchMessage{"change", changeViewOf(*e.Change)})
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
