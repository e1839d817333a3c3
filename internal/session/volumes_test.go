package session_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

func (n *nodes) CreateVolume(ctx context.Context, node string, v sandbox.VolumeSpec) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return err
	}
	n.volumes[node][v.ID] = v
	if n.faults.onVolume != nil {
		if err := n.faults.onVolume(v); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (n *nodes) DeleteVolume(ctx context.Context, node, id string) error {
	if onNoVolume := n.present().onNoVolume; onNoVolume != nil {
		if err := onNoVolume(id); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return err
	}
	delete(n.volumes[node], id)
	delete(n.files, id)
	return ctx.Err()
}

func (n *nodes) ListVolumes(_ context.Context, node string) ([]sandbox.VolumeUse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return nil, err
	}
	var uses []sandbox.VolumeUse
	for id := range n.volumes[node] {
		uses = append(uses, sandbox.VolumeUse{ID: id})
	}
	return uses, nil
}

// checkVolumes returns an error if a Boot cannot mount the Volumes of its Binding.
func (n *nodes) checkVolumes(node string, b sandbox.Binding) error {
	var mounts []sandbox.VolumeMount
	for _, v := range b.Volumes {
		if there, ok := n.volumes[node][v.ID]; !ok || there.Tenant != b.Tenant {
			return sandbox.Errorf(sandbox.NotFound, "no volume %s", v.ID)
		}
		mounts = append(mounts, sandbox.VolumeMount{Volume: v.ID, Path: v.Path})
	}
	return sandbox.CheckVolumeMounts(mounts)
}

// mounted returns the Volume that the Boot of sb has at a path; empty: none.
func (n *nodes) mounted(sb sandbox.Sandbox, path string) string {
	for _, b := range n.told[sb.Boot.ID].Volumes {
		if _, there := n.volumes[sb.Boot.Node][b.ID]; b.Path == path && there {
			return b.ID
		}
	}
	return ""
}

// writeFile and readFile access a mounted Volume like a program in sb.
func (n *nodes) writeFile(sb sandbox.Sandbox, path, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.files[n.mounted(sb, path)] = text
}

func (n *nodes) readFile(sb sandbox.Sandbox, path string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := n.mounted(sb, path)
	if id == "" {
		return "no volume"
	}
	return n.files[id]
}

// consistentVolumes compares the recorded Volumes with those on the Nodes.
func (w *world) consistentVolumes() {
	w.t.Helper()
	if left, err := w.store.VolumesLeft(w.t.Context()); err != nil || len(left) != 0 {
		w.t.Errorf("volumes are left: %+v, %v", left, err)
	}
	all, err := w.store.Volumes(w.t.Context(), "t")
	if err != nil {
		w.t.Fatal(err)
	}
	there := map[string]sandbox.VolumeSpec{}
	for _, volumes := range w.nodes.volumes {
		for id, v := range volumes {
			there[id] = v
		}
	}
	for _, v := range all {
		if spec := (sandbox.VolumeSpec{ID: v.ID, Tenant: v.Tenant, MaxBytes: v.MaxBytes}); there[v.ID] != spec {
			w.t.Errorf("of the volume %+v there is %+v", v, there[v.ID])
		}
		delete(there, v.ID)
	}
	for id := range there {
		w.t.Errorf("%s is on a node and no volume", id)
	}
}

func (w *world) volume(name string) sandbox.Volume {
	w.t.Helper()
	v, err := w.m.CreateVolume(w.t.Context(), "t", sandbox.VolumeRequest{Name: name})
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// A repeated create with the same ID makes one Volume, also after a crash.
func TestVolumeOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		req := sandbox.VolumeRequest{ID: sandbox.NewVolumeID(), Name: "data"}
		died := sandbox.Volume{ID: req.ID, Tenant: "t", Name: "data", State: sandbox.VolumeCreating, Node: local, MaxBytes: 1 << 20}
		if _, err := w.store.InsertVolume(t.Context(), died); err != nil {
			t.Fatal(err)
		}
		var made [2]sandbox.Volume
		for i := range made {
			var err error
			if made[i], err = w.m.CreateVolume(t.Context(), "t", req); err != nil || made[i].ID != req.ID {
				t.Fatalf("made %+v, %v", made[i], err)
			}
		}
		if made[0].MaxBytes != sandbox.DefaultVolumeBytes || made[1].MaxBytes != made[0].MaxBytes {
			t.Errorf("made %+v", made)
		}
		codetest.Want(t, "another tenant's", codetest.ErrOf(w.m.CreateVolume(t.Context(), "x", req)), sandbox.Conflict)
	})
}

