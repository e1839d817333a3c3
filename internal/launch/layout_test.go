package launch

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// With any umask, the users that need a new data folder can enter it, and no other user
// can enter its parts.
func TestMakeFolder(t *testing.T) {
	before := syscall.Umask(0o077) // a careful administrator's
	defer syscall.Umask(before)
	root := t.TempDir()
	for _, f := range []struct {
		path string
		mode os.FileMode
	}{{"new/data", 0o755}, {"new/data/server", 0o700}, {"new/data/hosts", 0o711}} {
		if err := makeFolder(filepath.Join(root, f.path), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]os.FileMode{"new": 0o755, "new/data": 0o755, "new/data/server": 0o700, "new/data/hosts": 0o711} {
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "new/data"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := makeFolder(filepath.Join(root, "new/data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(filepath.Join(root, "new/data")); info.Mode().Perm() != 0o750 {
		t.Errorf("what the operator made is now %v", info.Mode())
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := makeFolder(filepath.Join(root, "file", "data"), 0o755); err == nil {
		t.Error("a folder below a file was made")
	}
}

// The programs of a build stay as long as a saved state or a Boot needs them.
func TestNeeded(t *testing.T) {
	const build, other = "0123456789abcdef", "fedcba9876543210"
	for name, tt := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"nothing":               {nil, false},
		"memory":                {map[string]string{"saved/s1/manifest.json": `{"memory":true,"build":"` + build + `"}`}, true},
		"files alone":           {map[string]string{"saved/s1/manifest.json": `{"build":"` + build + `"}`}, false},
		"memory of another":     {map[string]string{"saved/s1/manifest.json": `{"memory":true,"build":"` + other + `"}`}, false},
		"a damaged state":       {map[string]string{"saved/s1/manifest.json": `{"mem`}, true},
		"a boot of a later one": {map[string]string{"hosts/" + other + "/boots/b1/boot.json": `{"guest_build":"` + build + `"}`}, true},
		"a boot of its own":     {map[string]string{"hosts/" + other + "/boots/b1/boot.json": `{"guest_build":"` + other + `"}`}, false},
	} {
		l := Layout{Root: t.TempDir()}
		for path, content := range tt.files {
			path = l.path(path)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := l.needed(build); err != nil || got != tt.want {
			t.Errorf("%s: needed = %t, %v", name, got, err)
		}
	}
}
