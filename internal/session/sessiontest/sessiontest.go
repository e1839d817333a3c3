// Package sessiontest is the contract of sandbox.Sandboxes as a test suite, for a session
// manager in this process or behind a connection, over any Node.
package sessiontest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// World is a session manager without Sandboxes. Its only Template is "base", and its Nodes
// support pauses and Volumes.
type World struct {
	sandbox.Sandboxes
	// Remember puts a value into the memory of a Sandbox that runs, and Recall returns it.
	Remember func(sb sandbox.Sandbox, value string)
	Recall   func(sb sandbox.Sandbox) string
}

// world is a World with helpers.
type world struct {
	World
	t *testing.T
}

// Run checks the contract. open is called once a case and registers its own cleanup.
func Run(t *testing.T, open func(t *testing.T) World) {
	for name, check := range map[string]func(*world){
		"create":                      create,
		"create refuses":              createRefuses,
		"ensure":                      ensure,
		"ensure wakes":                ensureWakes,
		"list":                        list,
		"counts":                      counts,
		"deadlines":                   deadlines,
		"update":                      update,
		"update refuses":              updateRefuses,
		"uses":                        uses,
		"end":                         end,
		"end at once":                 endAtOnce,
		"pause and resume":            pauseAndResume,
		"resume at once":              resumeAtOnce,
		"reboot":                      reboot,
		"snapshots":                   snapshots,
		"a name goes to the next":     takeName,
		"snapshot of a paused one":    snapshotOfPaused,
		"snapshots in pages":          snapshotPages,
		"fork":                        func(w *world) { fork(w, false) },
		"fork of a paused one":        func(w *world) { fork(w, true) },
		"fork refuses":                forkRefuses,
		"rollback":                    rollback,
		"export and import":           exportAndImport,
		"import refuses":              importRefuses,
		"volumes":                     volumes,
		"mounted volumes":             mountedVolumes,
		"other tenants see nothing":   invisible,
		"a context that ended":        endedContext,
		"an ended one does no more":   ended,
		"a change of unknown secrets": func(w *world) { codetest.OK(w.t, "SecretChanged", w.SecretChanged(w.t.Context(), "t", "none")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(&world{open(t), t})
		})
	}
}

func (w *world) create(tenant sandbox.TenantID, req sandbox.CreateRequest) sandbox.Sandbox {
	w.t.Helper()
	sb, err := w.Create(w.t.Context(), tenant, req)
	codetest.OK(w.t, "Create", err)
	return sb
}

func (w *world) get(id string) sandbox.Sandbox {
	w.t.Helper()
	sb, err := w.Get(w.t.Context(), "t", id)
	codetest.OK(w.t, "Get", err)
	return sb
}

func (w *world) pause(id string) sandbox.Sandbox {
	w.t.Helper()
	sb, err := w.Pause(w.t.Context(), "t", id, false)
	codetest.OK(w.t, "Pause", err)
	return sb
}

func (w *world) snapshot(id, name string) sandbox.Snapshot {
	w.t.Helper()
	snap, err := w.TakeSnapshot(w.t.Context(), "t", id, sandbox.SnapshotRequest{Name: name})
	codetest.OK(w.t, "TakeSnapshot", err)
	return snap
}

// near reports whether a time is d from now, or up to 30 s less.
func near(at time.Time, d time.Duration) bool {
	return time.Until(at) <= d && time.Until(at) > d-30*time.Second
}

