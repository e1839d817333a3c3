package e2b_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// fixture is a gateway over the core, with what these tests do with it.
type fixture struct{ *gatewaytest.Fixture }

func newFixture(t testing.TB, change ...func(*gateway.Config)) *fixture {
	return &fixture{gatewaytest.New(t, change...)}
}

func TestE2BLife(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) { c.Domain = "box.example:8443" })
	key := f.Key("t", sandbox.RoleDeveloper)
	for path, timeout := range map[string]time.Duration{"/sandboxes": 15 * time.Second, "/v2/sandboxes": 300 * time.Second} {
		var sb, got gatewaytest.E2BSandbox
		f.E2B(key, "POST", path, `{"templateID":"code-interpreter-v1","metadata":{"a":"b"},"envVars":{"X":"1"},"mcp":null}`).Into(t, 201, &sb)
		token := "" // the first generation has one when it is asked for
		if path == "/v2/sandboxes" {
			token = "token of " + sb.SandboxID
		}
		if !sandbox.ValidSandboxID(sb.SandboxID) || sb.ClientID == "" || sb.EnvdVersion == "" || sb.EnvdAccessToken != token ||
			sb.TemplateID != "base" || sb.Domain == nil || *sb.Domain != "box.example:8443" {
			t.Errorf("%s: %+v", path, sb)
		}
		f.E2B(key, "GET", "/sandboxes/"+sb.SandboxID, "").Into(t, 200, &got)
		if got.State != "running" || got.EnvdAccessToken != token || got.EndAt.Sub(got.StartedAt).Round(time.Second) != timeout || got.Metadata["a"] != "b" {
			t.Errorf("%s: %+v", path, got)
		}
		row := f.Sandboxes.Record(sb.SandboxID)
		if row.Env["X"] != "1" || row.Cwd != "/home/user" {
			t.Errorf("%s: %+v", path, row)
		}
		f.E2B(key, "GET", "/sandboxes/"+sb.SandboxID+"-client", "").Into(t, 200, &got) // as old clients say it
		if a := f.E2B(key, "DELETE", "/sandboxes/"+sb.SandboxID, ""); a.Status != 204 || len(a.Body) != 0 {
			t.Errorf("kill: %d %s", a.Status, a.Body)
		}
		for _, again := range []string{"DELETE", "GET"} {
			if a := f.E2B(key, again, "/sandboxes/"+sb.SandboxID, ""); a.Status != 404 || !isE2BError(a) {
				t.Errorf("%s of one that was killed: %d %s", again, a.Status, a.Body)
			}
		}
	}
}

// A client may request that the services inside answer without a token. The choice is
// kept.
func TestE2BInsecure(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	for _, tt := range []struct {
		path, secure string
		open         bool
	}{
		{"/sandboxes", ``, true}, {"/sandboxes", `,"secure":false`, true}, {"/sandboxes", `,"secure":true`, false}, {"/v2/sandboxes", ``, false},
	} {
		var sb, got, again gatewaytest.E2BSandbox
		f.E2B(key, "POST", tt.path, `{"templateID":"base"`+tt.secure+`}`).Into(t, 201, &sb)
		f.E2B(key, "GET", "/sandboxes/"+sb.SandboxID, "").Into(t, 200, &got)
		f.E2B(key, "POST", "/v2/sandboxes/"+sb.SandboxID+"/connect", "").Into(t, 200, &again)
		rules := f.Sandboxes.Record(sb.SandboxID).Ingress.RulesOrClosed()
		for _, told := range []gatewaytest.E2BSandbox{sb, got, again} {
			if rules.OpenServices != tt.open || (told.EnvdAccessToken == "") != tt.open {
				t.Errorf("%s%s: %+v, %+v", tt.path, tt.secure, rules, told)
			}
		}
	}
}

// Where the operator wants it, every client gets a token, whatever it asks for.
func TestE2BAllSecure(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) { c.E2BSecure = true })
	key := f.Key("t", sandbox.RoleDeveloper)
	for _, asks := range []string{``, `,"secure":false`, `,"secure":true`, `,"network":{"allowPublicTraffic":false}`} {
		var sb, again gatewaytest.E2BSandbox
		f.E2B(key, "POST", "/sandboxes", `{"templateID":"base"`+asks+`}`).Into(t, 201, &sb)
		f.E2B(key, "POST", "/sandboxes/"+sb.SandboxID+"/connect", `{"timeout":60}`).Into(t, 200, &again)
		if f.Sandboxes.Record(sb.SandboxID).Ingress.RulesOrClosed().OpenServices || sb.EnvdAccessToken == "" || again.EnvdAccessToken != sb.EnvdAccessToken {
			t.Errorf("%s: %+v, %+v", asks, sb, again)
		}
	}
}

