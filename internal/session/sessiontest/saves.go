package sessiontest

import (
	"bytes"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func pauseAndResume(w *world) {
	t := w.t
	sb := w.create("t", sandbox.CreateRequest{Name: "web", Timeout: time.Hour, Env: map[string]string{"A": "1"}})
	w.Remember(sb, "x")
	paused := w.pause("web")
	if paused.State != sandbox.Paused || paused.Boot.ID != "" || paused.Boot.Number != 1 || paused.Snapshot == "" || !near(paused.Deadline, sandbox.PausedLife) {
		t.Errorf("paused as %+v", paused)
	}
	if again := w.pause(sb.ID); !reflect.DeepEqual(again, paused) {
		t.Errorf("paused again it is %+v, was %+v", again, paused)
	}
	resumed, err := w.Resume(t.Context(), "t", "web")
	codetest.OK(w.t, "Resume", err)
	if resumed.State != sandbox.Running || resumed.Boot.Number != 2 || resumed.Timeline != 1 || resumed.ID != sb.ID ||
		!resumed.StartedAt.Equal(sb.StartedAt) || !near(resumed.Deadline, time.Hour) || resumed.Env["A"] != "1" {
		t.Errorf("resumed as %+v", resumed)
	}
	if got := w.Recall(resumed); got != "x" {
		t.Errorf("its memory holds %q", got)
	}
	if again, err := w.Resume(t.Context(), "t", sb.ID); err != nil || !reflect.DeepEqual(again, resumed) {
		t.Errorf("resumed again it is %+v, %v", again, err)
	}
}

// Concurrent resumes start one Boot, and all callers get it.
func resumeAtOnce(w *world) {
	sb := w.create("t", sandbox.CreateRequest{})
	w.pause(sb.ID)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if got, err := w.Resume(w.t.Context(), "t", sb.ID); err != nil || got.State != sandbox.Running || got.Boot.Number != 2 {
				w.t.Errorf("Resume = %+v, %v", got, err)
			}
		})
	}
	wg.Wait()
}

func reboot(w *world) {
	sb := w.create("t", sandbox.CreateRequest{})
	w.Remember(sb, "x")
	w.pause(sb.ID)
	got, err := w.Reboot(w.t.Context(), "t", sb.ID)
	if err != nil || got.State != sandbox.Running || got.Boot.Number != 2 {
		w.t.Fatalf("Reboot = %+v, %v", got, err)
	}
	if held := w.Recall(got); held != "" {
		w.t.Errorf("after a reboot its memory holds %q", held)
	}
}

