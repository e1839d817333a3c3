package replication_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/replication"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
)

// asEarlier changes the files of a stopped Engine to those that an earlier version would have
// written, in which the packs are recorded. The states of deleting are being deleted.
func (w *world) asEarlier(t *testing.T, names []string, deleting string) {
	t.Helper()
	for _, name := range names {
		list := filepath.Join(w.cfg.Dir, name+".chunks")
		raw, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		head := raw[len("CSBXLIST1\n"):]
		var of struct{ Packs []string }
		if err := json.Unmarshal(head[4:4+binary.BigEndian.Uint32(head)], &of); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(w.cfg.Dir, name+".json")
		record := map[string]any{}
		content, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(content, &record)
		}
		if err != nil {
			t.Fatal(err)
		}
		record["packs"] = of.Packs
		delete(record, "prefix")
		if name == deleting {
			record["deleting"] = true
		}
		if content, err = json.Marshal(record); err == nil {
			err = os.WriteFile(file, content, 0o600)
		}
		if err == nil {
			err = os.Rename(list, strings.TrimSuffix(list, ".chunks")+".list")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(w.cfg.Dir, "id"), []byte("identity\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What an earlier version has copied is registered before anything is deleted: states share
// packs. Its files then name no packs any more, so that it deletes none if it is started again.
func TestCopiesOfAnEarlierVersion(t *testing.T) {
	w := open(t, 0)
	text := much(5<<20, 3)
	var names []string
	for i := range 3 {
		names = append(names, w.save(t, text+string(rune('a'+i)), "t"))
	}
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 3 })
	before := len(w.kept(t))
	w.stop()
	w.asEarlier(t, names, names[0])
	w.store = sqlitetest.Open(t) // as it is after the migration
	for _, name := range names[1:] {
		if err := insert(t.Context(), w.store, w.cfg.Node, name, "t"); err != nil {
			t.Fatal(err)
		}
	}
	away := &refusing{CopyRecords: w.store}
	away.refuse.Store(true)
	w.cfg.Records, w.cfg.Retry = away, 20*time.Millisecond
	collectIn(t, w.store, w.blobs)
	began := time.Now()
	w.restart(t)
	for away.refused.Load() < 5 { // it tries again
		time.Sleep(time.Millisecond)
	}
	if took := time.Since(began); took < (1+2+4+8)*w.cfg.Retry {
		t.Errorf("four more attempts came within %s: each pause is twice the one before", took)
	}
	if s := w.Stats(); s.Left != 1 {
		t.Errorf("before the registration: %+v", s)
	}
	away.refuse.Store(false)
	w.until(t, "the first is deleted", func(s replication.Stats) bool { return s.Left == 0 })
	w.left(t, before-1) // its list: the others use its packs
	for _, pattern := range []string{"id", "*.list"} {
		if files, err := filepath.Glob(filepath.Join(w.cfg.Dir, pattern)); err != nil || len(files) > 0 {
			t.Errorf("%v are there, %v", files, err)
		}
	}
	for i, name := range names[1:] {
		if raw, err := os.ReadFile(filepath.Join(w.cfg.Dir, name+".json")); err != nil || strings.Contains(string(raw), `"packs"`) {
			t.Errorf("the record is %s, %v", raw, err)
		}
		if prefix, err := w.store.FindCopy(t.Context(), "t", name); err != nil || prefix == "" {
			t.Errorf("FindCopy = %q, %v", prefix, err)
		}
		if err := w.inner.DeleteSaved(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if got, err := w.file(t, name); err != nil || got != text+string(rune('b'+i)) {
			t.Errorf("it holds %d bytes, %v", len(got), err)
		}
	}
	put := w.Stats().PutBytes
	names = append(names, w.save(t, text+"d", "t"))
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 1 })
	if more := w.Stats().PutBytes - put; more > 1<<20 {
		t.Errorf("%d bytes were put beside what the earlier version has", more)
	}
	for _, name := range names[1:] {
		if err := w.DeleteSaved(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	w.left(t, 1)
}

// A blob that cannot be deleted holds up no other one.
func TestBlobThatStays(t *testing.T) {
	w := open(t, 0)
	names := []string{w.save(t, much(9<<20, 5), "t")}
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 1 })
	first := w.kept(t)
	names = append(names, w.save(t, much(9<<20, 6), "t"))
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 2 })
	w.stop()
	// The list of the first, which then keeps its packs, and a pack of the second.
	stays := slices.DeleteFunc(w.kept(t), func(name string) bool { return !strings.HasSuffix(name, "/s/"+names[0]) })
	second := slices.DeleteFunc(packs(w.kept(t)), func(name string) bool { return slices.Contains(first, name) })
	w.blobs.keep(append(stays, second[0]))
	for _, name := range names {
		if err := w.store.RetireSnapshot(t.Context(), name, false); err != nil {
			t.Fatal(err)
		}
		if err := w.store.DropSnapshot(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	w.left(t, len(first)+1)
	w.blobs.keep(nil)
	w.left(t, 1)
}

// A pack that is being deleted is not shared, and one with its content has another name.
func TestPackThatIsBeingDeleted(t *testing.T) {
	w := open(t, 0)
	text := much(5<<20, 4)
	name := w.save(t, text, "t")
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 1 })
	before := packs(w.kept(t))
	w.cfg.Records = &refusing{CopyRecords: w.store, packs: before}
	w.restart(t)
	other := w.save(t, text, "t")
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 1 && s.Waiting == 0 })
	if now := packs(w.kept(t)); len(now) != 2*len(before) {
		t.Errorf("there are %d packs, and %d before", len(now), len(before))
	}
	for _, name := range []string{name, other} {
		if err := w.inner.DeleteSaved(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if got, err := w.file(t, name); err != nil || got != text {
			t.Errorf("it holds %d bytes, %v", len(got), err)
		}
		if err := w.DeleteSaved(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	w.left(t, 1)
}

// refusing are records that are away, or that refuse packs as those that are being deleted.
type refusing struct {
	sandbox.CopyRecords
	packs   []string
	refuse  atomic.Bool
	refused atomic.Int64
}

func (r *refusing) FindCopy(ctx context.Context, tenant sandbox.TenantID, snapshot string) (string, error) {
	if r.refuse.Load() {
		return "", sandbox.Errorf(sandbox.Unavailable, "no session manager answers")
	}
	return r.CopyRecords.FindCopy(ctx, tenant, snapshot)
}

func (r *refusing) BeginCopy(ctx context.Context, node string, c sandbox.CopyRef) (sandbox.CopyAttempt, error) {
	if r.refuse.Load() {
		r.refused.Add(1)
		return sandbox.CopyAttempt{}, sandbox.Errorf(sandbox.Unavailable, "no session manager answers")
	}
	return r.CopyRecords.BeginCopy(ctx, node, c)
}

func (r *refusing) UsePacks(ctx context.Context, node string, use sandbox.PackUse) ([]string, error) {
	var refused []string
	use.Packs = slices.DeleteFunc(slices.Clone(use.Packs), func(pack string) bool {
		gone := slices.Contains(r.packs, pack)
		if gone {
			refused = append(refused, pack)
		}
		return gone
	})
	more, err := r.CopyRecords.UsePacks(ctx, node, use)
	return append(refused, more...), err
}
