package gateway_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func (f *fixture) sendForm(parts ...string) answer {
	f.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for i := 0; i < len(parts); i += 2 {
		w, err := form.CreateFormField(parts[i])
		if err != nil {
			f.t.Fatal(err)
		}
		_, _ = w.Write([]byte(parts[i+1]))
	}
	_ = form.Close()
	req, err := http.NewRequest("POST", f.url+"/api/v1/templates", &body)
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+f.token)
	req.Header.Set("Content-Type", form.FormDataContentType())
	return f.send(req)
}

func TestTemplates(t *testing.T) {
	f := newFixture(t)
	var build struct {
		BuildID string `json:"build_id"`
		State   string
	}
	made := f.do("POST", "/api/v1/templates", `{"template":"web:1","source":"debian:bookworm","packages":["git"],"env":{"A":"b"},"start":"x","ready":"y",
		"files":[{"path":"/a","content":"text","mode":"0755","owner":"user"},{"path":"/b","content_base64":"AAE="}]}`)
	made.into(t, 202, &build)
	if got := made.header.Get("Location"); got != "/api/v1/builds/"+build.BuildID {
		t.Errorf("Location is %q", got)
	}
	req := f.templates.requests[0]
	if req.Template != "web:1" || req.Packages[0] != "git" || req.Env["A"] != "b" || req.Start != "x" || req.Ready != "y" || len(req.Files) != 2 {
		t.Fatalf("asked for %+v", req)
	}
	if a, b := req.Files[0], req.Files[1]; string(a.Content) != "text" || a.Mode != 0o755 || !a.User || string(b.Content) != "\x00\x01" || b.User || b.Mode != 0 {
		t.Errorf("files: %+v", req.Files)
	}
	f.sendForm("template", `{"template":"t","source":"tar:"}`, "archive", "bytes of it").into(t, 202, &build)
	if got := f.templates.archives[1]; got != "bytes of it" {
		t.Errorf("the archive is %q", got)
	}

	var list struct {
		Builds    []struct{ BuildID string }
		Templates []struct{ Template string }
		Versions  []struct{ Template string }
	}
	if f.do("GET", "/api/v1/builds", "").into(t, 200, &list); len(list.Builds) != 2 {
		t.Errorf("builds: %+v", list)
	}
	if f.do("GET", "/api/v1/templates", "").into(t, 200, &list); len(list.Templates) != 1 || list.Templates[0].Template != "base" {
		t.Errorf("templates: %+v", list)
	}
	if f.do("GET", "/api/v1/templates/base", "").into(t, 200, &list); len(list.Versions) != 1 || list.Versions[0].Template != "base@"+baseVersion {
		t.Errorf("versions: %+v", list)
	}
	f.do("GET", "/api/v1/builds/"+build.BuildID, "").into(t, 200, &build)
	if a := f.do("GET", "/api/v1/builds/"+build.BuildID+"/log?from=1&follow=true", ""); string(a.body) != "failed: no /bin/sh\n" {
		t.Errorf("the log is %d %q", a.status, a.body)
	}
	events, err := http.NewRequest("GET", f.url+"/api/v1/builds/"+build.BuildID+"/log", nil)
	if err != nil {
		t.Fatal(err)
	}
	events.Header.Set("Authorization", "Bearer "+f.token)
	events.Header.Set("Accept", "text/event-stream")
	events.Header.Set("Last-Event-ID", "1")
	got := string(f.send(events).body)
	for _, want := range []string{"event: start\n", "id: 2\nevent: line\n", "event: end\n", `"no /bin/sh"`} {
		if !strings.Contains(got, want) {
			t.Errorf("events without %q: %s", want, got)
		}
	}
	if strings.Contains(got, "unpack: files\"}\n\nid") || strings.Count(got, "event: line") != 1 {
		t.Errorf("lines that were known: %s", got)
	}
	again := func(body string) answer {
		req, err := http.NewRequest("POST", f.url+"/api/v1/templates", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.token)
		req.Header.Set("Idempotency-Key", "once")
		return f.send(req)
	}
	first, second := again(`{"template":"once","source":"debian:bookworm"}`), again(`{"template":"once","source":"debian:bookworm"}`)
	if first.status != 202 || !bytes.Equal(first.body, second.body) || len(f.templates.requests) != 3 {
		t.Errorf("twice with one key: %d %s, %d %s", first.status, first.body, second.status, second.body)
	}
	if a := again(`{"template":"` + strings.Repeat("x", 16<<20)); a.status != 413 {
		t.Errorf("too much with a key: %d %s", a.status, a.body)
	}
	other := f.mint("other")
	for _, path := range []string{"/api/v1/builds/" + build.BuildID, "/api/v1/builds/" + build.BuildID + "/log"} {
		if a := f.doAs(other, "GET", path, ""); a.status != 404 {
			t.Errorf("another tenant: %s is %d", path, a.status)
		}
	}
}

