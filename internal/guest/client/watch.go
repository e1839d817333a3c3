package client

import (
	"context"
	"regexp"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// maxChanges bounds the changes of one answer.
const maxChanges = 10_000

// Watch streams changes. See execution.Trees.
func (c *Client) Watch(ctx context.Context, req execution.WatchRequest, handle func(execution.WatchEvent) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the watch if we leave early
	stream, err := c.files().Watch(ctx, connect.NewRequest(&guestv1.WatchRequest{
		User: req.User, Path: req.Path, Recursive: req.Recursive, Since: req.Since,
	}))
	if err != nil {
		return fail(ctx, err)
	}
	defer stream.Close()
	for stream.Receive() {
		event, err := watchEventOf(stream.Msg())
		if err == nil {
			err = handle(event)
		}
		if err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return fail(ctx, err)
	}
	return sandbox.Errorf(sandbox.Unavailable, "the sandbox ended its answer early")
}

// Changes returns the changes since a cursor. See execution.Trees.
func (c *Client) Changes(ctx context.Context, req execution.WatchRequest) (execution.WatchPosition, []execution.FileChange, error) {
	var position execution.WatchPosition
	r, err := c.files().Changes(ctx, connect.NewRequest(&guestv1.ChangesRequest{
		User: req.User, Path: req.Path, Recursive: req.Recursive, Since: req.Since,
	}))
	if err != nil {
		return position, nil, fail(ctx, err)
	}
	if position, err = positionOf(r.Msg.Position); err != nil {
		return position, nil, err
	}
	if len(r.Msg.Changes) > maxChanges {
		return position, nil, errWrongAnswer
	}
	changes := make([]execution.FileChange, len(r.Msg.Changes))
	for i, m := range r.Msg.Changes {
		if changes[i], err = changeOf(m); err != nil {
			return position, nil, err
		}
	}
	return position, changes, nil
}

// watchEventOf checks a Guest's event.
func watchEventOf(m *guestv1.WatchResponse) (execution.WatchEvent, error) {
	switch e := m.Event.(type) {
	case *guestv1.WatchResponse_Position:
		p, err := positionOf(e.Position)
		return execution.WatchEvent{Position: &p}, err
	case *guestv1.WatchResponse_Change:
		c, err := changeOf(e.Change)
		return execution.WatchEvent{Change: &c}, err
	}
	return execution.WatchEvent{}, errWrongAnswer
}

// cursorPattern matches valid cursors: they come back in URLs and headers.
var cursorPattern = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

func positionOf(m *guestv1.WatchPosition) (execution.WatchPosition, error) {
	if !cursorPattern.MatchString(m.GetCursor()) {
		return execution.WatchPosition{}, errWrongAnswer
	}
	return execution.WatchPosition{Cursor: m.Cursor, Reset: m.Reset_}, nil
}

var changeTypes = map[guestv1.FileChangeType]execution.ChangeType{
	guestv1.FileChangeType_FILE_CHANGE_TYPE_CREATED:    execution.FileCreated,
	guestv1.FileChangeType_FILE_CHANGE_TYPE_MODIFIED:   execution.FileModified,
	guestv1.FileChangeType_FILE_CHANGE_TYPE_ATTRIBUTES: execution.FileAttributes,
	guestv1.FileChangeType_FILE_CHANGE_TYPE_REMOVED:    execution.FileRemoved,
	guestv1.FileChangeType_FILE_CHANGE_TYPE_RENAMED:    execution.FileRenamed,
}

func changeOf(m *guestv1.FileChange) (execution.FileChange, error) {
	kind, known := changeTypes[m.GetType()]
	if !known || len(m.GetPath()) > maxPath || !cursorPattern.MatchString(m.GetCursor()) {
		return execution.FileChange{}, errWrongAnswer
	}
	return execution.FileChange{Type: kind, Path: valid(m.Path), Cursor: m.Cursor}, nil
}
