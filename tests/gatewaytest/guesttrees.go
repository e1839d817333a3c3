package gatewaytest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing/fstest"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

func (f *files) Copy(ctx context.Context, req execution.CopyRequest) (execution.Copied, error) {
	f.Lock()
	defer f.Unlock()
	from, to := f.all[req.Source], f.all[req.Destination]
	switch {
	case cmp.Or(ctx.Err(), checkUser(req.User)) != nil:
		return execution.Copied{}, cmp.Or(ctx.Err(), checkUser(req.User))
	case from == nil:
		return execution.Copied{}, errNoFile
	case from.folder && !req.Recursive:
		return execution.Copied{}, errIsFolder
	case to != nil && !req.Overwrite:
		return execution.Copied{}, errFileThere
	case strings.HasPrefix(req.Destination, req.Source+"/"):
		return execution.Copied{}, sandbox.Errorf(sandbox.Invalid, "it cannot be copied into itself")
	}
	var done execution.Copied
	for _, name := range f.tree(req.Source) {
		at, copied := f.all[name], req.Destination+name[len(req.Source):]
		if at.folder {
			if err := f.makeFolders(copied); err != nil {
				return done, err
			}
			continue
		}
		if err := f.put(copied, at.data); err != nil {
			return done, err
		}
		f.all[copied].mode = at.mode
		done.Files, done.Bytes = done.Files+1, done.Bytes+int64(len(at.data))
	}
	var err error
	done.Entry, err = f.entry(req.Destination)
	return done, err
}

func (f *files) Chmod(ctx context.Context, req execution.ChmodRequest) (changed int64, err error) {
	f.Lock()
	defer f.Unlock()
	if err := cmp.Or(ctx.Err(), checkUser(req.User)); err != nil {
		return 0, err
	}
	if f.all[req.Path] == nil {
		return 0, errNoFile
	}
	all := []string{req.Path}
	if req.Recursive {
		all = f.tree(req.Path)
	}
	for _, name := range all {
		if at := f.all[name]; at.mode != req.Mode {
			at.mode = req.Mode
			changed++
			f.change(execution.FileAttributes, name)
		}
	}
	return changed, nil
}

// matching returns the files of a selection, sorted by path.
func (f *files) matching(s execution.FileSelection) (names []string, err error) {
	if f.all[s.Path] == nil {
		return nil, errNoFile
	}
	for _, name := range f.tree(s.Path) {
		rel := strings.TrimPrefix(strings.TrimPrefix(name, s.Path), "/")
		hidden := strings.HasPrefix(rel, ".") || strings.Contains(rel, "/.")
		if f.all[name].folder || hidden && !s.Hidden {
			continue
		}
		wanted, only := false, false
		for _, glob := range s.Globs {
			glob, not := strings.CutPrefix(glob, "!")
			matches, _ := path.Match(glob, path.Base(name))
			only = only || !not
			wanted = wanted || matches && !not
			if matches && not {
				wanted, only = false, true
				break
			}
		}
		if wanted || !only {
			names = append(names, name)
		}
	}
	return names, nil
}

// compile returns the regular expression of a pattern.
func compile(pattern string, literal, word, ignoreCase bool) (*regexp.Regexp, error) {
	if literal {
		pattern = regexp.QuoteMeta(pattern)
	}
	if word {
		pattern = `\b(?:` + pattern + `)\b`
	}
	if ignoreCase {
		pattern = `(?i:` + pattern + `)`
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the pattern is no regular expression").WithCause(err)
	}
	return re, nil
}

// Search returns no lines around a match.
func (f *files) Search(ctx context.Context, req execution.SearchRequest) (found execution.Found, err error) {
	f.Lock()
	defer f.Unlock()
	re, err := compile(req.Pattern, req.Literal, req.Word, req.IgnoreCase)
	if err := cmp.Or(ctx.Err(), checkUser(req.User), err); err != nil {
		return found, err
	}
	names, err := f.matching(req.Files)
	if err != nil {
		return found, err
	}
	found.Files = int64(len(names))
	for _, name := range names {
		for _, m := range f.matchesIn(name, re, req.Pattern == "" || req.FilesOnly) {
			if len(found.Matches) == req.MaxResults {
				found.Truncated = true
				return found, nil
			}
			found.Matches = append(found.Matches, m)
		}
	}
	return found, nil
}

// matchesIn returns the matches in a file; filesOnly: one, if there is any.
func (f *files) matchesIn(name string, re *regexp.Regexp, filesOnly bool) (all []execution.Match) {
	if filesOnly {
		if re.Match(f.all[name].data) {
			all = append(all, execution.Match{Path: name})
		}
		return all
	}
	line := int64(0)
	for text := range strings.Lines(string(f.all[name].data)) {
		line++
		text = strings.TrimSuffix(text, "\n")
		m := execution.Match{Path: name, Line: line, Text: text}
		for _, at := range re.FindAllStringIndex(text, -1) {
			m.Spans = append(m.Spans, execution.Span{Start: at[0], End: at[1]})
		}
		if m.Spans != nil {
			all = append(all, m)
		}
	}
	return all
}

