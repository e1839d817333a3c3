package session_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

func TestReconcileEndsWhatIsLost(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		lost, kept := w.create("t", sandbox.CreateRequest{}), w.create("t", sandbox.CreateRequest{})
		w.nodes.lose(local, lost.Boot.ID, "")
		if err := w.m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := w.record(lost.ID); r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseEngineLost {
			t.Errorf("lost: %+v", r)
		}
		if r := w.record(kept.ID); r.State != sandbox.Running || r.Version != kept.Version {
			t.Errorf("kept: %+v", r)
		}
	})
}

// Where records and Boots agree, reconciling reads no record once more.
func TestReconcileReadsRecordsOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for range 10 {
			w.create("t", sandbox.CreateRequest{})
		}
		before := w.store.reads.Load()
		if err := w.m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := w.store.reads.Load() - before; n != 0 {
			t.Errorf("%d records were read one by one", n)
		}
	})
}

func TestReconcileStopsWhatNobodyOwns(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb, ended := w.create("t", sandbox.CreateRequest{}), w.create("t", sandbox.CreateRequest{})
		if _, err := w.m.End(t.Context(), "t", ended.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		for _, ref := range []sandbox.BootRef{
			{SandboxID: sandbox.NewSandboxID(), Number: 1}, // no record
			{SandboxID: ended.ID, Number: 1},
			{SandboxID: sb.ID, Number: 0}, // an older one
			{SandboxID: sb.ID, Number: 1}, // a second of the same number
			{SandboxID: sb.ID, Number: 2}, // one that was never recorded
		} {
			ref.BootID, ref.Tenant = sandbox.NewBootID(), "t"
			w.nodes.put(local, sandbox.BoundBoot{BootRef: ref})
		}
		if err := w.m.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if boots := w.nodes.all(); len(boots) != 1 || boots[0].BootID != sb.Boot.ID {
			t.Errorf("what runs: %+v, want only %s", boots, sb.Boot.ID)
		}
	})
}

// A reconcile does not disturb concurrent creates and ends.
func TestReconcileBesideTraffic(t *testing.T) {
	w := newWorld(t)
	defer w.close()
	ctx, cancel := context.WithCancel(t.Context())
	var reconciling sync.WaitGroup
	reconciling.Go(func() {
		for ctx.Err() == nil {
			if err := w.m.Reconcile(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("Reconcile: %v", err)
			}
		}
	})
	w.nodes.pool = true
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 25 {
				sb, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{})
				if err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				if i%5 == 4 {
					continue
				}
				if _, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
					t.Errorf("End: %v", err)
				}
			}
		})
	}
	wg.Wait()
	cancel()
	reconciling.Wait()
	if n := len(w.nodes.all()); n != 20 {
		t.Errorf("%d run, want 20", n)
	}
	w.consistent()
}

func TestReconcileOfALostNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		defer w.close()
		sb := w.create("t", sandbox.CreateRequest{Timeout: 24 * time.Hour})
		w.nodes.setAway("a", true)
		w.lease("a", 15*time.Second)
		if err := w.m.Reconcile(t.Context()); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Reconcile while the lease runs = %v", err)
		}
		if r := w.record(sb.ID); r.State != sandbox.Running {
			t.Errorf("while the lease runs it is %s", r.State)
		}
		w.run()
		w.pass(5 * time.Minute)
		if r := w.record(sb.ID); r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseNodeLost {
			t.Errorf("after the lease: %+v", r)
		}
		// The Node comes back with the Boot, which no record owns any more.
		w.nodes.setAway("a", false)
		w.pass(5 * time.Minute)
		w.consistent()
	})
}

// The record of an empty Node is deleted a day after its lease ended.
func TestReconcileRetiresNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		defer w.close()
		w.lease("former", -23*time.Hour)
		names := func() (all []string) {
			t.Helper()
			if err := w.m.Reconcile(t.Context()); err != nil && !errors.Is(err, sandbox.Unavailable) {
				t.Fatal(err)
			}
			records, err := w.store.Nodes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range records {
				all = append(all, n.Name)
			}
			return all
		}
		if got := names(); !slices.Contains(got, "former") {
			t.Errorf("after 23 hours there are %v", got)
		}
		time.Sleep(2 * time.Hour)
		if got := names(); slices.Contains(got, "former") {
			t.Errorf("after 25 hours there are %v", got)
		}
	})
}

