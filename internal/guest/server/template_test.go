package server

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadEnvironment(t *testing.T) {
	got := readEnvironment(write(t, `# a comment
PLAIN=a b
QUOTED="c d"
SINGLE='e'
export EXPORTED=f
EMPTY=
HALF="g
=nameless
no pair
A B=c
	SPACED=h
URL=http://x/?a=b
`))
	want := map[string]string{
		"PLAIN": "a b", "QUOTED": "c d", "SINGLE": "e", "EXPORTED": "f", "EMPTY": "", "HALF": `"g`, "SPACED": "h", "URL": "http://x/?a=b",
	}
	if !maps.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	if got := readEnvironment("/nowhere"); len(got) != 0 {
		t.Errorf("of an absent file: %q", got)
	}
}

func TestReadTemplate(t *testing.T) {
	got := readTemplate(write(t, `{"env":{"A":"b"},"start":"x","ready":"y","later":1}`))
	if got.Env["A"] != "b" || got.Start != "x" || got.Ready != "y" {
		t.Errorf("read %+v", got)
	}
	for _, bad := range []string{"/nowhere", write(t, ""), write(t, "[]"), write(t, `{"start":1}`)} {
		if got := readTemplate(bad); got.Start != "" || got.Env != nil {
			t.Errorf("of %s: %+v", bad, got)
		}
	}
}

// The image's environment is the weakest, but it cannot say who the user is.
func TestTemplateEnvironment(t *testing.T) {
	template := guest.Template{Env: map[string]string{"PATH": "/opt/bin", "HOME": "/nowhere", "IMAGE": "1", "BOTH": "image", "ASKED": "image"}}
	env := environment(template.Env, Owner{Env: map[string]string{"BOTH": "sandbox", "ASKED": "sandbox"}}, User{Name: "user", Home: "/home/user"}, map[string]string{"ASKED": "request"})
	for _, want := range []string{"PATH=/opt/bin", "HOME=/home/user", "IMAGE=1", "BOTH=sandbox", "ASKED=request", "LC_CTYPE=C.UTF-8"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is not in %s", want, strings.Join(env, " "))
		}
	}
}
