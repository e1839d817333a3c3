package session_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

func TestCreate(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var got sandbox.StartRequest
		w.nodes.pool = true
		w.nodes.fail(func(f *faults) {
			f.onStart = func(_ context.Context, _ string, req sandbox.StartRequest) error { got = req; return nil }
		})
		before := w.store.writes.Load()
		sb := w.create("t", sandbox.CreateRequest{
			Name: "web", Timeout: time.Minute, Metadata: map[string]string{"a": "1"},
			Env: map[string]string{"K": "V"}, User: "root", Cwd: "/srv",
		})
		if n := w.store.writes.Load() - before; n != 2 {
			t.Errorf("a create took %d writes, want 2", n)
		}
		now := time.Now().UTC()
		if sb.State != sandbox.Running || sb.Boot.Number != 1 || sb.Boot.Node != local || sb.Template != "base" ||
			sb.Shape != sandbox.DefaultShape() || sb.Network != sandbox.NetworkPublic || sb.Engine != "fake" ||
			!sb.StartedAt.Equal(now) || !sb.Deadline.Equal(now.Add(time.Minute)) {
			t.Errorf("created %+v", sb)
		}
		if boots := w.nodes.all(); len(boots) != 1 || boots[0].BootID != sb.Boot.ID || got.BootID == sb.Boot.ID {
			t.Errorf("the record's boot is %s, what runs %+v", sb.Boot.ID, boots)
		}
		want := sandbox.Binding{
			SandboxID: sb.ID, BootNumber: 1, Tenant: "t", Template: "base", AccessToken: "token of " + sb.ID,
			Env: map[string]string{"K": "V"}, User: "root", Cwd: "/srv", Network: sandbox.NetworkPublic, Limits: sandbox.DefaultShape().Limits(), Timeline: 1, Revision: 1,
		}
		if !reflect.DeepEqual(got.Binding, want) {
			t.Errorf("bound to %+v, want %+v", got.Binding, want)
		}
		for _, key := range []string{sb.ID, "web"} {
			if r, err := w.m.Get(t.Context(), "t", key); err != nil || !reflect.DeepEqual(r, sb) {
				t.Errorf("Get(%s) = %+v, %v", key, r, err)
			}
		}
	})
}

// A Sandbox with open services has no access token, and neither has a fork of it.
func TestOpenServicesHaveNoToken(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var got []string
		w.nodes.fail(func(f *faults) {
			f.onStart = func(_ context.Context, _ string, req sandbox.StartRequest) error {
				got = append(got, req.Binding.AccessToken)
				return nil
			}
		})
		sb := w.create("t", sandbox.CreateRequest{Ingress: `{"open_services":true}`})
		if _, err := w.m.Fork(t.Context(), "t", sb.ID, sandbox.ForkRequest{Count: 1}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, []string{"", ""}) {
			t.Errorf("bound with the tokens %q", got)
		}
	})
}

// A create refused with a retry time does not count against the create rate. A create that
// fails otherwise, or that its owner ends, does.
func TestRefusedCreatesDoNotCount(t *testing.T) {
	busy := func(code sandbox.Code, retryAfter time.Duration) error {
		return &sandbox.Error{Code: code, Detail: "no", RetryAfter: retryAfter}
	}
	for _, tt := range []struct {
		name  string
		fails error
		cause sandbox.Cause
		count int64
	}{
		{"a long queue", busy(sandbox.Unavailable, time.Second), sandbox.CauseRefused, 0},
		{"no room", busy(sandbox.Exhausted, time.Second), sandbox.CauseRefused, 0},
		{"a failure that may have begun", busy(sandbox.Unavailable, 0), sandbox.CauseEngineLost, 1},
		{"a failure", busy(sandbox.Internal, 0), sandbox.CauseEngineLost, 1},
		{"none", nil, sandbox.CauseReleased, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				id := sandbox.NewSandboxID()
				w.nodes.fail(func(f *faults) {
					f.onStart = func(context.Context, string, sandbox.StartRequest) error { return tt.fails }
				})
				_, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{ID: id})
				if sandbox.CodeOf(err) != sandbox.CodeOf(tt.fails) {
					t.Fatal(err)
				}
				if err == nil {
					if _, err := w.m.End(t.Context(), "t", id, sandbox.CauseReleased); err != nil {
						t.Fatal(err)
					}
				}
				_, _, used, err := w.store.QuotaOf(t.Context(), "t")
				if err != nil || used.Creates != tt.count {
					t.Errorf("%d creates count, %v; want %d", used.Creates, err, tt.count)
				}
				if r := w.record(id); r.Ended == nil || r.Ended.Cause != tt.cause {
					t.Errorf("it ended with %+v, want %s", r.Ended, tt.cause)
				}
			})
		})
	}
}

