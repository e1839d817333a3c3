package cli

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// limit is the most bytes that a copy reads from a sandbox.
func (t *transfer) limit() int64 { return int64(t.options.maxGiB * (1 << 30)) }

func (t *transfer) download(ctx context.Context, from, to place, done *copied) error {
	e, err := t.client.Stat(ctx, from.sandbox, from.path)
	if err != nil {
		return err
	}
	isDir := e.Type == "directory"
	if e.Type == "symlink" {
		if isDir, err = t.remoteDir(ctx, from); err != nil {
			return err
		}
	}
	if to.stream() {
		if isDir {
			return usagef("%s is a directory: name a local directory in place of -", from)
		}
		return t.downloadStream(ctx, from, done)
	}
	target := to.path
	if !isDir || !from.contents() {
		if target, err = t.within(to, path.Base(path.Clean(from.path)), localDir(to.path)); err != nil {
			return err
		}
	}
	done.Destination = target
	if isDir {
		return t.downloadDir(ctx, from, target, done)
	}
	return t.downloadFile(ctx, from, target, e, done)
}

func (t *transfer) downloadStream(ctx context.Context, from place, done *copied) error {
	content, size, err := t.open(ctx, from)
	if err != nil {
		return err
	}
	defer content.Close()
	p := t.progress(from.String(), size)
	defer p.stop()
	done.Files = 1
	done.Bytes, err = io.Copy(t.stdout, p.reader(content))
	return err
}

// open reads a file of a sandbox, which must not be larger than the limit.
func (t *transfer) open(ctx context.Context, from place) (io.ReadCloser, int64, error) {
	content, size, err := t.client.ReadFile(ctx, from.sandbox, from.path)
	if err != nil {
		return nil, 0, err
	}
	if size > t.limit() {
		content.Close()
		return nil, 0, t.tooMuch()
	}
	return &bounded{content, t.limit(), t.tooMuch}, size, nil
}

func (t *transfer) tooMuch() error {
	return fmt.Errorf("the sandbox sends more than %v GiB: raise the limit with --max-gib", t.options.maxGiB)
}

// bounded is content of at most left bytes.
type bounded struct {
	io.ReadCloser
	left    int64
	tooMuch func() error
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, b.tooMuch()
	}
	return n, err
}

// downloadFile writes a file whole or not at all, unless to exists and is not a
// regular file.
func (t *transfer) downloadFile(ctx context.Context, from place, to string, e v1.File, done *copied) error {
	content, size, err := t.open(ctx, from)
	if err != nil {
		return err
	}
	defer content.Close()
	p := t.progress(from.String(), size)
	defer p.stop()
	done.Files = 1
	if info, err := os.Stat(to); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(to, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		done.Bytes, err = io.Copy(f, p.reader(content))
		return err
	}
	done.Bytes, err = replaceFile(to, modeOf(e), p.reader(content))
	return err
}

// modeOf returns the local permissions for a file of a sandbox.
func modeOf(e v1.File) fs.FileMode {
	n, err := strconv.ParseUint(e.Mode, 8, 32)
	if err != nil || e.Type != "file" {
		return 0o644
	}
	return fs.FileMode(n) & fs.ModePerm
}

// replaceFile replaces the file to with content, once all of it has arrived.
func replaceFile(to string, mode fs.FileMode, content io.Reader) (n int64, err error) {
	if target, err := filepath.EvalSymlinks(to); err == nil {
		to = target
	}
	if !localDir(filepath.Dir(to)) {
		return 0, fmt.Errorf("no local directory %s", filepath.Dir(to))
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".cloud-sandbox-*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if n, err = io.Copy(f, content); err != nil {
		return n, err
	}
	if err = f.Chmod(mode); err != nil {
		return n, err
	}
	if err = f.Close(); err != nil {
		return n, err
	}
	return n, os.Rename(f.Name(), to)
}

func (t *transfer) downloadDir(ctx context.Context, from place, to string, done *copied) error {
	if info, err := os.Stat(to); err == nil && !info.IsDir() {
		return sandbox.Errorf(sandbox.Conflict, "%s is a local file, and %s is a directory", to, from)
	}
	content, err := t.client.ReadArchive(ctx, from.sandbox, from.path)
	if err != nil {
		return err
	}
	defer content.Close()
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	p := t.progress(from.String(), -1)
	defer p.stop()
	u := unpacker{folder: to, allLinks: t.options.allLinks, done: done}
	return u.all(p.reader(&bounded{content, t.limit(), t.tooMuch}))
}
