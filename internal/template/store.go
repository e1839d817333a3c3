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
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/images"
)

// Image is one version of a Template, and the content of a ref.
type Image struct {
	Digest    string            `json:"digest"`
	CreatedAt time.Time         `json:"created_at"`
	MadeAt    time.Time         `json:"made_at,omitzero"`   // when the image was built, if before CreatedAt; zero: CreatedAt
	Source    string            `json:"source"`             // actual source, for example "debian:bookworm"
	Env       map[string]string `json:"env"`                // environment of Processes
	Size      int64             `json:"size"`               // of the image file in bytes
	Inputs    string            `json:"inputs"`             // hash of all inputs; equal Inputs need no new build
	Contents  string            `json:"contents,omitempty"` // hash of the inputs of the image file; empty: not known beforehand
	Packages  []string          `json:"packages,omitempty"` // as requested
	Start     string            `json:"start,omitempty"`    // command that runs in every Sandbox
	Ready     string            `json:"ready,omitempty"`    // command that succeeds once Start has come up
	Private   bool              `json:"private,omitempty"`  // visible to its owner only
	Build     string            `json:"build,omitempty"`    // client's name of the build
	Layer     string            `json:"layer,omitempty"`    // client's name of the build's steps
	Base      string            `json:"base,omitempty"`     // digest of the image that it was changed from

	Defaults sandbox.TemplateDefaults `json:"defaults,omitzero"`

	Stored int64 `json:"-"` // disk use in bytes, when the image was read
	Cached bool  `json:"-"` // found by Build, not built
}

// Store keeps Templates in a folder:
//
//	images/               images by digest; see package images
//	refs/NAME             JSON of an Image; also NAME:TAG, and NAME@DIGEST for each version
//	tenants/HASH/NAME     the same for the Templates of a Tenant
//	locks/NAME.lock       held with flock while NAME is being built
//	build/NAME            a running build, or the files that a killed build left
//	cache                 downloads
//	builds                records of the builds that Tenants requested; not the Store's own
//
// Reading needs no write permission. Methods are safe for concurrent use, also by several
// processes.
type Store struct {
	dir string
	// saved finds a Snapshot that needs an image; see SetSaved.
	saved func(ctx context.Context, image string) (sandbox.Snapshot, error)
}

var _ sandbox.Images = (*Store)(nil)

// Open returns the Store in dir, an absolute path. It creates nothing: a missing folder
// is an empty Store.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("open template store: %q is not an absolute path", dir)
	}
	return &Store{dir: filepath.Clean(dir)}, nil
}