func TestOperatorsNetwork(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.m = session.New(w.store, w.nodes, placed{[]string{local}, w.nodes}, images{}, session.Config{Network: sandbox.NetworkNone})
		if sb := w.create("t", sandbox.CreateRequest{}); sb.Network != sandbox.NetworkNone {
			t.Errorf("network = %s, want the operator's", sb.Network)
		}
		if sb := w.create("t", sandbox.CreateRequest{Network: sandbox.NetworkPublic}); sb.Network != sandbox.NetworkPublic {
			t.Errorf("network = %s, want what was asked for", sb.Network)
		}
	})
}

func TestCreateTriesTheNextNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		defer w.close()
		w.nodes.setAway("a", true)
		w.nodes.fail(func(f *faults) {
			f.onStart = func(_ context.Context, node string, _ sandbox.StartRequest) error {
				if node == "b" {
					return sandbox.Errorf(sandbox.Exhausted, "full")
				}
				return nil
			}
		})
		sb := w.create("t", sandbox.CreateRequest{})
		if sb.Boot.Node != "c" || sb.Boot.Number != 3 {
			t.Errorf("boot = %+v, want number 3 on c", sb.Boot)
		}
		w.consistent()
	})
}

// A failed create leaves only a termination record and frees the name.
func TestCreateThatFails(t *testing.T) {
	broken := sandbox.Errorf(sandbox.Internal, "broken")
	hang := func(ctx context.Context, _ string, _ sandbox.StartRequest) error { <-ctx.Done(); return ctx.Err() }
	for _, tt := range []struct {
		name  string
		spoil func(w *world)
		give  time.Duration // how long the client waits; zero: no limit
		want  error
	}{
		{"the node fails", func(w *world) {
			w.nodes.fail(func(f *faults) {
				f.onStart = func(context.Context, string, sandbox.StartRequest) error { return broken }
			})
		}, 0, sandbox.Internal},
		{"the node is full", func(w *world) {
			w.nodes.fail(func(f *faults) {
				f.onStart = func(context.Context, string, sandbox.StartRequest) error {
					return sandbox.Errorf(sandbox.Exhausted, "full")
				}
			})
		}, 0, sandbox.Exhausted},
		{"the answer is lost", func(w *world) {
			w.nodes.pool = true
			w.nodes.fail(func(f *faults) {
				f.onBound = func(sandbox.StartRequest) error { return sandbox.Errorf(sandbox.Unavailable, "gone") }
			})
		}, 0, sandbox.Unavailable},
		{"the client leaves", func(w *world) { w.nodes.fail(func(f *faults) { f.onStart = hang }) }, time.Second, context.DeadlineExceeded},
		{"it takes too long", func(w *world) { w.nodes.fail(func(f *faults) { f.onStart = hang }) }, 0, sandbox.Timeout},
		{"the client leaves as the boot is bound", func(w *world) {
			w.nodes.fail(func(f *faults) {
				f.onBound = func(sandbox.StartRequest) error { time.Sleep(2 * time.Second); return nil }
			})
		}, time.Second, context.DeadlineExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				tt.spoil(w)
				ctx := t.Context()
				if tt.give > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.give)
					defer cancel()
				}
				if _, err := w.m.Create(ctx, "t", sandbox.CreateRequest{Name: "web"}); !errors.Is(err, tt.want) {
					t.Errorf("Create = %v, want %v", err, tt.want)
				}
				if n := len(w.nodes.all()); n != 0 {
					t.Errorf("%d boots are left", n)
				}
				page, err := w.m.List(t.Context(), "t", sandbox.ListQuery{States: []sandbox.State{sandbox.Ended}})
				if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].Ended == nil {
					t.Errorf("termination records: %+v, %v", page, err)
				}
				w.nodes.mend()
				w.create("t", sandbox.CreateRequest{Name: "web"})
			})
		})
	}
}

