// Package uploadlimit bounds uploads to the disk that all Sandboxes share.
package uploadlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Bounds limit an upload into a file.
type Bounds struct {
	Subject string // the upload in errors, such as "an archive"
	Most    int64  // maximum size in bytes
	Leave   int64  // bytes of disk that must stay free
}

// LookEvery is how many bytes are written between checks of the disk.
const LookEvery = 16 << 20

// Check returns Exhausted when the disk of f is too full.
func (b Bounds) Check(f *os.File) error {
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &disk); err != nil {
		return fmt.Errorf("look at the disk: %w", err)
	}
	if int64(disk.Bavail)*disk.Bsize < b.Leave {
		return b.full()
	}
	return nil
}

func (b Bounds) full() *sandbox.Error {
	return sandbox.Errorf(sandbox.Exhausted, "the server has no room for %s", b.Subject)
}

// Explain returns Exhausted for the error of a full disk, and other errors unchanged.
func (b Bounds) Explain(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return b.full().WithCause(err)
	}
	return err
}

// Receive copies an upload into f. It returns TooLarge beyond Most, and Exhausted when
// the disk becomes too full.
func (b Bounds) Receive(ctx context.Context, f *os.File, sent io.Reader) error {
	for total := int64(0); ; {
		if err := b.Check(f); err != nil {
			return err
		}
		n, err := io.CopyN(f, sent, LookEvery)
		total += n
		switch {
		case total > b.Most:
			return sandbox.Errorf(sandbox.TooLarge, "%s may have at most %d GiB", b.Subject, b.Most>>30)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return b.Explain(fmt.Errorf("receive %s: %w", b.Subject, err))
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}
