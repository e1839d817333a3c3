package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

func (t *transfer) upload(ctx context.Context, from, to place, done *copied) error {
	if from.stream() {
		return t.uploadStream(ctx, to, done)
	}
	info, err := os.Stat(from.path)
	if err != nil {
		return err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a directory", from)
	}
	target := to.path
	if !info.IsDir() || !from.contents() {
		isDir, err := t.remoteDir(ctx, to)
		if err != nil {
			return err
		}
		name, err := filepath.Abs(from.path)
		if err != nil {
			return err
		}
		if target, err = t.within(to, filepath.Base(name), isDir); err != nil {
			return err
		}
	}
	done.Destination = place{to.sandbox, target}.String()
	if info.IsDir() {
		return t.uploadDir(ctx, from.path, place{to.sandbox, target}, done)
	}
	return t.uploadFile(ctx, from.path, place{to.sandbox, target}, done)
}

func (t *transfer) uploadStream(ctx context.Context, to place, done *copied) error {
	isDir, err := t.remoteDir(ctx, to)
	if err != nil {
		return err
	}
	if _, err := t.within(to, "", isDir); err != nil {
		return err
	}
	p := t.progress(to.String(), -1)
	defer p.stop()
	_, err = t.client.WriteFile(ctx, to.sandbox, to.path, p.reader(t.stdin), -1)
	done.Files, done.Bytes = 1, p.bytes()
	return err
}

// uploadFile copies a file with its permissions.
func (t *transfer) uploadFile(ctx context.Context, from string, to place, done *copied) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	p := t.progress(from, info.Size())
	defer p.stop()
	e, err := t.client.WriteFile(ctx, to.sandbox, to.path, p.reader(f), info.Size())
	if err != nil {
		return err
	}
	done.Files, done.Bytes = 1, p.bytes()
	mode := octal(info.Mode())
	if had, err := strconv.ParseUint(e.Mode, 8, 32); err == nil && uint64(info.Mode().Perm()) == had {
		return nil
	}
	if err := t.client.Chmod(ctx, to.sandbox, to.path, mode); err != nil {
		return fmt.Errorf("%s is copied, but does not have the permissions %s: %w", to, mode, err)
	}
	return nil
}

func octal(mode fs.FileMode) string { return fmt.Sprintf("%04o", mode.Perm()) }

// uploadDir copies the content of a directory.
func (t *transfer) uploadDir(ctx context.Context, from string, to place, done *copied) error {
	p := t.progress(from, -1)
	defer p.stop()
	read, write := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(ctx, write, from, p, done)
		write.CloseWithError(err)
		packed <- err
	}()
	_, err := t.client.WriteArchive(ctx, to.sandbox, to.path, read)
	read.CloseWithError(errRefused) // if the server did not want all of it
	if here := <-packed; here != nil && !errors.Is(here, errRefused) && !errors.Is(here, io.ErrClosedPipe) && ctx.Err() == nil {
		return here
	}
	return err
}

var errRefused = errors.New("the server accepts no more data")

// pack writes the content of a directory as a tar, and counts it. It returns the
// error of w when its reader is gone.
func pack(ctx context.Context, w io.Writer, from string, p *progress, done *copied) error {
	from = filepath.Clean(from) + string(filepath.Separator) // a link to a directory is followed
	archive := tar.NewWriter(w)
	err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		below, err := filepath.Rel(from, name)
		if err != nil || below == "." {
			return err
		}
		return packOne(archive, name, below, d, p, done)
	})
	if err != nil {
		return err
	}
	return archive.Close()
}

func packOne(archive *tar.Writer, name, below string, d fs.DirEntry, p *progress, done *copied) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: filepath.ToSlash(below), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		done.Directories++
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(name); err != nil {
			return err
		}
		done.Links++
	case info.Mode().IsRegular():
		done.Files++
		return packFile(archive, name, h, p, done)
	default:
		done.Skipped++
		return nil
	}
	return archive.WriteHeader(h)
}

func packFile(archive *tar.Writer, name string, h *tar.Header, p *progress, done *copied) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := archive.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(archive, p.reader(io.LimitReader(f, h.Size)))
	done.Bytes += n
	if err == nil && n < h.Size {
		return fmt.Errorf("%s became shorter while it was copied: try again", name)
	}
	return err
}
