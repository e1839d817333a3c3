package template

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// pin returns a package whose pin is that of body.
func pin(name, body string) pinned {
	sum := sha512.Sum512([]byte(body))
	return pinned{name, "1.2.3", "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
}

func newBuild(t *testing.T) *build {
	t.Helper()
	s := newStore(t)
	if err := s.makeFolders(); err != nil {
		t.Fatal(err)
	}
	dir := s.path("build", "base")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return &build{
		Builder: &Builder{Store: s}, ref: Ref{Name: "base", Tag: Latest}, name: "base", dir: dir,
		plan: plan{recipe: Recipe{Source: Debian("")}},
	}
}

func TestFetchPackage(t *testing.T) {
	asked := 0
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch r.URL.Path {
		case "/npm/good/-/good-1.2.3.tgz", "/npm/forged/-/forged-1.2.3.tgz":
			_, _ = w.Write([]byte("content"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer registry.Close()
	b := newBuild(t)
	b.NPMRegistry = registry.URL + "/npm/"

	for range 2 { // the second comes from the cache
		file, err := b.fetchPackage(t.Context(), pin("good", "content"))
		if err != nil {
			t.Fatal(err)
		}
		if body, err := os.ReadFile(file); err != nil || string(body) != "content" {
			t.Errorf("got %q, %v", body, err)
		}
	}
	if asked != 1 {
		t.Errorf("the registry was asked %d times, want once", asked)
	}
	if err := os.WriteFile(filepath.Join(b.cache(), "npm/good-1.2.3.tgz"), []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := b.fetchPackage(t.Context(), pin("good", "content")); err != nil || asked != 2 {
		t.Errorf("damaged in the cache: %v after %d questions, want it fetched again", err, asked)
	}
	if _, err := b.fetchPackage(t.Context(), pin("forged", "other content")); !errors.Is(err, sandbox.Internal) {
		t.Errorf("other content than pinned: %v, want Internal", err)
	}
	if _, err := b.fetchPackage(t.Context(), pin("absent", "")); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("absent: %v, want Unavailable", err)
	}
	registry.Close()
	if _, err := b.fetchPackage(t.Context(), pin("other", "")); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("no registry: %v, want Unavailable", err)
	}
	b.NPMRegistry = "file:///etc"
	if _, err := b.fetchPackage(t.Context(), pin("other", "")); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("no address: %v, want Invalid", err)
	}
	if left, _ := filepath.Glob(filepath.Join(b.cache(), "npm/*")); len(left) != 1 {
		t.Errorf("the cache holds %v, want the good one only", left)
	}
}

func TestInstallNode(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	pack := func(name string, in *bytes.Buffer) string {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, err := w.Write(in.Bytes())
		if err := errors.Join(err, w.Close(), os.WriteFile(filepath.Join(dir, name), out.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	node := pack("node", archive(t, file("package/include/v8.h", "", 0o644), file("package/bin/node", "node", 0o755)))
	npm := pack("npm", archive(t,
		file("package/bin/npm-cli.js", "npm", 0o644), file("package/bin/npx-cli.js", "npx", 0o644),
		file("package/docs/x", "", 0o644), file("package/../../../etc/passwd", "evil", 0o644)))
	b := newBuild(t)
	b.tree, b.dir = newTree(t)
	if err := b.installNode(node, npm); err != nil {
		t.Fatal(err)
	}
	if !b.tree.has("usr/local/bin/node") || b.tree.has("usr/local/include/v8.h") || b.tree.has("etc/passwd") {
		t.Error("want node, no headers, and nothing elsewhere")
	}
	for _, name := range []string{"node", "npm", "npx"} {
		info, err := b.tree.Stat("usr/local/bin/" + name)
		if err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s is %v, %v, want it executable", name, info, err)
		}
	}
}

func TestPinsAreComplete(t *testing.T) {
	for arch, p := range nodePackages {
		if p.name == "" || p.version != nodePackages["amd64"].version || len(p.integrity) != len("sha512-")+88 {
			t.Errorf("%s: %+v", arch, p)
		}
	}
}