// Requests for the control API that name envd in their headers, as SDKs of a year
// ago send, are for the control API.
func TestE2BConnectNamesEnvd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	sb := f.E2BSandbox(key, `{"templateID":"base"}`)
	req, err := http.NewRequest("POST", f.URL+"/sandboxes/"+sb.SandboxID+"/connect", strings.NewReader(`{"timeout":60}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-KEY", key)
	req.Header.Set("E2b-Sandbox-Id", sb.SandboxID)
	req.Header.Set("E2b-Sandbox-Port", "49983")
	if a := f.Raw(req); a.Status != 200 || !strings.Contains(string(a.Body), sb.EnvdAccessToken) {
		t.Errorf("connect: %d %s", a.Status, a.Body)
	}
}

// isE2BError reports whether an answer is an error as E2B's clients want it.
func isE2BError(a gatewaytest.Answer) bool {
	var body struct {
		Code    int
		Message string
	}
	return json.Unmarshal(a.Body, &body) == nil && body.Code == a.Status && body.Message != ""
}

func TestE2BTimes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	sb := f.E2BSandbox(key, `{"templateID":"base","timeout":600}`)
	end := func() time.Duration {
		var got gatewaytest.E2BSandbox
		f.E2B(key, "GET", "/sandboxes/"+sb.SandboxID, "").Into(t, 200, &got)
		return time.Until(got.EndAt).Round(time.Minute)
	}
	for _, tt := range []struct {
		path, body string
		status     int
		left       time.Duration
	}{
		{"/sandboxes/ID/timeout", `{"timeout":60}`, 204, time.Minute},
		{"/sandboxes/ID/refreshes", ``, 204, time.Minute}, // never shorter
		{"/sandboxes/ID/refreshes", `{"duration":120}`, 204, 2 * time.Minute},
		{"/sandboxes/ID/connect", `{"timeout":30}`, 200, 2 * time.Minute},
		{"/sandboxes/ID/connect", `{"timeout":180}`, 200, 3 * time.Minute},
		{"/v2/sandboxes/ID/connect", ``, 200, 5 * time.Minute},
		{"/v2/sandboxes/ID/connect", `{"timeout":600,"memory":true}`, 200, 10 * time.Minute},
		{"/sandboxes/ID/timeout", `{"timeout":240}`, 204, 4 * time.Minute},
	} {
		a := f.E2B(key, "POST", strings.Replace(tt.path, "ID", sb.SandboxID, 1), tt.body)
		if left := end(); a.Status != tt.status || left != tt.left {
			t.Errorf("%s %s: %d %s, %v are left, want %v", tt.path, tt.body, a.Status, a.Body, left, tt.left)
		}
	}
}

func TestBadE2B(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	id := f.E2BSandbox(key, `{"templateID":"base"}`).SandboxID
	none := "/sandboxes/i00000000000000000000"
	for _, tt := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/v2/sandboxes", ``, 400, "templateID"},
		{"POST", "/v2/sandboxes", `{"templateID":"base","secure":false}`, 400, "secure"},
		{"POST", "/sandboxes", `{"templateID":"base","timeout":0}`, 400, "timeout"},
		{"POST", "/sandboxes", `{"templateID":"base","timeout":-1}`, 400, "timeout"},
		{"POST", "/sandboxes", `{"templateID":"base","timeout":86401}`, 400, "86400"},
		{"POST", "/sandboxes", `{"templateID":"base","timeout":"5"}`, 400, "timeout"},
		{"POST", "/sandboxes", `{"templateID":"base","teamID":"x"}`, 400, "teamID"},
		{"POST", "/sandboxes", `{"templateID":"none"}`, 404, "none"},
		{"POST", "/sandboxes", `{"templateID":"team/base"}`, 404, "team/base"},
		{"POST", "/sandboxes", `{"templateID":"base","envVars":{"a b":"c"}}`, 400, "a b"},
		{"POST", "/sandboxes", `{"templateID":"base","autoPauseMemory":false}`, 400, "autoPause"},
		{"POST", "/sandboxes", `{"templateID":"base","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}`, 400, "autoResume"},
		{"POST", "/sandboxes", `{"templateID":"s00000000000000000000"}`, 404, "s00000000000000000000"},
		{"DELETE", "/templates/s00000000000000000000", "", 404, "not found"},
		{"DELETE", "/templates/base", "", 403, "the server's own"},
		{"DELETE", "/templates/none", "", 404, "not found"},
		{"POST", "/v2/sandboxes/" + id + "/connect", `{"memory":1}`, 400, "memory"},
		{"GET", "/snapshots?color=red", "", 400, "color"},
		{"POST", "/sandboxes/" + id + "/snapshots", `{"memory":"no"}`, 400, "memory"},
		{"POST", "/sandboxes/" + id + "/resume", ``, 409, "running"},
		{"POST", "/sandboxes/" + id + "/fork", `{"count":0}`, 400, "count"},
		{"POST", "/sandboxes/" + id + "/fork", `{"count":101}`, 400, "count"},
		{"GET", "/snapshots?limit=0", "", 400, "limit"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"allowOut":["example.com"]}}`, 400, "ALL_TRAFFIC"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"allowOut":["a b"],"denyOut":["0.0.0.0/0"]}}`, 400, "allowOut"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"allowOut":["1.1.1.1:80"],"denyOut":["0.0.0.0/0"]}}`, 400, "allowOut"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"denyOut":["example.com"]}}`, 400, "denyOut"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"denyOut":["1.1.1.1/33"]}}`, 400, "denyOut"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"egressProxy":{"address":"a:1"}}}`, 400, "egressProxy"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"a.b":[]}}}`, 400, "rules"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"a.b":[{"transform":{}}]}}}`, 400, "rules"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"a.b":[{"transform":{"headers":{"X":"two\nlines"}}}]}}}`, 400, "header"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"a.b":[{"transform":{"headers":{"X":""}}}]}}}`, 400, "header"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"a.b":[{"transform":{"headers":{"X":"${e2b.secrets.A}${e2b.secrets.B}"}}}]}}}`, 400, "rules"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"a.b":[{"transform":{"headers":{"X":"${e2b.identity.tokens.A}"}}}]}}}`, 400, "rules"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"*b.c":[{"transform":{"headers":{"X":"${e2b.secrets.A}"}}}]}}}`, 400, "host"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"*":[{"transform":{"headers":{"X":"a"}}}]}}}`, 400, "host"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"*.b.c":[{"transform":{"headers":{"X":"a"}}}],"*.B.C":[{"transform":{"headers":{"X":"b"}}}]}}}`, 400, "twice"},
		{"PUT", "/sandboxes/" + id + "/network", `{"rules":{"a.b":[{"transform":{"headers":{"Host":"${e2b.secrets.A}"}}}]}}`, 400, "Host"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"httpsPorts":[49983]}}`, 400, "49983"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"httpsPorts":[65536]}}`, 400, "httpsPorts"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"a b"}}`, 400, "host"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"maskRequestHost":""}}`, 400, "maskRequestHost"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"http://a"}}`, 400, "host"},
		{"PUT", none + "/network", `{}`, 404, "not found"},
		{"PUT", "/sandboxes/" + id + "/network", `{"denyOut":["x"]}`, 400, "denyOut"},
		{"PUT", "/sandboxes/" + id + "/network", `{"allowPublicTraffic":false}`, 400, "allowPublicTraffic"},
		{"POST", "/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":false}}`, 400, "secure"},
		{"POST", "/sandboxes", `{"templateID":"base","secure":false,"network":{"allowPublicTraffic":false}}`, 400, "secure"},
		{"POST", "/sandboxes", `{"templateID":"base","iam":{"tokens":{"a":{}}}}`, 400, "iam"},
		{"POST", "/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"a","path":"/b"}]}`, 400, "no volume"},
		{"POST", "/sandboxes", `[]`, 400, "object"},
		{"GET", "/sandboxes/x", "", 404, `sandbox \"x\" not found`},
		{"DELETE", "/sandboxes/UPPER-x", "", 404, "not found"},
		{"POST", "/sandboxes/a%2Fb/pause", "", 404, "not found"},
		{"GET", none, "", 404, "not found"},
		{"DELETE", none, "", 404, "not found"},
		{"POST", none + "/timeout", `{"timeout":5}`, 404, "not found"},
		{"POST", none + "/connect", `{"timeout":5}`, 404, "not found"},
		{"POST", "/v2" + none + "/connect", ``, 404, "not found"},
		{"POST", none + "/refreshes", ``, 404, "not found"},
		{"GET", none + "/metrics", "", 404, "not found"},
		{"GET", none + "/logs", "", 404, "not found"},
		{"POST", "/sandboxes/" + id + "/timeout", ``, 400, "timeout"},
		{"POST", "/sandboxes/" + id + "/timeout", `{"timeout":-1}`, 400, "timeout"},
		{"POST", "/sandboxes/" + id + "/connect", ``, 400, "timeout"},
		{"POST", "/sandboxes/" + id + "/refreshes", `{"duration":3601}`, 400, "3600"},
		{"POST", "/sandboxes/" + id + "/pause", `{"memory":1}`, 400, "memory"},
		{"POST", "/sandboxes/" + id, ``, 405, "POST"},
		{"GET", "/sandboxes/" + id + "/metrics?start=5&end=4", "", 400, "start"},
		{"GET", "/sandboxes/" + id + "/metrics?start=x", "", 400, "start"},
		{"GET", "/sandboxes/metrics", "", 400, "sandbox_ids"},
		{"GET", "/sandboxes/metrics?sandbox_ids=" + strings.Repeat("a,", 101), "", 400, "100"},
		{"GET", "/v2/sandboxes/" + id + "/logs?direction=up", "", 400, "direction"},
		{"GET", "/v2/sandboxes/" + id + "/logs?level=loud", "", 400, "level"},
		{"GET", "/v2/sandboxes/" + id + "/logs?limit=1001", "", 400, "limit"},
		{"GET", "/v2/sandboxes?limit=0", "", 400, "limit"},
		{"GET", "/v2/sandboxes?limit=101", "", 400, "limit"},
		{"GET", "/v2/sandboxes?state=dead", "", 400, "state"},
		{"GET", "/v2/sandboxes?order=up", "", 400, "order"},
		{"GET", "/v2/sandboxes?startedAfter=now", "", 400, "startedAfter"},
		{"GET", "/v2/sandboxes?template=a:b", "", 400, "template"},
		{"GET", "/v2/sandboxes?metadata=%25zz", "", 400, "metadata"},
		{"GET", "/v2/sandboxes?color=red", "", 400, "color"},
		{"GET", "/v2/nothing", "", 404, ""},
		{"GET", "/teams?color=red", "", 400, "color"},
		{"GET", "/teams/x/metrics", "", 400, "team"},
		{"GET", "/teams/00000000-0000-8000-8000-000000000000/metrics", "", 403, "team"},
		{"GET", "/teams/00000000-0000-8000-8000-000000000000/metrics/max?metric=sandbox_start_rate", "", 403, "team"},
		{"POST", "/api-keys", ``, 400, "name"},
		{"POST", "/api-keys", `{"name":"a","role":"admin"}`, 400, "role"},
		{"DELETE", "/api-keys/none", "", 404, "none"},
		{"PATCH", "/api-keys/none", `{"name":"a"}`, 404, "none"},
		{"POST", "/access-tokens", `{"name":"a"}`, 410, "API key"},
		{"POST", "/templates", `{"dockerfile":"FROM x","alias":"a"}`, 400, "fromDockerfile"},
		{"POST", "/templates/a", `{"dockerfile":"FROM x"}`, 400, "fromDockerfile"},
		{"POST", "/templates/a/builds/11111111-1111-1111-1111-111111111111", ``, 400, "fromDockerfile"},
		{"POST", "/v2/templates", `{}`, 400, "name"},
		{"DELETE", "/access-tokens/none", "", 404, "none"},
	} {
		a := f.E2B(key, tt.method, tt.path, tt.body)
		if a.Status != tt.status || !strings.Contains(string(a.Body), tt.says) || !isE2BError(a) {
			t.Errorf("%s %s %s: %d %s, want %d and %q", tt.method, tt.path, tt.body, a.Status, a.Body, tt.status, tt.says)
		}
	}
}

