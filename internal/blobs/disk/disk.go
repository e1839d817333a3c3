// Package disk keeps blobs as files in a folder: another disk, or a mounted
// network file system.
package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
)

// Blobs is a folder of blobs. A blob is written to a temporary file and renamed, so
// that it appears whole or not at all.
type Blobs struct{ dir string }

// Open returns the blobs below dir, an absolute path. Nothing is made before a
// blob is put.
func Open(dir string) *Blobs { return &Blobs{dir} }

func (b *Blobs) path(ctx context.Context, name string) (string, error) {
	if err := sandbox.CheckBlobName(name); err != nil {
		return "", err
	}
	return filepath.Join(b.dir, filepath.FromSlash(name)), ctx.Err()
}

// Probe implements sandbox.Blobs.
func (b *Blobs) Probe(context.Context) error {
	f, err := os.CreateTemp(b.dir, durable.Aside)
	if errors.Is(err, fs.ErrNotExist) {
		return sandbox.Errorf(sandbox.NotFound, "the folder for blobs does not exist").WithCause(err)
	}
	if err != nil {
		return b.failed("keep anything", err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Put implements sandbox.Blobs.
func (b *Blobs) Put(ctx context.Context, name string, content []byte) error {
	if err := sandbox.CheckBlob(name, content); err != nil {
		return err
	}
	path, err := b.path(ctx, name)
	if err != nil {
		return err
	}
	if err := b.makeFolder(filepath.Dir(path)); err != nil {
		return b.failed("make a folder", err)
	}
	if err := durable.Write(path, content, 0o600); err != nil {
		return b.failed("write a blob", err)
	}
	return nil
}

// makeFolder makes a folder below dir with its parents, and makes their names
// durable.
func (b *Blobs) makeFolder(dir string) error {
	if _, err := os.Stat(dir); err == nil || dir == b.dir {
		return err
	}
	if err := b.makeFolder(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return b.sync(filepath.Dir(dir))
}

func (b *Blobs) sync(dir string) error {
	if err := durable.Folder(dir); err != nil {
		return b.failed("sync a folder", err)
	}
	return nil
}

// Get implements sandbox.Blobs.
func (b *Blobs) Get(ctx context.Context, name string) ([]byte, error) {
	path, err := b.path(ctx, name)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, b.failed("open a blob", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, sandbox.MaxBlob+1))
	if err == nil && len(content) > sandbox.MaxBlob {
		err = fmt.Errorf("%s has more than %d bytes", name, sandbox.MaxBlob)
	}
	if err != nil {
		return nil, b.failed("read a blob", err)
	}
	return content, ctx.Err()
}

// Size implements sandbox.Blobs.
func (b *Blobs) Size(ctx context.Context, name string) (int64, error) {
	path, err := b.path(ctx, name)
	if err != nil {
		return 0, err
	}
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return 0, b.failed("look at a blob", err)
	}
	return info.Size(), nil
}

// Delete implements sandbox.Blobs. Folders that it leaves empty stay.
func (b *Blobs) Delete(ctx context.Context, name string) error {
	path, err := b.path(ctx, name)
	if err != nil {
		return err
	}
	switch err := os.Remove(path); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		// A missing root folder is an error, not an empty one.
		if _, err := os.Stat(b.dir); err != nil {
			return b.failed("find the folder", err)
		}
		return nil
	case err != nil:
		return b.failed("delete a blob", err)
	}
	return b.sync(filepath.Dir(path))
}

// failed gives an error its Code. A missing folder, perhaps on a disk that is not
// mounted, does not mean that its blobs are gone.
func (b *Blobs) failed(doing string, err error) error {
	if _, dirErr := os.Stat(b.dir); dirErr != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the folder for blobs cannot be reached").WithCause(dirErr)
	}
	err = fmt.Errorf("%s: %w", doing, err)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR):
		return sandbox.Errorf(sandbox.NotFound, "no such blob").WithCause(err)
	case errors.Is(err, fs.ErrPermission):
		return sandbox.Errorf(sandbox.Denied, "the server may not use the folder for blobs").WithCause(err)
	}
	return sandbox.Errorf(sandbox.Unavailable, "blobs cannot be stored").WithCause(err)
}
