package rest_test

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

func TestSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var v gatewaytest.View
	f.Do("POST", "/api/v1/sessions", `{"name":"one","timeout_seconds":60.5,"network":"none","metadata":{"team":"blue"},"env":{"A":"b"},"resources":{"cpus":0.5,"memory_mb":1024},"on_timeout":"end","if_exists":"fail"}`).Into(t, 201, &v)
	if v.Name != "one" || v.TimeoutSeconds != 60.5 || v.Network != "none" || v.Shape.CPUs != 0.5 || v.Shape.MemoryMB != 1024 {
		t.Errorf("created %+v", v)
	}
	if a := f.Do("POST", "/api/v1/sessions", `{"name":"one"}`); a.Status != 409 {
		t.Errorf("the same name: %d %s", a.Status, a.Body)
	}
	var byName gatewaytest.View
	f.Do("GET", "/api/v1/sessions/one", "").Into(t, 200, &byName)
	if byName.SandboxID != v.SandboxID {
		t.Errorf("by name: %+v", byName)
	}
	f.Do("POST", "/api/v1/sessions/one/timeout", `{"timeout_seconds":900}`).Into(t, 200, &byName)
	if byName.TimeoutSeconds != 900 {
		t.Errorf("timeout: %+v", byName)
	}
	for range 3 {
		f.Do("POST", "/api/v1/sessions", "{}").Into(t, 201, &gatewaytest.View{})
	}
	var ended gatewaytest.View
	f.Do("DELETE", "/api/v1/sessions/"+v.SandboxID, "").Into(t, 200, &ended)
	if ended.Ended == nil || ended.Ended.Cause != "released" {
		t.Errorf("deleted %+v", ended)
	}
	if a := f.Do("DELETE", "/api/v1/sessions/"+v.SandboxID, ""); a.Status != 404 {
		t.Errorf("deleted twice: %d", a.Status)
	}
	f.Do("GET", "/api/v1/sessions/"+v.SandboxID, "").Into(t, 200, &ended)
	if ended.State != "ended" {
		t.Errorf("read after its end: %+v", ended)
	}
	for _, path := range []string{"/api/v1/execute"} {
		if a := f.Do("POST", path, `{"sandbox_id":"`+v.SandboxID+`","code":"x","language":"bash"}`); a.Status != 409 || !bytes.Contains(a.Body, []byte("released")) {
			t.Errorf("%s after the end: %d %s", path, a.Status, a.Body)
		}
	}
}

// The answer to who takes a Sandbox leaves before the connection to its Guest is
// opened; other answers leave by themselves.
func TestAnswerLeavesFirst(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ask := func(method, path, body string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+f.Token)
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		f.Server.ServeHTTP(w, r)
		return w
	}
	taken := ask("POST", "/api/v1/sandbox/acquire", "{}")
	if length := taken.Header().Get("Content-Length"); taken.Code != 200 || !taken.Flushed || length != strconv.Itoa(taken.Body.Len()) {
		t.Errorf("acquire: %d, sent: %t, %q of %d bytes", taken.Code, taken.Flushed, length, taken.Body.Len())
	}
	gatewaytest.WaitFor(t, "the connection to the guest", func() bool { return f.Guest.Warmed.Load() })
	if listed := ask("GET", "/api/v1/sessions", ""); listed.Code != 200 || listed.Flushed {
		t.Errorf("list: %d, sent ahead: %t", listed.Code, listed.Flushed)
	}
}

func TestUpdateSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var v struct {
		gatewaytest.View
		Metadata  map[string]string `json:"metadata"`
		Idle      float64           `json:"idle_timeout_seconds"`
		User      string            `json:"user"`
		Resources struct {
			CPUs     float64 `json:"cpus"`
			MemoryMB int64   `json:"memory_mb"`
			Pids     int64   `json:"pids"`
		} `json:"resources"`
	}
	f.Do("POST", "/api/v1/sessions", `{"name":"one","metadata":{"a":"1","b":"2"},"idle_timeout_seconds":60,"user":"root"}`).Into(t, 201, &v)
	if v.Idle != 60 || v.User != "root" || v.Resources.MemoryMB != 512 {
		t.Errorf("created %+v", v)
	}
	v.Metadata, v.Idle = nil, 0 // what is not in the answer
	f.Do("PATCH", "/api/v1/sessions/one", `{"name":"two","metadata":{"a":null,"c":"3"},"network":"none","timeout_seconds":90,
		"idle_timeout_seconds":0,"resources":{"cpus":2,"memory_mb":128,"pids":64,"disk_mb":4096},"template":"base","env":{"K":"v"}}`).Into(t, 200, &v)
	if v.Name != "two" || v.Idle != 0 || len(v.Metadata) != 2 || v.Metadata["c"] != "3" || v.Network != "none" || v.TimeoutSeconds != 90 ||
		v.Resources.CPUs != 2 || v.Resources.MemoryMB != 128 || v.Resources.Pids != 64 || v.Shape.MemoryMB != 512 {
		t.Errorf("updated %+v", v)
	}
	f.Do("PATCH", "/api/v1/sessions/two", `{}`).Into(t, 200, &v)
	v.Name, v.User, v.Idle = "", "", 0
	f.Do("PATCH", "/api/v1/sessions/two", `{"name":null,"user":null,"idle_timeout_seconds":5.5}`).Into(t, 200, &v)
	if v.Name != "" || v.User != "" || v.Idle != 5.5 {
		t.Errorf("with nulls %+v", v)
	}
	v.Idle = 0
	f.Do("PATCH", "/api/v1/sessions/"+v.SandboxID, `{"idle_timeout_seconds":null}`).Into(t, 200, &v)
	if v.Idle != 0 {
		t.Errorf("without an idle timeout %+v", v)
	}
	f.Do("POST", "/api/v1/sessions/"+v.SandboxID+"/touch", "").Into(t, 200, &v)

	var typed gatewaytest.View
	f.Do("POST", "/api/v1/sessions", `{"resources":{"type":"basic","disk_mb":100}}`).Into(t, 201, &typed)
	if typed.Shape.CPUs != 0.25 || typed.Shape.MemoryMB != 1024 {
		t.Errorf("of the type basic: %+v", typed)
	}

	var ruled struct {
		Network struct {
			Mode        string
			Allow, Deny []string
		}
	}
	f.Do("PATCH", "/api/v1/sessions/"+v.SandboxID, `{"network":{"mode":"none","allow":["A.Example.","a.example","1.2.3.4/32:80"]}}`).Into(t, 200, &ruled)
	if n := ruled.Network; n.Mode != "none" || !slices.Equal(n.Allow, []string{"a.example", "1.2.3.4:80"}) || n.Deny != nil {
		t.Errorf("ruled %+v", n)
	}

	var first, again gatewaytest.View
	f.Do("POST", "/api/v1/sessions", `{"name":"shared","if_exists":"return"}`).Into(t, 201, &first)
	f.Do("POST", "/api/v1/sessions", `{"name":"shared","if_exists":"return"}`).Into(t, 200, &again)
	f.Do("POST", "/api/v1/sandbox/acquire", `{"name":"shared","if_exists":"return"}`).Into(t, 200, &again)
	if first.SandboxID != again.SandboxID {
		t.Errorf("%s and %s have one name", first.SandboxID, again.SandboxID)
	}
}

func TestListSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, body := range []string{`{"metadata":{"team":"blue","n":"1"}}`, `{"metadata":{"team":"blue"}}`, `{}`} {
		f.Do("POST", "/api/v1/sessions", body).Into(t, 201, &gatewaytest.View{})
	}
	f.Do("DELETE", "/api/v1/sessions/"+f.Acquire(), "")
	type page struct {
		Sessions []gatewaytest.View
		Next     string `json:"next_cursor"`
	}
	for query, want := range map[string]int{
		"":                                         3,
		"?metadata[team]=blue":                     2,
		"?metadata%5Bteam%5D=blue&metadata[n]=1":   1,
		"?metadata[team]=red":                      0,
		"?state=running":                           3,
		"?state=ended":                             1,
		"?state=running,ended":                     4,
		"?state=paused&metadata[team]=blue":        0,
		"?limit=2":                                 2,
		"?limit=100&state=running&metadata[n]=1":   1,
		"?metadata[te[am]=x":                       0,
		"?metadata[team]=blue&state=running,ended": 2,
	} {
		var p page
		f.Do("GET", "/api/v1/sessions"+query, "").Into(t, 200, &p)
		if len(p.Sessions) != want {
			t.Errorf("%s: %d sessions, want %d", query, len(p.Sessions), want)
		}
	}
	if a := f.Do("GET", "/api/v1/sessions?cursor=zzzzzzzzzzzzzzzzzzzzz&limit=1", ""); a.Status != 400 {
		t.Errorf("a cursor that is none: %d %s", a.Status, a.Body)
	}
	seen := map[string]bool{}
	for cursor := ""; ; {
		var p page
		f.Do("GET", "/api/v1/sessions?limit=2&cursor="+cursor, "").Into(t, 200, &p)
		for _, v := range p.Sessions {
			seen[v.SandboxID] = true
		}
		if cursor = p.Next; cursor == "" {
			break
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d sessions on all pages", len(seen))
	}
}

func TestStats(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Acquire()
	f.Sandboxes.IdleCounts = map[sandbox.TenantID]int{"dev:test": 1}
	type depths struct{ Active, Idle, Paused int }
	var stats struct {
		Sandboxes map[string]int
		Total     int
		Depths    *depths
		Pools     []struct{ Idle, Min, Max, Hits, Misses int }
		Nodes     []struct {
			Name  string
			Ready bool
		}
	}
	f.Do("GET", "/api/v1/sandbox/stats", "").Into(t, 200, &stats)
	if stats.Total != 1 || stats.Sandboxes["running"] != 1 || len(stats.Pools) != 1 || stats.Pools[0].Hits != 7 || !stats.Nodes[0].Ready {
		t.Errorf("stats %+v", stats)
	}
	if stats.Depths == nil || *stats.Depths != (depths{Idle: 1}) {
		t.Errorf("how deep they sleep: %+v", stats.Depths)
	}
	f.DoAs(f.Mint("other"), "GET", "/api/v1/sandbox/stats", "").Into(t, 200, &stats)
	if stats.Total != 0 || *stats.Depths != (depths{}) {
		t.Errorf("another tenant counts %+v", stats)
	}
}

