package template

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "templates"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// put stores an image with that content and lets name mean it.
func put(t *testing.T, s *Store, name, content string) Image {
	t.Helper()
	if err := s.makeFolders(); err != nil {
		t.Fatal(err)
	}
	file := s.path("build", "image")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	digest, size, err := s.adopt(file)
	if err != nil {
		t.Fatal(err)
	}
	image := Image{Digest: digest, Size: size, CreatedAt: time.Now().UTC(), Inputs: content}
	if err := s.writeRef(name, image); err != nil {
		t.Fatal(err)
	}
	return image
}

func TestOpenWantsAbsolutePath(t *testing.T) {
	if _, err := Open("templates"); err == nil {
		t.Error("a relative path was taken")
	}
}

func TestResolve(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	if _, err := s.Resolve(ctx, "base"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("absent: %v, want NotFound", err)
	}
	if err := s.makeFolders(); err != nil {
		t.Fatal(err)
	}
	release, err := s.lock(ctx, "base", func() {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(ctx, "base"); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("while it is built: %v, want Unavailable", err)
	}
	image := put(t, s, "base", "one")
	if digest, err := s.Resolve(ctx, "base"); err != nil || digest != image.Digest {
		t.Errorf("while it is rebuilt: %q, %v, want the present version", digest, err)
	}
	release()
	if _, err := s.Resolve(ctx, "other"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("another: %v, want NotFound", err)
	}
	second := put(t, s, "base", "two")
	if digest, err := s.Resolve(ctx, "base"); err != nil || digest != second.Digest {
		t.Errorf("after a rebuild: %q, %v, want %q", digest, err, second.Digest)
	}
	path, err := s.Path(image.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the first version is %v, %v: it must stay, readable by all", info, err)
	}
	path, _ = s.Path(second.Digest)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(ctx, "base"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("image gone: %v, want NotFound", err)
	}
}

func TestRefThatIsDamaged(t *testing.T) {
	for name, body := range map[string]string{
		"empty": "", "not JSON": "{", "no digest": "{}", "path": `{"digest":"../../etc/passwd"}`,
	} {
		s := newStore(t)
		if err := s.makeFolders(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.path("refs", "base"), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
		if digest, err := s.Resolve(t.Context(), "base"); err == nil || digest != "" {
			t.Errorf("%s: %q, %v, want an error", name, digest, err)
		}
	}
}

func TestNamesAndDigests(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{"", ".", "..", "a/b", "../a", ".lock", "A", "a..b", "-a", "a\x00", strings.Repeat("a", 64)} {
		if _, err := s.Resolve(t.Context(), name); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("Resolve(%q) = %v, want Invalid", name, err)
		}
	}
	for _, name := range []string{"base", "a", "python-3.11", strings.Repeat("a", 63)} {
		if _, err := s.Resolve(t.Context(), name); !errors.Is(err, sandbox.NotFound) {
			t.Errorf("Resolve(%q) = %v, want NotFound", name, err)
		}
	}
	good := strings.Repeat("0a", 32)
	for _, digest := range []string{"", "base", "sha256:" + good, good[1:], good + "0", strings.ToUpper(good), "../" + good, good + "\n"} {
		if _, err := s.Path(digest); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("Path(%q) = %v, want Invalid", digest, err)
		}
	}
	if path, err := s.Path(good); err != nil || filepath.Base(path) != good+".erofs" {
		t.Errorf("Path(%q) = %q, %v", good, path, err)
	}
}

// Readers must never see half of a ref.
func TestRefIsReplacedWhole(t *testing.T) {
	s := newStore(t)
	images := map[string]bool{put(t, s, "base", "one").Digest: true, put(t, s, "base", "two").Digest: true}
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			digest, err := s.Resolve(t.Context(), "base")
			if err != nil || !images[digest] {
				done <- errors.Join(err, errors.New("read "+digest))
				return
			}
		}
	}()
	for i := range 100 {
		put(t, s, "base", []string{"one", "two"}[i%2])
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	left, err := fs.Glob(os.DirFS(s.path("refs")), ".*")
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func TestParseSource(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Source
		code error
	}{
		{"oci:python:3.11-slim", OCI("python:3.11-slim"), nil},
		{"oci:localhost:5000/a/b@sha256:" + strings.Repeat("a", 64), OCI("localhost:5000/a/b@sha256:" + strings.Repeat("a", 64)), nil},
		{"debian:trixie", Debian("trixie"), nil},
		{"debian:", Debian(""), nil},
		{"base:python:3.11-slim", Base("python:3.11-slim"), nil},
		{"python:3.11-slim", Source{}, sandbox.Invalid},
		{"oci:", Source{}, sandbox.Invalid},
		{"oci:A B", Source{}, sandbox.Invalid},
		{"debian:../x", Source{}, sandbox.Invalid},
		{"debian:--help", Source{}, sandbox.Invalid},
		{"", Source{}, sandbox.Invalid},
	} {
		got, err := ParseSource(tt.text)
		if !errors.Is(err, tt.code) {
			t.Errorf("ParseSource(%q) = %v, want %v", tt.text, err, tt.code)
		}
		if err == nil && (got != tt.want || got.String() != tt.text) {
			t.Errorf("ParseSource(%q) = %v, want %v", tt.text, got, tt.want)
		}
	}
}
