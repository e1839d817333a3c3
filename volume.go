package sandbox

import (
	"context"
	"io"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// MaxVolumes is how many Volumes a Tenant may have.
	MaxVolumes = 1000
	// MaxVolumeMounts is how many Volumes one Sandbox has.
	MaxVolumeMounts = 8
	// DefaultVolumeBytes and MaxVolumeBytes bound what one Volume holds.
	DefaultVolumeBytes = 1 << 30
	MaxVolumeBytes     = 1 << 40
	// MaxVolumePath is how many bytes the path of a file in a Volume has, from the
	// Volume's root, and MaxVolumeDepth how many folders deep it lies.
	MaxVolumePath  = 4096
	MaxVolumeDepth = 64
)

// VolumeState is where a Volume is in its life.
type VolumeState string

const (
	VolumeCreating VolumeState = "creating" // recorded, perhaps not there yet
	VolumeReady    VolumeState = "ready"
	VolumeDeleting VolumeState = "deleting" // given up, its files perhaps still there
)

// Volume is storage of a Tenant that outlives Sandboxes and is mounted into
// them, into any number at once. What is written in one is seen in all.
type Volume struct {
	ID        string // "v" and 20 of [a-z0-9]
	Tenant    TenantID
	Name      string // unique among those of its Tenant
	State     VolumeState
	Node      string // that has its files; Sandboxes that mount it run there
	MaxBytes  int64  // the most its files may have together
	CreatedAt time.Time
}

// VolumeMount is where a Sandbox has a Volume.
type VolumeMount struct {
	Volume string // its ID; in a request its name or ID
	Name   string // of the Volume, which never changes; not in a request
	Path   string // absolute and clean
}

// VolumeRequest asks for a Volume.
type VolumeRequest struct {
	// ID is the one it will have, for a request that must take effect once: a
	// repeat returns what the first one made. Empty: a fresh one.
	ID       string
	Name     string
	MaxBytes int64 // zero: DefaultVolumeBytes
}

// Check returns Invalid, saying what to change, when the request breaks a rule
// that needs no other knowledge than the request.
func (r VolumeRequest) Check() error {
	if r.ID != "" && !ValidVolumeID(r.ID) {
		return Errorf(Invalid, "the volume ID is not one")
	}
	if err := CheckVolumeName(r.Name); err != nil || r.MaxBytes == 0 {
		return err
	}
	return CheckVolumeBytes(r.MaxBytes)
}

// Volumes is the part of Sandboxes that keeps Volumes.
type Volumes interface {
	// CreateVolume returns an empty Volume once it can be mounted. A name in use is
	// a Conflict, no room in the Quota Exhausted; Unsupported when the Node's
	// disk cannot keep them.
	CreateVolume(ctx context.Context, tenant TenantID, req VolumeRequest) (Volume, error)
	// GetVolume returns a Volume, by ID or name, that is ready.
	GetVolume(ctx context.Context, tenant TenantID, idOrName string) (Volume, error)
	// ListVolumes returns those of a Tenant that are ready, by name.
	ListVolumes(ctx context.Context, tenant TenantID) ([]Volume, error)
	// DeleteVolume deletes a Volume with all that is in it and returns its last
	// record; Conflict while a Sandbox that has not ended has it.
	DeleteVolume(ctx context.Context, tenant TenantID, idOrName string) (Volume, error)
}

// VolumeStore keeps Volumes. Session-manager alone writes here.
type VolumeStore interface {
	VolumeRecords
	// InsertVolume adds a record. A known ID is a Conflict, and so is a name that
	// another of the Tenant's has which is not being deleted; Exhausted when the
	// Tenant has MaxVolumes, or its Quota has no room, exactly, however many insert
	// at once.
	InsertVolume(ctx context.Context, v Volume) (Volume, error)
	// MoveVolume records that a Volume in state from is in state to; Conflict when
	// it is in another by now, or is to be deleted and a Sandbox that has not ended
	// has it; NotFound when there is none.
	MoveVolume(ctx context.Context, id string, from, to VolumeState) error
	// VolumesLeft returns every Tenant's that are not ready.
	VolumesLeft(ctx context.Context) ([]Volume, error)
	// VolumeUses counts the Sandboxes that have not ended and have a Volume.
	VolumeUses(ctx context.Context, id string) (int, error)
	// DropVolume removes the record of a Volume that is being deleted; another one
	// and an unknown one stay as they are.
	DropVolume(ctx context.Context, id string) error
}

