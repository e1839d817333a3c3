// Package disk keeps the files of Volumes in a folder of this host.
//
// A Volume is a folder with its objects side by side, each named by its number. A file
// of the Volume is a file. A folder is a folder whose entries are symbolic links with
// the type and number of their objects. So a path from a guest or a client is never
// followed here: a guest's name is looked up in one folder, and yields a number. Owner,
// mode, link count and a folder's parent are in an extended attribute of the object,
// because this process may not change owners, and must not keep foreign setuid bits on
// its host.
//
// A Volume is repaired after a crash when it is first used again: all its entries are
// read, objects without a name are removed, and its use is counted.
package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	volumesName = "kept"
	madeName    = "made" // incomplete Volumes
	goneName    = "gone" // deleted Volumes whose files still exist
	specName    = "spec.json"
	objectsName = "objects"
	asideName   = "aside" // entries about to replace others
	maxSpec     = 64 << 10
)

// Disk is the folder of all Volumes of a Node. Its methods are safe for concurrent
// use. Use Open.
type Disk struct {
	dir string

	mu   sync.Mutex
	open map[string]*Volume // used since this process began
	busy map[string]*sync.Mutex

	budgets budgets
}

// spec is the metadata file of a Volume.
type spec struct {
	Tenant   sandbox.TenantID `json:"tenant"`
	MaxBytes int64            `json:"max_bytes"`
	// Leaving says that the Volume was exported, and may be in use elsewhere.
	Leaving bool `json:"leaving,omitempty"`
}

// Open returns the Disk in a folder, which is made if missing.
func Open(dir string) (*Disk, error) {
	if err := os.RemoveAll(filepath.Join(dir, madeName)); err != nil { // left by a crash
		return nil, fmt.Errorf("clean the folder of volumes: %w", err)
	}
	for _, name := range []string{volumesName, madeName, goneName} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return nil, fmt.Errorf("make the folder of volumes: %w", err)
		}
	}
	return &Disk{dir: dir, open: map[string]*Volume{}, busy: map[string]*sync.Mutex{}}, nil
}

// checkAttributes returns Unsupported if the disk has no extended attributes for owners.
func (d *Disk) checkAttributes() error {
	err := unix.Setxattr(filepath.Join(d.dir, volumesName), attribute+".try", []byte("1"), 0)
	switch {
	case errors.Is(err, unix.ENOTSUP):
		return sandbox.Errorf(sandbox.Unsupported, "the node's disk keeps no extended attributes (user.*), which volumes need")
	case err != nil:
		return fmt.Errorf("try an extended attribute: %w", err)
	}
	return nil
}

// Clean removes the files of deleted Volumes that a crash left.
func (d *Disk) Clean(ctx context.Context) error {
	gone := filepath.Join(d.dir, goneName)
	left, err := os.ReadDir(gone)
	if err != nil {
		return err
	}
	for _, e := range left {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := os.RemoveAll(filepath.Join(gone, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (d *Disk) path(id string) string { return filepath.Join(d.dir, volumesName, id) }

// turn takes the exclusive right to open, make or delete a Volume, until done is called.
func (d *Disk) turn(id string) (done func()) {
	d.mu.Lock()
	t := d.busy[id]
	if t == nil {
		t = new(sync.Mutex)
		d.busy[id] = t
	}
	d.mu.Unlock()
	t.Lock()
	return t.Unlock
}

// Create implements VolumeFiles.CreateVolume.
func (d *Disk) Create(s sandbox.VolumeSpec) error {
	if err := d.checkSpec(s); err != nil {
		return err
	}
	defer d.turn(s.ID)()
	there, err := d.read(s.ID)
	switch {
	case errors.Is(err, sandbox.NotFound):
		return d.place(s, (*Volume).makeRoot)
	case err != nil:
		return err
	case there.Tenant != s.Tenant:
		return sandbox.Errorf(sandbox.Conflict, "the volume is another tenant's")
	case there.MaxBytes == s.MaxBytes && !there.Leaving:
		return nil
	}
	if err := writeSpec(d.path(s.ID), specOf(s)); err != nil {
		return err
	}
	d.mu.Lock()
	v := d.open[s.ID]
	d.mu.Unlock()
	if v != nil {
		v.setMax(s.MaxBytes)
	}
	return nil
}

// checkSpec returns an error if a Volume cannot be made.
func (d *Disk) checkSpec(s sandbox.VolumeSpec) error {
	if !sandbox.ValidVolumeID(s.ID) {
		return sandbox.Errorf(sandbox.Invalid, "the volume ID is invalid")
	}
	if err := sandbox.CheckVolumeBytes(s.MaxBytes); err != nil {
		return err
	}
	return d.checkAttributes()
}

// place makes a Volume aside, with the objects that fill makes, and renames it once it is
// complete.
func (d *Disk) place(s sandbox.VolumeSpec, fill func(*Volume) error) (err error) {
	aside := filepath.Join(d.dir, madeName, s.ID)
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(aside)
			err = full(err)
		}
	}()
	for _, dir := range []string{aside, filepath.Join(aside, objectsName), filepath.Join(aside, asideName)} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	if err := fill(&Volume{dir: aside}); err != nil {
		return err
	}
	if err := writeSpec(aside, specOf(s)); err != nil {
		return err
	}
	if err := os.Rename(aside, d.path(s.ID)); err != nil {
		return err
	}
	return syncFolder(filepath.Join(d.dir, volumesName))
}

func specOf(s sandbox.VolumeSpec) spec { return spec{Tenant: s.Tenant, MaxBytes: s.MaxBytes} }

func writeSpec(dir string, s spec) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	aside := filepath.Join(dir, specName+".new")
	f, err := os.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return full(err)
	}
	if err := os.Rename(aside, filepath.Join(dir, specName)); err != nil {
		return err
	}
	return syncFolder(dir)
}

