package sandboxbuild

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploadlimit"
)

// Bounds of uploads.
const (
	maxUpload      = 2 << 30 // bytes of one archive
	maxUploads     = 8 << 30 // total bytes of a Tenant
	maxUploadFiles = 1000    // uploads of a Tenant
	uploadLife     = 7 * 24 * time.Hour
	uploadRest     = time.Hour // how long an upload is protected from displacement by newer ones
	stalled        = 24 * time.Hour
)

var uploadRoom = uploadlimit.Bounds{Subject: "the files of one COPY", Most: maxUpload, Leave: 4 << 30}

var hashPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ValidHash reports whether s has the form of an upload's name.
func ValidHash(s string) bool { return hashPattern.MatchString(s) }

// uploads stores archives by Tenant and by name, a hash of the content that the client
// computes.
type uploads struct{ dir string }

// folder returns a Tenant's folder. It is named by a hash, because a TenantID may hold
// any characters.
func (u uploads) folder(tenant sandbox.TenantID) string {
	sum := sha256.Sum256([]byte(tenant))
	return filepath.Join(u.dir, hex.EncodeToString(sum[:16]))
}

// Uploaded reports whether the Tenant has uploaded an archive of that name, and extends
// its life.
func (s *Service) Uploaded(tenant sandbox.TenantID, hash string) (bool, error) {
	if err := s.mayUpload(hash); err != nil {
		return false, err
	}
	f, err := s.uploads().open(tenant, hash)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	return true, f.Close()
}

func (s *Service) uploads() uploads { return uploads{s.cfg.Uploads} }

func (s *Service) mayUpload(hash string) error {
	switch {
	case !ValidHash(hash):
		return sandbox.Errorf(sandbox.Invalid, "the name of the upload must be 64 lower-case hex digits")
	case s.cfg.Uploads == "":
		return sandbox.Errorf(sandbox.Unsupported, "this server takes no files for templates")
	}
	return nil
}

// Upload stores an archive. It returns Invalid for a bad name, TooLarge, and Exhausted
// when the Tenant or the disk has no room.
func (s *Service) Upload(ctx context.Context, tenant sandbox.TenantID, hash string, archive io.Reader) error {
	if err := s.mayUpload(hash); err != nil {
		return err
	}
	return s.uploads().keep(ctx, tenant, hash, archive)
}

// open opens an upload, and marks it as used.
func (u uploads) open(tenant sandbox.TenantID, hash string) (*os.File, error) {
	path := filepath.Join(u.folder(tenant), hash)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open an upload: %w", err)
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // a failure only expires it earlier
	return f, nil
}

// scratch returns an unlinked file in a Tenant's folder.
func (u uploads) scratch(tenant sandbox.TenantID) (*os.File, error) {
	dir := u.folder(tenant)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep an upload: %w", err)
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return nil, fmt.Errorf("keep an upload: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("keep an upload: %w", err)
	}
	return f, nil
}

func (u uploads) keep(ctx context.Context, tenant sandbox.TenantID, hash string, archive io.Reader) error {
	dir := u.folder(tenant)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep an upload: %w", err)
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return fmt.Errorf("keep an upload: %w", err)
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	defer f.Close()
	if err := uploadRoom.Receive(ctx, f, archive); err != nil {
		return err
	}
	if err := u.makeRoom(dir); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, hash)); err != nil {
		return fmt.Errorf("keep an upload: %w", err)
	}
	return nil
}

// makeRoom removes a Tenant's oldest uploads until the rest and one new upload are within
// its bounds.
func (u uploads) makeRoom(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at uploads: %w", err)
	}
	var all []fs.FileInfo
	size := int64(0)
	for _, f := range files {
		info, err := f.Info()
		if errors.Is(err, fs.ErrNotExist) { // another upload ended
			continue
		}
		if err != nil {
			return fmt.Errorf("look at uploads: %w", err)
		}
		all, size = append(all, info), size+info.Size()
	}
	slices.SortFunc(all, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range all {
		age := time.Since(info.ModTime())
		full := size > maxUploads || len(all) > maxUploadFiles
		switch {
		case ValidHash(info.Name()) && (age > uploadLife || full && age > uploadRest), age > stalled && !ValidHash(info.Name()):
			if err := os.Remove(filepath.Join(dir, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove an upload: %w", err)
			}
			size, all = size-info.Size(), all[1:]
		case full:
			return sandbox.Errorf(sandbox.Exhausted, "too many files for templates: %d archives of %d GiB in all may be kept for an hour", maxUploadFiles, maxUploads>>30)
		default:
			return nil
		}
	}
	return nil
}