func TestE2BLists(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	odd := f.E2BSandbox(key, `{"templateID":"base","metadata":{"a b&=":"c%d+é","k":"v"}}`).SandboxID
	f.E2BSandbox(key, `{"templateID":"base","metadata":{"k":"v"}}`)
	f.E2BSandbox(f.Key("other", sandbox.RoleDeveloper), `{"templateID":"base","metadata":{"k":"v"}}`)
	// As clients encode it: each part, then the pairs, then the whole.
	twice := url.Values{url.PathEscape("a b&="): {url.PathEscape("c%d+é")}}.Encode()
	for query, want := range map[string]int{
		"":                                    2,
		"?metadata=k%3Dv":                     2,
		"?metadata=k%3Dx":                     0,
		"?state=running":                      2,
		"?state=paused":                       0,
		"?state=running,paused":               2,
		"?limit=1":                            1,
		"?order=asc":                          2,
		"?template=base":                      2,
		"?template=nothing":                   0,
		"?startedAfter=2099-01-01T00:00:00Z":  0,
		"?metadata=" + url.QueryEscape(twice): 1,
	} {
		var got []gatewaytest.E2BSandbox
		a := f.E2B(key, "GET", "/v2/sandboxes"+query, "")
		a.Into(t, 200, &got)
		if len(got) != want || want == 1 && query != "?limit=1" && got[0].SandboxID != odd {
			t.Errorf("%s: %s", query, a.Body)
		}
		if total := a.Header.Get("X-Total-Running"); total != "2" && query != "?state=paused" {
			t.Errorf("%s: %q run", query, total)
		}
	}
	seen := map[string]bool{}
	for token := ""; ; {
		var got []gatewaytest.E2BSandbox
		a := f.E2B(key, "GET", "/v2/sandboxes?limit=1&nextToken="+token, "")
		a.Into(t, 200, &got)
		for _, sb := range got {
			seen[sb.SandboxID] = true
		}
		if token = a.Header.Get("X-Next-Token"); token == "" {
			break
		}
	}
	if len(seen) != 2 {
		t.Errorf("by pages: %v", seen)
	}
	var got []gatewaytest.E2BSandbox
	if f.E2B(key, "GET", "/sandboxes?metadata="+url.QueryEscape(twice), "").Into(t, 200, &got); len(got) != 1 {
		t.Errorf("the first generation: %v", got)
	}
}

