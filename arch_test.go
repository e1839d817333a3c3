package sandbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cloud-sandbox/cloud-sandbox"

// goPackage is what `go list -json` says of a package.
type goPackage struct {
	ImportPath   string
	Name         string
	Doc          string
	Imports      []string
	Deps         []string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// listPackages returns every package of the module, by path below it.
func listPackages(t *testing.T) map[string]goPackage {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command to ask")
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Name,Doc,Imports,Deps,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	all := map[string]goPackage{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all[below(p.ImportPath)] = p
	}
	return all
}

// below is a package's path below the module: "." for the root, the whole path
// for a foreign one.
func below(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

// within reports whether path is one of the trees or inside of one.
func within(path string, trees ...string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool {
		return path == tree || strings.HasPrefix(path, tree+"/")
	})
}

var (
	roles   = []string{"internal/gateway", "internal/session", "internal/scheduler", "internal/node"}
	drivers = []string{"internal/engine", "internal/store", "internal/blobs", "internal/template", "internal/snapshot/replication", "internal/volume/disk", "internal/catalogue/ratelimit/redis"}
	// What is next to a driver and is none: use cases over ports, and formats. They
	// import no driver either.
	beside = []string{"internal/template/sandboxbuild", "internal/template/dockerfile", "internal/template/standin", "internal/template/decompress", "internal/template/uploadlimit"}
)

func TestImportsPointOneWay(t *testing.T) {
	for path, p := range listPackages(t) {
		for _, imported := range p.Imports {
			checkImport(t, path, below(imported))
		}
	}
}

func checkImport(t *testing.T, from, to string) {
	switch {
	case from == "." && strings.Contains(strings.Split(to, "/")[0], "."):
		t.Errorf("the root package imports %s: only the standard library is allowed", to)
	case from == "." && within(to, "internal", "api", "cmd"):
		t.Errorf("the root package imports %s", to)
	case within(from, "cmd", "tests", "internal/serve"):
		return // these join
	case within(to, "internal/serve", "cmd"):
		t.Errorf("%s imports %s, which only joins", from, to)
	case within(to, drivers...) && !within(to, beside...) && within(from, slices.Concat(roles, beside)...):
		t.Errorf("%s imports the driver %s", from, to)
	case within(to, roles...) && !sameRole(from, to):
		t.Errorf("%s imports the role %s", from, to)
	}
}

// sameRole reports whether both are parts of one role.
func sameRole(a, b string) bool {
	return slices.ContainsFunc(roles, func(role string) bool { return within(a, role) && within(b, role) })
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for path, p := range listPackages(t) {
		if len(p.GoFiles) == 0 || within(path, "api/gen") {
			continue // only tests, or generated
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: the package comment begins %q, want %q", path, p.Doc, want)
		}
	}
}

// Only the sentry links runsc; the server and the node, which speak with
// everybody, hold no code that can start a sandbox.
func TestOnlyTheSentryLinksRunsc(t *testing.T) {
	const runsc = "gvisor.dev/gvisor/runsc"
	for path, p := range listPackages(t) {
		if within(path, "cmd/sentry", "internal/engine/gvisor/sentryhost/server") {
			continue
		}
		for _, dep := range p.Deps {
			if within(dep, runsc) {
				t.Errorf("%s depends on %s", path, dep)
				break
			}
		}
	}
}

// Test suites and fakes stay out of what is shipped.
func TestCommandsShipNoTestCode(t *testing.T) {
	for path, p := range listPackages(t) {
		if !within(path, "cmd") {
			continue
		}
		for _, dep := range p.Deps {
			ours := within(dep, module) && (strings.HasSuffix(dep, "test") || strings.HasSuffix(dep, "/fake"))
			if dep == "testing" || ours {
				t.Errorf("%s ships %s", path, dep)
			}
		}
	}
}
