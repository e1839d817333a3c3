package cli

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

func TestParsePlace(t *testing.T) {
	for _, tt := range []struct {
		text string
		want place
		bad  string
	}{
		{"a", place{"", "a"}, ""},
		{"-", place{"", "-"}, ""},
		{"./a:b", place{"", "./a:b"}, ""},
		{"/a:b", place{"", "/a:b"}, ""},
		{"dir/a:b", place{"", "dir/a:b"}, ""},
		{"box:a", place{"box", "a"}, ""},
		{"box:/a:b", place{"box", "/a:b"}, ""},
		{"box:", place{"box", "."}, ""},
		{"box:-", place{"box", "-"}, ""},
		{"", place{}, "a path is empty"},
		{":a", place{}, "no sandbox before its colon"},
	} {
		got, err := parsePlace(tt.text)
		if tt.bad != "" {
			if err == nil || !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("%q: the error is %v, want one with %q", tt.text, err, tt.bad)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("%q: got %+v, %v, want %+v", tt.text, got, err, tt.want)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		to    place
		name  string
		isDir bool
		many  bool
		want  string // empty: refused
	}{
		{place{"box", "/tmp"}, "a", true, false, "/tmp/a"},
		{place{"box", "/tmp/b"}, "a", false, false, "/tmp/b"},
		{place{"box", "/tmp/b/"}, "a", false, false, "/tmp/b/a"},
		{place{"box", "."}, "a", true, false, "a"},
		{place{"", "here"}, "a", true, true, "here/a"},
		{place{"", "here"}, "a", false, true, ""},
		{place{"", "here"}, ".", true, false, ""},
		{place{"", "here"}, "/", true, false, ""},
		{place{"", "here"}, "", true, false, ""},
	} {
		got, err := (&transfer{many: tt.many}).within(tt.to, tt.name, tt.isDir)
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%+v: got %q, %v", tt, got, err)
		}
	}
}

func TestStays(t *testing.T) {
	for _, tt := range []struct {
		name, target string
		want         bool
	}{
		{"a", "b", true},
		{"d/a", "../b", true},
		{"d/e/a", "../../b/c", true},
		{"d/a", ".", true},
		{"d/a", "..", true},
		{"a", "..", false},
		{"a", "/etc/passwd", false},
		{"d/a", "../../b", false},
		{"d/a", "x/..", false}, // x may be a link that leads deeper or higher
		{"d/a", "../x/../../y", false},
	} {
		if got := stays(tt.name, tt.target); got != tt.want {
			t.Errorf("stays(%q, %q) = %v", tt.name, tt.target, got)
		}
	}
}

// archive makes a tar. An entry is NAME=CONTENT, NAME/ or NAME->TARGET.
func archive(t testing.TB, entries ...string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Mode: 0o4640, ModTime: time.Unix(1e9, 0), Format: tar.FormatPAX}
		content := ""
		if name, target, ok := strings.Cut(e, "->"); ok {
			h.Typeflag, h.Name, h.Linkname = tar.TypeSymlink, name, target
		} else if name, target, ok := strings.Cut(e, "=>"); ok {
			h.Typeflag, h.Name, h.Linkname = tar.TypeLink, name, target
		} else if strings.HasSuffix(e, "/") {
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, e, 0o500
		} else if h.Name, content, ok = strings.Cut(e, "="); ok {
			h.Size = int64(len(content))
		} else {
			h.Typeflag, h.Name = tar.TypeFifo, e
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// tree describes what is below a folder, a line each.
func tree(t testing.TB, folder string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == folder {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(folder, name)
		b.WriteString(info.Mode().String() + " " + rel)
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(name)
			b.WriteString(" -> " + target)
		case info.Mode().IsRegular():
			content, _ := os.ReadFile(name)
			b.WriteString(" = " + string(content))
		}
		b.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestUnpack(t *testing.T) {
	for _, tt := range []struct {
		name    string
		there   func(folder string) error // what is there before
		entries []string
		links   bool // --all-links
		want    string
		skipped int64
		bad     string
	}{
		{
			name: "a tree", entries: []string{"d/", "d/f=one", "d/up->../g", "g=two", "e/deep/h=3"},
			want: "dr-x------ d\n-rw-r----- d/f = one\nLrwxrwxrwx d/up -> ../g\ndrwxr-xr-x e\ndrwxr-xr-x e/deep\n-rw-r----- e/deep/h = 3\n-rw-r----- g = two\n",
		},
		{name: "what is no file", entries: []string{"fifo", "hard=>g", "g=1"}, want: "-rw-r----- g = 1\n", skipped: 2},
		{name: "links that lead out", entries: []string{"a->/etc/passwd", "b->../x", "c->"}, skipped: 3},
		{name: "links that lead out, wanted", links: true, entries: []string{"a->/etc/passwd"}, want: "Lrwxrwxrwx a -> /etc/passwd\n"},
		{name: "replaces a file and a link", there: func(folder string) error {
			return os.Symlink("../outside", filepath.Join(folder, "f"))
		}, entries: []string{"f=new"}, want: "-rw-r----- f = new\n"},
		{name: "up", entries: []string{"ok=1", "../outside=bad"}, want: "-rw-r----- ok = 1\n", bad: "not within the directory"},
		{name: "up, hidden", entries: []string{"a/../../outside=bad"}, bad: "not within the directory"},
		{name: "absolute", entries: []string{"/tmp/outside=bad"}, bad: "not within the directory"},
		{name: "through its own link", links: true, entries: []string{"l->..", "l/outside=bad"}, want: "Lrwxrwxrwx l -> ..\n", bad: "is not a local directory"},
		{name: "through its own link within", entries: []string{"d/e/", "l->d/e", "l/x=bad"}, want: "drwxr-xr-x d\ndrwxr-xr-x d/e\nLrwxrwxrwx l -> d/e\n", bad: "is not a local directory"},
		{name: "through a link that is there", there: func(folder string) error {
			return os.Symlink("..", filepath.Join(folder, "l"))
		}, entries: []string{"l/outside=bad"}, want: "Lrwxrwxrwx l -> ..\n", bad: "is not a local directory"},
		{name: "a directory over a link", there: func(folder string) error {
			return os.Symlink("..", filepath.Join(folder, "l"))
		}, entries: []string{"l/"}, want: "Lrwxrwxrwx l -> ..\n", bad: "is not a local directory"},
		{name: "a file over a directory", there: func(folder string) error {
			return os.Mkdir(filepath.Join(folder, "d"), 0o755)
		}, entries: []string{"d=bad"}, want: "drwxr-xr-x d\n", bad: "is a directory on this machine"},
		{name: "itself", entries: []string{"./", "f=1"}, want: "-rw-r----- f = 1\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parent := t.TempDir()
			folder := filepath.Join(parent, "folder")
			if err := os.Mkdir(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Chmod(filepath.Join(folder, "d"), 0o755) })
			if tt.there != nil {
				if err := tt.there(folder); err != nil {
					t.Fatal(err)
				}
			}
			u := unpacker{folder: folder, allLinks: tt.links, done: &copied{}}
			err := u.all(archive(t, tt.entries...))
			if (err != nil) != (tt.bad != "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("the error is %v, want one with %q", err, tt.bad)
			}
			if diff := cmp.Diff(tt.want, tree(t, folder)); diff != "" {
				t.Errorf("the folder (-want +got):\n%s", diff)
			}
			if u.done.Skipped != tt.skipped {
				t.Errorf("%d are left out, want %d", u.done.Skipped, tt.skipped)
			}
			if around, _ := os.ReadDir(parent); len(around) != 1 {
				t.Errorf("beside the folder is %v", around)
			}
		})
	}
}

