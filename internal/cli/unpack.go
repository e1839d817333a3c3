package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Bounds of an archive that a sandbox sends.
const (
	maxEntries  = 1_000_000
	maxNameSize = 4096 // bytes
)

// unpacker writes an untrusted tar into a folder and nowhere else. It follows no
// symbolic link below the folder, whether from the archive or there before.
type unpacker struct {
	folder   string
	allLinks bool // also links that point outside the folder
	done     *copied

	root    *os.Root
	entries int
	safe    map[string]bool // directories that are no links
	finish  []tar.Header    // of directories, which may be read-only at the end
}

// all unpacks the archive. When it fails, the entries unpacked before remain.
func (u *unpacker) all(in io.Reader) (err error) {
	if u.root, err = os.OpenRoot(u.folder); err != nil {
		return err
	}
	defer u.root.Close()
	u.safe = map[string]bool{".": true}
	archive := tar.NewReader(in)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return u.finishDirs()
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are checked here
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := u.entry(h, archive); err != nil {
			return err
		}
	}
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if u.entries++; u.entries > maxEntries {
		return fmt.Errorf("the archive holds more than %d files", maxEntries)
	}
	name := path.Clean(strings.TrimRight(h.Name, "/"))
	if len(name) > maxNameSize || strings.ContainsRune(name, 0) || !filepath.IsLocal(name) {
		return fmt.Errorf("the archive holds %.100q, which is not within the directory: it stops there", h.Name)
	}
	if name == "." {
		return nil
	}
	h.Name = name
	switch h.Typeflag {
	case tar.TypeDir:
		u.done.Directories++
		u.finish = append(u.finish, tar.Header{Name: name, Mode: h.Mode, ModTime: h.ModTime})
		return u.mkdir(name)
	case tar.TypeReg:
		return u.file(h, content)
	case tar.TypeSymlink:
		return u.link(h)
	}
	u.done.Skipped++
	return nil
}

// mkdir makes a directory and its parents, none of which may be a link.
func (u *unpacker) mkdir(name string) error {
	if u.safe[name] {
		return nil
	}
	if err := u.mkdir(path.Dir(name)); err != nil {
		return err
	}
	if err := u.root.Mkdir(name, 0o777); err != nil {
		info, there := u.root.Lstat(name)
		if there != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is not a local directory, and nothing is written through it", filepath.Join(u.folder, name))
		}
	}
	u.safe[name] = true
	return nil
}

// clear makes way for an entry that is not a directory.
func (u *unpacker) clear(name string) error {
	if err := u.mkdir(path.Dir(name)); err != nil {
		return err
	}
	info, err := u.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory on this machine, and not in the sandbox", filepath.Join(u.folder, name))
	}
	return u.root.Remove(name)
}

func (u *unpacker) file(h *tar.Header, content io.Reader) error {
	if err := u.clear(h.Name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, content)
	err = errors.Join(err, f.Chmod(fs.FileMode(h.Mode)&fs.ModePerm), f.Close())
	if err != nil {
		return errors.Join(err, u.root.Remove(h.Name)) // do not keep a partial file
	}
	u.done.Files++
	u.done.Bytes += n
	return u.times(h)
}

// times sets a file's modification time, if it is valid for files.
func (u *unpacker) times(h *tar.Header) error {
	if y := h.ModTime.Year(); y < 1970 || y > 2200 {
		return nil
	}
	return u.root.Chtimes(h.Name, time.Time{}, h.ModTime)
}

func (u *unpacker) link(h *tar.Header) error {
	if !u.allLinks && !stays(h.Name, h.Linkname) || h.Linkname == "" || len(h.Linkname) > maxNameSize {
		u.done.Skipped++
		return nil
	}
	if err := u.clear(h.Name); err != nil {
		return err
	}
	if err := u.root.Symlink(h.Linkname, h.Name); err != nil {
		return err
	}
	u.done.Links++
	return nil
}

// stays reports whether a link points inside the folder. ".." is allowed only at its
// beginning, where it passes through directories and not through other links.
func stays(name, target string) bool {
	parts := strings.Split(target, "/")
	down := false
	for _, part := range parts {
		if part == ".." && down {
			return false
		}
		down = down || part != ".." && part != "." && part != ""
	}
	return !path.IsAbs(target) && filepath.IsLocal(path.Join(path.Dir(name), target))
}

// finishDirs gives directories their permissions and times, inner ones first.
func (u *unpacker) finishDirs() error {
	for i := len(u.finish) - 1; i >= 0; i-- {
		h := &u.finish[i]
		if err := u.times(h); err != nil {
			return err
		}
		if err := u.root.Chmod(h.Name, fs.FileMode(h.Mode)&fs.ModePerm); err != nil {
			return err
		}
	}
	return nil
}
