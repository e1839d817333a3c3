package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// tinyRoot returns a root filesystem with a few of the host's programs and their
// libraries.
func tinyRoot(t *testing.T) string {
	t.Helper()
	return rootOf(t)
}

// rootOf returns a tinyRoot with more of the host's programs.
func rootOf(t *testing.T, programs ...string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	script := `set -e
mkdir -p "$0/bin" "$0/etc"
for p in "$@"; do
  real=$(type -P $p); cp -L "$real" "$0/bin/$p"
  for lib in $(ldd "$real" | grep -o '/[^ ]*'); do mkdir -p "$0$(dirname $lib)"; cp -Ln "$lib" "$0$lib" || true; done
done
chmod 755 "$0"`
	args := append([]string{"-c", script, root}, "sh", "bash", "sleep", "cat", "env", "id", "touch", "tar", "mkdir")
	args = append(args, programs...)
	if out, err := rig.Command("bash", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return root
}

// templateCLI runs `cloud-sandbox template` on the server's data folder.
func templateCLI(t *testing.T, s *rig.Server, args ...string) (string, error) {
	t.Helper()
	cmd := rig.Command(s.Bin, append([]string{"template"}, append(args, "--data", s.Data)...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func mustTemplate(t *testing.T, s *rig.Server, args ...string) string {
	t.Helper()
	out, err := templateCLI(t, s, args...)
	if err != nil {
		t.Fatalf("template %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// A template is built from a folder with files, an environment and a start command that
// creates wait for. It has tags and versions, and is removed.
func TestTemplateOfFolder(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	c := s.Client(t, "templates")
	root := tinyRoot(t)
	app := filepath.Join(t.TempDir(), "app.sh")
	if err := os.WriteFile(app, []byte("#!/bin/sh\necho from the file\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	mustTemplate(t, s, "build", "tiny:1", "--source", "dir:"+root, "--file", app+":/srv/app.sh",
		"--env", "GREETING=hello there", "--env", `QUOTE=a"b`, "--start", "sleep 1; touch /tmp/up; exec sleep 1000", "--ready", "test -e /tmp/up")
	began := time.Now()
	made := create(t, c, rig.Body{"template": "tiny:1", "env": rig.Body{"MINE": "1"}})
	if took := time.Since(began); took < time.Second {
		t.Errorf("its start command was not waited for: %v", took)
	}
	const show = `/srv/app.sh; echo "$GREETING, $QUOTE, $MINE, $(id -u)"; test -e /tmp/up && echo up`
	if got := output(t, c, made.ID, "bash", show); got != "from the file\nhello there, a\"b, 1, 1000\nup\n" {
		t.Errorf("inside: %q", got)
	}

	// A second version does not change the first, by tag or by digest.
	mustTemplate(t, s, "build", "tiny", "--source", "dir:"+root, "--env", "GREETING=second")
	versions := map[string]string{"tiny": digestOf(t, s, "tiny"), "tiny:1": digestOf(t, s, "tiny:1")}
	if again := mustTemplate(t, s, "ls", "--versions"); strings.Count(again, "tiny") != 2 || !strings.Contains(again, "base") {
		t.Errorf("versions: %s", again)
	}
	boxes := []string{made.ID}
	for tag, want := range map[string]string{"tiny": "second\n", "tiny:1": "hello there\n"} {
		for _, name := range []string{tag, "tiny@" + versions[tag]} {
			box := create(t, c, rig.Body{"template": name})
			boxes = append(boxes, box.ID)
			if got := output(t, c, box.ID, "bash", "echo $GREETING"); got != want {
				t.Errorf("%s greets with %q", name, got)
			}
		}
	}

	// A template in use is not removed. Its later removal deletes the images.
	for _, name := range []string{"tiny", "tiny@" + versions["tiny"]} {
		if out, err := templateCLI(t, s, "rm", name); err == nil || !strings.Contains(out, "end them first") {
			t.Errorf("rm %s while sandboxes run from it: %v: %s", name, err, out)
		}
	}
	if got := output(t, c, made.ID, "bash", show); !strings.HasSuffix(got, "up\n") {
		t.Errorf("after its template was to be removed: %q", got)
	}
	for _, id := range boxes {
		if err := c.Try("DELETE", "/api/v1/sessions/"+id, nil, nil); err != nil {
			t.Error(err)
		}
	}
	if out := mustTemplate(t, s, "rm", "tiny"); strings.Count(out, "tiny") != 4 {
		t.Errorf("rm: %s", out)
	}
	if err := c.Try("POST", "/api/v1/sessions", rig.Body{"template": "tiny"}, nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a removed template: %v", err)
	}
	for _, digest := range versions {
		if _, err := os.Stat(filepath.Join(s.Data, "templates/images", digest+".erofs")); err == nil {
			t.Errorf("the image %s is left", digest)
		}
	}
}

// A create from a template whose start command fails reports the command's error.
// Invalid template commands fail.
func TestTemplateThatFails(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	c := s.Client(t, "failing")
	root := tinyRoot(t)
	mustTemplate(t, s, "build", "broken", "--source", "dir:"+root, "--start", "echo it broke >&2; exit 7", "--ready", "false")
	err := c.Try("POST", "/api/v1/sessions", rig.Body{"template": "broken"}, nil)
	if err == nil || !strings.Contains(err.Error(), "it broke") || !strings.Contains(err.Error(), "7") {
		t.Errorf("a start command that fails: %v", err)
	}
	for _, args := range [][]string{
		{"build", "x", "--source", "tar:/nowhere.tar"},
		{"build", "x", "--source", "dir:/etc"},
		{"build", "x", "--source", "ftp:x"},
		{"build", "../x", "--source", "dir:" + root},
		{"build", "x", "--source", "dir:" + root, "--package", "git"},
		{"build", "x", "--source", "dir:" + root, "--file", "/nowhere:/x"},
		{"rm", "base"},
		{"rm", "nothing"},
	} {
		if out, err := templateCLI(t, s, args...); err == nil || strings.Contains(out, "panic") {
			t.Errorf("template %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	var left []struct{ Template string }
	decodeInto(t, []byte(mustTemplate(t, s, "ls", "--json")), &left)
	for _, l := range left {
		if name, _, _ := strings.Cut(l.Template, ":"); strings.HasSuffix(name, "x") { // of x, and ../x
			t.Errorf("a build that failed left %q", l.Template)
		}
	}
}

// digestOf returns the version that a tag names.
func digestOf(t *testing.T, s *rig.Server, tag string) string {
	t.Helper()
	var all []struct{ Template, Version string }
	decodeInto(t, []byte(mustTemplate(t, s, "ls", "--json")), &all)
	for _, l := range all {
		if l.Template == tag {
			return l.Version
		}
	}
	t.Fatalf("%s is not in %v", tag, all)
	return ""
}

// Saved states keep their template's version through rebuilds and removals, until they
// are deleted.
func TestTemplatesOfWhatIsSaved(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{})
	c := s.Client(t, "saver")
	root := tinyRoot(t)
	image := func(digest string) bool {
		_, err := os.Stat(filepath.Join(s.Data, "templates/images", digest+".erofs"))
		return err == nil
	}
	mustTemplate(t, s, "build", "tiny", "--source", "dir:"+root, "--env", "VERSION=1")
	first := digestOf(t, s, "tiny")
	paused, ended := create(t, c, rig.Body{"template": "tiny"}), create(t, c, rig.Body{"template": "tiny"})
	c.Sh(t, paused.ID, "echo kept > /tmp/file")
	var snap saved
	c.Must(t, "POST", "/api/v1/sessions/"+ended.ID+"/snapshots", rig.Body{}, &snap)
	c.Must(t, "DELETE", "/api/v1/sessions/"+ended.ID, nil, nil)
	act(t, c, paused.ID, "pause", rig.Body{})

	// Build more versions than the server keeps.
	for _, version := range []string{"2", "3", "4", "5", "6", "7"} {
		mustTemplate(t, s, "build", "tiny", "--source", "dir:"+root, "--env", "VERSION="+version)
	}
	if list := mustTemplate(t, s, "ls", "--versions"); !image(first) || !strings.Contains(list, first[:12]) {
		t.Fatalf("after six more versions: %s", list)
	}
	for _, name := range []string{"tiny", "tiny@" + first} {
		if out, err := templateCLI(t, s, "rm", name); err == nil || !strings.Contains(out, "needs version "+first[:12]) || !strings.Contains(out, "session") {
			t.Errorf("rm %s while sessions are saved on it: %v: %s", name, err, out)
		}
	}
	if got := c.Sh(t, paused.ID, "echo $VERSION; cat /tmp/file"); got != "1\nkept\n" {
		t.Errorf("resumed: %q", got)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+paused.ID, nil, nil)
	// The state of the paused session is deleted a moment after the session.
	rig.Within(t, rig.Patience, "the snapshot is what is left", func() bool {
		out, err := templateCLI(t, s, "rm", "tiny@"+first)
		if err == nil {
			t.Fatalf("rm while a snapshot is left: %s", out)
		}
		return strings.Contains(out, snap.ID)
	})
	c.Must(t, "DELETE", "/api/v1/snapshots/"+snap.ID, nil, nil)
	rig.Within(t, rig.Patience, "the version's end", func() bool {
		_, err := templateCLI(t, s, "rm", "tiny@"+first)
		return err == nil
	})
	if mustTemplate(t, s, "rm", "tiny"); image(first) {
		t.Error("the first image is left")
	}

	// The same with a tenant's own template.
	b := upload(t, c, `{"template":"mine","source":"tar:"}`, tarOf(t, root))
	if log, done := follow(t, c, b.ID); done.State != "ready" {
		t.Fatalf("built as %+v with %s", done, log)
	}
	box := create(t, c, rig.Body{"template": "mine"})
	act(t, c, box.ID, "pause", rig.Body{"memory": false})
	rig.Within(t, rig.Patience, "the error names the paused session", func() bool { // once its Boot is gone
		status, raw, err := c.Do("DELETE", "/api/v1/templates/mine", nil)
		if err != nil || status != 409 {
			t.Fatalf("removed while a session is paused: %d %s, %v", status, raw, err)
		}
		return strings.Contains(string(raw), box.ID)
	})
	c.Sh(t, box.ID, "true")
	c.Must(t, "DELETE", "/api/v1/sessions/"+box.ID, nil, nil)
	rig.Within(t, rig.Patience, "the template's end", func() bool {
		status, _, err := c.Do("DELETE", "/api/v1/templates/mine", nil)
		return err == nil && status < 300
	})
}
