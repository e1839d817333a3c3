package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

type volumeView struct {
	VolumeID  string `json:"volume_id"`
	Name      string
	SizeMB    int64  `json:"size_mb"`
	UsedBytes *int64 `json:"used_bytes"`
	Files     *int64
	CreatedAt string `json:"created_at"`
}

func TestVolumeRoutes(t *testing.T) {
	f := newFixture(t)
	const path = "/api/v1/volumes"
	var made, got volumeView
	f.do("POST", path, `{"name":"data","size_mb":5}`).into(t, 201, &made)
	if !sandbox.ValidVolumeID(made.VolumeID) || made.Name != "data" || made.SizeMB != 5 {
		t.Errorf("made %+v", made)
	}
	if a := f.do("POST", path, `{"name":"data"}`); a.status != 409 {
		t.Errorf("the same name: %d %s", a.status, a.body)
	}
	for _, key := range []string{made.VolumeID, "data"} {
		if f.do("GET", path+"/"+key, "").into(t, 200, &got); got.VolumeID != made.VolumeID {
			t.Errorf("by %s: %+v", key, got)
		}
	}
	var list struct{ Volumes []volumeView }
	if f.do("GET", path, "").into(t, 200, &list); len(list.Volumes) != 1 || list.Volumes[0].VolumeID != made.VolumeID {
		t.Errorf("listed %+v", list)
	}
	stranger := f.key("other", sandbox.RoleAdmin)
	for _, method := range []string{"GET", "DELETE"} {
		for _, key := range []string{made.VolumeID, "data"} {
			if a := f.with(method, path+"/"+key, "", "X-API-Key", stranger); a.status != 404 {
				t.Errorf("a stranger's %s: %d %s", method, a.status, a.body)
			}
		}
	}
	if a := f.with("GET", path, "", "X-API-Key", stranger); a.status != 200 || strings.Contains(string(a.body), "data") {
		t.Errorf("a stranger lists %d %s", a.status, a.body)
	}
	reader := f.key("dev:test", sandbox.RoleViewer)
	if a := f.with("DELETE", path+"/data", "", "X-API-Key", reader); a.status != 403 {
		t.Errorf("a viewer deletes: %d %s", a.status, a.body)
	}

	type mount struct {
		Volume   string
		VolumeID string `json:"volume_id"`
		Path     string
	}
	var session struct {
		SandboxID string `json:"sandbox_id"`
		Volumes   []mount
	}
	f.do("POST", "/api/v1/sessions", `{"volumes":[{"volume":"data","path":"/mnt/data"}]}`).into(t, 201, &session)
	want := mount{"data", made.VolumeID, "/mnt/data"}
	if len(session.Volumes) != 1 || session.Volumes[0] != want {
		t.Errorf("a session has %+v", session.Volumes)
	}
	if a := f.do("DELETE", path+"/data", ""); a.status != 409 {
		t.Errorf("a delete while it is mounted: %d %s", a.status, a.body)
	}
	f.do("DELETE", "/api/v1/sessions/"+session.SandboxID, "").into(t, 200, &session)
	if a := f.do("DELETE", path+"/data", ""); a.status != 204 {
		t.Errorf("delete: %d %s", a.status, a.body)
	}
	if a := f.do("DELETE", path+"/data", ""); a.status != 404 {
		t.Errorf("a second delete: %d %s", a.status, a.body)
	}
	var audited []string
	for _, e := range f.audit() {
		if strings.HasSuffix(e.Operation, "Volume") && e.Tenant == "dev:test" && e.Status < 300 {
			audited = append(audited, e.Operation+" "+e.Target)
		}
	}
	if got, want := strings.Join(audited, ", "), "createVolume "+made.VolumeID+", deleteVolume data"; got != want {
		t.Errorf("recorded %s, want %s", got, want)
	}
}

