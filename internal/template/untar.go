package template

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Bounds of an unpacked image: far above useful ones, they stop an endless archive.
const (
	maxTreeBytes   = 64 << 30
	maxTreeEntries = 4 << 20
)

// untar unpacks r into t with owners, modes and times. Devices, pipes, sockets and
// extended attributes are skipped. It calls each with the number of entries so far. An
// entry that leads out of t, or a broken archive, is Invalid; more than most bytes are
// TooLarge.
func untar(t tree, r io.Reader, most int64, each func(entries int)) error {
	return untarFrom(t, tar.NewReader(r), most, each)
}

func untarFrom(t tree, archive *tar.Reader, most int64, each func(entries int)) error {
	size := int64(0)
	body := &roomy{r: archive, tree: t}
	for n := 1; ; n++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return badArchive(err)
		}
		if size += h.Size; size > most || n > maxTreeEntries {
			return sandbox.Errorf(sandbox.TooLarge, "the image unpacks to more than %d GiB or %d files", most>>30, maxTreeEntries)
		}
		if err := untarEntry(t, h, body); err != nil {
			return err
		}
		each(n)
	}
}

func untarEntry(t tree, h *tar.Header, body io.Reader) error {
	name, ok := cleanName(h.Name)
	if !ok {
		if name == "." {
			return nil // the root folder exists
		}
		return sandbox.Errorf(sandbox.Invalid, "the image holds %q, which leads out of it", h.Name)
	}
	if err := t.makeFolder(path.Dir(name), 0o755, 0); err != nil {
		return badEntry(name, err)
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = untarFolder(t, name, h)
	case tar.TypeReg:
		err = untarFile(t, name, h, body)
	case tar.TypeSymlink:
		err = errors.Join(t.RemoveAll(name), t.Symlink(h.Linkname, name), t.Lchown(name, h.Uid, h.Gid))
	case tar.TypeLink:
		target, ok := cleanName(h.Linkname)
		if !ok {
			return sandbox.Errorf(sandbox.Invalid, "the image links %q to %q, which leads out of it", h.Name, h.Linkname)
		}
		err = errors.Join(t.RemoveAll(name), t.Link(target, name))
	}
	if err != nil {
		return badEntry(name, err)
	}
	return nil
}

const (
	minRoom  = 1 << 30  // bytes of disk that must stay free
	roomStep = 64 << 20 // bytes between two checks
)

// roomy passes on a file's bytes while the tree's disk has room. All Sandboxes share this
// disk.
type roomy struct {
	r    io.Reader
	tree tree
	left int64 // bytes until the next check
}

func (m *roomy) Read(p []byte) (int, error) {
	if m.left <= 0 {
		var st unix.Statfs_t
		if err := unix.Statfs(m.tree.Name(), &st); err != nil {
			return 0, fmt.Errorf("look at the disk: %w", err)
		}
		if int64(st.Bavail)*st.Bsize < minRoom {
			return 0, sandbox.Errorf(sandbox.Exhausted, "the server's disk is too full to unpack it")
		}
		m.left = roomStep
	}
	n, err := m.r.Read(p)
	m.left -= int64(n)
	return n, err
}

// badArchive returns Invalid for a broken or truncated archive.
func badArchive(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return sandbox.Errorf(sandbox.Invalid, "the archive is broken, or is not a tar archive").WithCause(err)
	}
	return fmt.Errorf("unpack image: %w", err)
}

func badEntry(name string, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return badArchive(err)
	}
	return fmt.Errorf("unpack %s: %w", name, err)
}

func untarFolder(t tree, name string, h *tar.Header) error {
	if info, err := t.Lstat(name); err == nil && !info.IsDir() {
		if err := t.RemoveAll(name); err != nil {
			return err
		}
	}
	if err := t.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(t.Chown(name, h.Uid, h.Gid), t.Chmod(name, modeOf(h)))
}

func untarFile(t tree, name string, h *tar.Header, body io.Reader) error {
	if err := t.RemoveAll(name); err != nil {
		return err
	}
	f, err := t.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body)
	return errors.Join(err, f.Chown(h.Uid, h.Gid), f.Chmod(modeOf(h)), f.Close(),
		t.Chtimes(name, h.ModTime, h.ModTime))
}

// modeOf returns the permissions and the setuid, setgid and sticky bits.
func modeOf(h *tar.Header) fs.FileMode {
	const kept = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	return h.FileInfo().Mode() & kept
}
