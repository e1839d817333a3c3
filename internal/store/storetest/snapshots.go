package storetest

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// snapshot is a record with every field set.
func snapshot(tenant sandbox.TenantID, of string) sandbox.Snapshot {
	return sandbox.Snapshot{
		ID: sandbox.NewSnapshotID(), Tenant: tenant, SandboxID: of, State: sandbox.SnapshotReady, CreatedAt: epoch, Node: "local",
		Bytes: 12345, Memory: true, Build: "build", Digest: "digest", CPU: "avx sse", Kept: true,
		Template: "base", Image: "sha256:1234", Shape: sandbox.Shape{CPUs: 1.5, MemoryBytes: 512 << 20, DiskBytes: 4 << 30, Pids: 512},
		Limits:  sandbox.Limits{CPUs: 0.5, MemoryBytes: 300 << 20, Pids: 100, Bandwidth: 250_000},
		Network: sandbox.NetworkNone, Env: map[string]string{"A": "1"}, User: "root", Cwd: "/srv", Timeline: 3,
	}
}

func insertSnapshot(t *testing.T, st sandbox.Store, s sandbox.Snapshot) sandbox.Snapshot {
	t.Helper()
	got, err := st.InsertSnapshot(t.Context(), s)
	if err != nil {
		t.Fatalf("InsertSnapshot: %v", err)
	}
	return got
}

// standing adds a Sandbox in a State that refers to a Snapshot.
func standing(t *testing.T, st sandbox.Store, state sandbox.State, id string) sandbox.Sandbox {
	t.Helper()
	sb := sample("t")
	sb.State, sb.Snapshot = state, id
	return insert(t, st, sb)
}