func create(w *world) {
	t := w.t
	sb := w.create("t", sandbox.CreateRequest{
		Name: "web", Timeout: time.Hour, IdleTimeout: time.Minute, OnTimeout: sandbox.OnTimeoutPause, StayPaused: true,
		Metadata: map[string]string{"a": "1"}, Env: map[string]string{"K": "V"}, User: "root", Cwd: "/srv",
		Network: sandbox.NetworkNone, Ingress: `{"private":true}`,
	})
	if sb.State != sandbox.Running || sb.Tenant != "t" || sb.Boot.Number != 1 || sb.Boot.ID == "" || sb.Boot.Node == "" || sb.Template != "base" || sb.Image == "" ||
		sb.Shape != sandbox.DefaultShape() || sb.Limits != sb.Shape.Limits() || sb.Timeline != 1 || sb.Engine == "" || !near(sb.Deadline, time.Hour) || !near(sb.StartedAt, 0) {
		t.Errorf("created %+v", sb)
	}
	if sb.Name != "web" || sb.Timeout != time.Hour || sb.IdleTimeout != time.Minute || sb.OnTimeout != sandbox.OnTimeoutPause || !sb.StayPaused || sb.Metadata["a"] != "1" ||
		sb.Env["K"] != "V" || sb.User != "root" || sb.Cwd != "/srv" || sb.Network != sandbox.NetworkNone || !sb.Ingress.RulesOrClosed().Private {
		t.Errorf("created with what was not asked for: %+v", sb)
	}
	for _, key := range []string{sb.ID, "web"} {
		if got := w.get(key); !reflect.DeepEqual(got, sb) {
			t.Errorf("Get(%s) = %+v, want %+v", key, got, sb)
		}
	}
	if settled, err := w.Settled(t.Context(), "t", "web"); err != nil || !reflect.DeepEqual(settled, sb) {
		t.Errorf("Settled = %+v, %v", settled, err)
	}
	id := sandbox.NewSandboxID()
	if mine := w.create("t", sandbox.CreateRequest{ID: id}); mine.ID != id {
		t.Errorf("asked to be %s, it is %s", id, mine.ID)
	}
	codetest.Want(w.t, "a second Create of an ID", codetest.ErrOf(w.Create(t.Context(), "t", sandbox.CreateRequest{ID: id})), sandbox.Conflict)
}

func createRefuses(w *world) {
	w.create("t", sandbox.CreateRequest{Name: "web"})
	for _, tt := range []struct {
		name string
		req  sandbox.CreateRequest
		want sandbox.Code
	}{
		{"a name in use", sandbox.CreateRequest{Name: "web"}, sandbox.Conflict},
		{"a bad name", sandbox.CreateRequest{Name: "-"}, sandbox.Invalid},
		{"a bad network", sandbox.CreateRequest{Network: "x"}, sandbox.Invalid},
		{"too long a time", sandbox.CreateRequest{Timeout: sandbox.MaxTimeout + 1}, sandbox.Invalid},
		{"an unknown template", sandbox.CreateRequest{Template: "x"}, sandbox.NotFound},
		{"an unknown snapshot", sandbox.CreateRequest{Snapshot: sandbox.NewSnapshotID()}, sandbox.NotFound},
		{"a snapshot's unknown name", sandbox.CreateRequest{Snapshot: "absent"}, sandbox.NotFound},
		{"an unknown volume", sandbox.CreateRequest{Volumes: []sandbox.VolumeMount{{Volume: "none", Path: "/data"}}}, sandbox.Invalid},
	} {
		codetest.Want(w.t, tt.name, codetest.ErrOf(w.Create(w.t.Context(), "t", tt.req)), tt.want)
	}
	w.create("other", sandbox.CreateRequest{Name: "web"})
	if n, err := w.Counts(w.t.Context(), "t"); err != nil || n[sandbox.Running] != 1 {
		w.t.Errorf("after what was refused: %v, %v", n, err)
	}
}

func ensure(w *world) {
	t, req := w.t, sandbox.CreateRequest{Name: "web"}
	first, made, err := w.Ensure(t.Context(), "t", req)
	if err != nil || !made {
		t.Fatalf("Ensure = %v, %v", made, err)
	}
	again, made, err := w.Ensure(t.Context(), "t", req)
	if err != nil || made || again.ID != first.ID {
		t.Errorf("Ensure again = %s, %v, %v", again.ID, made, err)
	}
	other, made, err := w.Ensure(t.Context(), "other", req)
	if err != nil || !made || other.ID == first.ID {
		t.Errorf("another tenant's = %s, %v, %v", other.ID, made, err)
	}
	_, _, err = w.Ensure(t.Context(), "t", sandbox.CreateRequest{})
	codetest.Want(w.t, "without a name", err, sandbox.Invalid)
	_, _, err = w.Ensure(t.Context(), "t", sandbox.CreateRequest{Name: "x", Template: "none"})
	codetest.Want(w.t, "of an unknown template", err, sandbox.NotFound)
}

