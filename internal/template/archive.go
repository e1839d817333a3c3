package template

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// tarFolder writes a folder to w with owners, modes and times. Links are kept as
// links and lead nowhere here; devices, pipes and sockets are left out.
func tarFolder(dir string, w io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	out := tar.NewWriter(w)
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		return tarEntry(root, out, name)
	})
	if err != nil {
		return err
	}
	return out.Close()
}

func tarEntry(root *os.Root, out *tar.Writer, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	target := ""
	switch {
	case info.IsDir(), info.Mode().IsRegular():
	case info.Mode()&fs.ModeSymlink != 0:
		if target, err = root.Readlink(name); err != nil {
			return err
		}
	default:
		return nil
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname = name, "", ""
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	if err := out.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if n, err := io.CopyN(out, f, h.Size); err != nil {
		return fmt.Errorf("%s changed while it was read, at byte %d: %w", name, n, err)
	}
	return nil
}
