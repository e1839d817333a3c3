package template

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/klauspost/compress/zstd"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// decompressed reads gzip and zstd as what is in them, and other bytes as they
// are.
func decompressed(r io.Reader) (io.Reader, error) {
	const window = 64 << 20 // bounds what a zstd frame may ask for
	buffered := bufio.NewReaderSize(r, 64<<10)
	head, _ := buffered.Peek(4) // a shorter archive is refused later
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "the archive is not whole").WithCause(err)
		}
		return compressed{z}, nil
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(window), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "the archive is not whole").WithCause(err)
		}
		return compressed{z.IOReadCloser()}, nil
	}
	return buffered, nil
}

// compressed blames what cannot be decompressed on whoever sent it.
type compressed struct{ io.Reader }

func (c compressed) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = sandbox.Errorf(sandbox.Invalid, "the archive cannot be decompressed").WithCause(err)
	}
	return n, err
}

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
