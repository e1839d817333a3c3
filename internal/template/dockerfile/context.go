package dockerfile

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// IgnoreFile is the file of a build context that lists paths to exclude.
const IgnoreFile = ".dockerignore"

// Bounds of a build context.
const (
	maxEntries     = 200_000
	maxNames       = 32 << 20 // bytes of all paths and targets
	maxIgnoreBytes = 1 << 20
	maxLinks       = 40 // links on one path
	maxSources     = 1000
	maxSource      = 4096 // bytes
	// maxMatches bounds the number of pattern comparisons for a .dockerignore.
	maxMatches = 200 << 20
	// maxCopied bounds the total bytes of all COPYs of one Dockerfile.
	maxCopied = 8 << 30
)

// Context is the files that a build may copy: the entries of an archive that its
// .dockerignore does not exclude. It stores references to the bytes, not the bytes.
type Context struct {
	data    io.ReaderAt
	entries map[string]entry // by path, without a slash at either end
	names   []string         // of entries, sorted
	ignored map[string]bool
	copied  int64 // bytes found so far
}

// entry is one file, folder or link.
type entry struct {
	mode   fs.FileMode // permissions and type
	target string      // of a link
	from   int64       // offset of its bytes
	size   int64
	time   time.Time
}

// ReadContext reads an archive and stores the bytes of its files in data, at most most
// bytes. An entry that leads out of the archive is Invalid; devices and pipes are
// skipped.
func ReadContext(archive io.Reader, data interface {
	io.Writer
	io.ReaderAt
}, most int64,
) (*Context, error) {
	c := &Context{data: data, entries: map[string]entry{"": {mode: fs.ModeDir | 0o755}}, ignored: map[string]bool{}}
	names, at := 0, int64(0)
	for in := tar.NewReader(archive); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, badContext(err)
		}
		name, err := nameOf(h.Name)
		if err != nil {
			return nil, err
		}
		names += len(h.Name) + len(h.Linkname)
		switch {
		case at+h.Size > most:
			return nil, sandbox.Errorf(sandbox.TooLarge, "the files of a build may have at most %d GiB: name files that are not needed in %s", most>>30, IgnoreFile)
		case len(c.entries) >= maxEntries || names > maxNames:
			return nil, sandbox.Errorf(sandbox.TooLarge, "a build may have at most %d files: name files that are not needed in %s", maxEntries, IgnoreFile)
		}
		e := entry{mode: fs.FileMode(h.Mode) & fs.ModePerm, from: at, time: h.ModTime}
		switch h.Typeflag {
		case tar.TypeReg:
			n, err := io.Copy(data, in)
			if err != nil {
				return nil, badContext(err)
			}
			e.size, at = n, at+n
		case tar.TypeDir:
			e.mode |= fs.ModeDir
		case tar.TypeSymlink:
			e.mode, e.target = e.mode|fs.ModeSymlink, h.Linkname
		case tar.TypeLink:
			target, err := nameOf(h.Linkname)
			linked, ok := c.entries[target]
			if err != nil || !ok || !linked.mode.IsRegular() {
				return nil, sandbox.Errorf(sandbox.Invalid, "the build context is damaged: %.200q is a link to nothing", h.Name)
			}
			e = linked
		default:
			continue
		}
		c.put(name, e)
	}
	return c, c.ignore()
}

// put adds an entry, and its parent folders.
func (c *Context) put(name string, e entry) {
	if name == "" {
		return
	}
	c.entries[name] = e
	for dir := parentOf(name); dir != ""; dir = parentOf(dir) {
		if known, ok := c.entries[dir]; ok && known.mode.IsDir() {
			return
		}
		c.entries[dir] = entry{mode: fs.ModeDir | 0o755, time: e.time}
	}
}

func parentOf(name string) string {
	dir, _, _ := cutLast(name)
	return dir
}

// cutLast splits off the last name of a path.
func cutLast(name string) (dir, base string, ok bool) {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i], name[i+1:], true
	}
	return "", name, false
}

func badContext(err error) error {
	var told *sandbox.Error
	if errors.As(err, &told) {
		return err
	}
	return sandbox.Errorf(sandbox.Invalid, "the build context is not a whole tar archive: send it again").WithCause(err)
}

// nameOf returns the clean relative path of an entry, which must be inside the context;
// empty for the root.
func nameOf(name string) (string, error) {
	clean := path.Clean(strings.TrimLeft(name, "/"))
	switch {
	case clean == ".":
		return "", nil
	case !fs.ValidPath(clean):
		return "", sandbox.Errorf(sandbox.Invalid, "the build context holds %.200q, which leads out of it", name)
	}
	return clean, nil
}