func snapshots(w *world) {
	t, ctx := w.t, w.t.Context()
	sb := w.create("t", sandbox.CreateRequest{Env: map[string]string{"A": "1"}, User: "root", Network: sandbox.NetworkNone})
	w.Remember(sb, "one")
	first := w.snapshot(sb.ID, "first")
	w.Remember(sb, "two")
	secondOne := w.snapshot(sb.ID, "")
	if r := w.get(sb.ID); r.State != sandbox.Running || r.Boot != sb.Boot || r.Snapshot != secondOne.ID {
		t.Errorf("the original became %+v", r)
	}
	if first.Parent != "" || secondOne.Parent != first.ID || !first.Kept || first.Bytes == 0 || !first.Memory || first.State != sandbox.SnapshotReady || first.SandboxID != sb.ID {
		t.Errorf("first %+v\nsecond %+v", first, secondOne)
	}
	codetest.Want(w.t, "a name in use", codetest.ErrOf(w.TakeSnapshot(ctx, "t", sb.ID, sandbox.SnapshotRequest{Name: "first"})), sandbox.Conflict)
	codetest.Want(w.t, "a bad name", codetest.ErrOf(w.TakeSnapshot(ctx, "t", sb.ID, sandbox.SnapshotRequest{Name: "-"})), sandbox.Invalid)

	other := w.create("t", sandbox.CreateRequest{Snapshot: first.ID, Name: "other"})
	if got := w.Recall(other); got != "one" || other.Env["A"] != "1" || other.User != "root" || other.Network != sandbox.NetworkNone {
		t.Errorf("started with %q as %+v", got, other)
	}
	mine := w.create("t", sandbox.CreateRequest{Snapshot: first.ID, Env: map[string]string{"B": "2"}, Network: sandbox.NetworkPublic})
	if len(mine.Env) != 1 || mine.Env["B"] != "2" || mine.Network != sandbox.NetworkPublic {
		t.Errorf("started as %+v", mine)
	}
	for _, bad := range []sandbox.CreateRequest{{Snapshot: "-"}, {Snapshot: first.ID, Template: "base"}, {Snapshot: first.ID, Shape: sandbox.DefaultShape()}} {
		codetest.Want(w.t, "a bad start", codetest.ErrOf(w.Create(ctx, "t", bad)), sandbox.Invalid)
	}
	if named := w.create("t", sandbox.CreateRequest{Snapshot: "first"}); w.Recall(named) != "one" {
		t.Errorf("by its name it started with %q", w.Recall(named))
	}

	third := w.snapshot(other.ID, "")
	tree, err := w.History(ctx, "t", "other")
	if err != nil || len(tree) != 2 || tree[0].ID != first.ID || tree[1].ID != third.ID || third.Parent != first.ID {
		t.Errorf("history %+v, %v", tree, err)
	}
	if gone, err := w.DeleteSnapshot(ctx, "t", first.ID); err != nil || gone.ID != first.ID {
		t.Errorf("DeleteSnapshot = %+v, %v", gone, err)
	}
	if again, err := w.SnapshotByID(ctx, "t", secondOne.ID); err != nil || again.Parent != "" {
		t.Errorf("without its parent: %+v, %v", again, err)
	}
	codetest.Want(w.t, "DeleteSnapshot again", codetest.ErrOf(w.DeleteSnapshot(ctx, "t", first.ID)), sandbox.NotFound)
	codetest.Want(w.t, "SnapshotByID of it", codetest.ErrOf(w.SnapshotByID(ctx, "t", first.ID)), sandbox.NotFound)
}

// With TakeName a name moves from one Snapshot of a Sandbox to the next.
func takeName(w *world) {
	t := w.t
	sb := w.create("t", sandbox.CreateRequest{})
	var last sandbox.Snapshot
	for range 3 {
		snap, err := w.TakeSnapshot(t.Context(), "t", sb.ID, sandbox.SnapshotRequest{Name: "turns", TakeName: true})
		if err != nil || snap.Name != "turns" || !snap.Kept || snap.ID == last.ID {
			t.Fatalf("%+v, %v", snap, err)
		}
		if last.ID != "" {
			if before, err := w.SnapshotByID(t.Context(), "t", last.ID); err != nil || before.Name != "" || !before.Kept {
				t.Errorf("the one before is %+v, %v", before, err)
			}
		}
		last = snap
	}
	page, err := w.ListSnapshots(t.Context(), "t", sandbox.SnapshotQuery{Name: "turns"})
	if err != nil || len(page.Snapshots) != 1 || page.Snapshots[0].ID != last.ID {
		t.Errorf("of that name: %+v, %v", page, err)
	}
}

// The Snapshot of a paused Sandbox can be kept, and cannot be deleted while the Sandbox is
// paused.
func snapshotOfPaused(w *world) {
	t, ctx := w.t, w.t.Context()
	sb := w.create("t", sandbox.CreateRequest{})
	w.Remember(sb, "x")
	paused := w.pause(sb.ID)
	kept := w.snapshot(sb.ID, "monday")
	if kept.ID != paused.Snapshot || !kept.Kept || kept.Name != "monday" {
		t.Errorf("kept %+v", kept)
	}
	if again := w.snapshot(sb.ID, "monday"); again.ID != kept.ID {
		t.Errorf("kept again %+v", again)
	}
	codetest.Want(w.t, "another name", codetest.ErrOf(w.TakeSnapshot(ctx, "t", sb.ID, sandbox.SnapshotRequest{Name: "tuesday"})), sandbox.Conflict)
	codetest.Want(w.t, "DeleteSnapshot of what it is paused in", codetest.ErrOf(w.DeleteSnapshot(ctx, "t", kept.ID)), sandbox.Conflict)
	codetest.OK(w.t, "End", codetest.ErrOf(w.End(ctx, "t", sb.ID, sandbox.CauseReleased)))
	if got := w.Recall(w.create("t", sandbox.CreateRequest{Snapshot: kept.ID})); got != "x" {
		t.Errorf("what starts from it holds %q", got)
	}
}

