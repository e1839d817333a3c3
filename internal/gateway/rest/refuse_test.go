package rest_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// Every route's bad inputs, and what each answers. ID stands for a Sandbox that
// runs.
func TestBadInputs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
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
		{"POST", "/api/v1/sandbox/acquire", `{} {}`, 400, "more text after"},
		{"POST", "/api/v1/sandbox/acquire", `{}x`, 400, "more text after"},
		{"POST", "/api/v1/sandbox/acquire", `[]`, 400, "JSON object"},
		{"POST", "/api/v1/sandbox/acquire", `null`, 400, "JSON object"},
		{"POST", "/api/v1/sandbox/acquire", `{"name":`, 400, "ends early"},
		{"POST", "/api/v1/sandbox/acquire", `{"name":}`, 400, "not JSON"},
		{"POST", "/api/v1/sandbox/acquire", "{\"name\":\"\xff\"}", 400, "UTF-8"},
		{"POST", "/api/v1/sandbox/acquire", deep, 400, ""},
		{"POST", "/api/v1/sandbox/acquire", `{"name":1}`, 400, "name must be a string, not a number"},
		{"POST", "/api/v1/sandbox/acquire", `{"metadata":{"a":1}}`, 400, "what metadata holds must be a string, not a number"},
		{"POST", "/api/v1/sandbox/acquire", `{"timeout_seconds":0}`, 400, "seconds"},
		{"POST", "/api/v1/sandbox/acquire", `{"timeout_seconds":-1}`, 400, "seconds"},
		{"POST", "/api/v1/sandbox/acquire", `{"timeout_seconds":86401}`, 400, "timeout_seconds"},
		{"POST", "/api/v1/sandbox/acquire", `{"timeout_seconds":1e300}`, 400, "seconds"},
		{"POST", "/api/v1/sandbox/acquire", `{"timeout_seconds":"1"}`, 400, "seconds"},
		{"POST", "/api/v1/sandbox/acquire", `{"network":"all"}`, 400, "network"},
		{"POST", "/api/v1/sandbox/acquire", `{"network":{}}`, 400, "network"},
		{"POST", "/api/v1/sandbox/acquire", `{"resources":{"type":"huge"}}`, 400, "standard-1"},
		{"PATCH", "/api/v1/sessions/ID", `{"resources":{"type":"lite"}}`, 409, "instance type"},
		{"POST", "/api/v1/sandbox/acquire", `{"env":{"1A":"x"}}`, 400, "environment variable"},
		{"POST", "/api/v1/sandbox/acquire", `{"template":"nope"}`, 404, "template"},
		{"POST", "/api/v1/sandbox/acquire", strings.Repeat(" ", 1<<20) + "{}", 413, "1048576 bytes"},

		{"POST", "/api/v1/sessions", `{"name":"UPPER"}`, 400, "name"},
		{"POST", "/api/v1/sessions", `{"snapshot_id":"S!"}`, 400, "snapshot_id"},
		{"POST", "/api/v1/sessions", `{"snapshot_id":"` + sandbox.NewSnapshotID() + `"}`, 404, "no snapshot"},
		{"POST", "/api/v1/sessions", `{"snapshot_id":"` + sandbox.NewSnapshotID() + `","template":"base"}`, 400, "template"},
		{"POST", "/api/v1/sessions", `{"snapshot_id":"` + sandbox.NewSnapshotID() + `","resources":{}}`, 400, "resources"},
		{"POST", "/api/v1/sessions/ID/pause", `{"memory":1}`, 400, "memory must be true or false, not a number"},
		{"POST", "/api/v1/sessions/ID/pause", `{"x":1}`, 400, `unknown field \"x\"`},
		{"POST", "/api/v1/sessions/ID/resume", `{"x":1}`, 400, `unknown field \"x\"`},
		{"POST", "/api/v1/sessions/ID/rollback", ``, 400, "snapshot_id is missing"},
		{"POST", "/api/v1/sessions/ID/rollback", `{"snapshot_id":"nothing"}`, 404, "no snapshot"},
		{"POST", "/api/v1/sessions/ID/fork", `{"count":0}`, 400, "count"},
		{"POST", "/api/v1/sessions/ID/fork", `{"count":101}`, 400, "count"},
		{"POST", "/api/v1/sessions/ID/fork", `{"count":1.5}`, 400, "count"},
		{"POST", "/api/v1/sessions/ID/fork", `{"name":"UPPER"}`, 400, "name"},
		{"POST", "/api/v1/sessions/ID/fork", `{"count":2,"name":"` + strings.Repeat("a", 60) + `"}`, 400, "name"},
		{"POST", "/api/v1/sessions/ID/fork", `{"on_timeout":"kill"}`, 400, "on_timeout"},
		{"POST", "/api/v1/sessions/ID/fork", `{"env":{"1A":"x"}}`, 400, "environment variable"},
		{"POST", "/api/v1/sessions/ID/fork", `{"idle_timeout_seconds":0.1}`, 400, "idle_timeout_seconds"},
		{"POST", "/api/v1/sessions/ID/fork", `{"network":"all"}`, 400, "network"},
		{"POST", "/api/v1/sessions/ID/fork", `{"timeout_seconds":86401}`, 400, "timeout_seconds"},
		{"POST", "/api/v1/sessions/ID/snapshots", `{"name":"A B"}`, 400, "name"},
		{"GET", "/api/v1/sessions/ID/snapshots?limit=1", "", 400, "limit"},
		{"GET", "/api/v1/snapshots?limit=0", "", 400, "limit"},
		{"GET", "/api/v1/snapshots?x=0", "", 400, "x"},
		{"GET", "/api/v1/snapshots?cursor=" + long[:600], "", 400, "cursor"},
		{"GET", "/api/v1/snapshots?cursor=x", "", 400, "cursor"},
		{"GET", "/api/v1/snapshots/nothing", "", 404, "no snapshot"},
		{"DELETE", "/api/v1/snapshots/nothing", "", 404, "no snapshot"},
		{"POST", "/api/v1/sessions", `{"volumes":{}}`, 400, "volumes must be a list"},
		{"POST", "/api/v1/sessions", `{"volumes":["a"]}`, 400, "volumes must be a list"},
		{"POST", "/api/v1/sessions", `{"volumes":[{"volume":"a","path":"/a","mode":"ro"}]}`, 400, "volumes must be a list"},
		{"POST", "/api/v1/sessions", `{"volumes":[{"path":"/a"}]}`, 400, "name the volume"},
		{"POST", "/api/v1/sessions", `{"volumes":[{"volume":"a"}]}`, 400, "the path of a mounted volume"},
		{"POST", "/api/v1/sessions", `{"volumes":[{"volume":"a","path":"/"}]}`, 400, "cannot be mounted at /"},
		{"POST", "/api/v1/sessions", `{"volumes":[{"volume":"a","path":"/a"},{"volume":"b","path":"/a/b"}]}`, 400, "one would hide the other"},
		{"POST", "/api/v1/sessions", `{"volumes":[{"volume":"none","path":"/a"}]}`, 400, "no volume"},
		{"PATCH", "/api/v1/sessions/ID", `{"volumes":[{"volume":"a","path":"/a"}]}`, 409, "the volumes cannot change"},
		{"POST", "/api/v1/volumes", `{}`, 400, "the name of a volume"},
		{"POST", "/api/v1/volumes", `{"name":"a b"}`, 400, "the name of a volume"},
		{"POST", "/api/v1/volumes", `{"name":"a","size_mb":0}`, 400, "1 MiB to 1024 GiB"},
		{"POST", "/api/v1/volumes", `{"name":"a","size_mb":1048577}`, 400, "1 MiB to 1024 GiB"},
		{"POST", "/api/v1/volumes", `{"name":"a","size_mb":9223372036854775807}`, 400, "1 MiB to 1024 GiB"},
		{"POST", "/api/v1/volumes", `{"name":"a","size":1}`, 400, "unknown field"},
		{"GET", "/api/v1/volumes?limit=1", "", 400, "limit"},
		{"GET", "/api/v1/volumes/none", "", 404, "no volume"},
		{"DELETE", "/api/v1/volumes/none", "", 404, "no volume"},
		{"POST", "/api/v1/sessions", `{"secrets":{}}`, 400, "secrets"},
		{"POST", "/api/v1/sessions", `{"idle_timeout_seconds":0.5}`, 400, "idle_timeout_seconds"},
		{"POST", "/api/v1/sessions", `{"idle_timeout_seconds":86401}`, 400, "idle_timeout_seconds"},
		{"POST", "/api/v1/sessions", `{"idle_timeout_seconds":-1}`, 400, "seconds"},
		{"POST", "/api/v1/sessions", `{"idle_timeout_seconds":"5"}`, 400, "seconds"},
		{"POST", "/api/v1/sessions", `{"checkpoint_every_seconds":9}`, 400, "checkpoint_every_seconds"},
		{"POST", "/api/v1/sessions", `{"checkpoint_every_seconds":86401}`, 400, "checkpoint_every_seconds"},
		{"POST", "/api/v1/sessions", `{"checkpoint_every_seconds":-10}`, 400, "seconds"},
		{"POST", "/api/v1/sessions", `{"checkpoint_every_seconds":true}`, 400, "seconds"},
		{"PATCH", "/api/v1/sessions/ID", `{"checkpoint_every_seconds":1}`, 400, "checkpoint_every_seconds"},
		{"POST", "/api/v1/sessions", `{"auto_resume":"yes"}`, 400, "auto_resume must be true or false, not a string"},
		{"POST", "/api/v1/sessions", `{"on_timeout":"explode"}`, 400, "on_timeout"},
		{"POST", "/api/v1/sessions", `{"if_exists":"return"}`, 400, "name"},
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
		{"POST", "/api/v1/sessions/ID/touch", `{"x":1}`, 400, `unknown field \"x\"`},
		{"PATCH", "/api/v1/sessions/ID", `{"name":"UPPER"}`, 400, "name"},
		{"PATCH", "/api/v1/sessions/ID", `{"name":1}`, 400, "name must be a string, not a number"},
		{"PATCH", "/api/v1/sessions/ID", `{"state":"ended"}`, 400, `unknown field \"state\"`},
		{"PATCH", "/api/v1/sessions/ID", `{"if_exists":"fail"}`, 400, `unknown field \"if_exists\"`},
		{"PATCH", "/api/v1/sessions/ID", `{"timeout_seconds":86401}`, 400, "timeout_seconds"},
		{"PATCH", "/api/v1/sessions/ID", `{"idle_timeout_seconds":0.1}`, 400, "idle_timeout_seconds"},
		{"PATCH", "/api/v1/sessions/ID", `{"network":"all"}`, 400, "network"},
		{"PATCH", "/api/v1/sessions/ID", `{"network":"{\"mode\":\"none\"}"}`, 400, "network"},
		{"PATCH", "/api/v1/sessions/ID", `{"network":{"mode":"lan"}}`, 400, "network.mode"},
		{"PATCH", "/api/v1/sessions/ID", `{"network":{"mode":"none","allow":"a.example"}}`, 400, "lists of strings"},
		{"PATCH", "/api/v1/sessions/ID", `{"network":{"mode":"none","block":["a.example"]}}`, 400, "network"},
		{"PATCH", "/api/v1/sessions/ID", `{"network":{"mode":"none","allow":["https://a.example/"]}}`, 400, "https://a.example/"},
		{"PATCH", "/api/v1/sessions/ID", `{"network":{"mode":"none","allow":["a.example:99999"]}}`, 400, "ports"},
		{"PATCH", "/api/v1/sessions/ID", `{"network":{"mode":"none","deny":["1.2.3.4/8"]}}`, 400, "1.0.0.0/8"},
		{"GET", "/api/v1/sessions/ID/network/log?verdict=maybe", ``, 400, "verdict"},
		{"GET", "/api/v1/sessions/ID/ports?all=1", ``, 400, "all must be true or false"},
		{"GET", "/api/v1/sessions/ID/ports?port=80", ``, 400, "port"},
		{"GET", "/api/v1/sessions/ID/network/log?since=1", ``, 400, "since"},
		{"PATCH", "/api/v1/sessions/ID", `{"env":{"A=B":"c"}}`, 400, "environment variable"},
		{"PATCH", "/api/v1/sessions/ID", `{"metadata":{"":"c"}}`, 400, "metadata"},
		{"PATCH", "/api/v1/sessions/ID", `{"metadata":{"a":[]}}`, 400, "what metadata holds must be a string, not a list"},
		{"PATCH", "/api/v1/sessions/ID", `{"resources":{"memory_mb":1}}`, 400, "memory_mb"},
		{"PATCH", "/api/v1/sessions/ID", `{"resources":{"cpus":0}}`, 400, "cpus"},
		{"PATCH", "/api/v1/sessions/ID", `{"resources":{"memory_mb":100000}}`, 409, "memory_mb"},
		{"PATCH", "/api/v1/sessions/ID", `{"resources":{"memory_mb":9223372036854775807}}`, 400, "memory_mb"},
		{"PATCH", "/api/v1/sessions/ID", `{"resources":{"disk_mb":1}}`, 409, "disk_mb"},
		{"PATCH", "/api/v1/sessions/ID", `{"resources":{"cpus":3}}`, 409, "cpus"},
		{"PATCH", "/api/v1/sessions/ID", `{"template":"other"}`, 409, "template"},
		{"PATCH", "/api/v1/sessions/ID", `{"user":"` + long[:100] + `"}`, 400, "user"},
		{"PATCH", "/api/v1/sessions/ID", `{"secrets":{}}`, 400, "secrets"},
		{"PATCH", "/api/v1/sessions/ID", `{"on_timeout":"kill"}`, 400, "on_timeout"},
		{"PATCH", "/api/v1/sessions/ID", `{"snapshot_id":"s"}`, 400, `unknown field \"snapshot_id\"`},
		{"POST", "/api/v1/sessions/ID/timeout", `{"timeout_seconds":86401}`, 400, "timeout_seconds"},
		{"POST", "/api/v1/sandbox/release", ``, 400, "sandbox_id is missing"},
		{"POST", "/api/v1/sandbox/release", `{"sandbox_id":"a","session_id":"b"}`, 400, "different"},
		{"GET", "/api/v1/sandbox/stats?x=1", "", 400, "x"},

		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"","language":"python"}`, 400, "code is empty"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":" \n","language":"python"}`, 400, "code is empty"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x"}`, 400, "python, javascript, typescript, bash"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"cobol"}`, 400, "python, javascript, typescript, bash"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"a\u0000b","language":"bash"}`, 400, "zero byte"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","timeout_seconds":3601}`, 400, "timeout_seconds"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","timeout_seconds":-1}`, 400, "seconds"},
		{"POST", "/api/v1/execute", `{"code":"x","language":"bash","timeout_seconds":0}`, 400, "needs a sandbox_id"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","max_output_bytes":0}`, 400, "max_output_bytes"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","max_output_bytes":16777217}`, 400, "max_output_bytes"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","env":{"A=B":"c"}}`, 400, "environment variable"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"go","context_id":"c1"}`, 400, "keeps no state"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","context_id":""}`, 400, "context_id"},
		{"POST", "/api/v1/execute", `{"code":"x","context_id":"c1"}`, 400, "sandbox_id is missing"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","context_id":"c1","user":"root"}`, 400, "user"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","context_id":"c2"}`, 404, "no such context"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","context_id":"../c"}`, 404, "no such context"},
		{"GET", "/api/v1/contexts", "", 400, "sandbox_id"},
		{"GET", "/api/v1/contexts?sandbox_id=i00000000000000000000", "", 404, "no sandbox"},
		{"POST", "/api/v1/contexts", `{"language":"python"}`, 400, "sandbox_id"},
		{"POST", "/api/v1/contexts", `{"sandbox_id":"ID","language":"go"}`, 400, "keeps no state"},
		{"POST", "/api/v1/contexts", `{"sandbox_id":"ID"}`, 400, "language is missing; a context runs python, javascript, typescript, bash"},
		{"POST", "/api/v1/contexts", `{"sandbox_id":"ID","language":"python","cwd":"/none"}`, 400, "does not exist"},
		{"POST", "/api/v1/contexts", `{"sandbox_id":"ID","language":"python","cwd":"` + long + `"}`, 413, "cwd"},
		{"POST", "/api/v1/contexts/c1/restart", `{}`, 400, "sandbox_id"},
		{"POST", "/api/v1/contexts/c2/restart", `{"sandbox_id":"ID"}`, 404, "no such context"},
		{"POST", "/api/v1/contexts/c2/interrupt", `{"sandbox_id":"ID"}`, 404, "no such context"},
		{"DELETE", "/api/v1/contexts/c2?sandbox_id=ID", "", 404, "no such context"},
		{"DELETE", "/api/v1/contexts/c1", "", 400, "sandbox_id"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","cwd":"` + long + `"}`, 413, "cwd"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","language":"bash","code":"` + strings.Repeat("x", 1<<20+1) + `"}`, 413, "code has 1048577 bytes"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","language":"bash","code":"x","stdin":"` + strings.Repeat("x", 1<<20+1) + `"}`, 413, "stdin"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","language":"bash","code":"` + strings.Repeat("x", 9<<20) + `"}`, 413, "body"},
		{"POST", "/api/v1/execute", `{"sandbox_id":"i00000000000000000000","code":"x","language":"bash"}`, 404, "no sandbox"},

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
		{"DELETE", "/api/v1/files?sandbox_id=ID&path=/.//.", "", 400, "root"},
		{"GET", "/api/v1/files?sandbox_id=ID&path=/tmp/../x", "", 400, "must not hold .."},
		{"GET", "/api/v1/files?sandbox_id=ID&path=%ff", "", 400, "UTF-8"},
		{"GET", "/api/v1/files?sandbox_id=ID&path=" + strings.Repeat("a/", 2500), "", 400, "4096"},
		{"POST", "/api/v1/files/copy", `{"sandbox_id":"ID","source":"a"}`, 400, "destination"},
		{"POST", "/api/v1/files/chmod", `{"sandbox_id":"ID","path":"a","mode":"rwx"}`, 400, "octal"},
		{"POST", "/api/v1/files/search", `{"sandbox_id":"ID","max_results":0}`, 400, "max_results"},
		{"POST", "/api/v1/files/search", `{"sandbox_id":"ID","context_lines":21}`, 400, "context_lines"},
		{"GET", "/api/v1/files/archive?sandbox_id=ID&path=a&format=rar", "", 400, "format"},
		{"PUT", "/api/v1/files/archive?sandbox_id=ID&path=a&user=a%3Ab", "", 400, "user"},
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

		{"GET", "/index.html", "", 404, "path"},
		{"GET", "/api/v1/nothing", "", 404, "path"},
		{"GET", "/api/v1//sessions", "", 404, "path"},
		{"GET", "/api/v1/sessions/", "", 404, "path"},
		{"GET", "/api/v1/../v1/sessions", "", 404, "path"},
		{"PUT", "/api/v1/sessions/ID", "{}", 405, "PUT"},
		{"GET", "/api/v1/execute", "", 405, "GET"},
		{"BREW", "/health", "", 405, "BREW"},
	} {
		path, body := strings.ReplaceAll(tt.path, "ID", id), strings.ReplaceAll(tt.body, `"ID"`, `"`+id+`"`)
		a := f.Do(tt.method, path, body)
		if a.Status != tt.status || !bytes.Contains(a.Body, []byte(tt.says)) {
			t.Errorf("%s %.80s %.80s = %d %.300s, want %d and %q", tt.method, tt.path, tt.body, a.Status, a.Body, tt.status, tt.says)
		}
		if a.Code(t); a.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s %.80s has no request id", tt.method, tt.path)
		}
	}
	if a := f.Do("PUT", "/api/v1/sessions/x", ""); a.Header.Get("Allow") != "DELETE, GET, HEAD, PATCH" {
		t.Errorf("Allow: %q", a.Header.Get("Allow"))
	}
}

