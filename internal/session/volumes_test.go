package session_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	if _, there := n.volumes[node][v.ID]; !there {
		n.files[v.ID] = "" // it is made empty, also if it is elsewhere
	}
	n.volumes[node][v.ID] = v
	if n.leaving[v.ID] == node {
		delete(n.leaving, v.ID)
	}
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
	if n.leaving[id] == node {
		delete(n.leaving, id)
	}
	if !n.isAnywhere(id) {
		delete(n.files, id)
	}
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

// An export of the fake is the Volume's content.
func (n *nodes) ExportVolume(_ context.Context, node string, of sandbox.VolumeRef, w io.Writer) error {
	text, err := n.exportedVolume(node, of)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text) // without n.mu: the reader may need it first
	return err
}

// exportedVolume returns the content of a Volume, and marks it as leaving.
func (n *nodes) exportedVolume(node string, of sandbox.VolumeRef) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return "", err
	}
	if v, ok := n.volumes[node][of.ID]; !ok || v.Tenant != of.Tenant {
		return "", sandbox.Errorf(sandbox.NotFound, "no volume %s", of.ID)
	}
	n.leaving[of.ID] = node
	return n.files[of.ID], nil
}

func (n *nodes) ImportVolume(ctx context.Context, node string, v sandbox.VolumeSpec, r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if onImport := n.present().onImportVolume; onImport != nil {
		if err := onImport(ctx, v); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.reach(node); err != nil {
		return err
	}
	if _, there := n.volumes[node][v.ID]; there {
		return sandbox.Errorf(sandbox.Conflict, "the volume is there")
	}
	n.volumes[node][v.ID] = v
	n.files[v.ID] = string(raw)
	return nil
}

// checkVolumes returns an error if a Boot cannot mount the Volumes of its Binding.
func (n *nodes) checkVolumes(node string, b sandbox.Binding) error {
	var mounts []sandbox.VolumeMount
	for _, v := range b.Volumes {
		home := cmp.Or(v.Home, node)
		if err := n.reach(home); err != nil {
			return err
		}
		if there, ok := n.volumes[home][v.ID]; !ok || there.Tenant != b.Tenant {
			return sandbox.Errorf(sandbox.NotFound, "no volume %s", v.ID)
		}
		if n.leaving[v.ID] == home {
			return sandbox.Errorf(sandbox.Unavailable, "the volume %s is leaving", v.ID)
		}
		mounts = append(mounts, sandbox.VolumeMount{Volume: v.ID, Path: v.Path})
	}
	return sandbox.CheckVolumeMounts(mounts)
}

// isAnywhere reports whether a Node has a Volume.
func (n *nodes) isAnywhere(id string) bool {
	for _, volumes := range n.volumes {
		if _, there := volumes[id]; there {
			return true
		}
	}
	return false
}

// mounted returns the Volume that the Boot of sb has at a path; empty: none.
func (n *nodes) mounted(sb sandbox.Sandbox, path string) string {
	for _, b := range n.told[sb.Boot.ID].Volumes {
		if _, there := n.volumes[cmp.Or(b.Home, sb.Boot.Node)][b.ID]; b.Path == path && there {
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
	w.nodes.mu.Lock()
	defer w.nodes.mu.Unlock()
	there := map[sandbox.VolumePlace]map[string]sandbox.VolumeSpec{}
	for node, volumes := range w.nodes.volumes {
		there[sandbox.VolumePlace{Node: node}] = maps.Clone(volumes)
	}
	for _, v := range all {
		if spec := (sandbox.VolumeSpec{ID: v.ID, Tenant: v.Tenant, MaxBytes: v.MaxBytes}); there[v.Place()][v.ID] != spec {
			w.t.Errorf("of the volume %+v there is %+v", v, there[v.Place()][v.ID])
		}
		delete(there[v.Place()], v.ID)
	}
	for place, left := range there {
		for id := range left {
			w.t.Errorf("%s is on the node %s and no volume there", id, place.Node)
		}
	}
	if len(w.nodes.leaving) > 0 {
		w.t.Errorf("volumes are unusable: %v", w.nodes.leaving)
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

// A Sandbox runs on the Node that stores its Volumes if it can, and otherwise anywhere.
func TestVolumesFromAnywhere(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		onA, onB := w.volume("a"), sandbox.Volume{ID: sandbox.NewVolumeID(), Tenant: "t", Name: "b", State: sandbox.VolumeReady, Node: "b", MaxBytes: 1 << 20}
		if _, err := w.store.InsertVolume(ctx, onB); err != nil {
			t.Fatal(err)
		}
		if err := w.nodes.CreateVolume(ctx, onB.Node, sandbox.VolumeSpec{ID: onB.ID, Tenant: onB.Tenant, MaxBytes: onB.MaxBytes}); err != nil {
			t.Fatal(err)
		}
		mounts := func(names ...string) (all []sandbox.VolumeMount) {
			for _, n := range names {
				all = append(all, sandbox.VolumeMount{Volume: n, Path: "/" + n})
			}
			return all
		}
		homes := func(sb sandbox.Sandbox) (all []string) {
			for _, v := range w.told(sb).Volumes {
				all = append(all, v.Home)
			}
			return all
		}
		first := w.create("t", sandbox.CreateRequest{Volumes: mounts("a")})
		if first.Boot.Node != "a" || !slices.Equal(homes(first), []string{""}) {
			t.Errorf("with a it is on %s, and was told %q", first.Boot.Node, homes(first))
		}
		both := w.create("t", sandbox.CreateRequest{Volumes: mounts("b", "a")})
		if both.Boot.Node != "b" || !slices.Equal(homes(both), []string{"", "a"}) {
			t.Errorf("with both it is on %s, and was told %q", both.Boot.Node, homes(both))
		}
		w.nodes.writeFile(first, "/a", "shared")
		if text := w.nodes.readFile(both, "/a"); text != "shared" {
			t.Errorf("the other one reads %q", text)
		}

		w.setDraining("a", true)
		if now := w.record(first.ID); now.State != sandbox.Running || now.Boot.Node != "b" || !slices.Equal(homes(now), []string{"a"}) {
			t.Errorf("after the drain it is %+v, and was told %q", now, homes(now))
		}
		if text := w.nodes.readFile(w.record(first.ID), "/a"); text != "shared" {
			t.Errorf("after the drain it reads %q", text)
		}
		if _, err := w.m.Pause(ctx, "t", both.ID, false); err != nil {
			t.Fatal(err)
		}

		w.lease("a", -time.Second)
		w.pass(2 * nodesEvery)
		w.full("a") // the placement of this test does not look at leases
		err := codetest.ErrOf(w.m.Create(ctx, "t", sandbox.CreateRequest{Volumes: mounts("a")}))
		codetest.Want(t, "a volume whose node is away", err, sandbox.Unavailable)
		var told *sandbox.Error
		if !errors.As(err, &told) || told.RetryAfter == 0 || !strings.Contains(told.Detail, onA.ID) {
			t.Errorf("it hears %v", err)
		}
		codetest.Want(t, "a resume", codetest.ErrOf(w.m.Resume(ctx, "t", both.ID)), sandbox.Unavailable)
		if now := w.record(both.ID); now.State != sandbox.Paused {
			t.Errorf("after that it is %+v", now)
		}
		// A change of a running one needs no Volume.
		if _, err := w.m.Update(ctx, "t", first.ID, sandbox.Change{Env: map[string]*string{"A": ptr("1")}}); err != nil {
			t.Error(err)
		}
		w.lease("a", 24*time.Hour)
	})
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

// moveAway makes a Node drain with its Volumes, and waits.
func (w *world) moveAway(node string) {
	w.t.Helper()
	if err := w.store.SetDraining(w.t.Context(), node, true, true); err != nil {
		w.t.Fatal(err)
	}
	w.pass(3 * nodesEvery)
}

func (w *world) homeOf(id string) sandbox.VolumePlace {
	w.t.Helper()
	v, err := w.store.VolumeByID(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return v.Place()
}

// Volumes leave a Node that drains with them once no Sandbox uses them, and paused Sandboxes
// find them where they are.
func TestVolumesMove(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		mount := func(v sandbox.Volume) sandbox.CreateRequest {
			return sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: v.ID, Path: "/data"}}}
		}
		unused, used, paused := w.volume("unused"), w.volume("used"), w.volume("paused")
		user, sleeper := w.create("t", mount(used)), w.create("t", mount(paused))
		w.nodes.writeFile(sleeper, "/data", "kept")
		if _, err := w.m.Pause(ctx, "t", sleeper.ID, false); err != nil {
			t.Fatal(err)
		}
		w.setDraining("a", true)
		if at := w.homeOf(unused.ID); at.Node != "a" {
			t.Errorf("a drain without volumes has moved one to %+v", at)
		}
		w.moveAway("a")
		for id, want := range map[string]string{unused.ID: "b", paused.ID: "b", used.ID: "a"} {
			if at := w.homeOf(id); at != (sandbox.VolumePlace{Node: want}) {
				t.Errorf("%s is at %+v, want %s", id, at, want)
			}
		}
		back, err := w.m.Resume(ctx, "t", sleeper.ID)
		if err != nil || back.Boot.Node != "b" || w.nodes.readFile(back, "/data") != "kept" {
			t.Errorf("it resumed as %+v, %v", back, err)
		}
		if now := w.record(user.ID); now.State != sandbox.Running || now.Boot.Node != "b" {
			t.Errorf("the other one is %+v", now)
		}
		if _, err := w.m.End(ctx, "t", user.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		w.pass(2 * nodesEvery)
		if at := w.homeOf(used.ID); at != (sandbox.VolumePlace{Node: "b"}) {
			t.Errorf("after the end of its user it is at %+v", at)
		}
	})
}

// While a Volume moves, no Sandbox that mounts it starts, and it is not deleted. A move that
// fails leaves it where it is.
func TestVolumeMovesAlone(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		v := w.volume("v")
		sb := w.create("t", sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: v.ID, Path: "/data"}}})
		w.nodes.writeFile(sb, "/data", "kept")
		if _, err := w.m.Pause(ctx, "t", sb.ID, false); err != nil {
			t.Fatal(err)
		}
		var during []error
		var broken atomic.Bool
		broken.Store(true)
		w.nodes.fail(func(f *faults) {
			f.onImportVolume = func(ctx context.Context, _ sandbox.VolumeSpec) error {
				errs := make(chan error, 3)
				go func() { errs <- codetest.ErrOf(w.m.Resume(ctx, "t", sb.ID)) }()
				go func() {
					errs <- codetest.ErrOf(w.m.Create(ctx, "t", sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: v.ID, Path: "/data"}}}))
				}()
				go func() { errs <- codetest.ErrOf(w.m.DeleteVolume(ctx, "t", v.ID)) }()
				during = append(during, <-errs, <-errs, <-errs)
				if broken.Load() {
					return sandbox.Errorf(sandbox.Unavailable, "the node broke")
				}
				return nil
			}
		})
		w.moveAway("a")
		for w.homeOf(v.ID).LeftOn != "" { // the next attempt has begun
			w.pass(time.Second)
		}
		if at := w.homeOf(v.ID); at != (sandbox.VolumePlace{Node: "a"}) {
			t.Errorf("after a failure it is at %+v", at)
		}
		w.consistentVolumes()
		broken.Store(false)
		w.pass(time.Hour)
		if at := w.homeOf(v.ID); at != (sandbox.VolumePlace{Node: "b"}) {
			t.Errorf("it is at %+v", at)
		}
		if len(during) < 6 {
			t.Errorf("only %d calls were made", len(during))
		}
		for _, err := range during {
			codetest.Want(t, "a call meanwhile", err, sandbox.Unavailable)
		}
		back, err := w.m.Resume(ctx, "t", sb.ID)
		if err != nil || w.nodes.readFile(back, "/data") != "kept" {
			t.Errorf("it resumed as %+v, %v", back, err)
		}
	})
}