// Sizes on the disk, what a removal gives back, and the quota of both.
func TestTemplateBytes(t *testing.T) {
	f := newFixture(t)
	var view struct {
		Size     int64 `json:"size_bytes"`
		Stored   int64 `json:"stored_bytes"`
		Versions []struct {
			Stored int64 `json:"stored_bytes"`
		}
		Templates []struct {
			Stored int64 `json:"stored_bytes"`
		}
	}
	f.do("GET", "/api/v1/templates/base", "").into(t, 200, &view)
	f.do("GET", "/api/v1/templates", "").into(t, 200, &view)
	if view.Size != 5000 || view.Stored != 8192 || view.Versions[0].Stored != 8192 || view.Templates[0].Stored != 8192 {
		t.Errorf("told as %+v", view)
	}
	const service = "template.v1.TemplateService/"
	f.says(service+"Get", `{"template":"base"}`, `"stored_bytes":"8192"`)
	var gone struct {
		Removed []string
		Freed   int64 `json:"freed_bytes"`
	}
	if f.do("DELETE", "/api/v1/templates/mine", "").into(t, 200, &gone); len(gone.Removed) != 2 || gone.Freed != 8192 {
		t.Errorf("removed %+v", gone)
	}
	f.says(service+"Remove", `{"template":"mine"}`, `"freed_bytes":"8192"`)

	f.templates.stored = 5<<20 + 1
	var quota struct{ Used, Limits map[string]float64 }
	if f.do("GET", "/api/v1/quota", "").into(t, 200, &quota); quota.Used["template_mb"] != 6 || quota.Limits["template_mb"] != 0 {
		t.Errorf("the quota is told as %+v", quota)
	}
	operator := f.key("ops", sandbox.RoleOperator)
	f.with("PUT", "/api/v1/tenants/acme/quota", `{"template_mb":7}`, "X-API-Key", operator).into(t, 200, &quota)
	if quota.Used["template_mb"] != 6 || quota.Limits["template_mb"] != 7 {
		t.Errorf("set, it is told as %+v", quota)
	}

	f.templates.quota.TemplateBytes = 5 << 20
	const says = "the quota of 5 MiB of templates is used up, they have 5 MiB: delete templates or versions first"
	for name, a := range map[string]answer{
		"Dockerfile": f.do("POST", "/api/v1/templates", `{"template":"web","dockerfile":"FROM base\nRUN true\n"}`),
		"REST":       f.do("POST", "/api/v1/templates", `{"template":"web","source":"debian:bookworm"}`),
		"E2B":        f.e2b(f.key("t", sandbox.RoleDeveloper), "POST", "/v3/templates", `{"name":"web"}`),
	} {
		if a.status != 429 || !strings.Contains(string(a.body), says) || a.header.Get("Retry-After") != "" {
			t.Errorf("%s: a build beyond the quota: %d %s", name, a.status, a.body)
		}
	}
	if _, failed := f.say(f.token, service+"Build", `{"recipe":{"template":"web","source":"debian:bookworm"}}`); failed.Code != "resource_exhausted" || failed.Message != says {
		t.Errorf("over Connect: %+v", failed)
	}
	if a := f.sendForm("template", `{"template":"t","source":"tar:"}`, "archive", "bytes of it"); a.status != 429 || !strings.Contains(string(a.body), says) {
		t.Errorf("an archive beyond the quota: %d %s", a.status, a.body)
	}
	if len(f.templates.requests) != 0 {
		t.Errorf("built: %+v", f.templates.requests)
	}
}

