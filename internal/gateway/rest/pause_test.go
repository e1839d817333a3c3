package rest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// pausable is a Sandbox in the answers of this file.
type pausable struct {
	gatewaytest.View
	OnTimeout  string `json:"on_timeout"`
	AutoResume bool   `json:"auto_resume"`
	SnapshotID string `json:"snapshot_id"`
	Timeline   int64  `json:"timeline"`

	Checkpoint   float64  `json:"checkpoint_every_seconds"`
	RestoredFrom string   `json:"restored_from"`
	Lost         *float64 `json:"lost_seconds"`
}

func TestPauseOverREST(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var v pausable
	f.Do("POST", "/api/v1/sandbox/acquire", `{}`).Into(t, 200, &v)
	if v.OnTimeout != "end" || !v.AutoResume || v.Timeline != 1 {
		t.Errorf("acquired %+v", v)
	}
	f.Do("POST", "/api/v1/sessions", `{"name":"stay","auto_resume":false,"on_timeout":"pause_files"}`).Into(t, 201, &v)
	if v.OnTimeout != "pause_files" || v.AutoResume {
		t.Errorf("created %+v", v)
	}
	f.Do("POST", "/api/v1/sessions", `{"name":"web"}`).Into(t, 201, &v)
	if v.OnTimeout != "pause" || !v.AutoResume {
		t.Errorf("created %+v", v)
	}
	for body, filesOnly := range map[string]bool{`{"memory":false}`: true, `{"memory":true}`: false, `{}`: false} {
		f.Do("POST", "/api/v1/sessions/web/pause", body).Into(t, 200, &v)
		if v.State != "paused" || f.Sandboxes.FilesOnly != filesOnly {
			t.Errorf("%s: %+v, files only: %v", body, v, f.Sandboxes.FilesOnly)
		}
	}
	f.Do("POST", "/api/v1/sessions/web/resume", ``).Into(t, 200, &v)
	if v.State != "running" {
		t.Errorf("resumed %+v", v)
	}
	f.Do("PATCH", "/api/v1/sessions/web", `{"on_timeout":"end","auto_resume":false}`).Into(t, 200, &v)
	if v.OnTimeout != "end" || v.AutoResume {
		t.Errorf("changed %+v", v)
	}
}