// SetSaved sets the function that searches for a Snapshot that needs an image, by
// digest, before the image is removed. The function returns NotFound if no Snapshot
// needs it. A Snapshot without an ID stands for a Sandbox that has the image. Without
// the function only the Boots of this host protect an image. It must be called before
// the Store is used.
func (s *Store) SetSaved(saved func(ctx context.Context, image string) (sandbox.Snapshot, error)) {
	s.saved = saved
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

// Builds is the folder for records of builds.
func (s *Store) Builds() string { return s.path("builds") }

func checkDigest(digest string) error {
	if !ValidDigest(digest) {
		return sandbox.Errorf(sandbox.Invalid, "an image digest is 64 lower-case hex digits")
	}
	return nil
}

// Path returns the path of an image's whole file. A delta is expanded first; its whole
// file may be evicted again when unused. NotFound for a missing image, Invalid for an
// invalid digest.
func (s *Store) Path(ctx context.Context, digest string) (string, error) {
	if err := checkDigest(digest); err != nil {
		return "", err
	}
	f, err := s.images().Open(ctx, digest)
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// OpenImage opens the whole file of an image, as images.Folder does.
func (s *Store) OpenImage(ctx context.Context, digest string) (*os.File, error) {
	if err := checkDigest(digest); err != nil {
		return nil, err
	}
	return s.images().Open(ctx, digest)
}

// OpenToCopy opens the whole file of an image without a lock, as images.Folder does.
func (s *Store) OpenToCopy(ctx context.Context, digest string) (*os.File, error) {
	if err := checkDigest(digest); err != nil {
		return nil, err
	}
	return s.images().OpenToCopy(ctx, digest)
}

// HasImage reports whether an image exists.
func (s *Store) HasImage(digest string) bool {
	return ValidDigest(digest) && s.images().Has(digest)
}

// Images returns the digests of all images, named or not.
func (s *Store) Images() ([]string, error) {
	all, err := s.images().List()
	return slices.DeleteFunc(all, func(digest string) bool { return !ValidDigest(digest) }), err
}

// ReceiveImage stores the content of r as an image without a name. If the image exists
// already, r is not read. It returns the errors of images.Folder.Receive.
func (s *Store) ReceiveImage(ctx context.Context, digest string, bytes int64, r io.Reader) error {
	if err := checkDigest(digest); err != nil {
		return err
	}
	if bytes <= 0 || bytes > maxImportBytes {
		return sandbox.Errorf(sandbox.Invalid, "an image has 1 to %d bytes", int64(maxImportBytes))
	}
	if s.images().Has(digest) {
		return nil
	}
	if err := s.makeFolders(); err != nil {
		return err
	}
	return s.images().Receive(ctx, digest, bytes, r, s.lockImages)
}

// images returns the folder of the images.
func (s *Store) images() images.Folder { return images.Folder(s.path("images")) }

// size returns the size of an image in bytes; NotFound when it is missing, Invalid for an
// invalid digest.
func (s *Store) size(digest string) (int64, error) {
	if err := checkDigest(digest); err != nil {
		return 0, err
	}
	return s.images().Size(digest)
}

// Resolve implements sandbox.Images. During a rebuild it returns the current version.
func (s *Store) Resolve(ctx context.Context, tenant sandbox.TenantID, template string) (string, error) {
	found, err := s.Find(ctx, tenant, template)
	return found.Image.Digest, err
}

// Find returns the version that template, NAME, NAME:TAG or NAME@DIGEST, names for a
// Tenant: its own, or else the operator's unless private. The empty Tenant is the
// operator. It returns the errors of Resolve.
func (s *Store) Find(ctx context.Context, tenant sandbox.TenantID, template string) (Listed, error) {
	if err := ctx.Err(); err != nil {
		return Listed{}, err
	}
	r, err := ParseRef(tenant, template)
	if err != nil {
		return Listed{}, err
	}
	image, err := s.readRef(r)
	if errors.Is(err, fs.ErrNotExist) && tenant != "" {
		r.Owner = ""
		if image, err = s.readRef(r); err == nil && image.Private {
			return Listed{}, s.available(tenant, template)
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return Listed{r, image}, err
	}
	if s.building(s.key(tenant, r.Name)) || s.building(r.Name) {
		return Listed{}, sandbox.Errorf(sandbox.Unavailable, "the template %s is being built for the first time: try again when it is", template).WithCause(sandbox.ErrBeingBuilt)
	}
	return Listed{}, s.available(tenant, template)
}

// maxRefBytes is far above the size of a ref.
const maxRefBytes = 1 << 20

// readRef returns fs.ErrNotExist also when the image of the ref is missing.
func (s *Store) readRef(r Ref) (Image, error) {
	image, err := readImage(s.refFile(r))
	if err != nil {
		return Image{}, err
	}
	if image.Stored, err = s.stored(image.Digest); err != nil {
		return Image{}, fmt.Errorf("read template ref %s: %w", r, err)
	}
	return image, nil
}

// stored returns the permanent disk use of an image in bytes; fs.ErrNotExist when it is
// missing.
func (s *Store) stored(digest string) (int64, error) {
	if err := checkDigest(digest); err != nil {
		return 0, err
	}
	n, err := s.images().Stored(digest)
	if errors.Is(err, sandbox.NotFound) {
		return 0, fmt.Errorf("look at the image %s: %w", digest, fs.ErrNotExist)
	}
	return n, err
}

func readImage(file string) (Image, error) {
	f, err := os.Open(file)
	if err != nil {
		return Image{}, fmt.Errorf("read template ref: %w", err)
	}
	defer f.Close()
	var image Image
	if err := json.NewDecoder(io.LimitReader(f, maxRefBytes)).Decode(&image); err != nil {
		return Image{}, fmt.Errorf("read template ref %s: %w", filepath.Base(file), err)
	}
	return image, nil
}

// writeRef points r to image.
func (s *Store) writeRef(r Ref, image Image) error {
	body, err := json.MarshalIndent(image, "", "  ")
	if err != nil {
		return fmt.Errorf("write template ref: %w", err)
	}
	if err := durable.Write(s.refFile(r), append(body, '\n'), 0o644); err != nil {
		return fmt.Errorf("write template ref: %w", err)
	}
	return nil
}

// adopt moves a finished image file in the Store's folder to its final path and returns
// its digest and size.
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
	if err := durable.Rename(file, s.images().Path(digest)); err != nil {
		return "", 0, fmt.Errorf("store image: %w", err)
	}
	return digest, size, nil
}

// makeFolders creates the Store's folders, readable by all despite the umask.
func (s *Store) makeFolders() error {
	for _, dir := range []string{".", "images", "refs", "tenants", "locks", "build"} {
		if err := os.MkdirAll(s.path(dir), 0o755); err != nil {
			return fmt.Errorf("make template store: %w", err)
		}
		if err := os.Chmod(s.path(dir), 0o755); err != nil {
			return fmt.Errorf("make template store: %w", err)
		}
	}
	return nil
}