func TestEnd(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Name: "web"})
		w.pass(time.Second)
		before := w.store.writes.Load()
		ended, err := w.m.End(t.Context(), "t", "web", sandbox.CauseReleased)
		if err != nil || ended.State != sandbox.Ended || ended.Ended.Cause != sandbox.CauseReleased || !ended.Ended.At.Equal(time.Now()) {
			t.Errorf("End = %+v, %v", ended, err)
		}
		if n := w.store.writes.Load() - before; n != 2 {
			t.Errorf("an end took %d writes, want 2", n)
		}
		if len(w.nodes.all()) != 0 {
			t.Error("the boot still runs")
		}
		_, err = w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased)
		codetest.Want(t, "End again", err, sandbox.NotFound)
		_, err = w.m.SetTimeout(t.Context(), "t", sb.ID, time.Hour)
		codetest.Want(t, "SetTimeout of an ended one", err, sandbox.Conflict)
		if got, err := w.m.Get(t.Context(), "t", sb.ID); err != nil || got.Ended == nil {
			t.Errorf("Get of an ended one = %+v, %v", got, err)
		}
	})
}

func TestConcurrentEnds(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.fail(func(f *faults) {
			f.onStop = func(context.Context, string) error { time.Sleep(time.Second); return nil }
		})
		var won, lost atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				switch _, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); {
				case err == nil:
					won.Add(1)
				case errors.Is(err, sandbox.NotFound):
					lost.Add(1)
					if len(w.nodes.all()) != 0 {
						t.Error("told that it has ended while it runs")
					}
				default:
					t.Errorf("End = %v", err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 || lost.Load() != 7 {
			t.Errorf("%d won, %d lost", won.Load(), lost.Load())
		}
	})
}

// An end that has begun completes although its client leaves.
func TestEndGoesOnWithoutItsClient(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.fail(func(f *faults) {
			f.onStop = func(ctx context.Context, _ string) error {
				select {
				case <-time.After(5 * time.Second):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.m.End(ctx, "t", sb.ID, sandbox.CauseReleased); err != nil {
			t.Errorf("End = %v", err)
		}
	})
}

func TestEndOfAStartingOne(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.nodes.fail(func(f *faults) {
			f.onStart = func(ctx context.Context, _ string, _ sandbox.StartRequest) error { <-ctx.Done(); return ctx.Err() }
		})
		result := make(chan error, 1)
		go func() {
			_, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{Name: "web"})
			result <- err
		}()
		synctest.Wait()
		ended, err := w.m.End(t.Context(), "t", "web", sandbox.CauseReleased)
		if err != nil || ended.State != sandbox.Ended || ended.Ended.Cause != sandbox.CauseReleased {
			t.Errorf("End = %+v, %v", ended, err)
		}
		codetest.Want(t, "the create", <-result, sandbox.Unavailable)
	})
}

