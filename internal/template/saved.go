package template

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"regexp"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/decompress"
)

// Bounds of a `docker save` archive.
const (
	maxSavedEntries  = 10_000
	maxSavedManifest = 1 << 20 // bytes; of the image's config too
	savedManifest    = "manifest.json"
)

// savedEntry matches the entries of all versions of `docker save`, `podman save` and
// `crane save`.
var savedEntry = regexp.MustCompile(`^(manifest\.json|repositories|index\.json|oci-layout|blobs(/sha256(/[0-9a-f]{64})?)?|(sha256:)?[0-9a-f]{64}(\.json|\.tar(\.gz)?|/(VERSION|json|layer\.tar))?)$`)

// savedImage returns the image of a `docker save` archive, and nil for another archive.
// An archive of several images, or a damaged one, is Invalid.
func savedImage(ctx context.Context, file *os.File) (v1.Image, error) {
	open := func() (io.ReadCloser, error) {
		info, err := file.Stat()
		if err != nil {
			return nil, err
		}
		plain, err := decompress.Reader(ctxReader{ctx, io.NewSectionReader(file, 0, info.Size())})
		if err != nil {
			return nil, err
		}
		return io.NopCloser(plain), nil
	}
	in, err := open()
	if err != nil {
		return nil, err
	}
	saved, err := checkSaved(tar.NewReader(in))
	if err != nil || !saved {
		return nil, err
	}
	image, err := tarball.Image(open, nil)
	if err != nil {
		return nil, badSaved(err)
	}
	return image, nil
}

// checkSaved reads an archive up to the first entry that `docker save` never writes. It
// reports whether it found a manifest and no such entry. It returns Invalid when the
// manifest or the config is too large to hold in memory.
func checkSaved(archive *tar.Reader) (bool, error) {
	var manifest []struct{ Config string }
	found, sizes := false, map[string]int64{} // of files, without links
	for n := 0; ; n++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		name := ""
		if err == nil {
			name = path.Clean(h.Name)
		}
		if err != nil || n > maxSavedEntries || !savedEntry.MatchString(name) {
			return false, nil // unpacking reports the error
		}
		if h.Typeflag == tar.TypeReg {
			sizes[name] = h.Size
		}
		if name == savedManifest {
			found = true
			if err := json.NewDecoder(io.LimitReader(archive, maxSavedManifest)).Decode(&manifest); err != nil || h.Size > maxSavedManifest {
				return false, badSaved(err)
			}
		}
	}
	if !found {
		return false, nil
	}
	if len(manifest) != 1 {
		return false, sandbox.Errorf(sandbox.Invalid, "the archive holds %d images: save one alone", len(manifest))
	}
	if size, ok := sizes[path.Clean(manifest[0].Config)]; !ok || size > maxSavedManifest {
		return false, badSaved(nil)
	}
	return true, nil
}

func badSaved(err error) error {
	e := sandbox.Errorf(sandbox.Invalid, "the archive looks like one of `docker save`, but its image cannot be read: save it again")
	if err == nil {
		return e
	}
	return e.WithCause(err)
}

// unpackSaved unpacks an image of `docker save` unmodified, with its environment.
func (b *build) unpackSaved(ctx context.Context, image v1.Image) error {
	config, err := image.ConfigFile()
	if err != nil {
		return badSaved(err)
	}
	b.env = keptEnv(config.Config.Env)
	if err := b.unpack(ctx, image); err != nil {
		return err
	}
	return b.dateByFiles()
}
