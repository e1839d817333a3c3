// Package uploads keeps the archives that clients upload for a COPY of a template build,
// as files in a folder.
package uploads

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploadlimit"
)

const (
	defaultMost        = 2 << 30
	defaultTenantBytes = 8 << 30
	defaultTenantFiles = 1000
	defaultLeave       = 4 << 30

	life = 7 * 24 * time.Hour
	rest = time.Hour // how long an upload is protected from displacement by newer ones
	// stalled is the age at which a file without a name was left by a crash.
	stalled    = 24 * time.Hour
	sweepEvery = time.Hour
)

// Config of a Store. Dir and Log are required.
type Config struct {
	Dir string // made when it is needed
	Log *slog.Logger
	// Most bounds one upload, in bytes; zero: 2 GiB. TenantBytes and TenantFiles bound the
	// uploads of a Tenant; zero: 8 GiB, and 1000.
	Most, TenantBytes int64
	TenantFiles       int
	// Leave is how many bytes of the disk must stay free; zero: 4 GiB.
	Leave int64
}

// Store implements sandbox.TemplateUploads. Several processes may use one folder.
type Store struct {
	cfg  Config
	room uploadlimit.Bounds
}

var _ sandbox.TemplateUploads = (*Store)(nil)

// New returns a Store.
func New(c Config) *Store {
	c.Most, c.TenantBytes = cmp.Or(c.Most, defaultMost), cmp.Or(c.TenantBytes, defaultTenantBytes)
	c.TenantFiles, c.Leave = cmp.Or(c.TenantFiles, defaultTenantFiles), cmp.Or(c.Leave, defaultLeave)
	return &Store{c, uploadlimit.Bounds{Subject: "the files of one COPY", Most: c.Most, Leave: c.Leave}}
}

// folder returns a Tenant's folder. It is named by a hash, because a TenantID may hold
// any characters.
func (s *Store) folder(tenant sandbox.TenantID) string {
	sum := sha256.Sum256([]byte(tenant))
	return filepath.Join(s.cfg.Dir, hex.EncodeToString(sum[:16]))
}

// HasUpload implements sandbox.TemplateUploads.
func (s *Store) HasUpload(_ context.Context, tenant sandbox.TenantID, hash string) (bool, error) {
	f, err := s.open(tenant, hash)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// OpenUpload implements sandbox.TemplateUploads.
func (s *Store) OpenUpload(_ context.Context, tenant sandbox.TenantID, hash string) (io.ReadCloser, int64, error) {
	f, err := s.open(tenant, hash)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, sandbox.Errorf(sandbox.NotFound, "no upload %.64s", hash)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open an upload: %w", err), f.Close())
	}
	return f, info.Size(), nil
}

// open opens an upload, and marks it as used.
func (s *Store) open(tenant sandbox.TenantID, hash string) (*os.File, error) {
	if err := sandbox.CheckUploadHash(hash); err != nil {
		return nil, err
	}
	path := filepath.Join(s.folder(tenant), hash)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open an upload: %w", err)
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // a failure only expires it earlier
	return f, nil
}

// StoreUpload implements sandbox.TemplateUploads.
func (s *Store) StoreUpload(ctx context.Context, tenant sandbox.TenantID, hash string, archive io.Reader) error {
	if err := sandbox.CheckUploadHash(hash); err != nil {
		return err
	}
	return s.room.Explain(s.store(ctx, s.folder(tenant), hash, archive))
}

func (s *Store) store(ctx context.Context, dir, hash string, archive io.Reader) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("store an upload: %w", err)
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return fmt.Errorf("store an upload: %w", err)
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	defer f.Close()
	if err := s.room.Receive(ctx, f, &bounded{Reader: archive, room: func() error { return s.makeRoom(dir) }}); err != nil {
		return err
	}
	if err := s.makeRoom(dir); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, hash)); err != nil {
		return fmt.Errorf("store an upload: %w", err)
	}
	return nil
}

// bounded calls room from time to time while it is read, so that uploads at the same time
// stay within the bounds of their Tenant together.
type bounded struct {
	io.Reader
	room   func() error
	unseen int // bytes read since the last call
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.unseen >= uploadlimit.LookEvery {
		b.unseen = 0
		if err := b.room(); err != nil {
			return 0, err
		}
	}
	n, err := b.Reader.Read(p)
	b.unseen += n
	return n, err
}

// list returns the files of a Tenant's folder, the least recently used first.
func list(dir string) (all []fs.FileInfo, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list uploads: %w", err)
	}
	for _, f := range files {
		info, err := f.Info()
		if errors.Is(err, fs.ErrNotExist) { // another upload ended
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list uploads: %w", err)
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	return all, nil
}

// expired reports whether a file may be removed at any time.
func expired(f fs.FileInfo) bool {
	limit := life
	if sandbox.CheckUploadHash(f.Name()) != nil {
		limit = stalled
	}
	return time.Since(f.ModTime()) > limit
}

func remove(dir string, f fs.FileInfo) error {
	if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an upload: %w", err)
	}
	return nil
}

// makeRoom removes a Tenant's oldest uploads until the others, and its uploads that
// arrive, are within its bounds.
func (s *Store) makeRoom(dir string) error {
	all, err := list(dir)
	if err != nil {
		return err
	}
	size := int64(0)
	for _, f := range all {
		size += f.Size()
	}
	for _, f := range all {
		full := size > s.cfg.TenantBytes || len(all) > s.cfg.TenantFiles
		displaced := full && sandbox.CheckUploadHash(f.Name()) == nil && time.Since(f.ModTime()) > rest
		switch {
		case expired(f) || displaced:
			if err := remove(dir, f); err != nil {
				return err
			}
			size, all = size-f.Size(), all[1:]
		case full:
			return sandbox.Errorf(sandbox.Exhausted, "too many files for templates: %d archives of %d GiB in all may be kept for an hour", s.cfg.TenantFiles, s.cfg.TenantBytes>>30)
		default:
			return nil
		}
	}
	return nil
}

// Run removes expired uploads, also of Tenants that upload nothing more, until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := s.Sweep(); err != nil {
			s.cfg.Log.Warn("removing expired uploads failed; will retry", telemetry.KeyError, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Sweep removes expired uploads, and unfinished files that a crash left.
func (s *Store) Sweep() error {
	folders, err := os.ReadDir(s.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list uploads: %w", err)
	}
	var errs []error
	for _, folder := range folders {
		dir := filepath.Join(s.cfg.Dir, folder.Name())
		all, err := list(dir)
		errs = append(errs, err)
		for _, f := range all {
			if expired(f) {
				errs = append(errs, remove(dir, f))
			}
		}
	}
	return errors.Join(errs...)
}