func TestVolumeMadeOnce(t *testing.T) {
	f := newFixture(t)
	var made [2]volumeView
	for i, replayed := range []string{"", "true"} {
		a := f.with("POST", "/api/v1/volumes", `{"name":"A"}`, "Authorization", "Bearer "+f.token, "Idempotency-Key", "one")
		if a.into(t, 201, &made[i]); a.header.Get("Idempotent-Replayed") != replayed {
			t.Errorf("request %d: %v", i, a.header)
		}
	}
	if made[0].VolumeID != made[1].VolumeID || made[0].VolumeID == "" {
		t.Errorf("made %+v", made)
	}
}

type statView struct {
	Name, Type, Path string
	Size             int64
	Mode, UID, GID   uint32
	ATime            string
	MTime            string
	CTime            string
}

// bearer asks E2B's API, which has a contract of its own.
func (f *fixture) bearer(token, method, path, body string) answer {
	f.t.Helper()
	req, err := http.NewRequest(method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return f.raw(req)
}

// openVolume makes a Volume as E2B's clients do.
func (f *fixture) openVolume(name string) (id, token string) {
	f.t.Helper()
	var v struct {
		VolumeID    string `json:"volumeID"`
		Name, Token string
	}
	f.bearer(f.token, "POST", "/volumes", `{"name":"`+name+`"}`).into(f.t, 201, &v)
	if v.Name != name || v.Token == "" {
		f.t.Fatalf("made %+v", v)
	}
	return v.VolumeID, v.Token
}

func TestE2BVolumes(t *testing.T) {
	f := newFixture(t)
	id, token := f.openVolume("data")
	for body, want := range map[string]int{`{"name":"data"}`: 400, `{"name":"a b"}`: 400, `{}`: 400, `{"name":"x","size":1}`: 400} {
		if a := f.bearer(f.token, "POST", "/volumes", body); a.status != want {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	if a := f.bearer(f.token, "GET", "/volumes", ""); a.status != 200 || strings.TrimSpace(string(a.body)) != `[{"volumeID":"`+id+`","name":"data"}]` {
		t.Errorf("list: %d %s", a.status, a.body)
	}
	var got struct{ Name, Token string }
	if f.bearer(f.token, "GET", "/volumes/"+id, "").into(t, 200, &got); got.Name != "data" || got.Token == "" {
		t.Errorf("got %+v", got)
	}
	if a := f.bearer(f.token, "POST", "/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"none","path":"/data"}]}`); a.status != 400 {
		t.Errorf("an unknown volume: %d %s", a.status, a.body)
	}
	var sb struct {
		SandboxID string `json:"sandboxID"`
	}
	f.bearer(f.token, "POST", "/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"data","path":"/mnt/data"}]}`).into(t, 201, &sb)
	for _, path := range []string{"/sandboxes/" + sb.SandboxID, "/sandboxes", "/v2/sandboxes"} {
		if a := f.bearer(f.token, "GET", path, ""); !strings.Contains(string(a.body), `"volumeMounts":[{"name":"data","path":"/mnt/data"}]`) {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	if a := f.bearer(f.token, "DELETE", "/volumes/"+id, ""); a.status != 409 {
		t.Errorf("a delete while it is mounted: %d %s", a.status, a.body)
	}
	f.bearer(f.token, "DELETE", "/sandboxes/"+sb.SandboxID, "")
	if a := f.bearer(f.token, "DELETE", "/volumes/"+id, ""); a.status != 204 {
		t.Errorf("delete: %d %s", a.status, a.body)
	}
	for _, method := range []string{"GET", "DELETE"} {
		if a := f.bearer(f.token, method, "/volumes/"+id, ""); a.status != 404 || !strings.Contains(string(a.body), `"code":404`) {
			t.Errorf("%s afterwards: %d %s", method, a.status, a.body)
		}
	}
	if a := f.bearer(token, "GET", "/volumecontent/"+id+"/path?path=/", ""); a.status != 404 || !strings.Contains(string(a.body), `"code":"not_found"`) {
		t.Errorf("its files afterwards: %d %s", a.status, a.body)
	}
}

// A token of a volume opens that one's files and nothing else.
func TestVolumeTokens(t *testing.T) {
	f := newFixture(t)
	id, token := f.openVolume("a")
	other, _ := f.openVolume("b")
	ask := func(token, method, path string) answer { return f.bearer(token, method, path, "") }
	if a := ask(token, "GET", "/volumecontent/"+id+"/path?path=/"); a.status != 200 {
		t.Errorf("its own: %d %s", a.status, a.body)
	}
	for _, path := range []string{"/volumecontent/" + other + "/path?path=/", "/volumecontent/b/dir?path=/", "/volumes", "/volumes/" + id, "/api/v1/volumes", "/api/v1/sessions", "/v2/sandboxes"} {
		if a := ask(token, "GET", path); a.status != 401 || a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := ask(token[:len(token)-2], "GET", "/volumecontent/"+id+"/path?path=/"); a.status != 401 || !strings.Contains(string(a.body), `"code":"unauthenticated"`) {
		t.Errorf("a shorter token: %d %s", a.status, a.body)
	}
	if a := ask("", "GET", "/volumecontent/"+id+"/path?path=/"); a.status != 401 {
		t.Errorf("no token: %d %s", a.status, a.body)
	}
	stranger := f.key("stranger", sandbox.RoleAdmin)
	if a := f.e2b(stranger, "GET", "/volumecontent/"+id+"/path?path=/", ""); a.status != 404 {
		t.Errorf("a stranger's key: %d %s", a.status, a.body)
	}
	if a := f.bearer(f.token, "PUT", "/volumecontent/"+id+"/file?path=/x", "x"); a.status != 201 {
		t.Errorf("its owner's token of this API: %d %s", a.status, a.body)
	}
	// Who may only look gets a token that only looks.
	var looking struct{ Token string }
	f.e2b(f.key("dev:test", sandbox.RoleViewer), "GET", "/volumes/"+id, "").into(t, 200, &looking)
	if a := ask(looking.Token, "GET", "/volumecontent/"+id+"/file?path=/x"); a.status != 200 || string(a.body) != "x" {
		t.Errorf("a viewer's token reads: %d %s", a.status, a.body)
	}
	for _, c := range [][2]string{{"PUT", "file"}, {"DELETE", "path"}, {"POST", "dir"}, {"PATCH", "path"}} {
		if a := ask(looking.Token, c[0], "/volumecontent/"+id+"/"+c[1]+"?path=/x"); a.status != 403 {
			t.Errorf("a viewer's token, %s %s: %d %s", c[0], c[1], a.status, a.body)
		}
	}
	f.bearer(token, "DELETE", "/volumecontent/"+id+"/path?path=/x", "")
	all := f.audit()
	if e := all[len(all)-1]; e.Operation != "DELETE /volumecontent/{id}/path" || e.Target != id || e.User != "volume-token" || e.Tenant != "dev:test" {
		t.Errorf("recorded as %+v", e)
	}
	if a := f.do("POST", "/api/v1/files/sign/rotate", `{}`); a.status >= 300 {
		t.Fatalf("rotate: %d %s", a.status, a.body)
	}
	if a := ask(token, "GET", "/volumecontent/"+id+"/path?path=/"); a.status != 401 {
		t.Errorf("after its key was replaced: %d %s", a.status, a.body)
	}
}

func TestVolumeContent(t *testing.T) {
	f := newFixture(t)
	id, token := f.openVolume("data")
	ask := func(method, path, body string) answer {
		t.Helper()
		return f.bearer(token, method, "/volumecontent/"+id+"/"+path, body)
	}
	var stat statView
	ask("PUT", "file?path=a.txt&uid=1000&gid=100&mode=416", "hello").into(t, 201, &stat)
	want := statView{"a.txt", "file", "/a.txt", 5, 416, 1000, 100, stat.ATime, stat.MTime, stat.CTime}
	if stat != want {
		t.Errorf("wrote %+v, want %+v", stat, want)
	}
	for _, text := range []string{stat.ATime, stat.MTime, stat.CTime} {
		if at, err := time.Parse(time.RFC3339Nano, text); err != nil || time.Since(at) > time.Minute || at.Location() != time.UTC {
			t.Errorf("it was written at %s, %v", text, err)
		}
	}
	ask("PUT", "file?path="+futureFile, "x").into(t, 201, &stat)
	if ask("GET", "path?path="+futureFile, "").into(t, 200, &stat); stat.MTime != "9999-12-31T23:59:59Z" {
		t.Errorf("the time of a file that clients cannot express is %s", stat.MTime)
	}
	ask("DELETE", "path?path="+futureFile, "")
	if a := ask("GET", "file?path=/a.txt", ""); a.status != 200 || string(a.body) != "hello" || a.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("read %d %s %v", a.status, a.body, a.header)
	}
	if ask("PATCH", "path?path=/a.txt", `{"mode":384}`).into(t, 200, &stat); stat.Mode != 384 || stat.UID != 1000 {
		t.Errorf("changed %+v", stat)
	}
	if ask("GET", "path?path=/a.txt", "").into(t, 200, &stat); stat.Mode != 384 {
		t.Errorf("looked at %+v", stat)
	}
	ask("POST", "dir?path=/d/e/&force=true&mode=448", "").into(t, 201, &stat)
	if stat.Type != "directory" || stat.Path != "/d/e" || stat.Mode != 448 {
		t.Errorf("made %+v", stat)
	}
	ask("PUT", "file?path=/d/e/empty&force=true", "").into(t, 201, &stat)
	if a := ask("GET", "file?path=/d/e/empty", ""); a.status != 200 || len(a.body) != 0 || a.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("an empty one: %d %s %v", a.status, a.body, a.header)
	}
	var list []statView
	if ask("GET", "dir?path=/", "").into(t, 200, &list); len(list) != 2 || list[0].Path != "/a.txt" || list[1].Path != "/d" {
		t.Errorf("listed %+v", list)
	}
	if ask("GET", "dir?path=/&depth=3", "").into(t, 200, &list); len(list) != 4 {
		t.Errorf("listed %+v", list)
	}
	var views struct{ Volumes []volumeView }
	if f.do("GET", "/api/v1/volumes", "").into(t, 200, &views); len(views.Volumes) != 1 || *views.Volumes[0].UsedBytes != 6*4096 || *views.Volumes[0].Files != 4 {
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
		if err := json.Unmarshal(a.body, &failed); err != nil || a.status != bad.status || failed.Code != bad.code || failed.Message == "" {
			t.Errorf("%s %s: %d %s", bad.method, bad.path, a.status, a.body)
		}
	}
	if a := ask("DELETE", "path?path=/a.txt", ""); a.status != 204 {
		t.Errorf("remove: %d %s", a.status, a.body)
	}
}

// A file that breaks off on its way is not taken for a whole one.
func TestVolumeFileBreaksOff(t *testing.T) {
	f := newFixture(t)
	id, token := f.openVolume("data")
	of := sandbox.VolumeRef{ID: id, Tenant: "dev:test"}
	if _, err := f.nodes.WriteVolumeFile(context.Background(), "n1", of, brokenFile, sandbox.VolumeFileChange{}, true, strings.NewReader("half")); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest("GET", f.url+"/volumecontent/"+id+"/file?path="+brokenFile, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := f.client.Do(req)
	if err == nil {
		defer resp.Body.Close()
		_, err = io.ReadAll(resp.Body)
	}
	if err == nil {
		t.Error("what broke off looks whole")
	}
}