func ensureWakes(w *world) {
	sb := w.create("t", sandbox.CreateRequest{Name: "web"})
	w.pause(sb.ID)
	again, made, err := w.Ensure(w.t.Context(), "t", sandbox.CreateRequest{Name: "web"})
	if err != nil || made || again.ID != sb.ID || again.State != sandbox.Running {
		w.t.Errorf("Ensure = %+v, %v, %v", again, made, err)
	}
}

func list(w *world) {
	t := w.t
	var ids []string // newest first
	for _, kind := range []string{"a", "b", "a"} {
		ids = slices.Insert(ids, 0, w.create("t", sandbox.CreateRequest{Metadata: map[string]string{"kind": kind}}).ID)
	}
	w.create("other", sandbox.CreateRequest{})
	w.pause(ids[0])
	gone := w.create("t", sandbox.CreateRequest{})
	codetest.OK(w.t, "End", codetest.ErrOf(w.End(t.Context(), "t", gone.ID, sandbox.CauseReleased)))
	for _, tt := range []struct {
		name  string
		query sandbox.ListQuery
		want  []string
	}{
		{"all that live", sandbox.ListQuery{}, ids},
		{"oldest first", sandbox.ListQuery{OldestFirst: true}, []string{ids[2], ids[1], ids[0]}},
		{"by metadata", sandbox.ListQuery{Metadata: map[string]string{"kind": "a"}}, []string{ids[0], ids[2]}},
		{"paused ones", sandbox.ListQuery{States: []sandbox.State{sandbox.Paused}}, ids[:1]},
		{"ended ones", sandbox.ListQuery{States: []sandbox.State{sandbox.Ended}}, []string{gone.ID}},
		{"of a template", sandbox.ListQuery{Template: "base"}, ids},
		{"of another template", sandbox.ListQuery{Template: "other"}, nil},
		{"since an hour from now", sandbox.ListQuery{From: time.Now().Add(time.Hour)}, nil},
	} {
		page, err := w.List(t.Context(), "t", tt.query)
		if got := idsOf(page.Sandboxes); err != nil || !slices.Equal(got, tt.want) || page.Next != "" {
			t.Errorf("%s: %v, want %v, next %q, %v", tt.name, got, tt.want, page.Next, err)
		}
		var paged []string // the same query in pages of one
		for q := tt.query; ; {
			q.Limit = 1
			page, err := w.List(t.Context(), "t", q)
			if err != nil || len(page.Sandboxes) > 1 {
				t.Fatalf("%s: a page of %d, %v", tt.name, len(page.Sandboxes), err)
			}
			paged = append(paged, idsOf(page.Sandboxes)...)
			if q.Cursor = page.Next; page.Next == "" {
				break
			}
		}
		if !slices.Equal(paged, tt.want) {
			t.Errorf("%s in pages: %v, want %v", tt.name, paged, tt.want)
		}
	}
	codetest.Want(w.t, "a cursor that is none", codetest.ErrOf(w.List(t.Context(), "t", sandbox.ListQuery{Cursor: "x"})), sandbox.Invalid)
}

func idsOf(all []sandbox.Sandbox) (ids []string) {
	for _, sb := range all {
		ids = append(ids, sb.ID)
	}
	return ids
}

func counts(w *world) {
	t := w.t
	if n, err := w.Counts(t.Context(), "t"); err != nil || len(n) != 0 {
		t.Errorf("Counts of none = %v, %v", n, err)
	}
	for range 3 {
		w.create("t", sandbox.CreateRequest{})
	}
	paused, gone := w.create("t", sandbox.CreateRequest{}), w.create("t", sandbox.CreateRequest{})
	w.pause(paused.ID)
	codetest.OK(w.t, "End", codetest.ErrOf(w.End(t.Context(), "t", gone.ID, sandbox.CauseReleased)))
	want := map[sandbox.State]int{sandbox.Running: 3, sandbox.Paused: 1}
	if n, err := w.Counts(t.Context(), "t"); err != nil || !reflect.DeepEqual(n, want) {
		t.Errorf("Counts = %v, want %v, %v", n, want, err)
	}
}

