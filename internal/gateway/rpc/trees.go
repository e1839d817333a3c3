package rpc

import (
	"cmp"
	"context"
	"io"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	filev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

func selectionOf(m *filev1.Selection) execution.FileSelection {
	return execution.FileSelection{Path: m.GetPath(), Globs: m.GetGlobs(), Hidden: m.GetHidden(), NoIgnore: m.GetNoIgnore()}
}

// Search implements the service.
func (s files) Search(ctx context.Context, r *connect.Request[filev1.SearchRequest]) (*connect.Response[filev1.SearchResponse], error) {
	m := r.Msg
	req := execution.SearchRequest{
		User: m.User, Files: selectionOf(m.Files), Pattern: m.Pattern, Literal: m.Literal, IgnoreCase: m.IgnoreCase, Word: m.Word,
		FilesOnly: m.FilesOnly, MaxResults: execution.DefaultSearchResults, Context: int(m.ContextLines),
	}
	if m.MaxResults != nil {
		req.MaxResults = int(*m.MaxResults)
	}
	if err := req.Complete(); err != nil {
		return nil, err
	}
	guest, err := s.open(ctx, m.SandboxId)
	if err != nil {
		return nil, err
	}
	found, err := guest.Search(ctx, req)
	if err != nil {
		return nil, err
	}
	res := &filev1.SearchResponse{FilesSearched: found.Files, Truncated: found.Truncated}
	for _, match := range found.Matches {
		res.Matches = append(res.Matches, matchOf(match))
	}
	return connect.NewResponse(res), nil
}

func matchOf(m execution.Match) *filev1.Match {
	v := &filev1.Match{Path: text(m.Path), Line: m.Line, Text: text(m.Text), Cut: m.Cut, Before: texts(m.Before), After: texts(m.After)}
	for _, s := range m.Spans {
		v.Spans = append(v.Spans, &filev1.Span{Start: int32(s.Start), End: int32(s.End)})
	}
	return v
}

// texts applies text to each.
func texts(all []string) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = text(s)
	}
	return out
}

// Replace implements the service.
func (s files) Replace(ctx context.Context, r *connect.Request[filev1.ReplaceRequest]) (*connect.Response[filev1.ReplaceResponse], error) {
	m := r.Msg
	req := execution.ReplaceRequest{
		User: m.User, Files: selectionOf(m.Files), Pattern: m.Pattern, Regex: m.Regex, IgnoreCase: m.IgnoreCase,
		Expected: m.ExpectedCount, DryRun: m.DryRun,
	}
	if err := req.Complete(m.Replacement); err != nil {
		return nil, err
	}
	guest, err := s.open(ctx, m.SandboxId)
	if err != nil {
		return nil, err
	}
	done, err := guest.Replace(ctx, req)
	if err != nil {
		return nil, err
	}
	res := &filev1.ReplaceResponse{Count: done.Count, FilesTooLarge: done.TooLarge}
	for _, f := range done.Files {
		res.Files = append(res.Files, &filev1.ReplacedFile{Path: text(f.Path), Count: f.Count, Lines: f.Lines})
	}
	return connect.NewResponse(res), nil
}

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

func positionOf(p execution.WatchPosition) *filev1.Position {
	return &filev1.Position{Cursor: text(p.Cursor), Reset_: p.Reset}
}

func fileChangeOf(c execution.FileChange) *filev1.Change {
	return &filev1.Change{Type: string(c.Type), Path: text(c.Path), Cursor: text(c.Cursor)}
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
			return out.Send(&filev1.WatchResponse{Event: &filev1.WatchResponse_Position{Position: positionOf(*e.Position)}})
		case e.Change != nil && begun:
			return out.Send(&filev1.WatchResponse{Event: &filev1.WatchResponse_Change{Change: fileChangeOf(*e.Change)}})
		}
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox gives a wrong answer")
	})
}

// Changes implements the service.
func (s files) Changes(ctx context.Context, r *connect.Request[filev1.ChangesRequest]) (*connect.Response[filev1.ChangesResponse], error) {
	req, err := watchOf(r.Msg)
	if err != nil {
		return nil, err
	}
	guest, err := s.open(ctx, r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	position, changes, err := guest.Changes(ctx, req)
	if err != nil {
		return nil, err
	}
	res := &filev1.ChangesResponse{Position: positionOf(position)}
	for _, c := range changes {
		res.Changes = append(res.Changes, fileChangeOf(c))
	}
	return connect.NewResponse(res), nil
}
