package template

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A Ref names a version of a Template: by Digest if set, else by Tag.
type Ref struct {
	Owner  sandbox.TenantID // empty: the operator's
	Name   string
	Tag    string // empty with a Digest; default "latest"
	Digest string
}

// Latest is the default tag.
const Latest = "latest"

var tagPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`)

// ParseRef parses NAME, NAME:TAG or NAME@DIGEST; Invalid otherwise.
func ParseRef(owner sandbox.TenantID, text string) (Ref, error) {
	r := Ref{Owner: owner}
	var byDigest, byTag bool
	if r.Name, r.Digest, byDigest = strings.Cut(text, "@"); !byDigest {
		r.Name, r.Tag, byTag = strings.Cut(text, ":")
	}
	if err := checkName(r.Name); err != nil {
		return Ref{}, err
	}
	switch {
	case byDigest && !ValidDigest(r.Digest):
		return Ref{}, sandbox.Errorf(sandbox.Invalid, "after %s@ stands a version, which is 64 lower-case hex digits", r.Name)
	case byTag && !tagPattern.MatchString(r.Tag):
		return Ref{}, sandbox.Errorf(sandbox.Invalid, "a tag is 1 to 64 of a-z, 0-9, '.', '_' and '-', and begins and ends with a letter or digit")
	case !byDigest:
		r.Tag = cmp.Or(r.Tag, Latest)
	}
	return r, nil
}

// String returns the form for ParseRef, without the owner.
func (r Ref) String() string {
	switch {
	case r.Digest != "":
		return r.Name + "@" + r.Digest
	case r.Tag == Latest:
		return r.Name
	}
	return r.Name + ":" + r.Tag
}

// at returns the Ref of a version.
func (r Ref) at(digest string) Ref { return Ref{Owner: r.Owner, Name: r.Name, Digest: digest} }

// space returns the folder of an owner's refs. A Tenant's is named by a hash, because a
// TenantID may hold any characters.
func (s *Store) space(owner sandbox.TenantID) string {
	if owner == "" {
		return s.path("refs")
	}
	sum := sha256.Sum256([]byte(owner))
	return s.path("tenants", hex.EncodeToString(sum[:16]))
}

func (s *Store) refFile(r Ref) string { return filepath.Join(s.space(r.Owner), r.String()) }

// key returns a unique name for an owner's Template in folders that all owners share.
func (s *Store) key(owner sandbox.TenantID, name string) string {
	if owner == "" {
		return name
	}
	return filepath.Base(s.space(owner)) + "+" + name
}

// Listed is a Ref and its Image.
type Listed struct {
	Ref
	Image
}

// List returns the Templates of an owner by name and tag, without untagged versions.
func (s *Store) List(owner sandbox.TenantID) ([]Listed, error) {
	all, err := s.refs(owner)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(l Listed) bool { return l.Digest() != "" }), nil
}

// Digest returns the digest of a version's Ref, or "" for a tag.
func (l Listed) Digest() string { return l.Ref.Digest }

// Versions returns the versions of a Template, newest first. NotFound when it has none.
func (s *Store) Versions(owner sandbox.TenantID, name string) ([]Listed, error) {
	all, err := s.refs(owner)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(l Listed) bool { return l.Name != name || l.Digest() == "" })
	if len(all) == 0 {
		return nil, noTemplate(name)
	}
	slices.SortStableFunc(all, func(a, b Listed) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return all, nil
}

// VersionsOf returns the versions of found's Template, newest first. A Template that was
// built before versions existed has only found.
func (s *Store) VersionsOf(found Listed) ([]Listed, error) {
	versions, err := s.Versions(found.Owner, found.Name)
	if errors.Is(err, sandbox.NotFound) {
		return []Listed{found}, nil
	}
	return versions, err
}

// refs returns all refs of an owner. Broken refs, and refs whose image is missing, are
// skipped.
func (s *Store) refs(owner sandbox.TenantID) ([]Listed, error) {
	files, err := os.ReadDir(s.space(owner))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	var all []Listed
	for _, f := range files {
		r, err := ParseRef(owner, f.Name())
		if err != nil {
			continue // a file that is being written
		}
		if image, err := s.readRef(r); err == nil {
			all = append(all, Listed{r, image})
		}
	}
	return all, nil
}

func noTemplate(text string) *sandbox.Error {
	return sandbox.Errorf(sandbox.NotFound, "no template %q", text)
}

// mostNamed bounds the Templates in an error.
const mostNamed = 10

// available is noTemplate with the available names: the Tenant's own, then the operator's
// that are not private.
func (s *Store) available(tenant sandbox.TenantID, text string) *sandbox.Error {
	var names []string
	for _, owner := range slices.Compact([]sandbox.TenantID{tenant, ""}) {
		all, err := s.List(owner)
		if err != nil {
			return noTemplate(text)
		}
		for _, l := range all {
			if l.Owner == tenant || !l.Private {
				names = append(names, l.String())
			}
		}
	}
	switch {
	case len(names) == 0:
		return sandbox.Errorf(sandbox.NotFound, "no template %q; `cloud-sandbox template build` makes one", text)
	case len(names) > mostNamed:
		names = append(names[:mostNamed], "and more that `cloud-sandbox template ls` lists")
	}
	return sandbox.Errorf(sandbox.NotFound, "no template %q; available: %s", text, strings.Join(names, ", "))
}

// keptVersions is how many of a Template's newest versions are kept even without a tag.
const keptVersions = 5

// publish tags image as r, and records it as a version of the Template. Untagged versions
// beyond the newest keptVersions are removed, unless they are in use.
func (s *Store) publish(r Ref, image Image) error {
	if err := s.makeSpace(r.Owner); err != nil {
		return err
	}
	if err := errors.Join(s.writeRef(r.at(image.Digest), image), s.writeRef(r, image)); err != nil {
		return err
	}
	all, err := s.refs(r.Owner)
	if err != nil {
		return err
	}
	tagged := map[string]bool{}
	var versions []Listed
	for _, l := range all {
		switch {
		case l.Name != r.Name:
		case l.Digest() == "":
			tagged[l.Image.Digest] = true
		default:
			versions = append(versions, l)
		}
	}
	slices.SortFunc(versions, func(a, b Listed) int { return b.CreatedAt.Compare(a.CreatedAt) })
	for i, v := range versions {
		if i < keptVersions || tagged[v.Image.Digest] {
			continue
		}
		// A version that is, or may be, in use is removed later.
		_, err := s.removeRefs([]Listed{v})
		if err != nil && !errors.Is(err, sandbox.Conflict) && !errors.Is(err, sandbox.Unavailable) {
			return err
		}
	}
	return nil
}

// Keep records an existing image as a version of an owner's Template, so that it can be
// listed and removed. Nothing changes if the owner's or the operator's Template of that
// name has this version already. text is any text that names the Template. Keep returns
// the errors of Admit; the image then stays without a name, see Drop.
func (s *Store) Keep(q sandbox.Quota, owner sandbox.TenantID, text, digest string) error {
	named, err := ParseRef(owner, text)
	if err != nil {
		return err
	}
	release, err := s.lockImages() // keeps the image from being removed meanwhile
	if err != nil {
		return err
	}
	defer release()
	size, err := s.size(digest)
	if err != nil {
		return err
	}
	for _, r := range []Ref{named.at(digest), (Ref{Name: named.Name}).at(digest)} {
		if _, err := s.readRef(r); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := s.Admit(q, owner, digest); err != nil {
		return err
	}
	if err := s.makeSpace(owner); err != nil {
		return err
	}
	return s.writeRef(named.at(digest), Image{Digest: digest, CreatedAt: time.Now().UTC(), Source: "snapshot", Size: size})
}

// Tag tags the image that text names with more tags of the same Template, and returns it.
// It returns NotFound for a missing image, and Invalid for a bad tag; then nothing
// changes.
func (s *Store) Tag(owner sandbox.TenantID, text string, tags []string) (Listed, error) {
	from, err := ParseRef(owner, text)
	if err != nil {
		return Listed{}, err
	}
	var to []Ref
	for _, tag := range tags {
		r, err := ParseRef(owner, from.Name+":"+tag)
		if err != nil {
			return Listed{}, err
		}
		to = append(to, r)
	}
	release, err := s.lockImages() // keeps the image from being removed meanwhile
	if err != nil {
		return Listed{}, err
	}
	defer release()
	image, err := s.readRef(from)
	if errors.Is(err, fs.ErrNotExist) {
		return Listed{}, noTemplate(text)
	}
	if err != nil {
		return Listed{}, err
	}
	for _, r := range to {
		if err := s.writeRef(r, image); err != nil {
			return Listed{}, err
		}
	}
	return Listed{from, image}, nil
}

// Reuse tags an existing image as r instead of rebuilding it, and records it as a
// version of r's Template. text names the image in the namespace of r's owner. The
// version gets the Defaults, Build and Layer of as. It returns Conflict when that image
// is not as.Digest, and the errors of Find.
func (s *Store) Reuse(ctx context.Context, text string, r Ref, as Image) (Listed, error) {
	release, err := s.lockImages() // keeps the image from being removed meanwhile
	if err != nil {
		return Listed{}, err
	}
	defer release()
	found, err := s.Find(ctx, r.Owner, text)
	if err != nil {
		return Listed{}, err
	}
	image := found.Image
	if image.Digest != as.Digest {
		return Listed{}, sandbox.Errorf(sandbox.Conflict, "the template %s was rebuilt meanwhile: try again", text)
	}
	if image.MadeAt.IsZero() {
		image.MadeAt = image.CreatedAt
	}
	image.CreatedAt, image.Defaults, image.Build, image.Layer = time.Now().UTC(), as.Defaults, as.Build, as.Layer
	image.Inputs = "" // not made by a build of this name
	return Listed{r, image}, s.publish(r, image)
}

func (s *Store) makeSpace(owner sandbox.TenantID) error {
	dir := s.space(owner)
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make template store: %w", err)
		}
		if err := os.Chmod(d, 0o755); err != nil {
			return fmt.Errorf("make template store: %w", err)
		}
	}
	return nil
}

// Remove removes a tag, a version with its tags, or a whole Template. text names it; a
// bare name means the whole Template. It also removes images that then have no name. It
// returns the removed refs; NotFound if text names none. If Boots run from such an
// image or Snapshots need it, it returns Conflict and removes nothing. freed is the
// freed disk space in bytes.
func (s *Store) Remove(owner sandbox.TenantID, text string) (removed []Ref, freed int64, err error) {
	r, err := ParseRef(owner, text)
	if err != nil {
		return nil, 0, err
	}
	if owner == "" && text == baseName {
		return nil, 0, sandbox.Errorf(sandbox.Conflict, "every server needs the template %s: rebuild it instead", baseName)
	}
	release, err := s.lockImages()
	if err != nil {
		return nil, 0, err
	}
	defer release()
	all, err := s.refs(owner)
	if err != nil {
		return nil, 0, err
	}
	whole := !strings.ContainsAny(text, ":@")
	gone := slices.DeleteFunc(all, func(l Listed) bool {
		switch {
		case l.Name != r.Name:
			return true
		case whole:
			return false
		case r.Digest != "":
			return l.Image.Digest != r.Digest
		}
		return l.Ref != r
	})
	if len(gone) == 0 {
		return nil, 0, noTemplate(text)
	}
	if freed, err = s.removeRefs(gone); err != nil {
		return nil, 0, err
	}
	for _, l := range gone {
		removed = append(removed, l.Ref)
	}
	return removed, freed, nil
}

// removeRefs removes refs, and the images without other refs, and returns the freed
// bytes. It checks the images first and removes nothing on these errors: Conflict when
// Boots run from one or Snapshots need it, Unavailable when the lookup fails. The images
// are locked.
func (s *Store) removeRefs(gone []Listed) (freed int64, err error) {
	orphans, err := s.orphans(gone)
	if err != nil {
		return 0, err
	}
	for _, l := range orphans {
		release, err := s.unused(l)
		if err != nil {
			return 0, err
		}
		defer release() // no Boot starts from it before it is removed
	}
	for _, l := range gone {
		if err := os.Remove(s.refFile(l.Ref)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return freed, fmt.Errorf("remove template: %w", err)
		}
	}
	return s.removeImages(orphans)
}

// removeImages removes claimed images without refs, and returns the freed bytes. An image
// that is the base of deltas stays, and is removed with the last of them.
func (s *Store) removeImages(orphans []Listed) (freed int64, err error) {
	if len(orphans) == 0 {
		return 0, nil
	}
	bases, err := s.images().Bases()
	if err != nil {
		return 0, err
	}
	needed := func(digest string) bool { return slices.Contains(slices.Collect(maps.Values(bases)), digest) }
	var left []string // bases of the removed images
	for _, l := range orphans {
		if base, ok := bases[l.Image.Digest]; ok {
			delete(bases, l.Image.Digest)
			left = append(left, base)
		}
	}
	named, err := s.digestsNamed(nil)
	if err != nil {
		return 0, err
	}
	for _, l := range orphans {
		if needed(l.Image.Digest) {
			continue
		}
		n, err := s.removeImage(l.Image.Digest)
		if err != nil {
			return freed, err
		}
		freed += n
	}
	for _, base := range left {
		if named[base] || needed(base) {
			continue
		}
		n, err := s.removeBase(base)
		if err != nil {
			return freed, err
		}
		freed += n
	}
	return freed, nil
}

// removeBase removes an image that was only kept as a base. It stays if it is in use, for
// example by a Snapshot that came with it.
func (s *Store) removeBase(digest string) (freed int64, err error) {
	release, err := s.unused(Listed{Image: Image{Digest: digest}})
	if errors.Is(err, sandbox.Conflict) || errors.Is(err, sandbox.Unavailable) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer release()
	return s.removeImage(digest)
}

// removeImage removes a claimed image, and returns the freed bytes.
func (s *Store) removeImage(digest string) (int64, error) {
	stored, err := s.stored(digest)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return stored, s.images().Remove(digest)
}

// orphans returns one of gone for each image that no other ref names.
func (s *Store) orphans(gone []Listed) ([]Listed, error) {
	if len(gone) == 0 {
		return nil, nil
	}
	refs := map[string]bool{}
	for _, l := range gone {
		refs[s.refFile(l.Ref)] = true
	}
	named, err := s.digestsNamed(refs)
	if err != nil {
		return nil, err
	}
	var orphans []Listed
	for _, l := range gone {
		if !named[l.Image.Digest] {
			named[l.Image.Digest] = true // once
			orphans = append(orphans, l)
		}
	}
	return orphans, nil
}

// digestsNamed returns the digests in all refs of all owners, except in the files of but.
func (s *Store) digestsNamed(but map[string]bool) (map[string]bool, error) {
	named := map[string]bool{}
	err := s.eachRef(but, func(i Image) { named[i.Digest] = true })
	return named, err // on an error, no image is removed
}

// eachRef calls each with the Image of every ref of all owners, except the files of but.
func (s *Store) eachRef(but map[string]bool, each func(Image)) error {
	files, err := filepath.Glob(s.path("tenants", "*", "*"))
	if err != nil {
		return err
	}
	own, err := filepath.Glob(s.path("refs", "*"))
	if err != nil {
		return err
	}
	for _, f := range append(files, own...) {
		if but[f] {
			continue
		}
		image, err := readImage(f)
		if err != nil {
			return err
		}
		each(image)
	}
	return nil
}