func deadlines(w *world) {
	t := w.t
	sb := w.create("t", sandbox.CreateRequest{Timeout: time.Hour})
	for _, d := range []time.Duration{0, -1, sandbox.MaxTimeout + 1} {
		codetest.Want(w.t, "SetTimeout of "+d.String(), codetest.ErrOf(w.SetTimeout(t.Context(), "t", sb.ID, d)), sandbox.Invalid)
		codetest.Want(w.t, "RunFor of "+d.String(), codetest.ErrOf(w.RunFor(t.Context(), "t", sb.ID, d)), sandbox.Invalid)
	}
	if got, err := w.RunFor(t.Context(), "t", sb.ID, 10*time.Minute); err != nil || got.Timeout != time.Hour || !near(got.Deadline, 10*time.Minute) {
		t.Errorf("RunFor = %+v, %v", got, err)
	}
	if got, err := w.SetTimeout(t.Context(), "t", sb.ID, 20*time.Minute); err != nil || got.Timeout != 20*time.Minute || !near(got.Deadline, 20*time.Minute) {
		t.Errorf("SetTimeout = %+v, %v", got, err)
	}
	codetest.OK(w.t, "RunFor", codetest.ErrOf(w.RunFor(t.Context(), "t", sb.ID, time.Minute)))
	if got, err := w.Touch(t.Context(), "t", sb.ID); err != nil || !near(got.Deadline, 20*time.Minute) {
		t.Errorf("Touch = %+v, %v", got, err)
	}
	codetest.OK(w.t, "RunFor", codetest.ErrOf(w.RunFor(t.Context(), "t", sb.ID, time.Hour)))
	if got, err := w.Touch(t.Context(), "t", sb.ID); err != nil || !near(got.Deadline, time.Hour) {
		t.Errorf("Touch brought the deadline nearer: %+v, %v", got, err)
	}
	paused := w.pause(sb.ID)
	if got, err := w.RunFor(t.Context(), "t", sb.ID, time.Minute); err != nil || !got.Deadline.Equal(paused.Deadline) || got.Timeout != 20*time.Minute {
		t.Errorf("RunFor of a paused one = %+v, %v", got, err)
	}
	if got, err := w.SetTimeout(t.Context(), "t", sb.ID, 2*time.Hour); err != nil || got.State != sandbox.Paused || got.Timeout != 2*time.Hour {
		t.Errorf("SetTimeout of a paused one = %+v, %v", got, err)
	}
	if got, err := w.Resume(t.Context(), "t", sb.ID); err != nil || !near(got.Deadline, 2*time.Hour) {
		t.Errorf("its next run = %+v, %v", got, err)
	}
}

func update(w *world) {
	t := w.t
	sb := w.create("t", sandbox.CreateRequest{Name: "web", Env: map[string]string{"A": "1", "B": "2"}, Metadata: map[string]string{"a": "1", "b": "2"}})
	got, err := w.Update(t.Context(), "t", "web", sandbox.Change{
		Name: new("site"), Timeout: new(time.Hour), IdleTimeout: new(time.Minute), OnTimeout: new(sandbox.OnTimeoutPause), StayPaused: new(true),
		CheckpointEvery: new(time.Hour), Network: new(sandbox.NetworkNone), Ingress: new(sandbox.Ingress(`{"private":true}`)),
		MemoryBytes: new(int64(256 << 20)), Pids: new(int64(64)), User: new("root"), Cwd: new("/srv"),
		Metadata: map[string]*string{"a": nil, "c": new("3")}, Env: map[string]*string{"A": nil, "C": new("3")},
	})
	codetest.OK(w.t, "Update", err)
	if got.Name != "site" || !near(got.Deadline, time.Hour) || got.IdleTimeout != time.Minute || got.OnTimeout != sandbox.OnTimeoutPause || !got.StayPaused || got.CheckpointEvery != time.Hour ||
		got.Network != sandbox.NetworkNone || !got.Ingress.RulesOrClosed().Private || got.Limits.MemoryBytes != 256<<20 || got.Limits.Pids != 64 || got.User != "root" || got.Cwd != "/srv" ||
		!reflect.DeepEqual(got.Metadata, map[string]string{"b": "2", "c": "3"}) || !reflect.DeepEqual(got.Env, map[string]string{"B": "2", "C": "3"}) {
		t.Errorf("updated %+v", got)
	}
	if got.ID != sb.ID || got.Boot != sb.Boot || got.Shape != sb.Shape || got.State != sandbox.Running {
		t.Errorf("a change of its settings moved %+v to %+v", sb, got)
	}
	if r := w.get("site"); !reflect.DeepEqual(r, got) {
		t.Errorf("the record is %+v, returned was %+v", r, got)
	}
	same, err := w.Update(t.Context(), "t", "site", sandbox.Change{})
	if err != nil || same.Name != "site" || !reflect.DeepEqual(same.Env, got.Env) {
		t.Errorf("a change of nothing gives %+v, %v", same, err)
	}
}

