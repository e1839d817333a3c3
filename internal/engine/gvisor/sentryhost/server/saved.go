package server

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// A saved state is a folder named after it, with a manifest and the files that the
// manifest lists. It is made aside, synced and renamed, so it exists whole or not at all.
// Its content never changes; its storage may: see pack.go.
const (
	maxManifest = 4 << 20
	asidePrefix = "."
)

// The files to which a sentry writes its state, or its writable layer alone, in the order
// in which it takes them.
var (
	memoryFiles = []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName}
	layerFiles  = []string{
		checkpointfiles.FSCheckpointManifestFileName, checkpointfiles.FSCheckpointMultiTarFileName,
		checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName,
	}
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (h *Host) savedDir(name string) string { return filepath.Join(h.cfg.Saved, name) }

// savedOf describes a state for the protocol; raw is its manifest.
func savedOf(m *sentryhost.Manifest, raw []byte) sandbox.Saved {
	s := sandbox.Saved{Memory: m.Memory, Build: m.Build, Image: m.Image, Shape: m.Shape, CPU: m.CPU, Bytes: bytesOf(m) + int64(len(raw))}
	sum := sha256.Sum256(raw)
	s.Digest = "sha256:" + hex.EncodeToString(sum[:])
	return s
}

// bytesOf is the total size of a state's files, in bytes.
func bytesOf(m *sentryhost.Manifest) (n int64) {
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}

// readManifest returns the manifest of a state on the disk: NotFound when the state does not
// exist, Conflict when the manifest is missing or wrong.
func (h *Host) readManifest(name string) (*sentryhost.Manifest, []byte, error) {
	return manifestIn(h.cfg.Saved, name)
}

// knownManifest is readManifest, also for a state that arrives, which it returns then.
func (h *Host) knownManifest(name string) (m *sentryhost.Manifest, raw []byte, a *arrival, err error) {
	h.mu.Lock()
	a = h.arrivals[name]
	known := a != nil && !a.unwanted
	h.mu.Unlock()
	if known {
		own := *a.m
		return &own, a.raw, a, nil
	}
	m, raw, err = h.readManifest(name)
	return m, raw, nil, err
}

// manifestIn is readManifest for another folder of saved states.
func manifestIn(saved, name string) (*sentryhost.Manifest, []byte, error) {
	if !sandbox.ValidSnapshotID(name) {
		return nil, nil, sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", name)
	}
	raw, err := os.ReadFile(filepath.Join(saved, name, sentryhost.ManifestName))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(filepath.Join(saved, name)); errors.Is(err, fs.ErrNotExist) {
			return nil, nil, sandbox.Errorf(sandbox.NotFound, "no saved state %s", name)
		}
		return nil, nil, damaged(name, errors.New("it has no manifest"))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the manifest of %s: %w", name, err)
	}
	m := new(sentryhost.Manifest)
	if err := json.Unmarshal(raw, m); err != nil || m.Name != name || len(m.Files) == 0 || len(raw) > maxManifest {
		return nil, nil, damaged(name, errors.Join(err, errors.New("its manifest is wrong")))
	}
	return m, raw, nil
}

func damaged(name string, cause error) error {
	return sandbox.Errorf(sandbox.Conflict, "the saved state %s is damaged: it cannot be started from", name).
		WithCause(fmt.Errorf("%w: %w", sandbox.ErrDamaged, cause))
}

// filesOf returns the names of the files that a state must have.
func filesOf(m *sentryhost.Manifest) []string {
	if m.Memory {
		return memoryFiles
	}
	return layerFiles
}

// fits returns Conflict when a Boot with r's image and shape cannot start from m.
func (h *Host) fits(m *sentryhost.Manifest, r sentryhost.StartRequest) error {
	if m.Image != r.Image || !m.Shape.Covers(r.Shape) {
		return sandbox.Errorf(sandbox.Conflict, "the saved state %s is of another image or shape than asked for", m.Name)
	}
	return h.canStart(m)
}

// canStart returns Conflict when no Boot of any image can start from a state here.
func (h *Host) canStart(m *sentryhost.Manifest) error {
	switch build, err := h.homeOf(m); {
	case err != nil:
		return err
	case build != "":
		return sandbox.Errorf(sandbox.Conflict, "the saved state %s needs gVisor %.80s, of build %s: this sentry host has %s", m.Name, m.Engine, build, h.engineVersion())
	case !m.Memory:
		return nil
	}
	return h.hasPart(m, filepath.Base(h.cfg.GuestImage))
}

