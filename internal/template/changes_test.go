package template

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// archived is a tar of these entries, in order.
func archived(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		body := h.PAXRecords["test.body"]
		h.PAXRecords, h.Size = nil, int64(len(body))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func with(name string, mode int64, body string) tar.Header {
	return tar.Header{Name: name, Mode: mode, Typeflag: tar.TypeReg, PAXRecords: map[string]string{"test.body": body}}
}

// An archive of changes makes the tree that they lead to: what is not in its list
// is gone, the rest is the image's or the archive's.
func TestMakeOfChanges(t *testing.T) {
	needHost(t)
	b := &Builder{Store: newStore(t)}
	dir := tar.Header{Name: "srv", Mode: 0o755, Typeflag: tar.TypeDir}
	first := make1(t, b, "a", Recipe{Source: Tar("/archive")}, archived(t, dir,
		with("bin/sh", 0o4755, "#!"), with("srv/same", 0o640, "same"), with("srv/old", 0o644, "old"), with("srv/gone/deep", 0o644, "gone")))
	list := strings.Join([]string{".", "./bin", "./bin/sh", "./srv", "./srv/same", "./srv/old", "./srv/new", "./../../escape"}, "\x00") + "\x00"
	second := make1(t, b, "b", Recipe{Source: Tar("/archive"), Whole: true, Base: first.Digest}, archived(t,
		with("./var/tmp/list", 0o600, list), with("./bin/sh", 0o4755, "#!"), with("./srv/old", 0o600, "newer"), with("./srv/new", 0o644, "new")))
	out := inside(t, b.Store, second)
	for name, want := range map[string]string{"srv/same": "same", "srv/old": "newer", "srv/new": "new"} {
		if body, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(body) != want {
			t.Errorf("%s: %q, %v", name, body, err)
		}
	}
	for _, name := range []string{"srv/gone", "var/tmp/list"} {
		if _, err := os.Lstat(filepath.Join(out, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	for name, bad := range map[string]struct {
		base    string
		archive *bytes.Buffer
		want    error
	}{
		"no image":  {strings.Repeat("ab", 32), archived(t, with("list", 0o600, list)), sandbox.NotFound},
		"no digest": {"../../etc", archived(t, with("list", 0o600, list)), sandbox.Invalid},
		"empty":     {first.Digest, archived(t), sandbox.Invalid},
		"no list":   {first.Digest, archived(t, dir), sandbox.Invalid},
		"escape":    {first.Digest, archived(t, with("list", 0o600, list), with("../../evil", 0o644, "x")), sandbox.Invalid},
		"no tar":    {first.Digest, bytes.NewBufferString(strings.Repeat("x", 2000)), sandbox.Invalid},
	} {
		ref, _ := ParseRef("", "c")
		if _, err := b.Make(t.Context(), ref, Recipe{Source: Tar("/archive"), Whole: true, Base: bad.base}, bad.archive, nil); !errors.Is(err, bad.want) {
			t.Errorf("%s: %v, want %v", name, err, bad.want)
		}
	}
}
