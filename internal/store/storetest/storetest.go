// Package storetest is the contract of sandbox.Store as a test suite, which
// every implementation passes.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func checkWrite(t *testing.T, s sandbox.Store) {
	for range 3 {
		if err := s.CheckWrite(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if all, err := s.Nodes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = s.CheckWrite(ended) // the caller has left
	if err := s.CheckWrite(t.Context()); err != nil {
		t.Error(err)
	}
}

// A check is one case of the contract.
type check struct {
	name  string
	check func(*testing.T, sandbox.Store)
}

// Run checks the Store contract. open returns an empty Store and registers its own
// cleanup; Run calls it once per case, so that cases are independent.
func Run(t *testing.T, open func(t *testing.T) sandbox.Store) {
	for _, c := range slices.Concat(sandboxCases, snapshotCases, copyCases, keyCases, requestCases, tenantCases, logCases) {
		t.Run(c.name, func(t *testing.T) { c.check(t, open(t)) })
	}
}

var (
	// sandboxCases cover Sandboxes and Nodes.
	sandboxCases = []check{
		{"a record comes back as it was written", roundTrip},
		{"a check that it can be written changes nothing", checkWrite},
		{"an absent record is NotFound", absent},
		{"records are read by their IDs", byIDs},
		{"a known ID is a Conflict", knownID},
		{"a name belongs to one until it ends", names},
		{"a write of an old version is a Conflict", versions},
		{"of concurrent writes one wins", race},
		{"an update cannot change the owner", owner},
		{"tenants are invisible to each other", tenants},
		{"lists are newest first and page through equal times", paging},
		{"lists filter by state and metadata", filters},
		{"a bad page is Invalid", badPages},
		{"counts leave out the ended", counts},
		{"deadlines come earliest first", deadlines},
		{"not ended means not ended", notEnded},
		{"old termination records are deleted", deleteEnded},
		{"leases are renewed", leases},
		{"nodes that nothing is on are retired", retiring},
		{"what is on a node", nodeUse},
		{"a role has one leader", leading},
		{"a former leader writes nothing", formerLeader},
	}
	// snapshotCases cover Snapshots.
	snapshotCases = []check{
		{"a snapshot comes back as it was written", snapshotRoundTrip},
		{"a snapshot's name belongs to one of its sandbox", snapshotNames},
		{"what is deleted leaves its place in the tree to its parent", snapshotTree},
		{"lists of snapshots are newest first and leave out what is not ready", snapshotLists},
		{"layers are listed by themselves and count for no quota", snapshotLayers},
		{"a snapshot in use stays", snapshotUses},
		{"a sandbox is paused only in what is ready", snapshotsNeeded},
		{"what nobody refers to is left", snapshotsLeft},
		{"a snapshot stands on its image", snapshotOfImage},
		{"a snapshot needs its build", snapshotOfBuild},
	}
	// keyCases cover keys, Secrets and Volumes.
	keyCases = []check{
		{"a tenant has one signing key", signingKeys},
		{"a key is found by its hash alone", keyRoundTrip},
		{"keys belong to one tenant", keyTenants},
		{"a tenant has so many keys and no more", keyLimit},
		{"the last use of a key never moves back", keyUses},
		{"a rotated key is found by both its secrets", keyRotates},
		{"a renamed key is the same key", keyIsRenamed},
		{"a secret comes back as it was written", secretRoundTrip},
		{"secrets belong to one tenant", secretTenants},
		{"a tenant has so many secrets and no more", secretLimit},
		{"secrets are found by what they are not sealed with", secretKeys},
		{"a volume comes back as it was written", volumeRoundTrip},
		{"volumes belong to one tenant", volumeTenants},
		{"volumes move to other nodes", volumeHomes},
		{"a volume in use stays", volumeUses},
		{"a volume is deleted or used", volumeRace},
		{"a tenant has so many volumes and no more", volumeLimit},
		{"of volumes at once a quota admits so many", quotaVolumes},
	}
	// requestCases cover idempotent requests and quotas.
	requestCases = []check{
		{"a request takes effect once", onceBegins},
		{"a request whose process died is taken over", onceTakeover},
		{"a request that nobody knows the end of is taken over", onceLetGo},
		{"a request is forgotten in time", onceExpires},
		{"of equal requests at once one begins", onceRace},
		{"a quota is the tenant's own, or of all", quotaRoundTrip},
		{"a quota admits snapshots while there is room", quotaSnapshots},
		{"a quota admits what it has room for", quotaAdmits},
		{"of inserts at once a quota admits so many", quotaRace},
		{"of snapshots at once a quota admits so many", quotaSnapshotRace},
	}
	// tenantCases cover Tenants and their Users.
	tenantCases = []check{
		{"a tenant comes back as it was written", tenantRoundTrip},
		{"a tenant is suspended and goes on", tenantChanges},
		{"lists of tenants are by ID and filter by state", tenantLists},
		{"who is suspended holds those below", tenantSuspensions},
		{"a tenant that has something stays", tenantDeletes},
		{"a user comes back as it was written", userRoundTrip},
		{"users belong to one tenant", userTenants},
		{"who is seen is noted, and nothing else changes", userNotes},
		{"what was decided from below lapses", userOutranks},
		{"a user is changed as read, or not", userChanges},
		{"a removed user leaves no keys and is not noted again", userRemoved},
		{"a tenant keeps its last owner", userOwners},
		{"of owners who demote each other at once one stays", userOwnersRace},
		{"a tenant has so many users, and forgets who was given nothing", userLimit},
		{"lists of users are by ID and filter by state", userLists},
		{"each change of a user shows", userChangesShow},
	}
	// logCases cover the audit log, usage, events, and properties of every call.
	logCases = []check{
		{"the audit log comes back as it was written", auditRoundTrip},
		{"an entry about started sandboxes needs their records", auditOfStarted},
		{"of audit entries at once each has its place in the chain", auditAtOnce},
		{"lists of audit entries are one tenant's, newest first", auditLists},
		{"the audit log loses its beginning and holds", auditTrims},
		{"usage is counted with the record", usageCounts},
		{"each byte of a boot is counted once", trafficCounts},
		{"usage is told by day, tenant and sandbox", usageGroups},
		{"the life of a sandbox is told with its record", lifeIsTold},
		{"the life of a kept snapshot is told, and forks", snapshotsAreTold},
		{"equal events are one, and nothing is told twice", eventsGather},
		{"what waits for a webhook is bounded", eventsAreBounded},
		{"of events at once none is lost", eventsAtOnce},
		{"many callers at once", concurrency},
		{"a call honours its context", canceled},
	}
)

var epoch = time.Date(2030, 1, 2, 3, 4, 5, 678901000, time.UTC)

// sample is a record with every field set.
func sample(tenant sandbox.TenantID) sandbox.Sandbox {
	return sandbox.Sandbox{
		ID:        sandbox.NewSandboxID(),
		Tenant:    tenant,
		State:     sandbox.Starting,
		Template:  "base",
		Image:     "sha256:1234",
		Engine:    "fake",
		Shape:     sandbox.Shape{CPUs: 1.5, MemoryBytes: 512 << 20, DiskBytes: 4 << 30, Pids: 512},
		Network:   sandbox.NetworkPublic,
		Ingress:   `{"private":true}`,
		Secrets:   `[{"name":"A","host":"a.example","header":"X-A"}]`,
		Metadata:  map[string]string{"a": "1", `ke"y \ é`: "v'al\nue"},
		Env:       map[string]string{"PATH": "/bin"},
		Boot:      sandbox.Boot{ID: sandbox.NewBootID(), Number: 1, Node: "local"},
		CreatedAt: epoch,
		Timeout:   90 * time.Second,
		Deadline:  epoch.Add(90 * time.Second),
		OnTimeout: sandbox.OnTimeoutEnd,
		Timeline:  1,

		Limits:      sandbox.Limits{CPUs: 0.5, MemoryBytes: 300 << 20, Pids: 100, Bandwidth: 125_000},
		User:        "root",
		Cwd:         "/srv",
		Revision:    1,
		IdleTimeout: 45 * time.Second,
		StayPaused:  true,
		MayRun:      true,
		Back:        sandbox.Back{Snapshot: "before", Timeline: 2, Boot: 3},

		CheckpointEvery: 30 * time.Second,
	}
}

func insert(t *testing.T, st sandbox.Store, sb sandbox.Sandbox) sandbox.Sandbox {
	t.Helper()
	got, err := st.InsertSandbox(t.Context(), sb)
	if err != nil {
		t.Fatalf("InsertSandbox: %v", err)
	}
	return got
}

func update(t *testing.T, st sandbox.Store, sb sandbox.Sandbox) sandbox.Sandbox {
	t.Helper()
	got, err := st.UpdateSandbox(t.Context(), sb)
	if err != nil {
		t.Fatalf("UpdateSandbox: %v", err)
	}
	return got
}

// end writes sb as ended at the given time.
func end(t *testing.T, st sandbox.Store, sb sandbox.Sandbox, at time.Time) sandbox.Sandbox {
	t.Helper()
	sb.State = sandbox.Ended
	sb.Ended = &sandbox.TerminationRecord{Cause: sandbox.CauseReleased, At: at}
	return update(t, st, sb)
}

func roundTrip(t *testing.T, st sandbox.Store) {
	sb := sample("t")
	sb.Name = "web"
	got := insert(t, st, sb)
	if got.Version != 1 {
		t.Errorf("first version = %d, want 1", got.Version)
	}
	read := func() sandbox.Sandbox {
		t.Helper()
		r, err := st.SandboxByID(t.Context(), sb.ID)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	sb.Version = 1
	if r := read(); !reflect.DeepEqual(r, sb) || !reflect.DeepEqual(got, sb) {
		t.Errorf("read %+v\nwrote %+v\nreturned %+v", r, sb, got)
	}
	sb.State, sb.StartedAt, sb.Timeline = sandbox.Ended, epoch.Add(time.Second), 2
	sb.Boot = sandbox.Boot{ID: sandbox.NewBootID(), Number: 2, Node: "other"}
	sb.Network, sb.Ingress, sb.Metadata = sandbox.NetworkNone, "", map[string]string{"b": "2"}
	sb.Limits, sb.Revision = sandbox.Limits{CPUs: 2, MemoryBytes: 512 << 20, Pids: 64}, 2
	sb.User, sb.Cwd, sb.IdleTimeout = "", "", 0
	sb.OnTimeout, sb.StayPaused, sb.Snapshot = sandbox.OnTimeoutPause, false, sandbox.NewSnapshotID()
	sb.CheckpointEvery, sb.SnapshotAt, sb.RunsUntil = 0, epoch.Add(time.Minute), epoch.Add(time.Hour)
	sb.Origin = sandbox.NewSnapshotID()
	sb.Restored = sandbox.Restored{From: sandbox.NewSnapshotID(), Lost: 1500 * time.Millisecond, Times: 2}
	sb.Ended = &sandbox.TerminationRecord{Cause: sandbox.CauseOOM, At: epoch.Add(2 * time.Second), OutputTail: "the last\nwords \u00e9"}
	got = update(t, st, sb)
	sb.Version = 2
	if r := read(); !reflect.DeepEqual(r, sb) || !reflect.DeepEqual(got, sb) {
		t.Errorf("read %+v\nwrote %+v\nreturned %+v", r, sb, got)
	}
}

// byIDs reads several records at once.
func byIDs(t *testing.T, st sandbox.Store) {
	var ids []string
	for i := range 3 {
		ids = append(ids, insert(t, st, sample(sandbox.TenantID(fmt.Sprint("t", i)))).ID)
	}
	for _, asked := range [][]string{nil, {ids[1]}, {ids[2], sandbox.NewSandboxID(), ids[0], ids[0], "'", ""}} {
		records, err := st.SandboxesByID(t.Context(), asked)
		codetest.OK(t, "SandboxesByID", err)
		var got []string
		for _, sb := range records {
			one, err := st.SandboxByID(t.Context(), sb.ID)
			if err != nil || !reflect.DeepEqual(one, sb) {
				t.Errorf("read %+v, and alone %+v, %v", sb, one, err)
			}
			got = append(got, sb.ID)
		}
		var want []string
		for _, id := range ids {
			if slices.Contains(asked, id) {
				want = append(want, id)
			}
		}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("asked for %q, got %q", asked, got)
		}
	}
}

func absent(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	_, err := st.SandboxByID(ctx, sandbox.NewSandboxID())
	codetest.Want(t, "SandboxByID", err, sandbox.NotFound)
	_, err = st.SandboxByName(ctx, "t", "web")
	codetest.Want(t, "SandboxByName", err, sandbox.NotFound)
	_, err = st.SandboxByName(ctx, "t", "")
	codetest.Want(t, "SandboxByName of nothing", err, sandbox.NotFound)
	_, err = st.UpdateSandbox(ctx, sample("t"))
	codetest.Want(t, "UpdateSandbox", err, sandbox.NotFound)
	if _, ok, err := st.NextDeadline(ctx); ok || err != nil {
		t.Errorf("NextDeadline = %v, %v, want none", ok, err)
	}
	if page, err := st.ListSandboxes(ctx, "t", sandbox.ListQuery{}); err != nil || len(page.Sandboxes) != 0 || page.Next != "" {
		t.Errorf("ListSandboxes = %+v, %v", page, err)
	}
}

func knownID(t *testing.T, st sandbox.Store) {
	sb := insert(t, st, sample("t"))
	_, err := st.InsertSandbox(t.Context(), sb)
	codetest.Want(t, "InsertSandbox again", err, sandbox.Conflict)
	other := sample("other")
	other.ID = sb.ID
	_, err = st.InsertSandbox(t.Context(), other)
	codetest.Want(t, "InsertSandbox for another tenant", err, sandbox.Conflict)
}

func names(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	named := func(tenant sandbox.TenantID) sandbox.Sandbox {
		sb := sample(tenant)
		sb.Name = "web"
		return sb
	}
	first := insert(t, st, named("t"))
	_, err := st.InsertSandbox(ctx, named("t"))
	codetest.Want(t, "a second of the name", err, sandbox.Conflict)
	insert(t, st, named("other"))
	insert(t, st, sample("t"))
	insert(t, st, sample("t")) // several records may have no name

	renamed := insert(t, st, sample("t"))
	renamed.Name = "web"
	_, err = st.UpdateSandbox(ctx, renamed)
	codetest.Want(t, "a rename to a name in use", err, sandbox.Conflict)

	first.State = sandbox.Stopping
	first = update(t, st, first)
	_, err = st.InsertSandbox(ctx, named("t"))
	codetest.Want(t, "the name of a stopping one", err, sandbox.Conflict)
	first = end(t, st, first, epoch)
	_, err = st.SandboxByName(ctx, "t", "web")
	codetest.Want(t, "the name of an ended one", err, sandbox.NotFound)
	second := insert(t, st, named("t"))
	if got, err := st.SandboxByName(ctx, "t", "web"); err != nil || got.ID != second.ID {
		t.Errorf("SandboxByName = %s, %v, want %s", got.ID, err, second.ID)
	}
	end(t, st, second, epoch)
	if got, err := st.SandboxByID(ctx, first.ID); err != nil || got.Name != "web" {
		t.Errorf("an ended one lost its name: %q, %v", got.Name, err)
	}
}

func versions(t *testing.T, st sandbox.Store) {
	old := insert(t, st, sample("t"))
	fresh := old
	fresh.State = sandbox.Running
	fresh = update(t, st, fresh)
	if fresh.Version != 2 {
		t.Errorf("version after an update = %d, want 2", fresh.Version)
	}
	old.State = sandbox.Ended
	_, err := st.UpdateSandbox(t.Context(), old)
	codetest.Want(t, "UpdateSandbox of an old version", err, sandbox.Conflict)
	if got, err := st.SandboxByID(t.Context(), old.ID); err != nil || !reflect.DeepEqual(got, fresh) {
		t.Errorf("a lost write left %+v, %v", got, err)
	}
}

func race(t *testing.T, st sandbox.Store) {
	sb := insert(t, st, sample("t"))
	var wins, conflicts atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			mine := sb
			mine.Timeline = int64(i)
			switch _, err := st.UpdateSandbox(context.Background(), mine); {
			case err == nil:
				wins.Add(1)
			case errors.Is(err, sandbox.Conflict):
				conflicts.Add(1)
			default:
				t.Errorf("UpdateSandbox: %v", err)
			}
		})
	}
	wg.Wait()
	if wins.Load() != 1 || conflicts.Load() != 15 {
		t.Errorf("%d won and %d lost, want 1 and 15", wins.Load(), conflicts.Load())
	}
}