// openSaved opens the files of a state, in the order in which a sentry takes them. The
// caller closes them.
func (h *Host) openSaved(m *sentryhost.Manifest) (files []*os.File, err error) {
	want := filesOf(m)
	if len(m.Files) != len(want) {
		return nil, damaged(m.Name, fmt.Errorf("it lists %d files", len(m.Files)))
	}
	for i, f := range m.Files {
		if f.Name != want[i] {
			closeAll(files)
			return nil, damaged(m.Name, fmt.Errorf("it lists %.80q", f.Name))
		}
		file, err := os.OpenFile(filepath.Join(h.savedDir(m.Name), f.Name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			closeAll(files)
			return nil, damaged(m.Name, err)
		}
		files = append(files, file)
	}
	return files, nil
}

// verify compares the files of a state with its manifest.
func verify(m *sentryhost.Manifest, files []*os.File) error {
	var g errgroup.Group
	for i, file := range files {
		g.Go(func() error {
			got, err := sumUp(file, m.Files[i].Layer)
			if got.Name = m.Files[i].Name; err == nil && got != m.Files[i] {
				err = fmt.Errorf("%s is %+v", m.Files[i].Name, got)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return damaged(m.Name, err)
	}
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// sumUp sums a file up after a layer in place at its beginning. The file's offset stays.
func sumUp(f *os.File, layer int64) (sentryhost.SavedFile, error) {
	got := sentryhost.SavedFile{Layer: layer, Bytes: layer}
	const piece = 1 << 20
	buf := make([]byte, piece)
	for {
		n, err := f.ReadAt(buf, got.Bytes)
		got.CRC = crc32.Update(got.CRC, castagnoli, buf[:n])
		got.Bytes += int64(n)
		if err == io.EOF {
			return got, nil
		}
		if err != nil {
			return got, err
		}
	}
}

// draft is a saved state in the making.
type draft struct {
	host    *Host
	dir     string
	m       *sentryhost.Manifest
	files   []*os.File
	most    int64 // bytes that its files may have together
	inPlace bool  // the writable layer is saved in place; then:
	room    int64 // bytes that the pages of memory may have
	layer   int64 // bytes of the pages file that are the writable layer in place
}

// pages is the file that holds pages.
func (d *draft) pages() *os.File { return d.files[len(d.files)-1] }

// diskMargin must stay free on the disk beside a saved state, in bytes.
const diskMargin = 128 << 20

// newDraft allocates the files of a state: pages bytes for its last file, and described
// bytes for the description of them. It allocates beforehand: a sentry was seen to report
// success on a full disk.
func (h *Host) newDraft(m *sentryhost.Manifest, pages, described int64) (d *draft, err error) {
	described = max(described, otherFiles)
	if err := roomFor(h.cfg.Saved, "saving the sandbox", pages+described); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(h.cfg.Saved, asidePrefix+m.Name+"-")
	if err != nil {
		return nil, fmt.Errorf("make the folder of a saved state: %w", err)
	}
	d = &draft{host: h, dir: dir, m: m, most: pages + mostDescribed*described + stateRoom}
	defer func() {
		if err != nil {
			d.discard()
		}
	}()
	for i, name := range filesOf(m) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("make a file of a saved state: %w", err)
		}
		d.files = append(d.files, f)
		mine := int64(otherFiles)
		switch {
		case i == len(filesOf(m))-1:
			mine = pages
		case name == checkpointfiles.StateFileName || name == checkpointfiles.FSCheckpointMultiTarFileName:
			mine = described
		}
		// A file system that cannot allocate is checked afterwards, as all are.
		if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, mine); errors.Is(err, unix.ENOSPC) {
			return nil, sandbox.Errorf(sandbox.Exhausted, "the disk has no room to save the sandbox").WithCause(err)
		}
	}
	return d, nil
}

// roomFor returns Exhausted when the disk of a folder lacks room bytes for the operation.
func roomFor(dir, what string, room int64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return fmt.Errorf("look at the disk: %w", err)
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < room+diskMargin {
		return sandbox.Errorf(sandbox.Exhausted, "the disk has %d MiB free and %s may need %d MiB", free>>20, what, (room+diskMargin)>>20)
	}
	return nil
}

// mostDescribed bounds a description, as a multiple of its expected size. Long paths take
// more space in the archive of a writable layer than in the heap.
const mostDescribed = 4

// otherFiles is the least allocation for a file without pages, in bytes.
const otherFiles = 8 << 20

// flushEvery is how often the disk is made to write a state while it is written.
const flushEvery = 10 * time.Millisecond

// flush has the disk begin to write the pages while a sentry or an import still adds to them,
// until end is called. Otherwise the disk would begin only after that, and the caller would
// wait for both in turn.
func (d *draft) flush() (end func()) {
	pages := d.pages()
	over := make(chan struct{})
	var flushing sync.WaitGroup
	flushing.Go(func() {
		again := time.NewTicker(flushEvery)
		defer again.Stop()
		for {
			select {
			case <-over:
				return
			case <-again.C:
			}
			// This only begins the write; finish checks that it succeeded.
			_ = unix.SyncFileRange(int(pages.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
		}
	})
	return func() {
		close(over)
		flushing.Wait()
	}
}

func (d *draft) discard() {
	closeAll(d.files)
	if err := os.RemoveAll(d.dir); err != nil {
		d.host.log.Error("cleaning up after a failed save failed", telemetry.KeySnapshot, d.m.Name, telemetry.KeyError, err)
	}
}

// finish verifies the sentry's output, syncs it and gives the folder its name.
func (d *draft) finish() (sandbox.Saved, error) {
	d.m.Files = make([]sentryhost.SavedFile, len(d.files))
	var g errgroup.Group
	for i, f := range d.files { // concurrently: the disk writes their common blocks once
		g.Go(func() (err error) {
			// The pages file of a writable layer without file content may be empty.
			empty := !d.m.Memory && i == len(d.files)-1
			layer := int64(0)
			if f == d.pages() {
				layer = d.layer
			}
			d.m.Files[i], err = settle(f, layer, empty)
			d.m.Files[i].Name = filesOf(d.m)[i]
			if err != nil {
				return fmt.Errorf("save %s: %w", d.m.Files[i].Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return sandbox.Saved{}, noRoom(err)
	}
	total := int64(0)
	for _, f := range d.m.Files {
		total += f.Bytes
	}
	if total > d.most {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Unavailable, "the sandbox could not be saved: it is larger than the limit")
	}
	raw, err := json.Marshal(d.m)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if err := writeSynced(filepath.Join(d.dir, sentryhost.ManifestName), raw); err != nil {
		return sandbox.Saved{}, noRoom(err)
	}
	if err := d.name(); err != nil {
		return sandbox.Saved{}, noRoom(fmt.Errorf("name a saved state: %w", err))
	}
	closeAll(d.files)
	return savedOf(d.m, raw), nil
}

// name gives the folder its name, after everything is synced.
func (d *draft) name() error {
	if err := syncDir(d.dir); err != nil {
		return err
	}
	to := d.host.savedDir(d.m.Name)
	if err := os.Rename(d.dir, to); err != nil {
		return err
	}
	d.dir = to // discard removes this one if the sync fails
	return syncDir(d.host.cfg.Saved)
}

// settle frees the unused allocation of a file, syncs it, and reads it once more, after a
// layer in place at its beginning. empty permits an empty file.
func settle(f *os.File, layer int64, empty bool) (file sentryhost.SavedFile, err error) {
	info, err := f.Stat()
	if err != nil {
		return file, err
	}
	if info.Size() == 0 && !empty {
		return file, errors.New("it is empty")
	}
	if err := f.Truncate(info.Size()); err != nil {
		return file, err
	}
	var g errgroup.Group
	g.Go(f.Sync)
	file, err = sumUp(f, layer)
	return file, errors.Join(err, g.Wait())
}

func noRoom(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return sandbox.Errorf(sandbox.Exhausted, "the disk has no room to save the sandbox").WithCause(err)
	}
	return err
}

func writeSynced(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// deleteSaved removes a state. Sentries that read it hold its files open.
func (h *Host) deleteSaved(name string) error {
	if !sandbox.ValidSnapshotID(name) {
		return sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", name)
	}
	defer h.lockName(name)()
	h.unwant(name)
	return h.removeSaved(name)
}

// removeSaved is deleteSaved for a caller that holds the name.
func (h *Host) removeSaved(name string) error {
	if h.isPacked(name) {
		defer h.setDirty()
	}
	aside := filepath.Join(h.cfg.Saved, asidePrefix+name+"-gone")
	if err := os.RemoveAll(aside); err != nil { // the rest of a deletion that failed
		return fmt.Errorf("delete a saved state: %w", err)
	}
	if err := os.Rename(h.savedDir(name), aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("delete a saved state: %w", err)
	}
	return errors.Join(os.RemoveAll(aside), syncDir(h.cfg.Saved))
}

// listSaved returns the names of all states.
func (h *Host) listSaved() ([]string, error) {
	entries, err := os.ReadDir(h.cfg.Saved)
	if err != nil {
		return nil, fmt.Errorf("list saved states: %w", err)
	}
	names := []string{}
	for _, e := range entries {
		if sandbox.ValidSnapshotID(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// removeDrafts removes unfinished saves of an earlier sentry host. It is called while
// nothing is saved.
func (h *Host) removeDrafts() {
	entries, _ := os.ReadDir(h.cfg.Saved)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), asidePrefix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(h.cfg.Saved, e.Name())); err != nil {
			h.log.Warn("removing an unfinished save failed", "folder", e.Name(), telemetry.KeyError, err)
		}
	}
}

// lockName locks the name of a state until unlock is called.
func (h *Host) lockName(name string) (unlock func()) {
	for {
		h.mu.Lock()
		wait, busy := h.naming[name]
		if !busy {
			done := make(chan struct{})
			h.naming[name] = done
			h.mu.Unlock()
			return func() {
				h.mu.Lock()
				delete(h.naming, name)
				h.mu.Unlock()
				close(done)
			}
		}
		h.mu.Unlock()
		<-wait
	}
}
