package e2e

import (
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// One port of a sandbox is made private and public again.
func TestCommandPortAccess(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-port-access")
	sh.must(t, "create", "box")
	sh.must(t, "exec", "-d", "box", "python3", "-m", "http.server", "8000")
	c := sh.server.Client(t, "command-port-access")
	reach := func() int {
		req, err := http.NewRequest("GET", sh.server.URL+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		var s rig.Sandbox
		c.Must(t, "GET", "/api/v1/sessions/box", nil, &s)
		req.Host = "8000-" + s.ID + ".localhost"
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	rig.Within(t, rig.Patience, "the service answers", func() bool { return reach() == 200 })
	if out := sh.must(t, "ports", "box", "--private", "8000"); !strings.Contains(out, "(private)") || reach() != 403 {
		t.Errorf("private: %d, %s", reach(), out)
	}
	if out := sh.must(t, "ports", "box"); !strings.Contains(out, "(private)") {
		t.Errorf("listed: %s", out)
	}
	if out := sh.must(t, "ports", "box", "--public", "8000", "--json"); !strings.Contains(out, `"private": false`) || reach() != 200 {
		t.Errorf("public again: %d, %s", reach(), out)
	}
	for _, flags := range [][]string{{"--public", "0"}, {"--private", "65536"}, {"--private", "1", "-f", "80"}} {
		if r := sh.try(t, "", append([]string{"ports", "box"}, flags...)...); r.code != 2 {
			t.Errorf("%q: %+v", flags, r)
		}
	}
}

// A user's own keys through the server: made, used, rotated, revoked.
func TestCommandKey(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-key")
	secret := strings.TrimSpace(sh.must(t, "key", "create", "--name", "ci", "--scope", "read,keys", "--expires-in", "1h"))
	var list []struct {
		ID     string `json:"key_id"`
		Name   string
		Scopes []string
	}
	decodeInto(t, []byte(sh.must(t, "key", "ls", "--json")), &list)
	if len(list) != 1 || list[0].Name != "ci" || strings.Join(list[0].Scopes, " ") != "read keys" {
		t.Fatalf("the list is %+v", list)
	}
	if out := sh.must(t, "key", "ls"); !strings.Contains(out, list[0].ID) || strings.Contains(out, secret) {
		t.Errorf("for people the list is %s", out)
	}
	if out := sh.must(t, "ls", "--api-key", secret); !strings.Contains(out, "SANDBOX") {
		t.Errorf("with the key: %q", out)
	}
	var rotated struct {
		Secret   string `json:"key"`
		Previous *struct{ Hint string }
	}
	decodeInto(t, []byte(sh.must(t, "key", "rotate", list[0].ID, "--overlap", "0", "--json")), &rotated)
	if rotated.Secret == "" || rotated.Secret == secret || rotated.Previous != nil {
		t.Errorf("rotated: %+v", rotated)
	}
	if r := sh.try(t, "", "ls", "--api-key", secret); r.code != 1 {
		t.Errorf("the secret before: %+v", r)
	}
	sh.must(t, "key", "ls", "--api-key", rotated.Secret)
	if got := sh.must(t, "key", "rm", list[0].ID); strings.TrimSpace(got) != list[0].ID {
		t.Errorf("rm prints %q", got)
	}
	for _, tt := range []struct {
		args []string
		code int
		err  string
	}{
		{[]string{"rm", list[0].ID}, 1, "no such key"},
		{[]string{"create", "--role", "operator"}, 1, "role"},
		{[]string{"create", "--role", "king"}, 1, "role must be"},
		{[]string{"create", "--scope", "everything"}, 1, "scope"},
		{[]string{"create", "--expires-in", "10ms"}, 2, "at least 1s"},
		{[]string{"create", "--tenant", "acme", "--url", sh.server.URL}, 2, "give one"},
		{[]string{"rotate"}, 2, "one KEY"},
	} {
		if r := sh.try(t, "", append([]string{"key"}, tt.args...)...); r.code != tt.code || !strings.Contains(r.err, tt.err) || r.out != "" {
			t.Errorf("key %q: %+v, want %d and %q", tt.args, r, tt.code, tt.err)
		}
	}
}

// A user builds a template through the server from a folder and from an archive, starts
// from it, lists it and removes it.
func TestCommandTemplate(t *testing.T) {
	t.Parallel()
	keepsTemplates(t)
	sh := newShell(t, "command-template")
	root := tinyRoot(t)
	sh.write(t, "app.sh", "#!/bin/sh\necho from the file\n", 0o755)
	var built struct {
		Template, Version string
		Cached            bool
	}
	decodeInto(t, []byte(sh.must(t, "template", "build", "mine:1", "--source", "dir:"+root, "--file", "app.sh:/srv/app.sh",
		"--env", "GREETING=hello there", "--json")), &built)
	if built.Template != "mine:1" || !regexp.MustCompile("^[0-9a-f]{64}$").MatchString(built.Version) || built.Cached {
		t.Errorf("built: %+v", built)
	}
	if got := sh.must(t, "run", "--template", "mine:1", "--", "sh", "-c", `/srv/app.sh; echo "$GREETING"`); got != "from the file\nhello there\n" {
		t.Errorf("inside: %q", got)
	}
	archive := filepath.Join(sh.folder, "root.tar.gz")
	if out, err := rig.Command("tar", "-C", root, "-czf", archive, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	again := sh.try(t, "", "template", "build", "mine:2", "--source", "tar:root.tar.gz")
	if again.code != 0 || !strings.Contains(again.err, "mine:2 built") {
		t.Fatalf("of an archive: %+v", again)
	}
	list := sh.must(t, "template", "ls")
	if !strings.Contains(list, "mine:1") || !strings.Contains(list, "mine:2") || !regexp.MustCompile(`base +[0-9a-f]{12} +all `).MatchString(list) {
		t.Errorf("ls: %s", list)
	}
	if versions := sh.must(t, "template", "ls", "--versions"); strings.Count(versions, "mine") != 2 {
		t.Errorf("ls --versions: %s", versions)
	}
	var gone []string
	decodeInto(t, []byte(sh.must(t, "template", "rm", "mine:1", "mine", "--json")), &gone)
	if len(gone) != 4 || gone[0] != "mine:1" || strings.Contains(sh.must(t, "template", "ls"), "mine") {
		t.Errorf("removed: %q", gone)
	}
	for _, tt := range []struct {
		args []string
		code int
		err  string
	}{
		{[]string{"build", "--source", "dir:" + root}, 2, "NAME of the template is missing"},
		{[]string{"build", "x"}, 2, "--source is missing"},
		{[]string{"build", "x", "--source", "dir:/nowhere"}, 1, "no such file"},
		{[]string{"build", "x", "--source", "dir:app.sh"}, 1, "not a folder"},
		{[]string{"build", "x", "--source", "tar:app.sh"}, 1, ""},
		{[]string{"build", "../x", "--source", "dir:" + root}, 1, "name"},
		{[]string{"build", "x", "--source", "dir:" + root, "--file", "app.sh"}, 2, "HERE:THERE"},
		{[]string{"build", "x", "--source", "dir:" + root, "--file", "app.sh:/x:9"}, 2, "octal"},
		{[]string{"build", "x", "--source", "dir:" + root, "--private", "--url", sh.server.URL}, 2, "give one"},
		{[]string{"rm", "base"}, 1, "base"},
		{[]string{"rm", "mine"}, 1, "mine"},
	} {
		if r := sh.try(t, "", append([]string{"template"}, tt.args...)...); r.code != tt.code || !strings.Contains(r.err, tt.err) || r.out != "" {
			t.Errorf("template %q: %+v, want %d and %q", tt.args, r, tt.code, tt.err)
		}
	}
}
