package durable

import (
	"os"
	"path/filepath"
	"testing"
)

func TestUnnamed(t *testing.T) {
	dir := t.TempDir()
	f, err := Unnamed(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("content"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the folder has %v, %v", left, err)
	}
	if _, err := Unnamed(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("in no folder: %v", err)
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"old", "new and longer", ""} {
		for _, write := range []func(string, []byte, os.FileMode) error{Write, WriteLoose} {
			if err := write(path, []byte(content), 0o640); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != content {
				t.Errorf("%q, %v, want %q", got, err, content)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
		}
	}
}

// What cannot be written leaves the old content, and nothing beside it.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(folder, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{folder, filepath.Join(dir, "missing", "file")} {
		if err := Write(path, []byte("new"), 0o600); err == nil {
			t.Errorf("%s was written", path)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestIdentity(t *testing.T) {
	path := filepath.Join(t.TempDir(), "id")
	first, err := Identity(path)
	if err != nil || len(first) < 20 {
		t.Fatalf("%q, %v", first, err)
	}
	if again, err := Identity(path); err != nil || again != first {
		t.Errorf("then %q, %v", again, err)
	}
	if other, err := Identity(path + "2"); err != nil || other == first {
		t.Errorf("another: %q, %v", other, err)
	}
	if _, err := Identity(t.TempDir()); err == nil {
		t.Error("a folder has an identity")
	}
}
