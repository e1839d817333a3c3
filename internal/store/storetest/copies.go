package storetest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// copyCases cover the copies of Snapshots and their packs.
var copyCases = []check{
	{"packs have the scope of their installation", packScope},
	{"a pack stays until no copy uses it", packsStay},
	{"a pack that is being deleted is neither used nor put", packsRefused},
	{"a complete copy keeps the packs of its attempt", completeCopy},
	{"the packs of an attempt stay while its list may be put", lateList},
	{"a copy is of a snapshot that is needed, on its node", copyNeeds},
	{"what may still be put is not deleted", putsInProgress},
	{"a copy that was stopped is deleted", abandonCopy},
	{"a copy with another key replaces the former one", replaceCopy},
	{"the copy of a dropped snapshot is deleted", dropCopied},
	{"many packs are released in steps", manyPacks},
	{"bad names of copies and packs are Invalid", badCopies},
	{"a state is left on a node that is away", leftStates},
	{"a snapshot moves from node to node", moveSnapshots},
}

const copyPrefix, otherPrefix = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"

// pack is the name of the pack number i.
func pack(prefix string, i int) string { return sandbox.PackName(prefix, fmt.Sprintf("%064x", i)) }

func packsOf(prefix string, numbers ...int) (all []string) {
	for _, i := range numbers {
		all = append(all, pack(prefix, i))
	}
	return all
}

// begin inserts a Snapshot and begins the first attempt at its copy.
func begin(t *testing.T, st sandbox.Store) (id string) {
	t.Helper()
	snap := insertSnapshot(t, st, snapshot("t", sandbox.NewSandboxID()))
	if a, err := st.BeginCopy(t.Context(), "local", attempt(snap.ID).CopyRef); err != nil || a != attempt(snap.ID) {
		t.Fatalf("BeginCopy = %+v, %v", a, err)
	}
	return snap.ID
}

// attempt is the first attempt at the copy of a Snapshot.
func attempt(snapshot string) sandbox.CopyAttempt {
	return sandbox.CopyAttempt{CopyRef: sandbox.CopyRef{Snapshot: snapshot, Prefix: copyPrefix}, Number: 1}
}

// use has the copy of a Snapshot on its node use packs, and returns the numbers of those that
// were refused.
func use(t *testing.T, st sandbox.Store, a sandbox.CopyAttempt, shared bool, life time.Duration, numbers ...int) (refused []int) {
	t.Helper()
	names, err := st.UsePacks(t.Context(), "local", sandbox.PackUse{CopyAttempt: a, Packs: packsOf(a.Prefix, numbers...), Shared: shared, Life: life})
	must(t, err)
	for _, i := range numbers {
		if slices.Contains(names, pack(a.Prefix, i)) {
			refused = append(refused, i)
		}
	}
	return refused
}

// copied inserts a Snapshot with a complete copy.
func copied(t *testing.T, st sandbox.Store, numbers ...int) (id string) {
	t.Helper()
	id = begin(t, st)
	if refused := use(t, st, attempt(id), false, time.Hour, numbers...); len(refused) > 0 {
		t.Fatalf("refused: %v", refused)
	}
	must(t, st.CompleteCopy(t.Context(), "local", attempt(id)))
	return id
}

// collect removes the records of all that can be deleted, and returns the names of the blobs
// that would be deleted before.
func collectCopies(t *testing.T, st sandbox.Store) (blobs []string) {
	t.Helper()
	copies, err := st.CopiesLeft(t.Context(), 100)
	must(t, err)
	for _, c := range copies {
		blobs = append(blobs, c.List())
		for more := true; more; {
			more, err = st.DropCopy(t.Context(), c)
			must(t, err)
		}
	}
	packs, err := st.PacksLeft(t.Context(), 10_000)
	must(t, err)
	must(t, st.DropPacks(t.Context(), packs))
	return append(blobs, packs...)
}

