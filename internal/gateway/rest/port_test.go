package rest_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// snapshotNamed makes one of a session of its own.
func (f *fixture) snapshotNamed(name string) string {
	f.T.Helper()
	var s struct {
		ID string `json:"snapshot_id"`
	}
	f.Do("POST", "/api/v1/sessions/"+f.Acquire()+"/snapshots", `{"name":"`+name+`"}`).Into(f.T, 201, &s)
	return s.ID
}

func TestExportAndImportOverREST(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.snapshotNamed("first")
	a := f.Do("GET", "/api/v1/snapshots/"+id+"/export", "")
	if a.Status != 200 || !bytes.Contains(a.Body, []byte(id)) {
		t.Fatalf("exported %d %q", a.Status, a.Body)
	}
	if with := f.Do("GET", "/api/v1/snapshots/"+id+"/export?with_template=true", ""); with.Status != 200 || !bytes.Contains(with.Body, []byte(id)) || bytes.Equal(with.Body, a.Body) {
		t.Errorf("exported with its image: %d %q", with.Status, with.Body)
	}
	if kind, name := a.Header.Get("Content-Type"), a.Header.Get("Content-Disposition"); kind != "application/octet-stream" || name != "attachment; filename=first.snapshot" {
		t.Errorf("it is %q, %q", kind, name)
	}
	var got struct {
		ID   string `json:"snapshot_id"`
		Name string
		Kept bool
	}
	f.upload(f.Token, "/api/v1/snapshots/import?name=again", string(a.Body)).Into(t, 201, &got)
	if got.ID == id || got.Name != "again" || !got.Kept {
		t.Errorf("imported %+v", got)
	}
	f.Do("GET", "/api/v1/snapshots/"+got.ID, "").Into(t, 200, &got)

	f.Sandboxes.Export = func(io.Writer) error { return sandbox.Errorf(sandbox.Exhausted, "busy") }
	if a := f.Do("GET", "/api/v1/snapshots/"+id+"/export", ""); a.Status != 429 || a.Header.Get("Content-Disposition") != "" {
		t.Errorf("when it is refused: %d %v", a.Status, a.Header)
	}
	f.Sandboxes.Export = nil
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
		{"POST", "/api/v1/snapshots/import?name=a/b", string(a.Body), 400},
		{"POST", "/api/v1/snapshots/import?id=x", string(a.Body), 400},
	} {
		var a gatewaytest.Answer
		if tt.method == "POST" {
			a = f.upload(f.Token, tt.path, tt.body)
		} else {
			a = f.Do(tt.method, tt.path, tt.body)
		}
		if a.Status != tt.want {
			t.Errorf("%s %s %q: %d %s", tt.method, tt.path, tt.body, a.Status, a.Body)
		}
	}
	theirs := f.DoAs(f.Mint("other"), "GET", "/api/v1/snapshots/"+id+"/export", "")
	absent := sandbox.NewSnapshotID()
	nobodys := f.DoAs(f.Mint("other"), "GET", "/api/v1/snapshots/"+absent+"/export", "")
	theirs.Body = bytes.ReplaceAll(theirs.Body, []byte(id), []byte(absent)) // each repeats what was asked for
	if theirs.Status != 404 || !bytes.Equal(theirs.Body, nobodys.Body) {
		t.Errorf("another tenant's: %d %s, and nobody's %s", theirs.Status, theirs.Body, nobodys.Body)
	}
}

// An export that fails half way is no whole answer.
func TestExportThatBreaks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.snapshotNamed("breaks")
	f.Sandboxes.Export = func(w io.Writer) error {
		if _, err := io.WriteString(w, "half"); err != nil {
			return err
		}
		return sandbox.Errorf(sandbox.Unavailable, "it broke")
	}
	req, err := http.NewRequest("GET", f.URL+"/api/v1/snapshots/"+id+"/export", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+f.Token)
	resp, err := f.Client.Do(req)
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
	t.Parallel()
	f := newFixture(t)
	file := string(f.Do("GET", "/api/v1/snapshots/"+f.snapshotNamed("first")+"/export", "").Body)
	var first []byte
	for i := range 3 {
		req, err := http.NewRequest("POST", f.URL+"/api/v1/snapshots/import", strings.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.Token)
		req.Header.Set("Content-Type", "application/octet-stream")
		req.Header.Set("Idempotency-Key", "k")
		a := f.Send(req)
		if i == 0 {
			first = a.Body
		}
		if a.Status != 201 || !bytes.Equal(a.Body, first) {
			t.Errorf("time %d: %d %s, first %s", i, a.Status, a.Body, first)
		}
	}
	if n := len(f.Sandboxes.Snapshots()); n != 2 {
		t.Errorf("%d snapshots with the one that was exported", n)
	}
}

func TestScopesOfExportAndImport(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.snapshotNamed("first")
	reader := f.Key("dev:test", sandbox.RoleDeveloper, sandbox.ScopeRead)
	if a := f.DoAs(reader, "GET", "/api/v1/snapshots/"+id+"/export", ""); a.Status != 200 {
		t.Errorf("export by who may read: %d %s", a.Status, a.Body)
	}
	if a := f.upload(reader, "/api/v1/snapshots/import", "exported 1"); a.Status != 403 {
		t.Errorf("import by who may only read: %d %s", a.Status, a.Body)
	}
}

// upload posts bytes.
func (f *fixture) upload(token, path, body string) gatewaytest.Answer {
	f.T.Helper()
	req, err := http.NewRequest("POST", f.URL+path, strings.NewReader(body))
	if err != nil {
		f.T.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/octet-stream")
	return f.Send(req)
}

// A request that is no connection to a port is refused before anything is opened.
func TestConnectPortRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
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
		headers := []string{"Authorization", "Bearer " + f.Token}
		if tt.upgrade {
			headers = append(headers, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
		}
		if a := f.With("GET", "/api/v1/sessions/"+tt.path, "", headers...); a.Status != tt.status || !strings.Contains(string(a.Body), tt.says) {
			t.Errorf("%s: %d %s", tt.path, a.Status, a.Body)
		}
	}
}
