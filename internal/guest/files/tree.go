package files

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tree confines access to a folder: names lead only down, and no link is followed.
// os.Root promises the same, but relies on openat with O_NOFOLLOW and O_DIRECTORY,
// which follows a link in gVisor. With O_PATH, or without O_DIRECTORY, gVisor does
// not follow it.
//
// Names are relative and clean. A tree is not safe for concurrent use.
type tree struct {
	root   int
	folder string // its name, for messages

	// The folder that was used last: usually the next name is in it too.
	last   string
	lastFD int
}

// errLink says that a name leads through a link.
var errLink = errors.New("a symbolic link is on the way")

// openTree opens a folder; the name may contain links.
func openTree(folder string) (*tree, error) {
	fd, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, syscall.ENOTDIR) && !isBelowFile(folder) {
			return nil, invalid("%s is not a directory", folder)
		}
		return nil, fileError(folder, err)
	}
	return &tree{root: fd, folder: folder, last: ".", lastFD: fd}, nil
}

// isBelowFile distinguishes a path below a file from the path of a file.
func isBelowFile(path string) bool {
	_, err := os.Lstat(path)
	return err != nil
}

// path returns the full path of name.
func (t *tree) path(name string) string { return filepath.Join(t.folder, name) }

func (t *tree) close() {
	t.forget()
	_ = unix.Close(t.root)
}

func (t *tree) forget() {
	if t.lastFD != t.root {
		_ = unix.Close(t.lastFD)
	}
	t.last, t.lastFD = ".", t.root
}

// walk opens the folder dir for use in *at calls. With create it creates dir and
// the folders above it. The caller closes it, unless it is the root.
func (t *tree) walk(dir string, create bool) (int, error) {
	fd := t.root
	if dir == "." {
		return fd, nil
	}
	for name := range strings.SplitSeq(dir, "/") {
		next, err := step(fd, name)
		if create && errors.Is(err, syscall.ENOENT) {
			if err = unix.Mkdirat(fd, name, 0o755); err == nil || errors.Is(err, syscall.EEXIST) {
				next, err = step(fd, name)
			}
		}
		if fd != t.root {
			_ = unix.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// step opens a folder within another.
func step(fd int, name string) (int, error) {
	next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return -1, errLink
		}
	}
	return next, err
}

// at returns the folder of name, which is valid until the next call, and the last
// part of name. create creates the folders above it.
func (t *tree) at(name string, create bool) (fd int, base string, err error) {
	dir := path.Dir(name)
	if dir == t.last {
		return t.lastFD, path.Base(name), nil
	}
	fd, err = t.walk(dir, create)
	if err != nil {
		return -1, "", err
	}
	t.forget()
	t.last, t.lastFD = dir, fd
	return fd, path.Base(name), nil
}

// open opens the file at name; it follows no link.
func (t *tree) open(name string, flags int, mode uint32) (*os.File, error) {
	dir, base, err := t.at(name, false)
	if err != nil {
		return nil, err
	}
	return openAt(dir, base, name, flags, mode)
}

func openAt(dir int, base, name string, flags int, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(dir, base, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// lstat describes the file at name, which may be a link.
func (t *tree) lstat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	dir, base, err := t.at(name, false)
	if err != nil {
		return st, err
	}
	return st, unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
}

// kind returns the type bits of a file.
func kind(st unix.Stat_t) uint32 { return st.Mode & unix.S_IFMT }

// readDir lists a folder in order of names.
func (t *tree) readDir(name string) ([]fs.DirEntry, error) {
	f, err := t.open(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := f.ReadDir(-1)
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return all, err
}

// replace writes a temporary file and renames it once it is complete, so that
// readers see the old content or the new, never a part. Without overwrite, an
// existing file is an error.
func (t *tree) replace(name string, overwrite bool, write func(*os.File) (int64, error)) (n int64, err error) {
	dir, base, err := t.at(name, false)
	if err != nil {
		return 0, err
	}
	aside := ".cloud-sandbox-" + rand.Text()
	out, err := openAt(dir, aside, name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			_ = unix.Unlinkat(dir, aside, 0)
		}
	}()
	n, err = write(out)
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return n, err
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if overwrite {
		flags = 0
	}
	return n, unix.Renameat2(dir, aside, dir, base, flags)
}