// VolumeRecords reads the records of Volumes.
type VolumeRecords interface {
	// VolumeByID returns the record, whoever owns it and whatever its State; callers
	// check both.
	VolumeByID(ctx context.Context, id string) (Volume, error)
	// VolumeByName returns the Tenant's Volume of that name that is ready.
	VolumeByName(ctx context.Context, tenant TenantID, name string) (Volume, error)
	// Volumes returns those of a Tenant that are ready, by name, at most MaxVolumes.
	Volumes(ctx context.Context, tenant TenantID) ([]Volume, error)
}

// VolumeSpec is what a Node is told of a Volume.
type VolumeSpec struct {
	ID       string
	Tenant   TenantID
	MaxBytes int64
}

// VolumeBinding is a mounted Volume as Bind tells it to a Boot.
type VolumeBinding struct {
	VolumeSpec
	Path string
}

// VolumeUse is what a Volume on a Node holds.
type VolumeUse struct {
	ID string
	// Bytes are 4096 for each name, and the length of each file in blocks of 4096,
	// holes too; also of deleted files that are still open.
	Bytes int64
	Files int64 // and folders, without its root
}

// VolumeFileType is what a path in a Volume leads to.
type VolumeFileType string

const (
	VolumeFileRegular VolumeFileType = "file"
	VolumeFileFolder  VolumeFileType = "directory"
	VolumeFileLink    VolumeFileType = "symlink"
	VolumeFileOther   VolumeFileType = "unknown" // a socket, a pipe
)

// VolumeFile is a file of a Volume.
type VolumeFile struct {
	Path     string // from the Volume's root, which is "/"
	Type     VolumeFileType
	Bytes    int64
	Mode     uint32 // permission bits, with setuid, setgid and sticky, as stat(2) has them
	UID, GID uint32
	Accessed time.Time
	Modified time.Time
	Changed  time.Time
	Target   string // of a symbolic link, as it is written there
}

// VolumeFileChange says what changes of a file's metadata; nil: nothing.
type VolumeFileChange struct {
	UID, GID *uint32
	Mode     *uint32
}

// NodeVolumes makes and deletes the Volumes that Nodes keep. node is a Node's name; an
// unknown or silent one is Unavailable. Methods are safe for concurrent use, also beside
// Sandboxes that have the Volume mounted.
type NodeVolumes interface {
	// CreateVolume makes an empty Volume, and is repeatable: with another MaxBytes
	// it changes that of a Volume that is there. Nothing of what it holds goes when
	// that is more than it may then have.
	CreateVolume(ctx context.Context, node string, v VolumeSpec) error
	// DeleteVolume removes a Volume with all its files, whose mounts answer with an
	// error from then on; an unknown one is a success.
	DeleteVolume(ctx context.Context, node, id string) error
	// ListVolumes returns what all Volumes of the Node hold.
	ListVolumes(ctx context.Context, node string) ([]VolumeUse, error)
}

// VolumeFiles reaches the files of the Volumes that Nodes keep. node is a Node's name; an
// unknown or silent one is Unavailable.
//
// A path is absolute from the Volume's root, and no symbolic link in it is
// followed: one that leads through a link is Invalid. A Volume or file that is
// not there is NotFound, and so is a Volume of another Tenant. Methods are safe
// for concurrent use, also beside Sandboxes that have the Volume mounted.
type VolumeFiles interface {
	// StatVolumeFile returns what is at a path, a link itself.
	StatVolumeFile(ctx context.Context, node string, of VolumeRef, path string) (VolumeFile, error)
	// ListVolumeFolder returns what is below a folder, depth levels deep, by path; at
	// most MaxVolumeEntries, and TooLarge when there is more. A path that is no folder
	// is Invalid.
	ListVolumeFolder(ctx context.Context, node string, of VolumeRef, path string, depth int) ([]VolumeFile, error)
	// MakeVolumeFolder makes a folder, owned by root and with mode 0755 unless c says
	// otherwise. With force its parents are made too, and one that is there is a
	// success; without it that is a Conflict.
	MakeVolumeFolder(ctx context.Context, node string, of VolumeRef, path string, c VolumeFileChange, force bool) (VolumeFile, error)
	// ReadVolumeFile writes the bytes of a regular file to w; Invalid for others.
	ReadVolumeFile(ctx context.Context, node string, of VolumeRef, path string, w io.Writer) error
	// WriteVolumeFile makes a file of what r has, all of it or nothing: until it has
	// read everything what was there stays. A path that is there is a Conflict without
	// force, and a folder always. With force its parents are made. A Volume that is
	// full is TooLarge.
	WriteVolumeFile(ctx context.Context, node string, of VolumeRef, path string, c VolumeFileChange, force bool, r io.Reader) (VolumeFile, error)
	// ChangeVolumeFile changes owner and mode, of a link its owner alone.
	ChangeVolumeFile(ctx context.Context, node string, of VolumeRef, path string, c VolumeFileChange) (VolumeFile, error)
	// RemoveVolumeFile removes a file, or a folder with all in it. The root is Invalid.
	RemoveVolumeFile(ctx context.Context, node string, of VolumeRef, path string) error
}