// Another Tenant's ID or name answers to the byte as an absent one, on every
// route.
func TestTenantsAreInvisible(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var v gatewaytest.View
	f.Do("POST", "/api/v1/sessions", `{"name":"mine"}`).Into(t, 201, &v)
	f.Do("PUT", "/api/v1/files?path=a&sandbox_id="+v.SandboxID, "x")
	other := f.Mint("other")
	for _, route := range []struct{ method, path, body string }{
		{"GET", "/api/v1/sessions/ID", ""},
		{"DELETE", "/api/v1/sessions/ID", ""},
		{"POST", "/api/v1/sessions/ID/timeout", `{"timeout_seconds":5}`},
		{"POST", "/api/v1/sandbox/release", `{"sandbox_id":"ID"}`},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash"}`},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","language":"bash","stream":true}`},
		{"POST", "/api/v1/execute", `{"sandbox_id":"ID","code":"x","context_id":"c1"}`},
		{"GET", "/api/v1/contexts?sandbox_id=ID", ""},
		{"POST", "/api/v1/contexts", `{"sandbox_id":"ID","language":"python"}`},
		{"POST", "/api/v1/contexts/c1/restart", `{"sandbox_id":"ID"}`},
		{"POST", "/api/v1/contexts/c2/interrupt", `{"sandbox_id":"ID"}`},
		{"DELETE", "/api/v1/contexts/c1?sandbox_id=ID", ""},
		{"GET", "/api/v1/files?path=a&sandbox_id=ID", ""},
		{"PUT", "/api/v1/files?path=a&sandbox_id=ID", "y"},
		{"DELETE", "/api/v1/files?path=a&sandbox_id=ID", ""},
		{"GET", "/api/v1/files/list?path=/workspace&sandbox_id=ID", ""},
		{"GET", "/api/v1/files/stat?path=a&sandbox_id=ID", ""},
		{"POST", "/api/v1/files/mkdir", `{"sandbox_id":"ID","path":"b"}`},
		{"POST", "/api/v1/files/move", `{"sandbox_id":"ID","source":"a","destination":"b"}`},
	} {
		ask := func(id string) gatewaytest.Answer {
			return f.DoAs(other, route.method, strings.ReplaceAll(route.path, "ID", id), strings.ReplaceAll(route.body, "ID", id))
		}
		for id, none := range map[string]string{v.SandboxID: "i00000000000000000000", "mine": "none"} {
			absent, a := ask(none), ask(id)
			if absent.Status != 404 {
				t.Errorf("%s %s: absent is %d %s", route.method, route.path, absent.Status, absent.Body)
			}
			a.Body = bytes.ReplaceAll(a.Body, []byte(id), []byte(none)) // each repeats what was asked for
			for _, h := range []string{"X-Request-Id", "Date"} {
				a.Header.Del(h)
				absent.Header.Del(h)
			}
			if a.Status != absent.Status || !bytes.Equal(a.Body, absent.Body) || fmt.Sprint(a.Header) != fmt.Sprint(absent.Header) {
				t.Errorf("%s %s: %d %s %v, absent: %d %s %v", route.method, route.path, a.Status, a.Body, a.Header, absent.Status, absent.Body, absent.Header)
			}
		}
	}
	var page struct{ Sessions []gatewaytest.View }
	f.DoAs(other, "GET", "/api/v1/sessions", "").Into(t, 200, &page)
	if len(page.Sessions) != 0 {
		t.Errorf("another tenant lists %+v", page.Sessions)
	}
	f.Do("GET", "/api/v1/sessions/mine", "").Into(t, 200, &v)
	if v.State != "running" || len(f.Guest.Runs) != 0 {
		t.Errorf("another tenant changed it: %+v, %d runs", v, len(f.Guest.Runs))
	}
}
