package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"github.com/bmatcuk/doublestar/v4"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// maxGlobs bounds the globs of one selection.
const maxGlobs = 64

// selection selects the files below a path that a call is about.
type selection struct {
	root            string
	wanted          []string // a file must match one of these, if there are any
	unwanted        []string // a file must match none of these
	hidden, ignored bool     // include these too

	entries int
	tree    *tree // the root, or its folder; set between enter and leave
}

func newSelection(m *guestv1.FileSelection) (*selection, error) {
	if m == nil {
		return nil, invalid("no files are selected")
	}
	if err := checkPaths(m.Path); err != nil {
		return nil, err
	}
	if len(m.Globs) > maxGlobs {
		return nil, invalid("there are more than %d globs", maxGlobs)
	}
	s := &selection{root: m.Path, hidden: m.Hidden, ignored: m.NoIgnore}
	for _, glob := range m.Globs {
		pattern, not := strings.CutPrefix(glob, "!")
		if pattern == "" || len(pattern) > maxPath || !doublestar.ValidatePattern(pattern) {
			return nil, invalid("%.64q is not a glob", glob)
		}
		if not {
			s.unwanted = append(s.unwanted, pattern)
		} else {
			s.wanted = append(s.wanted, pattern)
		}
	}
	return s, nil
}

// matchGlob reports whether a glob matches rel: a glob without a slash matches the
// last name, as in ripgrep.
func matchGlob(glob, rel string) bool {
	glob, anchored := strings.CutPrefix(glob, "/")
	if !anchored && !strings.Contains(glob, "/") {
		rel = rel[strings.LastIndexByte(rel, '/')+1:]
	}
	ok, _ := doublestar.Match(glob, rel)
	return ok
}

func matchAny(globs []string, rel string) bool {
	for _, g := range globs {
		if matchGlob(g, rel) {
			return true
		}
	}
	return false
}

// errStop ends a walk early without a failure.
var errStop = errors.New("enough")

// enter opens the root for walk and open, with the rights of the thread. The caller
// calls leave afterwards. Links that replace a folder later are not followed.
func (s *selection) enter() error {
	info, err := os.Stat(s.root)
	if err != nil {
		return err
	}
	folder := s.root
	if !info.IsDir() {
		if !info.Mode().IsRegular() {
			return invalid("%s is %s, neither a file nor a directory", s.root, server.KindOf(info.Mode()))
		}
		if s.root, err = filepath.EvalSymlinks(s.root); err != nil {
			return err
		}
		folder = filepath.Dir(s.root)
	}
	s.tree, err = openTree(folder)
	return err
}

func (s *selection) leave() {
	if s.tree != nil {
		s.tree.close()
	}
}

// name returns the name in the tree of a path from walk.
func (s *selection) name(path string) string {
	if name := strings.TrimPrefix(path[len(s.tree.folder):], "/"); name != "" {
		return name
	}
	return "."
}

// open opens a file that walk has visited for reading; it follows no link.
func (s *selection) open(path string) (*os.File, error) {
	return s.tree.open(s.name(path), os.O_RDONLY, 0)
}

// walk calls visit for each selected file, in order of names. It follows no link
// and skips folders that may not be read. errStop from visit ends it.
func (s *selection) walk(ctx context.Context, visit func(path string) error) (err error) {
	if s.root != s.tree.folder {
		err = visit(s.root)
	} else {
		var rules *ignores
		if !s.ignored {
			rules = ignoresAbove(s.root)
		}
		err = s.folder(ctx, s.root, rules, visit)
	}
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

func (s *selection) folder(ctx context.Context, dir string, rules *ignores, visit func(string) error) error {
	names, err := s.tree.readDir(s.name(dir))
	if err != nil {
		if dir == s.root {
			return fileError(dir, err)
		}
		return nil
	}
	if !s.ignored {
		rules = rules.enter(dir)
	}
	for _, e := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.entries++; s.entries > maxEntries {
			return connect.NewError(connect.CodeResourceExhausted, errTooMany)
		}
		path := filepath.Join(dir, e.Name())
		if !s.admits(path, e, rules) {
			continue
		}
		if e.IsDir() {
			err = s.folder(ctx, path, rules, visit)
		} else {
			err = visit(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// admits reports whether a walk enters a folder, or visits a file.
func (s *selection) admits(path string, e fs.DirEntry, rules *ignores) bool {
	if !e.IsDir() && !e.Type().IsRegular() {
		return false
	}
	if !s.hidden && strings.HasPrefix(e.Name(), ".") || rules.ignored(path, e.IsDir()) {
		return false
	}
	if !s.ignored && e.IsDir() && e.Name() == ".git" {
		return false
	}
	rel := strings.TrimPrefix(path[len(s.root):], "/")
	if matchAny(s.unwanted, rel) {
		return false
	}
	return e.IsDir() || len(s.wanted) == 0 || matchAny(s.wanted, rel)
}
