package files

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

var errTooMany = errors.New("there are too many files below this path for one call")

// Chmod changes permissions.
func (s *Service) Chmod(ctx context.Context, r *connect.Request[guestv1.ChmodRequest]) (*connect.Response[guestv1.ChmodResponse], error) {
	m := r.Msg
	if err := checkPaths(m.Path); err != nil {
		return nil, err
	}
	if m.Mode > 0o7777 {
		return nil, invalid("the mode %o has more than permissions", m.Mode)
	}
	u, err := s.user(m.User)
	if err != nil {
		return nil, err
	}
	var changed int64
	err = server.As(u, func() error {
		if !m.Recursive {
			changed = 1
			return os.Chmod(m.Path, fileMode(m.Mode))
		}
		changed, err = chmodBelow(ctx, m.Path, fileMode(m.Mode))
		return err
	})
	if err != nil {
		return nil, fileError(m.Path, err)
	}
	return connect.NewResponse(&guestv1.ChmodResponse{Changed: changed}), nil
}

// chmodBelow changes a file, or a folder after its content: without the right to
// enter the folder, nothing below could be reached. Below a folder, only files and
// folders are changed. It follows no link, even if one replaces a folder during the
// walk.
func chmodBelow(ctx context.Context, folder string, mode fs.FileMode) (int64, error) {
	info, err := os.Stat(folder)
	if err != nil {
		return 0, err
	}
	if !info.IsDir() {
		return 1, os.Chmod(folder, mode)
	}
	t, err := openTree(folder)
	if err != nil {
		return 0, err
	}
	defer t.close()
	c := chmodder{ctx: ctx, tree: t, mode: mode}
	err = c.folder(".")
	return c.changed, err
}

// chmodder changes permissions and counts.
type chmodder struct {
	ctx  context.Context
	tree *tree
	mode fs.FileMode

	entries int
	changed int64
}

func (c *chmodder) folder(name string) error {
	names, err := c.tree.readDir(name)
	if err != nil {
		return fileError(c.tree.path(name), err)
	}
	for _, e := range names {
		switch c.entries++; {
		case c.ctx.Err() != nil:
			return c.ctx.Err()
		case c.entries > maxEntries:
			return connect.NewError(connect.CodeResourceExhausted, errTooMany)
		case e.IsDir():
			err = c.folder(path.Join(name, e.Name()))
		case e.Type().IsRegular():
			err = c.change(path.Join(name, e.Name()))
		}
		if err != nil {
			return err
		}
	}
	return c.change(name)
}

// change changes the file at name by a descriptor. A file that its owner may not
// read cannot be opened. It is changed by name: the caller is its owner then, who
// gains nothing by a link.
func (c *chmodder) change(name string) error {
	f, err := c.tree.open(name, os.O_RDONLY, 0)
	if err == nil {
		err = f.Chmod(c.mode)
		f.Close()
	} else if errors.Is(err, fs.ErrPermission) {
		var dir int
		var base string
		if dir, base, err = c.tree.at(name, false); err == nil {
			err = unix.Fchmodat(dir, base, Bits(c.mode), 0)
		}
	}
	if err == nil {
		c.changed++
	}
	return fileError(c.tree.path(name), err)
}

// Bits converts Go's mode to the kernel's bits.
func Bits(m fs.FileMode) uint32 {
	b := uint32(m.Perm())
	for bit, flag := range special {
		if m&flag != 0 {
			b |= bit
		}
	}
	return b
}

// special are the bits that differ between Go and the kernel.
var special = map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky}

// fileMode converts the kernel's bits to Go's mode.
func fileMode(bits uint32) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	for bit, flag := range special {
		if bits&bit != 0 {
			m |= flag
		}
	}
	return m
}