// Run or the next End completes an end that failed at the Node.
func TestEndThatFails(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		first, second := w.create("t", sandbox.CreateRequest{}), w.create("t", sandbox.CreateRequest{})
		w.nodes.setAway(local, true)
		for _, sb := range []sandbox.Sandbox{first, second} {
			_, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased)
			codetest.Want(t, "End with the node away", err, sandbox.Unavailable)
			if r := w.record(sb.ID); r.State != sandbox.Stopping {
				t.Errorf("the record is %s, want stopping", r.State)
			}
		}
		w.nodes.setAway(local, false)
		if ended, err := w.m.End(t.Context(), "t", first.ID, sandbox.CauseOperator); err != nil || ended.Ended.Cause != sandbox.CauseReleased {
			t.Errorf("the next End = %+v, %v", ended, err)
		}
		w.pass(time.Minute)
		if r := w.record(second.ID); r.State != sandbox.Ended {
			t.Errorf("after a minute the record is %s", r.State)
		}
	})
}

func TestEndAll(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for range 20 {
			w.create("t", sandbox.CreateRequest{})
		}
		if n, err := w.m.EndAll(t.Context(), "", sandbox.CauseOperator); n != 20 || err != nil {
			t.Errorf("EndAll = %d, %v", n, err)
		}
		if n := len(w.nodes.all()); n != 0 {
			t.Errorf("%d boots are left", n)
		}
	})
}

// EndAll of one host leaves Sandboxes on other hosts running.
func TestEndAllOfOneHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		defer w.close()
		for node, holder := range map[string]string{"a": "ours", "b": "theirs"} {
			if _, err := w.store.RenewLease(t.Context(), sandbox.NodeRecord{Name: node, Holder: holder}, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		on := map[string]int{}
		for i := range 10 {
			w.nodes.setAway("a", i < 4)
			on[w.create("t", sandbox.CreateRequest{}).Boot.Node]++
		}
		w.nodes.setAway("b", true)
		n, err := w.m.EndAll(t.Context(), "ours", sandbox.CauseOperator)
		if err != nil || n != 6 || on["a"] != 6 || on["b"] != 4 {
			t.Errorf("EndAll = %d, %v, of %v", n, err, on)
		}
		w.nodes.setAway("b", false)
		if left := len(w.nodes.all()); left != on["b"] {
			t.Errorf("%d boots are left, of %v", left, on)
		}
	})
}

// NodeEnded ends the Sandboxes of one Node without a call of it, except paused ones.
func TestNodeEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		defer w.close()
		if _, err := w.store.RenewLease(t.Context(), sandbox.NodeRecord{Name: "a", Holder: "ours"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		w.nodes.setAway("b", true)
		paused := w.create("t", sandbox.CreateRequest{})
		w.pause(paused.ID)
		gone := []sandbox.Sandbox{w.create("t", sandbox.CreateRequest{}), w.create("u", sandbox.CreateRequest{})}
		w.nodes.setAway("b", false)
		w.nodes.setAway("a", true)
		other := w.create("t", sandbox.CreateRequest{})
		if n, err := w.m.NodeEnded(t.Context(), "a", "former"); n != 0 || !errors.Is(err, sandbox.Conflict) {
			t.Errorf("NodeEnded of a former holder = %d, %v", n, err)
		}
		n, err := w.m.NodeEnded(t.Context(), "a", "ours")
		if n != len(gone) || err != nil {
			t.Errorf("NodeEnded = %d, %v", n, err)
		}
		for _, sb := range gone {
			if now := w.record(sb.ID); now.State != sandbox.Ended || now.Ended.Cause != sandbox.CauseOperator {
				t.Errorf("it is %s, %+v", now.State, now.Ended)
			}
		}
		if now := w.record(paused.ID); now.State != sandbox.Paused {
			t.Errorf("the paused one is %s", now.State)
		}
		if now := w.record(other.ID); now.State != sandbox.Running {
			t.Errorf("the one on another node is %s", now.State)
		}
		if n, err := w.m.NodeEnded(t.Context(), "a", "ours"); n != 0 || err != nil {
			t.Errorf("NodeEnded again = %d, %v", n, err)
		}
		w.nodes.setAway("a", false)
	})
}