// A mortal is a process that crashes at its nth call: before the call, or after it without
// receiving the answer. Its later calls have no effect. With takeover it does not crash.
// Instead another process becomes leader before the nth call, and from then on the Store
// and the Nodes refuse this one.
type mortal struct {
	sandbox.Store
	ports
	mu       sync.Mutex
	left     int
	after    bool
	dead     bool
	takeover func() // another process leads once it returns
	former   bool
}

var errDead = errors.New("dead")

func call[T any](m *mortal, do func() (T, error)) (T, error) {
	var zero T
	m.mu.Lock()
	if m.dead {
		m.mu.Unlock()
		return zero, errDead
	}
	m.left--
	dies := m.left == 0
	m.dead = dies && m.takeover == nil
	after := m.after
	m.mu.Unlock()
	if dies && m.takeover != nil {
		m.takeover()
		m.mu.Lock()
		m.former = true
		m.mu.Unlock()
		dies = false
	}
	if !dies {
		return do()
	}
	if after {
		_, _ = do()
	}
	return zero, errDead
}

// callNode is call for a Node, which refuses former leaders as a Store under a leader
// does.
func callNode[T any](m *mortal, do func() (T, error)) (T, error) {
	return call(m, func() (T, error) {
		m.mu.Lock()
		former := m.former
		m.mu.Unlock()
		if former {
			return *new(T), sandbox.Errorf(sandbox.Unavailable, "another one leads")
		}
		return do()
	})
}

func (m *mortal) InsertSandbox(ctx context.Context, s sandbox.Sandbox) (sandbox.Sandbox, error) {
	return call(m, func() (sandbox.Sandbox, error) { return m.Store.InsertSandbox(ctx, s) })
}

func (m *mortal) UpdateSandbox(ctx context.Context, s sandbox.Sandbox) (sandbox.Sandbox, error) {
	return call(m, func() (sandbox.Sandbox, error) { return m.Store.UpdateSandbox(ctx, s) })
}

func (m *mortal) SandboxByID(ctx context.Context, id string) (sandbox.Sandbox, error) {
	return call(m, func() (sandbox.Sandbox, error) { return m.Store.SandboxByID(ctx, id) })
}

func (m *mortal) Start(ctx context.Context, node string, r sandbox.StartRequest) (sandbox.Started, error) {
	return callNode(m, func() (sandbox.Started, error) { return m.ports.Start(ctx, node, r) })
}

func (m *mortal) Stop(ctx context.Context, node, id string, d time.Duration) error {
	_, err := callNode(m, func() (struct{}, error) { return struct{}{}, m.ports.Stop(ctx, node, id, d) })
	return err
}

func (m *mortal) Boots(ctx context.Context, node string) ([]sandbox.BoundBoot, error) {
	return callNode(m, func() ([]sandbox.BoundBoot, error) { return m.ports.Boots(ctx, node) })
}

func (m *mortal) InsertSnapshot(ctx context.Context, s sandbox.Snapshot) (sandbox.Snapshot, error) {
	return call(m, func() (sandbox.Snapshot, error) { return m.Store.InsertSnapshot(ctx, s) })
}

func (m *mortal) UpdateSnapshot(ctx context.Context, s sandbox.Snapshot) (sandbox.Snapshot, error) {
	return call(m, func() (sandbox.Snapshot, error) { return m.Store.UpdateSnapshot(ctx, s) })
}

func (m *mortal) RetireSnapshot(ctx context.Context, id string, loose bool) error {
	_, err := call(m, func() (struct{}, error) { return struct{}{}, m.Store.RetireSnapshot(ctx, id, loose) })
	return err
}

func (m *mortal) DropSnapshot(ctx context.Context, id string) error {
	_, err := call(m, func() (struct{}, error) { return struct{}{}, m.Store.DropSnapshot(ctx, id) })
	return err
}

func (m *mortal) LeaveSnapshot(ctx context.Context, id string) error {
	_, err := call(m, func() (struct{}, error) { return struct{}{}, m.Store.LeaveSnapshot(ctx, id) })
	return err
}

func (m *mortal) Save(ctx context.Context, node string, r sandbox.SaveRequest) (sandbox.Saved, error) {
	return callNode(m, func() (sandbox.Saved, error) { return m.ports.Save(ctx, node, r) })
}

func (m *mortal) SaveFiles(ctx context.Context, node string, r sandbox.FilesRequest) (sandbox.Saved, error) {
	return callNode(m, func() (sandbox.Saved, error) { return m.ports.SaveFiles(ctx, node, r) })
}

