package template

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// lockPoll is the polling interval of a waiting builder, because flock cannot be
// interrupted when ctx ends.
const lockPoll = 200 * time.Millisecond

// lock waits for the exclusive lock of name. waiting is called once if another builder
// holds it. The lock ends with release or with the process.
func (s *Store) lock(ctx context.Context, name string, waiting func()) (release func(), err error) {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for tries := 0; ; tries++ {
		f, err := s.tryLock(name)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("lock template: %w", err)
		}
		if tries == 1 { // the first refusal may be a short check by a reader
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// tryLock takes the lock of name, or returns EWOULDBLOCK.
func (s *Store) tryLock(name string) (*os.File, error) {
	path := s.path("locks", name+".lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Chmod(0o644), unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)); err != nil { // readers open it, despite the umask
		f.Close()
		return nil, err
	}
	mine, err := f.Stat()
	if there, statErr := os.Stat(path); err != nil || statErr != nil || !os.SameFile(mine, there) {
		f.Close() // the previous holder removed it
		return nil, errors.Join(err, unix.EWOULDBLOCK)
	}
	return f, nil
}

// forgetLock removes the file of a held lock: otherwise names invented by Tenants would
// accumulate.
func (s *Store) forgetLock(name string) error { return os.Remove(s.path("locks", name+".lock")) }

// LockBuilds waits for the exclusive right to keep the records in Builds. waiting is
// called once if another builder has it. The lock ends with release or with the process.
func (s *Store) LockBuilds(ctx context.Context, waiting func()) (release func(), err error) {
	if err := s.makeFolders(); err != nil {
		return nil, err
	}
	return s.lock(ctx, ".builds", waiting)
}

// lockImages keeps a new image from being removed before its ref is written.
func (s *Store) lockImages() (release func(), err error) {
	f, err := os.OpenFile(s.path("locks", ".images.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the images: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock the images: %w", err)
		}
	}
}

// building reports whether a builder holds the lock of name.
func (s *Store) building(name string) bool {
	f, err := os.Open(s.path("locks", name+".lock"))
	if err != nil {
		return false
	}
	defer f.Close() // ends the shared lock
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	return errors.Is(err, unix.EWOULDBLOCK)
}

// savedLimit bounds the lookup of Snapshots that need an image, which blocks all other
// builds and removals.
const savedLimit = 30 * time.Second

// unused claims an image of an owner's Template for removal: until release, no Boot
// starts from it. Conflict when Boots run from it, which hold a shared lock of its file,
// or a Snapshot of any Tenant needs it. A Boot is saved before it ends, so one of the two
// is always seen.
func (s *Store) unused(l Listed) (release func(), err error) {
	release, err = s.images().Claim(l.Image.Digest)
	if errors.Is(err, sandbox.Conflict) {
		return nil, runsFrom(l)
	}
	if err != nil {
		return nil, err
	}
	if err := s.unsaved(l); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

func runsFrom(l Listed) error {
	return sandbox.Errorf(sandbox.Conflict, "sandboxes run from version %s of the template %s: end them first", l.Image.Digest[:12], l.Name)
}

// unsaved returns Conflict when a Snapshot needs an image, or a Sandbox on another host
// has it. The error names the Snapshot
// if it is the owner's, or the owner is the operator. Unavailable when the lookup fails.
func (s *Store) unsaved(l Listed) error {
	if s.saved == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), savedLimit)
	defer cancel()
	snap, err := s.saved(ctx, l.Image.Digest)
	switch {
	case errors.Is(err, sandbox.NotFound):
		return nil
	case err != nil:
		return sandbox.Errorf(sandbox.Unavailable, "it is not known at the moment whether saved sessions need version %s of the template %s, so it stays: try again",
			l.Image.Digest[:12], l.Name).WithCause(err)
	case snap.ID == "":
		return runsFrom(l)
	case l.Owner != "" && l.Owner != snap.Tenant:
		return sandbox.Errorf(sandbox.Conflict, "saved sessions need version %s of the template %s, so it stays", l.Image.Digest[:12], l.Name)
	}
	return sandbox.Errorf(sandbox.Conflict, "the snapshot %s of the session %s, which may be paused in it, needs version %s of the template %s: delete all that is saved from it first",
		snap.ID, snap.SandboxID, l.Image.Digest[:12], l.Name)
}
