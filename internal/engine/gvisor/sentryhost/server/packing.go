package server

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/chunks"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Saved states are inspected every packEvery, and as often as every packEveryMin when they
// are to be packed sooner.
const packEvery, packEveryMin = 15 * time.Second, time.Second

// share assigns a state to a group, so that it is packed later.
func (h *Host) share(r sentryhost.ShareRequest) error {
	if r.Group == "" || len(r.Group) > 1024 {
		return sandbox.Errorf(sandbox.Invalid, "a group has 1 to 1024 bytes")
	}
	if _, _, err := h.readManifest(r.Name); err != nil {
		return err
	}
	defer h.lockName(r.Name)()
	group := groupName(r.Group)
	switch there := h.groupOf(r.Name); {
	case there == group:
		return nil
	case there != "":
		return sandbox.Errorf(sandbox.Conflict, "the saved state %s shares with others", r.Name)
	}
	return os.WriteFile(filepath.Join(h.savedDir(r.Name), groupFile), []byte(group), 0o600)
}

// setCache sets how saved states are kept from now on.
func (h *Host) setCache(r sentryhost.CacheRequest) error {
	if r.Bytes < 0 || r.PackAfterSeconds < 0 {
		return sandbox.Errorf(sandbox.Invalid, "a cache has a size and an age of 0 or more")
	}
	h.mu.Lock()
	h.cache = &r
	h.mu.Unlock()
	select {
	case h.packSoon <- struct{}{}:
	default:
	}
	return nil
}

// runPacking packs states, empties their cache and removes unreferenced chunks, until ctx
// ends. Boots come first: its thread has the lowest priority.
func (h *Host) runPacking(ctx context.Context) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19); err != nil {
		h.log.Warn("lowering the priority of snapshot packing failed", telemetry.KeyError, err)
	}
	for {
		select {
		case <-time.After(h.packPause()):
		case <-h.packSoon:
		case <-ctx.Done():
			return
		}
		if err := h.packOnce(ctx, time.Now()); err != nil && ctx.Err() == nil {
			h.log.Warn("snapshot packing failed", telemetry.KeyError, err)
		}
	}
}

func (h *Host) packPause() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cache == nil {
		return packEvery
	}
	return min(packEvery, max(packEveryMin, time.Duration(h.cache.PackAfterSeconds)*time.Second))
}

// cached is a state that has a group and whose files are on the disk.
type cached struct {
	manifest *sentryhost.Manifest
	used     time.Time
	bytes    int64
}

// packOnce does one pass of runPacking: it packs states that were unused for long, and the
// least recently used others while they exceed the cache's bytes, and removes their
// files.
func (h *Host) packOnce(ctx context.Context, now time.Time) error {
	h.mu.Lock()
	policy := h.cache
	h.mu.Unlock()
	if policy == nil {
		return nil
	}
	all, total, err := h.cached()
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b cached) int { return a.used.Compare(b.used) })
	var errs []error
	for _, c := range all {
		if total <= policy.Bytes && now.Sub(c.used) < time.Duration(policy.PackAfterSeconds)*time.Second {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := h.packAndEvict(c.manifest); err != nil {
			errs = append(errs, fmt.Errorf("pack %s: %w", c.manifest.Name, err))
			continue
		}
		total -= c.bytes
	}
	return errors.Join(append(errs, h.sweepChunks())...)
}

// cached returns the states with a group whose files are on the disk, and the total bytes
// of those files.
func (h *Host) cached() (all []cached, total int64, err error) {
	names, err := h.listSaved()
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		info, err := os.Stat(filepath.Join(h.savedDir(name), groupFile))
		if err != nil {
			continue // it has no group, or was deleted just now
		}
		if _, err := os.Lstat(filepath.Join(h.savedDir(name), checkpointfiles.PagesFileName)); err != nil {
			continue // the pages file is removed last
		}
		m, _, err := h.readManifest(name)
		if err != nil || !h.hasFiles(m) {
			continue // a start from it reports the error
		}
		c := cached{manifest: m, used: info.ModTime()}
		for _, f := range m.Files {
			c.bytes += f.Bytes
		}
		all, total = append(all, c), total+c.bytes
	}
	return all, total, nil
}