func (m *mortal) Thaw(ctx context.Context, node string, boot sandbox.BootRef) error {
	_, err := callNode(m, func() (struct{}, error) { return struct{}{}, m.ports.Thaw(ctx, node, boot) })
	return err
}

func (m *mortal) DeleteSaved(ctx context.Context, node, snapshot string) error {
	_, err := callNode(m, func() (struct{}, error) { return struct{}{}, m.ports.DeleteSaved(ctx, node, snapshot) })
	return err
}

// mortalStore and mortalNodes give each half its own type: both ports together
// would have two methods named Nodes.
type mortalStore struct {
	sandbox.Store
	m *mortal
}

func (s mortalStore) InsertSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	return s.m.InsertSandbox(ctx, sb)
}

func (s mortalStore) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	return s.m.UpdateSandbox(ctx, sb)
}

func (s mortalStore) InsertSnapshot(ctx context.Context, snap sandbox.Snapshot) (sandbox.Snapshot, error) {
	return s.m.InsertSnapshot(ctx, snap)
}

func (s mortalStore) UpdateSnapshot(ctx context.Context, snap sandbox.Snapshot) (sandbox.Snapshot, error) {
	return s.m.UpdateSnapshot(ctx, snap)
}

func (s mortalStore) RetireSnapshot(ctx context.Context, id string, loose bool) error {
	return s.m.RetireSnapshot(ctx, id, loose)
}

func (s mortalStore) DropSnapshot(ctx context.Context, id string) error {
	return s.m.DropSnapshot(ctx, id)
}

func (s mortalStore) LeaveSnapshot(ctx context.Context, id string) error {
	return s.m.LeaveSnapshot(ctx, id)
}

func (s mortalStore) SandboxByID(ctx context.Context, id string) (sandbox.Sandbox, error) {
	return s.m.SandboxByID(ctx, id)
}

type mortalNodes struct {
	ports
	m *mortal
}

func (n mortalNodes) Start(ctx context.Context, node string, r sandbox.StartRequest) (sandbox.Started, error) {
	return n.m.Start(ctx, node, r)
}

func (n mortalNodes) Stop(ctx context.Context, node, id string, d time.Duration) error {
	return n.m.Stop(ctx, node, id, d)
}

func (n mortalNodes) Save(ctx context.Context, node string, r sandbox.SaveRequest) (sandbox.Saved, error) {
	return n.m.Save(ctx, node, r)
}

func (n mortalNodes) SaveFiles(ctx context.Context, node string, r sandbox.FilesRequest) (sandbox.Saved, error) {
	return n.m.SaveFiles(ctx, node, r)
}

func (n mortalNodes) Thaw(ctx context.Context, node string, boot sandbox.BootRef) error {
	return n.m.Thaw(ctx, node, boot)
}

func (n mortalNodes) DeleteSaved(ctx context.Context, node, snapshot string) error {
	return n.m.DeleteSaved(ctx, node, snapshot)
}

func (n mortalNodes) Boots(ctx context.Context, node string) ([]sandbox.BoundBoot, error) {
	return n.m.Boots(ctx, node)
}

// mortalManager returns a Manager that crashes at its nth call.
func (w *world) mortalManager(n int, after bool) (*session.Manager, *mortal) {
	m := &mortal{Store: w.store, ports: w.nodes, left: n, after: after}
	return w.manager(mortalStore{w.store, m}, mortalNodes{w.nodes, m}), m
}

// A process crashes at any step of a state change. A fresh Manager over the same Store
// finishes or undoes the change.
func TestCrashAtEveryStep(t *testing.T) {
	for _, op := range changes {
		for _, after := range []bool{false, true} {
			for _, pool := range []bool{false, true} {
				if pool && (op.name == "resume" || op.name == "reboot") {
					continue // no Boot of a Pool serves
				}
				t.Run(fmt.Sprintf("%s, after the call %v, pool %v", op.name, after, pool), func(t *testing.T) {
					t.Parallel()
					for step := 1; ; step++ {
						if step > 100 {
							t.Fatal("the operation does not end")
						}
						if !crashAt(t, step, after, pool, op.name, op.do) {
							break
						}
					}
				})
			}
		}
	}
}