// A start that finds its Volume moving waits, and mounts it where it is then.
func TestStartAwaitsItsVolume(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		v := w.volume("v")
		sb := w.create("t", sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: v.ID, Path: "/data"}}})
		w.nodes.writeFile(sb, "/data", "kept")
		if _, err := w.m.Pause(t.Context(), "t", sb.ID, false); err != nil {
			t.Fatal(err)
		}
		resumed := make(chan error, 1)
		w.nodes.fail(func(f *faults) {
			f.onImportVolume = func(context.Context, sandbox.VolumeSpec) error {
				go func() { resumed <- codetest.ErrOf(w.m.Resume(t.Context(), "t", sb.ID)) }()
				time.Sleep(20 * time.Second) // less than a start waits
				return nil
			}
		})
		w.moveAway("a")
		if err := <-resumed; err != nil {
			t.Fatal(err)
		}
		if at := w.homeOf(v.ID); at != (sandbox.VolumePlace{Node: "b"}) {
			t.Errorf("it is at %+v", at)
		}
		if got := w.nodes.readFile(w.record(sb.ID), "/data"); got != "kept" {
			t.Errorf("it has %q", got)
		}
	})
}

// A process that dies in the middle of a move leaves a record of it, by which the next one
// settles it: the Volume is usable where the record says, and nowhere else.
func TestVolumeMoveIsCutOff(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		v, done := w.volume("v"), w.volume("done")
		for _, at := range []struct {
			v     sandbox.Volume
			place sandbox.VolumePlace
		}{{v, sandbox.VolumePlace{Node: "a", LeftOn: "b"}}, {done, sandbox.VolumePlace{Node: "b", LeftOn: "a"}}} {
			spec := sandbox.VolumeSpec{ID: at.v.ID, Tenant: "t", MaxBytes: at.v.MaxBytes}
			if err := w.nodes.ExportVolume(ctx, "a", sandbox.VolumeRef{ID: at.v.ID, Tenant: "t"}, io.Discard); err != nil {
				t.Fatal(err)
			}
			if err := w.nodes.ImportVolume(ctx, "b", spec, strings.NewReader("")); err != nil {
				t.Fatal(err)
			}
			if err := w.store.RehomeVolume(ctx, at.v.ID, at.v.Place(), at.place); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.m.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // another sweep may have begun before
		w.consistentVolumes()
		for id, node := range map[string]string{v.ID: "a", done.ID: "b"} {
			if at := w.homeOf(id); at != (sandbox.VolumePlace{Node: node}) {
				t.Errorf("%s is at %+v, want %s", id, at, node)
			}
		}
	})
}

