package template

import (
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// StoredBytes returns the disk use in bytes of the images that a Tenant's tags and
// versions name, and of their bases that nothing names any more. Each image counts once.
// Images that the operator has too do not count, because they would exist without the
// Tenant. So Tag and Reuse, which only name existing images, never add to it. An image of
// two Tenants counts for both.
func (s *Store) StoredBytes(owner sandbox.TenantID) (int64, error) {
	_, bytes, err := s.counted(owner)
	return bytes, err
}

// counted returns the images of an owner or the operator, and the disk use in bytes of
// the owner's alone.
func (s *Store) counted(owner sandbox.TenantID) (has map[string]bool, bytes int64, err error) {
	has = map[string]bool{}
	for _, who := range []sandbox.TenantID{"", owner} {
		all, err := s.refs(who)
		if err != nil {
			return nil, 0, err
		}
		fresh := map[string]int64{} // bytes of this owner's further images, by digest
		for _, l := range all {
			if !has[l.Image.Digest] {
				fresh[l.Image.Digest] = l.Stored
			}
		}
		for _, digest := range slices.Collect(maps.Keys(fresh)) {
			base, err := s.images().Base(digest)
			if err != nil {
				return nil, 0, err
			}
			if _, known := fresh[base]; base == "" || known || has[base] {
				continue
			}
			if fresh[base], err = s.stored(base); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, 0, err
			}
		}
		for digest, n := range fresh {
			has[digest] = true
			if who != "" {
				bytes += n
			}
		}
	}
	return has, bytes, nil
}

// Admit returns Exhausted, as Quota.AdmitTemplate does, when an image would exceed a
// Tenant's Quota. An image that the Tenant or the operator already has adds nothing. A
// missing image, or an empty digest, is admitted while any quota is left. A new image
// counts with its full size: a Compactor may make it a delta later.
//
// While the images are locked the answer holds until the image has its name. Concurrent
// builds each count the builds that ended before, so together they never exceed the
// Quota, and the last ones fail. Old versions that a new one will displace count until
// then.
func (s *Store) Admit(q sandbox.Quota, owner sandbox.TenantID, digest string) error {
	if q.TemplateBytes == 0 {
		return nil
	}
	has, used, err := s.counted(owner)
	if err != nil || has[digest] {
		return err
	}
	size := int64(0)
	if digest != "" {
		if size, err = s.stored(digest); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return q.AdmitTemplate(used, size)
}

// Drop removes an unnamed image, for example one that was refused after its import. An
// image stays if it has a name, Boots run from it or Snapshots need it.
func (s *Store) Drop(digest string) error {
	release, err := s.lockImages()
	if err != nil {
		return err
	}
	defer release()
	return s.drop(digest)
}

// drop is Drop with the images locked.
func (s *Store) drop(digest string) error {
	named, err := s.digestsNamed(nil)
	if err != nil || named[digest] {
		return err
	}
	release, err := s.unused(Listed{Image: Image{Digest: digest}})
	if errors.Is(err, sandbox.Conflict) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	_, err = s.removeImages([]Listed{{Image: Image{Digest: digest}}})
	return err
}