func snapshotRoundTrip(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	parent := insertSnapshot(t, st, snapshot("t", "i1"))
	s := snapshot("t", "i1")
	s.Name, s.Parent, s.State = "before", parent.ID, sandbox.SnapshotSaving
	s.Layer, s.UsedAt = strings.Repeat("1a", 32), epoch.Add(time.Hour)
	got := insertSnapshot(t, st, s)
	s.Version = 1
	read := func() sandbox.Snapshot {
		t.Helper()
		r, err := st.SnapshotByID(ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := read(); !reflect.DeepEqual(r, s) || !reflect.DeepEqual(got, s) {
		t.Errorf("read %+v\nwrote %+v\nreturned %+v", r, s, got)
	}
	s.State, s.Bytes, s.Memory, s.Build, s.Digest, s.Kept, s.Name = sandbox.SnapshotReady, 5, false, "b", "d", false, "after"
	s.CPU = "avx2 sse"
	s.Env, s.Network, s.User, s.Cwd, s.Timeline, s.Node = nil, sandbox.NetworkPublic, "", "", 4, "other"
	s.Layer, s.UsedAt = "", time.Time{}
	got, err := st.UpdateSnapshot(ctx, s)
	s.Version = 2
	if r := read(); err != nil || !reflect.DeepEqual(r, s) || !reflect.DeepEqual(got, s) {
		t.Errorf("read %+v\nwrote %+v\nreturned %+v, %v", r, s, got, err)
	}
	old := s
	old.Version = 1
	_, err = st.UpdateSnapshot(ctx, old)
	codetest.Want(t, "UpdateSnapshot of an old version", err, sandbox.Conflict)
	old.Tenant = "thief"
	_, err = st.UpdateSnapshot(ctx, old)
	codetest.Want(t, "UpdateSnapshot with another tenant", err, sandbox.NotFound)
	_, err = st.InsertSnapshot(ctx, s)
	codetest.Want(t, "InsertSnapshot again", err, sandbox.Conflict)
	_, err = st.SnapshotByID(ctx, sandbox.NewSnapshotID())
	codetest.Want(t, "SnapshotByID of nothing", err, sandbox.NotFound)
}

func snapshotNames(t *testing.T, st sandbox.Store) {
	named := func(tenant sandbox.TenantID, of, name string) error {
		s := snapshot(tenant, of)
		s.Name = name
		_, err := st.InsertSnapshot(context.Background(), s)
		return err
	}
	for _, tt := range []struct {
		of, name string
		want     sandbox.Code
	}{{"i1", "a", ""}, {"i2", "a", ""}, {"i1", "a", sandbox.Conflict}, {"i1", "", ""}, {"i1", "", ""}} {
		if err := named("t", tt.of, tt.name); sandbox.CodeOf(err) != tt.want {
			t.Errorf("%q of %s: %v, want %s", tt.name, tt.of, err, tt.want)
		}
	}
	for _, name := range []string{"a:1", "a:1.x", "ab:1", "a.b"} {
		if err := named("t", "i3", name); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		query sandbox.SnapshotQuery
		want  int
	}{
		{sandbox.SnapshotQuery{Name: "a"}, 2},
		{sandbox.SnapshotQuery{Name: "a", Tags: true}, 4},
		{sandbox.SnapshotQuery{Name: "a", Tags: true, SandboxID: "i3"}, 2},
		{sandbox.SnapshotQuery{Name: "a:1", Tags: true}, 1},
		{sandbox.SnapshotQuery{Tags: true}, 8},
	} {
		if page, err := st.ListSnapshots(context.Background(), "t", tt.query); err != nil || len(page.Snapshots) != tt.want {
			t.Errorf("%+v: %d snapshots, want %d, %v", tt.query, len(page.Snapshots), tt.want, err)
		}
	}
}

func snapshotTree(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	parent := func(id string) string {
		s, err := st.SnapshotByID(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		return s.Parent
	}
	under := func(id string) sandbox.Snapshot {
		s := snapshot("t", "i1")
		s.Parent = id
		return insertSnapshot(t, st, s)
	}
	a := under("")
	b := under(a.ID)
	c, d := under(b.ID), under(b.ID)
	for range 2 {
		if err := st.DropSnapshot(ctx, b.ID); err != nil {
			t.Fatal(err)
		}
	}
	if parent(c.ID) != a.ID || parent(d.ID) != a.ID || parent(a.ID) != "" {
		t.Errorf("without b, c is under %s and d under %s, want %s", parent(c.ID), parent(d.ID), a.ID)
	}
	if lost := under(b.ID); lost.Parent != "" {
		t.Errorf("under what is gone stands %s", lost.Parent)
	}
	foreign := snapshot("other", "i9")
	foreign.Parent = a.ID
	if got := insertSnapshot(t, st, foreign); got.Parent != "" {
		t.Error("a snapshot of another tenant became a parent")
	}
	if err := st.DropSnapshot(ctx, a.ID); err != nil || parent(c.ID) != "" {
		t.Errorf("without a, c is under %q, %v", parent(c.ID), err)
	}
}

func snapshotLists(t *testing.T, st sandbox.Store) {
	var all, ofOne []string
	for i := range 13 {
		s := snapshot("t", fmt.Sprint("i", i%2))
		s.CreatedAt = epoch.Add(time.Duration(i) * time.Second)
		all = append([]string{s.ID}, all...)
		if i%2 == 0 {
			ofOne = append([]string{s.ID}, ofOne...)
		}
		insertSnapshot(t, st, s)
		s.ID, s.State = sandbox.NewSnapshotID(), sandbox.SnapshotSaving
		insertSnapshot(t, st, s)
		insertSnapshot(t, st, snapshot("other", "i0"))
	}
	for _, limit := range []int{0, 1, 5, 13} {
		for of, want := range map[string][]string{"": all, "i0": ofOne, "i7": nil} {
			var got []string
			for query := (sandbox.SnapshotQuery{SandboxID: of, Limit: limit}); ; {
				page, err := st.ListSnapshots(t.Context(), "t", query)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range page.Snapshots {
					got = append(got, s.ID)
				}
				if query.Cursor = page.Next; page.Next == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("of %q, pages of %d: %v, want %v", of, limit, got, want)
			}
		}
	}
	named, made := snapshot("t", "i0"), snapshot("t", "i1")
	named.Name, made.Kept = "named", false
	insertSnapshot(t, st, named)
	insertSnapshot(t, st, made)
	kept := slices.DeleteFunc(append(slices.Clone(all), named.ID), func(id string) bool { return id == made.ID })
	for query, want := range map[sandbox.SnapshotQuery][]string{
		{Name: "named"}: {named.ID}, {Name: "named", SandboxID: "i0", Kept: true}: {named.ID}, {Name: "named", SandboxID: "i1"}: nil, {Name: "none"}: nil, {Kept: true}: kept,
	} {
		page, err := st.ListSnapshots(t.Context(), "t", query)
		var got []string
		for _, s := range page.Snapshots {
			got = append(got, s.ID)
		}
		if slices.Sort(got); err != nil || !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("%+v: %v, %v, want %v", query, got, err, want)
		}
	}
	for _, query := range []sandbox.SnapshotQuery{{Limit: -1}, {Limit: 101}, {Cursor: "x"}, {Cursor: "MTIz"}} {
		_, err := st.ListSnapshots(t.Context(), "t", query)
		codetest.Want(t, fmt.Sprintf("ListSnapshots(%+v)", query), err, sandbox.Invalid)
	}
}

// Layers are only in their own list, and only builds use them.
func snapshotLayers(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	plain, layer := snapshot("t", "i1"), snapshot("t", "i1")
	layer.Layer, layer.Image = strings.Repeat("1a", 32), "sha256:layers"
	insertSnapshot(t, st, plain)
	must(t, st.SetQuota(ctx, "t", &sandbox.Quota{SnapshotBytes: plain.Bytes}))
	insertSnapshot(t, st, layer)
	for query, want := range map[sandbox.SnapshotQuery]string{
		{}: plain.ID, {Kept: true}: plain.ID, {SandboxID: "i1"}: plain.ID, {Layers: true}: layer.ID, {Layers: true, SandboxID: "i1"}: layer.ID,
	} {
		page, err := st.ListSnapshots(ctx, "t", query)
		if err != nil || len(page.Snapshots) != 1 || page.Snapshots[0].ID != want {
			t.Errorf("%+v: %+v, %v, want %s", query, page.Snapshots, err, want)
		}
	}
	if _, _, used, err := st.QuotaOf(ctx, "t"); err != nil || used.Snapshots != 1 || used.SnapshotBytes != plain.Bytes {
		t.Errorf("used %+v, %v", used, err)
	}
	if page, err := st.ListSnapshots(ctx, "other", sandbox.SnapshotQuery{Layers: true}); err != nil || len(page.Snapshots) != 0 {
		t.Errorf("another tenant's: %+v, %v", page.Snapshots, err)
	}
	_, err := st.SnapshotOfImage(ctx, layer.Image)
	codetest.Want(t, "an image that only a layer stands on", err, sandbox.NotFound)
}

// Whether a Snapshot can be retired, by the Sandbox that refers to it.
func snapshotUses(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	for _, tt := range []struct {
		state       sandbox.State
		free, loose bool // whether it can be retired, and retired as unreferenced
	}{
		{sandbox.Starting, false, false},
		{sandbox.Paused, false, false},
		{sandbox.Resuming, false, false},
		{sandbox.Running, true, false},
		{sandbox.Pausing, true, false},
		{sandbox.Stopping, true, true},
		{sandbox.Ended, true, true},
	} {
		s := snapshot("t", "i1")
		s.Kept = false
		insertSnapshot(t, st, s)
		standing(t, st, tt.state, s.ID)
		if r, err := st.SnapshotByID(ctx, s.ID); err != nil || r.Uses != map[bool]int{true: 0, false: 1}[tt.loose] {
			t.Errorf("%s: %d uses, %v", tt.state, r.Uses, err)
		}
		if err := st.RetireSnapshot(ctx, s.ID, true); (err == nil) != tt.loose {
			t.Errorf("%s: retired when loose: %v", tt.state, err)
		}
		if err := st.RetireSnapshot(ctx, s.ID, false); (err == nil) != tt.free {
			t.Errorf("%s: retired: %v", tt.state, err)
		}
	}
	// A resuming Sandbox may go back to another Snapshot than the one that it resumes from.
	for _, state := range []sandbox.State{sandbox.Resuming, sandbox.Running, sandbox.Paused} {
		back := snapshot("t", "i1")
		back.Kept = false
		insertSnapshot(t, st, back)
		sb := standing(t, st, state, insertSnapshot(t, st, snapshot("t", "i1")).ID)
		sb.Back = sandbox.Back{Snapshot: back.ID, Timeline: 1, Boot: sb.Boot.Number}
		update(t, st, sb)
		left, err := st.SnapshotsLeft(ctx)
		must(t, err)
		goes := slices.ContainsFunc(left, func(s sandbox.Snapshot) bool { return s.ID == back.ID })
		if resuming := state == sandbox.Resuming; goes == resuming {
			t.Errorf("%s: the one to go back to is left over: %v", state, goes)
		} else if resuming {
			codetest.Want(t, "one to go back to", st.RetireSnapshot(ctx, back.ID, false), sandbox.Conflict)
			codetest.Want(t, "one to go back to, when loose", st.RetireSnapshot(ctx, back.ID, true), sandbox.Conflict)
		} else {
			must(t, st.RetireSnapshot(ctx, back.ID, true))
		}
	}
	// A Snapshot being deleted can be retired again, whatever refers to it.
	deleting := insertSnapshot(t, st, snapshot("t", "i1"))
	standing(t, st, sandbox.Running, deleting.ID)
	for _, loose := range []bool{false, true} {
		if err := st.RetireSnapshot(ctx, deleting.ID, loose); err != nil {
			t.Errorf("retired again: %v", err)
		}
	}
	kept := insertSnapshot(t, st, snapshot("t", "i1"))
	codetest.Want(t, "a kept one is not loose", st.RetireSnapshot(ctx, kept.ID, true), sandbox.Conflict)
	codetest.Want(t, "an unknown one", st.RetireSnapshot(ctx, sandbox.NewSnapshotID(), false), sandbox.Conflict)
}

func snapshotsNeeded(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	saving := snapshot("t", "i1")
	saving.State = sandbox.SnapshotSaving
	insertSnapshot(t, st, saving)
	foreign := insertSnapshot(t, st, snapshot("other", "i2"))
	ready := insertSnapshot(t, st, snapshot("t", "i1"))
	for _, id := range []string{saving.ID, foreign.ID, sandbox.NewSnapshotID()} {
		sb := sample("t")
		sb.Snapshot = id
		_, err := st.InsertSandbox(ctx, sb)
		codetest.Want(t, "a start from what is not ready", err, sandbox.Conflict)
		sb = sample("t")
		sb = insert(t, st, sb)
		sb.State, sb.Snapshot = sandbox.Paused, id
		_, err = st.UpdateSandbox(ctx, sb)
		codetest.Want(t, "paused in what is not ready", err, sandbox.Conflict)
	}
	sb := standing(t, st, sandbox.Starting, ready.ID)
	sb.State = sandbox.Running
	sb = update(t, st, sb)
	if err := st.RetireSnapshot(ctx, ready.ID, false); err != nil {
		t.Fatal(err)
	}
	sb.User = "other"
	sb = update(t, st, sb) // it runs without its Snapshot
	sb.State = sandbox.Resuming
	_, err := st.UpdateSandbox(ctx, sb)
	codetest.Want(t, "resuming from what was retired", err, sandbox.Conflict)
}

func snapshotsLeft(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	add := func(state sandbox.SnapshotState, kept bool) string {
		s := snapshot("t", "i1")
		s.State, s.Kept = state, kept
		return insertSnapshot(t, st, s).ID
	}
	saving, deleting, loose := add(sandbox.SnapshotSaving, true), add(sandbox.SnapshotDeleting, true), add(sandbox.SnapshotReady, false)
	ended, used := add(sandbox.SnapshotReady, false), add(sandbox.SnapshotReady, false)
	add(sandbox.SnapshotReady, true)
	standing(t, st, sandbox.Ended, ended)
	standing(t, st, sandbox.Running, used)
	all, err := st.SnapshotsLeft(ctx)
	var got []string
	for _, s := range all {
		got = append(got, s.ID)
	}
	wanted := []string{saving, deleting, loose, ended}
	slices.Sort(got)
	slices.Sort(wanted)
	if err != nil || !slices.Equal(got, wanted) {
		t.Errorf("SnapshotsLeft = %v, %v, want %v", got, err, wanted)
	}
}

func snapshotOfImage(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	add := func(tenant sandbox.TenantID, image string, state sandbox.SnapshotState, kept bool, age time.Duration) sandbox.Snapshot {
		s := snapshot(tenant, "i1")
		s.Image, s.State, s.Kept, s.CreatedAt = image, state, kept, epoch.Add(-age)
		return insertSnapshot(t, st, s)
	}
	paused := add("t", "sha256:a", sandbox.SnapshotReady, false, time.Hour)
	newest := add("other", "sha256:a", sandbox.SnapshotSaving, true, 0)
	add("t", "sha256:b", sandbox.SnapshotDeleting, true, 0)
	is := func(image, id string) {
		t.Helper()
		got, err := st.SnapshotOfImage(ctx, image)
		if id == "" {
			codetest.Want(t, "SnapshotOfImage of "+image, err, sandbox.NotFound)
		} else if err != nil || got.ID != id || got.Image != image {
			t.Errorf("SnapshotOfImage of %s = %+v, %v; want %s", image, got, err, id)
		}
	}
	is("sha256:a", newest.ID)
	is("sha256:b", "")
	is("", "")
	for _, s := range []sandbox.Snapshot{newest, paused} {
		is("sha256:a", s.ID)
		if err := st.RetireSnapshot(ctx, s.ID, false); err != nil {
			t.Fatal(err)
		}
	}
	is("sha256:a", "")
}

func snapshotOfBuild(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	files, gone := snapshot("t", "i1"), snapshot("t", "i1")
	files.Memory, gone.State = false, sandbox.SnapshotDeleting
	insertSnapshot(t, st, files)
	insertSnapshot(t, st, gone)
	_, err := st.SnapshotOfBuild(ctx, "build")
	codetest.Want(t, "a build that none needs", err, sandbox.NotFound)
	s := insertSnapshot(t, st, snapshot("t", "i1"))
	if got, err := st.SnapshotOfBuild(ctx, "build"); err != nil || got.ID != s.ID {
		t.Errorf("SnapshotOfBuild = %+v, %v", got, err)
	}
	_, err = st.SnapshotOfBuild(ctx, "other")
	codetest.Want(t, "an unknown build", err, sandbox.NotFound)
	other := snapshot("another", "i2")
	other.Build = "other"
	insertSnapshot(t, st, other)
	insertSnapshot(t, st, snapshot("another", "i2"))
	if got, err := st.SnapshotBuilds(ctx); err != nil || !maps.Equal(got, map[string]int{"build": 2, "other": 1}) {
		t.Errorf("SnapshotBuilds = %v, %v", got, err)
	}
}