// Reconcile deletes a Volume whose create or delete failed at the Node.
func TestVolumeUndone(t *testing.T) {
	lost := sandbox.Errorf(sandbox.Unavailable, "the answer is lost")
	in(t, func(t *testing.T, w *world) {
		w.nodes.fail(func(f *faults) { f.onVolume = func(sandbox.VolumeSpec) error { return lost } })
		codetest.Want(t, "a create whose answer is lost", codetest.ErrOf(w.m.CreateVolume(t.Context(), "t", sandbox.VolumeRequest{Name: "a"})), sandbox.Unavailable)
		w.consistentVolumes()

		w.nodes.fail(func(f *faults) { f.onNoVolume = func(string) error { return lost } })
		codetest.Want(t, "one whose undoing fails too", codetest.ErrOf(w.m.CreateVolume(t.Context(), "t", sandbox.VolumeRequest{Name: "a"})), sandbox.Unavailable)
		if left, err := w.store.VolumesLeft(t.Context()); err != nil || len(left) != 1 || left[0].State != sandbox.VolumeDeleting {
			t.Errorf("left %+v, %v", left, err)
		}
		w.nodes.fail(func(f *faults) { f.onVolume = nil })
		v := w.volume("a") // its name is free
		if _, err := w.m.DeleteVolume(t.Context(), "t", v.ID); err != nil {
			t.Errorf("a delete that the node cannot carry out now: %v", err)
		}
		codetest.Want(t, "a look after that", codetest.ErrOf(w.m.GetVolume(t.Context(), "t", v.ID)), sandbox.NotFound)
		died := sandbox.Volume{ID: sandbox.NewVolumeID(), Tenant: "t", Name: "b", State: sandbox.VolumeCreating, Node: local, MaxBytes: 1 << 20}
		if _, err := w.store.InsertVolume(t.Context(), died); err != nil {
			t.Fatal(err)
		}
		if err := w.m.Reconcile(t.Context()); err != nil { // a failure at the Node is not the Manager's
			t.Error(err)
		}
		if left, err := w.store.VolumesLeft(t.Context()); err != nil || len(left) != 3 {
			t.Errorf("left %+v, %v", left, err)
		}
		w.nodes.mend()
		if err := w.m.Reconcile(t.Context()); err != nil {
			t.Error(err)
		}
		w.consistentVolumes()
	})
}

func TestVolumesOfSandboxes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a, b := w.volume("a"), w.volume("b")
		ctx := t.Context()
		ask := []sandbox.VolumeMount{{Volume: "a", Path: "/data"}, {Volume: b.ID, Path: "/mnt/b"}}
		mounts := []sandbox.VolumeMount{{Volume: a.ID, Name: "a", Path: "/data"}, {Volume: b.ID, Name: "b", Path: "/mnt/b"}}
		bindings := []sandbox.VolumeBinding{
			{VolumeSpec: sandbox.VolumeSpec{ID: a.ID, Tenant: "t", MaxBytes: a.MaxBytes}, Path: "/data"},
			{VolumeSpec: sandbox.VolumeSpec{ID: b.ID, Tenant: "t", MaxBytes: b.MaxBytes}, Path: "/mnt/b"},
		}
		has := func(what string, sb sandbox.Sandbox, err error) sandbox.Sandbox {
			t.Helper()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if told := w.told(sb); !slices.Equal(w.record(sb.ID).Volumes, mounts) || !reflect.DeepEqual(told.Volumes, bindings) {
				t.Errorf("%s has %+v and was told %+v", what, w.record(sb.ID).Volumes, told.Volumes)
			}
			return sb
		}
		sb, err := w.m.Create(ctx, "t", sandbox.CreateRequest{Volumes: ask})
		has("a new one", sb, err)

		// The mounts of a Sandbox are fixed.
		for what, volumes := range map[string][]sandbox.VolumeMount{
			"none": nil, "one less": ask[:1], "others": {{Volume: "b", Path: "/data"}, {Volume: "a", Path: "/mnt/b"}}, "twice the same": {ask[0], ask[0]},
		} {
			codetest.Want(t, "a change to "+what, codetest.ErrOf(w.m.Update(ctx, "t", sb.ID, sandbox.Change{Volumes: &volumes})), sandbox.Conflict)
		}
		sb, err = w.m.Update(ctx, "t", sb.ID, sandbox.Change{Volumes: &[]sandbox.VolumeMount{mounts[1], ask[0]}, Env: map[string]*string{"A": ptr("1")}})
		has("one that is changed", sb, err)

		// Mounts survive a pause and a rollback, and forks have them.
		_, err = w.m.Pause(ctx, "t", sb.ID, false)
		if err != nil {
			t.Fatal(err)
		}
		codetest.Want(t, "a delete while it is paused", codetest.ErrOf(w.m.DeleteVolume(ctx, "t", "a")), sandbox.Conflict)
		sb, err = w.m.Resume(ctx, "t", sb.ID)
		has("a resumed one", sb, err)
		snap, err := w.m.TakeSnapshot(ctx, "t", sb.ID, sandbox.SnapshotRequest{})
		if err != nil || !slices.Equal(snap.Volumes, mounts) {
			t.Fatalf("a snapshot of it has %+v, %v", snap.Volumes, err)
		}
		sb, err = w.m.Rollback(ctx, "t", sb.ID, snap.ID)
		has("one that went back", sb, err)
		forks, err := w.m.Fork(ctx, "t", sb.ID, sandbox.ForkRequest{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		fork := has("a fork", forks[0].Sandbox, forks[0].Err)
		from, err := w.m.Create(ctx, "t", sandbox.CreateRequest{Snapshot: snap.ID})
		has("one from a snapshot", from, err)
		codetest.Want(t, "one from a snapshot with others", codetest.ErrOf(w.m.Create(ctx, "t", sandbox.CreateRequest{Snapshot: snap.ID, Volumes: ask})), sandbox.Invalid)
		codetest.Want(t, "an export with memory", w.m.ExportSnapshot(ctx, "t", snap.ID, false, &strings.Builder{}), sandbox.Conflict)

		for what, volumes := range map[string][]sandbox.VolumeMount{
			"unknown": {{Volume: "c", Path: "/data"}}, "nested": {{Volume: "a", Path: "/data"}, {Volume: "b", Path: "/data/b"}},
			"in the system": {{Volume: "a", Path: "/usr/data"}}, "relative": {{Volume: "a", Path: "data"}},
		} {
			codetest.Want(t, what, codetest.ErrOf(w.m.Create(ctx, "t", sandbox.CreateRequest{Volumes: volumes})), sandbox.Invalid)
		}
		codetest.Want(t, "another tenant's", codetest.ErrOf(w.m.Create(ctx, "x", sandbox.CreateRequest{Volumes: ask})), sandbox.Invalid)

		// A Volume stays while any Sandbox mounts it.
		for _, id := range []string{sb.ID, fork.ID, from.ID} {
			codetest.Want(t, "a delete while one has it", codetest.ErrOf(w.m.DeleteVolume(ctx, "t", "a")), sandbox.Conflict)
			if _, err := w.m.End(ctx, "t", id, sandbox.CauseReleased); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.m.DeleteVolume(ctx, "t", "a"); err != nil {
			t.Error(err)
		}
		_, err = w.m.Create(ctx, "t", sandbox.CreateRequest{Snapshot: snap.ID})
		if codetest.Want(t, "one from a snapshot whose volume is gone", err, sandbox.Conflict); !strings.Contains(err.Error(), "the volume a (") {
			t.Errorf("it hears %v", err)
		}
		if err := w.m.Reconcile(ctx); err != nil { // which deletes the states that pauses and forks saved
			t.Error(err)
		}
	})
}

