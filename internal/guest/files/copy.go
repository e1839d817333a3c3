package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// Copy copies a file, a link, or a folder with all it holds.
func (s *Service) Copy(ctx context.Context, r *connect.Request[guestv1.CopyRequest]) (*connect.Response[guestv1.CopyResponse], error) {
	m := r.Msg
	if err := checkPaths(m.Source, m.Destination); err != nil {
		return nil, err
	}
	u, err := s.user(m.User)
	if err != nil {
		return nil, err
	}
	c := copier{ctx: ctx, overwrite: m.Overwrite}
	if err := server.As(u, func() error { return c.all(m.Source, m.Destination, m.Recursive) }); err != nil {
		return nil, fileError(m.Source, err)
	}
	return connect.NewResponse(&guestv1.CopyResponse{Files: c.files, Bytes: c.bytes, Skipped: c.skipped}), nil
}

// copier copies a tree and counts. It descends by descriptors and follows no link,
// even if one replaces a folder during the copy.
type copier struct {
	ctx       context.Context
	overwrite bool
	from, to  *tree // the folders above

	entries               int
	files, bytes, skipped int64
}

func (c *copier) all(source, destination string, recursive bool) error {
	info, err := os.Lstat(source)
	switch {
	case err != nil:
		return err
	case destination == source:
		return invalid("source and destination are the same")
	case info.IsDir() && !recursive:
		return invalid("%s is a directory; recursive copies it with all it holds", source)
	case info.IsDir() && below(destination, source):
		return invalid("%s is within %s", destination, source)
	}
	if err := c.makeWay(destination, info.IsDir()); err != nil {
		return err
	}
	if !info.IsDir() && !copyable(info.Mode()) {
		return invalid("%s is %s, neither a file nor a directory", source, server.KindOf(info.Mode()))
	}
	if c.from, err = openTree(filepath.Dir(source)); err != nil {
		return err
	}
	defer c.from.close()
	if c.to, err = openTree(filepath.Dir(destination)); err != nil {
		return err
	}
	defer c.to.close()
	_, err = c.to.lstat(filepath.Base(destination))
	existed := err == nil
	if err := c.one(filepath.Base(source), filepath.Base(destination)); err != nil {
		if !existed {
			_ = os.RemoveAll(destination)
		}
		return err
	}
	return nil
}

// below reports whether path is in folder, by name.
func below(path, folder string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

func copyable(m fs.FileMode) bool { return m.IsRegular() || m.IsDir() || m&fs.ModeSymlink != 0 }

// makeWay creates the folders above the destination and refuses a destination that
// must not be replaced.
func (c *copier) makeWay(destination string, dir bool) error {
	old, err := os.Lstat(destination)
	switch {
	case err != nil:
		return makeDirs(filepath.Dir(destination))
	case old.IsDir() && !dir:
		return conflict("%s is a directory", destination)
	case !c.overwrite:
		return conflict("%s exists; overwrite replaces it", destination)
	}
	return nil
}

// one copies the file or folder at source. A file that vanishes during the copy is
// an error: a copy is complete or fails.
func (c *copier) one(source, destination string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if c.entries++; c.entries > maxEntries {
		return connect.NewError(connect.CodeResourceExhausted, errTooMany)
	}
	info, err := c.from.lstat(source)
	if err != nil {
		return fileError(c.from.path(source), err)
	}
	switch kind(info) {
	case unix.S_IFDIR:
		return c.dir(source, destination, info.Mode)
	case unix.S_IFLNK:
		err = c.link(source, destination)
	case unix.S_IFREG:
		err = c.file(source, destination)
	default:
		c.skipped++
		return nil
	}
	c.files++
	return err
}

func (c *copier) dir(source, destination string, mode uint32) error {
	names, err := c.from.readDir(source)
	if err != nil {
		return fileError(c.from.path(source), err)
	}
	made, err := c.makeDir(destination)
	if err != nil {
		return fileError(c.to.path(destination), err)
	}
	for _, e := range names {
		if err := c.one(path.Join(source, e.Name()), path.Join(destination, e.Name())); err != nil {
			return err
		}
	}
	if !made {
		return nil
	}
	// Last: a folder may be read-only.
	dir, err := c.to.open(destination, os.O_RDONLY, 0)
	if err != nil {
		return fileError(c.to.path(destination), err)
	}
	defer dir.Close()
	return fileError(c.to.path(destination), unix.Fchmod(int(dir.Fd()), mode&(0o777|unix.S_ISVTX)))
}

// makeDir creates a folder. An existing folder is accepted if c.overwrite is set.
func (c *copier) makeDir(name string) (made bool, err error) {
	above, base, err := c.to.at(name, false)
	if err != nil {
		return false, err
	}
	err = unix.Mkdirat(above, base, 0o700)
	if !errors.Is(err, unix.EEXIST) || !c.overwrite {
		return err == nil, err
	}
	if there, failed := c.to.lstat(name); failed != nil || kind(there) != unix.S_IFDIR {
		return false, err
	}
	return false, nil
}

func (c *copier) link(source, destination string) error {
	dir, base, err := c.from.at(source, false)
	if err != nil {
		return fileError(c.from.path(source), err)
	}
	target := make([]byte, maxPath)
	n, err := unix.Readlinkat(dir, base, target)
	if err != nil {
		return fileError(c.from.path(source), err)
	}
	if dir, base, err = c.to.at(destination, false); err != nil {
		return fileError(c.to.path(destination), err)
	}
	if c.overwrite {
		_ = unix.Unlinkat(dir, base, 0) // Symlinkat reports a conflict
	}
	return fileError(c.to.path(destination), unix.Symlinkat(string(target[:n]), dir, base))
}

// file copies one regular file.
func (c *copier) file(source, destination string) error {
	in, err := c.from.open(source, os.O_RDONLY, 0)
	if err != nil {
		return fileError(c.from.path(source), err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return fileError(c.from.path(source), err)
	}
	n, err := c.to.replace(destination, c.overwrite, func(out *os.File) (int64, error) {
		n, err := copyPieces(c.ctx, out, in)
		if err != nil {
			return n, err
		}
		return n, out.Chmod(info.Mode().Perm())
	})
	c.bytes += n
	return fileError(c.to.path(destination), err)
}

// copyPieces is io.Copy that stops when its context ends.
func copyPieces(ctx context.Context, out io.Writer, in io.Reader) (int64, error) {
	buf := make([]byte, pieceSize)
	var total int64
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if _, err := out.Write(buf[:n]); err != nil {
				return total, err
			}
			total += int64(n)
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if err := ctx.Err(); err != nil {
			return total, err
		}
	}
}
