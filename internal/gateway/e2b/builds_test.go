package e2b_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

type e2bDraft struct {
	TemplateID, BuildID string
	Names, Tags         []string
}

type e2bBuild struct {
	TemplateID, BuildID, Status string
	Logs                        []string
	LogEntries                  []struct{ Timestamp, Message, Level, Step string }
	Reason                      *struct{ Message, Step string }
}

// A build request has a name, tags and resources, which are checked.
func TestE2BBuildRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	for body, want := range map[string]string{
		`{"name":"web"}`: "[default]", `{"name":"Web:V1"}`: "[v1]", `{"alias":"web","tags":["a","default","a"]}`: "[a default]",
		`{"name":"web:x","tags":["y"],"cpuCount":2,"memoryMB":1024,"minFreeDiskMb":0}`: "[x y]",
	} {
		var d e2bDraft
		f.E2B(key, "POST", "/v3/templates", body).Into(t, 202, &d)
		if got := fmt.Sprint(d.Tags); got != want || d.TemplateID != "web" || len(d.BuildID) != 36 || d.Names[0] != "web" {
			t.Errorf("%s: %+v", body, d)
		}
	}
	var old e2bDraft
	f.E2B(key, "POST", "/v2/templates", `{"alias":"web","cpuCount":2,"memoryMB":1024}`).Into(t, 202, &old)
	if old.TemplateID != "web" || len(old.BuildID) != 36 {
		t.Errorf("as older clients ask: %+v", old)
	}
	for body, want := range map[string]int{
		`{}`: 400, `{"name":""}`: 400, `{"name":"a b"}`: 400, `{"name":"-x"}`: 400, `{"name":"team/web"}`: 403, `{"name":"base"}`: 403,
		`{"name":"web:"}`: 400, `{"name":"web","tags":["No tag"]}`: 400, `{"name":"web:11111111-1111-1111-1111-111111111111"}`: 400,
		`{"name":"web","cpuCount":3}`: 400, `{"name":"web","cpuCount":0}`: 400, `{"name":"web","cpuCount":10}`: 400,
		`{"name":"web","memoryMB":127}`: 400, `{"name":"web","memoryMB":129}`: 400, `{"name":"web","memoryMB":8194}`: 400,
		`{"name":"web","minFreeDiskMb":-1}`: 400, `{"name":"web","teamID":"x"}`: 400, `{"name":"web","unknown":1}`: 400,
		`{"name":"` + strings.Repeat("a", 64) + `"}`: 400, `{"name":"` + strings.Repeat("a", 200) + `"}`: 400,
	} {
		if a := f.E2B(key, "POST", "/v3/templates", body); a.Status != want || !isE2BError(a) {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
}

// The client that requested a build starts it with a valid recipe, and reads its status.
func TestE2BBuildStarts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key, other := f.Key("t", sandbox.RoleDeveloper), f.Key("other", sandbox.RoleDeveloper)
	var d e2bDraft
	f.E2B(key, "POST", "/v3/templates", `{"name":"web"}`).Into(t, 202, &d)
	path := "/v2/templates/web/builds/" + d.BuildID
	status := "/templates/web/builds/" + d.BuildID + "/status"
	ok := `{"fromTemplate":"base","steps":[{"type":"ENV","args":["A","1"],"force":false}]}`
	for _, tt := range []struct {
		key, path, body string
		want            int
	}{
		{key, path, `{}`, 400},
		{key, path, `{"fromImage":"a","fromTemplate":"b"}`, 400},
		{key, path, `{"fromImage":"` + strings.Repeat("a", 513) + `"}`, 400},
		{key, path, `{"fromTemplate":"absent"}`, 404},
		{key, path, `{"fromTemplate":"base","fromImageRegistry":{"type":"registry","username":"a","password":"b"}}`, 400},
		{key, path, `{"fromTemplate":"base","steps":[{"type":"BAKE","args":["x"]}]}`, 400},
		{key, path, `{"fromTemplate":"base","steps":[{"type":"RUN","args":[]}]}`, 400},
		{key, path, `{"fromTemplate":"base","steps":[{"type":"RUN","args":["a\u0000b"]}]}`, 400},
		{key, path, `{"fromTemplate":"base","steps":[{"type":"ENV","args":["A"]}]}`, 400},
		{key, path, `{"fromTemplate":"base","steps":[{"type":"USER","args":["; rm"]}]}`, 400},
		{key, path, `{"fromTemplate":"base","unknown":true}`, 400},
		{key, "/v2/templates/web/builds/none", ok, 400},
		{key, "/v2/templates/web/builds/11111111-1111-1111-1111-111111111111", ok, 404},
		{key, "/v2/templates/other/builds/" + d.BuildID, ok, 404},
		{other, path, ok, 404},
		{key, path, ok, 202},
		{key, path, ok, 400}, // it does not wait any more
	} {
		if a := f.E2B(tt.key, "POST", tt.path, tt.body); a.Status != tt.want || tt.want != 202 && !isE2BError(a) {
			t.Errorf("%s %s: %d %s", tt.path, tt.body, a.Status, a.Body)
		}
	}
	for query, want := range map[string]int{"?limit=101": 400, "?logsOffset=-1": 400, "?level=loud": 400, "?unknown=1": 400, "?logsOffset=1000000": 200} {
		if a := f.E2B(key, "GET", status+query, ""); a.Status != want {
			t.Errorf("%s: %d %s", query, a.Status, a.Body)
		}
	}
	for _, path := range []string{"/templates/web/builds/none/status", "/templates/web/builds/11111111-1111-1111-1111-111111111111/status", "/templates/else/builds/" + d.BuildID + "/status"} {
		if a := f.E2B(key, "GET", path, ""); a.Status != 400 || !isE2BError(a) {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	foreign, absent := f.E2B(other, "GET", status, ""), f.E2B(other, "GET", strings.Replace(status, d.BuildID, "11111111-1111-1111-1111-111111111111", 1), "")
	if foreign.Status != 400 || strings.Replace(string(foreign.Body), d.BuildID, "", 1) != strings.Replace(string(absent.Body), "11111111-1111-1111-1111-111111111111", "", 1) {
		t.Errorf("the build of another tenant: %s, an absent one: %s", foreign.Body, absent.Body)
	}
	var b e2bBuild
	for b.Status = "building"; b.Status == "building"; time.Sleep(time.Millisecond) { // the fake template store makes no image
		f.E2B(key, "GET", status, "").Into(t, 200, &b)
	}
	if b.Status != "error" || b.Reason == nil || b.Reason.Step != "finalize" || len(b.Logs) != len(b.LogEntries) || b.LogEntries[0].Message != "[base] FROM base" {
		t.Errorf("%+v", b)
	}
	var page e2bBuild
	if f.E2B(key, "GET", status+"?logsOffset=1&limit=1", "").Into(t, 200, &page); len(page.Logs) != 1 || page.Logs[0] != b.Logs[1] {
		t.Errorf("%+v", page)
	}
	if f.E2B(key, "GET", status+"?level=error", "").Into(t, 200, &page); len(page.Logs) != 1 {
		t.Errorf("%+v", page)
	}
	if n := f.Sandboxes.Live(); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// Records of builds survive a restart of the server. A build that ran when the server
// stopped has failed.
func TestE2BBuildsOutliveTheServer(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	kept := func(c *gateway.Config) { c.Builds = folder }
	f := newFixture(t, kept)
	f.Templates.FailReuse = sandbox.Errorf(sandbox.NotFound, "there is no such template")
	key := f.Key("t", sandbox.RoleDeveloper)
	var ended, waits e2bDraft
	f.E2B(key, "POST", "/v3/templates", `{"name":"web"}`).Into(t, 202, &ended)
	f.E2B(key, "POST", "/v3/templates", `{"name":"idle"}`).Into(t, 202, &waits)
	f.E2B(key, "POST", "/v2/templates/web/builds/"+ended.BuildID, `{"fromTemplate":"base","steps":[]}`)
	var was e2bBuild
	for was.Status = "building"; was.Status == "building"; time.Sleep(time.Millisecond) {
		f.E2B(key, "GET", "/templates/web/builds/"+ended.BuildID+"/status", "").Into(t, 200, &was)
	}
	lost := strings.Replace(ended.BuildID, ended.BuildID[:8], "01234567", 1)
	text, err := os.ReadFile(filepath.Join(folder, ended.BuildID+".json"))
	if err != nil {
		t.Fatal(err)
	}
	running := strings.NewReplacer(ended.BuildID, lost, `"State":"error"`, `"State":"building"`).Replace(string(text))
	for name, content := range map[string]string{lost + ".json": running, "01234567-0000-4000-8000-000000000000.json": running, "notes.txt": "x", "half": "{"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	next := newFixture(t, kept)
	key, other := next.Key("t", sandbox.RoleDeveloper), next.Key("other", sandbox.RoleDeveloper)
	var is e2bBuild
	next.E2B(key, "GET", "/templates/web/builds/"+ended.BuildID+"/status", "").Into(t, 200, &is)
	if is.Status != was.Status || fmt.Sprint(is.LogEntries) != fmt.Sprint(was.LogEntries) || is.Reason == nil || is.Reason.Message != was.Reason.Message {
		t.Errorf("it was %+v and is %+v", was, is)
	}
	if a := next.E2B(other, "GET", "/templates/web/builds/"+ended.BuildID+"/status", ""); a.Status != 400 {
		t.Errorf("another tenant's: %d %s", a.Status, a.Body)
	}
	next.E2B(key, "GET", "/templates/web/builds/"+lost+"/status", "").Into(t, 200, &is)
	if is.Status != "error" || is.Reason == nil || !strings.Contains(is.Reason.Message, "the server stopped") {
		t.Errorf("the build that ran: %+v", is)
	}
	kinds := map[string]sandbox.EventKind{}
	for _, e := range next.Server.EndedBuilds(time.Now().Add(-time.Hour)) {
		kinds[e.Build] = e.Kind
	}
	if len(kinds) != 2 || kinds[ended.BuildID] != sandbox.EventTemplateFailed || kinds[lost] != sandbox.EventTemplateFailed {
		t.Errorf("the events are %v", kinds)
	}
	if later := next.Server.EndedBuilds(time.Now().Add(time.Hour)); len(later) != 0 {
		t.Errorf("events from the future: %v", later)
	}
	if a := next.E2B(key, "POST", "/v2/templates/idle/builds/"+waits.BuildID, `{"fromTemplate":"base","steps":[]}`); a.Status != 202 {
		t.Errorf("the build that waits: %d %s", a.Status, a.Body)
	}
	for _, name := range []string{"01234567-0000-4000-8000-000000000000.json", "notes.txt", "half"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
}

// A tenant uploads a file once. The URL for the upload allows nothing else.
func TestE2BBuildFiles(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key, other := f.Key("t", sandbox.RoleDeveloper), f.Key("other", sandbox.RoleDeveloper)
	f.E2B(key, "POST", "/v3/templates", `{"name":"web"}`)
	hash, second := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	for path, want := range map[string]int{
		"/templates/web/files/short": 400, "/templates/web/files/" + strings.Repeat("AB", 32): 400,
		"/templates/absent/files/" + hash: 404, "/templates/web/files/" + hash + "?x=1": 400,
	} {
		if a := f.E2B(key, "GET", path, ""); a.Status != want || !isE2BError(a) {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	if a := f.E2B(other, "GET", "/templates/web/files/"+hash, ""); a.Status != 404 {
		t.Errorf("another's template: %d %s", a.Status, a.Body)
	}
	var at struct {
		Present bool
		URL     string
	}
	ask := func(key, hash string, present bool) string {
		t.Helper()
		if f.E2B(key, "GET", "/templates/web/files/"+hash, "").Into(t, 201, &at); at.Present != present {
			t.Errorf("%s: %+v", hash, at)
		}
		return at.URL
	}
	put := func(url, body string) int {
		t.Helper()
		req, err := http.NewRequest("PUT", url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return f.Raw(req).Status
	}
	url := ask(key, hash, false)
	for name, reader := range map[string]string{"a viewer": f.Key("t", sandbox.RoleViewer), "a key for reading": f.Key("t", sandbox.RoleDeveloper, sandbox.ScopeRead)} {
		if a := f.E2B(reader, "GET", "/templates/web/files/"+hash, ""); a.Status != 403 {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	// A Sandbox may have the name that the URL was signed for.
	if a := f.With("POST", "/api/v1/sessions", `{"name":"templates"}`, "Authorization", "Bearer "+key); a.Status != 201 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	if got := put(strings.Replace(url, "/templates/web/files/"+hash, "/api/v1/files", 1), "x"); got != 403 {
		t.Errorf("into a sandbox: %d", got)
	}
	for name, wrong := range map[string]string{
		"for other files": strings.Replace(url, "/files/"+hash, "/files/"+second, 1), "without a signature": url[:strings.Index(url, "?")],
		"changed": strings.Replace(url, "signature=", "signature=x", 1),
	} {
		if got := put(wrong, "x"); got < 400 || got > 404 {
			t.Errorf("%s: %d", name, got)
		}
	}
	if got := put(url, "an archive"); got != 200 {
		t.Errorf("sent: %d", got)
	}
	ask(key, hash, true)
	ask(key, second, false)
	f.E2B(other, "POST", "/v3/templates", `{"name":"web"}`)
	ask(other, hash, false) // tenants do not share uploads
}

// Changes of templates fail with wrong input, and for templates of others.
func TestE2BTemplateChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := f.Key("t", sandbox.RoleDeveloper)
	for _, tt := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/templates/tags", `{}`, 400},
		{"POST", "/templates/tags", `{"target":"web:v1","tags":[]}`, 400},
		{"POST", "/templates/tags", `{"target":"web:v1","tags":["a b"]}`, 400},
		{"POST", "/templates/tags", `{"target":"web:v1:2","tags":["a"]}`, 400},
		{"POST", "/templates/tags", `{"target":"web:v1","tags":["a"]}`, 404},
		{"POST", "/templates/tags", `{"target":"base","tags":["a"]}`, 403},
		{"DELETE", "/templates/tags", `{"name":"web","tags":[]}`, 400},
		{"DELETE", "/templates/tags", `{"name":"web:v1","tags":["a"]}`, 400},
		{"DELETE", "/templates/tags", `{"name":"web:default","tags":["a"]}`, 400},
		{"DELETE", "/templates/tags", `{"name":"web","tags":["default"]}`, 400},
		{"DELETE", "/templates/tags", `{"name":"web","tags":["a"]}`, 404},
		{"DELETE", "/templates/web", ``, 404},
		{"DELETE", "/templates/web:v1", ``, 404},
		{"DELETE", "/templates/base", ``, 403},
		{"PATCH", "/templates/web", `{}`, 404},
		{"PATCH", "/v2/templates/web", `{"public":"yes"}`, 400},
		{"PATCH", "/v2/templates/base", `{"public":false}`, 404},
		{"GET", "/templates/web/builds/none/logs", ``, 400},
		{"PUT", "/templates/tags", ``, 405},
	} {
		if a := f.E2B(key, tt.method, tt.path, tt.body); a.Status != tt.want || !isE2BError(a) {
			t.Errorf("%s %s %s: %d %s", tt.method, tt.path, tt.body, a.Status, a.Body)
		}
	}
	var d e2bDraft
	f.E2B(key, "POST", "/v3/templates", `{"name":"web"}`).Into(t, 202, &d)
	if a := f.E2B(key, "DELETE", "/templates/web:v1", ""); a.Status != 400 {
		t.Errorf("a tag alone: %d %s", a.Status, a.Body)
	}
	for query, want := range map[string]int{"": 200, "?direction=up": 400, "?limit=101": 400, "?cursor=x": 400, "?source=else": 400, "?cursor=1&direction=backward&level=info&source=temporary": 200} {
		if a := f.E2B(key, "GET", "/templates/web/builds/"+d.BuildID+"/logs"+query, ""); a.Status != want {
			t.Errorf("%s: %d %s", query, a.Status, a.Body)
		}
	}
}