// A Node that does not come back keeps no Volume from moving or from its deletion once the
// Node's record was retired.
func TestVolumeOutlivesRetiredNode(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		kept, deleted := w.volume("kept"), w.volume("deleted")
		w.lease("former", -23*time.Hour)
		left := sandbox.VolumePlace{Node: "a", LeftOn: "former"}
		for _, v := range []sandbox.Volume{kept, deleted} {
			if err := w.store.RehomeVolume(ctx, v.ID, v.Place(), left); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.m.DeleteVolume(ctx, "t", deleted.ID); err != nil {
			t.Fatal(err)
		}
		w.pass(50 * time.Minute)
		for _, v := range []sandbox.Volume{kept, deleted} {
			if at := w.homeOf(v.ID); at != left {
				t.Errorf("while the node may come back, %s is at %+v", v.Name, at)
			}
		}
		w.pass(time.Hour)
		if at := w.homeOf(kept.ID); at != (sandbox.VolumePlace{Node: "a"}) {
			t.Errorf("after that it is at %+v", at)
		}
		_, err := w.store.VolumeByID(ctx, deleted.ID)
		codetest.Want(t, "the record of the deleted one", err, sandbox.NotFound)
		w.consistentVolumes()
	})
}

// A sweep that read the record of a move before it ended leaves the moved files alone.
func TestSweepReadsAMoveThatEnds(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		v, kept := w.keptVolume()
		synctest.Wait() // a sweep that has begun would end the move itself
		at := sandbox.VolumePlace{Node: "a", LeftOn: "b"}
		if err := w.store.RehomeVolume(ctx, v.ID, v.Place(), at); err != nil {
			t.Fatal(err)
		}
		ends := func() {
			w.store.onVolumesLeft.Store(nil)
			spec := sandbox.VolumeSpec{ID: v.ID, Tenant: "t", MaxBytes: v.MaxBytes}
			err := errors.Join(w.nodes.ImportVolume(ctx, "b", spec, strings.NewReader("kept")), w.nodes.DeleteVolume(ctx, "a", v.ID),
				w.store.RehomeVolume(ctx, v.ID, at, sandbox.VolumePlace{Node: "b"}))
			if err != nil {
				t.Error(err)
			}
		}
		w.store.onVolumesLeft.Store(&ends)
		if err := w.m.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // another sweep may have begun before
		w.consistentVolumes()
		kept()
	})
}