// ignore removes the entries that the .dockerignore excludes.
func (c *Context) ignore() error {
	if e, ok := c.entries[IgnoreFile]; ok && e.mode.IsRegular() {
		if e.size > maxIgnoreBytes {
			return sandbox.Errorf(sandbox.TooLarge, "%s may have at most %d bytes", IgnoreFile, maxIgnoreBytes)
		}
		ignored, err := ReadIgnored(io.NewSectionReader(c.data, e.from, e.size))
		if err != nil {
			return err
		}
		if compared := c.parts() * ignored.patterns(); compared > maxMatches {
			return sandbox.Errorf(sandbox.TooLarge, "%s has too many patterns for so many files: name folders in place of files", IgnoreFile)
		}
		for name := range c.entries {
			if name != "" && ignored.Has(name) {
				c.ignored[name] = true
			}
		}
		maps.DeleteFunc(c.entries, func(name string, _ entry) bool { return c.ignored[name] })
		for name, e := range maps.Clone(c.entries) { // a re-included entry needs its folders
			c.put(name, e)
		}
	}
	c.names = slices.Sorted(maps.Keys(c.entries))
	return nil
}

// parts is the number of names in all paths.
func (c *Context) parts() (n int) {
	for name := range c.entries {
		n += 1 + strings.Count(name, "/")
	}
	return n
}

// Ignored is the set of paths that a .dockerignore excludes.
type Ignored struct {
	matcher *patternmatcher.PatternMatcher
}

// ReadIgnored parses a .dockerignore. It returns Invalid for a bad pattern.
func ReadIgnored(r io.Reader) (Ignored, error) {
	patterns, err := ignorefile.ReadAll(r)
	if err != nil {
		return Ignored{}, sandbox.Errorf(sandbox.Invalid, "%s cannot be read: %.200s", IgnoreFile, err.Error())
	}
	matcher, err := patternmatcher.New(patterns)
	if err == nil { // a bad pattern fails only on use
		_, err = matcher.MatchesOrParentMatches("a")
	}
	if err != nil {
		return Ignored{}, sandbox.Errorf(sandbox.Invalid, "%s has a bad pattern: %.200s", IgnoreFile, err.Error())
	}
	return Ignored{matcher}, nil
}

func (i Ignored) patterns() int {
	if i.matcher == nil {
		return 0
	}
	return len(i.matcher.Patterns())
}

// Has reports whether a path, with slashes, is excluded.
func (i Ignored) Has(name string) bool {
	if i.matcher == nil {
		return false
	}
	out, err := i.matcher.MatchesOrParentMatches(name)
	return err == nil && out
}

// Whole reports whether an excluded folder is excluded with all its content. It is
// false if any pattern makes exceptions.
func (i Ignored) Whole() bool { return i.matcher == nil || !i.matcher.Exclusions() }

// inContext returns the path or pattern of a COPY's source.
func inContext(line int, source string) (string, error) {
	clean := path.Clean(strings.TrimLeft(source, "/"))
	if len(source) > maxSource {
		return "", errAt(line, "COPY %.80q: a path may have at most %d bytes", source, maxSource)
	}
	if source == "" || !fs.ValidPath(clean) || strings.ContainsRune(source, 0) {
		return "", errAt(line, "COPY %.200q leads out of the build context: copy from inside of it, or build with a larger context", source)
	}
	if clean == "." {
		clean = ""
	}
	return clean, nil
}

// Files are the files of one COPY, relative to its destination.
type Files struct {
	// Single means that there is only one file, Name, which may itself become the
	// destination.
	Single bool
	Name   string
	// Hash covers everything but the times.
	Hash string

	context *Context
	all     []placed
}

// placed is an entry and its path relative to the destination.
type placed struct {
	name string
	entry
	inline *string // content from the Dockerfile itself
}

// Find returns the files of a COPY. A missing source is Invalid, and exceeding maxCopied
// is TooLarge.
func (c *Context) Find(ctx context.Context, s Step) (*Files, error) {
	found := map[string]placed{}
	sources := 0
	for _, source := range s.Sources {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		matches, err := c.match(s.Line, source)
		if err != nil {
			return nil, err
		}
		for _, name := range matches {
			sources++
			if err := c.take(s.Line, name, found); err != nil {
				return nil, err
			}
		}
	}
	for _, in := range s.Inline {
		sources++
		found[in.Name] = placed{name: in.Name, entry: entry{mode: 0o644, size: int64(len(in.Content)), time: time.Unix(0, 0)}, inline: &in.Content}
	}
	f := &Files{context: c}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		f.all = append(f.all, found[name])
	}
	if f.Single = sources == 1 && len(f.all) == 1 && !f.all[0].mode.IsDir() && !c.isFolder(s); f.Single {
		f.Name = f.all[0].name
	}
	if sources > 1 && !isFolder(s.Dest) {
		return nil, errAt(s.Line, "COPY of several files: the destination must be a folder and end with a slash: %.200s/", s.Dest)
	}
	sum := sha256.New()
	fmt.Fprintln(sum, "copy 1", f.Single)
	for _, p := range f.all {
		if c.copied += p.size; c.copied > maxCopied {
			return nil, sandbox.Errorf(sandbox.TooLarge, "Dockerfile line %d: all COPYs together may bring in at most %d GiB", s.Line, maxCopied>>30)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		fmt.Fprintf(sum, "%q %o %q %d\n", p.name, p.mode, p.target, p.size)
		if _, err := io.Copy(sum, f.body(p)); err != nil {
			return nil, fmt.Errorf("read the build context: %w", err)
		}
	}
	f.Hash = hex.EncodeToString(sum.Sum(nil))
	return f, nil
}