// While a Node's end waits for a pause or a move of one of its Sandboxes, that may succeed. Then
// the Sandbox does not end with its Node.
func TestNodeEndedAfterAPause(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		w.nodes.fail(func(f *faults) {
			f.onSave = func(context.Context, sandbox.SaveRequest) error { time.Sleep(time.Minute); return nil }
		})
		paused := make(chan error, 1)
		go func() { paused <- codetest.ErrOf(w.m.Pause(t.Context(), "t", sb.ID, false)) }()
		w.pass(time.Second)
		if n, err := w.m.NodeEnded(t.Context(), local, ""); n != 0 || err != nil {
			t.Errorf("NodeEnded = %d, %v", n, err)
		}
		if err := <-paused; err != nil {
			t.Error(err)
		}
		if now := w.record(sb.ID); now.State != sandbox.Paused {
			t.Errorf("it is %s, %+v", now.State, now.Ended)
		}
	})
}

// The session length quota bounds each run of a Sandbox. A resume starts a new run.
func TestSessionLength(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		if err := w.store.SetQuota(t.Context(), "t", &sandbox.Quota{SessionLength: time.Hour}); err != nil {
			t.Fatal(err)
		}
		_, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{Timeout: time.Hour + time.Second})
		codetest.Want(t, "a create for longer", err, sandbox.Exhausted)
		sb := w.create("t", sandbox.CreateRequest{Timeout: 40 * time.Minute, OnTimeout: sandbox.OnTimeoutPause})
		begun := time.Now()
		w.pass(30 * time.Minute)
		_, err = w.m.SetTimeout(t.Context(), "t", sb.ID, 31*time.Minute)
		codetest.Want(t, "SetTimeout beyond it", err, sandbox.Exhausted)
		_, err = w.m.Update(t.Context(), "t", sb.ID, sandbox.Change{Timeout: ptr(31 * time.Minute)})
		codetest.Want(t, "Update beyond it", err, sandbox.Exhausted)
		if got, err := w.m.Touch(t.Context(), "t", sb.ID); err != nil || !got.Deadline.Equal(begun.Add(time.Hour)) {
			t.Errorf("touched: %+v, %v", got, err)
		}
		w.pass(30*time.Minute + time.Second)
		if r := w.record(sb.ID); r.State != sandbox.Paused {
			t.Fatalf("after an hour it is %s", r.State)
		}
		if _, err := w.m.SetTimeout(t.Context(), "t", sb.ID, 2*time.Hour); err != nil { // it applies from the next resume
			t.Error(err)
		}
		if r, err := w.m.Resume(t.Context(), "t", sb.ID); err != nil || !r.Deadline.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("resumed: %+v, %v", r, err)
		}
		if other := w.create("other", sandbox.CreateRequest{Timeout: 2 * time.Hour}); !other.RunsUntil.IsZero() {
			t.Errorf("another tenant is bounded: %+v", other)
		}
	})
}

// The bandwidth quota is the maximum that a request may ask for, and the default.
func TestBandwidthQuota(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		if err := w.store.SetQuota(t.Context(), "t", &sandbox.Quota{Bandwidth: 10 * sandbox.Megabit}); err != nil {
			t.Fatal(err)
		}
		_, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{Bandwidth: 11 * sandbox.Megabit})
		codetest.Want(t, "a create with more", err, sandbox.Exhausted)
		sb := w.create("t", sandbox.CreateRequest{})
		_, err = w.m.Update(t.Context(), "t", sb.ID, sandbox.Change{Bandwidth: ptr(int64(11 * sandbox.Megabit))})
		codetest.Want(t, "a change to more", err, sandbox.Exhausted)
		for _, tt := range []struct{ asked, got int64 }{{3, 3}, {0, 10}, {10, 10}} {
			if sb = w.update(sb.ID, sandbox.Change{Bandwidth: ptr(tt.asked * sandbox.Megabit)}); sb.Limits.Bandwidth != tt.got*sandbox.Megabit {
				t.Errorf("asked for %d Mbit/s, got %d bytes", tt.asked, sb.Limits.Bandwidth)
			}
			if told := w.told(sb).Limits.Bandwidth; told != tt.got*sandbox.Megabit {
				t.Errorf("asked for %d Mbit/s, the boot was told %d bytes", tt.asked, told)
			}
		}
		if free := w.create("other", sandbox.CreateRequest{}); free.Limits.Bandwidth != 0 {
			t.Errorf("another tenant is bounded: %+v", free.Limits)
		}
	})
}

