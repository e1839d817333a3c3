package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Image is one version of a Template, and what a ref holds.
type Image struct {
	Digest    string            `json:"digest"`
	CreatedAt time.Time         `json:"created_at"`
	Source    string            `json:"source"` // what it was really made of, for example "debian:bookworm"
	Env       map[string]string `json:"env"`    // environment that Processes should have
	Size      int64             `json:"size"`   // of the image file in bytes
	Inputs    string            `json:"inputs"` // names all that went into it; equal Inputs need no new build

	Cached bool `json:"-"` // Build found it done
}

// Store keeps Templates in a folder:
//
//	images/DIGEST.erofs   immutable
//	refs/NAME             JSON of an Image
//	locks/NAME.lock       held with flock while NAME is being built
//	build/NAME            a build under way, or what a killed one left
//	cache                 downloads
//
// Reading needs no right to write. Methods are safe for concurrent use, also
// by several processes.
type Store struct{ dir string }

var _ sandbox.Images = (*Store)(nil)

// Open returns the Store in dir, an absolute path. It makes nothing: an absent
// folder is an empty Store.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("open template store: %q is not an absolute path", dir)
	}
	return &Store{dir: filepath.Clean(dir)}, nil
}

var (
	namePattern   = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)
	digestPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

func checkName(name string) error {
	if !namePattern.MatchString(name) || strings.Contains(name, "..") {
		return sandbox.Errorf(sandbox.Invalid, "a template name is 1 to 63 of a-z, 0-9, '.', '_' and '-', begins and ends with a letter or digit, and has no two dots in a row")
	}
	return nil
}

// ValidDigest reports whether s has the form of an image digest.
func ValidDigest(s string) bool { return digestPattern.MatchString(s) }

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// Path returns where the image with that digest lies, whether it is there or
// not; Invalid when digest has another form.
func (s *Store) Path(digest string) (string, error) {
	if !ValidDigest(digest) {
		return "", sandbox.Errorf(sandbox.Invalid, "an image digest is 64 lower-case hex digits")
	}
	return s.path("images", digest+".erofs"), nil
}

// Resolve implements sandbox.Images. While a Template is being rebuilt its
// present version stays the answer.
func (s *Store) Resolve(ctx context.Context, name string) (string, error) {
	image, err := s.Image(ctx, name)
	return image.Digest, err
}

// Image returns a Template's present version, with the same errors as Resolve.
func (s *Store) Image(ctx context.Context, name string) (Image, error) {
	if err := ctx.Err(); err != nil {
		return Image{}, err
	}
	if err := checkName(name); err != nil {
		return Image{}, err
	}
	image, err := s.readRef(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return image, err
	}
	if s.building(name) {
		return Image{}, sandbox.Errorf(sandbox.Unavailable, "the template %s is being built for the first time", name)
	}
	return Image{}, sandbox.Errorf(sandbox.NotFound, "there is no template %s; `cloud-sandbox template build %s` makes it", name, name)
}

// maxRefBytes is far more than a ref needs.
const maxRefBytes = 1 << 20

// readRef returns fs.ErrNotExist also when the image of the ref is gone.
func (s *Store) readRef(name string) (Image, error) {
	f, err := os.Open(s.path("refs", name))
	if err != nil {
		return Image{}, fmt.Errorf("read template ref: %w", err)
	}
	defer f.Close()
	var image Image
	if err := json.NewDecoder(io.LimitReader(f, maxRefBytes)).Decode(&image); err != nil {
		return Image{}, fmt.Errorf("read template ref %s: %w", name, err)
	}
	path, err := s.Path(image.Digest)
	if err != nil {
		return Image{}, fmt.Errorf("read template ref %s: %w", name, err)
	}
	if _, err := os.Stat(path); err != nil {
		return Image{}, fmt.Errorf("read template ref %s: %w", name, err)
	}
	return image, nil
}

// writeRef points name to image.
func (s *Store) writeRef(name string, image Image) error {
	body, err := json.MarshalIndent(image, "", "  ")
	if err != nil {
		return fmt.Errorf("write template ref: %w", err)
	}
	if err := replaceFile(s.path("refs", name), append(body, '\n')); err != nil {
		return fmt.Errorf("write template ref: %w", err)
	}
	return nil
}

// adopt moves a finished image file, which must lie in the Store's folder, to
// its place and returns its digest and size.
func (s *Store) adopt(file string) (digest string, size int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", 0, fmt.Errorf("store image: %w", err)
	}
	defer f.Close()
	hash := sha256.New()
	if size, err = io.Copy(hash, f); err != nil {
		return "", 0, fmt.Errorf("store image: %w", err)
	}
	if err := errors.Join(f.Chmod(0o644), f.Sync()); err != nil {
		return "", 0, fmt.Errorf("store image: %w", err)
	}
	digest = hex.EncodeToString(hash.Sum(nil))
	if err := renameDurably(file, s.path("images", digest+".erofs")); err != nil {
		return "", 0, fmt.Errorf("store image: %w", err)
	}
	return digest, size, nil
}

// makeFolders makes the Store's folders, readable by all whatever the umask.
func (s *Store) makeFolders() error {
	for _, dir := range []string{".", "images", "refs", "locks", "build"} {
		if err := os.MkdirAll(s.path(dir), 0o755); err != nil {
			return fmt.Errorf("make template store: %w", err)
		}
		if err := os.Chmod(s.path(dir), 0o755); err != nil {
			return fmt.Errorf("make template store: %w", err)
		}
	}
	return nil
}

// replaceFile writes aside, so that a reader sees the old or the new content
// and a crash leaves one of them.
func replaceFile(path string, body []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = f.Write(body)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return renameDurably(f.Name(), path)
}

func renameDurably(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
