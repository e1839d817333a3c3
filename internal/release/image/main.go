// Command image makes the container image of a release without a container engine:
// "image --program FILE --base FILE --arch ARCH --version VERSION --out FILE". The file
// is for `docker load` and `podman load`. Equal inputs give equal files.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// entry is a file of the image, root's.
type entry struct {
	path string
	from string // a file here; empty: text, or a folder when that is empty too
	text string
	mode int64
}

func run(args []string) error {
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	program := fs.String("program", "", "the program cloud-sandbox")
	base := fs.String("base", "", "the template base, as `cloud-sandbox template export` wrote it")
	arch := fs.String("arch", "", "processor of the program, as in GOARCH")
	version := fs.String("version", "", "version of the release")
	out := fs.String("out", "", "file to write")
	if err := fs.Parse(args); err != nil {
		return err
	}
	layers := [][]entry{{{path: "usr/share/cloud-sandbox/base.template", from: *base, mode: 0o644}}, {
		{path: "usr/bin/cloud-sandbox", from: *program, mode: 0o755},
		{path: "tmp", mode: 0o1777},
		{path: "var/lib/cloud-sandbox", mode: 0o755},
		{path: "etc/passwd", text: "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n", mode: 0o644},
	}}
	image := v1.Image(empty.Image)
	for _, entries := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return archive(entries), nil })
		if err != nil {
			return err
		}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "make release"}}); err != nil {
			return err
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", *arch
	file.Config = v1.Config{
		Entrypoint:   []string{"/usr/bin/cloud-sandbox"},
		Cmd:          []string{"serve", "--addr", "0.0.0.0:8080"},
		Env:          []string{"PATH=/usr/bin", "CLOUD_SANDBOX_DATA=/var/lib/cloud-sandbox"},
		Volumes:      map[string]struct{}{"/var/lib/cloud-sandbox": {}},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		Labels:       map[string]string{"org.opencontainers.image.title": "Cloud Sandbox", "org.opencontainers.image.version": *version},
		StopSignal:   "SIGTERM",
	}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return err
	}
	tag, err := name.NewTag("cloud-sandbox:latest")
	if err != nil {
		return err
	}
	return tarball.WriteToFile(*out, tag, image)
}

// archive is a layer of entries. It may be read several times and is always the same.
func archive(entries []entry) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(write(w, entries)) }()
	return r
}

func write(w io.Writer, entries []entry) error {
	t := tar.NewWriter(w)
	made := map[string]bool{".": true}
	for _, e := range entries {
		if err := folders(t, path.Dir(e.path), made); err != nil {
			return err
		}
		if err := add(t, e); err != nil {
			return fmt.Errorf("add %s: %w", e.path, err)
		}
	}
	return t.Close()
}

// folders adds a folder and those above it that are not made yet.
func folders(t *tar.Writer, dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	if err := folders(t, path.Dir(dir), made); err != nil {
		return err
	}
	made[dir] = true
	return t.WriteHeader(header(entry{path: dir, mode: 0o755}, tar.TypeDir, 0))
}

func header(e entry, kind byte, size int64) *tar.Header {
	return &tar.Header{Name: e.path, Typeflag: kind, Mode: e.mode, Size: size, ModTime: time.Unix(0, 0)}
}

func add(t *tar.Writer, e entry) error {
	if e.from == "" && e.text == "" {
		return t.WriteHeader(header(e, tar.TypeDir, 0))
	}
	if e.from == "" {
		if err := t.WriteHeader(header(e, tar.TypeReg, int64(len(e.text)))); err != nil {
			return err
		}
		_, err := io.Copy(t, bytes.NewReader([]byte(e.text)))
		return err
	}
	f, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(header(e, tar.TypeReg, info.Size())); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}