func TestSetTimeout(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		sb := w.create("t", sandbox.CreateRequest{Timeout: time.Hour})
		for _, d := range []time.Duration{0, -1, sandbox.MaxTimeout + 1} {
			_, err := w.m.SetTimeout(t.Context(), "t", sb.ID, d)
			codetest.Want(t, "SetTimeout of "+d.String(), err, sandbox.Invalid)
		}
		w.pass(50 * time.Minute)
		farther, err := w.m.SetTimeout(t.Context(), "t", sb.ID, time.Hour)
		if err != nil || !farther.Deadline.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("SetTimeout = %+v, %v", farther, err)
		}
		w.pass(30 * time.Minute)
		if r := w.record(sb.ID); r.State != sandbox.Running {
			t.Fatalf("it is %s before its deadline", r.State)
		}
		if _, err := w.m.SetTimeout(t.Context(), "t", sb.ID, time.Second); err != nil {
			t.Error(err)
		}
		w.pass(time.Second + time.Millisecond)
		if r := w.record(sb.ID); r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseDeadline {
			t.Errorf("after its nearer deadline: %+v", r)
		}
	})
}

func TestRunFor(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		sb := w.create("t", sandbox.CreateRequest{Timeout: time.Hour, OnTimeout: sandbox.OnTimeoutPause})
		for _, d := range []time.Duration{0, -1, sandbox.MaxTimeout + 1} {
			_, err := w.m.RunFor(t.Context(), "t", sb.ID, d)
			codetest.Want(t, "RunFor of "+d.String(), err, sandbox.Invalid)
		}
		sooner, err := w.m.RunFor(t.Context(), "t", sb.ID, time.Minute)
		if err != nil || !sooner.Deadline.Equal(time.Now().Add(time.Minute)) || sooner.Timeout != time.Hour {
			t.Errorf("RunFor = %+v, %v", sooner, err)
		}
		w.pass(2 * time.Minute)
		paused := w.record(sb.ID)
		if paused.State != sandbox.Paused {
			t.Fatalf("it is %s after its deadline", paused.State)
		}
		if same, err := w.m.RunFor(t.Context(), "t", sb.ID, time.Minute); err != nil || same.Deadline != paused.Deadline || same.Timeout != time.Hour {
			t.Errorf("RunFor of a paused one = %+v, %v", same, err)
		}
		if next, err := w.m.Resume(t.Context(), "t", sb.ID); err != nil || !next.Deadline.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("its next run = %+v, %v", next, err)
		}
	})
}

func TestDeadlines(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		synctest.Wait()
		ends := map[string]time.Duration{}
		for i, d := range []time.Duration{time.Hour, 3 * time.Second, time.Second, 20 * time.Minute, 2 * time.Second} {
			sb := w.create("t", sandbox.CreateRequest{Timeout: d})
			ends[sb.ID] = d + time.Duration(i)*100*time.Millisecond
			w.pass(100 * time.Millisecond)
		}
		began := time.Now().Add(-500 * time.Millisecond)
		w.pass(2 * time.Hour)
		for id, d := range ends {
			r := w.record(id)
			if r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseDeadline {
				t.Errorf("%v: %s", d, r.State)
				continue
			}
			if late := r.Ended.At.Sub(began.Add(d)); late < 0 || late > 50*time.Millisecond {
				t.Errorf("%v: ended %v late", d, late)
			}
		}
	})
}