func owner(t *testing.T, st sandbox.Store) {
	sb := insert(t, st, sample("t"))
	stolen := sb
	stolen.Tenant = "thief"
	_, err := st.UpdateSandbox(t.Context(), stolen)
	codetest.Want(t, "UpdateSandbox with another tenant", err, sandbox.NotFound)
	if got, err := st.SandboxByID(t.Context(), sb.ID); err != nil || got.Tenant != "t" || got.Version != 1 {
		t.Errorf("after a stolen update: %+v, %v", got, err)
	}
}

func tenants(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	mine := sample("mine")
	mine.Name = "web"
	insert(t, st, mine)
	if _, err := st.SandboxByName(ctx, "other", "web"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("another tenant's name = %v", err)
	}
	if page, err := st.ListSandboxes(ctx, "other", sandbox.ListQuery{}); err != nil || len(page.Sandboxes) != 0 {
		t.Errorf("another tenant lists %d, %v", len(page.Sandboxes), err)
	}
	if n, err := st.CountSandboxes(ctx, "other"); err != nil || len(n) != 0 {
		t.Errorf("another tenant counts %v, %v", n, err)
	}
}

// list reads every page and returns the IDs.
func list(t *testing.T, st sandbox.Store, query sandbox.ListQuery) []string {
	t.Helper()
	var ids []string
	for range 100 {
		page, err := st.ListSandboxes(t.Context(), "t", query)
		if err != nil {
			t.Fatalf("ListSandboxes: %v", err)
		}
		if n := len(page.Sandboxes); query.Limit > 0 && n > query.Limit {
			t.Fatalf("a page of %d, want at most %d", n, query.Limit)
		}
		for _, sb := range page.Sandboxes {
			ids = append(ids, sb.ID)
		}
		if page.Next == "" {
			return ids
		}
		query.Cursor = page.Next
	}
	t.Fatal("the list does not end")
	return nil
}

