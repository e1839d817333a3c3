package template

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// saved returns the output of `docker save` for an image of two layers. The second layer
// removes a file of the first.
func saved(t *testing.T, tags ...string) []byte {
	t.Helper()
	var image v1.Image = empty.Image
	var second bytes.Buffer
	w := tar.NewWriter(&second)
	for file, text := range map[string]string{"srv/.wh.old": "", "srv/new": "new"} {
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(text))}), func() error { _, err := io.WriteString(w, text); return err }()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	first := tarOfFiles(t, map[string]string{"bin/sh": "#!", "srv/old": "old"})
	for _, raw := range [][]byte{first, second.Bytes()} {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			t.Fatal(err)
		}
	}
	image, err := mutate.Config(image, v1.Config{Env: []string{"FROM_IMAGE=yes"}})
	if err != nil {
		t.Fatal(err)
	}
	all := map[name.Tag]v1.Image{}
	for _, text := range tags {
		tag, err := name.NewTag(text)
		if err != nil {
			t.Fatal(err)
		}
		if all[tag], err = mutate.Config(image, v1.Config{Env: []string{"FROM_IMAGE=yes"}, User: text}); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := tarball.MultiWrite(all, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func tarOfFiles(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for file, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: file, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func fileOf(t *testing.T, content []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive.tar")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// An image of `docker save` becomes a template like the image of a registry.
func TestMakeOfSavedImage(t *testing.T) {
	needHost(t)
	b := &Builder{Store: newStore(t)}
	plain := saved(t, "example.com/a:1")
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write(plain)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	first := make1(t, b, "saved", Recipe{Source: Tar(fileOf(t, plain).Name())}, nil)
	if again := make1(t, b, "sent", Recipe{Source: Tar("/archive")}, fileOf(t, zipped.Bytes())); again.Digest != first.Digest {
		t.Errorf("compressed it is %s, not %s", again.Digest, first.Digest)
	}
	if first.Env["FROM_IMAGE"] != "yes" {
		t.Errorf("the environment is %v", first.Env)
	}
	out := inside(t, b.Store, first)
	if text, err := os.ReadFile(filepath.Join(out, "srv/new")); err != nil || string(text) != "new" {
		t.Errorf("a file of the second layer: %q, %v", text, err)
	}
	for _, gone := range []string{"srv/old", "srv/.wh.old", "manifest.json"} {
		if _, err := os.Lstat(filepath.Join(out, gone)); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", gone, err)
		}
	}
}

func TestSavedImageRefuses(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	big := strings.Repeat(" ", maxSavedManifest+1)
	for what, tt := range map[string]struct {
		archive []byte
		want    error
	}{
		"two images":               {saved(t, "a:1", "b:1"), sandbox.Invalid},
		"no JSON":                  {tarOfFiles(t, map[string]string{"manifest.json": "{"}), sandbox.Invalid},
		"no config":                {tarOfFiles(t, map[string]string{"manifest.json": `[{"Config":"x"}]`}), sandbox.Invalid},
		"a config that is missing": {tarOfFiles(t, map[string]string{"manifest.json": `[{"Config":"` + hash + `.json"}]`}), sandbox.Invalid},
		"a large manifest":         {tarOfFiles(t, map[string]string{"manifest.json": "[" + big + "]"}), sandbox.Invalid},
		"a large config":           {tarOfFiles(t, map[string]string{"manifest.json": `[{"Config":"` + hash + `.json"}]`, hash + ".json": big}), sandbox.Invalid},
		"a root filesystem":        {tarOfFiles(t, map[string]string{"manifest.json": "[]", "bin/sh": "#!"}), nil},
		"nothing":                  {nil, nil},
	} {
		image, err := savedImage(t.Context(), fileOf(t, tt.archive))
		if !errors.Is(err, tt.want) || image != nil {
			t.Errorf("%s: %v, %v, want %v", what, image, err, tt.want)
		}
	}
}