func TestManyDeadlinesAtOnce(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for range 200 {
			w.create("t", sandbox.CreateRequest{Timeout: time.Minute})
		}
		w.nodes.fail(func(f *faults) {
			f.onStop = func(context.Context, string) error { time.Sleep(50 * time.Millisecond); return nil }
		})
		w.pass(time.Hour) // past all deadlines while the server is down
		w.run()
		w.pass(5 * time.Second)
		if n, err := w.m.Counts(t.Context(), "t"); err != nil || len(n) != 0 {
			t.Errorf("left: %v, %v", n, err)
		}
	})
}

// An end at a deadline is not retried in a hot loop while the Node is away, and completes
// once the Node is back.
func TestDeadlineWithTheNodeAway(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		sb := w.create("t", sandbox.CreateRequest{Timeout: time.Second})
		w.nodes.setAway(local, true)
		before := w.store.writes.Load()
		w.pass(time.Hour)
		if n := w.store.writes.Load() - before; n > 5 {
			t.Errorf("%d writes while the node was away", n)
		}
		w.nodes.setAway(local, false)
		w.pass(time.Minute)
		if r := w.record(sb.ID); r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseDeadline {
			t.Errorf("%+v", r)
		}
	})
}

func TestCertificatesAreDeleted(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		sb := w.create("t", sandbox.CreateRequest{})
		if _, err := w.m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		w.pass(sandbox.TerminationRecordLife - time.Hour)
		w.record(sb.ID)
		w.pass(3 * time.Hour)
		_, err := w.m.Get(t.Context(), "t", sb.ID)
		codetest.Want(t, "Get after the life of the termination record", err, sandbox.NotFound)
	})
}

// The record of a refused create is deleted sooner than those of other ended Sandboxes.
func TestRefusedCreatesAreDeletedSoon(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.run()
		ended := w.create("t", sandbox.CreateRequest{})
		if _, err := w.m.End(t.Context(), "t", ended.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		w.nodes.fail(func(f *faults) {
			f.onStart = func(context.Context, string, sandbox.StartRequest) error {
				return &sandbox.Error{Code: sandbox.Unavailable, Detail: "no", RetryAfter: time.Second}
			}
		})
		id := sandbox.NewSandboxID()
		_, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{ID: id})
		codetest.Want(t, "a refused create", err, sandbox.Unavailable)
		w.pass(sandbox.RefusedLife - time.Minute)
		w.record(id)
		w.pass(15 * time.Minute)
		_, err = w.m.Get(t.Context(), "t", id)
		codetest.Want(t, "a refused one after its life", err, sandbox.NotFound)
		w.record(ended.ID)
	})
}

func TestBootEnded(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{})
		ref := sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: 1, Tenant: "t"}
		for _, stale := range []sandbox.BootRef{
			{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: 0},
			{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: 2},
			{BootID: sandbox.NewBootID(), SandboxID: sb.ID, Number: 1},
			{BootID: sb.Boot.ID, SandboxID: sandbox.NewSandboxID(), Number: 1},
		} {
			if err := w.m.BootEnded(t.Context(), sandbox.BootEnd{BootRef: stale, Node: local, Cause: sandbox.CauseOOM}); err != nil {
				t.Errorf("BootEnded(%+v) = %v", stale, err)
			}
		}
		if err := w.m.BootEnded(t.Context(), sandbox.BootEnd{BootRef: ref, Node: "another", Cause: sandbox.CauseOOM}); err != nil {
			t.Errorf("another node's report: %v", err)
		}
		if r := w.record(sb.ID); r.State != sandbox.Running {
			t.Fatalf("a stale report made it %s", r.State)
		}
		end := w.nodes.lose(local, ref.BootID, sandbox.CauseOOM)
		for range 2 {
			if err := w.m.BootEnded(t.Context(), end); err != nil {
				t.Errorf("BootEnded = %v", err)
			}
		}
		if r := w.record(sb.ID); r.State != sandbox.Ended || r.Ended.Cause != sandbox.CauseOOM {
			t.Errorf("%+v", r)
		}
	})
}

