// Package images stores the root images of Templates in a folder: read-only files, named
// by their digests, that sentries map.
//
// An image is DIGEST.erofs. An image that was made from another one needs little space of
// its own: DIGEST.delta describes it as blocks of that base and a few new blocks. Its
// whole file is then a cache entry, which Open creates and Evict removes:
// expanded/BOOT/DIGEST.erofs. BOOT is the boot ID of the machine, because such a file is
// not synced and is not valid after a crash of the machine.
//
// File locks (flock(2)) synchronize processes. A user of an image holds a shared lock of
// its whole file, in the descriptor that the sentry gets, and so for the life of the
// sentry. Expanding a delta holds a shared lock of the delta. Removing an image, or
// evicting its whole file, holds exclusive locks of all its files.
package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
)

const (
	wholeSuffix = ".erofs"
	deltaSuffix = ".delta"
	// tempPattern names incomplete files; Evict removes those left by a killed process.
	tempPattern = ".expanding-*"
	// expandedFolder has a folder for each boot of the machine.
	expandedFolder = "expanded"
	bootIDFile     = "/proc/sys/kernel/random/boot_id"
)

// minFree is the free disk space that expanding an image must leave, in bytes.
const minFree = 1 << 30

// Folder is a folder of images. Its methods are safe for concurrent use, also by several
// processes. Digests are 64 lower-case hex digits, checked by the caller.
type Folder string

// Path returns the path of the permanent whole file, which may not exist.
func (f Folder) Path(digest string) string { return filepath.Join(string(f), digest+wholeSuffix) }

// cache returns the folder of the whole files that Open creates.
var cache = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	return filepath.Join(expandedFolder, strings.TrimSpace(string(id))), nil
})

// expanded returns the path of the whole file that Open creates from a delta.
func (f Folder) expanded(digest string) (string, error) {
	dir, err := cache()
	return filepath.Join(string(f), dir, digest+wholeSuffix), err
}

// wholes returns the possible paths of a whole file.
func (f Folder) wholes(digest string) ([]string, error) {
	path, err := f.expanded(digest)
	return []string{f.Path(digest), path}, err
}

func (f Folder) delta(digest string) string { return filepath.Join(string(f), digest+deltaSuffix) }

// Has reports whether an image exists, whole or as a delta.
func (f Folder) Has(digest string) bool {
	for _, path := range []string{f.Path(digest), f.delta(digest)} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}

// Stored returns the permanent disk use of an image in bytes: of its delta, or else of
// the whole file. NotFound for a missing image.
func (f Folder) Stored(digest string) (int64, error) {
	for _, path := range []string{f.delta(digest), f.Path(digest)} {
		var st unix.Stat_t
		switch err := unix.Stat(path, &st); {
		case err == nil:
			return st.Blocks * 512, nil // stat(2) counts 512-byte units on all file systems
		case !errors.Is(err, fs.ErrNotExist):
			return 0, fmt.Errorf("look at an image: %w", err)
		}
	}
	return 0, noImage(digest)
}

// Size returns the size of the whole image in bytes; NotFound for a missing image.
func (f Folder) Size(digest string) (int64, error) {
	head, err := readHeadAt(f.delta(digest))
	if err == nil {
		return head.Size, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("read the delta %s: %w", digest, err)
	}
	info, err := os.Stat(f.Path(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, noImage(digest)
	}
	if err != nil {
		return 0, fmt.Errorf("look at an image: %w", err)
	}
	return info.Size(), nil
}

func noImage(digest string) error {
	return sandbox.Errorf(sandbox.NotFound, "no image %s", digest)
}

// OpenWhole opens the whole file of an image, without a lock; NotFound if it does not
// exist.
func (f Folder) OpenWhole(digest string) (*os.File, error) {
	paths, err := f.wholes(digest)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		file, err := os.Open(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return file, err
		}
	}
	return nil, noImage(digest)
}

// Open opens the whole file of an image with a shared lock, and first expands it if there
// is only a delta. NotFound when the image is missing or being removed; Exhausted when
// the disk is too full.
func (f Folder) Open(ctx context.Context, digest string) (*os.File, error) {
	for {
		file, again, err := f.open(ctx, digest)
		if !again {
			return file, err
		}
	}
}

// OpenToCopy opens the whole file of an image like Open, but leaves it without a lock. The
// image may be removed while it is read: the open file keeps its content.
func (f Folder) OpenToCopy(ctx context.Context, digest string) (*os.File, error) {
	file, err := f.OpenWhole(digest)
	if !errors.Is(err, sandbox.NotFound) {
		return file, err
	}
	if file, err = f.Open(ctx, digest); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_UN); err != nil {
		file.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	return file, nil
}