func TestE2BTemplates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	type view struct {
		TemplateID, BuildID, BuildStatus string
		Public                           bool
		Names                            []string
		CreatedAt                        time.Time
		Builds                           []struct{ Status string }
	}
	for _, path := range []string{"/templates", "/v2/templates", "/v2/templates?limit=1"} {
		var all []view
		f.E2B(key, "GET", path, "").Into(t, 200, &all)
		if len(all) != 1 || all[0].TemplateID != "base" || !all[0].Public || all[0].BuildStatus != "ready" || len(all[0].BuildID) != 36 || len(all[0].Names) != 1 {
			t.Errorf("%s: %+v", path, all)
		}
	}
	var one view
	if f.E2B(key, "GET", "/templates/base", "").Into(t, 200, &one); one.TemplateID != "base" || len(one.Builds) != 1 || one.Builds[0].Status != "ready" {
		t.Errorf("one: %+v", one)
	}
	for _, alias := range []string{"base", "code-interpreter-v1", "base%3Adefault"} {
		if f.E2B(key, "GET", "/templates/aliases/"+alias, "").Into(t, 200, &one); one.TemplateID != "base" || !one.Public {
			t.Errorf("%s: %+v", alias, one)
		}
	}
	var tags []struct{ Tag, BuildID string }
	if f.E2B(key, "GET", "/templates/base/tags", "").Into(t, 200, &tags); len(tags) != 1 || tags[0].Tag != "default" {
		t.Errorf("tags: %+v", tags)
	}
	for _, path := range []string{"/templates/none", "/templates/aliases/none", "/templates/team%2Fbase", "/templates/none/tags", "/templates/base/what"} {
		if a := f.E2B(key, "GET", path, ""); a.Status != 404 || !isE2BError(a) {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	var teams []struct{ TeamID string }
	f.E2B(key, "GET", "/teams", "").Into(t, 200, &teams)
	for path, want := range map[string]int{
		"/v2/templates?nextToken=%21":                               400,
		"/templates/base?nextToken=%21":                             400,
		"/templates/base?nextToken=bm9uZQ":                          400, // of no version
		"/templates/base?limit=0":                                   400,
		"/templates/base?limit=1":                                   200,
		"/templates?teamID=" + teams[0].TeamID:                      200,
		"/v2/templates?limit=1&teamID=" + teams[0].TeamID:           200,
		"/templates?teamID=00000000-0000-8000-8000-000000000000":    400,
		"/v2/templates?teamID=00000000-0000-8000-8000-000000000000": 400,
		"/templates/t%2Fbase":                                       200, // the caller's own namespace
		"/templates/t%2Fbase%3Adefault/tags":                        200,
		"/nodes":                                                    404,
		"/admin/teams/x/sandboxes/kill":                             404,
	} {
		if a := f.E2B(key, "GET", path, ""); a.Status != want || want >= 400 && !isE2BError(a) {
			t.Errorf("%s: %d %s, want %d", path, a.Status, a.Body, want)
		}
	}
}

func TestE2BPause(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	type info struct {
		State     string
		Lifecycle struct {
			AutoResume bool
			OnTimeout  string
		}
		EndAt time.Time
	}
	for create, want := range map[string]sandbox.Sandbox{
		``:                  {OnTimeout: sandbox.OnTimeoutEnd, StayPaused: true},
		`,"autoPause":true`: {OnTimeout: sandbox.OnTimeoutPause, StayPaused: true},
		`,"autoPause":true,"autoPauseMemory":false`:       {OnTimeout: sandbox.OnTimeoutPauseFiles, StayPaused: true},
		`,"autoPause":true,"autoResume":{"enabled":true}`: {OnTimeout: sandbox.OnTimeoutPause},
	} {
		id := f.E2BSandbox(key, `{"templateID":"base"`+create+`}`).SandboxID
		row := f.Sandboxes.Record(id)
		var got info
		f.E2B(key, "GET", "/sandboxes/"+id, "").Into(t, 200, &got)
		if row.OnTimeout != want.OnTimeout || row.StayPaused != want.StayPaused || got.Lifecycle.AutoResume == want.StayPaused ||
			(got.Lifecycle.OnTimeout == "kill") != (want.OnTimeout == sandbox.OnTimeoutEnd) {
			t.Errorf("%s: %s %v, %+v", create, row.OnTimeout, row.StayPaused, got)
		}
	}
	id := f.E2BSandbox(key, `{"templateID":"base"}`).SandboxID
	ask := func(method, path, body string, status int) {
		t.Helper()
		if a := f.E2B(key, method, strings.ReplaceAll(path, "ID", id), body); a.Status != status || status >= 400 && !isE2BError(a) {
			t.Errorf("%s %s %s: %d %s, want %d", method, path, body, a.Status, a.Body, status)
		}
	}
	ask("POST", "/sandboxes/ID/pause", ``, 204)
	ask("POST", "/sandboxes/ID/pause", ``, 409)
	ask("POST", "/sandboxes/ID/timeout", `{"timeout":5}`, 409)
	ask("POST", "/sandboxes/ID/fork", ``, 409)
	ask("GET", "/sandboxes/ID/metrics", ``, 200)
	var got info
	if f.E2B(key, "GET", "/sandboxes/"+id, "").Into(t, 200, &got); got.State != "paused" {
		t.Errorf("%+v", got)
	}
	var listed []info
	if f.E2B(key, "GET", "/v2/sandboxes?state=paused", "").Into(t, 200, &listed); len(listed) != 1 {
		t.Errorf("%+v", listed)
	}
	ask("POST", "/v2/sandboxes/ID/connect", ``, 201)
	ask("POST", "/v2/sandboxes/ID/connect", ``, 200)
	ask("POST", "/sandboxes/ID/pause", `{"memory":false}`, 204)
	ask("POST", "/sandboxes/ID/resume", `{"timeout":600}`, 201)
	if f.E2B(key, "GET", "/sandboxes/"+id, "").Into(t, 200, &got); got.State != "running" || time.Until(got.EndAt).Round(time.Minute) != 10*time.Minute {
		t.Errorf("%+v", got)
	}
	for n, path := range []string{"/v2/sandboxes/ID/connect", "/sandboxes/ID/connect", "/sandboxes/ID/resume"} {
		ask("POST", "/sandboxes/ID/pause", ``, 204)
		ask("POST", path, `{"timeout":60,"memory":false}`, 201)
		if f.Sandboxes.Reboots != n+1 {
			t.Errorf("%s: %d reboots, not %d", path, f.Sandboxes.Reboots, n+1)
		}
	}
	ask("POST", "/v2/sandboxes/ID/connect", `{"memory":false}`, 200) // it runs
	ask("POST", "/sandboxes/ID/pause", ``, 204)
	ask("DELETE", "/sandboxes/ID", ``, 204)
	ask("DELETE", "/sandboxes/ID", ``, 404)
}

// Snapshots are told by E2B's names for them, and known by these and by less.
func TestE2BSnapshots(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("A:b", sandbox.RoleDeveloper)
	type view struct {
		SnapshotID string
		Names      []string
	}
	take := func(sb, body string) (v view) {
		t.Helper()
		f.E2B(key, "POST", "/sandboxes/"+sb+"/snapshots", body).Into(t, 201, &v)
		return v
	}
	list := func(query string) (all []view) {
		t.Helper()
		f.E2B(key, "GET", "/snapshots"+query, "").Into(t, 200, &all)
		return all
	}
	one, two := f.E2BSandbox(key, `{"templateID":"base"}`).SandboxID, f.E2BSandbox(key, `{"templateID":"base"}`).SandboxID
	plain := take(one, ``)
	raw, tagged := strings.CutSuffix(plain.SnapshotID, ":default")
	if !tagged || !sandbox.ValidSnapshotID(raw) || plain.Names == nil || len(plain.Names) != 0 {
		t.Errorf("without a name: %+v", plain)
	}
	const full = "a-b/tools:default"
	for _, asked := range []string{"tools", "Tools:default", "a-b/tools", full} {
		if named := take(one, `{"name":"`+asked+`"}`); named.SnapshotID != full || len(named.Names) != 1 || named.Names[0] != full {
			t.Errorf("%s: %+v", asked, named)
		}
	}
	take(two, `{"name":"tools"}`)
	shown := 0
	for _, v := range list("") {
		if v.SnapshotID == full {
			shown++
		} else if len(v.Names) != 0 {
			t.Errorf("one whose name another has: %+v", v)
		}
	}
	if shown != 1 {
		t.Errorf("the name is told of %d snapshots", shown)
	}
	for _, query := range []string{"?name=tools", "?name=a-b%2Ftools%3Adefault"} {
		if all := list(query); len(all) == 0 || all[0].SnapshotID != full {
			t.Errorf("%s: %+v", query, all)
		}
	}
	for _, query := range []string{"?name=" + raw, "?name=" + raw + ":default"} {
		if all := list(query); len(all) != 1 || all[0].SnapshotID != plain.SnapshotID {
			t.Errorf("%s: %+v", query, all)
		}
	}
	if all := list("?name=others%2Ftools"); len(all) != 0 {
		t.Errorf("in another namespace: %+v", all)
	}
	for _, bad := range []string{"others/tools", "tools:", "tools:v1:2", "tools:-", "a b"} {
		if a := f.E2B(key, "POST", "/sandboxes/"+one+"/snapshots", `{"name":"`+bad+`"}`); a.Status != 400 || !isE2BError(a) {
			t.Errorf("%s: %d %s", bad, a.Status, a.Body)
		}
	}
	for _, from := range []string{full, "tools", "a-b/tools", raw, plain.SnapshotID} {
		sb := f.E2BSandbox(key, `{"templateID":"`+from+`"}`)
		if f.Sandboxes.Record(sb.SandboxID).Snapshot == "" {
			t.Errorf("%s: it did not start from the snapshot", from)
		}
	}
	take(one, `{"name":"other"}`)
	if a := f.E2B(key, "DELETE", "/templates/a-b/other:default", ""); a.Status != 204 {
		t.Errorf("delete with a slash as it is: %d %s", a.Status, a.Body)
	}
	for _, name := range []string{full, plain.SnapshotID} {
		for _, want := range []int{204, 404} {
			if a := f.E2B(key, "DELETE", "/templates/"+url.PathEscape(name), ""); a.Status != want {
				t.Errorf("delete %s: %d %s, want %d", name, a.Status, a.Body, want)
			}
		}
	}
	// Snapshots whose names moved to later ones still exist.
	for _, left := range list("") {
		if a := f.E2B(key, "DELETE", "/templates/"+url.PathEscape(left.SnapshotID), ""); len(left.Names) != 0 || a.Status != 204 {
			t.Errorf("left: %+v, deleted: %d %s", left, a.Status, a.Body)
		}
	}
	if all := list(""); len(all) != 0 {
		t.Errorf("left: %+v", all)
	}
}

// Snapshots have tags as templates have. E2B's "default" is not a tag of ours.
func TestE2BSnapshotTags(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	one := f.E2BSandbox(key, `{"templateID":"base"}`).SandboxID
	ids := map[string]string{}
	for _, name := range []string{"tools", "tools:latest", "tools:v2", "tools2:v2"} {
		var v struct {
			SnapshotID string
			Names      []string
		}
		f.E2B(key, "POST", "/sandboxes/"+one+"/snapshots", `{"name":"`+name+`"}`).Into(t, 201, &v)
		full := "t/" + name
		if name == "tools" {
			full += ":default"
		}
		if v.SnapshotID != full || len(v.Names) != 1 || v.Names[0] != full {
			t.Errorf("%s: %+v", name, v)
		}
		ids[full] = f.Sandboxes.Snapshots()[len(f.Sandboxes.Snapshots())-1].ID
	}
	for asked, full := range map[string]string{
		"tools": "t/tools:default", "tools:default": "t/tools:default", "t/tools:latest": "t/tools:latest", "tools:v2": "t/tools:v2",
	} {
		sb := f.E2BSandbox(key, `{"templateID":"`+asked+`"}`)
		var info struct{ TemplateID, Alias string }
		f.E2B(key, "GET", "/sandboxes/"+sb.SandboxID, "").Into(t, 200, &info)
		if sb.TemplateID != ids[full] || info.TemplateID != ids[full] || info.Alias != "tools" {
			t.Errorf("%s: created from %s, told %+v, want %s", asked, sb.TemplateID, info, ids[full])
		}
		var listed []struct{ TemplateID, SandboxID, Alias string }
		f.E2B(key, "GET", "/v2/sandboxes", "").Into(t, 200, &listed)
		if i := slices.IndexFunc(listed, func(l struct{ TemplateID, SandboxID, Alias string }) bool { return l.SandboxID == sb.SandboxID }); i < 0 || listed[i].TemplateID != ids[full] || listed[i].Alias != "tools" {
			t.Errorf("%s: listed as %+v", asked, listed)
		}
	}
	if a := f.E2B(key, "POST", "/v2/sandboxes", `{"templateID":"tools:v3"}`); a.Status != 404 {
		t.Errorf("a tag that is not there: %d %s", a.Status, a.Body)
	}
	for query, want := range map[string]int{"tools": 3, "tools:v2": 1, "tools:default": 1, "tool": 0, "tools:v3": 0} {
		var all []json.RawMessage
		if f.E2B(key, "GET", "/snapshots?name="+query, "").Into(t, 200, &all); len(all) != want {
			t.Errorf("%s: %d, want %d", query, len(all), want)
		}
	}
	var tags []struct{ Tag, BuildID string }
	f.E2B(key, "GET", "/templates/tools/tags", "").Into(t, 200, &tags)
	if len(tags) != 3 || tags[0].Tag != "v2" || tags[1].Tag != "latest" || tags[2].Tag != "default" || len(tags[0].BuildID) != 36 || tags[0].BuildID == tags[1].BuildID {
		t.Errorf("the tags are %+v", tags)
	}
	f.E2B(key, "GET", "/templates/"+ids["t/tools:v2"]+":default/tags", "").Into(t, 200, &tags)
	if len(tags) != 1 || tags[0].Tag != "v2" {
		t.Errorf("by the ID the tags are %+v", tags)
	}
	for path, want := range map[string]int{"/templates/aliases/tools": 200, "/templates/aliases/tools:v2": 200, "/templates/aliases/nothing": 404} {
		if a := f.E2B(key, "GET", path, ""); a.Status != want {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	if a := f.E2B(key, "POST", "/templates/tags", `{"target":"tools:v2","tags":["v9"]}`); a.Status != 400 || !strings.Contains(string(a.Body), "NAME:TAG") {
		t.Errorf("another tag: %d %s", a.Status, a.Body)
	}
	for _, step := range []struct {
		name string
		want int
		left int
	}{{"t/tools:v2", 204, 3}, {"t/tools:v2", 404, 3}, {"tools", 204, 1}, {"tools", 404, 1}, {"tools2", 204, 0}} {
		a := f.E2B(key, "DELETE", "/templates/"+url.PathEscape(step.name), "")
		if left := len(f.Sandboxes.Snapshots()); a.Status != step.want || left != step.left {
			t.Errorf("delete %s: %d %s, %d left", step.name, a.Status, a.Body, left)
		}
	}
}

// Errors of the server have E2B's error code beside the status.
func TestE2BErrorCodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	for err, want := range map[error]string{
		sandbox.Errorf(sandbox.Unavailable, "full"): `{"code":503,"message":"full","error_code":"sandbox_capacity_unavailable"}`,
		sandbox.Errorf(sandbox.Timeout, "slow"):     `{"code":504,"message":"slow","error_code":"sandbox_placement_timeout"}`,
		sandbox.Errorf(sandbox.Internal, "broken"):  `{"code":500,"message":"broken","error_code":"sandbox_create_failed"}`,

		sandbox.Errorf(sandbox.Exhausted, "the host's disk is nearly full"):         `{"code":503,"message":"the host's disk is nearly full","error_code":"sandbox_capacity_unavailable"}`,
		sandbox.Errorf(sandbox.Exhausted, "enough").WithCause(sandbox.ErrOverQuota): `{"code":429,"message":"enough"}`,
	} {
		f.Sandboxes.Fail = err
		if a := f.E2B(key, "POST", "/v2/sandboxes", `{"templateID":"base"}`); strings.TrimSpace(string(a.Body)) != want {
			t.Errorf("%v: %s", err, a.Body)
		}
	}
}

func TestE2BNetwork(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	for _, tt := range []struct {
		create string // beside the template
		policy sandbox.NetworkPolicy
		shown  string // network and the switch
	}{
		{``, "public", `null null`},
		{`,"network":{"allowPublicTraffic":true}`, "public", `null null`},
		{`,"allow_internet_access":false`, "none", `{"allowPublicTraffic":true,"denyOut":["0.0.0.0/0"]} false`},
		{`,"allow_internet_access":true`, `{"mode":"public","internet":true}`, `null true`},
		{
			`,"allow_internet_access":true,"network":{"denyOut":["1.1.1.1"]}`, `{"mode":"public","deny":["1.1.1.1"],"internet":true}`,
			`{"allowPublicTraffic":true,"denyOut":["1.1.1.1"]} true`,
		},
		{`,"network":{"denyOut":["0.0.0.0/0"]}`, "none", `{"allowPublicTraffic":true,"denyOut":["0.0.0.0/0"]} false`},
		{
			`,"network":{"denyOut":["8.8.8.8/24","1.1.1.1"]}`, `{"mode":"public","deny":["8.8.8.0/24","1.1.1.1"]}`,
			`{"allowPublicTraffic":true,"denyOut":["8.8.8.0/24","1.1.1.1"]} null`,
		},
		{
			`,"network":{"denyOut":["0.0.0.0/0"],"allowOut":["Example.com","*.example.com","1.1.1.1"]}`,
			`{"mode":"public","allow":["example.com","*.example.com","1.1.1.1"],"deny":["*"]}`,
			`{"allowPublicTraffic":true,"allowOut":["example.com","*.example.com","1.1.1.1"],"denyOut":["0.0.0.0/0"]} null`,
		},
		{
			`,"allow_internet_access":false,"network":{"allowOut":["1.1.1.1"]}`, `{"mode":"public","allow":["1.1.1.1"],"deny":["*"],"internet":false}`,
			`{"allowPublicTraffic":true,"allowOut":["1.1.1.1"],"denyOut":["0.0.0.0/0"]} false`,
		},
	} {
		id := f.E2BSandbox(key, `{"templateID":"base"`+tt.create+`}`).SandboxID
		if got := f.Sandboxes.Record(id).Network; got != tt.policy {
			t.Errorf("%s: %s", tt.create, got)
		}
		var info struct {
			Network             json.RawMessage
			AllowInternetAccess *bool
		}
		f.E2B(key, "GET", "/sandboxes/"+id, "").Into(t, 200, &info)
		open, _ := json.Marshal(info.AllowInternetAccess)
		if info.Network == nil {
			info.Network = json.RawMessage("null")
		}
		if shown := string(info.Network) + " " + string(open); shown != tt.shown {
			t.Errorf("%s: shown as %s", tt.create, shown)
		}
		if a := f.With("GET", "/api/v1/sessions/"+id, "", "X-API-Key", key); a.Status != 200 || strings.Contains(string(a.Body), "internet") {
			t.Errorf("%s: our own API shows %d %s", tt.create, a.Status, a.Body)
		}
		for body, want := range map[string]sandbox.NetworkPolicy{
			`{"denyOut":["9.9.9.9"]}`: `{"mode":"public","deny":["9.9.9.9"]}`, `{"allow_internet_access":false}`: "none",
			`{"allow_internet_access":true,"denyOut":["9.9.9.9"]}`: `{"mode":"public","deny":["9.9.9.9"],"internet":true}`,
		} {
			if a := f.E2B(key, "PUT", "/sandboxes/"+id+"/network", body); a.Status != 204 || f.Sandboxes.Record(id).Network != want {
				t.Errorf("%s: %d %s, %s", body, a.Status, a.Body, f.Sandboxes.Record(id).Network)
			}
		}
		if a := f.E2B(key, "PUT", "/sandboxes/"+id+"/network", `{}`); a.Status != 204 || f.Sandboxes.Record(id).Network != "public" {
			t.Errorf("cleared: %d %s, %s", a.Status, a.Body, f.Sandboxes.Record(id).Network)
		}
	}
}

func TestE2BPorts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	type told struct {
		SandboxID          string
		TrafficAccessToken *string
		Network            json.RawMessage
	}
	for _, tt := range []struct {
		path, network string
		want          sandbox.Ingress
		shown         string
	}{
		{"/v2/sandboxes", `{}`, "", ``},
		{"/v2/sandboxes", `{"allowPublicTraffic":false}`, `{"private":true}`, `{"allowPublicTraffic":false}`},
		{"/sandboxes", `{"allowPublicTraffic":false}`, `{"private":true}`, `{"allowPublicTraffic":false}`},
		{
			"/v2/sandboxes", `{"maskRequestHost":"localhost:${PORT}","httpsPorts":[8443]}`,
			`{"host":"localhost:${PORT}","tls_ports":[8443]}`, `{"allowPublicTraffic":true,"maskRequestHost":"localhost:${PORT}","httpsPorts":[8443]}`,
		},
		{
			"/v2/sandboxes", `{"allowPublicTraffic":false,"denyOut":["1.1.1.1"]}`,
			`{"private":true}`, `{"allowPublicTraffic":false,"denyOut":["1.1.1.1"]}`,
		},
	} {
		secure := ""
		if tt.path == "/sandboxes" {
			secure = `"secure":true,`
		}
		var sb, got told
		f.E2B(key, "POST", tt.path, `{`+secure+`"templateID":"base","network":`+tt.network+`}`).Into(t, 201, &sb)
		private := strings.Contains(string(tt.want), "private")
		if f.Sandboxes.Record(sb.SandboxID).Ingress != tt.want || (sb.TrafficAccessToken != nil) != private ||
			private && *sb.TrafficAccessToken != "traffic token of "+sb.SandboxID {
			t.Errorf("%s: %s, %v", tt.network, f.Sandboxes.Record(sb.SandboxID).Ingress, sb.TrafficAccessToken)
		}
		if f.E2B(key, "GET", "/sandboxes/"+sb.SandboxID, "").Into(t, 200, &got); string(got.Network) != tt.shown {
			t.Errorf("%s: shown as %s", tt.network, got.Network)
		}
		// A change of the egress policy does not change the ingress rules.
		if a := f.E2B(key, "PUT", "/sandboxes/"+sb.SandboxID+"/network", `{}`); a.Status != 204 || f.Sandboxes.Record(sb.SandboxID).Ingress != tt.want {
			t.Errorf("%s: after a change %d, %s", tt.network, a.Status, f.Sandboxes.Record(sb.SandboxID).Ingress)
		}
		if private {
			f.E2B(key, "POST", "/sandboxes/"+sb.SandboxID+"/pause", "")
			if a := f.E2B(key, "PUT", "/sandboxes/"+sb.SandboxID+"/network", `{}`); a.Status != 409 || !isE2BError(a) {
				t.Errorf("a change while paused: %d %s", a.Status, a.Body)
			}
			var again told
			f.E2B(key, "POST", "/v2/sandboxes/"+sb.SandboxID+"/connect", "").Into(t, 201, &again)
			if again.TrafficAccessToken == nil || *again.TrafficAccessToken != *sb.TrafficAccessToken {
				t.Errorf("%s: after a pause the token is %v", tt.network, again.TrafficAccessToken)
			}
		}
	}
}

// Teams and keys, as E2B's clients know them.
func TestE2BAccount(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key, other, viewer := f.Key("t", sandbox.RoleDeveloper), f.Key("other", sandbox.RoleDeveloper), f.Key("t", sandbox.RoleViewer)
	type team struct {
		TeamID, Name, APIKey string
		IsDefault            bool
	}
	var teams, again, others []team
	f.E2B(key, "GET", "/teams", "").Into(t, 200, &teams)
	f.E2B(viewer, "GET", "/teams", "").Into(t, 200, &again)
	f.E2B(other, "GET", "/teams", "").Into(t, 200, &others)
	if len(teams) != 1 || teams[0].Name != "t" || teams[0].APIKey != key || len(teams[0].TeamID) != 36 || !teams[0].IsDefault ||
		again[0].TeamID != teams[0].TeamID || others[0].TeamID == teams[0].TeamID {
		t.Errorf("%+v, %+v, %+v", teams, again, others)
	}
	var box struct{ SandboxID string }
	f.E2B(key, "POST", "/v2/sandboxes", `{"templateID":"base"}`).Into(t, 201, &box)
	var points []struct {
		Timestamp           string
		TimestampUnix       int64
		ConcurrentSandboxes int
		SandboxStartRate    float64
	}
	path := "/teams/" + teams[0].TeamID + "/metrics"
	f.E2B(viewer, "GET", fmt.Sprintf("%s?start=%d", path, time.Now().Unix()-3600), "").Into(t, 200, &points)
	if len(points) < 400 || points[0].ConcurrentSandboxes != 0 || time.Since(time.Unix(points[len(points)-1].TimestampUnix, 0)) > time.Minute {
		t.Errorf("%d points, of which the first is %+v", len(points), points[0])
	}
	f.E2B(key, "GET", path, "").Into(t, 200, &points)
	began, err := f.Store.SandboxByID(t.Context(), box.SandboxID)
	if err != nil {
		t.Fatal(err)
	}
	for metric, want := range map[string]float64{"concurrent_sandboxes": 1, "sandbox_start_rate": 0.2} {
		var most struct{ Value float64 }
		at := began.CreatedAt.Unix() + 1 // one point of five seconds, however late it is
		f.E2B(key, "GET", fmt.Sprintf("%s/max?metric=%s&start=%d&end=%d", path, metric, at, at), "").Into(t, 200, &most)
		if most.Value != want {
			t.Errorf("%s: %v, want %v", metric, most.Value, want)
		}
	}
	var now struct{ Value float64 }
	f.E2B(key, "GET", fmt.Sprintf("%s/max?metric=concurrent_sandboxes&start=%d", path, time.Now().Unix()+3600), "").Into(t, 200, &now)
	if now.Value != 1 { // of a time to come it is now
		t.Errorf("in an hour: %v", now.Value)
	}
	for query, want := range map[string]int{"?start=2&end=1": 400, "?start=x": 400, "/max": 400, "/max?metric=cpu": 400, "?metric=x": 400} {
		if a := f.E2B(key, "GET", path+query, ""); a.Status != want || !isE2BError(a) {
			t.Errorf("%s: %d %s", query, a.Status, a.Body)
		}
	}
	if a := f.E2B(other, "GET", path, ""); a.Status != 403 || !isE2BError(a) {
		t.Errorf("another's metrics: %d %s", a.Status, a.Body)
	}
	type listed struct {
		ID, Name, Key, CreatedAt string
		LastUsed                 *string
		Mask                     struct {
			Prefix, MaskedValueSuffix string
			ValueLength               int
		}
	}
	var made listed
	f.E2B(key, "POST", "/api-keys", `{"name":"ci"}`).Into(t, 201, &made)
	if len(made.ID) != 36 || made.Name != "ci" || !sandbox.ValidKeySecret(made.Key) || !strings.HasSuffix(made.Key, made.Mask.MaskedValueSuffix) ||
		made.Mask.Prefix != "e2b_" || made.Mask.ValueLength != 40 {
		t.Errorf("%+v", made)
	}
	var all []listed
	if f.E2B(made.Key, "GET", "/api-keys", "").Into(t, 200, &all); len(all) != 3 || all[0].ID != made.ID || all[0].Key != "" {
		t.Errorf("%+v", all)
	}
	for who, want := range map[string]int{other: 404, viewer: 403} {
		if a := f.E2B(who, "DELETE", "/api-keys/"+made.ID, ""); a.Status != want || !isE2BError(a) {
			t.Errorf("another's key: %d %s", a.Status, a.Body)
		}
	}
	for who, want := range map[string]int{other: 404, viewer: 403} {
		if a := f.E2B(who, "PATCH", "/api-keys/"+made.ID, `{"name":"x"}`); a.Status != want || !isE2BError(a) {
			t.Errorf("another's key is renamed: %d %s", a.Status, a.Body)
		}
	}
	for _, body := range []string{``, `{"name":""}`, `{"name":"a\tb"}`, `{"name":"x","key":"y"}`} {
		if a := f.E2B(key, "PATCH", "/api-keys/"+made.ID, body); a.Status != 400 || !isE2BError(a) {
			t.Errorf("renamed by %s: %d %s", body, a.Status, a.Body)
		}
	}
	var renamed listed
	f.E2B(key, "PATCH", "/api-keys/"+made.ID, `{"name":"release"}`).Into(t, 200, &renamed)
	f.E2B(made.Key, "GET", "/api-keys", "").Into(t, 200, &all)
	if renamed.Name != "release" || renamed.Key != "" || all[0].ID != made.ID || all[0].Name != "release" {
		t.Errorf("renamed to %+v, %+v", renamed, all[0])
	}
	if a := f.E2B(key, "DELETE", "/api-keys/"+made.ID, ""); a.Status != 204 {
		t.Errorf("revoked: %d %s", a.Status, a.Body)
	}
	if a := f.E2B(made.Key, "GET", "/teams", ""); a.Status != 401 {
		t.Errorf("a revoked one: %d %s", a.Status, a.Body)
	}
}

// Pages of other origins may use this API, with keys that they know; ours they
// may not.
func TestE2BOrigins(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	ask := func(method, path string, header ...string) gatewaytest.Answer {
		t.Helper()
		req, err := http.NewRequest(method, f.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", "https://app.example")
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		return f.Raw(req)
	}
	const wanted, names = "Access-Control-Request-Method", "Access-Control-Request-Headers"
	for _, tt := range []struct {
		path, headers string
		open          bool
	}{
		{"/v2/sandboxes", "content-type,x-api-key,lang", true},
		{"/sandboxes/i00000000000000000000/connect", "authorization", true},
		{"/templates/a%2Fb/tags", "x-api-key", true},
		{"/process.Process/Start", "content-type, e2b-sandbox-id, e2b-sandbox-port", true},
		{"/process.Process/Start", "content-type", false},
		{"/api/v1/sessions", "authorization", false},
		{"/api/v1/auth/token", "content-type", false},
		{"/health", "", false},
	} {
		a := ask("OPTIONS", tt.path, wanted, "POST", names, tt.headers)
		open := a.Status == 204 && a.Header.Get("Access-Control-Allow-Origin") == "*" && a.Header.Get("Access-Control-Allow-Headers") == tt.headers
		if open != tt.open || a.Header.Get("Access-Control-Allow-Credentials") != "" || !open && a.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s: %d %v", tt.path, tt.headers, a.Status, a.Header)
		}
	}
	a := ask("GET", "/v2/sandboxes", "X-API-KEY", key)
	if a.Status != 200 || a.Header.Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(a.Header.Get("Access-Control-Expose-Headers"), "X-Next-Token") {
		t.Errorf("a list: %d %v", a.Status, a.Header)
	}
	if a := ask("GET", "/v2/sandboxes"); a.Status != 401 || a.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("without a key: %d %v", a.Status, a.Header)
	}
	if a := ask("GET", "/api/v1/sessions", "X-API-KEY", key); a.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("our own: %d %v", a.Status, a.Header)
	}
}