// Only operators see the Nodes.
func TestNodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if a := f.Do("GET", "/api/v1/nodes", ""); a.Status != 403 {
		t.Errorf("a user is answered %d %s", a.Status, a.Body)
	}
	operator := f.Key("ops", sandbox.RoleOperator)
	see := func(path string) gatewaytest.Answer {
		return f.With("GET", "/api/v1/nodes"+path, "", "X-API-Key", operator)
	}
	type node struct {
		Name      string
		Ready     bool
		Reasons   []string
		Sandboxes int
		Full      bool
		Draining  bool
		Lost      bool

		MoveVolumes bool `json:"move_volumes"`

		Records struct{ Running int }
		Host    *struct {
			MemoryMB int64 `json:"memory_mb"`
		}
		Pools []struct{ Idle int }
	}
	var list struct{ Nodes []node }
	see("").Into(t, 200, &list)
	if len(list.Nodes) != 1 || list.Nodes[0].Name != "n1" || !list.Nodes[0].Ready || len(list.Nodes[0].Pools) != 1 {
		t.Errorf("nodes %+v", list)
	}
	if n := list.Nodes[0]; n.Full || n.Host == nil || n.Host.MemoryMB != 1<<20 {
		t.Errorf("its host is %+v, full: %t", n.Host, n.Full)
	}
	change := func(name, body string) gatewaytest.Answer {
		return f.With("PATCH", "/api/v1/nodes/"+name, body, "X-API-Key", operator)
	}
	if a := f.Do("PATCH", "/api/v1/nodes/n1", `{"draining":true}`); a.Status != 403 {
		t.Errorf("a user is answered %d %s", a.Status, a.Body)
	}
	for body, status := range map[string]int{`{"draining":true}`: 404, `{"lost":true}`: 404, `{"draining":"yes"}`: 400, `{"full":true}`: 400, `{}`: 404, `{"move_volumes":true}`: 400, `{"draining":false,"move_volumes":true}`: 400} {
		if a := change("none", body); a.Status != status {
			t.Errorf("%s is answered %d %s", body, a.Status, a.Body)
		}
	}
	var one node
	e := f.AuditOf(func() { change("n1", `{"draining":true,"move_volumes":true}`).Into(t, 200, &one) })
	if !one.Draining || !one.MoveVolumes || e.Detail != "draining=true move_volumes=true" {
		t.Errorf("a drain with volumes: %+v, and the audit log has %+v", one, e)
	}
	for _, draining := range []bool{true, false} {
		e := f.AuditOf(func() { change("n1", fmt.Sprintf(`{"draining":%t}`, draining)).Into(t, 200, &one) })
		if e.Target != "n1" || e.Detail != fmt.Sprint("draining=", draining) {
			t.Errorf("the audit log has %+v", e)
		}
		see("/n1").Into(t, 200, &one)
		if one.Draining != draining || one.Records.Running != 0 {
			t.Errorf("it drains: %t, of %+v", draining, one)
		}
	}
	f.Nodes.Lock()
	f.Nodes.Silent = true
	f.Nodes.Unlock()
	one = node{}
	see("/n1").Into(t, 200, &one)
	if one.Ready || len(one.Reasons) != 1 || one.Host != nil {
		t.Errorf("one that does not answer: %+v", one)
	}
	if a := change("n1", `{"lost":true,"draining":true}`); a.Status != 409 || !strings.Contains(string(a.Body), "renews its lease") {
		t.Errorf("a node with a lease is declared lost: %d %s", a.Status, a.Body)
	}
	if see("/n1").Into(t, 200, &one); one.Draining {
		t.Error("a refused change took effect in part")
	}
	records, err := f.Store.Nodes(t.Context())
	if err == nil {
		_, err = f.Store.RenewLease(t.Context(), records[0], -time.Second)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, lost := range []bool{true, false} {
		e := f.AuditOf(func() { change("n1", fmt.Sprintf(`{"lost":%t,"draining":false}`, lost)).Into(t, 200, &one) })
		if e.Detail != fmt.Sprintf("lost=%t draining=false", lost) {
			t.Errorf("the audit log has %+v", e)
		}
		if see("/n1").Into(t, 200, &one); one.Lost != lost {
			t.Errorf("it is lost: %t, of %+v", lost, one)
		}
	}
	if a := see("/n2"); a.Status != 404 {
		t.Errorf("one that is not there: %d %s", a.Status, a.Body)
	}
}