// open makes one attempt; again: the files changed meanwhile.
func (f Folder) open(ctx context.Context, digest string) (_ *os.File, again bool, err error) {
	d, err := os.Open(f.delta(digest))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d = nil
	case err != nil:
		return nil, false, fmt.Errorf("open a delta: %w", err)
	default:
		defer d.Close() // and its lock
		if err := f.await(ctx, d, digest); err != nil {
			return nil, false, err
		}
	}
	file, err := f.OpenWhole(digest)
	if d != nil && errors.Is(err, sandbox.NotFound) {
		if err = f.expandOnce(ctx, digest); err == nil { // cannot be evicted while d is locked
			file, err = f.OpenWhole(digest)
		}
	}
	if err != nil {
		return nil, false, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil && isAt(file, file.Name()) {
		f.touch(file.Name(), digest)
		return file, false, nil
	}
	file.Close()
	switch {
	case err == nil:
		return nil, true, nil // evicted before it was locked
	case !errors.Is(err, unix.EWOULDBLOCK):
		return nil, false, os.NewSyscallError("flock", err)
	case d == nil && f.hasDelta(digest):
		return nil, true, nil // the delta was just created
	}
	return nil, false, beingRemoved(digest)
}

func (f Folder) hasDelta(digest string) bool {
	_, err := os.Stat(f.delta(digest))
	return err == nil
}

func beingRemoved(digest string) error {
	return sandbox.Errorf(sandbox.NotFound, "the image %s is being removed", digest)
}

// await takes a shared lock of a delta. An eviction holds the exclusive lock only
// briefly. A removal holds it to its end, so await gives up then.
func (f Folder) await(ctx context.Context, d *os.File, digest string) error {
	const patience, look = time.Second, 5 * time.Millisecond
	for end := time.Now().Add(patience); ; {
		err := unix.Flock(int(d.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		switch {
		case err == nil && isAt(d, f.delta(digest)):
			return nil
		case err == nil, time.Now().After(end):
			return beingRemoved(digest)
		case !errors.Is(err, unix.EWOULDBLOCK):
			return os.NewSyscallError("flock", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(look): // flock(2) has no timeout
		}
	}
}

// isAt reports whether an open file is the file at a path.
func isAt(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there)
}

// touch records the use of a whole file for Evict. A process without the right to do so
// starts nothing from the file.
func (f Folder) touch(path, digest string) {
	if f.hasDelta(digest) {
		_ = os.Chtimes(path, time.Time{}, time.Now())
	}
}

// expanding deduplicates expansions in this process, by the path of the delta.
var expanding singleflight.Group

// expandOnce creates the whole file of a delta, once for concurrent callers in this
// process. It continues after ctx ends, because other callers may wait.
func (f Folder) expandOnce(ctx context.Context, digest string) error {
	done := expanding.DoChan(f.delta(digest), func() (any, error) {
		d, err := os.Open(f.delta(digest))
		if err != nil {
			return nil, fmt.Errorf("open a delta: %w", err)
		}
		defer d.Close()
		if err := unix.Flock(int(d.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
			return nil, beingRemoved(digest)
		}
		return nil, f.expand(context.WithoutCancel(ctx), d, digest)
	})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case r := <-done:
		return r.Err
	}
}

// expand creates the whole file of a delta. If several processes do so at once, the first
// file stays; all are equal.
func (f Folder) expand(ctx context.Context, d *os.File, digest string) error {
	head, err := readHead(d)
	if err != nil {
		return fmt.Errorf("read the delta %s: %w", digest, err)
	}
	base, err := f.OpenWhole(head.Base) // a base is never a delta
	if err != nil {
		return fmt.Errorf("open the base of %s: %w", digest, err)
	}
	defer base.Close()
	path, err := f.expanded(digest)
	if err != nil {
		return err
	}
	const searchable = 0o755
	if err := os.MkdirAll(filepath.Dir(path), searchable); err != nil {
		return fmt.Errorf("expand an image: %w", err)
	}
	if err := f.roomFor(head.Size); err != nil {
		return err
	}
	out, err := f.newTemp()
	if err != nil {
		return fmt.Errorf("expand an image: %w", err)
	}
	defer os.Remove(out.Name())
	defer out.Close()
	if err := head.apply(ctx, d, base, out); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return f.full(head.Size)
		}
		return fmt.Errorf("expand the image %s: %w", digest, err)
	}
	const readable = 0o644
	if err := out.Chmod(readable); err != nil {
		return fmt.Errorf("expand an image: %w", err)
	}
	if err := os.Link(out.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("name an image: %w", err)
	}
	return nil
}