func snapshotPages(w *world) {
	sb := w.create("t", sandbox.CreateRequest{})
	var want, got []string // newest first
	for _, name := range []string{"a", "b", "c"} {
		want = slices.Insert(want, 0, w.snapshot(sb.ID, name).ID)
	}
	for q := (sandbox.SnapshotQuery{Limit: 2}); ; {
		page, err := w.ListSnapshots(w.t.Context(), "t", q)
		if err != nil || len(page.Snapshots) > 2 {
			w.t.Fatalf("ListSnapshots = %+v, %v", page, err)
		}
		for _, s := range page.Snapshots {
			got = append(got, s.ID)
		}
		if q.Cursor = page.Next; page.Next == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("in pages: %v, want %v", got, want)
	}
}

func fork(w *world, paused bool) {
	t, ctx := w.t, w.t.Context()
	sb := w.create("t", sandbox.CreateRequest{
		Name: "web", Metadata: map[string]string{"a": "1", "b": "2"}, Env: map[string]string{"A": "1"}, Timeout: time.Hour, OnTimeout: sandbox.OnTimeoutPause,
	})
	w.Remember(sb, "x")
	state := sandbox.Running
	if paused {
		w.pause("web")
		state = sandbox.Paused
	}
	forks, err := w.Fork(ctx, "t", "web", sandbox.ForkRequest{
		Count: 3, Name: "try", Metadata: map[string]*string{"a": nil, "c": new("3")}, Env: map[string]*string{"A": nil},
	})
	if err != nil || len(forks) != 3 {
		t.Fatalf("Fork = %+v, %v", forks, err)
	}
	for i, f := range forks {
		if f.Err != nil || f.Sandbox.State != sandbox.Running || f.Sandbox.Name != []string{"try-1", "try-2", "try-3"}[i] || f.Sandbox.ID == sb.ID ||
			!reflect.DeepEqual(f.Sandbox.Metadata, map[string]string{"b": "2", "c": "3"}) || len(f.Sandbox.Env) != 0 ||
			f.Sandbox.Timeout != time.Hour || f.Sandbox.OnTimeout != sandbox.OnTimeoutPause || f.Sandbox.Boot.Number != 1 {
			t.Errorf("fork %d is %+v, %v", i, f.Sandbox, f.Err)
		}
		if got := w.Recall(f.Sandbox); got != "x" {
			t.Errorf("fork %d holds %q", i, got)
		}
	}
	if r := w.get(sb.ID); r.State != state {
		t.Errorf("the original is %s", r.State)
	}
}

func forkRefuses(w *world) {
	sb := w.create("t", sandbox.CreateRequest{Name: "web"})
	for _, bad := range []sandbox.ForkRequest{{}, {Count: -1}, {Count: sandbox.MaxForks + 1}, {Count: 1, Name: "-"}, {Count: 1, OnTimeout: "x"}} {
		codetest.Want(w.t, "a bad fork", codetest.ErrOf(w.Fork(w.t.Context(), "t", sb.ID, bad)), sandbox.Invalid)
	}
	if n, err := w.Counts(w.t.Context(), "t"); err != nil || n[sandbox.Running] != 1 {
		w.t.Errorf("after what was refused: %v, %v", n, err)
	}
}

func rollback(w *world) {
	t, ctx := w.t, w.t.Context()
	sb := w.create("t", sandbox.CreateRequest{})
	w.Remember(sb, "one")
	first := w.snapshot(sb.ID, "first")
	w.Remember(sb, "two")
	back, err := w.Rollback(ctx, "t", sb.ID, "first")
	if err != nil || back.State != sandbox.Running || back.Timeline != 2 || back.Boot.Number != 2 || back.Snapshot != first.ID {
		t.Fatalf("Rollback = %+v, %v", back, err)
	}
	if got := w.Recall(back); got != "one" {
		t.Errorf("its memory holds %q", got)
	}
	w.Remember(back, "three")
	w.pause(sb.ID)
	if back, err = w.Rollback(ctx, "t", sb.ID, first.ID); err != nil || w.Recall(back) != "one" || back.Timeline != 3 {
		t.Errorf("Rollback of a paused one = %+v, %v", back, err)
	}
	other := w.create("t", sandbox.CreateRequest{})
	foreign := w.snapshot(other.ID, "foreign")
	for _, id := range []string{foreign.ID, "foreign", "", sandbox.NewSnapshotID()} {
		codetest.Want(w.t, "Rollback to "+id, codetest.ErrOf(w.Rollback(ctx, "t", sb.ID, id)), sandbox.NotFound)
	}
}

