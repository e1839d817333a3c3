package rest_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

func TestTemplates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var build struct {
		BuildID string `json:"build_id"`
		State   string
	}
	made := f.Do("POST", "/api/v1/templates", `{"template":"web:1","source":"debian:bookworm","packages":["git"],"env":{"A":"b"},"start":"x","ready":"y",
		"files":[{"path":"/a","content":"text","mode":"0755","owner":"user"},{"path":"/b","content_base64":"AAE="}]}`)
	made.Into(t, 202, &build)
	if got := made.Header.Get("Location"); got != "/api/v1/builds/"+build.BuildID {
		t.Errorf("Location is %q", got)
	}
	req := f.Templates.Requests[0]
	if req.Template != "web:1" || req.Packages[0] != "git" || req.Env["A"] != "b" || req.Start != "x" || req.Ready != "y" || len(req.Files) != 2 {
		t.Fatalf("asked for %+v", req)
	}
	if a, b := req.Files[0], req.Files[1]; string(a.Content) != "text" || a.Mode != 0o755 || !a.User || string(b.Content) != "\x00\x01" || b.User || b.Mode != 0 {
		t.Errorf("files: %+v", req.Files)
	}
	f.SendForm("template", `{"template":"t","source":"tar:"}`, "archive", "bytes of it").Into(t, 202, &build)
	if got := f.Templates.Archives[1]; got != "bytes of it" {
		t.Errorf("the archive is %q", got)
	}

	var list struct {
		Builds    []struct{ BuildID string }
		Templates []struct{ Template string }
		Versions  []struct{ Template string }
	}
	if f.Do("GET", "/api/v1/builds", "").Into(t, 200, &list); len(list.Builds) != 2 {
		t.Errorf("builds: %+v", list)
	}
	if f.Do("GET", "/api/v1/templates", "").Into(t, 200, &list); len(list.Templates) != 1 || list.Templates[0].Template != "base" {
		t.Errorf("templates: %+v", list)
	}
	if f.Do("GET", "/api/v1/templates/base", "").Into(t, 200, &list); len(list.Versions) != 1 || list.Versions[0].Template != "base@"+gatewaytest.BaseVersion {
		t.Errorf("versions: %+v", list)
	}
	f.Do("GET", "/api/v1/builds/"+build.BuildID, "").Into(t, 200, &build)
	if a := f.Do("GET", "/api/v1/builds/"+build.BuildID+"/log?from=1&follow=true", ""); string(a.Body) != "failed: no /bin/sh\n" {
		t.Errorf("the log is %d %q", a.Status, a.Body)
	}
	events, err := http.NewRequest("GET", f.URL+"/api/v1/builds/"+build.BuildID+"/log", nil)
	if err != nil {
		t.Fatal(err)
	}
	events.Header.Set("Authorization", "Bearer "+f.Token)
	events.Header.Set("Accept", "text/event-stream")
	events.Header.Set("Last-Event-ID", "1")
	got := string(f.Send(events).Body)
	for _, want := range []string{"event: start\n", "id: 2\nevent: line\n", "event: end\n", `"no /bin/sh"`} {
		if !strings.Contains(got, want) {
			t.Errorf("events without %q: %s", want, got)
		}
	}
	if strings.Contains(got, "unpack: files\"}\n\nid") || strings.Count(got, "event: line") != 1 {
		t.Errorf("lines before Last-Event-ID were sent again: %s", got)
	}
	again := func(body string) gatewaytest.Answer {
		req, err := http.NewRequest("POST", f.URL+"/api/v1/templates", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.Token)
		req.Header.Set("Idempotency-Key", "once")
		return f.Send(req)
	}
	first, second := again(`{"template":"once","source":"debian:bookworm"}`), again(`{"template":"once","source":"debian:bookworm"}`)
	if first.Status != 202 || !bytes.Equal(first.Body, second.Body) || len(f.Templates.Requests) != 3 {
		t.Errorf("twice with one key: %d %s, %d %s", first.Status, first.Body, second.Status, second.Body)
	}
	if a := again(`{"template":"` + strings.Repeat("x", 16<<20)); a.Status != 413 {
		t.Errorf("a body too large for a key: %d %s", a.Status, a.Body)
	}
	other := f.Mint("other")
	for _, path := range []string{"/api/v1/builds/" + build.BuildID, "/api/v1/builds/" + build.BuildID + "/log"} {
		if a := f.DoAs(other, "GET", path, ""); a.Status != 404 {
			t.Errorf("another tenant: %s is %d", path, a.Status)
		}
	}
}

func TestBadTemplates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var build struct {
		BuildID string `json:"build_id"`
	}
	f.Do("POST", "/api/v1/templates", `{"template":"t","source":"debian:bookworm"}`).Into(t, 202, &build)
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
		{"DELETE", "/api/v1/builds/" + build.BuildID, "", 409, "has ended"},
		{"GET", "/api/v1/builds/nothing/log", "", 404, ""},
		{"GET", "/api/v1/builds/" + build.BuildID + "/log?from=-1", "", 400, "from"},
		{"GET", "/api/v1/builds/" + build.BuildID + "/log?from=x", "", 400, "from"},
		{"GET", "/api/v1/builds/" + build.BuildID + "/log?from=99", "", 400, "from"},
		{"GET", "/api/v1/builds/" + build.BuildID + "/log?follow=1", "", 400, "follow"},
	} {
		if a := f.Do(tt.method, tt.path, tt.body); a.Status != tt.status || !strings.Contains(string(a.Body), tt.says) {
			t.Errorf("%s %s %.80s: %d %.200s, want %d and %q", tt.method, tt.path, tt.body, a.Status, a.Body, tt.status, tt.says)
		}
	}
	for name, parts := range map[string][]string{
		"no archive":    {"template", `{"template":"t","source":"tar:"}`},
		"nothing":       {},
		"wrong order":   {"archive", "x", "template", `{}`},
		"not JSON":      {"template", "x", "archive", "x"},
		"another field": {"template", `{"nonsense":1}`, "archive", "x"},
	} {
		if a := f.SendForm(parts...); a.Status != 400 {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	if n := len(f.Templates.Requests); n != 1 {
		t.Errorf("%d builds were made", n)
	}
}