// newTemp creates an incomplete file with a shared lock, which tells Evict that its
// process is alive.
func (f Folder) newTemp() (*os.File, error) {
	for {
		file, err := os.CreateTemp(string(f), tempPattern)
		if err != nil {
			return nil, err
		}
		if unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil && isAt(file, file.Name()) {
			return file, nil
		}
		file.Close() // Evict removed it first
	}
}

func (f Folder) roomFor(bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(string(f), &st); err != nil {
		return fmt.Errorf("look at the disk: %w", err)
	}
	if int64(st.Bavail)*st.Bsize < bytes+minFree {
		return f.full(bytes)
	}
	return nil
}

func (f Folder) full(bytes int64) error {
	return sandbox.Errorf(sandbox.Exhausted, "the host disk has no room for an image of %d MiB: the operator of the server has to make some", bytes>>20)
}

// Receive stores the content of r as the image of a digest, and reads r to its end.
// bytes is the size of the image; Receive reserves it on the disk first. Invalid when r
// has another size or hash, Exhausted when the disk has no room. An error leaves no
// file. A killed process leaves a temporary file, which Evict removes. While lock is
// held no image is removed.
func (f Folder) Receive(ctx context.Context, digest string, bytes int64, r io.Reader, lock func() (release func(), err error)) error {
	out, err := f.newTemp()
	if err != nil {
		return fmt.Errorf("receive an image: %w", err)
	}
	defer os.Remove(out.Name()) // fails once it is renamed
	defer out.Close()
	if err := f.reserve(out, bytes); err != nil {
		return err
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, hash), io.LimitReader(r, bytes+1))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, unix.ENOSPC):
		return f.full(bytes)
	case err != nil:
		return fmt.Errorf("receive an image: %w", err)
	case n != bytes, hex.EncodeToString(hash.Sum(nil)) != digest:
		return sandbox.Errorf(sandbox.Invalid, "the image that came is not %s: its size or its hash differs", digest)
	}
	const readable = 0o644
	if err := errors.Join(out.Chmod(readable), out.Sync()); err != nil {
		return fmt.Errorf("receive an image: %w", err)
	}
	release, err := lock()
	if err != nil {
		return err
	}
	defer release()
	if f.Has(digest) { // it came another way meanwhile, and may be in use
		return nil
	}
	return durable.Rename(out.Name(), f.Path(digest))
}

// reserve allocates the disk space of a file, so that concurrent writes of other files
// cannot use it up.
func (f Folder) reserve(file *os.File, bytes int64) error {
	err := unix.Fallocate(int(file.Fd()), 0, 0, bytes)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP): // then the room is only checked
		return f.roomFor(bytes)
	case errors.Is(err, unix.ENOSPC):
		return f.full(bytes)
	case err != nil:
		return os.NewSyscallError("fallocate", err)
	}
	if f.roomFor(0) != nil {
		return f.full(bytes)
	}
	return nil
}

// List returns the digests of all images, sorted.
func (f Folder) List() ([]string, error) {
	found := map[string]bool{}
	for _, suffix := range []string{wholeSuffix, deltaSuffix} {
		paths, err := filepath.Glob(filepath.Join(string(f), "*"+suffix))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			found[strings.TrimSuffix(filepath.Base(path), suffix)] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// Claim locks an image for removal: until release, nothing can start from it. Conflict
// when it is in use. A missing image needs no lock.
func (f Folder) Claim(digest string) (release func(), err error) {
	var held []*os.File
	release = func() {
		for _, file := range held {
			_ = file.Close()
		}
	}
	paths, err := f.wholes(digest)
	if err != nil {
		return nil, err
	}
	for _, path := range append([]string{f.delta(digest)}, paths...) { // in the order of Open
		file, err := lockAlone(path)
		if err != nil {
			release()
			return nil, err
		}
		if file != nil {
			held = append(held, file)
		}
	}
	return release, nil
}

// lockAlone opens a file with an exclusive lock; nil when it is missing, Conflict when
// another lock is held.
func lockAlone(path string) (*os.File, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock an image: %w", err)
	}
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		file.Close()
		return nil, sandbox.Errorf(sandbox.Conflict, "the image is in use")
	case err != nil:
		file.Close()
		return nil, os.NewSyscallError("flock", err)
	}
	return file, nil
}

// Remove removes a claimed image. A missing image is no error.
func (f Folder) Remove(digest string) error {
	paths, err := f.wholes(digest)
	if err != nil {
		return err
	}
	for _, path := range append(paths, f.delta(digest)) { // a delta alone is an image too
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an image: %w", err)
		}
	}
	return nil
}

