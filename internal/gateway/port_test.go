package gateway_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// snapshotNamed makes one of a session of its own.
func (f *fixture) snapshotNamed(name string) string {
	f.t.Helper()
	var s struct {
		ID string `json:"snapshot_id"`
	}
	f.do("POST", "/api/v1/sessions/"+f.acquire()+"/snapshots", `{"name":"`+name+`"}`).into(f.t, 201, &s)
	return s.ID
}

func TestExportAndImportOverREST(t *testing.T) {
	f := newFixture(t)
	id := f.snapshotNamed("first")
	a := f.do("GET", "/api/v1/snapshots/"+id+"/export", "")
	if a.status != 200 || !bytes.Contains(a.body, []byte(id)) {
		t.Fatalf("exported %d %q", a.status, a.body)
	}
	if with := f.do("GET", "/api/v1/snapshots/"+id+"/export?with_template=true", ""); with.status != 200 || !bytes.Contains(with.body, []byte(id)) || bytes.Equal(with.body, a.body) {
		t.Errorf("exported with its image: %d %q", with.status, with.body)
	}
	if kind, name := a.header.Get("Content-Type"), a.header.Get("Content-Disposition"); kind != "application/octet-stream" || name != "attachment; filename=first.snapshot" {
		t.Errorf("it is %q, %q", kind, name)
	}
	var got struct {
		ID   string `json:"snapshot_id"`
		Name string
		Kept bool
	}
	f.upload(f.token, "/api/v1/snapshots/import?name=again", string(a.body)).into(t, 201, &got)
	if got.ID == id || got.Name != "again" || !got.Kept {
		t.Errorf("imported %+v", got)
	}
	f.do("GET", "/api/v1/snapshots/"+got.ID, "").into(t, 200, &got)

	f.sandboxes.export = func(io.Writer) error { return sandbox.Errorf(sandbox.Exhausted, "busy") }
	if a := f.do("GET", "/api/v1/snapshots/"+id+"/export", ""); a.status != 429 || a.header.Get("Content-Disposition") != "" {
		t.Errorf("when it is refused: %d %v", a.status, a.header)
	}
	f.sandboxes.export = nil
	for _, tt := range []struct {
		method, path, body string
		want               int
	}{
		{"GET", "/api/v1/snapshots/" + id + "/export?x=1", "", 400},
		{"GET", "/api/v1/snapshots/" + id + "/export?with_template=1", "", 400},
		{"GET", "/api/v1/snapshots/" + sandbox.NewSnapshotID() + "/export", "", 404},
		{"GET", "/api/v1/snapshots/nonsense/export", "", 404},
		{"POST", "/api/v1/snapshots/import", "nonsense", 400},
		{"POST", "/api/v1/snapshots/import", "", 400},
		{"POST", "/api/v1/snapshots/import?name=a/b", string(a.body), 400},
		{"POST", "/api/v1/snapshots/import?id=x", string(a.body), 400},
	} {
		var a answer
		if tt.method == "POST" {
			a = f.upload(f.token, tt.path, tt.body)
		} else {
			a = f.do(tt.method, tt.path, tt.body)
		}
		if a.status != tt.want {
			t.Errorf("%s %s %q: %d %s", tt.method, tt.path, tt.body, a.status, a.body)
		}
	}
	theirs := f.doAs(f.mint("other"), "GET", "/api/v1/snapshots/"+id+"/export", "")
	absent := sandbox.NewSnapshotID()
	nobodys := f.doAs(f.mint("other"), "GET", "/api/v1/snapshots/"+absent+"/export", "")
	theirs.body = bytes.ReplaceAll(theirs.body, []byte(id), []byte(absent)) // each repeats what was asked for
	if theirs.status != 404 || !bytes.Equal(theirs.body, nobodys.body) {
		t.Errorf("another tenant's: %d %s, and nobody's %s", theirs.status, theirs.body, nobodys.body)
	}
}

// An export that fails half way is no whole answer.
func TestExportThatBreaks(t *testing.T) {
	f := newFixture(t)
	id := f.snapshotNamed("breaks")
	f.sandboxes.export = func(w io.Writer) error {
		if _, err := io.WriteString(w, "half"); err != nil {
			return err
		}
		return sandbox.Errorf(sandbox.Unavailable, "it broke")
	}
	req, err := http.NewRequest("GET", f.url+"/api/v1/snapshots/"+id+"/export", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+f.token)
	resp, err := f.client.Do(req)
	if err != nil {
		return // it was told at once
	}
	defer resp.Body.Close()
	if _, err := new(bytes.Buffer).ReadFrom(resp.Body); err == nil {
		t.Error("what broke was a whole answer")
	}
}

// A repeat with the same Idempotency-Key imports once.
func TestImportTakesEffectOnce(t *testing.T) {
	f := newFixture(t)
	file := string(f.do("GET", "/api/v1/snapshots/"+f.snapshotNamed("first")+"/export", "").body)
	var first []byte
	for i := range 3 {
		req, err := http.NewRequest("POST", f.url+"/api/v1/snapshots/import", strings.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.token)
		req.Header.Set("Content-Type", "application/octet-stream")
		req.Header.Set("Idempotency-Key", "k")
		a := f.send(req)
		if i == 0 {
			first = a.body
		}
		if a.status != 201 || !bytes.Equal(a.body, first) {
			t.Errorf("time %d: %d %s, first %s", i, a.status, a.body, first)
		}
	}
	if n := len(f.sandboxes.snapshots()); n != 2 {
		t.Errorf("%d snapshots with the one that was exported", n)
	}
}

func TestScopesOfExportAndImport(t *testing.T) {
	f := newFixture(t)
	id := f.snapshotNamed("first")
	reader := f.key("dev:test", sandbox.RoleDeveloper, sandbox.ScopeRead)
	if a := f.doAs(reader, "GET", "/api/v1/snapshots/"+id+"/export", ""); a.status != 200 {
		t.Errorf("export by who may read: %d %s", a.status, a.body)
	}
	if a := f.upload(reader, "/api/v1/snapshots/import", "exported 1"); a.status != 403 {
		t.Errorf("import by who may only read: %d %s", a.status, a.body)
	}
}

// upload posts bytes.
func (f *fixture) upload(token, path, body string) answer {
	f.t.Helper()
	req, err := http.NewRequest("POST", f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/octet-stream")
	return f.send(req)
}

// What is no connection to a port is refused before anything is opened.
func TestConnectPortRefuses(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
	for _, tt := range []struct {
		path, says string
		upgrade    bool
		status     int
	}{
		{id + "/ports/80/connect", "WebSocket only", false, 400},
		{id + "/ports/0/connect", "not a port", true, 400},
		{id + "/ports/65536/connect", "not a port", true, 400},
		{id + "/ports/-1/connect", "not a port", true, 400},
		{id + "/ports/http/connect", "not a port", true, 400},
		{id + "/ports/80/connect?host=10.0.0.1", "unknown query parameter", true, 400},
		{id + "/ports/49982/connect", "agent in the sandbox", true, 400},
		{id + "/ports/49983/connect", "agent in the sandbox", true, 400},
		{id + "/ports/49999/connect", "agent in the sandbox", true, 400},
		{"absent/ports/80/connect", "no sandbox", true, 404},
	} {
		headers := []string{"Authorization", "Bearer " + f.token}
		if tt.upgrade {
			headers = append(headers, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
		}
		if a := f.with("GET", "/api/v1/sessions/"+tt.path, "", headers...); a.status != tt.status || !strings.Contains(string(a.body), tt.says) {
			t.Errorf("%s: %d %s", tt.path, a.status, a.body)
		}
	}
}