func updateRefuses(w *world) {
	t := w.t
	w.create("t", sandbox.CreateRequest{Name: "other"})
	sb := w.create("t", sandbox.CreateRequest{Name: "web"})
	for _, tt := range []struct {
		name   string
		tenant sandbox.TenantID
		key    string
		change sandbox.Change
		want   sandbox.Code
	}{
		{"another tenant's", "x", sb.ID, sandbox.Change{Name: new("mine")}, sandbox.NotFound},
		{"absent", "t", "nothing", sandbox.Change{}, sandbox.NotFound},
		{"a name in use", "t", "web", sandbox.Change{Name: new("other")}, sandbox.Conflict},
		{"another template", "t", "web", sandbox.Change{Template: new("x")}, sandbox.Conflict},
		{"another disk", "t", "web", sandbox.Change{DiskBytes: new(int64(1 << 40))}, sandbox.Conflict},
		{"more memory than the shape", "t", "web", sandbox.Change{MemoryBytes: new(int64(1 << 30))}, sandbox.Conflict},
		{"nonsense", "t", "web", sandbox.Change{Network: new(sandbox.NetworkPolicy("x"))}, sandbox.Invalid},
	} {
		codetest.Want(w.t, tt.name, codetest.ErrOf(w.Update(t.Context(), tt.tenant, tt.key, tt.change)), tt.want)
	}
	if r := w.get(sb.ID); !reflect.DeepEqual(r, sb) {
		t.Errorf("a refused change changed %+v to %+v", sb, r)
	}
}

// Uses of unknown Sandboxes are ignored. A Sandbox that was used is not idle.
func uses(w *world) {
	sb := w.create("t", sandbox.CreateRequest{})
	codetest.OK(w.t, "Used", w.Used(w.t.Context(), []sandbox.Use{{SandboxID: sb.ID, Output: []byte("x")}, {SandboxID: sandbox.NewSandboxID()}, {SandboxID: "nothing"}}))
	codetest.OK(w.t, "Used of none", w.Used(w.t.Context(), nil))
	if n, err := w.Idle(w.t.Context(), "t"); err != nil || n != 0 {
		w.t.Errorf("Idle = %d, %v", n, err)
	}
}

func end(w *world) {
	t := w.t
	for _, cause := range []sandbox.Cause{sandbox.CauseReleased, sandbox.CauseOperator} {
		sb := w.create("t", sandbox.CreateRequest{Name: "web"})
		gone, err := w.End(t.Context(), "t", "web", cause)
		if err != nil || gone.ID != sb.ID || gone.State != sandbox.Ended || gone.Ended == nil || gone.Ended.Cause != cause || !near(gone.Ended.At, 0) {
			t.Errorf("End = %+v, %v", gone, err)
		}
		codetest.Want(w.t, "End again", codetest.ErrOf(w.End(t.Context(), "t", sb.ID, cause)), sandbox.NotFound)
		if r := w.get(sb.ID); r.Ended == nil || r.Ended.Cause != cause {
			t.Errorf("Get of an ended one = %+v", r)
		}
		codetest.Want(w.t, "Get by its name", codetest.ErrOf(w.Get(t.Context(), "t", "web")), sandbox.NotFound)
	}
	paused := w.create("t", sandbox.CreateRequest{})
	w.pause(paused.ID)
	if gone, err := w.End(t.Context(), "t", paused.ID, sandbox.CauseReleased); err != nil || gone.State != sandbox.Ended {
		t.Errorf("End of a paused one = %+v, %v", gone, err)
	}
}

