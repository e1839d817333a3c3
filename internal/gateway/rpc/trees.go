package rpc

import (
	"cmp"
	"context"
	"io"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	filev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// archiveOf checks the format and the user of an archive in a message.
func archiveOf(m interface {
	GetFormat() string
	GetUser() string
},
) (execution.ArchiveFormat, string, error) {
	format := execution.ArchiveFormat(m.GetFormat())
	if err := format.Check(); err != nil {
		return "", "", err
	}
	user, err := execution.Actor(m.GetUser())
	return format, user, err
}

// Archive implements the service.
func (s files) Archive(ctx context.Context, r *connect.Request[filev1.ArchiveRequest], out *connect.ServerStream[filev1.ArchiveResponse]) error {
	if err := checkKnown(r.Msg); err != nil {
		return err
	}
	format, user, err := archiveOf(r.Msg)
	if err != nil {
		return err
	}
	guest, p, err := s.about(ctx, r.Msg)
	if err != nil {
		return err
	}
	archive, err := guest.Archive(ctx, user, p, cmp.Or(format, execution.TarGz))
	if err != nil {
		return err
	}
	defer archive.Close()
	return sendPieces(archive, -1, func(data []byte) error { return out.Send(&filev1.ArchiveResponse{Data: data}) })
}

// Extract implements the service.
func (s files) Extract(ctx context.Context, in *connect.ClientStream[filev1.ExtractRequest]) (*connect.Response[filev1.ExtractResponse], error) {
	first, from, err := begin(in)
	if err != nil {
		return nil, err
	}
	format, user, err := archiveOf(first)
	if err != nil {
		return nil, err
	}
	guest, p, err := s.about(ctx, first)
	if err != nil {
		return nil, err
	}
	done, err := taking(ctx, from, func(body io.Reader) (execution.Extracted, error) { return guest.Extract(ctx, user, p, format, body) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&filev1.ExtractResponse{
		Path: p, Files: done.Files, Directories: done.Directories, Links: done.Links, Skipped: done.Skipped, Bytes: done.Bytes,
	}), nil
}

// watchOf is the request in a message about changes.
func watchOf(m interface {
	GetPath() string
	GetRecursive() bool
	GetSince() string
	GetUser() string
},
) (execution.WatchRequest, error) {
	req := execution.WatchRequest{Path: m.GetPath(), Recursive: m.GetRecursive(), Since: m.GetSince(), User: m.GetUser()}
	return req, req.Complete()
}

// Watch implements the service.
func (s files) Watch(ctx context.Context, r *connect.Request[filev1.WatchRequest], out *connect.ServerStream[filev1.WatchResponse]) error {
	if err := checkKnown(r.Msg); err != nil {
		return err
	}
	req, err := watchOf(r.Msg)
	if err != nil {
		return err
	}
	guest, err := s.open(ctx, r.Msg.SandboxId)
	if err != nil {
		return err
	}
	begun := false
	return guest.Watch(ctx, req, func(e execution.WatchEvent) error {
		switch {
		case e.Position != nil:
			begun = true
			return out.Send(&filev1.WatchResponse{Event: &filev1.WatchResponse_Position{Position: &filev1.Position{Cursor: text(e.Position.Cursor), Reset_: e.Position.Reset}}})
		case e.Change != nil && begun:
			return out.Send(&filev1.WatchResponse{Event: &filev1.WatchResponse_Change{Change: messageOf(&filev1.Change{}, rest.ChangeViewOf(*e.Change))}})
		}
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox gives a wrong answer")
	})
}