func (f *files) Replace(ctx context.Context, req execution.ReplaceRequest) (done execution.Replaced, err error) {
	f.Lock()
	defer f.Unlock()
	re, err := compile(req.Pattern, !req.Regex, false, req.IgnoreCase)
	if err := cmp.Or(ctx.Err(), checkUser(req.User), err); err != nil {
		return done, err
	}
	names, err := f.matching(req.Files)
	if err != nil {
		return done, err
	}
	for _, name := range names {
		text := f.all[name].data
		at := re.FindAllIndex(text, -1)
		if len(at) == 0 {
			continue
		}
		r := execution.ReplacedFile{Path: name, Count: int64(len(at))}
		for _, m := range at {
			if line := int64(1 + bytes.Count(text[:m[0]], []byte("\n"))); len(r.Lines) == 0 || r.Lines[len(r.Lines)-1] != line {
				r.Lines = append(r.Lines, line)
			}
		}
		done.Count += r.Count
		done.Files = append(done.Files, r)
	}
	if req.Expected != nil && *req.Expected != done.Count {
		return execution.Replaced{}, sandbox.Errorf(sandbox.Conflict, "the pattern occurs %d times, not %d", done.Count, *req.Expected)
	}
	for _, r := range done.Files {
		replacement := []byte(req.Replacement)
		if !req.Regex {
			replacement = bytes.ReplaceAll(replacement, []byte("$"), []byte("$$"))
		}
		if !req.DryRun {
			_ = f.put(r.Path, re.ReplaceAll(f.all[r.Path].data, replacement)) // an existing file can be written
		}
	}
	return done, nil
}

func (f *files) Archive(ctx context.Context, user, p string, format execution.ArchiveFormat) (io.ReadCloser, error) {
	f.Lock()
	defer f.Unlock()
	at := f.all[p]
	switch {
	case cmp.Or(ctx.Err(), checkUser(user)) != nil:
		return nil, cmp.Or(ctx.Err(), checkUser(user))
	case at == nil:
		return nil, errNoFile
	case !at.folder:
		return nil, errNoFolder
	}
	tree := fstest.MapFS{}
	for _, name := range f.below(p) {
		at, mode := f.all[name], fs.FileMode(0)
		if at.folder {
			mode = fs.ModeDir
		}
		tree[strings.TrimPrefix(name[len(p):], "/")] = &fstest.MapFile{Data: at.data, Mode: mode | fs.FileMode(at.mode), ModTime: at.modified}
	}
	var out bytes.Buffer
	err := pack(&out, tree, format)
	return io.NopCloser(&out), err
}

func pack(out io.Writer, tree fs.FS, format execution.ArchiveFormat) error {
	switch format {
	case execution.Zip:
		w := zip.NewWriter(out)
		return errors.Join(w.AddFS(tree), w.Close())
	case execution.TarGz:
		z := gzip.NewWriter(out)
		return errors.Join(pack(z, tree, execution.Tar), z.Close())
	}
	w := tar.NewWriter(out)
	return errors.Join(w.AddFS(tree), w.Close())
}

// Extract unpacks files and folders.
func (f *files) Extract(ctx context.Context, user, p string, format execution.ArchiveFormat, archive io.Reader) (done execution.Extracted, err error) {
	raw, err := io.ReadAll(archive)
	if err != nil {
		return done, sandbox.Errorf(sandbox.Unavailable, "the upload broke").WithCause(err)
	}
	f.Lock()
	defer f.Unlock()
	if err := cmp.Or(ctx.Err(), checkUser(user), f.makeFolders(p)); err != nil {
		return done, err
	}
	err = unpack(raw, format, func(name string, folder bool, content io.Reader) error {
		if !filepath.IsLocal(name) {
			return sandbox.Errorf(sandbox.Invalid, "the archive has the path %q", name)
		}
		at := path.Join(p, name)
		if folder {
			done.Directories++
			return f.makeFolders(at)
		}
		data, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		done.Files, done.Bytes = done.Files+1, done.Bytes+int64(len(data))
		return f.put(at, data)
	})
	if err != nil && sandbox.CodeOf(err) == sandbox.Internal {
		err = sandbox.Errorf(sandbox.Invalid, "the archive is damaged").WithCause(err)
	}
	return done, err
}

// unpack calls each with the members of an archive.
func unpack(raw []byte, format execution.ArchiveFormat, each func(name string, folder bool, content io.Reader) error) error {
	switch {
	case format == execution.Zip, format == "" && bytes.HasPrefix(raw, []byte("PK")):
		z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			return err
		}
		for _, member := range z.File {
			content, err := member.Open()
			if err != nil {
				return err
			}
			if err := each(member.Name, member.FileInfo().IsDir(), content); err != nil {
				return err
			}
		}
		return nil
	case format == execution.TarGz, format == "" && bytes.HasPrefix(raw, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return err
		}
		if raw, err = io.ReadAll(z); err != nil {
			return err
		}
	}
	for r := tar.NewReader(bytes.NewReader(raw)); ; {
		member, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := each(member.Name, member.FileInfo().IsDir(), r); err != nil {
			return err
		}
	}
}
