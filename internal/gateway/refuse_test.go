package gateway_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

// Every route's bad inputs, and what each answers. ID stands for a Sandbox that
// runs.
func TestBadInputs(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
	long := strings.Repeat("x", 5000)
	deep := strings.Repeat(`{"a":`, 20000)
	for _, tt := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/api/v1/auth/token", `{"user_id":"","role":"user"}`, 400, "user_id"},
		{"POST", "/api/v1/auth/token", `{"user_id":"a\u0000b","role":"user"}`, 400, "printable"},
		{"POST", "/api/v1/auth/token", `{"user_id":"` + strings.Repeat("é", 129) + `","role":"user"}`, 400, "128"},
		{"POST", "/api/v1/auth/token", `{"user_id":"a","role":"root"}`, 400, "role"},
		{"POST", "/api/v1/auth/token", ``, 400, "user_id"},
		{"POST", "/api/v1/auth/token", `{"user_id":"a","role":"user","tenant":"b"}`, 400, `unknown field \"tenant\"`},
		{"POST", "/api/v1/auth/token", `{"user_id":"` + long + `"}`, 413, "4096 bytes"},

		{"POST", "/api/v1/sandbox/acquire", `{"bogus":1}`, 400, `unknown field \"bogus\"`},
		{"POST", "/api/v1/sandbox/acquire", `{} {}`, 400, "goes on"},
		{"POST", "/api/v1/sandbox/acquire", `{}x`, 400, "goes on"},
		{"POST", "/api/v1/sandbox/acquire", `[]`, 400, "JSON object"},
		{"POST", "/api/v1/sandbox/acquire", `null`, 400, "JSON object"},
		{"POST", "/api/v1/sandbox/acquire", `{"name":`, 400, "ends early"},
		{"POST", "/api/v1/sandbox/acquire", `{"name":}`, 400, "not JSON"},
		{"POST", "/api/v1/sandbox/acquire", "{\"name\":\"\xff\"}", 400, "UTF-8"},
		{"POST", "/api/v1/sandbox/acquire", deep, 400, ""},
		{"POST", "/api/v1/sandbox/acquire", `{"name":1}`, 400, "name must not be"},
		{"POST", "/api/v1/sandbox/acquire", `{"metadata":{"a":1}}`, 400, "must not be"},
		{"POST", "/api/v1/sandbox/acquire", `{"timeout_seconds":0}`, 400, "seconds"},
		{"POST", "/api/v1/sandbox/acquire", `{"timeout_seconds":-1}`, 400, "seconds"},
		{"POST", "/api/v1/sandbox/acquire", `{"timeout_seconds":86401}`, 400, "timeout_seconds"},
		{"POST", "/api/v1/sandbox/acquire", `{"timeout_seconds":1e300}`, 400, "seconds"},
		{"POST", "/api/v1/sandbox/acquire", `{"timeout_seconds":"1"}`, 400, "seconds"},
		{"POST", "/api/v1/sandbox/acquire", `{"network":"all"}`, 400, "network"},
		{"POST", "/api/v1/sandbox/acquire", `{"network":{}}`, 400, "network"},
		{"POST", "/api/v1/sandbox/acquire", `{"env":{"1A":"x"}}`, 400, "environment variable"},
		{"POST", "/api/v1/sandbox/acquire", `{"template":"nope"}`, 404, "template"},
		{"POST", "/api/v1/sandbox/acquire", strings.Repeat(" ", 1<<20) + "{}", 413, "1048576 bytes"},

		{"POST", "/api/v1/sessions", `{"name":"UPPER"}`, 400, "name"},
		{"POST", "/api/v1/sessions", `{"snapshot_id":"s"}`, 501, "snapshot_id"},
		{"POST", "/api/v1/sessions", `{"volumes":[]}`, 501, "volumes"},
		{"POST", "/api/v1/sessions", `{"secrets":null}`, 501, "secrets"},
		{"POST", "/api/v1/sessions", `{"idle_timeout_seconds":5}`, 501, "idle_timeout_seconds"},
		{"POST", "/api/v1/sessions", `{"auto_resume":true}`, 501, "auto_resume"},
		{"POST", "/api/v1/sessions", `{"on_timeout":"pause"}`, 501, "on_timeout"},
		{"POST", "/api/v1/sessions", `{"on_timeout":"explode"}`, 400, "on_timeout"},
		{"POST", "/api/v1/sessions", `{"if_exists":"return"}`, 501, "if_exists"},
		{"POST", "/api/v1/sessions", `{"if_exists":"panic"}`, 400, "if_exists"},
		{"POST", "/api/v1/sessions", `{"resources":{"gpus":1}}`, 400, `unknown field \"gpus\"`},
		{"POST", "/api/v1/sessions", `{"resources":{"cpus":0}}`, 400, "cpus"},
		{"POST", "/api/v1/sessions", `{"resources":{"cpus":1e9}}`, 400, "cpus"},
		{"POST", "/api/v1/sessions", `{"resources":{"memory_mb":1}}`, 400, "memory_mb"},
		{"POST", "/api/v1/sessions", `{"resources":{"memory_mb":9223372036854775807}}`, 400, "memory_mb"},
		{"POST", "/api/v1/sessions", `{"resources":{"disk_mb":-9223372036854775808}}`, 400, "disk_mb"},
		{"POST", "/api/v1/sessions", `{"resources":{"pids":1.5}}`, 400, "pids"},
		{"POST", "/api/v1/sessions", `{"resources":{"pids":0}}`, 400, "pids"},
		{"GET", "/api/v1/sessions?limit=0", "", 400, "limit"},
		{"GET", "/api/v1/sessions?limit=101", "", 400, "limit"},
		{"GET", "/api/v1/sessions?limit=x", "", 400, "limit"},
		{"GET", "/api/v1/sessions?state=dead", "", 400, "state"},
		{"GET", "/api/v1/sessions?state=" + strings.Repeat(",", 100), "", 400, "state"},
		{"GET", "/api/v1/sessions?page=2", "", 400, "page"},
		{"GET", "/api/v1/sessions?limit=1&limit=2", "", 400, "twice"},
		{"GET", "/api/v1/sessions?limit=%zz", "", 400, "malformed"},
		{"GET", "/api/v1/sessions?cursor=" + long[:600], "", 400, "cursor"},
		{"GET", "/api/v1/sessions", "body", 400, "no body"},
		{"POST", "/api/v1/sessions/ID/timeout", `{}`, 400, "timeout_seconds"},
		{"POST", "/api/v1/sessions/ID/timeout", `{"timeout_seconds":86401}`, 400, "timeout_seconds"},
		{"POST", "/api/v1/sandbox/release", ``, 400, "sandbox_id is missing"},
		{"POST", "/api/v1/sandbox/release", `{"sandbox_id":"a","session_id":"b"}`, 400, "different"},
		{"GET", "/api/v1/sandbox/stats?x=1", "", 400, "x"},

		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"","language":"python"}`, 400, "code is empty"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":" \n","language":"python"}`, 400, "code is empty"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x"}`, 400, "python, javascript, bash"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"cobol"}`, 400, "python, javascript, bash"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"a\u0000b","language":"bash"}`, 400, "zero byte"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","timeout_seconds":3601}`, 400, "timeout_seconds"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","timeout_seconds":0}`, 400, "seconds"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","max_output_bytes":0}`, 400, "max_output_bytes"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","max_output_bytes":16777217}`, 400, "max_output_bytes"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","env":{"A=B":"c"}}`, 400, "environment variable"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","context_id":"c"}`, 501, "context_id"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","cwd":"` + long + `"}`, 413, "cwd"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","language":"bash","code":"` + strings.Repeat("x", 1<<20+1) + `"}`, 413, "code has 1048577 bytes"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","language":"bash","code":"x","stdin":"` + strings.Repeat("x", 1<<20+1) + `"}`, 413, "stdin"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","language":"bash","code":"` + strings.Repeat("x", 9<<20) + `"}`, 413, "body"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"i00000000000000000000","code":"x","language":"bash"}`, 404, "no such sandbox"},

		{"GET", "/api/v1/files?path=a", "", 400, "sandbox_id is missing"},
		{"GET", "/api/v1/files?sandbox_id=ID", "", 400, "path is missing"},
		{"GET", "/api/v1/files?sandbox_id=ID&path=a%00b", "", 400, "zero byte"},
		{"GET", "/api/v1/files?sandbox_id=ID&path=" + long, "", 400, "4096"},
		{"GET", "/api/v1/files?sandbox_id=ID&path=nope", "", 404, "file"},
		{"GET", "/api/v1/files?sandbox_id=ID&path=a&user=root", "", 400, "user"},
		{"GET", "/api/v1/files?sandbox_id=ID&session_id=other&path=a", "", 400, "different"},
		{"GET", "/api/v1/files?sandbox_id=ID&path=%ff", "", 400, "UTF-8"},
		{"PUT", "/api/v1/files?sandbox_id=ID", "x", 400, "path is missing"},
		{"DELETE", "/api/v1/files?sandbox_id=ID&path=/", "", 400, "root"},
		{"DELETE", "/api/v1/files?sandbox_id=ID&path=/..//.", "", 400, "root"},
		{"DELETE", "/api/v1/files?sandbox_id=ID&path=nope", "", 404, "file"},
		{"DELETE", "/api/v1/files?sandbox_id=ID&path=a&recursive=yes", "", 400, "recursive"},
		{"GET", "/api/v1/files/list?sandbox_id=ID&path=/workspace&depth=0", "", 400, "depth"},
		{"GET", "/api/v1/files/list?sandbox_id=ID&path=/workspace&depth=33", "", 400, "depth"},
		{"GET", "/api/v1/files/stat?sandbox_id=ID&path=nope", "", 404, "file"},
		{"POST", "/api/v1/files/mkdir", `{"sandbox_id":"ID"}`, 400, "path is missing"},
		{"POST", "/api/v1/files/mkdir", `{"path":"/a"}`, 400, "sandbox_id is missing"},
		{"POST", "/api/v1/files/mkdir", `{"sandbox_id":"ID","path":"/workspace"}`, 409, "exists"},
		{"POST", "/api/v1/files/move", `{"sandbox_id":"ID","source":"a"}`, 400, "destination is missing"},
		{"POST", "/api/v1/files/move", `{"sandbox_id":"ID","destination":"a"}`, 400, "source is missing"},
		{"POST", "/api/v1/files/move", `{"sandbox_id":"ID","source":"nope","destination":"a"}`, 404, "file"},

		{"GET", "/", "", 404, "path"},
		{"GET", "/api/v1/nothing", "", 404, "path"},
		{"GET", "/api/v1//sessions", "", 404, "path"},
		{"GET", "/api/v1/sessions/", "", 404, "path"},
		{"GET", "/api/v1/../v1/sessions", "", 404, "path"},
		{"PATCH", "/api/v1/sessions/ID", "{}", 405, "PATCH"},
		{"GET", "/api/v1/execute", "", 405, "GET"},
		{"BREW", "/health", "", 405, "BREW"},
	} {
		path, body := strings.ReplaceAll(tt.path, "ID", id), strings.ReplaceAll(tt.body, `"ID"`, `"`+id+`"`)
		a := f.do(tt.method, path, body)
		if a.status != tt.status || !bytes.Contains(a.body, []byte(tt.says)) {
			t.Errorf("%s %.80s %.80s = %d %.300s, want %d and %q", tt.method, tt.path, tt.body, a.status, a.body, tt.status, tt.says)
		}
		if a.code(t); a.header.Get("X-Request-Id") == "" {
			t.Errorf("%s %.80s has no request id", tt.method, tt.path)
		}
	}
	if a := f.do("PATCH", "/api/v1/sessions/x", ""); a.header.Get("Allow") != "DELETE, GET, HEAD" {
		t.Errorf("Allow: %q", a.header.Get("Allow"))
	}
}

