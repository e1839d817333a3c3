package client

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

const (
	// maxMatchText bounds one result of a search, in bytes.
	maxMatchText = 256 << 10
	// maxFound bounds all results of a search, in bytes.
	maxFound = 16 << 20
	// archivePiece is the size of the pieces in which an archive is sent, in bytes.
	archivePiece = 256 << 10
	// maxReplacedLines bounds the lines that are reported for one file.
	maxReplacedLines = 100
)

var errWrongAnswer = sandbox.Errorf(sandbox.Unavailable, "the sandbox gives a wrong answer")

// Copy copies a file or folder. See execution.Trees. It has no time limit, because
// the tree may be large.
func (c *Client) Copy(ctx context.Context, req execution.CopyRequest) (execution.Copied, error) {
	r, err := c.files().Copy(ctx, connect.NewRequest(&guestv1.CopyRequest{
		User: req.User, Source: req.Source, Destination: req.Destination, Recursive: req.Recursive, Overwrite: req.Overwrite,
	}))
	if err != nil {
		return execution.Copied{}, fail(ctx, err)
	}
	entry, err := c.Stat(ctx, req.Destination)
	return execution.Copied{
		Entry: entry, Files: max(r.Msg.Files, 0), Bytes: max(r.Msg.Bytes, 0), FilesSkipped: max(r.Msg.Skipped, 0),
	}, err
}

// Chmod changes permissions. See execution.Trees.
func (c *Client) Chmod(ctx context.Context, req execution.ChmodRequest) (int64, error) {
	r, err := c.files().Chmod(ctx, connect.NewRequest(&guestv1.ChmodRequest{
		User: req.User, Path: req.Path, Mode: req.Mode, Recursive: req.Recursive,
	}))
	if err != nil {
		return 0, fail(ctx, err)
	}
	return max(r.Msg.Changed, 0), nil
}

func selectionOf(f execution.FileSelection) *guestv1.FileSelection {
	return &guestv1.FileSelection{Path: f.Path, Globs: f.Globs, Hidden: f.Hidden, NoIgnore: f.NoIgnore}
}

// Search finds lines or files. See execution.Trees.
func (c *Client) Search(ctx context.Context, req execution.SearchRequest) (execution.Found, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the search if we leave early
	stream, err := c.files().Search(ctx, connect.NewRequest(&guestv1.SearchRequest{
		User: req.User, Files: selectionOf(req.Files), Pattern: req.Pattern, Literal: req.Literal, IgnoreCase: req.IgnoreCase,
		Word: req.Word, FilesOnly: req.FilesOnly, MaxResults: int32(req.MaxResults), ContextLines: int32(req.Context),
	}))
	if err != nil {
		return execution.Found{}, fail(ctx, err)
	}
	defer stream.Close()
	found, size := execution.Found{}, 0
	memory := spool.Gather{Most: maxFound}
	for stream.Receive() {
		switch e := stream.Msg().Event.(type) {
		case *guestv1.SearchResponse_Match:
			match, n, err := matchOf(e.Match)
			if err != nil {
				return found, err
			}
			if size += n; len(found.Matches) == req.MaxResults || size > maxFound {
				found.Truncated = true
				return found, nil
			}
			if err := memory.Add(ctx, n); err != nil {
				return found, err
			}
			found.Matches = append(found.Matches, match)
		case *guestv1.SearchResponse_End:
			finish(stream, cancel)
			found.Files, found.Truncated = max(e.End.Files, 0), e.End.Truncated
			return found, nil
		}
	}
	if err := stream.Err(); err != nil {
		return found, fail(ctx, err)
	}
	return found, sandbox.Errorf(sandbox.Unavailable, "the sandbox ended its answer early")
}

// matchOf checks a Guest's result and returns its size in bytes.
func matchOf(m *guestv1.SearchMatch) (execution.Match, int, error) {
	size := len(m.Path) + len(m.Text)
	for _, line := range slices.Concat(m.Before, m.After) {
		size += len(line)
	}
	lines := max(len(m.Before), len(m.After), len(m.Spans)/10)
	if len(m.Path) > maxPath || m.Line < 0 || size > maxMatchText || lines > execution.MaxSearchContext {
		return execution.Match{}, 0, errWrongAnswer
	}
	out := execution.Match{
		Path: valid(m.Path), Line: m.Line, Text: valid(string(m.Text)), Cut: m.Cut, Before: texts(m.Before), After: texts(m.After),
	}
	for _, s := range m.Spans {
		if s.Start < 0 || s.End < s.Start || int(s.End) > len(m.Text) {
			return out, 0, errWrongAnswer
		}
		// Offsets in the text that is passed on.
		out.Spans = append(out.Spans, execution.Span{Start: len(valid(string(m.Text[:s.Start]))), End: len(valid(string(m.Text[:s.End])))})
	}
	return out, size, nil
}

func texts(lines [][]byte) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = valid(string(l))
	}
	return out
}