func TestE2BTransforms(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	const rules = `"rules":{"*.example.com":[{"transform":{"headers":{"X-Plain":"all below"}}}],"api.example.com":[{"transform":{"headers":{"Authorization":"Bearer ${e2b.secrets.KEY}","X-Key":"${e2b.secrets.KEY}","X-Plain":"a {value} ${b}"}}}]}`
	const want = `[{"name":"","host":"*.example.com","header":"X-Plain","format":"all below"},{"name":"KEY","host":"api.example.com","header":"Authorization","format":"Bearer {value}"},{"name":"KEY","host":"api.example.com","header":"X-Key"},{"name":"","host":"api.example.com","header":"X-Plain","format":"a {value} ${b}"}]`
	if a := f.DoAs(key, "POST", "/api/v1/secrets", `{"name":"KEY","value":"v"}`); a.Status != 201 {
		t.Fatalf("a secret: %d %s", a.Status, a.Body)
	}
	id := f.E2BSandbox(key, `{"templateID":"base","network":{`+rules+`}}`).SandboxID
	if got := f.Sandboxes.Record(id).Secrets; got != want {
		t.Errorf("the sandbox uses %s", got)
	}
	var info struct{ Network json.RawMessage }
	f.E2B(key, "GET", "/sandboxes/"+id, "").Into(t, 200, &info)
	if shown := string(info.Network); shown != `{"allowPublicTraffic":true,`+rules+`}` {
		t.Errorf("shown as %s", shown)
	}
	for _, tt := range []struct {
		body string
		want sandbox.SecretUses
	}{{`{}`, ""}, {`{` + rules + `,"denyOut":["1.1.1.1"]}`, want}} {
		if a := f.E2B(key, "PUT", "/sandboxes/"+id+"/network", tt.body); a.Status != 204 || f.Sandboxes.Record(id).Secrets != tt.want {
			t.Errorf("%s: %d %s, it uses %s", tt.body, a.Status, a.Body, f.Sandboxes.Record(id).Secrets)
		}
	}
}

