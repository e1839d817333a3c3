package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// since returns the entries after the first n, in a short form.
func (f *fixture) since(n int) (out []string) {
	f.T.Helper()
	for _, e := range f.Audit()[n:] {
		out = append(out, fmt.Sprintf("%s %s %d %s", e.Tenant, e.Operation, e.Status, e.Code))
	}
	return out
}

// The log has all operations that may change something, and all refused ones. It has no
// reads.
func TestWhatIsRecorded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) {
		c.Limits = ratelimit.Rules{ratelimit.Token: {PerSecond: 0.001, Burst: 4}}
	})
	id := f.Acquire()
	reader := f.Key("acme", sandbox.RoleDeveloper, sandbox.ScopeRead)
	minter := f.Key("acme", sandbox.RoleAdmin)
	bearer := "Bearer " + f.Token
	ask := func(method, path, body string, headers ...string) func() {
		return func() { f.With(method, path, body, headers...) }
	}
	for _, tt := range []struct {
		name string
		do   func()
		want []string
	}{
		{"a create", ask("POST", "/api/v1/sessions", `{"name":"a"}`, "Authorization", bearer), []string{"dev:test createSession 201 "}},
		{"one that fails", ask("POST", "/api/v1/sessions", `{"name":"a"}`, "Authorization", bearer), []string{"dev:test createSession 409 conflict"}},
		{"a malformed one", ask("POST", "/api/v1/sessions", `{`, "Authorization", bearer), []string{"dev:test createSession 400 invalid"}},
		{"a read", ask("GET", "/api/v1/sessions/"+id, "", "Authorization", bearer), nil},
		{"the head of one", ask("HEAD", "/api/v1/sessions/"+id, "", "Authorization", bearer), nil},
		{"a question by POST", ask("POST", "/api/v1/files/search", `{"sandbox_id":"`+id+`","pattern":"x"}`, "Authorization", bearer), nil},
		{"code", ask("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"x","language":"python"}`, "Authorization", bearer), []string{"dev:test execute 200 "}},
		{"no such path", ask("POST", "/api/v1/nothing", ``, "Authorization", bearer), nil},
		{"no such method", ask("PUT", "/api/v1/sessions", ``, "Authorization", bearer), nil},
		{"no credential", ask("POST", "/api/v1/sessions", `{}`), nil},
		{"a wrong key", ask("GET", "/api/v1/sessions", "", "X-API-Key", "e2b_"+strings.Repeat("0", 40)), []string{" credentialRefused 401 unauthenticated"}},
		{"a wrong token", ask("POST", "/api/v1/sessions", "{}", "Authorization", "Bearer x.y.z"), []string{" credentialRefused 401 unauthenticated"}},
		{"a wrong key for a token", ask("POST", "/api/v1/auth/token", `{"user_id":"a","role":"user"}`, "X-API-Key", "x"), []string{" credentialRefused 401 unauthenticated"}},
		{"wrong ones without end", ask("GET", "/api/v1/sessions", "", "X-API-Key", "x"), nil}, // 429 by then
		{"a false signature", ask("GET", "/api/v1/files?sandbox_id="+id+"&path=a&expires=1&key=k&signature=x", ""), []string{" credentialRefused 403 denied"}},
		{"what a key may not", ask("POST", "/api/v1/sessions", `{}`, "X-API-Key", reader), []string{"acme createSession 403 denied"}},
		{"what a key may not see", ask("GET", "/api/v1/keys", ``, "X-API-Key", reader), []string{"acme listKeys 403 denied"}},
		{"E2B", func() { f.E2B(minter, "POST", "/sandboxes", `{"templateID":"base"}`) }, []string{"acme POST /sandboxes 201 "}},
		{"E2B that fails", func() { f.E2B(minter, "DELETE", "/sandboxes/i00000000000000000000", "") }, []string{"acme DELETE /sandboxes/{id} 404 not_found"}},
		{"a page", ask("GET", "/docs", ""), nil},
	} {
		n := len(f.Audit())
		tt.do()
		if got := f.since(n); !slices.Equal(got, tt.want) {
			t.Errorf("%s is recorded as %q, want %q", tt.name, got, tt.want)
		}
	}
}

// An entry says all that it should.
func TestEntries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	minter := f.Key("acme", sandbox.RoleAdmin)
	minterID := strings.TrimPrefix(f.AuditOf(func() {
		f.With("POST", "/api/v1/auth/token", `{"user_id":"joe","role":"user"}`, "X-API-Key", minter)
	}).User, "key:")
	last := f.Audit()[0]
	if last.Tenant != "acme" || last.Key != minterID || last.Role != sandbox.RoleAdmin || last.Operation != "createToken" || last.Target != "acme/joe" {
		t.Errorf("a token: %+v", last)
	}
	var made gatewaytest.KeyView
	e := f.AuditOf(func() {
		f.With("POST", "/api/v1/keys", `{"name":"n"}`, "X-API-Key", minter, "X-Request-Id", "mine-1").Into(t, 201, &made)
	})
	if e.Target != made.ID || e.Request != "mine-1" || e.Remote != "127.0.0.1" || e.Sandbox != "" || time.Since(e.At) > time.Minute {
		t.Errorf("a key: %+v", e)
	}
	var sb gatewaytest.View
	e = f.AuditOf(func() { f.Do("POST", "/api/v1/sessions", `{"name":"box"}`).Into(t, 201, &sb) })
	if e.Target != sb.SandboxID || e.Sandbox != sb.SandboxID || e.User != "test" || e.Role != sandbox.RoleDeveloper || e.Key != "" {
		t.Errorf("a session: %+v", e)
	}
	for name, ask := range map[string]func(){
		"by name":      func() { f.Do("POST", "/api/v1/sessions/box/touch", "") },
		"in the body":  func() { f.Do("POST", "/api/v1/execute", `{"sandbox_id":"box","code":"x","language":"python"}`) },
		"in the query": func() { f.Do("PUT", "/api/v1/files?sandbox_id=box&path=a", "x") },
	} {
		if e := f.AuditOf(ask); e.Sandbox != sb.SandboxID || e.Target != sb.SandboxID {
			t.Errorf("a sandbox %s: %+v", name, e)
		}
	}
	if e := f.AuditOf(func() { f.Do("POST", "/api/v1/sessions/"+strings.Repeat("a", 999)+"/touch", "") }); len(e.Target) != sandbox.MaxAuditText {
		t.Errorf("a long name: %+v", e)
	}
	snapshot := f.AuditOf(func() { f.Do("POST", "/api/v1/sessions/box/snapshots", `{"name":"s"}`) })
	if !sandbox.ValidSnapshotID(snapshot.Target) || snapshot.Sandbox != sb.SandboxID {
		t.Errorf("a snapshot: %+v", snapshot)
	}
	if e := f.AuditOf(func() { f.Do("GET", "/api/v1/snapshots/"+snapshot.Target+"/export", "") }); e.Operation != "exportSnapshot" || e.Target != snapshot.Target {
		t.Errorf("an export: %+v", e)
	}
	if e := f.AuditOf(func() { f.Do("POST", "/api/v1/sessions/box/fork", `{"count":2}`) }); e.Target != sb.SandboxID || len(strings.Fields(e.Detail)) != 3 {
		t.Errorf("two forks: %+v", e)
	}
	f.Do("DELETE", "/api/v1/sessions/box", "")
	for _, e := range f.Audit() {
		if text := fmt.Sprintf("%+v", e); strings.Contains(text, minter) || strings.Contains(text, made.Secret) || strings.Contains(text, f.Token) {
			t.Errorf("a secret is in %s", text)
		}
	}
}

