package session_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func (w *world) export(id string) []byte {
	w.t.Helper()
	var file bytes.Buffer
	if err := w.m.ExportSnapshot(w.t.Context(), "t", id, false, &file); err != nil {
		w.t.Fatalf("ExportSnapshot: %v", err)
	}
	return file.Bytes()
}

// Any Tenant can import an exported Snapshot and start Sandboxes from it.
func TestExportAndImport(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Env: map[string]string{"A": "1"}, Network: sandbox.NetworkNone, User: "user"})
		w.nodes.remember(sb, "x")
		first := w.snapshot(sb.ID, "first")
		file := w.export(first.ID)
		w.pass(time.Hour)
		for _, tenant := range []sandbox.TenantID{"t", "other"} {
			got, err := w.m.ImportSnapshot(t.Context(), tenant, sandbox.ImportRequest{}, bytes.NewReader(file))
			if err != nil {
				t.Fatal(err)
			}
			if got.ID == first.ID || got.Tenant != tenant || got.SandboxID == sb.ID || got.Parent != "" || got.Name != "first" || !got.Kept ||
				got.State != sandbox.SnapshotReady || !got.CreatedAt.After(first.CreatedAt) || !got.Memory || got.Env["A"] != "1" ||
				got.Network != sandbox.NetworkNone || got.User != "user" || got.Image != first.Image || got.Shape != first.Shape || got.Timeline != 1 {
				t.Errorf("imported %+v", got)
			}
			copied := w.create(tenant, sandbox.CreateRequest{Snapshot: got.ID})
			if held := w.nodes.recall(copied); held != "x" {
				t.Errorf("what starts from it holds %q", held)
			}
			if again, err := w.m.SnapshotByID(t.Context(), tenant, got.ID); err != nil || again.Uses != 1 {
				t.Errorf("its record is %+v, %v", again, err)
			}
			if tenant == "t" {
				continue
			}
			if _, err := w.m.End(t.Context(), tenant, copied.ID, sandbox.CauseReleased); err != nil {
				t.Error(err)
			}
			if _, err := w.m.DeleteSnapshot(t.Context(), tenant, got.ID); err != nil {
				t.Error(err)
			}
		}
		named, err := w.m.ImportSnapshot(t.Context(), "t", sandbox.ImportRequest{Name: "again"}, bytes.NewReader(file))
		if err != nil || named.Name != "again" {
			t.Errorf("imported under a name: %+v, %v", named, err)
		}
		var whole bytes.Buffer
		if err := w.m.ExportSnapshot(t.Context(), "t", first.ID, true, &whole); err != nil {
			t.Fatal(err)
		}
		with, err := w.m.ImportSnapshot(t.Context(), "t", sandbox.ImportRequest{}, &whole)
		if err != nil || !slices.Equal(w.imported.kept, []string{"t " + first.Template + " base"}) {
			t.Errorf("imported with its image: %+v, %v, kept %v", with, err, w.imported.kept)
		}
		again := w.export(named.ID) // an imported Snapshot is exported like any other
		if _, err := w.m.ImportSnapshot(t.Context(), "t", sandbox.ImportRequest{}, bytes.NewReader(again)); err != nil {
			t.Error(err)
		}
	})
}

// An image imported with a Snapshot counts against the quota. A full quota refuses the
// import at its start. An image that turns out too large is deleted with its Snapshot.
func TestImportWithAnImageBeyondTheQuota(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		first := w.snapshot(sb.ID, "")
		var whole bytes.Buffer
		if err := w.m.ExportSnapshot(t.Context(), "t", first.ID, true, &whole); err != nil {
			t.Fatal(err)
		}
		full := sandbox.Errorf(sandbox.Exhausted, "full").WithCause(sandbox.ErrOverQuota)
		plain := w.export(first.ID)
		for _, tt := range []struct {
			what    string
			state   imported
			file    []byte
			want    error
			dropped int
		}{
			{"no room", imported{onAdmit: full}, whole.Bytes(), sandbox.ErrOverQuota, 0},
			{"too large", imported{onKeep: full}, whole.Bytes(), sandbox.ErrOverQuota, 1},
			{"too many names", imported{onKeep: sandbox.Errorf(sandbox.Exhausted, "names")}, whole.Bytes(), sandbox.Exhausted, 1},
			{"nobody to keep it", imported{onKeep: sandbox.Errorf(sandbox.Unavailable, "away")}, whole.Bytes(), nil, 0},
			{"no image", imported{onAdmit: full, onKeep: full}, plain, nil, 0},
		} {
			w.imported = tt.state
			before, err := w.m.ListSnapshots(t.Context(), "t", sandbox.SnapshotQuery{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := w.m.ImportSnapshot(t.Context(), "t", sandbox.ImportRequest{}, bytes.NewReader(tt.file))
			if !errors.Is(err, tt.want) || len(w.imported.dropped) != tt.dropped {
				t.Errorf("%s: %+v, %v, dropped %v", tt.what, got, err, w.imported.dropped)
			}
			after, err := w.m.ListSnapshots(t.Context(), "t", sandbox.SnapshotQuery{})
			left, leftErr := w.store.SnapshotsLeft(t.Context())
			more := len(after.Snapshots) - len(before.Snapshots)
			if err := errors.Join(err, leftErr); err != nil || len(left) != 0 || (more == 1) != (tt.want == nil) {
				t.Errorf("%s: %d more snapshots, left %v, %v", tt.what, more, left, err)
			}
		}
	})
}