// deletes checks which blobs a collection deletes.
func deletes(t *testing.T, st sandbox.Store, what string, lists []string, packs ...int) {
	t.Helper()
	want := packsOf(copyPrefix, packs...)
	for _, snapshot := range lists {
		want = append(want, attempt(snapshot).List())
	}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(collectCopies(t, st))); !slices.Equal(got, want) {
		t.Errorf("%s: deleted are %v, want %v", what, got, want)
	}
}

func drop(t *testing.T, st sandbox.Store, snapshot string) {
	t.Helper()
	must(t, st.RetireSnapshot(t.Context(), snapshot, false))
	must(t, st.DropSnapshot(t.Context(), snapshot))
}

func packScope(t *testing.T, st sandbox.Store) {
	one, err := st.PackScope(t.Context())
	must(t, err)
	if again, err := st.PackScope(t.Context()); err != nil || again != one || len(one) != 32 {
		t.Errorf("the scope is %q, then %q, %v", one, again, err)
	}
}

func packsStay(t *testing.T, st sandbox.Store) {
	a := copied(t, st, 1, 2)
	b := begin(t, st)
	if refused := use(t, st, attempt(b), true, 0, 2, 3); !slices.Equal(refused, []int{3}) {
		t.Errorf("of a shared pack and an unknown one are refused %v", refused)
	}
	must(t, st.CompleteCopy(t.Context(), "local", attempt(b)))
	deletes(t, st, "while all are needed", nil)
	drop(t, st, a)
	deletes(t, st, "once the first is dropped", []string{a}, 1)
	deletes(t, st, "again", nil)
	drop(t, st, b)
	deletes(t, st, "once both are dropped", []string{b}, 2)
}

func packsRefused(t *testing.T, st sandbox.Store) {
	a := copied(t, st, 1)
	drop(t, st, a)
	copies, err := st.CopiesLeft(t.Context(), 1)
	must(t, err)
	if len(copies) != 1 {
		t.Fatalf("%d copies are left", len(copies))
	}
	b := begin(t, st)
	if refused := use(t, st, attempt(b), true, 0, 1); len(refused) != 0 {
		t.Errorf("refused is %v although the copy has not released it yet", refused)
	}
	_, err = st.DropCopy(t.Context(), copies[0])
	must(t, err)
	deletes(t, st, "what another copy took over", nil)
	drop(t, st, b)
	c := copied(t, st, 2)
	copies, err = st.CopiesLeft(t.Context(), 1)
	must(t, err)
	_, err = st.DropCopy(t.Context(), copies[0])
	must(t, err)
	for _, shared := range []bool{true, false} {
		if refused := use(t, st, attempt(c), shared, 0, 1); !slices.Equal(refused, []int{1}) {
			t.Errorf("of a pack that is being deleted is refused %v (shared: %t)", refused, shared)
		}
	}
	deletes(t, st, "what was refused", nil, 1)
	if refused := use(t, st, attempt(c), false, 0, 1); len(refused) > 0 {
		t.Errorf("after its deletion is refused %v", refused)
	}
	must(t, st.DropPacks(t.Context(), packsOf(copyPrefix, 1)))
	if refused := use(t, st, attempt(c), true, 0, 1); len(refused) > 0 {
		t.Error("a pack in use was dropped")
	}
}

func completeCopy(t *testing.T, st sandbox.Store) {
	snap := begin(t, st)
	first := attempt(snap)
	use(t, st, first, false, 0, 1, 2)
	if prefix, err := st.FindCopy(t.Context(), "t", snap); err == nil {
		t.Errorf("an incomplete copy is found: %s", prefix)
	}
	second, err := st.BeginCopy(t.Context(), "local", first.CopyRef)
	must(t, err)
	use(t, st, second, false, 0, 2, 3)
	_, err = st.UsePacks(t.Context(), "local", sandbox.PackUse{CopyAttempt: first, Packs: packsOf(copyPrefix, 2)})
	codetest.Want(t, "a late UsePacks of the former attempt", err, sandbox.Conflict)
	codetest.Want(t, "a late CompleteCopy of the former attempt", st.CompleteCopy(t.Context(), "local", first), sandbox.Conflict)
	must(t, st.CompleteCopy(t.Context(), "local", second))
	if prefix, err := st.FindCopy(t.Context(), "t", snap); err != nil || prefix != copyPrefix {
		t.Errorf("FindCopy = %q, %v", prefix, err)
	}
	_, err = st.FindCopy(t.Context(), "u", snap)
	codetest.Want(t, "a copy for another tenant", err, sandbox.NotFound)
	deletes(t, st, "of the former attempt", nil, 1)
	deletes(t, st, "again", nil)
	// A copy is made again if the node has lost its files.
	third, err := st.BeginCopy(t.Context(), "local", first.CopyRef)
	must(t, err)
	use(t, st, third, false, time.Hour, 3)
	if _, err := st.FindCopy(t.Context(), "t", snap); err != nil {
		t.Errorf("a copy that is made again is gone: %v", err)
	}
	must(t, st.CompleteCopy(t.Context(), "local", third))
	deletes(t, st, "of the attempt before", nil, 2)
	drop(t, st, snap)
	deletes(t, st, "in the end", []string{snap}, 3)
}