func TestCallsAreRecorded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addr, stop := f.Serve()
	defer stop()
	reader := f.Key("acme", sandbox.RoleDeveloper, sandbox.ScopeRead)
	for protocol := range gatewaytest.Protocols {
		c, r := gatewaytest.SandboxClient(t, "http://"+addr.String(), f.Token, protocol), gatewaytest.SandboxClient(t, "http://"+addr.String(), reader, protocol)
		n := len(f.Audit())
		made, err := c.Create(t.Context(), connect.NewRequest(&sandboxv1.CreateRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		id := made.Msg.Sandbox.SandboxId
		_, _ = c.Get(t.Context(), connect.NewRequest(&sandboxv1.GetRequest{SandboxId: id}))
		_, _ = c.End(t.Context(), connect.NewRequest(&sandboxv1.EndRequest{SandboxId: "none"}))
		_, _ = r.End(t.Context(), connect.NewRequest(&sandboxv1.EndRequest{SandboxId: id}))
		stream, err := c.Execute(t.Context(), connect.NewRequest(&sandboxv1.ExecuteRequest{SandboxId: "none", Code: "x", Language: "bash"}))
		if err == nil {
			for stream.Receive() {
			}
			_ = stream.Close()
		}
		const service = "cloudsandbox.sandbox.v1.SandboxService/"
		want := []string{
			"dev:test " + service + "Create 200 ", "dev:test " + service + "End 404 not_found",
			"acme " + service + "End 403 denied", "dev:test " + service + "Execute 404 not_found",
		}
		if got := f.since(n); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", protocol, got, want)
		}
		if e := f.Audit()[n]; e.Target != id || e.Sandbox != id {
			t.Errorf("%s: %+v", protocol, e)
		}
	}
}