func TestExportRefused(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		snap := w.snapshot(sb.ID, "")
		for what, tt := range map[string]struct {
			tenant sandbox.TenantID
			id     string
			want   sandbox.Code
		}{
			"another tenant's":      {"other", snap.ID, sandbox.NotFound},
			"one that is not there": {"t", sandbox.NewSnapshotID(), sandbox.NotFound},
			"nonsense":              {"t", "../x", sandbox.NotFound},
		} {
			var file bytes.Buffer
			if err := w.m.ExportSnapshot(t.Context(), tt.tenant, tt.id, false, &file); sandbox.CodeOf(err) != tt.want || file.Len() > 0 {
				t.Errorf("export of %s: %v, %d bytes", what, err, file.Len())
			}
		}
		if err := w.nodes.DeleteSaved(t.Context(), local, snap.ID); err != nil {
			t.Fatal(err)
		}
		var file bytes.Buffer
		if err := w.m.ExportSnapshot(t.Context(), "t", snap.ID, false, &file); sandbox.CodeOf(err) != sandbox.Conflict || file.Len() > 0 {
			t.Errorf("export of what was lost: %v, %d bytes", err, file.Len())
		}
		if _, err := w.m.DeleteSnapshot(t.Context(), "t", snap.ID); err != nil {
			t.Error(err)
		}
	})
}

// A failed import leaves neither record nor bytes.
func TestImportLeavesNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		sb := w.create("t", sandbox.CreateRequest{})
		snap := w.snapshot(sb.ID, "")
		file := w.export(snap.ID)
		changed := slices.Clone(file)
		changed[len(changed)-40] ^= 1
		full := sandbox.Errorf(sandbox.Exhausted, "no room")
		for what, tt := range map[string]struct {
			req    sandbox.ImportRequest
			file   []byte
			faults faults
			want   sandbox.Code
		}{
			"a file that was cut":      {file: file[:len(file)-1], want: sandbox.Invalid},
			"a file that was changed":  {file: changed, want: sandbox.Invalid},
			"something else":           {file: []byte("hello"), want: sandbox.Invalid},
			"nothing":                  {want: sandbox.Invalid},
			"a name that is none":      {file: file, req: sandbox.ImportRequest{Name: "a/b"}, want: sandbox.Invalid},
			"a node that has no room":  {file: file, faults: faults{onImport: func(string) error { return full }}, want: sandbox.Exhausted},
			"an answer that gets lost": {file: file, faults: faults{onImport: func(string) error { return errors.New("lost") }}, want: sandbox.Internal},
		} {
			w.nodes.fail(func(f *faults) { *f = tt.faults })
			_, err := w.m.ImportSnapshot(t.Context(), "t", tt.req, bytes.NewReader(tt.file))
			if sandbox.CodeOf(err) != tt.want {
				t.Errorf("import of %s: %v", what, err)
			}
			w.nodes.mend()
			synctest.Wait()
			page, err := w.m.ListSnapshots(t.Context(), "t", sandbox.SnapshotQuery{})
			if left, leftErr := w.store.SnapshotsLeft(t.Context()); err != nil || leftErr != nil || len(page.Snapshots) != 1 || len(left) != 0 {
				t.Errorf("after an import of %s: %+v, %+v, %v, %v", what, page, left, err, leftErr)
			}
		}
		w.stop()
	})
}

// A repeated import with the same ID takes effect once, also after a crash.
func TestImportTakesEffectOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		file := w.export(w.snapshot(sb.ID, "").ID)
		req := sandbox.ImportRequest{ID: sandbox.NewSnapshotID()}
		first, err := w.m.ImportSnapshot(t.Context(), "t", req, bytes.NewReader(file))
		if err != nil || first.ID != req.ID {
			t.Fatalf("imported %+v, %v", first, err)
		}
		again, err := w.m.ImportSnapshot(t.Context(), "t", req, bytes.NewReader(file))
		if err != nil || again.ID != first.ID || !again.CreatedAt.Equal(first.CreatedAt) {
			t.Errorf("imported again %+v, %v", again, err)
		}
		if _, err := w.m.ImportSnapshot(t.Context(), "other", req, bytes.NewReader(file)); sandbox.CodeOf(err) != sandbox.Conflict {
			t.Errorf("another tenant's: %v", err)
		}
		// A crashed process left a record without bytes.
		dead := sandbox.Snapshot{
			ID: sandbox.NewSnapshotID(), Tenant: "t", SandboxID: sandbox.NewSandboxID(), Kept: true, State: sandbox.SnapshotSaving,
			CreatedAt: time.Now(), Node: local, Template: "base", Image: first.Image, Shape: first.Shape, Limits: first.Limits, Timeline: 1,
		}
		if _, err := w.store.InsertSnapshot(t.Context(), dead); err != nil {
			t.Fatal(err)
		}
		if got, err := w.m.ImportSnapshot(t.Context(), "t", sandbox.ImportRequest{ID: dead.ID}, bytes.NewReader(file)); err != nil || got.State != sandbox.SnapshotReady {
			t.Errorf("imported after a death: %+v, %v", got, err)
		}
		if _, err := w.m.DeleteSnapshot(t.Context(), "t", first.ID); err != nil {
			t.Fatal(err)
		}
	})
}

// An import whose client fails returns the client's error.
func TestImportOfAClientThatFails(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		sb := w.create("t", sandbox.CreateRequest{})
		file := w.export(w.snapshot(sb.ID, "").ID)
		slow := sandbox.Errorf(sandbox.Invalid, "the body came too slowly")
		for _, n := range []int{0, 20, len(file) / 2, len(file) - 1} {
			from := io.MultiReader(bytes.NewReader(file[:n]), failing{slow})
			if _, err := w.m.ImportSnapshot(t.Context(), "t", sandbox.ImportRequest{}, from); !errors.Is(err, slow) {
				t.Errorf("failing at %d: %v", n, err)
			}
		}
		synctest.Wait()
		w.stop()
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