// full gives the host's disk-full errors their Code.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return sandbox.Errorf(sandbox.Exhausted, "the node's disk is full").WithCause(err)
	}
	return err
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// read returns the spec of a Volume, or NotFound.
func (d *Disk) read(id string) (spec, error) {
	var s spec
	if !sandbox.ValidVolumeID(id) {
		return s, errNoVolume()
	}
	raw, err := os.ReadFile(filepath.Join(d.path(id), specName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, errNoVolume()
	case err != nil:
		return s, err
	case len(raw) > maxSpec:
		return s, fmt.Errorf("%s of volume %s is too long", specName, id)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("read %s of volume %s: %w", specName, id, err)
	}
	return s, nil
}

func errNoVolume() error { return sandbox.Errorf(sandbox.NotFound, "no such volume") }

// Check returns NotFound if the Tenant has no such Volume here.
func (d *Disk) Check(of sandbox.VolumeRef) error {
	_, err := d.Volume(of)
	return err
}

// Volume returns a Volume of its Tenant; NotFound for any other. The first use takes time
// in proportion to its files.
func (d *Disk) Volume(of sandbox.VolumeRef) (*Volume, error) {
	v, err := d.volume(of.ID)
	if err == nil && v.tenant != of.Tenant {
		return nil, errNoVolume()
	}
	return v, err
}

func (d *Disk) volume(id string) (*Volume, error) {
	d.mu.Lock()
	v := d.open[id]
	d.mu.Unlock()
	if v != nil {
		return v, nil
	}
	if !sandbox.ValidVolumeID(id) {
		return nil, errNoVolume()
	}
	defer d.turn(id)()
	d.mu.Lock()
	v = d.open[id]
	d.mu.Unlock()
	if v != nil {
		return v, nil
	}
	s, err := d.read(id)
	if err != nil {
		return nil, err
	}
	if s.Leaving {
		return nil, errLeaving()
	}
	if v, err = openVolume(d.path(id), s); err != nil {
		return nil, fmt.Errorf("count volume %s: %w", id, err)
	}
	d.mu.Lock()
	d.open[id] = v
	d.mu.Unlock()
	return v, nil
}

// Delete implements VolumeFiles.DeleteVolume.
func (d *Disk) Delete(id string) error {
	if !sandbox.ValidVolumeID(id) {
		return nil // none has such an ID
	}
	defer d.turn(id)()
	d.mu.Lock()
	v := d.open[id]
	delete(d.open, id)
	d.mu.Unlock()
	if v != nil {
		v.end()
	}
	gone := filepath.Join(d.dir, goneName, id)
	if err := os.RemoveAll(gone); err != nil { // left by an earlier try
		return err
	}
	err := os.Rename(d.path(id), gone)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(syncFolder(filepath.Join(d.dir, volumesName)), os.RemoveAll(gone))
}

// List implements VolumeFiles.ListVolumes.
func (d *Disk) List(ctx context.Context) ([]sandbox.VolumeUse, error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, volumesName))
	if err != nil {
		return nil, err
	}
	all := []sandbox.VolumeUse{}
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !sandbox.ValidVolumeID(e.Name()) {
			continue
		}
		v, err := d.volume(e.Name())
		if errors.Is(err, sandbox.NotFound) || errors.Is(err, sandbox.Unavailable) {
			continue // it was deleted just now, or is being moved
		}
		if err != nil {
			return nil, err
		}
		use := v.use()
		use.ID = e.Name()
		all = append(all, use)
	}
	return all, nil
}
