package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func sampleVolume(tenant sandbox.TenantID, name string) sandbox.Volume {
	return sandbox.Volume{
		ID: sandbox.NewVolumeID(), Tenant: tenant, Name: name, State: sandbox.VolumeReady, Node: "local", MaxBytes: 5 << 20, CreatedAt: epoch,
	}
}

func insertVolume(t *testing.T, st sandbox.Store, v sandbox.Volume) sandbox.Volume {
	t.Helper()
	made, err := st.InsertVolume(t.Context(), v)
	must(t, err)
	return made
}

func volumeRoundTrip(t *testing.T, st sandbox.Store) {
	v := sampleVolume("t", "b")
	v.State = sandbox.VolumeCreating
	if made := insertVolume(t, st, v); made != v {
		t.Errorf("InsertVolume = %+v, want %+v", made, v)
	}
	_, err := st.InsertVolume(t.Context(), v)
	codetest.Want(t, "a known ID", err, sandbox.Conflict)
	_, err = st.InsertVolume(t.Context(), sampleVolume("t", "b"))
	codetest.Want(t, "a name in use", err, sandbox.Conflict)
	if got, err := st.VolumeByID(t.Context(), v.ID); err != nil || got != v {
		t.Errorf("VolumeByID = %+v, %v, want %+v", got, err, v)
	}
	_, err = st.VolumeByName(t.Context(), "t", "b")
	codetest.Want(t, "by name while it is made", err, sandbox.NotFound)
	if left, err := st.VolumesLeft(t.Context()); err != nil || !slices.Equal(left, []sandbox.Volume{v}) {
		t.Errorf("VolumesLeft = %+v, %v", left, err)
	}
	must(t, st.MoveVolume(t.Context(), v.ID, sandbox.VolumeCreating, sandbox.VolumeReady))
	codetest.Want(t, "a second time", st.MoveVolume(t.Context(), v.ID, sandbox.VolumeCreating, sandbox.VolumeReady), sandbox.Conflict)
	v.State = sandbox.VolumeReady
	if got, err := st.VolumeByName(t.Context(), "t", "b"); err != nil || got != v {
		t.Errorf("VolumeByName = %+v, %v, want %+v", got, err, v)
	}
	first := insertVolume(t, st, sampleVolume("t", "a"))
	if all, err := st.Volumes(t.Context(), "t"); err != nil || !slices.Equal(all, []sandbox.Volume{first, v}) {
		t.Errorf("Volumes = %+v, %v, want them by name", all, err)
	}
	must(t, st.DropVolume(t.Context(), v.ID)) // it is not being deleted
	must(t, st.MoveVolume(t.Context(), v.ID, sandbox.VolumeReady, sandbox.VolumeDeleting))
	if all, err := st.Volumes(t.Context(), "t"); err != nil || !slices.Equal(all, []sandbox.Volume{first}) {
		t.Errorf("Volumes = %+v, %v, want those that are ready", all, err)
	}
	insertVolume(t, st, sampleVolume("t", "b")) // its name is free
	must(t, st.DropVolume(t.Context(), v.ID))
	must(t, st.DropVolume(t.Context(), v.ID))
	_, err = st.VolumeByID(t.Context(), v.ID)
	codetest.Want(t, "a dropped one", err, sandbox.NotFound)
	_, _, err = st.VolumeUses(t.Context(), v.ID)
	codetest.Want(t, "uses of a dropped one", err, sandbox.NotFound)
	codetest.Want(t, "moving a dropped one", st.MoveVolume(t.Context(), v.ID, sandbox.VolumeReady, sandbox.VolumeDeleting), sandbox.NotFound)
}