// MaxVolumeEntries is how many files ListVolumeFolder returns.
const MaxVolumeEntries = 10000

// VolumeRef names a Volume with the owner it must have.
type VolumeRef struct {
	ID     string
	Tenant TenantID
}

var volumeNamePattern = lazily(`^[a-zA-Z0-9_-]{1,128}$`)

// NewVolumeID returns a fresh Volume ID: "v" and 20 of [a-z0-9].
func NewVolumeID() string { return volumeID.fresh() }

// ValidVolumeID reports whether s has the form of a Volume ID. Volumes are named
// after it on disk, so a Node checks it first.
func ValidVolumeID(s string) bool { return volumeID.matches(s) }

// CheckVolumeName returns Invalid for what cannot be the name of a Volume.
func CheckVolumeName(name string) error {
	if !volumeNamePattern.MatchString(name) || ValidVolumeID(name) {
		return Errorf(Invalid, "the name of a volume has 1 to 128 letters, digits and the characters _ and -, and does not look like a volume ID")
	}
	return nil
}

// CheckVolumeBytes returns Invalid for what cannot be MaxBytes of a Volume.
func CheckVolumeBytes(n int64) error {
	if n < 1<<20 || n > MaxVolumeBytes {
		return Errorf(Invalid, "a volume holds 1 MiB to %d GiB", MaxVolumeBytes>>30)
	}
	return nil
}

// CheckVolumePath returns Invalid for what cannot be the path of a file in a
// Volume.
func CheckVolumePath(p string) error {
	switch {
	case !utf8.ValidString(p) || strings.ContainsRune(p, 0):
		return Errorf(Invalid, "a path in a volume is UTF-8 without NUL")
	case !path.IsAbs(p) || path.Clean(p) != p:
		return Errorf(Invalid, "a path in a volume is absolute, without . or .. or a slash at its end: %.100q", p)
	case len(p) > MaxVolumePath || strings.Count(p, "/") > MaxVolumeDepth:
		return Errorf(Invalid, "a path in a volume has at most %d bytes and %d folders", MaxVolumePath, MaxVolumeDepth)
	}
	for part := range strings.SplitSeq(p, "/") {
		if len(part) > 255 {
			return Errorf(Invalid, "a name in a volume has at most 255 bytes")
		}
	}
	return nil
}

// notMounted are the folders that a Boot needs as they are: nothing is mounted on
// one of them or below.
var notMounted = []string{"/dev", "/proc", "/sys", "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr", "/run", "/.cloud-sandbox"}

// CheckVolumeMounts returns Invalid for what a Sandbox cannot have mounted.
// Volumes may lie beside each other, not in each other.
func CheckVolumeMounts(mounts []VolumeMount) error {
	if len(mounts) > MaxVolumeMounts {
		return Errorf(Invalid, "a sandbox has at most %d volumes", MaxVolumeMounts)
	}
	for i, m := range mounts {
		if err := CheckVolumePath(m.Path); err != nil {
			return Errorf(Invalid, "the path of a mounted volume: %.100q is not absolute and clean, or too long", m.Path)
		}
		for _, dir := range append(slices.Clone(notMounted), "/") {
			if m.Path == dir || dir != "/" && strings.HasPrefix(m.Path, dir+"/") {
				return Errorf(Invalid, "a volume cannot be mounted at %s: the system of the sandbox is there", m.Path)
			}
		}
		for _, other := range mounts[:i] {
			if other.Path == m.Path || strings.HasPrefix(other.Path, m.Path+"/") || strings.HasPrefix(m.Path, other.Path+"/") {
				return Errorf(Invalid, "two volumes cannot be mounted at %s and %s: one would hide the other", other.Path, m.Path)
			}
		}
	}
	return nil
}