// The commit of a move that takes effect only after its answer was lost loses nothing: the
// next write waits for it.
func TestVolumeMoveCommitsLate(t *testing.T) {
	onTwo(t, func(t *testing.T, w *world) {
		v, kept := w.keptVolume()
		var late func() error
		on := func(id string, from, to sandbox.VolumePlace) error {
			switch {
			case late != nil:
				w.store.onRehome.Store(nil)
				if err := late(); err != nil {
					t.Error(err)
				}
			case from.Node != to.Node:
				late = func() error { return w.store.RehomeVolume(t.Context(), id, from, to) }
				return sandbox.Errorf(sandbox.Unavailable, "the answer is lost")
			}
			return nil
		}
		w.store.onRehome.Store(&on)
		w.moveAway("a")
		w.pass(2 * time.Minute)
		if at := w.homeOf(v.ID); at != (sandbox.VolumePlace{Node: "b"}) {
			t.Errorf("it is at %+v", at)
		}
		w.consistentVolumes()
		kept()
	})
}

// keptVolume returns a Volume of the Node "a" that a paused Sandbox mounts, and a check of
// its content.
func (w *world) keptVolume() (v sandbox.Volume, check func()) {
	w.t.Helper()
	v = w.volume("v")
	sb := w.create("t", sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: v.ID, Path: "/data"}}})
	w.nodes.writeFile(sb, "/data", "kept")
	if _, err := w.m.Pause(w.t.Context(), "t", sb.ID, false); err != nil {
		w.t.Fatal(err)
	}
	return v, func() {
		w.t.Helper()
		back, err := w.m.Resume(w.t.Context(), "t", sb.ID)
		if err != nil || w.nodes.readFile(back, "/data") != "kept" {
			w.t.Errorf("it resumed as %+v, %v, with %q", back, err, w.nodes.readFile(back, "/data"))
		}
	}
}