// A move of a Volume is known while it is on its way, and one attempt wins.
func volumeHomes(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	v, other := sampleVolume("t", "a"), insertVolume(t, st, sampleVolume("t", "b"))
	v.Node = "a"
	insertVolume(t, st, v)
	at := func(node, left string) sandbox.VolumePlace { return sandbox.VolumePlace{Node: node, LeftOn: left} }
	codetest.Want(t, "a move of an unknown one", st.RehomeVolume(ctx, sandbox.NewVolumeID(), at("a", ""), at("b", "")), sandbox.NotFound)
	codetest.Want(t, "a move from elsewhere", st.RehomeVolume(ctx, v.ID, at("c", ""), at("b", "")), sandbox.Conflict)
	for _, step := range []struct {
		from, to sandbox.VolumePlace
		left     bool
	}{{at("a", ""), at("a", "b"), true}, {at("a", "b"), at("b", "a"), true}, {at("b", "a"), at("b", ""), false}} {
		must(t, st.RehomeVolume(ctx, v.ID, step.from, step.to))
		codetest.Want(t, "the same again", st.RehomeVolume(ctx, v.ID, step.from, step.to), sandbox.Conflict)
		got, err := st.VolumeByID(ctx, v.ID)
		if err != nil || got.Place() != step.to || got.State != sandbox.VolumeReady {
			t.Errorf("it is %+v, %v, want %+v", got, err, step.to)
		}
		if left, err := st.VolumesLeft(ctx); err != nil || slices.Contains(left, got) != step.left || slices.Contains(left, other) {
			t.Errorf("VolumesLeft = %+v, %v", left, err)
		}
		for node, want := range map[string][]sandbox.Volume{step.to.Node: {got}, "c": nil} {
			if there, err := st.VolumesOn(ctx, node); err != nil || !slices.Equal(there, want) {
				t.Errorf("VolumesOn %s = %+v, %v", node, there, err)
			}
		}
	}
	must(t, st.MoveVolume(ctx, v.ID, sandbox.VolumeReady, sandbox.VolumeDeleting))
	codetest.Want(t, "a move of one that is deleted", st.RehomeVolume(ctx, v.ID, at("b", ""), at("b", "c")), sandbox.Conflict)
	if there, err := st.VolumesOn(ctx, "b"); err != nil || len(there) != 0 {
		t.Errorf("VolumesOn with one that is deleted = %+v, %v", there, err)
	}
}

func volumeTenants(t *testing.T, st sandbox.Store) {
	v := insertVolume(t, st, sampleVolume("t", "a"))
	insertVolume(t, st, sampleVolume("other", "a"))
	insertVolume(t, st, sampleVolume("other", "b"))
	_, err := st.VolumeByName(t.Context(), "t", "b")
	codetest.Want(t, "another tenant's name", err, sandbox.NotFound)
	if all, err := st.Volumes(t.Context(), "t"); err != nil || !slices.Equal(all, []sandbox.Volume{v}) {
		t.Errorf("Volumes = %+v, %v", all, err)
	}
	sb := sample("other")
	sb.Volumes = []sandbox.VolumeMount{{Volume: v.ID, Name: v.Name, Path: "/data"}}
	_, err = st.InsertSandbox(t.Context(), sb)
	codetest.Want(t, "a sandbox with another tenant's volume", err, sandbox.Conflict)
}

// A Volume stays while a Sandbox that has not ended mounts it, and such a Sandbox needs a
// ready Volume.
func volumeUses(t *testing.T, st sandbox.Store) {
	v, w := insertVolume(t, st, sampleVolume("t", "a")), insertVolume(t, st, sampleVolume("t", "b"))
	uses := func(want, wantActive int) {
		t.Helper()
		if n, active, err := st.VolumeUses(t.Context(), v.ID); n != want || active != wantActive || err != nil {
			t.Errorf("VolumeUses = %d, %d, %v, want %d, %d", n, active, err, want, wantActive)
		}
	}
	mounts := []sandbox.VolumeMount{{Volume: w.ID, Name: w.Name, Path: "/mnt/b"}, {Volume: v.ID, Name: v.Name, Path: `/mnt/"a`}}
	sb := sample("t")
	sb.Volumes = mounts
	first := insert(t, st, sb)
	if got, err := st.SandboxByID(t.Context(), sb.ID); err != nil || !slices.Equal(got.Volumes, mounts) {
		t.Errorf("it has %+v, %v", got.Volumes, err)
	}
	sb.ID = sandbox.NewSandboxID()
	second := insert(t, st, sb)
	insert(t, st, sample("t"))
	uses(2, 2)
	end(t, st, first, epoch)
	uses(1, 1)
	for _, to := range []sandbox.State{sandbox.Running, sandbox.Pausing, sandbox.Paused} {
		must(t, second.To(to))
		var err error
		if second, err = st.UpdateSandbox(t.Context(), second); err != nil {
			t.Fatal(err)
		}
	}
	uses(1, 0)
	deleting := func() error {
		return st.MoveVolume(t.Context(), v.ID, sandbox.VolumeReady, sandbox.VolumeDeleting)
	}
	codetest.Want(t, "deleting one in use", deleting(), sandbox.Conflict)
	end(t, st, second, epoch)
	snap := snapshot("t", "i1")
	snap.Volumes = mounts
	insertSnapshot(t, st, snap) // a Snapshot does not count as a use of its Volumes
	if got, err := st.SnapshotByID(t.Context(), snap.ID); err != nil || !slices.Equal(got.Volumes, mounts) {
		t.Errorf("the snapshot has %+v, %v", got.Volumes, err)
	}
	must(t, deleting())
	sb.ID = sandbox.NewSandboxID()
	_, err := st.InsertSandbox(t.Context(), sb)
	codetest.Want(t, "a sandbox with a volume that is being deleted", err, sandbox.Conflict)
}

