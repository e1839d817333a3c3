package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// trust runs `cloud-sandbox trust` on the data folder of a server.
func trust(t *testing.T, s *rig.Server, args ...string) string {
	t.Helper()
	out, err := rig.Command(s.Bin, append(append([]string{"trust"}, args...), "--data", s.Data)...).CombinedOutput()
	if err != nil {
		t.Fatalf("trust %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// states lists the saved states in the data folder of a server.
func states(t *testing.T, s *rig.Server) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.Data, "saved"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, e.Name())
		}
	}
	return all
}

// A session moves to another installation in one file with its variables, running
// programs and files. A truncated, changed or untrusted file is refused and leaves no
// state.
func TestSessionsMoveInAFile(t *testing.T) {
	t.Parallel()
	here, there := shared.Server(t), rig.OwnRoles(t, rig.Options{})
	c := here.Client(t, "mover")
	s := create(t, c, rig.Body{"env": rig.Body{"KEPT": "1"}})
	output(t, c, s.ID, "python", "numbers = [1, 2, 3]")
	c.Sh(t, s.ID, "head -c 20000000 /dev/urandom > /workspace/file; sha256sum /workspace/file > /workspace/sum")
	var p process
	c.Must(t, "POST", "/api/v1/processes", rig.Body{
		"sandbox_id": s.ID, "background": true, "command": "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done",
	}, &p)
	rig.Within(t, rig.Patience, "lines of the process", func() bool { return counts(t, kept(t, c, s.ID, p.ID)) > 5 })
	var snap saved
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/snapshots", rig.Body{"name": "monday"}, &snap)
	t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/snapshots/"+snap.ID, nil, nil) })
	export := "/api/v1/snapshots/" + snap.ID + "/export"
	status, file, err := c.Do("GET", export, nil)
	if err != nil || status != http.StatusOK || int64(len(file)) > snap.Size {
		t.Fatalf("exported %d, %d bytes of %d, %v", status, len(file), snap.Size, err)
	}
	if status, _, _ := here.Client(t, "stranger").Do("GET", export, nil); status != http.StatusNotFound {
		t.Errorf("another tenant exports it: %d", status)
	}

	other := there.Client(t, "mover")
	refused := func(what string, file []byte, want int, why string) {
		t.Helper()
		status, raw, err := other.Do("POST", "/api/v1/snapshots/import", file)
		if err != nil || status != want || !strings.Contains(string(raw), why) {
			t.Errorf("import of %s: %d %s, %v", what, status, raw, err)
		}
	}
	key := trust(t, here, "key")
	refused("what a stranger signed", file, http.StatusForbidden, key)
	trust(t, there.Server, "add", key)
	if got := trust(t, there.Server, "list"); got != key {
		t.Errorf("trusted are %q", got)
	}
	changed := slices.Clone(file)
	changed[len(changed)/2] ^= 1
	refused("a file that was cut", file[:len(file)-100], http.StatusBadRequest, "ends too early")
	refused("a file that was changed", changed, http.StatusBadRequest, "damaged")
	refused("something else", []byte("hello"), http.StatusBadRequest, "not the file of a snapshot")
	rig.Within(t, rig.Patience, "the end of what was refused", func() bool { return len(states(t, there.Server)) == 0 })

	var got saved
	other.Must(t, "POST", "/api/v1/snapshots/import", file, &got)
	if got.ID == snap.ID || got.Name != "monday" || !got.Memory {
		t.Errorf("imported %+v", got)
	}
	moved := create(t, other, rig.Body{"snapshot_id": got.ID})
	if held := output(t, other, moved.ID, "python", "print(sum(numbers))"); held != "6\n" {
		t.Errorf("its variables: %q", held)
	}
	if held := other.Sh(t, moved.ID, `sha256sum -c /workspace/sum; echo "$KEPT"`); held != "/workspace/file: OK\n1\n" {
		t.Errorf("its files and environment: %q", held)
	}
	before := counts(t, kept(t, other, moved.ID, p.ID))
	rig.Within(t, rig.Patience, "further lines of the process", func() bool { return counts(t, kept(t, other, moved.ID, p.ID)) > before+5 })
	other.Must(t, "DELETE", "/api/v1/snapshots/"+got.ID, nil, nil)
	trust(t, there.Server, "rm", key)
	refused("one that is trusted no more", file, http.StatusForbidden, "does not trust")
}