// isFolder reports whether a COPY has a single source, a folder.
func (c *Context) isFolder(s Step) bool {
	if len(s.Sources) != 1 {
		return false
	}
	matches, err := c.match(s.Line, s.Sources[0])
	return err == nil && len(matches) == 1 && c.entries[matches[0]].mode.IsDir()
}

// match returns the paths that match a source.
func (c *Context) match(line int, source string) (matches []string, err error) {
	clean, err := inContext(line, source)
	if err != nil {
		return nil, err
	}
	if !strings.ContainsAny(clean, `*?[\`) {
		name, err := c.follow(line, clean)
		return []string{name}, err
	}
	for _, name := range c.names {
		ok, err := path.Match(clean, name)
		if err != nil {
			return nil, errAt(line, "COPY %.200q is not a pattern", source)
		}
		if ok {
			matches = append(matches, name)
		}
	}
	if len(matches) == 0 {
		return nil, errAt(line, "COPY %.200q matches nothing in the build context", source)
	}
	return matches, nil
}

// follow resolves the links of a path. Links must not lead out of the context.
func (c *Context) follow(line int, name string) (string, error) {
	done, rest, links := "", name, 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		next := path.Join(done, part)
		e, ok := c.entries[next]
		if !ok {
			if c.ignored[next] {
				return "", errAt(line, "COPY %.200q: %s leaves it out", name, IgnoreFile)
			}
			return "", errAt(line, "COPY %.200q: it is not in the build context", name)
		}
		if e.mode&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		target := path.Join(done, e.target)
		if links++; links > maxLinks || path.IsAbs(e.target) || target != "." && !fs.ValidPath(target) {
			return "", errAt(line, "COPY %.200q: the link %.200s leads out of the build context, to %.200s", name, next, e.target)
		}
		if target == "." {
			target = ""
		}
		done, rest = "", path.Join(target, rest)
	}
	return done, nil
}

// take adds a file under its own name, or all content of a folder.
func (c *Context) take(line int, name string, found map[string]placed) error {
	e := c.entries[name]
	if e.mode&fs.ModeSymlink != 0 { // a pattern matched a link
		target, err := c.follow(line, name)
		if err != nil {
			return err
		}
		if e = c.entries[target]; !e.mode.IsDir() {
			found[path.Base(name)] = placed{name: path.Base(name), entry: e}
			return nil
		}
		name = target
	}
	if !e.mode.IsDir() {
		found[path.Base(name)] = placed{name: path.Base(name), entry: e}
		return nil
	}
	prefix := name + "/"
	if name == "" {
		prefix = ""
	}
	first, _ := slices.BinarySearch(c.names, prefix)
	for _, below := range c.names[first:] {
		if !strings.HasPrefix(below, prefix) {
			break
		}
		if rest := below[len(prefix):]; rest != "" {
			found[rest] = placed{name: rest, entry: c.entries[below]}
		}
	}
	return nil
}

// body returns the bytes of a file; empty for other entries.
func (f *Files) body(p placed) io.Reader {
	switch {
	case p.inline != nil:
		return strings.NewReader(*p.inline)
	case !p.mode.IsRegular():
		return strings.NewReader("")
	}
	return io.NewSectionReader(f.context.data, p.from, p.size)
}

// WriteTo writes the files as an archive, all owned by root.
func (f *Files) WriteTo(w io.Writer) (int64, error) {
	count := &counter{w: w}
	out := tar.NewWriter(count)
	for _, p := range f.all {
		h := &tar.Header{Name: p.name, Mode: int64(p.mode.Perm()), ModTime: p.time, Format: tar.FormatPAX, Typeflag: tar.TypeReg, Size: p.size}
		switch {
		case p.mode.IsDir():
			h.Typeflag, h.Name, h.Size = tar.TypeDir, p.name+"/", 0
		case p.mode&fs.ModeSymlink != 0:
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, p.target, 0
		}
		if err := out.WriteHeader(h); err != nil {
			return count.n, fmt.Errorf("pack %s: %w", p.name, err)
		}
		if _, err := io.Copy(out, f.body(p)); err != nil {
			return count.n, fmt.Errorf("pack %s: %w", p.name, err)
		}
	}
	return count.n, out.Close()
}

// counter counts written bytes.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
