package session_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// A model is a minimal reference implementation: the expected Sandboxes, Snapshots and
// Volumes after any calls.
type model struct {
	*world
	boxes map[string]*modelBox
	snaps map[string]modelSnap
	order []string // IDs of boxes, in order of creation
	value int      // of the last write

	volumes map[string]string // content, by ID
	made    []string          // IDs of volumes, in order of creation
}

type modelBox struct {
	state       sandbox.State
	memory      string
	snap        string
	timeline    int64
	checkpoints bool
	volumes     []string // IDs, in the order of mountPath
}

func mountPath(i int) string { return fmt.Sprintf("/mnt/%d", i) }

type modelSnap struct{ of, memory string }

func (m *model) add(sb sandbox.Sandbox, memory, snap string, volumes []string) {
	m.order = append(m.order, sb.ID)
	m.boxes[sb.ID] = &modelBox{
		state: sandbox.Running, memory: memory, snap: snap, timeline: sb.Timeline, checkpoints: sb.CheckpointEvery > 0, volumes: volumes,
	}
}

// one draws a Sandbox, ended ones included.
func (m *model) one(t *rapid.T) (string, *modelBox) {
	if len(m.order) == 0 {
		t.Skip("there is none")
	}
	id := rapid.SampledFrom(m.order).Draw(t, "sandbox")
	return id, m.boxes[id]
}

// expect fails the test unless a call on a Sandbox succeeded, or was refused with Conflict
// because the Sandbox has ended.
func (m *model) expect(t *rapid.T, what string, b *modelBox, err error) (done bool) {
	code := sandbox.CodeOf(err)
	if b.state == sandbox.Ended && code == sandbox.Conflict {
		return false
	}
	if b.state == sandbox.Ended || err != nil {
		t.Fatalf("%s of a %s one = %v", what, b.state, err)
	}
	return true
}

// saved records a new Snapshot of a Sandbox's present state.
func (m *model) saved(id, snap string) {
	b := m.boxes[id]
	m.snaps[snap], b.snap = modelSnap{of: id, memory: b.memory}, snap
}

func (m *model) create(t *rapid.T) {
	every := rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "checkpoints")
	req := sandbox.CreateRequest{Timeout: 24 * time.Hour, CheckpointEvery: every}
	var volumes []string
	for range rapid.IntRange(0, min(2, len(m.made))).Draw(t, "volumes") {
		id := rapid.SampledFrom(m.made).Draw(t, "volume")
		if slices.Contains(volumes, id) {
			continue
		}
		req.Volumes = append(req.Volumes, sandbox.VolumeMount{Volume: id, Path: mountPath(len(volumes))})
		volumes = append(volumes, id)
	}
	m.add(m.world.create("t", req), "", "", volumes)
}

func (m *model) makeVolume(*rapid.T) {
	v := m.volume(fmt.Sprintf("volume-%d", m.value))
	m.volumes[v.ID], m.made = "", append(m.made, v.ID)
	m.value++ // no name is used twice
}

// writeVolume writes to a Volume. Every Sandbox that mounts it, now or later, reads the value.
func (m *model) writeVolume(t *rapid.T) {
	id, b := m.one(t)
	if b.state != sandbox.Running || len(b.volumes) == 0 {
		t.Skip("it has no volume to write to")
	}
	i := rapid.IntRange(0, len(b.volumes)-1).Draw(t, "volume")
	m.value++
	m.volumes[b.volumes[i]] = fmt.Sprint(m.value)
	m.nodes.writeFile(m.record(id), mountPath(i), fmt.Sprint(m.value))
}

