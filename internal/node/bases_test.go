package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
)

// openBases counts the open files of bases below a folder. They have no names.
func openBases(t *testing.T, dir string) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, filepath.Join(dir, "bases")+"/") {
			n++
		}
	}
	return n
}

// Bases that are not used are forgotten, and there are few of them. A new one of the same
// state replaces the former.
func TestBasesAreForgotten(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		snapshot := w.save(refOf(req, w.start(req)), false)
		var out bytes.Buffer
		codetest.OK(t, "ExportBase", w.node.ExportBase(t.Context(), name, snapshot, &out))
		var names []string
		for i := range 9 {
			names = append(names, sandbox.NewSnapshotID())
			for range 2 {
				codetest.OK(t, "KeepBase", w.node.KeepBase(t.Context(), name, names[i], bytes.NewReader(out.Bytes())))
			}
			time.Sleep(time.Millisecond)
		}
		oldest := sandbox.ChangesRequest{Snapshot: sandbox.NewSnapshotID(), Base: names[0]}
		codetest.Want(t, "the oldest", codetest.ErrOf(w.node.ImportChanges(t.Context(), name, "t", oldest, strings.NewReader("x"))), sandbox.NotFound)
		if n := openBases(t, w.dir); n != 8 {
			t.Errorf("%d files are open", n)
		}
		time.Sleep(9 * time.Minute)
		var changes bytes.Buffer
		codetest.OK(t, "ExportChanges", w.node.ExportChanges(t.Context(), name, snapshot, snapshot, &changes))
		r := sandbox.ChangesRequest{Snapshot: sandbox.NewSnapshotID(), Base: names[1]}
		if _, err := w.node.ImportChanges(t.Context(), name, "t", r, &changes); err != nil {
			t.Errorf("ImportChanges: %v", err)
		}
		codetest.OK(t, "ExportBase", w.node.ExportBase(t.Context(), name, snapshot, io.Discard))
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if n := openBases(t, w.dir); n != 0 {
			t.Errorf("%d files stay open", n)
		}
		codetest.Want(t, "ExportChanges later", w.node.ExportChanges(t.Context(), name, snapshot, snapshot, io.Discard), sandbox.NotFound)
		r = sandbox.ChangesRequest{Snapshot: sandbox.NewSnapshotID(), Base: names[2]}
		codetest.Want(t, "ImportChanges later", codetest.ErrOf(w.node.ImportChanges(t.Context(), name, "t", r, strings.NewReader("x"))), sandbox.NotFound)
	})
}

// Of a base that does not arrive, or for which the disk has no room, nothing is left. Neither
// is a state of changes that are not whole or not of this base.
func TestBasesThatFail(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		base := sandbox.NewSnapshotID()
		broken := errors.New("broken")
		if err := w.node.KeepBase(t.Context(), name, base, io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken))); !errors.Is(err, broken) {
			t.Errorf("KeepBase: %v", err)
		}
		w.host.set(sandbox.HostState{DiskFree: 4, DiskTotal: 100, MemoryFree: 1 << 30, MemoryTotal: 2 << 30})
		time.Sleep(time.Second)
		codetest.Want(t, "KeepBase", w.node.KeepBase(t.Context(), name, base, strings.NewReader("x")), sandbox.Exhausted)
		w.host.set(sandbox.HostState{DiskFree: 50, DiskTotal: 100, MemoryFree: 1 << 30, MemoryTotal: 2 << 30})
		time.Sleep(time.Second)
		if n := openBases(t, w.dir); n != 0 {
			t.Errorf("%d files stay open", n)
		}

		snapshot := w.save(ref, false)
		before := fmt.Sprint(w.node.ListSaved(t.Context(), name))
		for flaw, missing := range map[string]struct{ changes, base int }{"cut": {1, 0}, "of another base": {0, 1}} {
			var whole, changes bytes.Buffer
			codetest.OK(t, "ExportBase", w.node.ExportBase(t.Context(), name, snapshot, &whole))
			codetest.OK(t, "ExportChanges", w.node.ExportChanges(t.Context(), name, snapshot, snapshot, &changes))
			codetest.OK(t, "KeepBase", w.node.KeepBase(t.Context(), name, base, bytes.NewReader(whole.Bytes()[:whole.Len()-missing.base])))
			r := sandbox.ChangesRequest{Snapshot: sandbox.NewSnapshotID(), Base: base}
			_, err := w.node.ImportChanges(t.Context(), name, "t", r, bytes.NewReader(changes.Bytes()[:changes.Len()-missing.changes]))
			codetest.Want(t, "changes that are "+flaw, err, sandbox.Invalid)
		}
		if after := fmt.Sprint(w.node.ListSaved(t.Context(), name)); after != before {
			t.Errorf("the states are %s, and were %s", after, before)
		}
	})
}