// putLife is for how long packs may be put in tests that wait for the end of it. What they
// check before has to take less time.
const putLife = 3 * time.Second

// The list of a former attempt, whose process has died, may replace the one of the copy.
func lateList(t *testing.T, st sandbox.Store) {
	snap := begin(t, st)
	use(t, st, attempt(snap), false, putLife, 1, 2)
	other := copied(t, st, 2)
	again, err := st.BeginCopy(t.Context(), "local", attempt(snap).CopyRef)
	must(t, err)
	use(t, st, again, false, 0, 3)
	must(t, st.CompleteCopy(t.Context(), "local", again))
	drop(t, st, other)
	deletes(t, st, "while the former list may be put", []string{other})
	time.Sleep(putLife + 10*time.Millisecond)
	again, err = st.BeginCopy(t.Context(), "local", attempt(snap).CopyRef)
	must(t, err)
	use(t, st, again, false, 0, 3)
	must(t, st.CompleteCopy(t.Context(), "local", again))
	deletes(t, st, "after the next attempt", nil, 1, 2)
	drop(t, st, snap)
	deletes(t, st, "in the end", []string{snap}, 3)
}

func copyNeeds(t *testing.T, st sandbox.Store) {
	snap := begin(t, st)
	none := sandbox.NewSnapshotID()
	for what, c := range map[string]struct {
		node, snapshot string
	}{"another node": {"other", snap}, "an unknown one": {"local", none}} {
		_, err := st.BeginCopy(t.Context(), c.node, attempt(c.snapshot).CopyRef)
		codetest.Want(t, "BeginCopy of "+what, err, sandbox.NotFound)
		_, err = st.UsePacks(t.Context(), c.node, sandbox.PackUse{CopyAttempt: attempt(c.snapshot), Packs: packsOf(copyPrefix, 1)})
		codetest.Want(t, "UsePacks of "+what, err, sandbox.NotFound)
		codetest.Want(t, "CompleteCopy of "+what, st.CompleteCopy(t.Context(), c.node, attempt(c.snapshot)), sandbox.NotFound)
	}
	fresh := insertSnapshot(t, st, snapshot("t", sandbox.NewSandboxID())).ID
	nothing := attempt(fresh)
	nothing.Number = 0
	for _, a := range []sandbox.CopyAttempt{attempt(fresh), nothing} {
		codetest.Want(t, "CompleteCopy of what has not begun", st.CompleteCopy(t.Context(), "local", a), sandbox.Conflict)
	}
	use(t, st, attempt(snap), false, 0, 1)
	must(t, st.RetireSnapshot(t.Context(), snap, false))
	_, err := st.UsePacks(t.Context(), "local", sandbox.PackUse{CopyAttempt: attempt(snap), Packs: packsOf(copyPrefix, 2)})
	codetest.Want(t, "UsePacks of one that is being deleted", err, sandbox.NotFound)
	codetest.Want(t, "CompleteCopy of one that is being deleted", st.CompleteCopy(t.Context(), "local", attempt(snap)), sandbox.NotFound)
	must(t, st.DropSnapshot(t.Context(), snap))
	deletes(t, st, "of all", []string{snap}, 1)
}