// changes are the operations that change States.
var changes = []struct {
	name string
	do   func(m *session.Manager, sb sandbox.Sandbox) error
}{
	{"create", func(m *session.Manager, _ sandbox.Sandbox) error {
		_, err := m.Create(context.Background(), "t", sandbox.CreateRequest{Name: "new"})
		return err
	}},
	{"end", func(m *session.Manager, sb sandbox.Sandbox) error {
		_, err := m.End(context.Background(), "t", sb.ID, sandbox.CauseReleased)
		return err
	}},
	{"boot ended", func(m *session.Manager, sb sandbox.Sandbox) error {
		return m.BootEnded(context.Background(), sandbox.BootEnd{
			BootRef: sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: 1, Tenant: "t"}, Node: local, Cause: sandbox.CauseOOM,
		})
	}},
	{"loss of one with a checkpoint", func(m *session.Manager, sb sandbox.Sandbox) error {
		return m.BootEnded(context.Background(), sandbox.BootEnd{
			BootRef: sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: 1, Tenant: "t"}, Node: local, Cause: sandbox.CauseEngineLost,
		})
	}},
	{"pause", func(m *session.Manager, sb sandbox.Sandbox) error {
		_, err := m.Pause(context.Background(), "t", sb.ID, false)
		return err
	}},
	{"resume", func(m *session.Manager, sb sandbox.Sandbox) error {
		_, err := m.Resume(context.Background(), "t", sb.ID)
		return err
	}},
	{"reboot", func(m *session.Manager, sb sandbox.Sandbox) error {
		_, err := m.Reboot(context.Background(), "t", sb.ID)
		return err
	}},
	{"snapshot", func(m *session.Manager, sb sandbox.Sandbox) error {
		_, err := m.TakeSnapshot(context.Background(), "t", sb.ID, sandbox.SnapshotRequest{Name: "kept"})
		return err
	}},
	{"fork", func(m *session.Manager, sb sandbox.Sandbox) error {
		forks, err := m.Fork(context.Background(), "t", sb.ID, sandbox.ForkRequest{Count: 2})
		for _, f := range forks {
			err = errors.Join(err, f.Err)
		}
		return err
	}},
	{"rollback", func(m *session.Manager, sb sandbox.Sandbox) error {
		_, err := m.Rollback(context.Background(), "t", sb.ID, "first")
		return err
	}},
	{"delete of a snapshot", func(m *session.Manager, sb sandbox.Sandbox) error {
		_, err := m.DeleteSnapshot(context.Background(), "t", sb.Snapshot)
		return err
	}},
	{"end of a paused one", func(m *session.Manager, sb sandbox.Sandbox) error {
		_, err := m.End(context.Background(), "t", sb.ID, sandbox.CauseReleased)
		return err
	}},
	{"reconcile of a lost boot", func(m *session.Manager, _ sandbox.Sandbox) error {
		return m.Reconcile(context.Background())
	}},
}

// crashAt crashes at one step. It reports whether the operation has that step.
func crashAt(t *testing.T, step int, after, pool bool, name string, do func(*session.Manager, sandbox.Sandbox) error) bool {
	died := false
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		w.nodes.pool = pool
		neighbour, sb := w.create("t", sandbox.CreateRequest{}), w.create("t", sandbox.CreateRequest{CheckpointEvery: time.Minute})
		if name == "boot ended" || name == "reconcile of a lost boot" {
			w.nodes.lose(local, sb.Boot.ID, sandbox.CauseOOM)
		}
		sb = w.ready(name, sb)
		if name == "loss of one with a checkpoint" {
			w.nodes.lose(local, sb.Boot.ID, sandbox.CauseEngineLost)
		}
		first, m := w.mortalManager(step, after)
		err := do(first, sb)
		synctest.Wait() // the crash also cuts off work after the answer
		died = m.dead
		// Once the state is saved, or its deletion recorded, the rest may come after the
		// answer.
		later := slices.Contains([]string{"pause", "snapshot", "delete of a snapshot", "loss of one with a checkpoint"}, name)
		if died && err == nil && !later {
			t.Errorf("step %d: the operation succeeded in a dead process", step)
		}
		w.m = w.manager(w.store, w.nodes)
		if err := w.m.Reconcile(t.Context()); err != nil {
			t.Errorf("step %d: Reconcile: %v", step, err)
		}
		w.consistent()
		w.fillsQuota(step)
		w.remembers(name, step, sb, err == nil)
		if r := w.record(neighbour.ID); r.State != sandbox.Running || r.Version != neighbour.Version {
			t.Errorf("step %d: the neighbour became %+v", step, r)
		}
		if name == "create" { // its name must be free, or its Sandbox whole
			if _, err := w.m.End(t.Context(), "t", "new", sandbox.CauseReleased); err != nil && !errors.Is(err, sandbox.NotFound) {
				t.Errorf("step %d: End: %v", step, err)
			}
			w.create("t", sandbox.CreateRequest{Name: "new"})
		}
	})
	return died
}