// Any Tenant can import an exported Snapshot and start Sandboxes from it.
func exportAndImport(w *world) {
	t, ctx := w.t, w.t.Context()
	sb := w.create("t", sandbox.CreateRequest{Env: map[string]string{"A": "1"}, Network: sandbox.NetworkNone, User: "user"})
	w.Remember(sb, "x")
	first := w.snapshot(sb.ID, "first")
	var file bytes.Buffer
	codetest.OK(w.t, "ExportSnapshot", w.ExportSnapshot(ctx, "t", first.ID, false, &file))
	for _, tenant := range []sandbox.TenantID{"t", "other"} {
		id := sandbox.NewSnapshotID()
		got, err := w.ImportSnapshot(ctx, tenant, sandbox.ImportRequest{ID: id}, bytes.NewReader(file.Bytes()))
		codetest.OK(w.t, "ImportSnapshot", err)
		if got.ID != id || got.Tenant != tenant || got.SandboxID == sb.ID || got.Parent != "" || got.Name != "first" || !got.Kept ||
			got.State != sandbox.SnapshotReady || !got.CreatedAt.After(first.CreatedAt) || !got.Memory || got.Env["A"] != "1" ||
			got.Network != sandbox.NetworkNone || got.User != "user" || got.Image != first.Image || got.Shape != first.Shape || got.Timeline != 1 {
			t.Errorf("imported %+v", got)
		}
		if held := w.Recall(w.create(tenant, sandbox.CreateRequest{Snapshot: got.ID})); held != "x" {
			t.Errorf("what starts from it holds %q", held)
		}
		if again, err := w.SnapshotByID(ctx, tenant, got.ID); err != nil || again.Uses != 1 {
			t.Errorf("its record is %+v, %v", again, err)
		}
	}
	named, err := w.ImportSnapshot(ctx, "t", sandbox.ImportRequest{Name: "again"}, bytes.NewReader(file.Bytes()))
	if err != nil || named.Name != "again" {
		t.Errorf("imported under a name: %+v, %v", named, err)
	}
}

func importRefuses(w *world) {
	t, ctx := w.t, w.t.Context()
	sb := w.create("t", sandbox.CreateRequest{})
	var file bytes.Buffer
	codetest.OK(w.t, "ExportSnapshot", w.ExportSnapshot(ctx, "t", w.snapshot(sb.ID, "").ID, false, &file))
	codetest.Want(w.t, "ExportSnapshot of none", w.ExportSnapshot(ctx, "t", sandbox.NewSnapshotID(), false, io.Discard), sandbox.NotFound)
	for what, content := range map[string]string{
		"nothing": "", "nonsense": "nonsense", "half a file": file.String()[:file.Len()/2], "more than a file": file.String() + "x",
	} {
		codetest.Want(w.t, what, codetest.ErrOf(w.ImportSnapshot(ctx, "t", sandbox.ImportRequest{}, strings.NewReader(content))), sandbox.Invalid)
	}
	if page, err := w.ListSnapshots(ctx, "t", sandbox.SnapshotQuery{}); err != nil || len(page.Snapshots) != 1 {
		t.Errorf("after what was refused: %+v, %v", page, err)
	}
}

