package e2b_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

type statView struct {
	Name, Type, Path string
	Size             int64
	Mode, UID, GID   uint32
	ATime            string
	MTime            string
	CTime            string
}

// bearer asks E2B's API, which has a contract of its own.
func (f *fixture) bearer(token, method, path, body string) gatewaytest.Answer {
	f.T.Helper()
	req, err := http.NewRequest(method, f.URL+path, strings.NewReader(body))
	if err != nil {
		f.T.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return f.Raw(req)
}

// openVolume makes a Volume as E2B's clients do.
func (f *fixture) openVolume(name string) (id, token string) {
	f.T.Helper()
	var v struct {
		VolumeID    string `json:"volumeID"`
		Name, Token string
	}
	f.bearer(f.Token, "POST", "/volumes", `{"name":"`+name+`"}`).Into(f.T, 201, &v)
	if v.Name != name || v.Token == "" {
		f.T.Fatalf("made %+v", v)
	}
	return v.VolumeID, v.Token
}

func TestE2BVolumes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id, token := f.openVolume("data")
	for body, want := range map[string]int{`{"name":"data"}`: 400, `{"name":"a b"}`: 400, `{}`: 400, `{"name":"x","size":1}`: 400} {
		if a := f.bearer(f.Token, "POST", "/volumes", body); a.Status != want {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	if a := f.bearer(f.Token, "GET", "/volumes", ""); a.Status != 200 || strings.TrimSpace(string(a.Body)) != `[{"volumeID":"`+id+`","name":"data"}]` {
		t.Errorf("list: %d %s", a.Status, a.Body)
	}
	var got struct{ Name, Token string }
	if f.bearer(f.Token, "GET", "/volumes/"+id, "").Into(t, 200, &got); got.Name != "data" || got.Token == "" {
		t.Errorf("got %+v", got)
	}
	if a := f.bearer(f.Token, "POST", "/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"none","path":"/data"}]}`); a.Status != 400 {
		t.Errorf("an unknown volume: %d %s", a.Status, a.Body)
	}
	var sb struct {
		SandboxID string `json:"sandboxID"`
	}
	f.bearer(f.Token, "POST", "/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"data","path":"/mnt/data"}]}`).Into(t, 201, &sb)
	for _, path := range []string{"/sandboxes/" + sb.SandboxID, "/sandboxes", "/v2/sandboxes"} {
		if a := f.bearer(f.Token, "GET", path, ""); !strings.Contains(string(a.Body), `"volumeMounts":[{"name":"data","path":"/mnt/data"}]`) {
			t.Errorf("%s: %s", path, a.Body)
		}
	}
	if a := f.bearer(f.Token, "DELETE", "/volumes/"+id, ""); a.Status != 409 {
		t.Errorf("a delete while it is mounted: %d %s", a.Status, a.Body)
	}
	f.bearer(f.Token, "DELETE", "/sandboxes/"+sb.SandboxID, "")
	if a := f.bearer(f.Token, "DELETE", "/volumes/"+id, ""); a.Status != 204 {
		t.Errorf("delete: %d %s", a.Status, a.Body)
	}
	for _, method := range []string{"GET", "DELETE"} {
		if a := f.bearer(f.Token, method, "/volumes/"+id, ""); a.Status != 404 || !strings.Contains(string(a.Body), `"code":404`) {
			t.Errorf("%s afterwards: %d %s", method, a.Status, a.Body)
		}
	}
	if a := f.bearer(token, "GET", "/volumecontent/"+id+"/path?path=/", ""); a.Status != 404 || !strings.Contains(string(a.Body), `"code":"not_found"`) {
		t.Errorf("its files afterwards: %d %s", a.Status, a.Body)
	}
}

// A token of a volume opens that one's files and nothing else.
func TestVolumeTokens(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id, token := f.openVolume("a")
	other, _ := f.openVolume("b")
	ask := func(token, method, path string) gatewaytest.Answer { return f.bearer(token, method, path, "") }
	if a := ask(token, "GET", "/volumecontent/"+id+"/path?path=/"); a.Status != 200 {
		t.Errorf("its own: %d %s", a.Status, a.Body)
	}
	for _, path := range []string{"/volumecontent/" + other + "/path?path=/", "/volumecontent/b/dir?path=/", "/volumes", "/volumes/" + id, "/api/v1/volumes", "/api/v1/sessions", "/v2/sandboxes"} {
		if a := ask(token, "GET", path); a.Status != 401 || a.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	if a := ask(token[:len(token)-2], "GET", "/volumecontent/"+id+"/path?path=/"); a.Status != 401 || !strings.Contains(string(a.Body), `"code":"unauthenticated"`) {
		t.Errorf("a shorter token: %d %s", a.Status, a.Body)
	}
	if a := ask("", "GET", "/volumecontent/"+id+"/path?path=/"); a.Status != 401 {
		t.Errorf("no token: %d %s", a.Status, a.Body)
	}
	stranger := f.Key("stranger", sandbox.RoleAdmin)
	if a := f.E2B(stranger, "GET", "/volumecontent/"+id+"/path?path=/", ""); a.Status != 404 {
		t.Errorf("a stranger's key: %d %s", a.Status, a.Body)
	}
	if a := f.bearer(f.Token, "PUT", "/volumecontent/"+id+"/file?path=/x", "x"); a.Status != 201 {
		t.Errorf("its owner's token of this API: %d %s", a.Status, a.Body)
	}
	// A viewer gets a token that only reads.
	var looking struct{ Token string }
	f.E2B(f.Key("dev:test", sandbox.RoleViewer), "GET", "/volumes/"+id, "").Into(t, 200, &looking)
	if a := ask(looking.Token, "GET", "/volumecontent/"+id+"/file?path=/x"); a.Status != 200 || string(a.Body) != "x" {
		t.Errorf("a viewer's token reads: %d %s", a.Status, a.Body)
	}
	for _, c := range [][2]string{{"PUT", "file"}, {"DELETE", "path"}, {"POST", "dir"}, {"PATCH", "path"}} {
		if a := ask(looking.Token, c[0], "/volumecontent/"+id+"/"+c[1]+"?path=/x"); a.Status != 403 {
			t.Errorf("a viewer's token, %s %s: %d %s", c[0], c[1], a.Status, a.Body)
		}
	}
	f.bearer(token, "DELETE", "/volumecontent/"+id+"/path?path=/x", "")
	all := f.Audit()
	if e := all[len(all)-1]; e.Operation != "DELETE /volumecontent/{id}/path" || e.Target != id || e.User != "volume-token" || e.Tenant != "dev:test" {
		t.Errorf("recorded as %+v", e)
	}
	if a := f.Do("POST", "/api/v1/files/sign/rotate", `{}`); a.Status >= 300 {
		t.Fatalf("rotate: %d %s", a.Status, a.Body)
	}
	if a := ask(token, "GET", "/volumecontent/"+id+"/path?path=/"); a.Status != 401 {
		t.Errorf("after its key was replaced: %d %s", a.Status, a.Body)
	}
}

func TestVolumeContent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id, token := f.openVolume("data")
	ask := func(method, path, body string) gatewaytest.Answer {
		t.Helper()
		return f.bearer(token, method, "/volumecontent/"+id+"/"+path, body)
	}
	var stat statView
	ask("PUT", "file?path=a.txt&uid=1000&gid=100&mode=416", "hello").Into(t, 201, &stat)
	want := statView{"a.txt", "file", "/a.txt", 5, 416, 1000, 100, stat.ATime, stat.MTime, stat.CTime}
	if stat != want {
		t.Errorf("wrote %+v, want %+v", stat, want)
	}
	for _, text := range []string{stat.ATime, stat.MTime, stat.CTime} {
		if at, err := time.Parse(time.RFC3339Nano, text); err != nil || time.Since(at) > time.Minute || at.Location() != time.UTC {
			t.Errorf("it was written at %s, %v", text, err)
		}
	}
	ask("PUT", "file?path="+gatewaytest.FutureFile, "x").Into(t, 201, &stat)
	if ask("GET", "path?path="+gatewaytest.FutureFile, "").Into(t, 200, &stat); stat.MTime != "9999-12-31T23:59:59Z" {
		t.Errorf("the time of a file that clients cannot express is %s", stat.MTime)
	}
	ask("DELETE", "path?path="+gatewaytest.FutureFile, "")
	if a := ask("GET", "file?path=/a.txt", ""); a.Status != 200 || string(a.Body) != "hello" || a.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("read %d %s %v", a.Status, a.Body, a.Header)
	}
	if ask("PATCH", "path?path=/a.txt", `{"mode":384}`).Into(t, 200, &stat); stat.Mode != 384 || stat.UID != 1000 {
		t.Errorf("changed %+v", stat)
	}
	if ask("GET", "path?path=/a.txt", "").Into(t, 200, &stat); stat.Mode != 384 {
		t.Errorf("looked at %+v", stat)
	}
	ask("POST", "dir?path=/d/e/&force=true&mode=448", "").Into(t, 201, &stat)
	if stat.Type != "directory" || stat.Path != "/d/e" || stat.Mode != 448 {
		t.Errorf("made %+v", stat)
	}
	ask("PUT", "file?path=/d/e/empty&force=true", "").Into(t, 201, &stat)
	if a := ask("GET", "file?path=/d/e/empty", ""); a.Status != 200 || len(a.Body) != 0 || a.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("an empty one: %d %s %v", a.Status, a.Body, a.Header)
	}
	var list []statView
	if ask("GET", "dir?path=/", "").Into(t, 200, &list); len(list) != 2 || list[0].Path != "/a.txt" || list[1].Path != "/d" {
		t.Errorf("listed %+v", list)
	}
	if ask("GET", "dir?path=/&depth=3", "").Into(t, 200, &list); len(list) != 4 {
		t.Errorf("listed %+v", list)
	}
	var views struct{ Volumes []gatewaytest.VolumeView }
	if f.Do("GET", "/api/v1/volumes", "").Into(t, 200, &views); len(views.Volumes) != 1 || *views.Volumes[0].UsedBytes != 6*4096 || *views.Volumes[0].Files != 4 {
		t.Errorf("it holds %d bytes in %d files", *views.Volumes[0].UsedBytes, *views.Volumes[0].Files)
	}
	for _, bad := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"GET", "path?path=/none", "", 404, "not_found"},
		{"GET", "file?path=/none", "", 404, "not_found"},
		{"GET", "file?path=/d/e", "", 400, "invalid"},
		{"GET", "dir?path=/none", "", 404, "not_found"},
		{"GET", "dir?path=/a.txt", "", 400, "invalid"},
		{"GET", "dir?path=/&depth=0", "", 400, "invalid"},
		{"GET", "dir?path=/&depth=65", "", 400, "invalid"},
		{"GET", "dir?path=/&depth=x", "", 400, "invalid"},
		{"POST", "dir?path=/d/e", "", 409, "conflict"},
		{"POST", "dir?path=/x/y", "", 404, "not_found"},
		{"PUT", "file?path=/a.txt", "x", 409, "conflict"},
		{"PUT", "file?path=/x/y", "x", 404, "not_found"},
		{"PUT", "file?path=/x&mode=4096", "x", 400, "invalid"},
		{"PUT", "file?path=/x&uid=-1", "x", 400, "invalid"},
		{"PUT", "file?path=/x&uid=4294967296", "x", 400, "invalid"},
		{"PUT", "file?path=/x&force=1", "x", 400, "invalid"},
		{"PUT", "file?mode=1", "x", 400, "invalid"},
		{"PUT", "file?path=/x&path=/y", "x", 400, "invalid"},
		{"PUT", "file?path=/x%00", "x", 400, "invalid"},
		{"PUT", "file?path=/" + strings.Repeat("x", 256), "x", 400, "invalid"},
		{"PATCH", "path?path=/a.txt", `{"mode":4096}`, 400, "invalid"},
		{"PATCH", "path?path=/a.txt", `{"mode":"x"}`, 400, "invalid"},
		{"PATCH", "path?path=/none", `{"uid":1}`, 404, "not_found"},
		{"DELETE", "path?path=/none", "", 404, "not_found"},
		{"GET", "path?path=/a.txt&x=1", "", 400, "invalid"},
		{"POST", "path?path=/a.txt", "", 405, "invalid"},
	} {
		var failed struct{ Code, Message string }
		a := ask(bad.method, bad.path, bad.body)
		if err := json.Unmarshal(a.Body, &failed); err != nil || a.Status != bad.status || failed.Code != bad.code || failed.Message == "" {
			t.Errorf("%s %s: %d %s", bad.method, bad.path, a.Status, a.Body)
		}
	}
	if a := ask("DELETE", "path?path=/a.txt", ""); a.Status != 204 {
		t.Errorf("remove: %d %s", a.Status, a.Body)
	}
}

// A file that breaks off on its way is not taken for a whole one.
func TestVolumeFileBreaksOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id, token := f.openVolume("data")
	of := sandbox.VolumeRef{ID: id, Tenant: "dev:test"}
	if _, err := f.Nodes.WriteVolumeFile(context.Background(), "n1", of, gatewaytest.BrokenFile, sandbox.VolumeFileChange{}, true, strings.NewReader("half")); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest("GET", f.URL+"/volumecontent/"+id+"/file?path="+gatewaytest.BrokenFile, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := f.Client.Do(req)
	if err == nil {
		defer resp.Body.Close()
		_, err = io.ReadAll(resp.Body)
	}
	if err == nil {
		t.Error("what broke off looks whole")
	}
}