// fillsQuota fails the test unless exactly as many Sandboxes can be created as a quota
// allows. It ends them and removes the quota afterwards.
func (w *world) fillsQuota(step int) {
	w.t.Helper()
	const most = 6
	ctx := w.t.Context()
	live, err := w.store.SandboxesNotEnded(ctx)
	if err == nil {
		err = w.store.SetQuota(ctx, "t", &sandbox.Quota{Sandboxes: most})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	made := 0
	for ; made <= most; made++ {
		sb, err := w.m.Create(ctx, "t", sandbox.CreateRequest{})
		if errors.Is(err, sandbox.Exhausted) {
			break
		}
		if err != nil {
			w.t.Fatalf("step %d: Create: %v", step, err)
		}
		defer func() {
			if _, err := w.m.End(ctx, "t", sb.ID, sandbox.CauseReleased); err != nil {
				w.t.Errorf("step %d: End: %v", step, err)
			}
		}()
	}
	if len(live)+made != most {
		w.t.Errorf("step %d: beside %d sandboxes %d got into a quota of %d", step, len(live), made, most)
	}
	if err := w.store.SetQuota(ctx, "t", nil); err != nil {
		w.t.Fatal(err)
	}
}

// ready prepares sb for an operation. It saves the memory "first" under that name or
// pauses sb if the operation needs it. The memory is "now" afterwards.
func (w *world) ready(name string, sb sandbox.Sandbox) sandbox.Sandbox {
	w.t.Helper()
	w.nodes.remember(sb, "first")
	if name == "rollback" || name == "delete of a snapshot" || name == "loss of one with a checkpoint" {
		if _, err := w.m.TakeSnapshot(w.t.Context(), "t", sb.ID, sandbox.SnapshotRequest{Name: "first"}); err != nil {
			w.t.Fatal(err)
		}
	}
	w.nodes.remember(sb, "now")
	if name == "resume" || name == "reboot" || name == "end of a paused one" {
		if _, err := w.m.Pause(w.t.Context(), "t", sb.ID, false); err != nil {
			w.t.Fatal(err)
		}
	}
	return w.record(sb.ID)
}

// remembers resumes sb and fails the test unless sb has kept its memory. An operation that
// must not lose the memory may have failed.
func (w *world) remembers(name string, step int, sb sandbox.Sandbox, done bool) {
	w.t.Helper()
	want := map[string][]string{
		"pause": {"now"}, "resume": {"now"}, "reboot": {"now", ""}, "snapshot": {"now"}, "fork": {"now"}, "rollback": {"now", "first"}, "delete of a snapshot": {"now"},
		"loss of one with a checkpoint": {"first"},
	}[name]
	if want == nil {
		return
	}
	if name == "rollback" && done {
		want = []string{"first"}
	}
	if (name == "rollback" || name == "reboot") && w.record(sb.ID).State == sandbox.Paused {
		want = []string{"now"}
	}
	running, err := w.m.Resume(w.t.Context(), "t", sb.ID)
	if err != nil {
		w.t.Errorf("%s, step %d: Resume: %v", name, step, err)
	} else if got := w.nodes.recall(running); !slices.Contains(want, got) {
		w.t.Errorf("%s, step %d: its memory holds %q, want %v", name, step, got, want)
	}
	w.consistent()
}

// Random operations, faults and crashes make only legal transitions (checkedStore). After
// a reconcile, records and Boots agree.
func TestRandomLives(t *testing.T) {
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { randomLife(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func randomLife(t *testing.T, r *rand.Rand) {
	w := newWorld(t, "a", "b")
	defer w.close()
	w.nodes.pool = r.IntN(2) == 0
	var dice sync.Mutex // faults are drawn by concurrent calls
	fault := func() error {
		dice.Lock()
		defer dice.Unlock()
		if r.IntN(8) == 0 {
			return []error{
				sandbox.Errorf(sandbox.Unavailable, "away"), sandbox.Errorf(sandbox.Exhausted, "full"), errors.New("broken"),
			}[r.IntN(3)]
		}
		return nil
	}
	var ids []string
	ctx := t.Context()
	for range 60 {
		synctest.Wait() // paused Sandboxes release their Boots
		w.nodes.fail(func(f *faults) {
			*f = faults{
				onStart:  func(context.Context, string, sandbox.StartRequest) error { return fault() },
				onBound:  func(sandbox.StartRequest) error { return fault() },
				onStop:   func(context.Context, string) error { return fault() },
				onSave:   func(context.Context, sandbox.SaveRequest) error { return fault() },
				onSaved:  func(sandbox.SaveRequest) error { return fault() },
				onThaw:   func(context.Context, sandbox.BootRef) error { return fault() },
				onDelete: func(context.Context, string) error { return fault() },
			}
		})
		id := sandbox.NewSandboxID()
		if len(ids) > 0 {
			id = ids[r.IntN(len(ids))]
		}
		switch r.IntN(14) {
		case 0, 1, 2:
			onTimeout := []sandbox.OnTimeout{sandbox.OnTimeoutEnd, sandbox.OnTimeoutPause}[r.IntN(2)]
			if sb, err := w.m.Create(ctx, "t", sandbox.CreateRequest{
				Timeout: time.Duration(1+r.IntN(600)) * time.Second, OnTimeout: onTimeout, CheckpointEvery: time.Duration(r.IntN(2)) * time.Minute,
			}); err == nil {
				ids = append(ids, sb.ID)
			}
		case 8:
			_, _ = w.m.Pause(ctx, "t", id, r.IntN(2) == 0)
		case 9:
			_, _ = w.m.Resume(ctx, "t", id)
		case 10:
			_, _ = w.m.TakeSnapshot(ctx, "t", id, sandbox.SnapshotRequest{})
		case 11:
			forks, _ := w.m.Fork(ctx, "t", id, sandbox.ForkRequest{Count: 1 + r.IntN(3)})
			for _, f := range forks {
				if f.Err == nil {
					ids = append(ids, f.Sandbox.ID)
				}
			}
		case 12:
			if tree, err := w.m.History(ctx, "t", id); err == nil && len(tree) > 0 {
				_, _ = w.m.Rollback(ctx, "t", id, tree[r.IntN(len(tree))].ID)
			}
		case 13:
			if page, err := w.m.ListSnapshots(ctx, "t", sandbox.SnapshotQuery{}); err == nil && len(page.Snapshots) > 0 {
				_, _ = w.m.DeleteSnapshot(ctx, "t", page.Snapshots[r.IntN(len(page.Snapshots))].ID)
			}
		case 3:
			_, _ = w.m.End(ctx, "t", id, sandbox.CauseReleased)
		case 4:
			_, _ = w.m.SetTimeout(ctx, "t", id, time.Duration(1+r.IntN(600))*time.Second)
		case 5:
			if boots := w.nodes.all(); len(boots) > 0 {
				slices.SortFunc(boots, func(a, b sandbox.BoundBoot) int { return slices.Compare([]byte(a.BootID), []byte(b.BootID)) })
				b := boots[r.IntN(len(boots))]
				for _, node := range []string{"a", "b"} {
					w.nodes.lose(node, b.BootID, "")
				}
				_ = w.m.BootEnded(ctx, sandbox.BootEnd{BootRef: b.BootRef, Node: local, Cause: sandbox.CauseOOM})
			}
		case 6: // the process dies in the middle of something
			m, _ := w.mortalManager(1+r.IntN(6), r.IntN(2) == 0)
			switch r.IntN(5) {
			case 0:
				_, _ = m.Create(ctx, "t", sandbox.CreateRequest{})
			case 1:
				_, _ = m.End(ctx, "t", id, sandbox.CauseReleased)
			case 2:
				_, _ = m.Pause(ctx, "t", id, false)
			case 3:
				_, _ = m.Resume(ctx, "t", id)
			case 4:
				_, _ = m.Fork(ctx, "t", id, sandbox.ForkRequest{Count: 2})
			}
			w.m = w.manager(w.store, w.nodes)
			_ = w.m.Reconcile(ctx)
		case 7:
			w.pass(time.Duration(r.IntN(300)) * time.Second)
		}
	}
	w.nodes.mend()
	w.run()
	// Deadlines are at whole seconds, so nothing is in progress half a second after one.
	w.pass(2*time.Minute + time.Second/2)
	w.consistent()
	w.pass(time.Hour)
	w.consistent()
	if n, err := w.m.Counts(ctx, "t"); err != nil || len(n) > 1 || len(n) == 1 && n[sandbox.Paused] == 0 {
		t.Errorf("an hour later: %v, %v", n, err)
	}
	if n := len(w.nodes.all()); n != 0 {
		t.Errorf("an hour later %d boots run", n)
	}
}
