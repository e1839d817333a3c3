package template

import (
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// StoredBytes returns how many bytes the images take on the disk that a Tenant's tags
// and versions name, and images that nobody names any more but that these were made
// from. Each counts once, and one that the operator has too does not: it would be there
// without the Tenant. So Tag and Reuse, which name an image of either, never add to it.
// An image that two Tenants name counts for both.
func (s *Store) StoredBytes(owner sandbox.TenantID) (int64, error) {
	_, bytes, err := s.counted(owner)
	return bytes, err
}

// counted returns the images that an owner or the operator has, and the bytes of those
// that are the owner's alone.
func (s *Store) counted(owner sandbox.TenantID) (has map[string]bool, bytes int64, err error) {
	has = map[string]bool{}
	for _, who := range []sandbox.TenantID{"", owner} {
		all, err := s.refs(who)
		if err != nil {
			return nil, 0, err
		}
		fresh := map[string]int64{} // images of who, with their bytes
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

// Admit returns Exhausted as Quota.AdmitTemplate does when an image would take those
// of a Tenant beyond a Quota. One that the Tenant or the operator has already adds
// nothing. An image that is not there, or an empty digest, has room while any is left.
// One that was just made counts whole: a Compactor may make it a delta later.
//
// While the images are locked the answer holds until the image has its name: of
// builds at the same time each counts those that ended before it, so that together
// they never exceed the Quota, and the last ones fail. Versions that a new one will
// push out count until then.
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

// Drop removes an image that nobody names, for example one that was refused after it
// came. One that is named, that Boots run from or that Snapshots stand on stays.
func (s *Store) Drop(digest string) error {
	release, err := s.lockImages()
	if err != nil {
		return err
	}
	defer release()
	return s.drop(digest)
}

// drop is Drop while the images are locked.
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