func TestExportOnTheCommandLine(t *testing.T) {
	t.Parallel()
	shared.Machine(t) // each node of a cluster signs with a key of its own
	sh := newShell(t, "exporter")
	sh.must(t, "create", "original")
	sh.must(t, "exec", "original", "--", "sh", "-c", "echo kept > /workspace/file")
	id := strings.TrimSpace(sh.must(t, "snapshot", "create", "original", "--files-only", "--name", "files"))
	sh.must(t, "snapshot", "export", id, "-o", "files.snapshot")
	info, err := os.Stat(filepath.Join(sh.folder, "files.snapshot"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("exported %v, %v", info, err)
	}
	copied := strings.TrimSpace(sh.must(t, "snapshot", "import", "files.snapshot", "--name", "again"))
	sh.must(t, "create", "moved", "--snapshot", copied)
	if got := sh.must(t, "exec", "moved", "cat", "/workspace/file"); got != "kept\n" {
		t.Errorf("it holds %q", got)
	}
	if got := sh.try(t, "hello", "snapshot", "import", "-"); got.code == 0 || !strings.Contains(got.err, "not the file of a snapshot") {
		t.Errorf("something else: %+v", got)
	}
	if got := sh.try(t, "", "snapshot", "export", "s00000000000000000000", "-o", "none"); got.code == 0 || !strings.Contains(got.err, "no snapshot") {
		t.Errorf("no snapshot: %+v", got)
	}
	if _, err := os.Stat(filepath.Join(sh.folder, "none")); err == nil {
		t.Error("what was not exported left a file")
	}
	for _, s := range []string{id, copied} {
		sh.must(t, "snapshot", "rm", s)
	}
}

// An export with its template moves a session to an installation that lacks the
// template's image.
func TestSessionsMoveWithTheirTemplate(t *testing.T) {
	t.Parallel()
	here, there := shared.Server(t), rig.Own(t, rig.Options{Pool: 1})
	c, other := here.Client(t, "mover"), there.Client(t, "mover")
	s := create(t, c, rig.Body{})
	output(t, c, s.ID, "python", "x = 42")
	var snap saved
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/snapshots", rig.Body{}, &snap)
	t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/snapshots/"+snap.ID, nil, nil) })
	export := func(query string) []byte {
		t.Helper()
		status, file, err := c.Do("GET", "/api/v1/snapshots/"+snap.ID+"/export"+query, nil)
		if err != nil || status != http.StatusOK {
			t.Fatalf("exported %d, %d bytes, %v", status, len(file), err)
		}
		return file
	}
	trust(t, there, "add", trust(t, here, "key"))
	images := filepath.Join(there.Data, "templates", "images")
	for _, dir := range []string{images, filepath.Join(there.Data, "templates", "refs")} {
		if err := os.RemoveAll(dir); err != nil { // running sandboxes hold their image open
			t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	status, raw, err := other.Do("POST", "/api/v1/snapshots/import", export(""))
	if err != nil || status != http.StatusConflict || !strings.Contains(string(raw), "export the snapshot with its template") {
		t.Errorf("imported without the image: %d %s, %v", status, raw, err)
	}
	file := export("?with_template=true")
	changed := slices.Clone(file)
	changed[len(changed)/4] ^= 1
	if status, raw, err := other.Do("POST", "/api/v1/snapshots/import", changed); err != nil || status != http.StatusBadRequest {
		t.Errorf("imported what was changed: %d %s, %v", status, raw, err)
	}
	if left, err := os.ReadDir(images); err != nil || len(left) > 0 {
		t.Errorf("left of it: %v, %v", left, err)
	}
	var got saved
	other.Must(t, "POST", "/api/v1/snapshots/import", file, &got)
	moved := create(t, other, rig.Body{"snapshot_id": got.ID})
	if held := output(t, other, moved.ID, "python", "print(x)"); held != "42\n" {
		t.Errorf("its variables: %q", held)
	}
	left, err := os.ReadDir(images)
	if err != nil || len(left) != 1 {
		t.Fatalf("images: %v, %v", left, err)
	}
	template := "/api/v1/templates/base@" + strings.TrimSuffix(left[0].Name(), ".erofs")
	other.Must(t, "GET", template, nil, nil)
	if status, _, _ := there.Client(t, "stranger").Do("GET", template, nil); status != http.StatusNotFound {
		t.Errorf("another tenant finds it: %d", status)
	}
	_ = other.Try("DELETE", "/api/v1/sessions/"+moved.ID, nil, nil)
	if status, raw, err := other.Do("DELETE", template, nil); err != nil || status != http.StatusConflict {
		t.Errorf("removed what a snapshot needs: %d %s, %v", status, raw, err)
	}
	other.Must(t, "DELETE", "/api/v1/snapshots/"+got.ID, nil, nil)
	other.Must(t, "DELETE", template, nil, nil)
}
