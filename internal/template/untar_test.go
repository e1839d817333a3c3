package template

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// newTree returns a tree and the folder that it lies in, which holds nothing
// else.
func newTree(t testing.TB) (tree, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return tree{root}, dir
}

func archive(t testing.TB, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		body := h.PAXRecords["body"]
		h.PAXRecords = nil
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func file(name, body string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, PAXRecords: map[string]string{"body": body}, ModTime: time.Unix(1_600_000_000, 0)}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("files get owners, which needs root")
	}
}

func TestUntar(t *testing.T) {
	needRoot(t)
	tree, dir := newTree(t)
	owned := file("usr/bin/sudo", "sudo", 0o4755)
	owned.Uid, owned.Gid = 7, 8
	in := archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755},
		owned, // before its folder
		tar.Header{Typeflag: tar.TypeDir, Name: "usr/", Mode: 0o750, Uid: 5, Gid: 6},
		tar.Header{Typeflag: tar.TypeDir, Name: "tmp", Mode: 0o1777},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "bin", Linkname: "usr/bin"},
		file("bin/bash", "bash", 0o755), // through a link that stays inside
		tar.Header{Typeflag: tar.TypeLink, Name: "usr/bin/sh", Linkname: "bin/bash"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "var/run", Linkname: "/run"},
		tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3},
		tar.Header{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o666},
		file("/abs", "abs", 0o644),
		file("twice", "first", 0o644),
		file("twice", "second", 0o600),
	)
	count := 0
	if err := untar(tree, in, maxTreeBytes, func(n int) { count = n }); err != nil {
		t.Fatal(err)
	}
	if count != 13 {
		t.Errorf("%d entries counted", count)
	}
	for name, want := range map[string]fs.FileMode{
		"usr":          fs.ModeDir | 0o750,
		"usr/bin":      fs.ModeDir | 0o755,
		"usr/bin/sudo": fs.ModeSetuid | 0o755,
		"tmp":          fs.ModeDir | fs.ModeSticky | 0o777,
		"abs":          0o644,
		"twice":        0o600,
	} {
		if info, err := os.Lstat(filepath.Join(dir, "root", name)); err != nil || info.Mode() != want {
			t.Errorf("%s is %v, %v, want %v", name, info, err, want)
		}
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, "root/usr/bin/sudo"), &st); err != nil || st.Uid != 7 || st.Gid != 8 || st.Mtim.Sec != 1_600_000_000 {
		t.Errorf("sudo is %+v, %v", st, err)
	}
	if err := syscall.Stat(filepath.Join(dir, "root/usr/bin/bash"), &st); err != nil || st.Nlink != 2 {
		t.Errorf("bash has %d links, %v", st.Nlink, err)
	}
	if tree.has("dev/null", "pipe") {
		t.Error("a device or pipe was made")
	}
	if body, err := os.ReadFile(filepath.Join(dir, "root/twice")); string(body) != "second" {
		t.Errorf("twice holds %q, %v", body, err)
	}
}

func TestUntarStaysInside(t *testing.T) {
	needRoot(t)
	for name, entries := range map[string][]tar.Header{
		"dots":             {file("../out", "x", 0o644)},
		"dots later":       {file("a/../../out", "x", 0o644)},
		"parent itself":    {{Typeflag: tar.TypeDir, Name: "..", Mode: 0o777}},
		"link out":         {{Typeflag: tar.TypeSymlink, Name: "a", Linkname: ".."}, file("a/out", "x", 0o644)},
		"absolute link":    {{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/tmp"}, file("a/out", "x", 0o644)},
		"folder in link":   {{Typeflag: tar.TypeSymlink, Name: "a", Linkname: ".."}, {Typeflag: tar.TypeDir, Name: "a/out", Mode: 0o755}},
		"hard link":        {{Typeflag: tar.TypeLink, Name: "a", Linkname: "../secret"}},
		"hard link abroad": {{Typeflag: tar.TypeSymlink, Name: "a", Linkname: ".."}, {Typeflag: tar.TypeLink, Name: "b", Linkname: "a/secret"}},
	} {
		tree, dir := newTree(t)
		if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := untar(tree, archive(t, entries...), maxTreeBytes, func(int) {}); err == nil {
			t.Errorf("%s: no error", name)
		}
		checkOutside(t, dir, name)
	}
}

// checkOutside fails when dir holds anything but root and secret.
func checkOutside(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "root" && e.Name() != "secret" {
			t.Errorf("%s: %s was made outside", name, e.Name())
		}
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, "secret"), &st); err == nil && (st.Nlink != 1 || st.Mode&0o777 != 0o600) {
		t.Errorf("%s: the file outside was touched: %+v", name, st)
	}
}

func TestUntarBounds(t *testing.T) {
	tree, _ := newTree(t)
	var huge bytes.Buffer
	w := tar.NewWriter(&huge)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: maxTreeBytes + 1}); err != nil {
		t.Fatal(err)
	}
	if err := untar(tree, &huge, maxTreeBytes, func(int) {}); !errors.Is(err, sandbox.TooLarge) {
		t.Errorf("got %v, want TooLarge", err)
	}
	if err := untar(tree, bytes.NewReader(make([]byte, 100)), maxTreeBytes, func(int) {}); err == nil {
		t.Error("a cut archive gave no error")
	}
}

func FuzzUntar(f *testing.F) {
	needRoot(f)
	f.Add(archive(f, file("a/b", "x", 0o4755), tar.Header{Typeflag: tar.TypeSymlink, Name: "c", Linkname: "../.."}).Bytes())
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: ".."}, file("a/b", "x", 0o644)).Bytes())
	f.Fuzz(func(t *testing.T, body []byte) {
		tree, dir := newTree(t)
		if err := os.WriteFile(filepath.Join(dir, "secret"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_ = untar(tree, bytes.NewReader(body), maxTreeBytes, func(int) {}) // only what it leaves counts
		checkOutside(t, dir, "fuzz")
	})
}
