package template

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A Template is the same after an export and an import.
func TestExportAndImport(t *testing.T) {
	from, to := newStore(t), newStore(t)
	made := put(t, from, "base", strings.Repeat("image", 1000))
	var file, again bytes.Buffer
	if _, err := from.Export(t.Context(), "base", &file); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Export(t.Context(), "base", &again); err != nil || !bytes.Equal(file.Bytes(), again.Bytes()) {
		t.Errorf("two exports of one version differ: %v", err)
	}
	for range 2 { // the second finds the image there
		got, err := to.Import(t.Context(), bytes.NewReader(file.Bytes()))
		if err != nil || got.Image.Digest != made.Digest || got.Image.Source != made.Source || got.Ref.String() != "base" {
			t.Fatalf("%+v, %v", got, err)
		}
		digest, err := to.Resolve(t.Context(), "", "base")
		if err != nil || digest != made.Digest {
			t.Errorf("base is %s, %v", digest, err)
		}
		path, err := to.Path(t.Context(), digest)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != strings.Repeat("image", 1000) {
			t.Errorf("the image has %d bytes, %v", len(got), err)
		}
	}
	if _, err := from.Export(t.Context(), "none", &again); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("a template that is not there: %v", err)
	}
}

// A file that is damaged, made up, or for another machine is refused, and nothing of it
// stays.
func TestImportOfWhatIsNone(t *testing.T) {
	from := newStore(t)
	image := put(t, from, "base", "content")
	var whole bytes.Buffer
	if _, err := from.Export(t.Context(), "base", &whole); err != nil {
		t.Fatal(err)
	}
	record := exported{exportFormat, "base", runtime.GOARCH, image}
	changed := func(change func(*exported)) []byte {
		r := record
		change(&r)
		return pack(t, r, "content")
	}
	for name, tt := range map[string]struct {
		file []byte
		says string
	}{
		"nothing":          {nil, "does not begin"},
		"text":             {[]byte("hello"), "does not begin"},
		"cut off":          {whole.Bytes()[:whole.Len()-20], "damaged"},
		"another image":    {pack(t, record, "CONTENT"), "differs from the image that its record names"},
		"a shorter image":  {pack(t, record, "short"), "another size"},
		"another format":   {changed(func(e *exported) { e.Format = 2 }), "format 2"},
		"another machine":  {changed(func(e *exported) { e.Arch = "s390x" }), "for s390x"},
		"a path as a name": {changed(func(e *exported) { e.Name = "../../etc" }), "template name"},
		"a path as digest": {changed(func(e *exported) { e.Image.Digest = "../../etc/passwd" }), "names no image"},
		"no size":          {changed(func(e *exported) { e.Image.Size = 0 }), "names no image"},
		"a huge one":       {changed(func(e *exported) { e.Image.Size = 1 << 60 }), "names no image"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			if _, err := s.Import(t.Context(), bytes.NewReader(tt.file)); !errors.Is(err, sandbox.Invalid) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("it says %v, not %q", err, tt.says)
			}
			for _, dir := range []string{"images", "refs", "build"} {
				if left, _ := os.ReadDir(s.path(dir)); len(left) > 0 {
					t.Errorf("%s has %v", dir, left)
				}
			}
		})
	}
}

// pack writes a file as Export does, of whatever record and image.
func pack(t *testing.T, record exported, image string) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewWriter(z)
	text, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range [][2]string{{exportRecord, string(text)}, {exportImage, image}} {
		err := archive.WriteHeader(&tar.Header{Name: member[0], Mode: 0o644, Size: int64(len(member[1]))})
		if err == nil {
			_, err = archive.Write([]byte(member[1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
