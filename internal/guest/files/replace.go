package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"syscall"

	"connectrpc.com/connect"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// Bounds of a replacement.
const (
	maxReplacePattern = 64 << 10 // bytes
	maxReplaceFile    = 16 << 20 // bytes; a file is held in memory
	maxReplaced       = 64 << 20 // bytes of a file after the replacement
	maxOccurrences    = 100_000  // in one file
	maxReplaceFiles   = 10_000
	maxReplaceLines   = 100 // reported per file
)

// Replace replaces text in files: it first searches all of them, then writes.
func (s *Service) Replace(ctx context.Context, r *connect.Request[guestv1.ReplaceRequest]) (*connect.Response[guestv1.ReplaceResponse], error) {
	m := r.Msg
	u, err := s.user(m.User)
	if err != nil {
		return nil, err
	}
	files, err := newSelection(m.Files)
	if err != nil {
		return nil, err
	}
	p := &replacer{replacement: []byte(m.Replacement), template: m.Regex, done: &guestv1.ReplaceResponse{}}
	if p.re, err = compileText(m.Pattern, !m.Regex, m.IgnoreCase); err != nil {
		return nil, err
	}
	if err := server.As(u, func() error { return p.all(ctx, files, m) }); err != nil {
		return nil, fileError(files.root, err)
	}
	return connect.NewResponse(p.done), nil
}

// compileText compiles the expression of a replacement, which may match across
// lines.
func compileText(pattern string, literal, ignoreCase bool) (*regexp.Regexp, error) {
	if pattern == "" || len(pattern) > maxReplacePattern {
		return nil, invalid("the pattern needs 1 to %d bytes", maxReplacePattern)
	}
	flags := "(?m)"
	if ignoreCase {
		flags = "(?mi)"
	}
	if literal {
		pattern = regexp.QuoteMeta(pattern)
	}
	re, err := regexp.Compile(flags + pattern)
	if err != nil {
		return nil, invalid("the pattern is not RE2: %v", err)
	}
	return re, nil
}

// replacer replaces text in files.
type replacer struct {
	re          *regexp.Regexp
	replacement []byte
	template    bool // replacement names groups
	within      *selection
	done        *guestv1.ReplaceResponse
	paths       []string // of done.Files, in the system's encoding
}

func (p *replacer) all(ctx context.Context, files *selection, m *guestv1.ReplaceRequest) error {
	p.within = files
	if err := files.enter(); err != nil {
		return err
	}
	defer files.leave()
	if err := files.walk(ctx, p.count); err != nil {
		return err
	}
	if m.ExpectedCount != nil && p.done.Count != *m.ExpectedCount {
		return conflict("the text occurs %d times, not %d; nothing was changed", p.done.Count, *m.ExpectedCount)
	}
	if m.DryRun {
		return nil
	}
	for i, path := range p.paths {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.write(path, p.done.Files[i].Count); err != nil {
			return fileError(path, err)
		}
	}
	return nil
}

var errTooLarge = errors.New("it is too large")

// readText reads a whole file; nil for a file that is not text.
func (p *replacer) readText(path string) ([]byte, fs.FileInfo, error) {
	f, err := p.within.open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxReplaceFile+1))
	if err == nil && len(data) > maxReplaceFile {
		return nil, info, errTooLarge
	}
	if bytes.IndexByte(data, 0) >= 0 {
		data = nil
	}
	return data, info, err
}

// count searches one file. A file that may not be read is skipped, as in a search,
// unless it is the root of the request.
func (p *replacer) count(path string) error {
	data, _, err := p.readText(path)
	switch {
	case err != nil && path == p.within.root && !errors.Is(err, errTooLarge):
		return err
	case errors.Is(err, errTooLarge):
		p.done.TooLarge++
		return nil
	case err != nil:
		return nil
	}
	found, err := p.find(path, data)
	if err != nil || len(found) == 0 {
		return err
	}
	if len(p.paths) == maxReplaceFiles {
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the text occurs in more than %d files; nothing was changed", maxReplaceFiles))
	}
	f := &guestv1.ReplacedFile{Path: valid(path), Count: int64(len(found))}
	line, at := int64(1), 0
	for _, where := range found[:min(len(found), maxReplaceLines)] {
		line += int64(bytes.Count(data[at:where[0]], []byte{'\n'}))
		at = where[0]
		f.Lines = append(f.Lines, line)
	}
	p.done.Files, p.paths = append(p.done.Files, f), append(p.paths, path)
	p.done.Count += f.Count
	return nil
}

func (p *replacer) find(path string, data []byte) ([][]int, error) {
	found := p.re.FindAllSubmatchIndex(data, maxOccurrences+1)
	if len(found) > maxOccurrences {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the text occurs more than %d times in %s", maxOccurrences, path))
	}
	return found, nil
}

// write replaces the text in one file if the number of occurrences is unchanged.
func (p *replacer) write(path string, count int64) error {
	data, info, err := p.readText(path)
	if err != nil {
		return err
	}
	found, err := p.find(path, data)
	if err != nil {
		return err
	}
	if int64(len(found)) != count {
		return conflict("%s was changed meanwhile; files before it, in order of their names, have the new text", path)
	}
	out, err := p.expand(path, data, found)
	if err != nil {
		return err
	}
	_, err = p.within.tree.replace(p.within.name(path), true, func(f *os.File) (int64, error) {
		if _, err := f.Write(out); err != nil {
			return 0, err
		}
		return int64(len(out)), likeBefore(f, info)
	})
	return err
}

// expand returns the content with the text replaced.
func (p *replacer) expand(path string, data []byte, found [][]int) ([]byte, error) {
	var out []byte
	at := 0
	for _, where := range found {
		out = append(out, data[at:where[0]]...)
		groups := 0 // bytes; each group is at most as long as the match
		if p.template {
			groups = bytes.Count(p.replacement, []byte{'$'}) * (where[1] - where[0])
		}
		if len(out)+len(p.replacement)+groups > maxReplaced {
			return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%s would have more than %d bytes", path, maxReplaced))
		}
		if p.template {
			out = p.re.Expand(out, p.replacement, data, where)
		} else {
			out = append(out, p.replacement...)
		}
		at = where[1]
	}
	return append(out, data[at:]...), nil
}

// likeBefore gives a replacement file the owner and permissions of the old one.
func likeBefore(f *os.File, old fs.FileInfo) error {
	now, err := f.Stat()
	if err != nil {
		return err
	}
	before, ok := old.Sys().(*syscall.Stat_t)
	if mine, known := now.Sys().(*syscall.Stat_t); ok && known && (mine.Uid != before.Uid || mine.Gid != before.Gid) {
		if err := f.Chown(int(before.Uid), int(before.Gid)); err != nil {
			return err
		}
	}
	return f.Chmod(old.Mode())
}
