package template

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Bounds of an image that is unpacked: far beyond useful ones, but they end an
// archive that never ends.
const (
	maxTreeBytes   = 64 << 30
	maxTreeEntries = 4 << 20
)

// untar unpacks r into t with owners, modes and times. Devices, pipes and
// sockets are left out, and so are extended attributes. It calls each with the
// number of entries so far. An entry that leads out of t is Invalid.
func untar(t tree, r io.Reader, each func(entries int)) error {
	archive, size := tar.NewReader(r), int64(0)
	for n := 1; ; n++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unpack image: %w", err)
		}
		if size += h.Size; size > maxTreeBytes || n > maxTreeEntries {
			return sandbox.Errorf(sandbox.TooLarge, "the image unpacks to more than %d GiB or %d files", maxTreeBytes>>30, maxTreeEntries)
		}
		if err := untarEntry(t, h, archive); err != nil {
			return err
		}
		each(n)
	}
}

func untarEntry(t tree, h *tar.Header, body io.Reader) error {
	name, ok := cleanName(h.Name)
	if !ok {
		if name == "." {
			return nil // the root folder: it is there
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

func badEntry(name string, err error) error { return fmt.Errorf("unpack %s: %w", name, err) }

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

// modeOf keeps permissions and the setuid, setgid and sticky bits.
func modeOf(h *tar.Header) fs.FileMode {
	const kept = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	return h.FileInfo().Mode() & kept
}