func (m *model) dropVolume(t *rapid.T) {
	if len(m.made) == 0 {
		t.Skip("there is none")
	}
	id := rapid.SampledFrom(m.made).Draw(t, "volume")
	needed := slices.ContainsFunc(m.order, func(box string) bool {
		return m.boxes[box].state != sandbox.Ended && slices.Contains(m.boxes[box].volumes, id)
	})
	_, err := m.m.DeleteVolume(m.t.Context(), "t", id)
	if code := sandbox.CodeOf(err); needed && code != sandbox.Conflict || !needed && err != nil {
		t.Fatalf("DeleteVolume, needed: %v, = %v", needed, err)
	}
	if !needed {
		delete(m.volumes, id)
		m.made = slices.DeleteFunc(m.made, func(other string) bool { return other == id })
	}
}

func (m *model) write(t *rapid.T) {
	id, b := m.one(t)
	if b.state != sandbox.Running {
		t.Skip("it does not run")
	}
	m.value++
	b.memory = fmt.Sprint(m.value)
	m.nodes.remember(m.record(id), b.memory)
}

func (m *model) pauseOne(t *rapid.T) {
	id, b := m.one(t)
	sb, err := m.m.Pause(m.t.Context(), "t", id, false)
	if m.expect(t, "Pause", b, err) && b.state == sandbox.Running {
		m.saved(id, sb.Snapshot)
		b.state = sandbox.Paused
	}
}

func (m *model) resumeOne(t *rapid.T) {
	id, b := m.one(t)
	_, err := m.m.Resume(m.t.Context(), "t", id)
	if m.expect(t, "Resume", b, err) && b.state == sandbox.Paused {
		b.state, b.memory = sandbox.Running, m.snaps[b.snap].memory
	}
}

func (m *model) take(t *rapid.T) {
	id, b := m.one(t)
	snap, err := m.m.TakeSnapshot(m.t.Context(), "t", id, sandbox.SnapshotRequest{})
	if b.state == sandbox.Paused && m.snaps[b.snap].of != id {
		codetest.Want(m.t, "TakeSnapshot of one that is paused in another's", err, sandbox.Conflict)
		return
	}
	if m.expect(t, "TakeSnapshot", b, err) && b.state == sandbox.Running {
		m.saved(id, snap.ID)
	}
}

func (m *model) fork(t *rapid.T) {
	id, b := m.one(t)
	forks, err := m.m.Fork(m.t.Context(), "t", id, sandbox.ForkRequest{Count: 2})
	if !m.expect(t, "Fork", b, err) {
		return
	}
	if b.state == sandbox.Running {
		m.saved(id, m.record(id).Snapshot)
	}
	for _, f := range forks {
		if f.Err != nil {
			t.Fatalf("a fork: %v", f.Err)
		}
		m.add(f.Sandbox, m.snaps[b.snap].memory, b.snap, b.volumes)
	}
}

func (m *model) rollback(t *rapid.T) {
	id, b := m.one(t)
	tree, err := m.m.History(m.t.Context(), "t", id)
	if err != nil || len(tree) == 0 {
		t.Skip("it has no history")
	}
	to := rapid.SampledFrom(tree).Draw(t, "snapshot").ID
	if _, err = m.m.Rollback(m.t.Context(), "t", id, to); m.expect(t, "Rollback", b, err) {
		b.state, b.memory, b.snap = sandbox.Running, m.snaps[to].memory, to
		b.timeline++
	}
}

func (m *model) lose(t *rapid.T) {
	id, b := m.one(t)
	if b.state != sandbox.Running {
		t.Skip("it has no boot")
	}
	sb := m.record(id)
	end := m.nodes.lose(local, sb.Boot.ID, sandbox.CauseEngineLost)
	var err error
	if rapid.Bool().Draw(t, "reported") {
		err = m.m.BootEnded(m.t.Context(), end)
	} else {
		err = m.m.Reconcile(m.t.Context())
	}
	if err != nil {
		t.Fatalf("after the loss of a boot: %v", err)
	}
	if _, there := m.snaps[b.snap]; b.checkpoints && there {
		b.state = sandbox.Paused
		b.timeline++
	} else {
		b.state = sandbox.Ended
	}
}