func putsInProgress(t *testing.T, st sandbox.Store) {
	snap := begin(t, st)
	use(t, st, attempt(snap), false, putLife, 1)
	use(t, st, attempt(snap), false, 0, 2) // shortens nothing
	// A later attempt does not know whether the puts of the one before have ended.
	again, err := st.BeginCopy(t.Context(), "local", attempt(snap).CopyRef)
	must(t, err)
	use(t, st, again, false, time.Hour, 1)
	must(t, st.CompleteCopy(t.Context(), "local", again))
	drop(t, st, snap)
	deletes(t, st, "while it may be put", nil)
	time.Sleep(putLife + 10*time.Millisecond)
	deletes(t, st, "later", []string{snap}, 1, 2)
}

func abandonCopy(t *testing.T, st sandbox.Store) {
	snap := begin(t, st)
	use(t, st, attempt(snap), false, time.Hour, 1)
	abandoned := sandbox.AbandonedCopy{CopyRef: attempt(snap).CopyRef, Packs: packsOf(copyPrefix, 1, 2)}
	codetest.Want(t, "of one that is needed", st.AbandonCopy(t.Context(), "local", abandoned), sandbox.Conflict)
	must(t, st.RetireSnapshot(t.Context(), snap, false))
	codetest.Want(t, "by another node", st.AbandonCopy(t.Context(), "other", abandoned), sandbox.Conflict)
	other := copied(t, st, 2)
	must(t, st.AbandonCopy(t.Context(), "local", abandoned))
	deletes(t, st, "of the copy", []string{snap}, 1)
	must(t, st.DropSnapshot(t.Context(), snap))
	codetest.Want(t, "of a gone one by another node", func() error {
		use(t, st, attempt(other), false, time.Hour)
		drop(t, st, other)
		return st.AbandonCopy(t.Context(), "other", sandbox.AbandonedCopy{CopyRef: attempt(other).CopyRef})
	}(), sandbox.Conflict)
	deletes(t, st, "of a copy that may still be put", nil)
	must(t, st.AbandonCopy(t.Context(), "local", sandbox.AbandonedCopy{CopyRef: sandbox.CopyRef{Snapshot: other}}))
	deletes(t, st, "of the other", []string{other}, 2)
	// What was put after the collection, or by an earlier version.
	must(t, st.AbandonCopy(t.Context(), "local", sandbox.AbandonedCopy{CopyRef: attempt(snap).CopyRef, Packs: packsOf(copyPrefix, 1, 7)}))
	deletes(t, st, "of unknown ones", []string{snap}, 1, 7)
}

func replaceCopy(t *testing.T, st sandbox.Store) {
	snap := copied(t, st, 1)
	again, err := st.BeginCopy(t.Context(), "local", sandbox.CopyRef{Snapshot: snap, Prefix: otherPrefix})
	must(t, err)
	use(t, st, again, false, 0, 1)
	must(t, st.CompleteCopy(t.Context(), "local", again))
	if prefix, err := st.FindCopy(t.Context(), "t", snap); err != nil || prefix != otherPrefix {
		t.Errorf("FindCopy = %q, %v", prefix, err)
	}
	_, err = st.BeginCopy(t.Context(), "local", attempt(snap).CopyRef)
	codetest.Want(t, "a copy again while the former one is being deleted", err, sandbox.Unavailable)
	deletes(t, st, "of the former one", []string{snap}, 1)
	drop(t, st, snap)
	if got := collectCopies(t, st); !slices.Equal(got, []string{again.List(), pack(otherPrefix, 1)}) {
		t.Errorf("deleted are %v", got)
	}
}

func dropCopied(t *testing.T, st sandbox.Store) {
	snap := copied(t, st, 1)
	must(t, st.RetireSnapshot(t.Context(), snap, false))
	deletes(t, st, "before it is dropped", nil)
	must(t, st.DropSnapshot(t.Context(), snap))
	_, err := st.FindCopy(t.Context(), "t", snap)
	codetest.Want(t, "the copy", err, sandbox.NotFound)
	if more, err := st.DropCopy(t.Context(), sandbox.CopyRef{Snapshot: copied(t, st, 2), Prefix: copyPrefix}); err != nil || more {
		t.Errorf("DropCopy of one that is needed = %t, %v", more, err)
	}
	deletes(t, st, "after it was dropped", []string{snap}, 1)
}