// A Sandbox runs only on the Node of its Volumes.
func TestVolumesAreOnANode(t *testing.T) {
	w := newWorld(t, "n1", "n2")
	defer w.close()
	v := w.volume("a") // on the first
	ctx := t.Context()
	on2 := sandbox.Volume{ID: sandbox.NewVolumeID(), Tenant: "t", Name: "b", State: sandbox.VolumeReady, Node: "n2", MaxBytes: 1 << 20}
	if _, err := w.store.InsertVolume(ctx, on2); err != nil {
		t.Fatal(err)
	}
	if err := w.nodes.CreateVolume(ctx, on2.Node, sandbox.VolumeSpec{ID: on2.ID, Tenant: on2.Tenant, MaxBytes: on2.MaxBytes}); err != nil {
		t.Fatal(err)
	}
	for node, name := range map[string]string{"n1": "a", "n2": "b"} {
		if sb := w.create("t", sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: name, Path: "/data"}}}); sb.Boot.Node != node {
			t.Errorf("with %s it is on %s", name, sb.Boot.Node)
		}
	}
	both := []sandbox.VolumeMount{{Volume: v.ID, Path: "/a"}, {Volume: on2.ID, Path: "/b"}}
	codetest.Want(t, "volumes of two nodes", codetest.ErrOf(w.m.Create(ctx, "t", sandbox.CreateRequest{Volumes: both})), sandbox.Conflict)
	w.nodes.setAway("n1", true)
	codetest.Want(t, "a node that is away", codetest.ErrOf(w.m.Create(ctx, "t", sandbox.CreateRequest{Volumes: both[:1]})), sandbox.Unavailable)
}

// OnTransition reports each created Volume and each one that exceeds the quota.
func TestVolumesAreTold(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var told []string
		m := session.New(w.store, w.nodes, placed{[]string{local}, w.nodes}, images{}, session.Config{
			OnTransition: func(what string, err error, _ time.Duration) {
				told = append(told, what+" "+string(sandbox.CodeOf(err)))
			},
		})
		if err := w.store.SetQuota(t.Context(), "t", &sandbox.Quota{VolumeBytes: 10 << 20}); err != nil {
			t.Fatal(err)
		}
		for _, req := range []sandbox.VolumeRequest{{Name: "a", MaxBytes: 6 << 20}, {Name: "b", MaxBytes: 6 << 20}, {Name: "a", MaxBytes: 1 << 20}, {Name: "c", MaxBytes: 4 << 20}} {
			_, err := m.CreateVolume(t.Context(), "t", req)
			if over := errors.Is(err, sandbox.ErrOverQuota); over != (req.Name == "b") {
				t.Errorf("%s: %v", req.Name, err)
			}
		}
		if want := []string{"volume ", "volume exhausted", "volume "}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}