// Values of headers are shown only to callers that may change them, wherever a sandbox is
// shown.
func TestPlainHeadersAreForWriters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	owner := f.Key("t", sandbox.RoleDeveloper)
	if a := f.DoAs(owner, "POST", "/api/v1/secrets", `{"name":"KEY","value":"v"}`); a.Status != 201 {
		t.Fatalf("a secret: %d %s", a.Status, a.Body)
	}
	id := f.E2BSandbox(owner, `{"templateID":"base","network":{"rules":{"api.example.com":[{"transform":{"headers":{"X-Key":"Bearer ${e2b.secrets.KEY}","X-Plain":"sk_plain"}}}]}}}`).SandboxID
	for what, key := range map[string]string{
		"an owner": owner, "who only writes": f.Key("t", sandbox.RoleAdmin, sandbox.ScopeRead, sandbox.ScopeWrite),
		"a viewer": f.Key("t", sandbox.RoleViewer), "who only reads": f.Key("t", sandbox.RoleOwner, sandbox.ScopeRead), "an operator who only reads": f.Key("t", sandbox.RoleOperator, sandbox.ScopeRead, sandbox.ScopeTenants),
	} {
		may := strings.HasSuffix(what, "an owner") || strings.HasSuffix(what, "writes")
		for path, shows := range map[string]bool{
			"GET /sandboxes/" + id: true, "GET /api/v1/sessions/" + id: true, "GET /api/v1/sessions": true,
			"GET /v2/sandboxes": false, "GET /sandboxes": false, "POST /cloudsandbox.sandbox.v1.SandboxService/Get": true, "POST /cloudsandbox.sandbox.v1.SandboxService/List": true,
		} {
			method, path, _ := strings.Cut(path, " ")
			body := ""
			if method == "POST" {
				body = `{}`
				if strings.HasSuffix(path, "/Get") {
					body = `{"sandboxId":"` + id + `"}`
				}
			}
			ask := f.Plain
			if strings.HasPrefix(path, "/api/v1/") {
				ask = f.With // which checks the contract
			}
			a := ask(method, path, body, "X-API-Key", key, "Content-Type", "application/json")
			text := string(a.Body)
			if a.Status != 200 || !strings.Contains(text, id) {
				t.Fatalf("%s, %s: %d %s", what, path, a.Status, text)
			}
			if strings.Contains(text, "sk_plain") != (may && shows) || strings.Contains(text, sandbox.HiddenValue) != (!may && shows) || strings.Contains(text, "X-Plain") != shows || strings.Contains(text, "Bearer") != shows {
				t.Errorf("%s, %s: %s", what, path, text)
			}
		}
	}
	if used := string(f.Sandboxes.Record(id).Secrets); !strings.Contains(used, "sk_plain") {
		t.Errorf("it uses %s", used)
	}
	for _, e := range f.Audit() {
		if strings.Contains(fmt.Sprintf("%+v", e), "sk_plain") {
			t.Errorf("the log has %+v", e)
		}
	}
	if log := f.Logs.String(); strings.Contains(log, "sk_plain") {
		t.Error("the value is in the log")
	}
}