func manyPacks(t *testing.T, st sandbox.Store) {
	snap := begin(t, st)
	const many = 2500
	numbers := make([]int, many)
	for i := range numbers {
		numbers[i] = i
	}
	for part := range slices.Chunk(numbers, sandbox.MaxPacks) {
		use(t, st, attempt(snap), false, 0, part...)
	}
	must(t, st.CompleteCopy(t.Context(), "local", attempt(snap)))
	drop(t, st, snap)
	steps := 1
	for more := true; more; steps++ {
		var err error
		more, err = st.DropCopy(t.Context(), attempt(snap).CopyRef)
		must(t, err)
		if left, err := st.CopiesLeft(t.Context(), 10); err != nil || (len(left) == 1) != more {
			t.Fatalf("after step %d are left %v, %v", steps, left, err)
		}
	}
	if steps != 4 {
		t.Errorf("it took %d steps", steps-1)
	}
	if got := collectCopies(t, st); len(got) != many {
		t.Errorf("%d packs are deleted", len(got))
	}
}

func badCopies(t *testing.T, st sandbox.Store) {
	snap := begin(t, st)
	good := attempt(snap)
	for what, use := range map[string]sandbox.PackUse{
		"no snapshot":              {CopyAttempt: sandbox.CopyAttempt{CopyRef: sandbox.CopyRef{Snapshot: "x", Prefix: copyPrefix}}},
		"no prefix":                {CopyAttempt: sandbox.CopyAttempt{CopyRef: sandbox.CopyRef{Snapshot: snap, Prefix: "../x"}}},
		"a pack of another prefix": {CopyAttempt: good, Packs: packsOf(otherPrefix, 1)},
		"the list as a pack":       {CopyAttempt: good, Packs: []string{good.List()}},
		"no hash":                  {CopyAttempt: good, Packs: []string{copyPrefix + "/p/" + strings.Repeat("x", 64)}},
		"too many packs":           {CopyAttempt: good, Packs: make([]string, sandbox.MaxPacks+1)},
		"a long life":              {CopyAttempt: good, Life: sandbox.MaxPutLife + 1},
		"a negative life":          {CopyAttempt: good, Life: -1},
	} {
		_, err := st.UsePacks(t.Context(), "local", use)
		codetest.Want(t, "UsePacks with "+what, err, sandbox.Invalid)
		if use.Life == 0 {
			codetest.Want(t, "AbandonCopy with "+what, st.AbandonCopy(t.Context(), "local", sandbox.AbandonedCopy{CopyRef: use.CopyRef, Packs: use.Packs}), sandbox.Invalid)
		}
		if use.CopyAttempt != good {
			codetest.Want(t, "CompleteCopy with "+what, st.CompleteCopy(t.Context(), "local", use.CopyAttempt), sandbox.Invalid)
		}
	}
}

func leftStates(t *testing.T, st sandbox.Store) {
	snap := copied(t, st, 1)
	must(t, st.RetireSnapshot(t.Context(), snap, false))
	must(t, st.LeaveSnapshot(t.Context(), snap))
	_, err := st.SnapshotByID(t.Context(), snap)
	codetest.Want(t, "the snapshot", err, sandbox.NotFound)
	deletes(t, st, "of the copy", []string{snap}, 1)
	left := func(want ...sandbox.LeftState) {
		t.Helper()
		if got, err := st.StatesLeft(t.Context(), 10); err != nil || !slices.Equal(got, want) {
			t.Errorf("left are %v, %v, want %v", got, err, want)
		}
	}
	left() // the node is not there
	node := sandbox.NodeRecord{Name: "local", Holder: "h", Engine: "fake"}
	_, err = st.RenewLease(t.Context(), node, -time.Second)
	must(t, err)
	left()
	_, err = st.RenewLease(t.Context(), node, time.Minute)
	must(t, err)
	state := sandbox.LeftState{Node: "local", Snapshot: snap}
	left(state)
	must(t, st.ClaimState(t.Context(), state))
	must(t, st.ForgetState(t.Context(), state))
	codetest.Want(t, "a claim of one that is forgotten", st.ClaimState(t.Context(), state), sandbox.NotFound)
	left()
	must(t, st.LeaveSnapshot(t.Context(), sandbox.NewSnapshotID())) // one that is gone already
	left()
}