func TestBootEndsWhileItIsCreated(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.nodes.pool = true
		m := w.m
		w.nodes.fail(func(f *faults) { f.onBound = nil })
		w.nodes.fail(func(f *faults) {
			f.onStart = func(ctx context.Context, _ string, req sandbox.StartRequest) error {
				// The report overtakes the answer of the start.
				return m.BootEnded(ctx, sandbox.BootEnd{BootRef: sandbox.BootRef{
					BootID: sandbox.NewBootID(), SandboxID: req.Binding.SandboxID, Number: 1,
				}, Node: local, Cause: sandbox.CauseGuestExit})
			}
		})
		_, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{})
		codetest.Want(t, "Create", err, sandbox.Unavailable)
		page, err := w.m.List(t.Context(), "t", sandbox.ListQuery{States: []sandbox.State{sandbox.Ended}})
		if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].Ended.Cause != sandbox.CauseGuestExit {
			t.Errorf("termination records: %+v, %v", page, err)
		}
		// The Boot that the start left is not the record's: reconciling ends it.
		if err := w.m.Reconcile(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A crash of the database may lose the record of a Sandbox that starts, because its commit
// does not wait for the disk. The create may then be sent again.
func TestCreateWhoseRecordIsLost(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.store.forgets.Store(true)
		if _, err := w.m.Create(t.Context(), "t", sandbox.CreateRequest{}); !errors.Is(err, sandbox.Unavailable) || errors.Is(err, sandbox.NotFound) {
			t.Errorf("Create = %v, want Unavailable", err)
		}
		w.create("t", sandbox.CreateRequest{})
	})
}

// The database goes away during a change, before each of its reads and writes of the Sandbox.
// The client is told to repeat the change exactly if it had no effect.
func TestAdviceWhileTheDatabaseGoesAway(t *testing.T) {
	value := "b"
	for name, change := range map[string]func(ctx context.Context, m *session.Manager, id string) error{
		"Update": func(ctx context.Context, m *session.Manager, id string) error {
			_, err := m.Update(ctx, "t", id, sandbox.Change{Metadata: map[string]*string{"a": &value}})
			return err
		},
		"End": func(ctx context.Context, m *session.Manager, id string) error {
			_, err := m.End(ctx, "t", id, sandbox.CauseReleased)
			return err
		},
		"SetTimeout": func(ctx context.Context, m *session.Manager, id string) error {
			_, err := m.SetTimeout(ctx, "t", id, time.Minute)
			return err
		},
		"Touch": func(ctx context.Context, m *session.Manager, id string) error {
			_, err := m.Touch(ctx, "t", id)
			return err
		},
		"Pause": func(ctx context.Context, m *session.Manager, id string) error {
			_, err := m.Pause(ctx, "t", id, false)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				advised := 0
				for n := int64(0); ; n++ {
					sb := w.create("t", sandbox.CreateRequest{})
					left := new(atomic.Int64)
					left.Store(n)
					w.store.lasts.Store(left)
					err := change(t.Context(), w.m, sb.ID)
					w.store.lasts.Store(nil)
					if err == nil {
						break
					}
					codetest.Want(t, "the change", err, sandbox.Unavailable)
					var told *sandbox.Error
					advises := errors.As(err, &told) && told.RetryAfter > 0
					if unchanged := w.record(sb.ID).Version == sb.Version; advises != unchanged {
						t.Errorf("after %d reads and writes the client is told to repeat it: %v, and it had no effect: %v", n, advises, unchanged)
					}
					if !advises {
						break // later failures come after an effect too
					}
					advised++
				}
				if advised < 2 {
					t.Errorf("it may be repeated in %d cases only", advised)
				}
				if err := w.m.Reconcile(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