// Base returns the base of a delta image; empty for other or missing images.
func (f Folder) Base(digest string) (string, error) {
	head, err := readHeadAt(f.delta(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the delta %s: %w", digest, err)
	}
	return head.Base, nil
}

// Bases returns the base of every delta, by the delta's digest.
func (f Folder) Bases() (map[string]string, error) {
	deltas, err := filepath.Glob(filepath.Join(string(f), "*"+deltaSuffix))
	if err != nil {
		return nil, err
	}
	bases := map[string]string{}
	for _, path := range deltas {
		digest := strings.TrimSuffix(filepath.Base(path), deltaSuffix)
		base, err := f.Base(digest)
		if err != nil {
			return nil, err
		}
		if base != "" { // otherwise it was removed
			bases[digest] = base
		}
	}
	return bases, nil
}

// Shrink writes the delta of a whole image to another image. If that one is a delta
// itself, its base is used. Shrink reports whether a delta exists now; it writes none
// that would not be much smaller than the image. While lock is held no image is removed.
// Calls of Shrink must not be concurrent.
func (f Folder) Shrink(ctx context.Context, digest, from string, lock func() (release func(), err error)) (bool, error) {
	if f.hasDelta(digest) {
		return true, nil
	}
	bases, err := f.Bases()
	if err != nil {
		return false, err
	}
	from = cmp.Or(bases[from], from)
	if from == digest || slices.Contains(slices.Collect(maps.Values(bases)), digest) {
		return false, nil // a base is never a delta
	}
	base, err := f.OpenWhole(from)
	if err != nil {
		return false, err
	}
	defer base.Close()
	target, err := f.OpenWhole(digest)
	if err != nil {
		return false, err
	}
	defer target.Close()
	out, err := f.newTemp()
	if err != nil {
		return false, fmt.Errorf("make a delta: %w", err)
	}
	defer os.Remove(out.Name())
	defer out.Close()
	worth, err := writeDelta(ctx, out, target, base, digest, from)
	if err != nil || !worth {
		return false, err
	}
	const readable = 0o644
	if err := errors.Join(out.Chmod(readable), out.Sync()); err != nil {
		return false, fmt.Errorf("make a delta: %w", err)
	}
	release, err := lock()
	if err != nil {
		return false, err
	}
	defer release()
	if !isAt(base, f.Path(from)) || !isAt(target, f.Path(digest)) { // one was removed meanwhile
		return false, nil
	}
	return true, durable.Rename(out.Name(), f.delta(digest))
}

// Evict removes whole files of delta images that are not locked and were not opened
// within unused, and leftovers of killed processes. It returns the bytes of the evicted
// files.
func (f Folder) Evict(ctx context.Context, unused time.Duration) (freed int64, err error) {
	left, err := filepath.Glob(filepath.Join(string(f), tempPattern))
	if err != nil {
		return 0, err
	}
	failed := []error{f.removeEarlier()}
	for _, path := range left {
		file, err := lockAlone(path)
		if err != nil || file == nil {
			continue // it is being written, or gone
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // its writer may have removed it
			failed = append(failed, err)
		}
		file.Close()
	}
	deltas, err := filepath.Glob(filepath.Join(string(f), "*"+deltaSuffix))
	if err != nil {
		return 0, err
	}
	for _, path := range deltas {
		if ctx.Err() != nil {
			return freed, ctx.Err()
		}
		n, err := f.evict(strings.TrimSuffix(filepath.Base(path), deltaSuffix), unused)
		freed, failed = freed+n, append(failed, err)
	}
	return freed, errors.Join(failed...)
}

func (f Folder) evict(digest string, unused time.Duration) (int64, error) {
	release, err := f.Claim(digest)
	if errors.Is(err, sandbox.Conflict) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer release()
	if !f.hasDelta(digest) { // removed meanwhile
		return 0, nil
	}
	paths, err := f.wholes(digest)
	if err != nil {
		return 0, err
	}
	freed := int64(0)
	for _, path := range paths {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && time.Since(info.ModTime()) < unused {
			continue
		}
		if err := errors.Join(err, os.Remove(path)); err != nil {
			return freed, fmt.Errorf("evict an image: %w", err)
		}
		freed += info.Size()
	}
	return freed, nil
}

// removeEarlier removes the whole files of earlier boots of the machine.
func (f Folder) removeEarlier() error {
	dir, err := cache()
	if err != nil {
		return err
	}
	boots, err := filepath.Glob(filepath.Join(string(f), expandedFolder, "*"))
	if err != nil {
		return err
	}
	var failed []error
	for _, path := range boots {
		if path != filepath.Join(string(f), dir) {
			failed = append(failed, os.RemoveAll(path))
		}
	}
	return errors.Join(failed...)
}
