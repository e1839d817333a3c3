package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/blobstest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/disk"
)

func TestBlobs(t *testing.T) {
	blobstest.Run(t, func(t *testing.T) sandbox.Blobs { return disk.Open(t.TempDir()) })
}

// A disk that is not mounted has not lost its blobs.
func TestFolderGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mount")
	b := disk.Open(dir)
	if err := b.Probe(t.Context()); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("Probe = %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), "a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, getErr := b.Get(t.Context(), "a/b")
	_, sizeErr := b.Size(t.Context(), "a/b")
	for what, err := range map[string]error{
		"Get": getErr, "Size": sizeErr, "Put": b.Put(t.Context(), "a/b", []byte("x")), "Delete": b.Delete(t.Context(), "a/b"),
	} {
		if !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("%s = %v, want unavailable", what, err)
		}
	}
}

// Nothing but blobs is left, and nothing is followed out of the folder.
func TestLinksAreNotFollowed(t *testing.T) {
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	b := disk.Open(dir)
	if got, err := b.Get(t.Context(), "a"); err == nil {
		t.Errorf("a link gave %q", got)
	}
	if err := b.Put(t.Context(), "a", []byte("y")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(secret); string(got) != "x" {
		t.Errorf("a link was written through: %q", got)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
