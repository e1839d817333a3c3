package server

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// The kernel copies a layer in place from the file of a state to that of a Boot, each page
// at its own offset. Where the kernel cannot, as between file systems, the sentry reads
// it.
func TestLayerIsCopied(t *testing.T) {
	if !savesInPlace() {
		t.Skip("built without the edits of gVisor: run it with $(scripts/gvisor.sh)")
	}
	const page, pages, start = 4096, 40, 3
	content := make([]byte, pages*page)
	_, _ = rand.Read(content)
	saved := filepath.Join(t.TempDir(), "pages.img")
	must(t, os.WriteFile(saved, content, 0o600))
	beside, err := os.Create(filepath.Join(t.TempDir(), "upper"))
	must(t, err)
	memory, err := unix.MemfdCreate("layer", unix.MFD_CLOEXEC)
	must(t, err)
	for name, tt := range map[string]struct {
		to     *os.File
		copied bool
	}{
		"to a file beside it":        {beside, true},
		"to another kind of storage": {os.NewFile(uintptr(memory), "layer"), false},
	} {
		t.Run(name, func(t *testing.T) {
			defer tt.to.Close()
			must(t, tt.to.Truncate(pages*page))
			fd, err := unix.Open(saved, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			must(t, err)
			r := stateio.NewFDReader(int32(fd), 1<<20, 1, 2)
			defer r.Close()
			to, err := r.RegisterDestinationFD(int32(tt.to.Fd()), pages*page, nil)
			must(t, err)
			// Not a mapping of the file, so the test can tell the kernel's copy from the
			// sentry's read.
			read := make([]byte, (pages-start)*page)
			r.AddRead(1, start*page, to, memmap.FileRange{Start: start * page, End: pages * page}, read)
			done, err := r.Wait(nil, 1)
			must(t, err)
			if len(done) != 1 || done[0].ID != 1 || done[0].N != uint64(len(read)) || done[0].Err != nil {
				t.Fatalf("it completes with %+v", done)
			}
			got := make([]byte, pages*page)
			_, err = tt.to.ReadAt(got, 0)
			must(t, err)
			none := make([]byte, pages*page)
			wantFile, wantRead := none, content[start*page:]
			if tt.copied {
				wantFile, wantRead = append(none[:start*page:start*page], content[start*page:]...), none[start*page:]
			}
			if !bytes.Equal(got, wantFile) {
				t.Error("the file is not as it should be")
			}
			if !bytes.Equal(read, wantRead) {
				t.Error("what was read is not as it should be")
			}
		})
	}
}

// A frozen Boot that has not read its whole layer gets page cache for the rest, as far as
// the host has free memory, and only while it is frozen.
func layerGetsCache(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, withMemory(128))
	b := r.host.boots[id]
	hard := b.group.Limit()
	const layer = 300 << 20
	free := r.host.memoryFree
	defer func() { r.host.memoryFree = free }()
	for _, tt := range []struct{ free, layer, want int64 }{
		{workMargin + 2*layer, 0, 0},
		{workMargin, layer, 0},
		{workMargin + 1<<20, layer, 1 << 20},
		{workMargin + 2*layer, layer, layer - b.diskBytes()},
	} {
		r.host.memoryFree = func() int64 { return tt.free }
		r.host.change(b, func(r *record) { r.Layer = tt.layer })
		end := r.host.roomToRead(b)
		if got := b.group.Limit() - hard; got != tt.want {
			t.Errorf("with %d free and %d to read the limit grows by %d, not %d", tt.free, tt.layer, got, tt.want)
		}
		end()
		for late := time.Now().Add(patience); b.group.Limit() != hard && time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
		}
		if got := b.group.Limit(); got != hard {
			t.Errorf("afterwards the limit is %d, not %d", got, hard)
		}
	}
	must(t, r.host.stop(t.Context(), id))
}