// Names of secrets are in lower case, whatever clients write.
func TestE2BSecrets(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key, other := f.Key("t", sandbox.RoleDeveloper), f.Key("other", sandbox.RoleDeveloper)
	type secret struct {
		SecretID, Name       string
		CurrentVersion       int
		Metadata             map[string]string
		CreatedAt, UpdatedAt time.Time
	}
	var made, got secret
	a := f.E2B(key, "POST", "/secrets", `{"name":"API_Key","value":"hidden","metadata":{"env":"test"}}`)
	a.Into(t, 201, &made)
	if made.Name != "api_key" || made.CurrentVersion != 1 || made.Metadata["env"] != "test" || made.CreatedAt.IsZero() || strings.Contains(string(a.Body), "hidden") {
		t.Errorf("made: %s", a.Body)
	}
	for _, name := range []string{made.SecretID, "api_key", "API_Key"} {
		f.E2B(key, "GET", "/secrets/"+name, "").Into(t, 200, &got)
		if got.SecretID != made.SecretID {
			t.Errorf("%s is %+v", name, got)
		}
	}
	f.E2B(key, "POST", "/secrets/"+made.SecretID, `{"value":"other"}`).Into(t, 200, &got)
	if got.CurrentVersion != 2 || got.Metadata["env"] != "test" {
		t.Errorf("another value: %+v", got)
	}
	got.Metadata = nil
	f.E2B(key, "POST", "/secrets/api_key", `{"value":"third","metadata":{}}`).Into(t, 200, &got)
	if got.CurrentVersion != 3 || len(got.Metadata) != 0 || got.Metadata == nil {
		t.Errorf("a third value: %+v", got)
	}
	id := f.E2BSandbox(key, `{"templateID":"base","network":{"rules":{"api.example.com":[{"transform":{"headers":{"X-Key":"${e2b.secrets.API_KEY}"}}}]}}}`).SandboxID
	if got := f.Sandboxes.Record(id).Secrets; got != `[{"name":"api_key","host":"api.example.com","header":"X-Key"}]` {
		t.Errorf("the sandbox uses %s", got)
	}
	for _, name := range []string{"c", "b"} {
		f.E2B(key, "POST", "/secrets", `{"name":"`+name+`","value":"v"}`).Into(t, 201, &got)
	}
	names := ""
	for next, pages := "", 0; pages == 0 || next != ""; pages++ {
		var page []secret
		a := f.E2B(key, "GET", "/secrets?limit=2&nextToken="+next, "")
		a.Into(t, 200, &page)
		for _, s := range page {
			names += s.Name + " "
		}
		next = a.Header.Get("X-Next-Token")
	}
	if names != "api_key b c " {
		t.Errorf("all of them: %s", names)
	}
	for _, tt := range []struct {
		key, method, path, body string
		status                  int
		words                   string
	}{
		{key, "POST", "/secrets", `{"name":"api_KEY","value":"v"}`, 409, "name"},
		{key, "POST", "/secrets", `{"name":"a.b","value":"v"}`, 400, "letters"},
		{key, "POST", "/secrets", `{"name":"","value":"v"}`, 400, "letters"},
		{key, "POST", "/secrets", `{"name":"a"}`, 400, "value"},
		{key, "POST", "/secrets", `{"name":"a","value":"v","metadata":{"":"x"}}`, 400, "metadata"},
		{key, "POST", "/secrets", `{"name":"a","value":"v","metadata":{"x":"` + strings.Repeat("y", 1025) + `"}}`, 400, "metadata"},
		{key, "POST", "/secrets", `{"name":"a","value":"v","more":1}`, 400, "more"},
		{key, "GET", "/secrets?limit=0", "", 400, "limit"},
		{key, "GET", "/secrets?nextToken=*", "", 400, "next token"},
		{key, "GET", "/secrets/none", "", 404, "not found"},
		{key, "POST", "/secrets/none", `{"value":"v"}`, 404, "not found"},
		{key, "DELETE", "/secrets/none", "", 404, "not found"},
		{other, "GET", "/secrets/api_key", "", 404, "not found"},
		{other, "GET", "/secrets/" + made.SecretID, "", 404, "not found"},
		{other, "POST", "/secrets/" + made.SecretID, `{"value":"v"}`, 404, "not found"},
		{other, "DELETE", "/secrets/" + made.SecretID, "", 404, "not found"},
	} {
		if a := f.E2B(tt.key, tt.method, tt.path, tt.body); a.Status != tt.status || !strings.Contains(string(a.Body), tt.words) {
			t.Errorf("%s %s %s: %d %s", tt.method, tt.path, tt.body, a.Status, a.Body)
		}
	}
	if a := f.E2B(key, "DELETE", "/secrets/"+made.SecretID, ""); a.Status != 204 {
		t.Errorf("deleted: %d %s", a.Status, a.Body)
	}
	if a := f.E2B(key, "GET", "/secrets/api_key", ""); a.Status != 404 {
		t.Errorf("afterwards: %d %s", a.Status, a.Body)
	}
}