var formats = map[execution.ArchiveFormat]guestv1.ArchiveFormat{
	"":              guestv1.ArchiveFormat_ARCHIVE_FORMAT_UNSPECIFIED,
	execution.Tar:   guestv1.ArchiveFormat_ARCHIVE_FORMAT_TAR,
	execution.TarGz: guestv1.ArchiveFormat_ARCHIVE_FORMAT_TAR_GZ,
	execution.Zip:   guestv1.ArchiveFormat_ARCHIVE_FORMAT_ZIP,
}

// Archive streams the content of a folder. See execution.Trees.
func (c *Client) Archive(ctx context.Context, user, path string, format execution.ArchiveFormat) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.files().Archive(ctx, connect.NewRequest(&guestv1.ArchiveRequest{User: user, Path: path, Format: formats[format]}))
	if err != nil {
		cancel()
		return nil, fail(ctx, err)
	}
	if !stream.Receive() {
		err := stream.Err()
		stream.Close()
		defer cancel()
		if err == nil {
			err = errWrongAnswer
		}
		return nil, fail(ctx, err)
	}
	failed := func(err error) error { return fail(ctx, err) }
	return &archive{failed: failed, cancel: cancel, stream: stream, left: stream.Msg().Data}, nil
}

// archive reads a stream of pieces.
type archive struct {
	failed func(error) error
	cancel context.CancelFunc
	stream *connect.ServerStreamForClient[guestv1.ArchiveResponse]
	left   []byte
}

func (a *archive) Read(p []byte) (int, error) {
	for len(a.left) == 0 {
		if !a.stream.Receive() {
			if err := a.stream.Err(); err != nil {
				return 0, a.failed(err)
			}
			return 0, io.EOF
		}
		a.left = a.stream.Msg().Data
	}
	n := copy(p, a.left)
	a.left = a.left[n:]
	return n, nil
}

func (a *archive) Close() error {
	a.cancel()
	return a.stream.Close()
}

// pieces are the buffers in which archives are sent to a Guest.
var pieces = sync.Pool{New: func() any { return new([archivePiece]byte) }}

// Extract unpacks an archive. See execution.Trees.
func (c *Client) Extract(ctx context.Context, user, path string, format execution.ArchiveFormat, content io.Reader) (execution.Extracted, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := c.files().Extract(ctx)
	start := &guestv1.ExtractStart{User: user, Path: path, Format: formats[format]}
	err := stream.Send(&guestv1.ExtractRequest{Part: &guestv1.ExtractRequest_Start{Start: start}})
	buf := pieces.Get().(*[archivePiece]byte)
	defer pieces.Put(buf)
	for err == nil {
		var n int
		n, err = fill(content, buf[:])
		if n > 0 {
			if sent := stream.Send(&guestv1.ExtractRequest{Part: &guestv1.ExtractRequest_Data{Data: buf[:n]}}); sent != nil {
				err = sent
			}
		}
	}
	// Send also returns io.EOF when the Guest has already ended the call.
	if !errors.Is(err, io.EOF) {
		return execution.Extracted{}, fail(ctx, err)
	}
	r, err := stream.CloseAndReceive()
	if err != nil {
		return execution.Extracted{}, fail(ctx, err)
	}
	m := r.Msg
	return execution.Extracted{
		Files: max(m.Files, 0), Directories: max(m.Directories, 0), Links: max(m.Links, 0), Skipped: max(m.Skipped, 0), Bytes: max(m.Bytes, 0),
	}, nil
}

// Replace replaces text in files. See execution.Trees. It has no time limit,
// because the files may be many.
func (c *Client) Replace(ctx context.Context, req execution.ReplaceRequest) (execution.Replaced, error) {
	r, err := c.files().Replace(ctx, connect.NewRequest(&guestv1.ReplaceRequest{
		User: req.User, Files: selectionOf(req.Files), Pattern: req.Pattern, Replacement: req.Replacement, Regex: req.Regex,
		IgnoreCase: req.IgnoreCase, ExpectedCount: req.Expected, DryRun: req.DryRun,
	}))
	if err != nil {
		return execution.Replaced{}, fail(ctx, err)
	}
	done := execution.Replaced{Count: max(r.Msg.Count, 0), TooLarge: max(r.Msg.TooLarge, 0)}
	for _, f := range r.Msg.Files {
		if len(f.Path) > maxPath || f.Count < 1 || len(f.Lines) > maxReplacedLines || slices.ContainsFunc(f.Lines, func(n int64) bool { return n < 1 }) {
			return done, errWrongAnswer
		}
		done.Files = append(done.Files, execution.ReplacedFile{Path: valid(f.Path), Count: f.Count, Lines: f.Lines})
	}
	return done, nil
}

// fill is io.ReadFull that returns the reader's own error.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var more int
		more, err = r.Read(p[n:])
		n += more
	}
	return n, err
}