func TestBadTemplates(t *testing.T) {
	f := newFixture(t)
	var build struct {
		BuildID string `json:"build_id"`
	}
	f.do("POST", "/api/v1/templates", `{"template":"t","source":"debian:bookworm"}`).into(t, 202, &build)
	for _, tt := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/api/v1/templates", ``, 400, "template"},
		{"POST", "/api/v1/templates", `{"template":"t"}`, 400, "source"},
		{"POST", "/api/v1/templates", `{"template":"t","source":"oci:x","tag":"y"}`, 400, "unknown field"},
		{"POST", "/api/v1/templates", `{"template":"t","source":"oci:x","packages":"git"}`, 400, "packages"},
		{"POST", "/api/v1/templates", `{"template":"t","source":"dir:/etc"}`, 403, "operator"},
		{"POST", "/api/v1/templates", `{"template":"t","source":"x","files":[{"path":"/a","mode":"rwx"}]}`, 400, "octal"},
		{"POST", "/api/v1/templates", `{"template":"t","source":"x","files":[{"path":"/a","owner":"bin"}]}`, 400, "owner"},
		{"POST", "/api/v1/templates", `{"template":"t","source":"x","files":[{"path":"/a","content":"a","content_base64":"AA=="}]}`, 400, "both"},
		{"POST", "/api/v1/templates", `{"template":"t","source":"x","files":[{"path":"/a","content_base64":"!"}]}`, 400, ""},
		{"POST", "/api/v1/templates", `{"template":"` + strings.Repeat("x", 17<<20), 413, "16777216"},
		{"GET", "/api/v1/templates?all=true", "", 400, "all"},
		{"GET", "/api/v1/templates/none", "", 404, "none"},
		{"DELETE", "/api/v1/templates/none", "", 404, "none"},
		{"DELETE", "/api/v1/templates/base", "", 403, "server's own"},
		{"GET", "/api/v1/builds/nothing", "", 404, ""},
		{"DELETE", "/api/v1/builds/nothing", "", 404, ""},
		{"DELETE", "/api/v1/builds/" + build.BuildID, "", 409, "over"},
		{"GET", "/api/v1/builds/nothing/log", "", 404, ""},
		{"GET", "/api/v1/builds/" + build.BuildID + "/log?from=-1", "", 400, "from"},
		{"GET", "/api/v1/builds/" + build.BuildID + "/log?from=x", "", 400, "from"},
		{"GET", "/api/v1/builds/" + build.BuildID + "/log?from=99", "", 400, "from"},
		{"GET", "/api/v1/builds/" + build.BuildID + "/log?follow=1", "", 400, "follow"},
	} {
		if a := f.do(tt.method, tt.path, tt.body); a.status != tt.status || !strings.Contains(string(a.body), tt.says) {
			t.Errorf("%s %s %.80s: %d %.200s, want %d and %q", tt.method, tt.path, tt.body, a.status, a.body, tt.status, tt.says)
		}
	}
	for name, parts := range map[string][]string{
		"no archive":    {"template", `{"template":"t","source":"tar:"}`},
		"nothing":       {},
		"wrong order":   {"archive", "x", "template", `{}`},
		"not JSON":      {"template", "x", "archive", "x"},
		"another field": {"template", `{"nonsense":1}`, "archive", "x"},
	} {
		if a := f.sendForm(parts...); a.status != 400 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if n := len(f.templates.requests); n != 1 {
		t.Errorf("%d builds were made", n)
	}
}