func TestUnpackDamaged(t *testing.T) {
	whole := archive(t, "f="+strings.Repeat("x", 5000)).Bytes()
	folder := t.TempDir()
	err := (&unpacker{folder: folder, done: &copied{}}).all(bytes.NewReader(whole[:3000]))
	if err == nil || tree(t, folder) != "" {
		t.Errorf("the error is %v, and left is %q", err, tree(t, folder))
	}
}

// Files are the same after packing and unpacking.
func TestPackUnpack(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := (&unpacker{folder: from, done: &copied{}}).all(archive(t, "a=1", "s/b=22", "s/l->../a", "s/e/")); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{from, to} {
		t.Cleanup(func() { _ = os.Chmod(filepath.Join(f, "s/e"), 0o755) })
	}
	var b bytes.Buffer
	var done copied
	p := (&transfer{options: &copyOptions{}, stderr: io.Discard}).progress("", -1)
	defer p.stop()
	if err := pack(t.Context(), &b, from, p, &done); err != nil {
		t.Fatal(err)
	}
	if want := (copied{Files: 2, Directories: 2, Links: 1, Bytes: 3}); done != want || p.bytes() != 3 {
		t.Errorf("packed %+v, want %+v", done, want)
	}
	if err := (&unpacker{folder: to, done: &copied{}}).all(&b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tree(t, from), tree(t, to)); diff != "" {
		t.Error(diff)
	}
}

// A file is replaced whole or not at all.
func TestReplaceFile(t *testing.T) {
	folder := t.TempDir()
	to := filepath.Join(folder, "f")
	if _, err := replaceFile(to, 0o751, strings.NewReader("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("f", filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := replaceFile(filepath.Join(folder, "link"), 0o640, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	want := "-rw-r----- f = new\nLrwxrwxrwx link -> f\n"
	tooMuch := &bounded{io.NopCloser(strings.NewReader("12345")), 4, func() error { return io.ErrShortBuffer }}
	if _, err := replaceFile(to, 0o640, tooMuch); err != io.ErrShortBuffer {
		t.Errorf("the error is %v", err)
	}
	if got := tree(t, folder); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestModeOf(t *testing.T) {
	for _, tt := range []struct {
		e    v1.File
		want fs.FileMode
	}{
		{v1.File{Type: "file", Mode: "0750"}, 0o750},
		{v1.File{Type: "file", Mode: "06755"}, 0o755},
		{v1.File{Type: "symlink", Mode: "0777"}, 0o644},
		{v1.File{Type: "file", Mode: "nonsense"}, 0o644},
	} {
		if got := modeOf(tt.e); got != tt.want {
			t.Errorf("%+v: %o", tt.e, got)
		}
	}
}

// For any archive from a sandbox, nothing is written outside of the folder, and no link
// leads out of it.
func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, "d/", "d/f=1", "l->d", "l/x=2").Bytes())
	f.Add(archive(f, "a->d/..", "../x=1").Bytes())
	f.Fuzz(func(t *testing.T, raw []byte) {
		parent := t.TempDir()
		folder := filepath.Join(parent, "folder")
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		_ = (&unpacker{folder: folder, done: &copied{}}).all(io.LimitReader(bytes.NewReader(raw), 1<<20))
		if around, _ := os.ReadDir(parent); len(around) != 1 {
			t.Errorf("beside the folder is %v", around)
		}
		_ = filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink == 0 {
				return nil
			}
			if to, err := filepath.EvalSymlinks(name); err == nil && to != folder && !strings.HasPrefix(to, folder+"/") {
				t.Errorf("%s leads to %s", name, to)
			}
			return nil
		})
	})
}
