package server

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
	runscboot "gvisor.dev/gvisor/runsc/boot"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// A saved state holds a large writable layer in place: its pages file begins with the
// file behind the layer, each page at the sentry's offset, and the pages of memory
// follow. A Boot that is frozen for good gives its file away, which takes no time. The
// file of a Boot that continues is cloned, or copied if the file system cannot clone. The
// sentry neither reads nor writes the layer. See
// docs/adr/0026-layers-are-saved-in-place.md.

// minInPlace is the least size in bytes of a layer that is saved in place. A smaller one
// the sentry writes as quickly, into a file without holes.
const minInPlace = 16 << 20

// inPlaceSuffix follows gVisor's version in the manifest of a state with a layer in
// place: gVisor without our edits cannot read it.
const inPlaceSuffix = "+in-place"

// savesInPlace reports whether this program was built with the edit that lets a sentry
// save beside a layer in place. Without the edit the sentry would write the memory over
// the layer.
func savesInPlace() bool {
	_, ok := any((*stateio.FDWriter)(nil)).(interface{ StartOffset() uint64 })
	return ok
}

// given is the record of a Boot whose layer was given to a saved state.
type given struct {
	To    string `json:"to"`    // the saved state
	Bytes int64  `json:"bytes"` // of the file, without the memory behind the layer
	Size  int64  `json:"size"`  // of the file, as the sentry sees it
}

// inPlace reports whether the layer of a Boot is to be saved in place.
func (h *Host) inPlace(b *boot, r sentryhost.SaveRequest) bool {
	record := h.recordOf(b)
	// Nothing can wait for the reading of a layer that was restored without memory.
	ofLayer := record.From != "" && !record.Restored
	return r.Memory && savesInPlace() && !ofLayer && record.Given == nil && max(b.diskBytes(), record.Layer) >= minInPlace
}

// unread bounds the bytes of its restored layer that the Boot's sentry has yet to read. r
// is the Boot's record.
func (b *boot) unread(r record) int64 { return max(r.Layer-b.diskBytes(), 0) }

// awaitLayer waits until a Boot's sentry has read the whole restored layer, which it does
// when it has nothing else to read. Until then only the sentry knows all of the layer.
// From then on the layer ends where its file does.
func (h *Host) awaitLayer(b *boot) error {
	if !h.recordOf(b).Restored {
		return nil
	}
	rpc, err := client.ConnectTo(b.record.Socket)
	if err != nil {
		return fmt.Errorf("reach the sentry: %w", err)
	}
	defer rpc.Close()
	if err := rpc.Call(runscboot.ContMgrWaitRestore, nil, nil); err != nil {
		return fmt.Errorf("wait for the layer: %w", err)
	}
	h.change(b, func(r *record) { r.Layer = 0 })
	return nil
}

// noteRead waits in the background until a Boot has read its layer, so that later pauses
// save only the remaining part of its files.
func (h *Host) noteRead(b *boot) {
	if h.recordOf(b).Layer > 0 {
		h.wg.Go(func() { _ = h.awaitLayer(b) }) // if it fails, a save that needs to know waits again
	}
}

// placeLayer puts the layer of b, which is stopped, at the beginning of d's pages file,
// and leaves the file's offset where the pages of memory begin. When it saves, the sentry
// reads the unread part of the layer at once, into the file that b gives away.
func (h *Host) placeLayer(b *boot, d *draft) error {
	if r := h.recordOf(b); !r.Frozen || r.Layer == 0 { // it is copied, or the end of the unread layer is not known
		if err := h.awaitLayer(b); err != nil {
			return err
		}
	}
	record := h.recordOf(b)
	end, err := dataEnd(b.upper, 0)
	if err != nil {
		return fmt.Errorf("measure the layer: %w", err)
	}
	if end = max(end, record.Layer); end == 0 { // allocated but never written to
		d.inPlace, d.m.Engine = false, h.engineVersion()
		return nil
	}
	if !record.Frozen || !h.giveLayer(b, d, end) {
		if err := h.awaitLayer(b); err != nil {
			return err
		}
		if err := d.pages().Truncate(0); err != nil { // its allocation would fill the holes of the copy
			return err
		}
		if err := roomFor(h.cfg.Saved, "saving the sandbox", b.diskBytes()+d.room); err != nil {
			return err
		}
		if err := copyLayer(d.pages(), b.upper, end); err != nil {
			return fmt.Errorf("copy the layer: %w", err)
		}
	}
	pages := d.pages()
	// A sentry may not report a full disk: see newDraft.
	if err := unix.Fallocate(int(pages.Fd()), unix.FALLOC_FL_KEEP_SIZE, end, d.room); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return err
	}
	d.layer, d.most = end, d.most+end
	_, err = pages.Seek(end, io.SeekStart)
	return err
}