// packAndEvict packs a state, unless it is packed, and removes its files.
func (h *Host) packAndEvict(m *sentryhost.Manifest) error {
	if !h.isPacked(m.Name) {
		err := h.pack(m.Name)
		if err != nil {
			h.setDirty() // chunks that no list names
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, sandbox.NotFound) {
			return nil // deleted meanwhile
		}
		if err != nil {
			return err
		}
	}
	return h.evict(m)
}

func (h *Host) isPacked(name string) bool {
	_, err := os.Lstat(filepath.Join(h.savedDir(name), chunksName))
	return err == nil
}

// evict removes the files of a packed state, unless a Boot is just starting from them.
func (h *Host) evict(m *sentryhost.Manifest) error {
	defer h.lockName(m.Name)()
	h.mu.Lock()
	busy := h.opened[m.Name] > 0
	h.mu.Unlock()
	if busy || !h.isPacked(m.Name) {
		return nil
	}
	for _, f := range m.Files { // the pages file is the last
		if err := os.Remove(filepath.Join(h.savedDir(m.Name), f.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// openReady is openSaved for a state whose files may have to be unpacked first. The files
// are not evicted until done is called.
func (h *Host) openReady(m *sentryhost.Manifest) (files []*os.File, done func(), err error) {
	defer h.lockName(m.Name)()
	if h.isPacked(m.Name) && !h.hasFiles(m) {
		if err := h.unpack(m); err != nil {
			return nil, nil, err
		}
	}
	if files, err = h.openSaved(m); err != nil {
		return nil, nil, err
	}
	now := time.Now()
	// A state without a group is not packed, so its last use does not matter.
	_ = os.Chtimes(filepath.Join(h.savedDir(m.Name), groupFile), now, now)
	h.mu.Lock()
	h.opened[m.Name]++
	h.mu.Unlock()
	return files, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.opened[m.Name]--; h.opened[m.Name] == 0 {
			delete(h.opened, m.Name)
		}
	}, nil
}

// sweepChunks removes the chunks that no state lists, if a state may have been deleted
// since the last sweep.
func (h *Host) sweepChunks() error {
	h.mu.Lock()
	dirty := h.dirty
	h.dirty = false
	h.mu.Unlock()
	if !dirty {
		return nil
	}
	err := h.removeUnlisted()
	if err != nil {
		h.setDirty()
	}
	return err
}

func (h *Host) setDirty() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dirty = true
}

func (h *Host) removeUnlisted() error {
	names, err := h.listSaved()
	if err != nil {
		return err
	}
	lists := map[string]map[chunks.ID]bool{}
	for _, name := range names {
		m, _, err := h.readManifest(name)
		if errors.Is(err, sandbox.NotFound) {
			continue
		}
		if err != nil {
			return err // its chunks are not known: remove nothing
		}
		files, err := h.readChunks(m)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		group := h.groupOf(name)
		if lists[group] == nil {
			lists[group] = map[chunks.ID]bool{}
		}
		for _, file := range files {
			for _, p := range file {
				lists[group][p.ID] = true
			}
		}
	}
	groups, err := os.ReadDir(filepath.Join(h.cfg.Saved, chunksName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, g := range groups {
		err = errors.Join(err, h.removeFrom(g.Name(), lists[g.Name()]))
	}
	return err
}

// removeFrom removes all chunks of a group that are not listed.
func (h *Host) removeFrom(group string, listed map[chunks.ID]bool) error {
	dir := filepath.Join(h.cfg.Saved, chunksName, group)
	if len(listed) == 0 {
		return os.RemoveAll(dir)
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := hex.DecodeString(d.Name())
		if err == nil && len(raw) == len(chunks.ID{}) && listed[chunks.ID(raw)] {
			return nil
		}
		return os.Remove(path)
	})
}