// A Sandbox shows its checkpoint interval, and its last return to a checkpoint with the
// time that was lost.
func TestCheckpointsOverREST(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var v pausable
	f.Do("POST", "/api/v1/sessions", `{"name":"long","checkpoint_every_seconds":60}`).Into(t, 201, &v)
	if v.Checkpoint != 60 || v.RestoredFrom != "" || v.Lost != nil {
		t.Errorf("created %+v", v)
	}
	id := v.SandboxID
	from := sandbox.NewSnapshotID()
	s := f.Sandboxes.Record(id)
	s.Restored = sandbox.Restored{From: from, Lost: 1500 * time.Millisecond, Times: 1}
	if _, err := f.Store.UpdateSandbox(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	f.Do("PATCH", "/api/v1/sessions/long", `{"checkpoint_every_seconds":86400}`).Into(t, 200, &v)
	if v.Checkpoint != 86400 || v.RestoredFrom != from || v.Lost == nil || *v.Lost != 1.5 {
		t.Errorf("restored %+v", v)
	}
	for _, off := range []string{"null", "0"} {
		f.Do("PATCH", "/api/v1/sessions/long", `{"checkpoint_every_seconds":10}`).Into(t, 200, &v)
		v = pausable{}
		f.Do("PATCH", "/api/v1/sessions/long", `{"checkpoint_every_seconds":`+off+`}`).Into(t, 200, &v)
		if v.Checkpoint != 0 {
			t.Errorf("%s leaves %+v", off, v)
		}
	}
}

// A resume may leave memory behind.
func TestResumeWithoutMemory(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Do("POST", "/api/v1/sessions", `{"name":"web"}`).Into(t, 201, &gatewaytest.View{})
	for i, body := range []string{`{}`, `{"memory":true}`, `{"memory":false}`} {
		var v gatewaytest.View
		f.Do("POST", "/api/v1/sessions/web/pause", `{}`).Into(t, 200, &v)
		f.Do("POST", "/api/v1/sessions/web/resume", body).Into(t, 200, &v)
		if v.State != "running" || f.Sandboxes.Reboots != i/2 {
			t.Errorf("%s: it is %s, and rebooted %d times", body, v.State, f.Sandboxes.Reboots)
		}
	}
	if a := f.Do("POST", "/api/v1/sessions/web/resume", `{"files_only":true}`); a.Status != 400 {
		t.Errorf("an unknown field: %d %s", a.Status, a.Body)
	}
}

// A paused Sandbox wakes for a request of any API, unless it is to stay paused.
func TestRequestsWakeWhatIsPaused(t *testing.T) {
	f := newFixture(t)
	id := f.WithProcesses()
	for name, ask := range map[string]func() gatewaytest.Answer{
		"execute": func() gatewaytest.Answer {
			return f.Do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"x","language":"bash"}`)
		},
		"processes": func() gatewaytest.Answer { return f.Do("GET", "/api/v1/processes?sandbox_id="+id, "") },
		"contexts":  func() gatewaytest.Answer { return f.Do("GET", "/api/v1/contexts?sandbox_id="+id, "") },
		"files":     func() gatewaytest.Answer { return f.Do("GET", "/api/v1/files/list?path=/&sandbox_id="+id, "") },
	} {
		f.Do("POST", "/api/v1/sessions/"+id+"/pause", `{}`).Into(t, 200, &gatewaytest.View{})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if a := ask(); a.Status == 409 || a.Status == 404 {
					t.Errorf("%s of a paused one: %d %s", name, a.Status, a.Body)
				}
			})
		}
		wg.Wait()
		var v gatewaytest.View
		if f.Do("GET", "/api/v1/sessions/"+id, "").Into(t, 200, &v); v.State != "running" {
			t.Errorf("after %s it is %s", name, v.State)
		}
		f.Do("PATCH", "/api/v1/sessions/"+id, `{"auto_resume":false}`).Into(t, 200, &v)
		f.Do("POST", "/api/v1/sessions/"+id+"/pause", `{}`).Into(t, 200, &v)
		if a := ask(); a.Status != 409 || !bytes.Contains(a.Body, []byte("resume it")) {
			t.Errorf("%s of one that stays paused: %d %s", name, a.Status, a.Body)
		}
		f.Do("PATCH", "/api/v1/sessions/"+id, `{"auto_resume":true}`).Into(t, 200, &v)
		f.Do("POST", "/api/v1/sessions/"+id+"/resume", `{}`).Into(t, 200, &v)
	}
}

func TestForkOverREST(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	noRoom := sandbox.Errorf(sandbox.Exhausted, "no room").WithCause(errors.New("secret"))
	var starts, full atomic.Int64 // of boots; from which one on there is no room
	full.Store(1000)
	f.Sandboxes.Core.Engine.Hooks.Start = func(context.Context, string) error {
		if starts.Add(1) >= full.Load() {
			return noRoom
		}
		return nil
	}
	f.Do("POST", "/api/v1/sessions", `{"name":"web"}`).Into(t, 201, &gatewaytest.View{})
	full.Store(5)
	var got struct {
		Forks []struct {
			gatewaytest.View
			Error *struct{ Code, Message string }
		}
		Failed int
	}
	f.Do("POST", "/api/v1/sessions/web/fork", `{"count":4,"metadata":{"a":null},"idle_timeout_seconds":null,"timeout_seconds":77}`).Into(t, 201, &got)
	if len(got.Forks) != 4 || got.Failed != 1 {
		t.Fatalf("forked %+v", got)
	}
	failed := 0
	for i, fork := range got.Forks {
		switch {
		case fork.Error != nil && fork.Error.Code == "exhausted" && fork.Error.Message == "no room":
			failed++
		case fork.Error != nil || fork.State != "running" || fork.TimeoutSeconds != 77:
			t.Errorf("fork %d: %+v", i, fork)
		}
	}
	if failed != 1 {
		t.Errorf("%d forks had no room: %+v", failed, got)
	}
	if a := f.Do("POST", "/api/v1/sessions/web/fork", `{"count":2}`); a.Status != 429 || bytes.Contains(a.Body, []byte("secret")) {
		t.Errorf("when none runs: %d %s", a.Status, a.Body)
	}
}

func TestSnapshotsOverREST(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var v pausable
	f.Do("POST", "/api/v1/sessions", `{"name":"web","env":{"A":"secret"}}`).Into(t, 201, &v)
	type snapshot struct {
		ID      string `json:"snapshot_id"`
		Session string `json:"session_id"`
		Parent  string `json:"parent_id"`
		Name    string
		Kept    bool
		Size    int64 `json:"size_bytes"`
		Memory  bool
		Current bool
	}
	var first, second snapshot
	f.Do("POST", "/api/v1/sessions/web/snapshots", `{"name":"first"}`).Into(t, 201, &first)
	f.Do("POST", "/api/v1/sessions/web/snapshots", `{"memory":false}`).Into(t, 201, &second)
	if first.Name != "first" || first.Session != v.SandboxID || !first.Memory || !first.Kept || second.Parent != first.ID || second.Memory || first.Size == 0 {
		t.Errorf("first %+v, second %+v", first, second)
	}
	var tree struct{ Snapshots []snapshot }
	a := f.Do("GET", "/api/v1/sessions/web/snapshots", "")
	a.Into(t, 200, &tree)
	if len(tree.Snapshots) != 2 || tree.Snapshots[0].ID != first.ID || !tree.Snapshots[1].Current || bytes.Contains(a.Body, []byte("secret")) {
		t.Errorf("the tree %s", a.Body)
	}
	var page struct{ Snapshots []snapshot }
	f.Do("GET", "/api/v1/snapshots?limit=10&session_id="+v.SandboxID, "").Into(t, 200, &page)
	if len(page.Snapshots) != 2 || page.Snapshots[0].ID != second.ID {
		t.Errorf("the list %+v", page)
	}
	f.Do("POST", "/api/v1/sessions/web/rollback", `{"snapshot_id":"`+first.ID+`"}`).Into(t, 200, &v)
	f.Do("POST", "/api/v1/sessions", `{"snapshot_id":"`+first.ID+`"}`).Into(t, 201, &v)
	var one snapshot
	f.Do("GET", "/api/v1/snapshots/"+first.ID, "").Into(t, 200, &one)
	other := f.Mint("other")
	nobodysSnapshot := []byte(sandbox.NewSnapshotID())
	for _, tt := range []struct{ method, path, body string }{
		{"GET", "/api/v1/snapshots/" + first.ID, ""},
		{"DELETE", "/api/v1/snapshots/" + first.ID, ""},
		{"POST", "/api/v1/sessions", `{"snapshot_id":"` + first.ID + `"}`},
		{"GET", "/api/v1/sessions/" + v.SandboxID + "/snapshots", ""},
		{"POST", "/api/v1/sessions/" + v.SandboxID + "/snapshots", "{}"},
		{"POST", "/api/v1/sessions/" + v.SandboxID + "/pause", "{}"},
		{"POST", "/api/v1/sessions/" + v.SandboxID + "/resume", "{}"},
		{"POST", "/api/v1/sessions/" + v.SandboxID + "/fork", "{}"},
		{"POST", "/api/v1/sessions/" + v.SandboxID + "/rollback", `{"snapshot_id":"` + first.ID + `"}`},
	} {
		absent := []byte(tt.path + tt.body)
		absent = bytes.ReplaceAll(absent, []byte(first.ID), nobodysSnapshot)
		nobody := []byte(sandbox.NewSandboxID())
		absent = bytes.ReplaceAll(absent, []byte(v.SandboxID), nobody)
		theirs := f.DoAs(other, tt.method, tt.path, tt.body)
		nobodys := f.DoAs(other, tt.method, string(absent[:len(tt.path)]), string(absent[len(tt.path):]))
		theirs.Body = bytes.ReplaceAll(theirs.Body, []byte(v.SandboxID), nobody) // each repeats what was asked for
		theirs.Body = bytes.ReplaceAll(theirs.Body, []byte(first.ID), nobodysSnapshot)
		if theirs.Status != 404 || !bytes.Equal(theirs.Body, nobodys.Body) {
			t.Errorf("%s %s of another tenant: %d %s, and of nobody %s", tt.method, tt.path, theirs.Status, theirs.Body, nobodys.Body)
		}
	}
	f.Do("DELETE", "/api/v1/snapshots/"+first.ID, "").Into(t, 200, &one)
	if a := f.Do("DELETE", "/api/v1/snapshots/"+first.ID, ""); a.Status != 404 {
		t.Errorf("deleted again: %d %s", a.Status, a.Body)
	}
}

// A repeat with the same Idempotency-Key makes no second snapshot or fork.
func TestSnapshotsTakeEffectOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Do("POST", "/api/v1/sessions", `{"name":"web"}`).Into(t, 201, &gatewaytest.View{})
	for _, path := range []string{"snapshots", "fork"} {
		var first []byte
		for i := range 3 {
			a := f.With("POST", "/api/v1/sessions/web/"+path, `{}`, "Authorization", "Bearer "+f.Token, "Idempotency-Key", "k-"+path)
			if i == 0 {
				first = a.Body
			}
			if a.Status != 201 || !bytes.Equal(a.Body, first) {
				t.Errorf("%s, time %d: %d %s, first %s", path, i, a.Status, a.Body, first)
			}
		}
	}
	kept := slices.DeleteFunc(f.Sandboxes.Snapshots(), func(s sandbox.Snapshot) bool { return !s.Kept }) // without the snapshot of the fork
	if n := len(kept); n != 1 || f.Sandboxes.Live() != 2 {
		t.Errorf("%d snapshots, %d sandboxes", n, f.Sandboxes.Live())
	}
}

// A repeat makes nothing again although the first answer was too large to store.
func TestLargeAnswersTakeEffectOnce(t *testing.T) {
	t.Parallel()
	spy := new(gatewaytest.OnceSpy)
	f := newFixture(t, func(c *gateway.Config) { spy.IdempotencyStore, c.Store = c.Store, spy })
	f.Do("POST", "/api/v1/sessions", `{"name":"web"}`).Into(t, 201, &gatewaytest.View{})
	large := `"count":100,"metadata":{"a":"` + strings.Repeat("m", 1000) + `"}}`
	for path, body := range map[string]string{
		"/api/v1/sessions/web/fork":                    `{` + large,
		"/cloudsandbox.sandbox.v1.SandboxService/Fork": `{"sandbox_id":"web",` + large,
	} {
		ask := func() gatewaytest.Answer {
			a := f.Plain("POST", path, body, "Authorization", "Bearer "+f.Token, "Content-Type", "application/json", gatewaytest.Idempotent, "k-"+path)
			if a.Status >= 300 || len(a.Body) <= 64<<10 {
				t.Fatalf("%s: %d with %d bytes: %.300s", path, a.Status, len(a.Body), a.Body)
			}
			return a
		}
		before := f.Sandboxes.Live()
		first := ask()
		made := f.Sandboxes.Live() - before
		again := ask()
		if n := f.Sandboxes.Live() - before; made < 50 || n != made {
			t.Errorf("%s: %d sandboxes, and %d after the repeat", path, made, n)
		}
		var told, repeated any
		if json.Unmarshal(first.Body, &told) != nil || json.Unmarshal(again.Body, &repeated) != nil || !reflect.DeepEqual(told, repeated) {
			t.Errorf("%s: the answers differ", path)
		}
	}
	if n := len(spy.Answers()); n != 0 {
		t.Errorf("%d answers are stored", n)
	}
}

func TestScopesOfSnapshots(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	reader := f.Key("dev:test", sandbox.RoleDeveloper, sandbox.ScopeRead)
	for path, want := range map[string]int{"/snapshots": 200, "/pause": 403, "/resume": 403, "/fork": 403, "/rollback": 403} {
		method := map[int]string{200: "GET", 403: "POST"}[want]
		if a := f.DoAs(reader, method, "/api/v1/sessions/"+id+path, ""); a.Status != want {
			t.Errorf("%s with a key that may read: %s", path, fmt.Sprint(a.Status))
		}
	}
	if a := f.DoAs(reader, "GET", "/api/v1/snapshots", ""); a.Status != 200 {
		t.Errorf("the list with a key that may read: %d", a.Status)
	}
}