func moveSnapshots(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	for _, node := range []string{"local", "b"} {
		_, err := st.RenewLease(ctx, sandbox.NodeRecord{Name: node, Holder: "h", Engine: "fake"}, time.Minute)
		must(t, err)
	}
	keep := func(change func(*sandbox.Snapshot)) sandbox.Snapshot {
		s := snapshot("t", sandbox.NewSandboxID())
		s.Kept = true
		change(&s)
		return insertSnapshot(t, st, s)
	}
	snap := keep(func(s *sandbox.Snapshot) { s.CPU = "a" })
	keep(func(s *sandbox.Snapshot) { s.Layer, s.UsedAt = strings.Repeat("0", 64), s.CreatedAt })
	keep(func(s *sandbox.Snapshot) { s.State = sandbox.SnapshotSaving })
	keep(func(s *sandbox.Snapshot) { s.Kept = false })
	keep(func(s *sandbox.Snapshot) { s.Node = "b" })
	outside := keep(func(*sandbox.Snapshot) {})
	_, err := st.BeginCopy(ctx, "local", attempt(outside.ID).CopyRef)
	must(t, err)
	must(t, st.CompleteCopy(ctx, "local", attempt(outside.ID)))
	user := standing(t, st, sandbox.Paused, keep(func(*sandbox.Snapshot) {}).ID)
	alone := func(node string, want ...string) {
		t.Helper()
		all, err := st.SnapshotsAlone(ctx, node, 10)
		var got []string
		for _, s := range all {
			got = append(got, s.ID)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("alone on %s are %v, %v, want %v", node, got, err, want)
		}
	}
	left := func(want ...sandbox.LeftState) {
		t.Helper()
		if got, err := st.StatesLeft(ctx, 10); err != nil || !slices.Equal(got, want) {
			t.Errorf("left are %v, %v, want %v", got, err, want)
		}
	}
	alone("local", snap.ID)
	if use, err := st.NodeUse(ctx, "local"); err != nil || use.Snapshots != 3 || use.Uncopied != 2 {
		t.Errorf("NodeUse = %+v, %v", use, err)
	}
	there, here := sandbox.LeftState{Node: "b", Snapshot: snap.ID}, sandbox.LeftState{Node: "local", Snapshot: snap.ID}
	moved := snap
	moved.Node, moved.Bytes, moved.Build, moved.Digest, moved.CPU, moved.Name = "b", snap.Bytes+1, "other", "d2", "a b", "not written"
	codetest.Want(t, "a move that has not begun", st.MoveSnapshot(ctx, moved, "local"), sandbox.Conflict)
	left()
	must(t, st.BeginSnapshotMove(ctx, snap, "b"))
	left(there)
	codetest.Want(t, "a second begin", st.BeginSnapshotMove(ctx, snap, "b"), sandbox.Conflict)
	codetest.Want(t, "a move from elsewhere", st.MoveSnapshot(ctx, moved, "c"), sandbox.Conflict)
	left(there) // nothing of it was written
	alone("local", snap.ID)
	must(t, st.MoveSnapshot(ctx, moved, "local"))
	left(here)
	now, err := st.SnapshotByID(ctx, snap.ID)
	want := moved
	want.Name, want.Version = snap.Name, snap.Version+1
	if err != nil || !reflect.DeepEqual(now, want) {
		t.Errorf("it is %+v, %v, want %+v", now, err, want)
	}
	codetest.Want(t, "the same again", st.MoveSnapshot(ctx, moved, "local"), sandbox.Conflict)
	codetest.Want(t, "a move back before a sweep", st.BeginSnapshotMove(ctx, moved, "local"), sandbox.Conflict)
	must(t, st.ForgetState(ctx, here))
	must(t, st.BeginSnapshotMove(ctx, moved, "local"))
	must(t, st.ForgetState(ctx, here))
	codetest.Want(t, "a move that begins elsewhere", st.BeginSnapshotMove(ctx, snap, "c"), sandbox.Conflict)
	codetest.Want(t, "a move to its own node", st.BeginSnapshotMove(ctx, moved, "b"), sandbox.Conflict)
	must(t, st.BeginSnapshotMove(ctx, moved, "local"))
	must(t, st.RetireSnapshot(ctx, snap.ID, false))
	codetest.Want(t, "a begin of one that is deleted", st.BeginSnapshotMove(ctx, moved, "c"), sandbox.Conflict)
	moved.Node = "local"
	codetest.Want(t, "a move of one that is deleted", st.MoveSnapshot(ctx, moved, "b"), sandbox.Conflict)

	needed, err := st.SnapshotByID(ctx, user.Snapshot)
	must(t, err)
	must(t, st.BeginSnapshotMove(ctx, needed, "b"))
	needed.Node = "b"
	codetest.Want(t, "a move of one in which a sandbox is paused", st.MoveSnapshot(ctx, needed, "local"), sandbox.Conflict)
	end(t, st, user, epoch)
	alone("local", needed.ID)
	must(t, st.MoveSnapshot(ctx, needed, "local"))
}