// A repeat is an entry of its own: it was asked for again.
func TestRepeatsAreRecorded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 2 {
		if e := f.AuditOf(func() {
			f.With("POST", "/api/v1/sessions", "{}", "Authorization", "Bearer "+f.Token, gatewaytest.Idempotent, "k")
		}); e.Status != 201 || e.Operation != "createSession" {
			t.Errorf("%+v", e)
		}
	}
}

// failingAudit is a log that cannot be written while fails is set.
type failingAudit struct {
	sandbox.AuditStore
	sandbox.IdempotencyStore
	fails atomic.Bool
	tried atomic.Int64
}

// under makes a gateway use the log.
func (a *failingAudit) under(c *gateway.Config) {
	a.AuditStore, a.IdempotencyStore = c.Audit, c.Store
	c.Audit, c.Store = a, a
}

func (a *failingAudit) FinishIdempotent(ctx context.Context, o sandbox.IdempotencyRecord, e sandbox.AuditEntry, started ...string) (sandbox.AuditMark, error) {
	if a.fails.Load() {
		return sandbox.AuditMark{}, errors.New("the disk is full of it")
	}
	return a.IdempotencyStore.FinishIdempotent(ctx, o, e, started...)
}

func (a *failingAudit) AppendAudit(ctx context.Context, e sandbox.AuditEntry, started ...string) (sandbox.AuditMark, error) {
	a.tried.Add(1)
	if a.fails.Load() {
		return sandbox.AuditMark{}, errors.New("the disk is full of it")
	}
	return a.AuditStore.AppendAudit(ctx, e, started...)
}