// Concurrent ends succeed or return NotFound, and the Sandbox ends.
func endAtOnce(w *world) {
	sb := w.create("t", sandbox.CreateRequest{})
	errs := make([]error, 10)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = w.End(w.t.Context(), "t", sb.ID, sandbox.CauseReleased) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, sandbox.NotFound) {
			w.t.Errorf("End = %v", err)
		}
	}
	if !slices.Contains(errs, nil) || w.get(sb.ID).State != sandbox.Ended {
		w.t.Errorf("nobody ended it: %v", errs)
	}
}

// ended checks that an ended Sandbox refuses every change.
func ended(w *world) {
	t, ctx := w.t, w.t.Context()
	sb := w.create("t", sandbox.CreateRequest{})
	codetest.OK(w.t, "End", codetest.ErrOf(w.End(ctx, "t", sb.ID, sandbox.CauseReleased)))
	for what, err := range map[string]error{
		"SetTimeout":   codetest.ErrOf(w.SetTimeout(ctx, "t", sb.ID, time.Hour)),
		"RunFor":       codetest.ErrOf(w.RunFor(ctx, "t", sb.ID, time.Hour)),
		"Update":       codetest.ErrOf(w.Update(ctx, "t", sb.ID, sandbox.Change{Name: new("late")})),
		"Touch":        codetest.ErrOf(w.Touch(ctx, "t", sb.ID)),
		"Pause":        codetest.ErrOf(w.Pause(ctx, "t", sb.ID, false)),
		"Resume":       codetest.ErrOf(w.Resume(ctx, "t", sb.ID)),
		"Reboot":       codetest.ErrOf(w.Reboot(ctx, "t", sb.ID)),
		"TakeSnapshot": codetest.ErrOf(w.TakeSnapshot(ctx, "t", sb.ID, sandbox.SnapshotRequest{})),
		"Fork":         codetest.ErrOf(w.Fork(ctx, "t", sb.ID, sandbox.ForkRequest{Count: 1})),
	} {
		codetest.Want(w.t, what, err, sandbox.Conflict)
	}
	if r := w.get(sb.ID); r.State != sandbox.Ended {
		t.Errorf("it became %+v", r)
	}
}