func volumes(w *world) {
	t, ctx := w.t, w.t.Context()
	v, err := w.CreateVolume(ctx, "t", sandbox.VolumeRequest{Name: "data", MaxBytes: 5 << 20})
	if err != nil || v.Name != "data" || v.MaxBytes != 5<<20 || v.Node == "" || v.State != sandbox.VolumeReady {
		t.Fatalf("made %+v, %v", v, err)
	}
	other, err := w.CreateVolume(ctx, "t", sandbox.VolumeRequest{Name: "other", ID: sandbox.NewVolumeID()})
	if err != nil || other.MaxBytes != sandbox.DefaultVolumeBytes {
		t.Errorf("one of any size is %+v, %v", other, err)
	}
	if again, err := w.CreateVolume(ctx, "t", sandbox.VolumeRequest{Name: "other", ID: other.ID}); err != nil || again != other {
		t.Errorf("a repeat made %+v, %v", again, err)
	}
	for _, key := range []string{v.ID, "data"} {
		if got, err := w.GetVolume(ctx, "t", key); err != nil || got != v {
			t.Errorf("GetVolume(%s) = %+v, %v", key, got, err)
		}
	}
	for _, key := range []string{"", "none", "a/b", sandbox.NewVolumeID()} {
		codetest.Want(w.t, "a look at "+key, codetest.ErrOf(w.GetVolume(ctx, "t", key)), sandbox.NotFound)
		codetest.Want(w.t, "a delete of "+key, codetest.ErrOf(w.DeleteVolume(ctx, "t", key)), sandbox.NotFound)
	}
	for _, req := range []sandbox.VolumeRequest{{}, {Name: "a b"}, {Name: sandbox.NewVolumeID()}, {Name: "a", MaxBytes: 1}, {Name: "a", ID: "x"}} {
		codetest.Want(w.t, "a bad request", codetest.ErrOf(w.CreateVolume(ctx, "t", req)), sandbox.Invalid)
	}
	codetest.Want(w.t, "a name in use", codetest.ErrOf(w.CreateVolume(ctx, "t", sandbox.VolumeRequest{Name: "data"})), sandbox.Conflict)
	if all, err := w.ListVolumes(ctx, "t"); err != nil || !slices.Equal(all, []sandbox.Volume{v, other}) {
		t.Errorf("ListVolumes = %+v, %v", all, err)
	}
	if gone, err := w.DeleteVolume(ctx, "t", "data"); err != nil || gone.ID != v.ID {
		t.Errorf("DeleteVolume = %+v, %v", gone, err)
	}
	codetest.Want(w.t, "a second delete", codetest.ErrOf(w.DeleteVolume(ctx, "t", "data")), sandbox.NotFound)
	codetest.OK(w.t, "CreateVolume", codetest.ErrOf(w.CreateVolume(ctx, "t", sandbox.VolumeRequest{Name: "data"})))
}

func mountedVolumes(w *world) {
	t, ctx := w.t, w.t.Context()
	v, err := w.CreateVolume(ctx, "t", sandbox.VolumeRequest{Name: "data"})
	codetest.OK(w.t, "CreateVolume", err)
	sb := w.create("t", sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: "data", Path: "/data"}}})
	if want := []sandbox.VolumeMount{{Volume: v.ID, Name: "data", Path: "/data"}}; !slices.Equal(sb.Volumes, want) {
		t.Errorf("it has %+v, want %+v", sb.Volumes, want)
	}
	codetest.Want(w.t, "DeleteVolume of a mounted one", codetest.ErrOf(w.DeleteVolume(ctx, "t", "data")), sandbox.Conflict)
	codetest.Want(w.t, "other volumes", codetest.ErrOf(w.Update(ctx, "t", sb.ID, sandbox.Change{Volumes: &[]sandbox.VolumeMount{}})), sandbox.Conflict)
	codetest.Want(w.t, "another tenant's volume", codetest.ErrOf(w.Create(ctx, "x", sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: v.ID, Path: "/data"}}})), sandbox.Invalid)
	w.pause(sb.ID)
	codetest.Want(w.t, "DeleteVolume of a paused one's", codetest.ErrOf(w.DeleteVolume(ctx, "t", "data")), sandbox.Conflict)
	codetest.OK(w.t, "End", codetest.ErrOf(w.End(ctx, "t", sb.ID, sandbox.CauseReleased)))
	codetest.OK(w.t, "DeleteVolume", codetest.ErrOf(w.DeleteVolume(ctx, "t", "data")))
}