// While the log cannot be written, no client gets an answer about a change. Once the
// failure is known, nothing changes by any API.
func TestNothingChangesUnrecorded(t *testing.T) {
	t.Parallel()
	for _, door := range []struct {
		name string
		ask  func(t *testing.T, f *fixture, url, id string) (status int, answer string)
	}{
		{"a create", func(_ *testing.T, f *fixture, _, _ string) (int, string) {
			return statusOf(f.Do("POST", "/api/v1/sessions", "{}"))
		}},
		{"an end without an answer", func(_ *testing.T, f *fixture, _, id string) (int, string) {
			return statusOf(f.Do("DELETE", "/api/v1/files?path=a&sandbox_id="+id, ""))
		}},
		{"one with a key", func(_ *testing.T, f *fixture, _, _ string) (int, string) {
			return statusOf(f.With("POST", "/api/v1/sessions", "{}", "Authorization", "Bearer "+f.Token, gatewaytest.Idempotent, "k"))
		}},
		{"a stream", func(_ *testing.T, f *fixture, _, id string) (int, string) {
			return statusOf(f.Do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"x","language":"python","stream":true}`))
		}},
		{"E2B", func(_ *testing.T, f *fixture, _, _ string) (int, string) {
			return statusOf(f.E2B(f.Key("dev:test", sandbox.RoleDeveloper), "POST", "/sandboxes", `{"templateID":"base"}`))
		}},
		{"a token", func(_ *testing.T, f *fixture, _, _ string) (int, string) {
			return statusOf(f.DoAs("", "POST", "/api/v1/auth/token", `{"user_id":"a","role":"user"}`))
		}},
		{"connect", callCreate("connect")},
		{"connect json", callCreate("connect json")},
		{"grpc", callCreate("grpc")},
		{"grpc-web", callCreate("grpc-web")},
	} {
		t.Run(door.name, func(t *testing.T) {
			log := &failingAudit{}
			f := newFixture(t, log.under)
			addr, stop := f.Serve()
			defer stop()
			id := f.Acquire()
			log.fails.Store(true)
			live := f.Sandboxes.Live()
			if status, answer := door.ask(t, f, "http://"+addr.String(), id); status != 503 || !strings.Contains(answer, "audit log") {
				t.Errorf("it is answered with %d %s", status, answer)
			}
			if logs := f.Logs.String(); !strings.Contains(logs, "writing an audit entry failed") || strings.Contains(logs, f.Token) {
				t.Errorf("the log says %s", logs)
			}
			changed, tried := f.Sandboxes.Live()-live, log.tried.Load()
			for range 3 {
				if status, _ := door.ask(t, f, "http://"+addr.String(), id); status != 503 {
					t.Errorf("another is answered with %d", status)
				}
			}
			if f.Sandboxes.Live() != live+changed {
				t.Error("something changed while it could not be recorded")
			}
			if a := f.Do("GET", "/api/v1/sessions", ""); a.Status != 200 {
				t.Errorf("a read: %d", a.Status)
			}
			if n := log.tried.Load() - tried; n > 3 {
				t.Errorf("the log was tried %d times at once", n)
			}
		})
	}
}

// losing is a log in a database that has lost the record of each Sandbox that starts.
type losing struct {
	sandbox.AuditStore
	sandbox.IdempotencyStore
}

func (l losing) FinishIdempotent(ctx context.Context, o sandbox.IdempotencyRecord, e sandbox.AuditEntry, started ...string) (sandbox.AuditMark, error) {
	if len(started) > 0 {
		return sandbox.AuditMark{}, sandbox.LostRecord()
	}
	return l.IdempotencyStore.FinishIdempotent(ctx, o, e)
}

func (l losing) AppendAudit(ctx context.Context, e sandbox.AuditEntry, started ...string) (sandbox.AuditMark, error) {
	if len(started) > 0 {
		return sandbox.AuditMark{}, sandbox.LostRecord()
	}
	return l.AuditStore.AppendAudit(ctx, e)
}

// No client gets a Sandbox whose record a crash of the database has lost. The log has the
// failure.
func TestStartedSandboxIsLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) {
		l := losing{c.Audit, c.Store}
		c.Audit, c.Store = l, l
	})
	addr, stop := f.Serve()
	defer stop()
	for name, ask := range map[string]func() (int, string){
		"a create": func() (int, string) { return statusOf(f.Do("POST", "/api/v1/sessions", "{}")) },
		"with a key": func() (int, string) {
			return statusOf(f.With("POST", "/api/v1/sessions", "{}", "Authorization", "Bearer "+f.Token, gatewaytest.Idempotent, "k"))
		},
		"acquire": func() (int, string) { return statusOf(f.Do("POST", "/api/v1/sandbox/acquire", `{"name":"a"}`)) },
		"E2B": func() (int, string) {
			return statusOf(f.E2B(f.Key("dev:test", sandbox.RoleDeveloper), "POST", "/sandboxes", `{"templateID":"base"}`))
		},
		"connect": func() (int, string) { return callCreate("connect")(t, f, "http://"+addr.String(), "") },
	} {
		n := len(f.Audit())
		if status, answer := ask(); status != http.StatusServiceUnavailable || !strings.Contains(answer, "lost the record") {
			t.Errorf("%s is answered with %d %s", name, status, answer)
		}
		if got := f.since(n); len(got) == 0 || !strings.HasSuffix(got[len(got)-1], " 503 unavailable") {
			t.Errorf("%s is recorded as %q", name, got)
		}
	}
	if strings.Contains(f.Logs.String(), "writing an audit entry failed") {
		t.Error("the log counts as failing")
	}
}

func statusOf(a gatewaytest.Answer) (int, string) { return a.Status, string(a.Body) }

func callCreate(protocol string) func(*testing.T, *fixture, string, string) (int, string) {
	return func(t *testing.T, f *fixture, url, _ string) (int, string) {
		_, err := gatewaytest.SandboxClient(t, url, f.Token, protocol).Create(t.Context(), connect.NewRequest(&sandboxv1.CreateRequest{}))
		if code, failure := gatewaytest.CodeOf(err); code == sandbox.Unavailable {
			return 503, failure.GetMessage()
		}
		return 200, fmt.Sprint(err)
	}
}

// A terminal does not open unrecorded either.
func TestNoTerminalUnrecorded(t *testing.T) {
	log := &failingAudit{}
	f := newFixture(t, log.under)
	id := f.WithProcesses()
	p := f.StartProcess(id, `"command":"cat"`)
	addr, stop := f.Serve()
	defer stop()
	log.fails.Store(true)
	conn, resp, err := websocket.Dial(t.Context(), "http://"+addr.String()+"/api/v1/processes/"+p.ID+"/attach?sandbox_id="+id, &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + f.Token}},
	})
	if err == nil {
		_ = conn.CloseNow()
		t.Fatal("it opened")
	}
	if resp == nil || resp.StatusCode != 503 {
		t.Errorf("it is answered with %v, %v", resp, err)
	}
}

// A log that works again says what it lacks, and changes are let in again.
func TestRecordingResumes(t *testing.T) {
	t.Parallel()
	log := &failingAudit{}
	f := newFixture(t, log.under)
	log.fails.Store(true)
	f.Do("POST", "/api/v1/sessions", "{}")
	log.fails.Store(false)
	deadline := time.Now().Add(time.Minute)
	for f.Do("POST", "/api/v1/sessions", "{}").Status != 201 {
		if time.Now().After(deadline) {
			t.Fatal("it never resumes")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if got := f.since(0); !slices.Equal(got, []string{" auditResumed 0 ", "dev:test createSession 201 "}) {
		t.Errorf("the log has %q", got)
	}
	if e := f.Audit()[0]; !strings.HasPrefix(e.Detail, "1 ") {
		t.Errorf("%+v", e)
	}
}

type auditAnswer struct {
	Entries []struct {
		At, User, Role, Operation, Target, Outcome, Hash, Code string
		KeyID                                                  string `json:"key_id"`
		SandboxID                                              string `json:"sandbox_id"`
		RequestID                                              string `json:"request_id"`
		Status                                                 int
	}
	Next string `json:"next_cursor"`
}

func (a auditAnswer) operations() (all []string) {
	for _, e := range a.Entries {
		all = append(all, e.Operation)
	}
	return all
}

func TestReadAudit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ours, theirs := f.MintAs("ours", "admin"), f.MintAs("theirs", "admin")
	var sb gatewaytest.View
	f.DoAs(ours, "POST", "/api/v1/sessions", "{}").Into(t, 201, &sb)
	f.DoAs(theirs, "POST", "/api/v1/sessions", `{"name":"theirs"}`)
	f.DoAs(ours, "POST", "/api/v1/sessions/"+sb.SandboxID+"/touch", "")
	f.DoAs(ours, "DELETE", "/api/v1/sessions/theirs", "")
	for query, want := range map[string]string{
		"":                                   "[deleteSession touchSession createSession]",
		"outcome=ok":                         "[touchSession createSession]",
		"outcome=failed":                     "[deleteSession]",
		"outcome=denied":                     "[]",
		"actor=ours":                         "[deleteSession touchSession createSession]",
		"actor=theirs":                       "[]",
		"operation=touchSession":             "[touchSession]",
		"target=" + sb.SandboxID:             "[touchSession createSession]",
		"target=theirs":                      "[deleteSession]",
		"since=2999-01-01T00:00:00Z":         "[]",
		"until=2999-01-01T00:00:00Z&limit=1": "[deleteSession touchSession createSession]",
		"limit=2":                            "[deleteSession touchSession createSession]",
	} {
		var all []string
		cursor := ""
		for {
			var page auditAnswer
			f.DoAs(ours, "GET", "/api/v1/audit?"+query+cursor, "").Into(t, 200, &page)
			all = append(all, page.operations()...)
			if page.Next == "" {
				break
			}
			if cursor = "&cursor=" + url.QueryEscape(page.Next); strings.HasPrefix(query, "limit=2") && len(page.Entries) > 2 {
				t.Errorf("a page has %d", len(page.Entries))
			}
		}
		if got := fmt.Sprint(all); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	lines := f.With("GET", "/api/v1/audit?outcome=ok", "", "Authorization", "Bearer "+ours, "Accept", "application/x-ndjson")
	split := strings.Split(strings.TrimSpace(string(lines.Body)), "\n")
	if lines.Status != 200 || lines.Header.Get("Content-Type") != "application/x-ndjson" || len(split) != 2 {
		t.Errorf("lines: %d %v %s", lines.Status, lines.Header, lines.Body)
	}
	for _, line := range split {
		var e struct{ Operation, Hash string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Operation == "" || len(e.Hash) != 64 {
			t.Errorf("the line %s: %v", line, err)
		}
	}
}

// A caller without the scope learns nothing from the log. No caller learns anything of
// another tenant's log: no entry, no number, no cursor.
func TestAuditAttacks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ours, theirs := f.MintAs("ours", "admin"), f.MintAs("theirs", "admin")
	for range 3 {
		f.DoAs(theirs, "POST", "/api/v1/sessions", "{}")
	}
	var page auditAnswer
	f.DoAs(theirs, "GET", "/api/v1/audit?limit=1", "").Into(t, 200, &page)
	for _, query := range []string{
		"", "?actor=theirs", "?operation=createSession", "?target=" + page.Entries[0].SandboxID, "?cursor=" + page.Next,
		"?cursor=" + page.Next + "&limit=100",
	} {
		a := f.DoAs(ours, "GET", "/api/v1/audit"+query, "")
		if a.Status != 200 || strings.TrimSpace(string(a.Body)) != `{"entries":[]}` {
			t.Errorf("%s: %d %s", query, a.Status, a.Body)
		}
	}
	f.DoAs(ours, "POST", "/api/v1/sessions", "{}")
	if a := f.DoAs(ours, "GET", "/api/v1/audit", ""); strings.Contains(string(a.Body), `"seq"`) || strings.Contains(string(a.Body), "theirs") {
		t.Errorf("the page is %s", a.Body)
	}
	for name, headers := range map[string][]string{
		"a user":                {"Authorization", "Bearer " + f.Mint("ours")},
		"a key without a scope": {"X-API-Key", f.Key("dev:ours", sandbox.RoleAdmin, sandbox.ScopeRead, sandbox.ScopeKeys)},
		"a user's key":          {"X-API-Key", f.Key("dev:ours", sandbox.RoleDeveloper)},
	} {
		if a := f.With("GET", "/api/v1/audit", "", headers...); a.Status != 403 || !strings.Contains(string(a.Body), "audit") {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	if a := f.With("GET", "/api/v1/audit", "", "X-API-Key", f.Key("dev:ours", sandbox.RoleAdmin, sandbox.ScopeAudit)); a.Status != 200 {
		t.Errorf("a key for it: %d %s", a.Status, a.Body)
	}
	for _, query := range []string{
		"outcome=good", "limit=0", "limit=101", "limit=x", "cursor=x", "cursor=" + strings.Repeat("a", 600), "since=today", "until=1",
		"since=0001-01-01T00:00:00Z", "bogus=1", "limit=1&limit=2", "actor=%ff",
	} {
		if a := f.DoAs(ours, "GET", "/api/v1/audit?"+query, ""); a.Status != 400 {
			t.Errorf("%s: %d %s", query, a.Status, a.Body)
		}
	}
	for _, query := range []string{"limit=5", "cursor=" + page.Next} {
		if a := f.With("GET", "/api/v1/audit?"+query, "", "Authorization", "Bearer "+ours, "Accept", "application/x-ndjson"); a.Status != 400 {
			t.Errorf("%s with lines: %d %s", query, a.Status, a.Body)
		}
	}
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		if a := f.DoAs(ours, method, "/api/v1/audit", ""); a.Status != 405 {
			t.Errorf("%s: %d %s", method, a.Status, a.Body)
		}
	}
}

// Refusals are counted by reason, from zero.
func TestRefusalsAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) {
		c.Limits = ratelimit.Rules{ratelimit.Create: {PerSecond: 0.001, Burst: 1}}
	})
	count := func() string {
		var all []string
		for line := range strings.Lines(string(f.With("GET", "/metrics", "").Body)) {
			if reason, ok := strings.CutPrefix(line, "cloud_sandbox_refused_total{reason="); ok {
				all = append(all, strings.TrimSpace(reason))
			}
		}
		return strings.Join(all, ", ")
	}
	if got := count(); got != `"anonymous"} 0, "credential"} 0, "rate"} 0, "scope"} 0, "signed_url"} 0, "suspended"} 0` {
		t.Errorf("at first: %s", got)
	}
	f.With("GET", "/api/v1/sessions", "")
	f.With("GET", "/api/v1/sessions", "", "X-API-Key", "x")
	f.With("POST", "/api/v1/auth/token", `{"user_id":"a","role":"user"}`, "X-API-Key", "x")
	f.With("GET", "/api/v1/files?sandbox_id=a&path=a&expires=1&key=k&signature=x", "")
	f.With("GET", "/api/v1/keys", "", "X-API-Key", f.Key("t", sandbox.RoleDeveloper, sandbox.ScopeRead))
	f.Do("POST", "/api/v1/sessions", "{}")
	f.Do("POST", "/api/v1/sessions", "{}")
	if got := count(); got != `"anonymous"} 1, "credential"} 2, "rate"} 1, "scope"} 1, "signed_url"} 1, "suspended"} 0` {
		t.Errorf("afterwards: %s", got)
	}
	if n := len(f.since(0)); n != 5 { // neither what came without a credential nor what came too often
		t.Errorf("%d entries: %q", n, f.since(0))
	}
}