// A call about another Tenant's object gets the same answer as one about a missing object.
func invisible(w *world) {
	t, ctx := w.t, w.t.Context()
	sb := w.create("mine", sandbox.CreateRequest{Name: "web"})
	snap, err := w.TakeSnapshot(ctx, "mine", sb.ID, sandbox.SnapshotRequest{Name: "snap"})
	codetest.OK(w.t, "TakeSnapshot", err)
	v, err := w.CreateVolume(ctx, "mine", sandbox.VolumeRequest{Name: "data"})
	codetest.OK(w.t, "CreateVolume", err)
	compare := func(what, absent string, keys []string, call func(key string) error) {
		t.Helper()
		// An answer may repeat the key, and must not differ otherwise.
		answer := func(key string) string {
			err := call(key)
			if sandbox.CodeOf(err) != sandbox.NotFound {
				t.Errorf("%s(%q) = %v, want %s", what, key, err, sandbox.NotFound)
			}
			return strings.ReplaceAll(fmt.Sprint(err), strconv.Quote(key), "KEY")
		}
		want := answer(absent)
		for _, key := range keys {
			if got := answer(key); got != want {
				t.Errorf("%s(%q) = %v, want %v", what, key, got, want)
			}
		}
	}
	const other = sandbox.TenantID("other")
	for what, call := range map[string]func(key string) error{
		"Get":        func(key string) error { return codetest.ErrOf(w.Get(ctx, other, key)) },
		"Settled":    func(key string) error { return codetest.ErrOf(w.Settled(ctx, other, key)) },
		"SetTimeout": func(key string) error { return codetest.ErrOf(w.SetTimeout(ctx, other, key, time.Hour)) },
		"RunFor":     func(key string) error { return codetest.ErrOf(w.RunFor(ctx, other, key, time.Hour)) },
		"Update": func(key string) error {
			return codetest.ErrOf(w.Update(ctx, other, key, sandbox.Change{User: new("root")}))
		},
		"Touch":    func(key string) error { return codetest.ErrOf(w.Touch(ctx, other, key)) },
		"End":      func(key string) error { return codetest.ErrOf(w.End(ctx, other, key, sandbox.CauseReleased)) },
		"Pause":    func(key string) error { return codetest.ErrOf(w.Pause(ctx, other, key, false)) },
		"Resume":   func(key string) error { return codetest.ErrOf(w.Resume(ctx, other, key)) },
		"Reboot":   func(key string) error { return codetest.ErrOf(w.Reboot(ctx, other, key)) },
		"Rollback": func(key string) error { return codetest.ErrOf(w.Rollback(ctx, other, key, snap.ID)) },
		"Fork":     func(key string) error { return codetest.ErrOf(w.Fork(ctx, other, key, sandbox.ForkRequest{Count: 1})) },
		"TakeSnapshot": func(key string) error {
			return codetest.ErrOf(w.TakeSnapshot(ctx, other, key, sandbox.SnapshotRequest{Name: "x"}))
		},
		"History": func(key string) error { return codetest.ErrOf(w.History(ctx, other, key)) },
	} {
		compare(what, sandbox.NewSandboxID(), []string{sb.ID, "web", "nothing", "", "../x"}, call)
	}
	for what, call := range map[string]func(key string) error{
		"SnapshotByID":   func(key string) error { return codetest.ErrOf(w.SnapshotByID(ctx, other, key)) },
		"DeleteSnapshot": func(key string) error { return codetest.ErrOf(w.DeleteSnapshot(ctx, other, key)) },
		"ExportSnapshot": func(key string) error { return w.ExportSnapshot(ctx, other, key, false, io.Discard) },
	} {
		compare(what, sandbox.NewSnapshotID(), []string{snap.ID}, call)
	}
	for what, call := range map[string]func(key string) error{
		"GetVolume":    func(key string) error { return codetest.ErrOf(w.GetVolume(ctx, other, key)) },
		"DeleteVolume": func(key string) error { return codetest.ErrOf(w.DeleteVolume(ctx, other, key)) },
	} {
		compare(what, sandbox.NewVolumeID(), []string{v.ID, "data"}, call)
	}
	for _, ref := range []string{snap.ID, "snap"} {
		codetest.Want(w.t, "another tenant's snapshot", codetest.ErrOf(w.Create(ctx, other, sandbox.CreateRequest{Snapshot: ref})), sandbox.NotFound)
	}
	if page, err := w.List(ctx, other, sandbox.ListQuery{}); err != nil || len(page.Sandboxes) != 0 {
		t.Errorf("List = %+v, %v", page, err)
	}
	if page, err := w.ListSnapshots(ctx, other, sandbox.SnapshotQuery{}); err != nil || len(page.Snapshots) != 0 {
		t.Errorf("ListSnapshots = %+v, %v", page, err)
	}
	if all, err := w.ListVolumes(ctx, other); err != nil || len(all) != 0 {
		t.Errorf("ListVolumes = %+v, %v", all, err)
	}
	if got, err := w.Get(ctx, "mine", sb.ID); err != nil || got.State != sandbox.Running || got.Name != "web" {
		t.Errorf("it became %+v, %v", got, err)
	}
}

// A call whose context has ended has no effect.
func endedContext(w *world) {
	sb := w.create("t", sandbox.CreateRequest{})
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	for what, err := range map[string]error{
		"Create": codetest.ErrOf(w.Create(ctx, "t", sandbox.CreateRequest{})),
		"Get":    codetest.ErrOf(w.Get(ctx, "t", sb.ID)),
		"List":   codetest.ErrOf(w.List(ctx, "t", sandbox.ListQuery{})),
	} {
		if err == nil {
			w.t.Errorf("%s succeeds", what)
		}
	}
	if n, err := w.Counts(w.t.Context(), "t"); err != nil || n[sandbox.Running] != 1 {
		w.t.Errorf("Counts = %v, %v", n, err)
	}
}