// Another Tenant's ID or name answers to the byte as an absent one, on every
// route.
func TestTenantsAreInvisible(t *testing.T) {
	f := newFixture(t)
	var v view
	f.do("POST", "/api/v1/sessions", `{"name":"mine"}`).into(t, 201, &v)
	f.do("PUT", "/api/v1/files?path=a&sandbox_id="+v.SandboxID, "x")
	other := f.mint("other")
	for _, route := range []struct{ method, path, body string }{
		{"GET", "/api/v1/sessions/ID", ""},
		{"DELETE", "/api/v1/sessions/ID", ""},
		{"POST", "/api/v1/sessions/ID/timeout", `{"timeout_seconds":5}`},
		{"POST", "/api/v1/sandbox/release", `{"sandbox_id":"ID"}`},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash"}`},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","stream":true}`},
		{"GET", "/api/v1/files?path=a&sandbox_id=ID", ""},
		{"PUT", "/api/v1/files?path=a&sandbox_id=ID", "y"},
		{"DELETE", "/api/v1/files?path=a&sandbox_id=ID", ""},
		{"GET", "/api/v1/files/list?path=/workspace&sandbox_id=ID", ""},
		{"GET", "/api/v1/files/stat?path=a&sandbox_id=ID", ""},
		{"POST", "/api/v1/files/mkdir", `{"sandbox_id":"ID","path":"b"}`},
		{"POST", "/api/v1/files/move", `{"sandbox_id":"ID","source":"a","destination":"b"}`},
	} {
		ask := func(id string) answer {
			return f.doAs(other, route.method, strings.ReplaceAll(route.path, "ID", id), strings.ReplaceAll(route.body, "ID", id))
		}
		absent := ask("i00000000000000000000")
		if absent.status != 404 {
			t.Errorf("%s %s: absent is %d %s", route.method, route.path, absent.status, absent.body)
		}
		for _, id := range []string{v.SandboxID, "mine"} {
			a := ask(id)
			for _, h := range []string{"X-Request-Id", "Date"} {
				a.header.Del(h)
				absent.header.Del(h)
			}
			if a.status != absent.status || !bytes.Equal(a.body, absent.body) || fmt.Sprint(a.header) != fmt.Sprint(absent.header) {
				t.Errorf("%s %s: %d %s %v, absent: %d %s %v", route.method, route.path, a.status, a.body, a.header, absent.status, absent.body, absent.header)
			}
		}
	}
	var page struct{ Sessions []view }
	f.doAs(other, "GET", "/api/v1/sessions", "").into(t, 200, &page)
	if len(page.Sessions) != 0 {
		t.Errorf("another tenant lists %+v", page.Sessions)
	}
	f.do("GET", "/api/v1/sessions/mine", "").into(t, 200, &v)
	if v.State != "running" || len(f.guest.runs) != 0 {
		t.Errorf("another tenant changed it: %+v, %d runs", v, len(f.guest.runs))
	}
}

// forge makes a token that differs from a valid one in one thing.
func forge(t *testing.T, method jwt.SigningMethod, key any, change func(jwt.MapClaims)) string {
	t.Helper()
	now := time.Now()
	c := jwt.MapClaims{
		"tenant": "dev:test", "user": "test", "role": "developer",
		"iss": "cloud-sandbox", "aud": []string{"cloud-sandbox-api"},
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	if change != nil {
		change(c)
	}
	token, err := jwt.NewWithClaims(method, c).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestTokenAttacks(t *testing.T) {
	f := newFixture(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	hs := jwt.SigningMethodHS256
	good := forge(t, hs, secret, nil)
	if a := f.doAs(good, "GET", "/api/v1/sessions", ""); a.status != 200 {
		t.Fatalf("the unchanged token: %d %s", a.status, a.body)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	parts := strings.Split(good, ".")
	with := func(key string, value any) string {
		return forge(t, hs, secret, func(c jwt.MapClaims) {
			if c[key] = value; value == nil {
				delete(c, key)
			}
		})
	}
	headers := map[string][]string{
		"no header":        nil,
		"empty":            {""},
		"no token":         {"Bearer"},
		"an empty token":   {"Bearer "},
		"basic":            {"Basic dXNlcjpwYXNz"},
		"two spaces":       {"Bearer  " + good},
		"space after":      {"Bearer " + good + " x"},
		"two headers":      {"Bearer " + good, "Bearer " + good},
		"garbage":          {"Bearer garbage"},
		"dots":             {"Bearer .."},
		"bytes":            {"Bearer \xff\xfe"},
		"huge":             {"Bearer " + strings.Repeat("a", 50_000)},
		"huge but valid":   {"Bearer " + with("user", strings.Repeat("u", 10_000))},
		"alg none":         {"Bearer " + forge(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, nil)},
		"alg none, signed": {"Bearer " + b64([]byte(`{"alg":"none"}`)) + "." + parts[1] + "." + parts[2]},
		"alg NONE":         {"Bearer " + b64([]byte(`{"alg":"NONE"}`)) + "." + parts[1] + "."},
		"HS384":            {"Bearer " + forge(t, jwt.SigningMethodHS384, secret, nil)},
		"HS512":            {"Bearer " + forge(t, jwt.SigningMethodHS512, secret, nil)},
		"RS256":            {"Bearer " + forge(t, jwt.SigningMethodRS256, rsaKey, nil)},
		"RS256 header":     {"Bearer " + b64([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + parts[1] + "." + parts[2]},
		"another secret":   {"Bearer " + forge(t, hs, []byte("another secret of thirty-two byte"), nil)},
		"empty secret":     {"Bearer " + forge(t, hs, []byte{}, nil)},
		"no signature":     {"Bearer " + parts[0] + "." + parts[1] + "."},
		"cut signature":    {"Bearer " + good[:len(good)-2]},
		"changed claims":   {"Bearer " + parts[0] + "." + b64([]byte(`{"tenant":"dev:other","role":"admin"}`)) + "." + parts[2]},
		"expired":          {"Bearer " + with("exp", time.Now().Add(-time.Second).Unix())},
		"no exp":           {"Bearer " + with("exp", nil)},
		"text exp":         {"Bearer " + with("exp", "tomorrow")},
		"not yet issued":   {"Bearer " + with("iat", time.Now().Add(time.Hour).Unix())},
		"not yet valid":    {"Bearer " + with("nbf", time.Now().Add(time.Hour).Unix())},
		"wrong aud":        {"Bearer " + with("aud", "another-api")},
		"no aud":           {"Bearer " + with("aud", nil)},
		"wrong iss":        {"Bearer " + with("iss", "somebody")},
		"no iss":           {"Bearer " + with("iss", nil)},
		"no tenant":        {"Bearer " + with("tenant", nil)},
		"empty tenant":     {"Bearer " + with("tenant", "")},
		"huge tenant":      {"Bearer " + with("tenant", strings.Repeat("t", 129))},
		"no role":          {"Bearer " + with("role", nil)},
		"unknown role":     {"Bearer " + with("role", "root")},
	}
	var first []byte
	for name, values := range headers {
		req, err := http.NewRequest("POST", f.url+"/api/v1/sandbox/acquire", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if values != nil {
			req.Header["Authorization"] = values
		}
		resp, err := f.client.Do(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode == 400 && name == "bytes" {
			continue // refused before it is ours
		}
		if first == nil {
			first = body
		}
		if resp.StatusCode != 401 || !bytes.Equal(body, first) || resp.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	if f.sandboxes.live() != 0 {
		t.Error("a sandbox was acquired")
	}
	if strings.Contains(f.logs.String(), good) || strings.Contains(f.logs.String(), parts[2]) {
		t.Error("a token is in the log")
	}
}

func TestTokensOutsideDevMode(t *testing.T) {
	f := newFixture(t, func(c *gateway.Config) { c.Dev = false })
	a := f.doAs("", "POST", "/api/v1/auth/token", `{"user_id":"a","role":"user"}`)
	if a.status != 403 || !bytes.Contains(a.body, []byte("cloud-sandbox token create")) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A web page elsewhere cannot have a browser on this machine fetch a token.
func TestTokensAreForThisMachine(t *testing.T) {
	f := newFixture(t)
	for _, change := range []func(*http.Request){
		func(r *http.Request) { r.Host = "evil.example" },
		func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
	} {
		req, _ := http.NewRequest("POST", f.url+"/api/v1/auth/token", strings.NewReader(`{"user_id":"a","role":"user"}`))
		change(req)
		if a := f.send(req); a.status != 403 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

func TestDevTenantsDiffer(t *testing.T) {
	seen := map[sandbox.TenantID]string{}
	long := strings.Repeat("é", 127)
	for _, user := range []string{"a", "A", "b", "dev:a", long + "a", long + "b", strings.Repeat("x", 124), strings.Repeat("x", 125)} {
		who, err := gateway.DevIdentity(user, "user")
		if err != nil {
			t.Errorf("%q: %v", user, err)
		}
		if len(who.Tenant) > 128 || seen[who.Tenant] != "" {
			t.Errorf("%q is tenant %q, as is %q", user, who.Tenant, seen[who.Tenant])
		}
		seen[who.Tenant] = user
	}
}

func TestMintRefuses(t *testing.T) {
	if _, err := gateway.NewTokens(secret[:31], nil); err == nil {
		t.Error("a short secret was taken")
	}
	tokens, err := gateway.NewTokens(secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []sandbox.Identity{
		{}, {Tenant: "t"}, {Tenant: "t", Role: "root"}, {Role: sandbox.RoleAdmin},
		{Tenant: sandbox.TenantID(strings.Repeat("t", 129)), Role: sandbox.RoleAdmin},
	} {
		if _, _, err := tokens.Mint(who, 0); sandbox.CodeOf(err) != sandbox.Invalid {
			t.Errorf("%+v: %v", who, err)
		}
	}
	if _, _, err := tokens.Mint(sandbox.Identity{Tenant: "t", Role: sandbox.RoleAdmin}, -time.Second); err == nil {
		t.Error("a token for the past")
	}
}