// giveLayer makes the file behind the layer of b the pages file of d, if it can have a
// name there. The record says so before: a Boot that continues after all takes its layer
// back.
func (h *Host) giveLayer(b *boot, d *draft, end int64) bool {
	info, err := b.upper.Stat()
	if err != nil {
		return false
	}
	path := d.pages().Name()
	aside := path + ".layer"
	h.change(b, func(r *record) { r.Given = &given{To: d.m.Name, Bytes: end, Size: info.Size()} })
	err = h.writeRecord(b)
	if err == nil {
		err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", b.upper.Fd()), unix.AT_FDCWD, aside, unix.AT_SYMLINK_FOLLOW)
	}
	var pages *os.File
	if err == nil {
		pages, err = os.OpenFile(aside, os.O_RDWR|unix.O_NOFOLLOW, 0)
	}
	if err == nil {
		err = os.Rename(aside, path)
	}
	if err != nil {
		h.log.Info("handing a writable layer to a saved state failed; it is copied", telemetry.KeySnapshot, d.m.Name, telemetry.KeyError, err)
		if pages != nil {
			pages.Close()
		}
		_ = os.Remove(aside)
		h.change(b, func(r *record) { r.Given = nil })
		return false
	}
	d.pages().Close()
	d.files[len(d.files)-1] = pages
	return true
}

// trim truncates the pages file of d, which was a layer's, after its last page.
func (d *draft) trim() error {
	end, err := dataEnd(d.pages(), d.layer)
	if err != nil {
		return err
	}
	return d.pages().Truncate(end)
}

// takeLayer takes a layer back from a saved state before the Boot continues. The state,
// if it exists, gets a copy, and is deleted when the copy fails, for lack of space for
// example. The caller holds b.pausing and the state's name.
func (h *Host) takeLayer(b *boot) error {
	g := h.recordOf(b).Given
	if g == nil {
		return nil
	}
	if b.upper == nil {
		return sandbox.Errorf(sandbox.Internal, "the writable layer of %s is not found", b.record.ID)
	}
	if err := h.copyGiven(b, g.To); err != nil {
		h.log.Error("deleted a saved state: copying the files that its sandbox still uses failed", telemetry.KeySnapshot, g.To, telemetry.KeyError, err)
		if err := h.removeSaved(g.To); err != nil {
			return err
		}
	}
	for _, size := range []int64{g.Bytes, g.Size} { // the memory behind the layer must not become part of it
		if err := b.upper.Truncate(size); err != nil {
			return fmt.Errorf("take the layer back: %w", err)
		}
	}
	h.change(b, func(r *record) { r.Given = nil })
	return nil
}

// checkSame returns an error unless files, which were read without the lock on the
// state's name, are still the state's files. If not, a Boot may have taken its layer back
// and written to it. The caller holds the name now.
func (h *Host) checkSame(m *sentryhost.Manifest, files []*os.File) error {
	for i, f := range files {
		is, err := os.Lstat(filepath.Join(h.savedDir(m.Name), m.Files[i].Name))
		if errors.Is(err, fs.ErrNotExist) {
			return sandbox.Errorf(sandbox.NotFound, "the saved state %s is gone", m.Name).WithCause(err)
		}
		if err != nil {
			return err
		}
		read, err := f.Stat()
		if err != nil {
			return err
		}
		if !os.SameFile(is, read) {
			return sandbox.Errorf(sandbox.Unavailable, "the sandbox of the saved state %s continues: try again", m.Name)
		}
	}
	return nil
}

// copyGiven replaces the pages file of a state by a copy, if it is the file behind the
// layer of b.
func (h *Host) copyGiven(b *boot, name string) error {
	path := filepath.Join(h.savedDir(name), checkpointfiles.PagesFileName)
	pages, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pages.Close()
	is, err := pages.Stat()
	if err != nil {
		return err
	}
	mine, err := b.upper.Stat()
	if err != nil || !os.SameFile(is, mine) {
		return err
	}
	if err := roomFor(h.cfg.Saved, "continuing", statBlocks(pages)); err != nil {
		return err
	}
	aside, err := os.CreateTemp(h.cfg.Saved, asidePrefix+name+"-pages-")
	if err != nil {
		return err
	}
	defer os.Remove(aside.Name())
	defer aside.Close()
	if err := copyLayer(aside, pages, is.Size()); err != nil {
		return err
	}
	return cmp.Or(aside.Truncate(is.Size()), aside.Sync(), os.Rename(aside.Name(), path), syncDir(filepath.Dir(path)))
}

// copyLayer copies the first end bytes of from to to, holes included.
func copyLayer(to, from *os.File, end int64) error {
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		return to.Truncate(end)
	}
	buf := make([]byte, 1<<20)
	return eachData(from, 0, func(start, stop int64) error {
		if start >= end {
			return nil
		}
		data := io.NewSectionReader(from, start, min(stop, end)-start)
		// Without the methods by which io would bypass the buffer.
		_, err := io.CopyBuffer(struct{ io.Writer }{io.NewOffsetWriter(to, start)}, struct{ io.Reader }{data}, buf)
		return err
	})
}

// dataEnd returns where the last data of a file after offset from ends, rounded up to
// pages; from when no data follows.
func dataEnd(f *os.File, from int64) (int64, error) {
	end := from
	err := eachData(f, from, func(_, stop int64) error {
		end = (stop + pageBytes - 1) / pageBytes * pageBytes
		return nil
	})
	return end, err
}

// eachData calls do for each data range (no hole) of a file, from an offset on.
func eachData(f *os.File, from int64, do func(start, stop int64) error) error {
	for {
		start, err := unix.Seek(int(f.Fd()), from, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		stop, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		if err := do(start, stop); err != nil {
			return err
		}
		from = stop
	}
}