// Of a Volume's deletion and a concurrent insert of a Sandbox that mounts it, exactly one
// succeeds.
func volumeRace(t *testing.T, st sandbox.Store) {
	for range 20 {
		v := insertVolume(t, st, sampleVolume("t", "a"))
		var all sync.WaitGroup
		var deleted, inserted error
		sb := sample("t")
		sb.Volumes = []sandbox.VolumeMount{{Volume: v.ID, Name: v.Name, Path: "/data"}}
		all.Go(func() { sb, inserted = st.InsertSandbox(t.Context(), sb) })
		all.Go(func() {
			deleted = st.MoveVolume(t.Context(), v.ID, sandbox.VolumeReady, sandbox.VolumeDeleting)
		})
		all.Wait()
		if (inserted == nil) == (deleted == nil) {
			t.Fatalf("inserted: %v, deleted: %v", inserted, deleted)
		}
		if inserted == nil {
			end(t, st, sb, epoch)
			must(t, st.MoveVolume(t.Context(), v.ID, sandbox.VolumeReady, sandbox.VolumeDeleting))
		}
		must(t, st.DropVolume(t.Context(), v.ID))
	}
}

func volumeLimit(t *testing.T, st sandbox.Store) {
	for i := range sandbox.MaxVolumes {
		insertVolume(t, st, sampleVolume("t", fmt.Sprint("n", i)))
	}
	_, err := st.InsertVolume(t.Context(), sampleVolume("t", "more"))
	codetest.Want(t, "one volume too many", err, sandbox.Exhausted)
	_, err = st.InsertVolume(t.Context(), sampleVolume("t", "n1"))
	codetest.Want(t, "a name in use when there is no room", err, sandbox.Conflict)
	insertVolume(t, st, sampleVolume("other", "more"))
}

// Of a hundred concurrent inserts, exactly as many succeed as the quota allows, by count
// and by bytes.
func quotaVolumes(t *testing.T, st sandbox.Store) {
	const room, callers = 37, 100
	size := sampleVolume("t", "").MaxBytes
	for _, q := range []sandbox.Quota{{Volumes: room}, {VolumeBytes: (room+1)*size - 1}} {
		must(t, st.SetQuota(t.Context(), "t", &q))
		var mu sync.Mutex
		var in []sandbox.Volume
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				v, err := st.InsertVolume(t.Context(), sampleVolume("t", fmt.Sprint("n", i)))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					in = append(in, v)
				} else if sandbox.CodeOf(err) != sandbox.Exhausted {
					t.Error(err)
				}
			})
		}
		all.Wait()
		_, _, used, err := st.QuotaOf(t.Context(), "t")
		if len(in) != room || used.Volumes != room || used.VolumeBytes != room*size || err != nil {
			t.Errorf("%s: %d got in; used %+v, %v", q, len(in), used, err)
		}
		for i, v := range in {
			must(t, st.MoveVolume(t.Context(), v.ID, sandbox.VolumeReady, sandbox.VolumeDeleting))
			if i == 0 {
				_, err := st.InsertVolume(t.Context(), sampleVolume("t", "more"))
				codetest.Want(t, "one more while the first is being deleted", err, sandbox.Exhausted)
			}
			must(t, st.DropVolume(t.Context(), v.ID))
		}
	}
}
