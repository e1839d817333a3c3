package e2e

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

func TestReplace(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "replace")
	id := c.Acquire(t)
	c.Sh(t, id, `mkdir -p src/sub; printf 'def f(x):\n  return x\n' >src/a.py; echo 'f(x) f(x)' >src/sub/b.py; echo 'f(x)' >src/c.txt; chmod 751 src/a.py
		sudo sh -c 'echo "f(x)" >/root/secret; echo "f(x)" >src/locked.py; chmod 600 src/locked.py'; printf 'f(x)\0' >src/binary.py`)
	var done struct {
		Count int
		Files []struct {
			Path  string
			Count int
			Lines []int
		}
	}
	replace := func(body rig.Body, want int) {
		t.Helper()
		body["sandbox_id"] = id
		code, raw, err := c.Do("POST", "/api/v1/files/replace", body)
		if err != nil || code != want {
			t.Errorf("%v answers %d %s %v", body, code, raw, err)
		}
	}
	for _, tt := range []struct {
		body rig.Body
		want int
	}{
		{rig.Body{"path": "src", "pattern": "f(x)", "replacement": "g", "expected_count": 99}, 409},
		{rig.Body{"path": "src", "pattern": "f(x)", "replacement": "g", "dry_run": true}, 200},
		{rig.Body{"path": "src", "pattern": "(", "replacement": "g", "regex": true}, 400},
		{rig.Body{"path": "none", "pattern": "f", "replacement": "g"}, 404},
		{rig.Body{"path": "/root/secret", "pattern": "f", "replacement": "g"}, 403},
		{rig.Body{"path": "src/locked.py", "pattern": "f", "replacement": "g"}, 403},
		{rig.Body{"path": "src", "pattern": "f", "replacement": "g", "user": "nobdy"}, 400},
	} {
		replace(tt.body, tt.want)
	}
	if got := c.Sh(t, id, "grep -c 'f(x)' src/a.py src/sub/b.py src/c.txt"); got != "src/a.py:1\nsrc/sub/b.py:1\nsrc/c.txt:1\n" {
		t.Errorf("nothing should have changed: %s", got)
	}
	c.Must(t, "POST", "/api/v1/files/replace", rig.Body{
		"sandbox_id": id, "path": "src", "pattern": `f\((\w)\)`, "replacement": "g(${1}, 1)", "regex": true, "globs": []string{"*.py"}, "expected_count": 3,
	}, &done)
	if done.Count != 3 || len(done.Files) != 2 || done.Files[1].Path != "/workspace/src/sub/b.py" || done.Files[1].Count != 2 {
		t.Errorf("replaced %+v", done)
	}
	want := "def g(x, 1):\n  return x\ng(x, 1) g(x, 1)\nf(x)\n751 user\n"
	if got := c.Sh(t, id, "cat src/a.py src/sub/b.py src/c.txt; stat -c '%a %U' src/a.py"); got != want {
		t.Errorf("afterwards %q", got)
	}
	replace(rig.Body{"path": "src/locked.py", "pattern": "f(x)", "replacement": "g", "user": "root"}, 200)
	if got := c.Sh(t, id, "sudo cat src/locked.py; sudo stat -c '%a %U' src/locked.py"); got != "g\n600 root\n" {
		t.Errorf("as root: %q", got)
	}
}

func TestBatch(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "batch")
	id := c.Acquire(t)
	var reply struct {
		Results []struct {
			Status, Content string
			Base64          []byte `json:"content_base64"`
			Entry           struct{ Path, Mode string }
			Entries         []struct{ Path string }
			Error           struct{ Code string }
		}
		Failed int
	}
	c.Must(t, "POST", "/api/v1/files/batch", rig.Body{"sandbox_id": id, "operations": []rig.Body{
		{"op": "write", "path": "p/run.sh", "content": "echo hi\n", "mode": "0755"},
		{"op": "write", "path": "p/bin", "content_base64": "AAH/"},
		{"op": "read", "path": "p/run.sh"},
		{"op": "read", "path": "p/bin"},
		{"op": "read", "path": "none"},
		{"op": "copy", "source": "p", "destination": "q", "recursive": true},
		{"op": "list", "path": "q"},
		{"op": "remove", "path": "p"},
		{"op": "remove", "path": "p", "recursive": true},
	}}, &reply)
	var all []string
	for _, r := range reply.Results {
		all = append(all, r.Status+r.Error.Code)
	}
	if got := strings.Join(all, " "); got != "ok ok ok ok errornot_found ok ok errorconflict ok" || reply.Failed != 2 {
		t.Errorf("%s: %+v", got, reply)
	}
	if r := reply.Results; r[0].Entry.Mode != "0755" || r[2].Content != "echo hi\n" || !bytes.Equal(r[3].Base64, []byte{0, 1, 255}) || len(r[6].Entries) != 2 {
		t.Errorf("%+v", r)
	}
	if got := c.Sh(t, id, "./q/run.sh; ls -d p || true"); got != "hi\n" {
		t.Errorf("afterwards %q", got)
	}
}

func TestUploadForm(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "form")
	id := c.Acquire(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for name, content := range map[string][]byte{"a.txt": []byte("a"), "dir/big": big} {
		w, err := form.CreateFormFile("f", name)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write(content)
	}
	form.Close()
	req, _ := http.NewRequest("POST", c.URL+rig.Files("", id, "up"), &body)
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set("Content-Type", form.FormDataContentType())
	resp, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("answers %s", resp.Status)
	}
	if got := c.Sh(t, id, "cd up && stat -c '%n %s %U' a.txt dir/big && cat a.txt && md5sum <dir/big"); !strings.HasPrefix(got, "a.txt 1 user\ndir/big 4194304 user\na") {
		t.Errorf("uploaded: %s", got)
	}
}
