package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// hooked makes Webhooks for all events, with these IDs.
func hooked(t *testing.T, st sandbox.Store, ids ...string) {
	t.Helper()
	var all []sandbox.Webhook
	for _, id := range ids {
		all = append(all, sandbox.Webhook{ID: id, Kinds: sandbox.EventKinds()})
	}
	must(t, st.SetWebhooks(t.Context(), all, epoch.Add(-24*time.Hour*365*20)))
}

// later is a time when all queued Deliveries are due.
func later() time.Time { return time.Now().Add(time.Hour) }

// waits are the queued Deliveries of a Webhook.
func waits(t *testing.T, st sandbox.Store, id string) []sandbox.Delivery {
	t.Helper()
	all, err := st.DueDeliveries(t.Context(), id, later(), 2*sandbox.MaxWaiting)
	must(t, err)
	seen := map[string]bool{}
	for _, d := range all {
		if d.Event.ID == "" || seen[d.Event.ID] || d.Event.At.IsZero() || d.Event.Count < 1 || d.Webhook != id {
			t.Errorf("%+v waits", d)
		}
		seen[d.Event.ID] = true
	}
	return all
}

// kindsOf are the kinds and reasons of Deliveries.
func kindsOf(all []sandbox.Delivery) string {
	var out []string
	for _, d := range all {
		text := string(d.Event.Kind)
		if d.Event.Reason != "" {
			text += "/" + d.Event.Reason
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// stateHook returns the Webhook with an ID.
func stateHook(t *testing.T, st sandbox.Store, id string) sandbox.Webhook {
	t.Helper()
	all, err := st.Webhooks(t.Context())
	must(t, err)
	i := slices.IndexFunc(all, func(w sandbox.Webhook) bool { return w.ID == id })
	if i < 0 {
		t.Fatalf("there is no %s in %v", id, all)
	}
	return all[i]
}

// The changes of a Sandbox are reported with its record, and nothing else is.
func lifeIsTold(t *testing.T, st sandbox.Store) {
	silent := becomes(t, st, insert(t, st, sample("t")), sandbox.Running, epoch) // no webhook yet
	must(t, st.SetWebhooks(t.Context(), []sandbox.Webhook{
		{ID: "all", Kinds: sandbox.EventKinds()}, {ID: "ends", Kinds: []sandbox.EventKind{sandbox.EventSandboxEnded}},
	}, time.Now()))

	sb := sample("t")
	sb.Name = "box"
	sb = insert(t, st, sb)
	sb.StartedAt = epoch
	for _, state := range []sandbox.State{
		sandbox.Running, sandbox.Pausing, sandbox.Running, // a pause that failed
		sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.Paused, // a resume that failed
		sandbox.Resuming, sandbox.Running,
	} {
		sb = becomes(t, st, sb, state, epoch)
	}
	sb = becomes(t, st, sb, sandbox.Running, epoch) // another change
	sb = becomes(t, st, sb, sandbox.Paused, epoch)  // its Boot is lost
	sb.Ended = &sandbox.TerminationRecord{Cause: sandbox.CauseDeadline, At: epoch}
	old := sb
	sb = becomes(t, st, sb, sandbox.Stopping, epoch)
	old.State = sandbox.Ended
	_, err := st.UpdateSandbox(t.Context(), old)
	codetest.Want(t, "a write that loses its race", err, sandbox.Conflict)
	becomes(t, st, sb, sandbox.Ended, epoch)

	never := becomes(t, st, insert(t, st, sample("t")), sandbox.Stopping, epoch)
	becomes(t, st, never, sandbox.Ended, epoch)

	all := waits(t, st, "all")
	if got, want := kindsOf(all), "sandbox.created sandbox.paused sandbox.resumed sandbox.paused/boot_lost sandbox.ended/deadline"; got != want {
		t.Errorf("told is %s, want %s", got, want)
	}
	var versions []int64
	for _, d := range all {
		if e := d.Event; e.Sandbox != sb.ID || e.Tenant != "t" || e.Name != "box" || e.Template != "base" || e.Count != 1 || !d.Last.Equal(e.At) {
			t.Errorf("%+v", d)
		}
		versions = append(versions, d.Event.Version)
	}
	if !slices.IsSorted(versions) || versions[0] < 1 {
		t.Errorf("the versions are %v", versions)
	}
	if got := kindsOf(waits(t, st, "ends")); got != "sandbox.ended/deadline" {
		t.Errorf("who wants ends is told %s", got)
	}
	silent.Ended = &sandbox.TerminationRecord{Cause: sandbox.CauseReleased, At: epoch}
	silent.StartedAt = epoch
	becomes(t, st, becomes(t, st, silent, sandbox.Stopping, epoch), sandbox.Ended, epoch)
	if got := waits(t, st, "ends"); len(got) != 2 || got[1].Event.Sandbox != silent.ID || got[1].Event.Reason != "released" {
		t.Errorf("of one from before it is told %+v", got)
	}
}

// Snapshots are reported while a Tenant keeps them, and a start from one is a fork.
func snapshotsAreTold(t *testing.T, st sandbox.Store) {
	hooked(t, st, "w")
	ready := func(s sandbox.Snapshot) sandbox.Snapshot {
		t.Helper()
		s.State = sandbox.SnapshotReady
		s, err := st.UpdateSnapshot(t.Context(), s)
		must(t, err)
		return s
	}
	make := func(change func(*sandbox.Snapshot)) sandbox.Snapshot {
		t.Helper()
		s := snapshot("t", sandbox.NewSandboxID())
		s.State, s.Kept, s.Name = sandbox.SnapshotSaving, true, "mine"
		change(&s)
		s, err := st.InsertSnapshot(t.Context(), s)
		must(t, err)
		return s
	}
	origin := insert(t, st, sample("t"))
	taken := ready(make(func(s *sandbox.Snapshot) { s.SandboxID = origin.ID }))
	taken.UsedAt = epoch
	taken, err := st.UpdateSnapshot(t.Context(), taken) // nothing changed
	must(t, err)
	loose := ready(make(func(s *sandbox.Snapshot) { s.Kept = false }))                 // of a pause
	layer := ready(make(func(s *sandbox.Snapshot) { s.Layer = "l" }))                  // of a build
	must(t, st.RetireSnapshot(t.Context(), make(func(*sandbox.Snapshot) {}).ID, true)) // was never ready
	imported := ready(make(func(*sandbox.Snapshot) {}))                                // of a Sandbox that is not stored here
	foreign := insert(t, st, sample("other"))
	claimed := ready(make(func(s *sandbox.Snapshot) { s.SandboxID = foreign.ID }))
	let := ready(make(func(s *sandbox.Snapshot) { s.Name = "old" }))
	let.Kept = false
	let, err = st.UpdateSnapshot(t.Context(), let)
	must(t, err)
	must(t, st.RetireSnapshot(t.Context(), let.ID, true))

	for _, from := range []string{taken.ID, layer.ID, imported.ID, claimed.ID} {
		copied := sample("t")
		copied.Snapshot = from
		copied = insert(t, st, copied)
		copied.StartedAt = epoch
		copied = becomes(t, st, copied, sandbox.Running, epoch)
		becomes(t, st, copied, sandbox.Stopping, epoch)
	}
	must(t, st.RetireSnapshot(t.Context(), taken.ID, false))
	must(t, st.RetireSnapshot(t.Context(), loose.ID, false))
	must(t, st.RetireSnapshot(t.Context(), layer.ID, false))

	all := waits(t, st, "w")
	const four = "snapshot.created snapshot.created snapshot.created snapshot.created"
	const copies = "sandbox.forked sandbox.created sandbox.created sandbox.forked sandbox.created sandbox.forked sandbox.created"
	if got, want := kindsOf(all), four+" snapshot.deleted/retention "+copies+" snapshot.deleted"; got != want {
		t.Fatalf("told is\n%s, want\n%s", got, want)
	}
	for i, want := range map[int]string{
		0: taken.ID, 1: imported.ID, 2: claimed.ID, 3: let.ID, 4: let.ID,
		5: taken.ID, 6: taken.ID, 7: "", 8: imported.ID, 9: imported.ID, 10: claimed.ID, 11: claimed.ID, 12: taken.ID,
	} {
		if got := all[i].Event.Snapshot; got != want {
			t.Errorf("%s is about %s, want %s", all[i].Event.Kind, got, want)
		}
	}
	for i, want := range []string{"", "", "", "", "", origin.ID, origin.ID, "", "", "", "", "", ""} {
		if got := all[i].Event.Parent; got != want {
			t.Errorf("number %d, %s, is of a copy of %q, want %q", i, all[i].Event.Kind, got, want)
		}
	}
	if e := all[0].Event; e.Tenant != "t" || e.Sandbox != taken.SandboxID || e.Name != "mine" {
		t.Errorf("%+v", e)
	}
}

// Equal Events are merged until the first try, an Event with an ID is sent once, and
// Events from before its Webhook are dropped.
func eventsGather(t *testing.T, st sandbox.Store) {
	hooked(t, st, "w")
	ctx := t.Context()
	hit := sandbox.Event{Kind: sandbox.EventQuotaHit, Tenant: "t", Reason: "exhausted", Count: 2}
	must(t, st.QueueEvents(ctx, []sandbox.Event{hit, {Kind: sandbox.EventQuotaHit, Tenant: "other"}}, time.Second))
	must(t, st.QueueEvents(ctx, []sandbox.Event{hit}, time.Second))
	if now, err := st.DueDeliveries(ctx, "w", time.Now().Add(-time.Minute), 10); err != nil || len(now) != 0 {
		t.Errorf("%v are due at once, %v", now, err)
	}
	all := waits(t, st, "w")
	if len(all) != 2 || all[0].Event.Count != 4 || all[1].Event.Count != 1 || all[0].Event.Tenant != "t" {
		t.Fatalf("%+v wait", all)
	}
	// Another one comes during the delivery of the first.
	must(t, st.QueueEvents(ctx, []sandbox.Event{hit}, time.Second))
	must(t, st.EndDelivery(ctx, all[0], true))
	must(t, st.EndDelivery(ctx, all[0], true)) // idempotent
	rest := waits(t, st, "w")
	if len(rest) != 2 || rest[0].Event.Count+rest[1].Event.Count != 3 || rest[0].Event.ID == all[0].Event.ID || rest[1].Event.ID == all[0].Event.ID {
		t.Fatalf("%+v are left", rest)
	}
	i := slices.IndexFunc(rest, func(d sandbox.Delivery) bool { return d.Event.Tenant == "t" })
	first := rest[i]
	must(t, st.QueueEvents(ctx, []sandbox.Event{hit}, time.Second))
	must(t, st.RetryDelivery(ctx, first, time.Now().Add(30*time.Minute)))
	must(t, st.QueueEvents(ctx, []sandbox.Event{hit}, time.Second)) // a tried one does not change
	var counts []int64
	for _, d := range waits(t, st, "w") {
		if d.Event.Tenant != "t" {
			continue
		}
		counts = append(counts, d.Event.Count)
		if d.Event.ID == first.Event.ID && (d.Tries != 1 || d.Event.Count != first.Event.Count) {
			t.Errorf("what was tried is %+v", d)
		}
	}
	slices.Sort(counts)
	if fmt.Sprint(counts) != "[2 4]" {
		t.Errorf("the counts are %v", counts)
	}
	soon, err := st.DueDeliveries(ctx, "w", time.Now().Add(time.Minute), 10)
	must(t, err)
	must(t, st.HastenDeliveries(ctx, "w", time.Now()))
	hastened, err := st.DueDeliveries(ctx, "w", time.Now(), 10)
	must(t, err)
	if len(soon) != 2 || len(hastened) != 3 {
		t.Errorf("%d are due soon, %d when hastened", len(soon), len(hastened))
	}

	once := sandbox.Event{ID: "e-t1", Kind: sandbox.EventTemplateBuilt, At: time.Now(), Tenant: "t", Build: "t1"}
	for range 3 {
		must(t, st.QueueEvents(ctx, []sandbox.Event{once, once}, 0))
	}
	before := once
	before.ID, before.At = "e-t0", epoch.Add(-24*time.Hour*365*30)
	must(t, st.QueueEvents(ctx, []sandbox.Event{before}, 0))
	for _, d := range waits(t, st, "w") {
		if d.Event.Kind == sandbox.EventTemplateBuilt {
			must(t, st.EndDelivery(ctx, d, true))
		}
	}
	must(t, st.QueueEvents(ctx, []sandbox.Event{once}, 0)) // it was delivered already
	if all := waits(t, st, "w"); len(all) != 3 {
		t.Errorf("%s wait", kindsOf(all))
	}
}

// Events beyond the limits are dropped, the oldest first, and counted; the next delivery
// reports the count once.
func eventsAreBounded(t *testing.T, st sandbox.Store) {
	hooked(t, st, "w", "other")
	ctx := t.Context()
	built := func(i int) sandbox.Event {
		return sandbox.Event{Kind: sandbox.EventSandboxEnded, Sandbox: fmt.Sprintf("i%d", i)}
	}
	must(t, st.QueueEvents(ctx, []sandbox.Event{built(-1)}, 0))
	var flood []sandbox.Event
	for i := range sandbox.MaxWaitingOfKind + 7 {
		flood = append(flood, sandbox.Event{Kind: sandbox.EventAuthFailed, Remote: fmt.Sprint(i)})
	}
	must(t, st.QueueEvents(ctx, flood, time.Second))
	all := waits(t, st, "w")
	if len(all) != sandbox.MaxWaitingOfKind+1 || all[0].Event.Sandbox != "i-1" || all[1].Event.Remote != "7" || all[0].Missing != 7 {
		t.Fatalf("%d wait after a flood, first %+v, %+v", len(all), all[0], all[1])
	}
	if w := stateHook(t, st, "w"); w.Lost != 7 || w.Waiting != len(all) || len(w.Kinds) != len(sandbox.EventKinds()) {
		t.Errorf("%+v", w)
	}
	must(t, st.EndDelivery(ctx, all[0], true))
	must(t, st.EndDelivery(ctx, all[1], false)) // lost
	if next := waits(t, st, "w"); next[0].Missing != 1 {
		t.Errorf("%d are missing", next[0].Missing)
	}

	big := strings.Repeat("x", 1<<20)
	for i := range 17 {
		e := built(i)
		e.Name = big
		must(t, st.QueueEvents(ctx, []sandbox.Event{e}, 0))
	}
	all = waits(t, st, "w")
	if len(all) != 15 || all[14].Event.Sandbox != "i16" || stateHook(t, st, "w").Waiting != 15 {
		t.Errorf("%d wait beside too many bytes", len(all))
	}
	// Each Webhook has its own limit.
	must(t, st.EndDelivery(ctx, waits(t, st, "other")[0], true))
	if got := len(waits(t, st, "w")); got != 15 {
		t.Errorf("%d wait", got)
	}
	// A removed Webhook leaves nothing; a kept one keeps its queue.
	must(t, st.SetWebhooks(ctx, []sandbox.Webhook{{ID: "w", Kinds: []sandbox.EventKind{sandbox.EventLimitKill}}}, time.Now()))
	if got := len(waits(t, st, "other")); got != 0 {
		t.Errorf("%d wait for nobody", got)
	}
	must(t, st.QueueEvents(ctx, []sandbox.Event{built(99), {Kind: sandbox.EventLimitKill}}, 0))
	if all := waits(t, st, "w"); len(all) != 16 || all[15].Event.Kind != sandbox.EventLimitKill {
		t.Errorf("%s wait", kindsOf(all))
	}
}

// Concurrent writers lose no event.
func eventsAtOnce(t *testing.T, st sandbox.Store) {
	hooked(t, st, "w")
	const callers, each = 8, 25
	done := make(chan error, callers)
	for range callers {
		go func() {
			for range each {
				if err := st.QueueEvents(t.Context(), []sandbox.Event{{Kind: sandbox.EventLimitKill, Sandbox: "i1"}}, time.Second); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	taken := int64(0)
	for left := callers; left > 0; {
		select {
		case err := <-done:
			must(t, err)
			left--
		default:
		}
		for _, d := range waits(t, st, "w") {
			must(t, st.EndDelivery(t.Context(), d, true))
			taken += d.Event.Count
		}
	}
	for _, d := range waits(t, st, "w") {
		taken += d.Event.Count
	}
	if taken != callers*each {
		t.Errorf("%d were told, want %d", taken, callers*each)
	}
}