func paging(t *testing.T, st sandbox.Store) {
	var all []sandbox.Sandbox
	for i := range 13 {
		sb := sample("t")
		sb.CreatedAt = epoch.Add(time.Duration(i/5) * time.Microsecond) // five at one time
		all = append(all, insert(t, st, sb))
		insert(t, st, sample("other"))
	}
	slices.SortFunc(all, func(a, b sandbox.Sandbox) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		if a.ID > b.ID {
			return -1
		}
		return 1
	})
	var ids []string
	for _, sb := range all {
		ids = append(ids, sb.ID)
	}
	for _, limit := range []int{0, 1, 2, 5, 12, 13, 14, 100} {
		if got := list(t, st, sandbox.ListQuery{Limit: limit}); !slices.Equal(got, ids) {
			t.Errorf("pages of %d: %v, want %v", limit, got, ids)
		}
	}
	slices.Reverse(ids)
	for _, limit := range []int{0, 1, 5, 13} {
		if got := list(t, st, sandbox.ListQuery{Limit: limit, OldestFirst: true}); !slices.Equal(got, ids) {
			t.Errorf("pages of %d, oldest first: %v, want %v", limit, got, ids)
		}
	}
	slices.Reverse(ids)
	// Records added while a client pages are newer, and so not on later pages.
	page, err := st.ListSandboxes(t.Context(), "t", sandbox.ListQuery{Limit: 6})
	if err != nil {
		t.Fatal(err)
	}
	late := sample("t")
	late.CreatedAt = epoch.Add(time.Hour)
	insert(t, st, late)
	if got := list(t, st, sandbox.ListQuery{Limit: 6, Cursor: page.Next}); !slices.Equal(got, ids[6:]) {
		t.Errorf("the rest after an insert: %v, want %v", got, ids[6:])
	}
	_, err = st.ListSandboxes(t.Context(), "t", sandbox.ListQuery{Limit: 6, Cursor: page.Next, OldestFirst: true})
	codetest.Want(t, "a cursor of the other order", err, sandbox.Invalid)
}