// pairPacks has two processes at once: one has a copy share a pack that the other releases. It
// is used and stays, or is refused and goes.
func pairPacks(t *testing.T, both [2]sandbox.Store) {
	for i := range 10 {
		former := copied(t, both[0], i)
		drop(t, both[0], former)
		snap := begin(t, both[0])
		var used, deleted atomic.Bool
		atOnce(both, 2, func(n int, st sandbox.Store) {
			if n == 0 {
				refused, err := st.UsePacks(t.Context(), "local", sandbox.PackUse{CopyAttempt: attempt(snap), Packs: packsOf(copyPrefix, i), Shared: true})
				if err != nil {
					t.Error(err)
				}
				used.Store(len(refused) == 0)
				return
			}
			if _, err := st.DropCopy(t.Context(), attempt(former).CopyRef); err != nil {
				t.Error(err)
			}
			left, err := st.PacksLeft(t.Context(), 10)
			if err != nil {
				t.Error(err)
			}
			deleted.Store(slices.Contains(left, pack(copyPrefix, i)))
			if err := st.DropPacks(t.Context(), left); err != nil {
				t.Error(err)
			}
		})
		if used.Load() == deleted.Load() {
			t.Fatalf("it is used: %t, it is deleted: %t", used.Load(), deleted.Load())
		}
	}
}

// pairCollectors has a former leader collect beside the present one: its writes are refused,
// and it learns nothing that it could delete.
func pairCollectors(t *testing.T, both [2]sandbox.Store) {
	drop(t, both[0], copied(t, both[0], 1))
	former := lead(t, both[0], "a", time.Hour, 1)
	must(t, both[0].Resign(t.Context(), former.Role, "a"))
	present := lead(t, both[1], "b", time.Hour, 2)
	old, now := both[0].Under(former, nil), both[1].Under(present, nil)
	_, copiesErr := old.CopiesLeft(t.Context(), 10)
	_, packsErr := old.PacksLeft(t.Context(), 10)
	_, dropErr := old.DropCopy(t.Context(), sandbox.CopyRef{Snapshot: sandbox.NewSnapshotID(), Prefix: copyPrefix})
	for what, err := range map[string]error{"CopiesLeft": copiesErr, "PacksLeft": packsErr, "DropCopy": dropErr, "DropPacks": old.DropPacks(t.Context(), packsOf(copyPrefix, 1))} {
		codetest.Want(t, what+" of a former leader", err, sandbox.Unavailable)
	}
	if got := collectCopies(t, now); len(got) != 2 {
		t.Errorf("the present leader deletes %v", got)
	}
}