func TestE2BMetricsAndLogs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	id := f.E2BSandbox(key, `{"templateID":"base"}`).SandboxID
	var metrics []struct {
		TimestampUnix      int64
		CPUCount           int
		MemUsed, DiskTotal int64
	}
	f.E2B(key, "GET", "/sandboxes/"+id+"/metrics", "").Into(t, 200, &metrics)
	if len(metrics) != 1 || metrics[0].CPUCount != 2 || metrics[0].DiskTotal != 4 || metrics[0].TimestampUnix == 0 {
		t.Errorf("metrics: %+v", metrics)
	}
	f.E2B(key, "GET", fmt.Sprintf("/sandboxes/%s/metrics?start=%d", id, time.Now().Unix()+60), "").Into(t, 200, &metrics)
	if len(metrics) != 0 {
		t.Errorf("metrics of later: %+v", metrics)
	}
	for unit, now := range map[string]int64{"seconds": time.Now().Unix(), "milliseconds": time.Now().UnixMilli()} {
		asked := fmt.Sprintf("/sandboxes/%s/metrics?start=%d&end=%d", id, now-now/1_000_000, now+now/1_000_000)
		if f.E2B(key, "GET", asked, "").Into(t, 200, &metrics); len(metrics) == 0 {
			t.Errorf("no metrics by times in %s", unit)
		}
	}
	var all struct{ Sandboxes map[string]any }
	if f.E2B(key, "GET", "/sandboxes/metrics?sandbox_ids="+id+",nothing", "").Into(t, 200, &all); len(all.Sandboxes) != 1 {
		t.Errorf("metrics of all: %+v", all)
	}
	var logs struct{ Logs, LogEntries []map[string]any }
	if f.E2B(key, "GET", "/sandboxes/"+id+"/logs", "").Into(t, 200, &logs); len(logs.Logs) != 2 || len(logs.LogEntries) != 2 {
		t.Errorf("logs: %+v", logs)
	}
	if f.E2B(key, "GET", "/v2/sandboxes/"+id+"/logs?search=started&limit=1", "").Into(t, 200, &logs); len(logs.Logs) != 1 {
		t.Errorf("found: %+v", logs)
	}
	now := time.Now()
	f.Guest.LogEntries = []execution.LogEntry{
		{At: now.Add(time.Hour), Level: "error", Message: "of the future", Fields: map[string]string{"sandboxID": "another", "k": "v"}},
		{At: time.Unix(0, 0), Level: "debug", Message: "of long ago"},
	}
	var told struct {
		Logs []struct {
			Timestamp      time.Time
			Message, Level string
			Fields         map[string]string
		}
	}
	f.E2B(key, "GET", "/v2/sandboxes/"+id+"/logs?direction=forward&level=debug&search=of", "").Into(t, 200, &told)
	if len(told.Logs) != 2 || told.Logs[0].Message != "of long ago" || told.Logs[0].Timestamp.Year() < 2000 || told.Logs[1].Level != "error" ||
		told.Logs[1].Fields["sandboxID"] != id || told.Logs[1].Fields["k"] != "v" || told.Logs[1].Timestamp.After(time.Now().Add(time.Second)) {
		t.Errorf("what was logged inside: %+v", told)
	}
}

func TestE2BCredentials(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	for name, tt := range map[string]struct {
		header []string
		status int
	}{
		"a key":                     {[]string{"X-API-Key", key}, 200},
		"a key as bearer":           {[]string{"Authorization", "Bearer " + key}, 200},
		"a token":                   {[]string{"Authorization", "Bearer " + f.Token}, 200},
		"a key beside an old token": {[]string{"X-API-Key", key, "Authorization", "Bearer sk_e2b_0"}, 200},
		"nothing":                   {nil, 401},
		"a wrong key":               {[]string{"X-API-Key", "e2b_0000000000000000000000000000000000000000"}, 401},
	} {
		req, _ := http.NewRequest("GET", f.URL+"/v2/sandboxes", nil)
		for i := 0; i < len(tt.header); i += 2 {
			req.Header.Set(tt.header[i], tt.header[i+1])
		}
		if a := f.Raw(req); a.Status != tt.status || a.Status != 200 && !isE2BError(a) {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
}

// A client that repeats a create because it heard nothing gets the same one.
func TestE2BCreatesOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	var ids []string
	for range 2 {
		req, _ := http.NewRequest("POST", f.URL+"/v2/sandboxes", strings.NewReader(`{"templateID":"base"}`))
		req.Header.Set("X-API-Key", key)
		req.Header.Set("Idempotency-Key", "once-1")
		var sb gatewaytest.E2BSandbox
		f.Raw(req).Into(t, 201, &sb)
		ids = append(ids, sb.SandboxID)
	}
	if ids[0] != ids[1] || f.Sandboxes.Live() != 1 {
		t.Errorf("%v, %d live", ids, f.Sandboxes.Live())
	}
}

// Operations that are idempotent over REST are idempotent over E2B's API. A repeat gets
// the first answer, without the secret of a key, which is stored nowhere.
func TestE2BIdempotency(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleOwner)
	for path, body := range map[string]string{
		"/api-keys": `{"name":"a"}`, "/secrets": `{"name":"a","value":"v"}`,
	} {
		ask := func() gatewaytest.Answer { return f.e2bOnce(key, path, body, "one"+path) }
		first, again := ask(), ask()
		if first.Status != 201 || again.Status != 201 || again.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: %d %s, then %d %s", path, first.Status, first.Body, again.Status, again.Body)
			continue
		}
		var told, repeated map[string]any
		first.Into(t, 201, &told)
		again.Into(t, 201, &repeated)
		if path == "/api-keys" {
			if told["key"] == nil || repeated["key"] != nil {
				t.Errorf("the key is %v, then %v", told["key"], repeated["key"])
			}
			delete(told, "key")
		}
		if !reflect.DeepEqual(told, repeated) {
			t.Errorf("%s: %v, then %v", path, told, repeated)
		}
	}
}

// e2bOnce posts a request with an Idempotency-Key.
func (f *fixture) e2bOnce(key, path, body, once string) gatewaytest.Answer {
	req, _ := http.NewRequest("POST", f.URL+path, strings.NewReader(body))
	req.Header.Set("X-API-Key", key)
	req.Header.Set("Idempotency-Key", once)
	return f.Raw(req)
}

// A repeat of POST /volumes finds the volume and signs a fresh token: the token of the
// first answer is stored nowhere.
func TestE2BVolumeTokenIsNotKept(t *testing.T) {
	t.Parallel()
	spy := new(gatewaytest.OnceSpy)
	f := newFixture(t, func(c *gateway.Config) { spy.IdempotencyStore, c.Store = c.Store, spy })
	key := f.Key("t", sandbox.RoleOwner)
	var first, again struct{ VolumeID, Token string }
	f.e2bOnce(key, "/volumes", `{"name":"a"}`, "k").Into(t, 201, &first)
	a := f.e2bOnce(key, "/volumes", `{"name":"a"}`, "k")
	a.Into(t, 201, &again)
	if first.Token == "" || again.Token == "" || first.VolumeID != again.VolumeID || a.Header.Get("Idempotent-Replayed") != "" {
		t.Errorf("%+v, then %+v with %v", first, again, a.Header)
	}
	if v, err := f.Sandboxes.ListVolumes(t.Context(), "t"); err != nil || len(v) != 1 {
		t.Errorf("%d volumes, %v", len(v), err)
	}
	if n := len(spy.Answers()); n != 0 {
		t.Errorf("%d answers are stored", n)
	}
	if a := f.e2bOnce(key, "/volumes", `{"name":"b"}`, "k"); a.Status != 409 {
		t.Errorf("another body: %d %s", a.Status, a.Body)
	}
}

// The audit log names the secret that a request changed or removed.
func TestE2BSecretsInTheAuditLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleOwner)
	f.E2B(key, "POST", "/secrets", `{"name":"a","value":"v"}`)
	for _, method := range []string{"POST", "DELETE"} {
		e := f.AuditOf(func() {
			body := ""
			if method == "POST" {
				body = `{"value":"w"}`
			}
			if a := f.E2B(key, method, "/secrets/a", body); a.Status >= 300 {
				t.Errorf("%s: %d %s", method, a.Status, a.Body)
			}
		})
		if e.Target != "a" || e.Operation != method+" /secrets/{secret}" {
			t.Errorf("%s is recorded as %+v", method, e)
		}
	}
}

// A viewer sees no token that runs programs.
func TestViewerSeesNoTokenOfE2B(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var made, seen gatewaytest.E2BSandbox
	f.E2B(f.Key("t", sandbox.RoleDeveloper), "POST", "/v2/sandboxes", `{"templateID":"base"}`).Into(t, 201, &made)
	f.E2B(f.Key("t", sandbox.RoleViewer), "GET", "/sandboxes/"+made.SandboxID, "").Into(t, 200, &seen)
	if made.EnvdAccessToken == "" || seen.SandboxID != made.SandboxID || seen.EnvdAccessToken != "" {
		t.Errorf("made %+v, seen as %+v", made, seen)
	}
}