func filters(t *testing.T, st sandbox.Store) {
	add := func(state sandbox.State, metadata map[string]string) string {
		sb := sample("t")
		sb.State, sb.Metadata = state, metadata
		return insert(t, st, sb).ID
	}
	starting := add(sandbox.Starting, map[string]string{"app": "x", "n": "1"})
	running := add(sandbox.Running, map[string]string{"app": "x", "n": "2", `q"uote\`: `'"`})
	stopping := add(sandbox.Stopping, nil)
	ended := add(sandbox.Ended, map[string]string{"app": "x"})
	later := sample("t")
	later.State, later.Template, later.CreatedAt = sandbox.Paused, "python_3:1.0", epoch.Add(time.Hour)
	late := insert(t, st, later).ID

	for _, tt := range []struct {
		name  string
		query sandbox.ListQuery
		want  []string
	}{
		{"all that have not ended", sandbox.ListQuery{}, []string{starting, running, stopping, late}},
		{"a template", sandbox.ListQuery{Template: "python_3"}, []string{late}},
		{"no part of a template", sandbox.ListQuery{Template: "python"}, nil},
		{"no pattern of a template", sandbox.ListQuery{Template: "python%"}, nil},
		{"from a time", sandbox.ListQuery{From: later.CreatedAt}, []string{late}},
		{"from a later time", sandbox.ListQuery{From: later.CreatedAt.Add(time.Microsecond)}, nil},
		{"one state", sandbox.ListQuery{States: []sandbox.State{sandbox.Running}}, []string{running}},
		{"two states", sandbox.ListQuery{States: []sandbox.State{sandbox.Ended, sandbox.Running}}, []string{running, ended}},
		{"an unknown state", sandbox.ListQuery{States: []sandbox.State{"x"}}, nil},
		{"a pair", sandbox.ListQuery{Metadata: map[string]string{"app": "x"}}, []string{starting, running}},
		{"two pairs", sandbox.ListQuery{Metadata: map[string]string{"app": "x", "n": "2"}}, []string{running}},
		{"a pair half matched", sandbox.ListQuery{Metadata: map[string]string{"app": "x", "n": "3"}}, nil},
		{"a key of odd characters", sandbox.ListQuery{Metadata: map[string]string{`q"uote\`: `'"`}}, []string{running}},
		{"a pair and a state", sandbox.ListQuery{States: []sandbox.State{sandbox.Ended}, Metadata: map[string]string{"app": "x"}}, []string{ended}},
	} {
		for _, limit := range []int{1, 0} {
			tt.query.Limit = limit
			got := list(t, st, tt.query)
			slices.Sort(got)
			slices.Sort(tt.want)
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s, pages of %d: %v, want %v", tt.name, limit, got, tt.want)
			}
		}
	}
}

func badPages(t *testing.T, st sandbox.Store) {
	for _, query := range []sandbox.ListQuery{
		{Limit: -1}, {Limit: 101}, {Cursor: "x"}, {Cursor: "!!"}, {Cursor: "MTIz"}, {Cursor: "eCB5"},
	} {
		_, err := st.ListSandboxes(t.Context(), "t", query)
		codetest.Want(t, fmt.Sprintf("ListSandboxes(%+v)", query), err, sandbox.Invalid)
	}
}

func counts(t *testing.T, st sandbox.Store) {
	for _, state := range []sandbox.State{sandbox.Running, sandbox.Running, sandbox.Starting, sandbox.Stopping, sandbox.Ended} {
		sb := sample("t")
		sb.State = state
		insert(t, st, sb)
	}
	got, err := st.CountSandboxes(t.Context(), "t")
	want := map[sandbox.State]int{sandbox.Running: 2, sandbox.Starting: 1, sandbox.Stopping: 1}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("CountSandboxes = %v, %v, want %v", got, err, want)
	}
}

func deadlines(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	add := func(state sandbox.State, after time.Duration, tenant sandbox.TenantID) string {
		sb := sample(tenant)
		sb.State, sb.Deadline = state, epoch.Add(after)
		return insert(t, st, sb).ID
	}
	add(sandbox.Ended, time.Second, "t")
	add(sandbox.Stopping, 2*time.Second, "t")
	third := add(sandbox.Running, 5*time.Second, "t")
	first := add(sandbox.Starting, 3*time.Second, "t")
	second := add(sandbox.Running, 4*time.Second, "u")

	if next, ok, err := st.NextDeadline(ctx); err != nil || !ok || !next.Equal(epoch.Add(3*time.Second)) {
		t.Errorf("NextDeadline = %v, %v, %v", next, ok, err)
	}
	for _, tt := range []struct {
		now    time.Duration
		limit  int
		except []sandbox.TenantID
		want   []string
	}{
		{3*time.Second - time.Microsecond, 10, nil, nil},
		{3 * time.Second, 10, nil, []string{first}},
		{time.Minute, 10, nil, []string{first, second, third}},
		{time.Minute, 2, nil, []string{first, second}},
		{time.Minute, 1, []sandbox.TenantID{"t"}, []string{second}},
		{time.Minute, 10, []sandbox.TenantID{"u", "v"}, []string{first, third}},
		{time.Minute, 10, []sandbox.TenantID{"t", "u"}, nil},
	} {
		due, err := st.SandboxesDue(ctx, epoch.Add(tt.now), tt.limit, tt.except)
		var got []string
		for _, sb := range due {
			got = append(got, sb.ID)
		}
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("SandboxesDue(%v, %d, %v) = %v, %v, want %v", tt.now, tt.limit, tt.except, got, err, tt.want)
		}
	}
}

func notEnded(t *testing.T, st sandbox.Store) {
	var ids []string
	for _, state := range []sandbox.State{sandbox.Starting, sandbox.Running, sandbox.Paused, sandbox.Stopping, sandbox.Ended} {
		for _, tenant := range []sandbox.TenantID{"t", "other"} {
			sb := sample(tenant)
			sb.State = state
			insert(t, st, sb)
			if state != sandbox.Ended {
				ids = append(ids, sb.ID)
			}
		}
	}
	all, err := st.SandboxesNotEnded(t.Context())
	var got []string
	for _, sb := range all {
		got = append(got, sb.ID)
	}
	slices.Sort(got)
	slices.Sort(ids)
	if err != nil || !slices.Equal(got, ids) {
		t.Errorf("SandboxesNotEnded = %v, %v, want %v", got, err, ids)
	}
}

func deleteEnded(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	old := end(t, st, insert(t, st, sample("t")), epoch)
	fresh := end(t, st, insert(t, st, sample("t")), epoch.Add(time.Hour))
	running := insert(t, st, sample("t"))
	refused := func(at time.Time) sandbox.Sandbox {
		sb := insert(t, st, sample("t"))
		sb.State, sb.Ended = sandbox.Ended, &sandbox.TerminationRecord{Cause: sandbox.CauseRefused, At: at}
		return update(t, st, sb)
	}
	const many = 600 // more than are deleted at a time
	for range many {
		refused(epoch.Add(time.Hour))
	}
	freshRefused := refused(epoch.Add(2 * time.Hour))
	if n, err := st.DeleteEnded(ctx, epoch.Add(time.Hour), epoch.Add(2*time.Hour)); err != nil || n != 1+many {
		t.Errorf("DeleteEnded = %d, %v, want %d", n, err, 1+many)
	}
	_, err := st.SandboxByID(ctx, old.ID)
	codetest.Want(t, "a deleted one", err, sandbox.NotFound)
	for _, id := range []string{fresh.ID, freshRefused.ID, running.ID} {
		if _, err := st.SandboxByID(ctx, id); err != nil {
			t.Errorf("%s is gone: %v", id, err)
		}
	}
	for range many {
		old := insert(t, st, sample("t"))
		end(t, st, old, epoch)
	}
	if n, err := st.DeleteEnded(ctx, epoch.Add(time.Hour), epoch); err != nil || n != many {
		t.Errorf("DeleteEnded of many = %d, %v, want %d", n, err, many)
	}
}

func leases(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	lostEpoch := int64(0)
	renew := func(n sandbox.NodeRecord, life time.Duration, wantEpoch int64) sandbox.NodeRecord {
		t.Helper()
		got, err := st.RenewLease(ctx, n, life)
		if err != nil {
			t.Fatal(err)
		}
		n.Epoch, n.LeaseLeft, n.LeaseAge, n.LostEpoch = wantEpoch, life, 0, lostEpoch
		if got != n {
			t.Errorf("RenewLease = %+v, want %+v", got, n)
		}
		return got
	}
	renew(sandbox.NodeRecord{Name: "b", Holder: "1", Engine: "fake", Version: "v1"}, time.Hour, 1)
	a := renew(sandbox.NodeRecord{Name: "a", Holder: "2", Engine: "fake"}, -time.Second, 1)
	b := renew(sandbox.NodeRecord{Name: "b", Holder: "1", Engine: "gvisor", Address: "unix:/b", Version: "v2", FenceAfter: 75 * time.Second}, 2*time.Hour, 1)
	_, err := st.RenewLease(ctx, sandbox.NodeRecord{Name: "b", Holder: "2"}, time.Hour)
	codetest.Want(t, "the lease that another has", err, sandbox.Conflict)
	got, err := st.Nodes(ctx)
	for i, want := range []sandbox.NodeRecord{a, b} {
		if err != nil || len(got) != 2 || got[i].LeaseLeft > want.LeaseLeft || got[i].LeaseLeft < want.LeaseLeft-time.Minute {
			t.Fatalf("Nodes = %+v, %v, want %+v", got, err, []sandbox.NodeRecord{a, b})
		}
		if age := got[i].LeaseAge; age < 0 || age > time.Minute {
			t.Errorf("a lease that was just renewed is %v old", age)
		}
		got[i].LeaseLeft, got[i].LeaseAge = want.LeaseLeft, want.LeaseAge
		if got[i] != want {
			t.Errorf("Nodes has %+v, want %+v", got[i], want)
		}
	}
	lostEpoch = 1
	renew(sandbox.NodeRecord{Name: "a", Holder: "3"}, -time.Second, 2)                          // another holder's lease, which expired
	renew(sandbox.NodeRecord{Name: "a", Holder: "3", FenceAfter: time.Minute}, -time.Second, 3) // its own lease, which expired
	_, err = st.RenewLease(ctx, sandbox.NodeRecord{Name: "a", Holder: "4"}, time.Hour)
	codetest.Want(t, "the lease of one that has not fenced itself yet", err, sandbox.Conflict)
	lostEpoch = 0

	codetest.Want(t, "draining an unknown node", st.SetDraining(ctx, "none", true, false), sandbox.NotFound)
	for _, draining := range []bool{true, true, false, true} {
		if err := st.SetDraining(ctx, "b", draining, draining); err != nil {
			t.Fatal(err)
		}
		renew(sandbox.NodeRecord{Name: "b", Holder: "1", Draining: draining, MoveVolumes: draining}, time.Hour, 1)
		got, err = st.Nodes(ctx)
		if err != nil || len(got) != 2 || got[0].Draining || got[1].Draining != draining {
			t.Errorf("Nodes = %+v, %v, want draining %v", got, err, draining)
		}
	}
	codetest.Want(t, "losing an unknown node", st.SetLost(ctx, "none", 0, true), sandbox.NotFound)
	codetest.Want(t, "losing a node that has its lease", st.SetLost(ctx, "b", 0, true), sandbox.Conflict)
	lost := func(want bool) {
		t.Helper()
		if got, err := st.Nodes(ctx); err != nil || got[0].Lost != want || got[1].Lost {
			t.Errorf("Nodes = %+v, %v, want lost %v", got, err, want)
		}
	}
	codetest.Want(t, "losing a node of another epoch", st.SetLost(ctx, "a", 2, true), sandbox.Conflict)
	if err := st.SetLost(ctx, "a", 3, true); err != nil {
		t.Error(err)
	}
	for _, is := range []bool{true, true, false, true, false} {
		if err := st.SetLost(ctx, "a", 0, is); err != nil {
			t.Fatal(err)
		}
		lost(is)
	}
	lostEpoch = 3 // the Node learns of it, although it was taken back
	renew(sandbox.NodeRecord{Name: "a", Holder: "3"}, time.Hour, 4)
	lost(false)
	renew(sandbox.NodeRecord{Name: "a", Holder: "3"}, -time.Second, 4) // it expires in that term
	lost(false)
	lostEpoch = 0
	renew(sandbox.NodeRecord{Name: "b", Holder: "1", Draining: true, MoveVolumes: true}, time.Hour, 1) // a program that reports no version
	got, err = st.Nodes(ctx)
	if err != nil || len(got) != 2 || got[1].Version != "" {
		t.Errorf("Nodes = %+v, %v, want no version", got, err)
	}
}

// nodeUse counts the records that name a node.
func nodeUse(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	on := func(tenant sandbox.TenantID, node string) sandbox.Sandbox {
		sb := sample(tenant)
		sb.Boot.Node = node
		return insert(t, st, sb)
	}
	saved := func(of sandbox.Sandbox, node string, change func(*sandbox.Snapshot)) sandbox.Snapshot {
		snap := snapshot(of.Tenant, of.ID)
		snap.Node, snap.State, snap.Kept = node, sandbox.SnapshotReady, false
		change(&snap)
		made, err := st.InsertSnapshot(ctx, snap)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	on("t", "a")
	on("u", "a")
	end(t, st, on("t", "a"), epoch)
	paused := on("t", "b")
	paused.State, paused.Boot.ID, paused.Snapshot = sandbox.Paused, "", saved(paused, "a", func(*sandbox.Snapshot) {}).ID
	if _, err := st.UpdateSandbox(ctx, paused); err != nil {
		t.Fatal(err)
	}
	resuming := on("t", "c")
	resuming.State, resuming.Snapshot = sandbox.Resuming, saved(resuming, "c", func(*sandbox.Snapshot) {}).ID
	resuming.Back.Snapshot = saved(resuming, "d", func(*sandbox.Snapshot) {}).ID
	if _, err := st.UpdateSandbox(ctx, resuming); err != nil {
		t.Fatal(err)
	}
	saved(paused, "a", func(s *sandbox.Snapshot) { s.Kept = true })
	saved(paused, "a", func(s *sandbox.Snapshot) { s.Kept, s.State = true, sandbox.SnapshotSaving })
	saved(paused, "b", func(s *sandbox.Snapshot) { s.Kept = true })
	for i, state := range []sandbox.VolumeState{sandbox.VolumeReady, sandbox.VolumeCreating} {
		v := sandbox.Volume{ID: sandbox.NewVolumeID(), Tenant: "t", Name: fmt.Sprint("v", i), State: state, Node: "a", MaxBytes: 1, CreatedAt: epoch}
		if _, err := st.InsertVolume(ctx, v); err != nil {
			t.Fatal(err)
		}
	}
	for node, want := range map[string]sandbox.NodeUse{
		"a": {Running: 2, Paused: 1, Snapshots: 1, Uncopied: 1, Volumes: 1}, "b": {Snapshots: 1, Uncopied: 1}, "c": {Running: 1}, "d": {Paused: 1}, "none": {},
	} {
		if got, err := st.NodeUse(ctx, node); err != nil || got != want {
			t.Errorf("NodeUse of %s = %+v, %v, want %+v", node, got, err, want)
		}
	}
}

// retiring deletes nodes without records.
func retiring(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	for _, name := range []string{"runs", "saved", "kept", "idle", "over", "ended", "drains"} {
		life := -time.Second
		if name == "idle" {
			life = time.Hour
		}
		if _, err := st.RenewLease(ctx, sandbox.NodeRecord{Name: name}, life); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.SetDraining(ctx, "drains", true, false); err != nil { // an operator may repair it for days
		t.Fatal(err)
	}
	on := func(name string) sandbox.Sandbox {
		sb := sample("t")
		sb.Boot.Node = name
		return insert(t, st, sb)
	}
	on("runs")
	end(t, st, on("ended"), epoch)
	snap := snapshot("t", on("gone").ID)
	snap.Node = "saved"
	if _, err := st.InsertSnapshot(ctx, snap); err != nil {
		t.Fatal(err)
	}
	if _, err := st.InsertVolume(ctx, sandbox.Volume{ID: sandbox.NewVolumeID(), Tenant: "t", Name: "v", State: sandbox.VolumeCreating, Node: "kept", MaxBytes: 1, CreatedAt: epoch}); err != nil {
		t.Fatal(err)
	}
	if names, err := st.RetireNodes(ctx, time.Hour); err != nil || len(names) > 0 {
		t.Errorf("of leases that expired just now %v, %v", names, err)
	}
	names, err := st.RetireNodes(ctx, 0)
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{"ended", "over"}) {
		t.Errorf("retired are %v, %v", names, err)
	}
	left, err := st.Nodes(ctx)
	if err != nil || len(left) != 5 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func concurrency(t *testing.T, st sandbox.Store) {
	const callers, each = 16, 12
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				sb := sample("t")
				sb.Name = fmt.Sprintf("n%d-%d", c/2, i) // two callers want each name
				sb, err := st.InsertSandbox(context.Background(), sb)
				if errors.Is(err, sandbox.Conflict) {
					continue
				}
				if err != nil {
					t.Errorf("InsertSandbox: %v", err)
					return
				}
				sb.State = sandbox.Running
				if _, err := st.UpdateSandbox(context.Background(), sb); err != nil {
					t.Errorf("UpdateSandbox: %v", err)
				}
				if got, err := st.SandboxByName(context.Background(), "t", sb.Name); err != nil || got.State != sandbox.Running {
					t.Errorf("a write is not seen by the next read: %s, %v", got.State, err)
				}
			}
		})
	}
	wg.Wait()
	n, err := st.CountSandboxes(t.Context(), "t")
	if want := map[sandbox.State]int{sandbox.Running: callers / 2 * each}; err != nil || !reflect.DeepEqual(n, want) {
		t.Errorf("after all writes %v, %v, want %v", n, err, want)
	}
}

func canceled(t *testing.T, st sandbox.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sb := sample("t")
	if _, err := st.InsertSandbox(ctx, sb); !errors.Is(err, context.Canceled) {
		t.Errorf("InsertSandbox = %v, want context.Canceled", err)
	}
	_, err := st.SandboxByID(t.Context(), sb.ID)
	codetest.Want(t, "what a cancelled insert left", err, sandbox.NotFound)
	if _, err := st.SandboxByID(ctx, sb.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("SandboxByID = %v, want context.Canceled", err)
	}
}
