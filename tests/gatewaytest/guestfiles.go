package gatewaytest

import (
	"context"
	"io"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

func (g *guest) Copy(ctx context.Context, req execution.CopyRequest) (execution.Copied, error) {
	g.Lock()
	defer g.Unlock()
	data, ok := g.files[req.Source]
	if !ok {
		return execution.Copied{}, sandbox.Errorf(sandbox.NotFound, "there is no such file")
	}
	g.files[req.Destination] = data
	e, err := g.entry(req.Destination)
	return execution.Copied{Entry: e, Files: 1, Bytes: int64(len(data))}, err
}

func (g *guest) Chmod(ctx context.Context, req execution.ChmodRequest) (int64, error) {
	g.Lock()
	defer g.Unlock()
	_, err := g.entry(req.Path)
	return 1, err
}

// Search finds plain text, one result a file.
func (g *guest) Search(ctx context.Context, req execution.SearchRequest) (execution.Found, error) {
	g.Lock()
	defer g.Unlock()
	found := execution.Found{Files: int64(len(g.files))}
	for p, data := range g.files {
		if i := strings.Index(string(data), req.Pattern); i >= 0 && !strings.HasSuffix(p, "/") {
			found.Matches = append(found.Matches, execution.Match{Path: p, Line: 1, Text: string(data), Spans: []execution.Span{{Start: i, End: i + len(req.Pattern)}}})
		}
	}
	return found, nil
}

// Archive is the names of the files.
func (g *guest) Archive(ctx context.Context, user, p string, format execution.ArchiveFormat) (io.ReadCloser, error) {
	g.Lock()
	defer g.Unlock()
	if e, err := g.entry(p); err != nil || e.Type != "directory" {
		return nil, sandbox.Errorf(sandbox.Invalid, "not a directory")
	}
	return io.NopCloser(strings.NewReader(string(format) + " of " + p)), nil
}

// Extract makes one file of the archive.
func (g *guest) Extract(ctx context.Context, user, p string, format execution.ArchiveFormat, content io.Reader) (execution.Extracted, error) {
	data, err := io.ReadAll(content)
	if err != nil {
		return execution.Extracted{}, sandbox.Errorf(sandbox.Unavailable, "the upload broke").WithCause(err)
	}
	g.Lock()
	defer g.Unlock()
	g.files[p+"/archive"] = data
	return execution.Extracted{Files: 1, Bytes: int64(len(data))}, nil
}

// Replace replaces plain text.
func (g *guest) Replace(ctx context.Context, req execution.ReplaceRequest) (execution.Replaced, error) {
	g.Lock()
	defer g.Unlock()
	var done execution.Replaced
	for p, data := range g.files {
		n := int64(strings.Count(string(data), req.Pattern))
		if n == 0 || !strings.HasPrefix(p, req.Files.Path) {
			continue
		}
		done.Count += n
		done.Files = append(done.Files, execution.ReplacedFile{Path: p, Count: n, Lines: []int64{1}})
		if !req.DryRun {
			g.files[p] = []byte(strings.ReplaceAll(string(data), req.Pattern, req.Replacement))
		}
	}
	return done, nil
}

// Watch passes on what is sent to g.changes; a nil ends it.
func (g *guest) Watch(ctx context.Context, req execution.WatchRequest, handle func(execution.WatchEvent) error) error {
	if req.Path == "/none" {
		return sandbox.Errorf(sandbox.NotFound, "/none does not exist")
	}
	if err := handle(execution.WatchEvent{Position: &execution.WatchPosition{Cursor: "c-0", Reset: req.Since == "old"}}); err != nil {
		return err
	}
	for {
		select {
		case e := <-g.Events:
			if e == nil {
				return sandbox.Errorf(sandbox.NotFound, "it is not there any more")
			}
			if err := handle(*e); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *guest) Changes(ctx context.Context, req execution.WatchRequest) (execution.WatchPosition, []execution.FileChange, error) {
	if req.Since == "" {
		return execution.WatchPosition{Cursor: "c-0"}, nil, nil
	}
	return execution.WatchPosition{Cursor: "c-1", Reset: req.Since == "old"}, []execution.FileChange{*CreatedEvent.Change}, nil
}

// CreatedEvent tells of a new file.
var CreatedEvent = &execution.WatchEvent{Change: &execution.FileChange{Type: execution.FileCreated, Path: "/workspace/a", Cursor: "c-1"}}