func (m *model) end(t *rapid.T) {
	id, b := m.one(t)
	_, err := m.m.End(m.t.Context(), "t", id, sandbox.CauseReleased)
	if code := sandbox.CodeOf(err); b.state == sandbox.Ended && code != sandbox.NotFound || b.state != sandbox.Ended && err != nil {
		t.Fatalf("End of a %s one = %v", b.state, err)
	}
	b.state = sandbox.Ended
}

func (m *model) drop(t *rapid.T) {
	page, err := m.m.ListSnapshots(m.t.Context(), "t", sandbox.SnapshotQuery{})
	if err != nil || len(page.Snapshots) == 0 {
		t.Skip("there is none")
	}
	id := rapid.SampledFrom(page.Snapshots).Draw(t, "snapshot").ID
	needed := slices.ContainsFunc(m.order, func(box string) bool { return m.boxes[box].state == sandbox.Paused && m.boxes[box].snap == id })
	_, err = m.m.DeleteSnapshot(m.t.Context(), "t", id)
	if code := sandbox.CodeOf(err); needed && code != sandbox.Conflict || !needed && err != nil {
		t.Fatalf("DeleteSnapshot, needed: %v, = %v", needed, err)
	}
	if !needed {
		delete(m.snaps, id)
	}
}

// restart replaces the process; the Store stays.
func (m *model) restart(*rapid.T) { m.m = m.manager(m.world.store, m.nodes) }

// check compares all records with the model, after the background work.
func (m *model) check(t *rapid.T) {
	time.Sleep(time.Millisecond) // Snapshots need different times
	if err := m.m.Reconcile(m.t.Context()); err != nil {
		t.Fatalf("Reconcile: %v", err)
	}
	live := int64(0)
	for _, id := range m.order {
		b, sb := m.boxes[id], m.record(id)
		if sb.State != b.state || sb.Timeline != b.timeline {
			t.Fatalf("%s is %s in timeline %d, not %s in %d", id, sb.State, sb.Timeline, b.state, b.timeline)
		}
		if got := m.nodes.recall(sb); b.state == sandbox.Running && got != b.memory {
			t.Fatalf("%s remembers %q, not %q", id, got, b.memory)
		}
		if b.state != sandbox.Ended {
			live++
		}
		for i, volume := range b.volumes {
			if got := m.nodes.readFile(sb, mountPath(i)); b.state == sandbox.Running && got != m.volumes[volume] {
				t.Fatalf("%s reads %q in the volume %s, not %q", id, got, volume, m.volumes[volume])
			}
		}
	}
	if _, _, used, err := m.world.store.QuotaOf(m.t.Context(), "t"); err != nil || used.Sandboxes != live || used.MemoryBytes != live*sandbox.DefaultShape().MemoryBytes {
		t.Fatalf("the quota counts %+v for %d sandboxes, %v", used, live, err)
	}
	m.consistent()
	if m.t.Failed() {
		t.Fatal("records, boots and snapshots do not agree")
	}
}

// timeless hides the test's deadline, because the bubble has its own clock.
type timeless struct{ testing.TB }

// After random calls, losses of Boots and restarts, each Sandbox equals its model.
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(timeless{t}, func(rt *rapid.T) {
			m := &model{world: newWorld(t), boxes: map[string]*modelBox{}, snaps: map[string]modelSnap{}, volumes: map[string]string{}}
			defer m.close()
			rt.Repeat(map[string]func(*rapid.T){
				"": m.check, "create": m.create, "write": m.write, "pause": m.pauseOne, "resume": m.resumeOne, "snapshot": m.take,
				"fork": m.fork, "rollback": m.rollback, "lose": m.lose, "end": m.end, "delete": m.drop, "restart": m.restart,
				"volume": m.makeVolume, "write to a volume": m.writeVolume, "delete a volume": m.dropVolume,
			})
		})
	})
}
