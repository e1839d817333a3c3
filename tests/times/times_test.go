package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The real go test runs packages that do each thing that can happen.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module example.com/m\n\ngo 1.26\n",
		"good/a_test.go": "package good\n\nimport \"testing\"\n\nfunc TestFine(t *testing.T) { t.Log(\"nobody reads this\") }\n\nfunc TestSkipped(t *testing.T) { t.Skip(\"it needs: a moon\") }\n",
		"bad/a_test.go": `package bad

import "testing"

func TestFails(t *testing.T) {
	t.Log("said before")
	t.Run("good", func(t *testing.T) { t.Log("of a subtest that passes") })
	t.Run("bad", func(t *testing.T) { t.Error("one is not two") })
}

func TestFine(t *testing.T) { t.Log("nobody reads this") }
`,
		"panics/a_test.go": "package panics\n\nimport \"testing\"\n\nfunc TestPanics(t *testing.T) { t.Log(\"just before\"); panic(\"no way on\") }\n",
		"broken/a_test.go": "package broken\n\nfunc broken() { return 1 }\n",
		"empty/empty.go":   "package empty\n",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("CGO_ENABLED", "0") // nothing more is compiled than for a release
	t.Setenv("GOFLAGS", "-trimpath")
	notes := filepath.Join(dir, "notes")

	var out bytes.Buffer
	err := run([]string{"test", "-vet=off", "./..."}, notes, &out)
	var failed *exec.ExitError
	if !errors.As(err, &failed) {
		t.Fatalf("the error is %v\n%s", err, &out)
	}
	for _, want := range []string{
		"ok    example.com/m/good ",
		"skip  example.com/m/good TestSkipped: it needs: a moon\n",
		"said before\n", "one is not two\n", "--- FAIL: TestFails ", "--- FAIL: TestFails/bad ",
		"FAIL  example.com/m/bad ",
		"just before\n", "panic: no way on", "FAIL  example.com/m/panics ",
		"too many return values\n", "FAIL  example.com/m/broken 0.0s: it does not build\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, no := range []string{"nobody reads this", "of a subtest that passes", "=== RUN", "m/empty", "FAIL\t"} {
		if strings.Contains(out.String(), no) {
			t.Errorf("it says %q", no)
		}
	}
	if t.Failed() {
		t.Log(&out)
	}

	noted, err := read(notes)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range noted {
		names = append(names, strings.TrimPrefix(n.Package, "example.com/m/")+" "+n.Test)
	}
	slices.Sort(names)
	want := []string{"bad ", "bad TestFails", "bad TestFine", "broken ", "good ", "good TestFine", "good TestSkipped", "panics ", "panics TestPanics"}
	if !slices.Equal(names, want) {
		t.Errorf("noted are %q, want %q", names, want)
	}
}

func TestTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes")
	for _, n := range [][]Note{
		{{Step: "build", Seconds: 61.25, CPU: 100}},
		{{Package: "a/b/c", Test: "TestSlow", Seconds: 5}, {Package: "a/b/c", Test: "TestSlower", Seconds: 6}, {Package: "a/b/c", Seconds: 11}},
		{{Step: "make test", Seconds: 1600, Share: 1500}, {Step: "make release", Seconds: 100, Share: 720}},
	} {
		if err := note(path, n); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := run([]string{"table"}, path, &out); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			got = append(got, line)
		}
	}
	want := []string{
		"clock CPU step", "1:01.3 1:40.0 build", "26:40.0 0:00.0 make test", "1:40.0 0:00.0 make release",
		"clock the slowest packages", "0:11.0 a/b/c",
		"clock the slowest tests", "0:06.0 b/c TestSlower", "0:05.0 b/c TestSlow",
		"WARNING: make test took 26:40.0, and its share is 25:00.0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the table is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
