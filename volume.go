package sandbox

import (
	"context"
	"io"
	"net"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// MaxVolumes bounds the Volumes of a Tenant.
	MaxVolumes = 1000
	// MaxVolumeMounts bounds the Volumes of one Sandbox.
	MaxVolumeMounts = 8
	// DefaultVolumeBytes and MaxVolumeBytes are the default and the upper bound of
	// Volume.MaxBytes.
	DefaultVolumeBytes = 1 << 30
	MaxVolumeBytes     = 1 << 40
	// MaxVolumePath bounds the path of a file in a Volume, in bytes from the Volume's
	// root. MaxVolumeDepth bounds its depth in folders.
	MaxVolumePath  = 4096
	MaxVolumeDepth = 64
)

// VolumeState is a Volume's position in its life cycle.
type VolumeState string

const (
	VolumeCreating VolumeState = "creating" // recorded; may not exist yet
	VolumeReady    VolumeState = "ready"
	VolumeDeleting VolumeState = "deleting" // deleted; its files may still exist
)

// Volume is storage of a Tenant that outlives Sandboxes. Any number of Sandboxes can
// mount it at once, and each sees the writes of all.
type Volume struct {
	ID     string // "v" and 20 of [a-z0-9]
	Tenant TenantID
	Name   string // unique among its Tenant's Volumes
	State  VolumeState
	Node   string // that stores its files: its home. Sandboxes anywhere mount it
	// LeftOn is another Node that may have files of it: its next home during a move, and its
	// former home after it. Empty: none.
	LeftOn    string
	MaxBytes  int64 // bounds the total size of its files
	CreatedAt time.Time
}

// VolumePlace is where a Volume is; see its fields of the same names.
type VolumePlace struct{ Node, LeftOn string }

// Place returns where v is.
func (v Volume) Place() VolumePlace { return VolumePlace{v.Node, v.LeftOn} }

// VolumeMount is a Volume mounted in a Sandbox.
type VolumeMount struct {
	Volume string // its ID; in a request its name or ID
	Name   string // of the Volume; never changes; not in a request
	Path   string // absolute and clean
}

// VolumeRequest asks for a Volume.
type VolumeRequest struct {
	// ID is the ID of the new Volume. It makes the request idempotent: a repeat returns
	// the Volume of the first request. Empty: a fresh ID.
	ID       string
	Name     string
	MaxBytes int64 // zero: DefaultVolumeBytes
}

// Check returns Invalid, saying what to change, when the request breaks a rule that can
// be checked from the request alone.
func (r VolumeRequest) Check() error {
	if r.ID != "" && !ValidVolumeID(r.ID) {
		return Errorf(Invalid, "the volume ID is invalid")
	}
	if err := CheckVolumeName(r.Name); err != nil || r.MaxBytes == 0 {
		return err
	}
	return CheckVolumeBytes(r.MaxBytes)
}

// Volumes is the part of Sandboxes that keeps Volumes.
type Volumes interface {
	// CreateVolume returns an empty Volume once it can be mounted. A name in use is a
	// Conflict, an exceeded Quota Exhausted. Unsupported when the Node's disk cannot
	// store Volumes.
	CreateVolume(ctx context.Context, tenant TenantID, req VolumeRequest) (Volume, error)
	// GetVolume returns a ready Volume by ID or name.
	GetVolume(ctx context.Context, tenant TenantID, idOrName string) (Volume, error)
	// ListVolumes returns a Tenant's ready Volumes, by name.
	ListVolumes(ctx context.Context, tenant TenantID) ([]Volume, error)
	// DeleteVolume deletes a Volume with all its files and returns its last record;
	// Conflict while a Sandbox that has not ended mounts it.
	DeleteVolume(ctx context.Context, tenant TenantID, idOrName string) (Volume, error)
}

// VolumeStore keeps Volumes. Only session-manager writes here.
type VolumeStore interface {
	VolumeRecords
	// InsertVolume adds a record. A known ID is a Conflict, and so is the name of another
	// Volume of the Tenant that is not being deleted. Exhausted when the Tenant has
	// MaxVolumes or would exceed its Quota; concurrent inserts cannot exceed either.
	InsertVolume(ctx context.Context, v Volume) (Volume, error)
	// MoveVolume changes the State of a Volume. Conflict when its state is not from, or
	// when to is VolumeDeleting and a Sandbox that has not ended mounts it. NotFound when
	// no such Volume exists.
	MoveVolume(ctx context.Context, id string, from, to VolumeState) error
	// RehomeVolume changes where a Volume is. Conflict when it is not ready, or not where
	// from says; NotFound when no such Volume exists.
	RehomeVolume(ctx context.Context, id string, from, to VolumePlace) error
	// VolumesLeft returns the Volumes of all Tenants that are not ready, or have LeftOn.
	VolumesLeft(ctx context.Context) ([]Volume, error)
	// VolumesOn returns the ready Volumes of all Tenants that a Node stores, by ID.
	VolumesOn(ctx context.Context, node string) ([]Volume, error)
	// VolumeUses counts the Sandboxes that have not ended and mount a Volume, and those
	// among them that are not paused.
	VolumeUses(ctx context.Context, id string) (all, active int, err error)
	// DropVolume removes the record of a Volume in VolumeDeleting. It does nothing for
	// other states and unknown IDs.
	DropVolume(ctx context.Context, id string) error
}

// VolumeRecords reads the records of Volumes.
type VolumeRecords interface {
	// VolumeByID returns the record of any Tenant in any State; callers check both.
	VolumeByID(ctx context.Context, id string) (Volume, error)
	// VolumeByName returns the Tenant's ready Volume of that name.
	VolumeByName(ctx context.Context, tenant TenantID, name string) (Volume, error)
	// Volumes returns a Tenant's ready Volumes by name, at most MaxVolumes.
	Volumes(ctx context.Context, tenant TenantID) ([]Volume, error)
}

// VolumeSpec describes a Volume to a Node.
type VolumeSpec struct {
	ID       string
	Tenant   TenantID
	MaxBytes int64
}

// VolumeBinding is a mounted Volume in a Binding.
type VolumeBinding struct {
	VolumeSpec
	Path string
	Home string // the Node that stores its files; empty: the Node that gets the Binding
}

// BootPlace names the Boot of a Sandbox by its number and its Node.
type BootPlace struct {
	SandboxID string
	Number    int64
	Node      string
}

// VolumeHome is a Volume that a Boot mounts, and where its files are.
type VolumeHome struct {
	VolumeSpec
	Node    string // that stores its files
	Address string // of that Node, see NodeRecord; empty: not known
}

// VolumeHomes serves Volumes of a Node to Boots on other Nodes. Its method is safe for
// concurrent use.
type VolumeHomes interface {
	// ServeVolumes returns a function that serves a Boot the Volumes that it mounts and
	// node stores, over a connection, until that ends. A later call for the same Sandbox
	// ends the connection of an earlier one. Conflict for a Boot number older than one
	// that is served, NotFound unless the Boot is the Sandbox's latest and mounts a Volume
	// of node. An unknown node is Unavailable.
	ServeVolumes(ctx context.Context, node string, to BootPlace) (serve func(net.Conn), err error)
}

// VolumeUse is the space that a Volume uses on its Node.
type VolumeUse struct {
	ID string
	// Bytes counts 4096 for each name, and the length of each file rounded up to 4096,
	// including holes and deleted files that are still open.
	Bytes int64
	Files int64 // files and folders, without its root
}

// VolumeFileType is the type of a file in a Volume.
type VolumeFileType string

const (
	VolumeFileRegular VolumeFileType = "file"
	VolumeFileFolder  VolumeFileType = "directory"
	VolumeFileLink    VolumeFileType = "symlink"
	VolumeFileOther   VolumeFileType = "unknown" // a socket, a pipe
)

// VolumeFile is the metadata of a file in a Volume.
type VolumeFile struct {
	Path     string // from the Volume's root, which is "/"
	Type     VolumeFileType
	Bytes    int64
	Mode     uint32 // permission bits, with setuid, setgid and sticky, as stat(2) has them
	UID, GID uint32
	Accessed time.Time
	Modified time.Time
	Changed  time.Time
	Target   string // of a symbolic link, verbatim
}

// VolumeFileChange changes a file's metadata; nil fields stay unchanged.
type VolumeFileChange struct {
	UID, GID *uint32
	Mode     *uint32
}

// NodeVolumes creates and deletes the Volumes stored on Nodes. node is a Node's name; an
// unknown or silent one is Unavailable. Methods are safe for concurrent use, also beside
// Sandboxes that have the Volume mounted.
type NodeVolumes interface {
	// CreateVolume makes an empty Volume. It is idempotent; for an existing Volume it
	// sets MaxBytes. Files stay even if they then exceed MaxBytes.
	CreateVolume(ctx context.Context, node string, v VolumeSpec) error
	// DeleteVolume removes a Volume with all its files. Its mounts return errors from
	// then on. An unknown Volume is a success.
	DeleteVolume(ctx context.Context, node, id string) error
	// ListVolumes returns the space used by each Volume of the Node.
	ListVolumes(ctx context.Context, node string) ([]VolumeUse, error)
	// ExportVolume writes a Volume to w, with the numbers of its files, so that a Sandbox
	// that resumes continues with its open files. From its beginning on the Volume is away:
	// everything about it is Unavailable until CreateVolume is called for it again. NotFound
	// for a Volume of another Tenant.
	ExportVolume(ctx context.Context, node string, of VolumeRef, w io.Writer) error
	// ImportVolume makes a Volume from the output of ExportVolume; Conflict for an existing
	// one, Invalid for anything else. On error nothing is left of it.
	ImportVolume(ctx context.Context, node string, v VolumeSpec, r io.Reader) error
}

// VolumeFiles accesses the files of the Volumes stored on Nodes. node is a Node's name;
// an unknown or silent one is Unavailable.
//
// A path is absolute from the Volume's root. Symbolic links are not followed: a path
// through a link is Invalid. A missing Volume or file is NotFound, and so is a Volume of
// another Tenant. Methods are safe for concurrent use, also beside Sandboxes that have
// the Volume mounted.
type VolumeFiles interface {
	// StatVolumeFile returns the file at a path; for a link, the link itself.
	StatVolumeFile(ctx context.Context, node string, of VolumeRef, path string) (VolumeFile, error)
	// ListVolumeFolder returns the files below a folder, depth levels deep, by path.
	// TooLarge when there are more than MaxVolumeEntries, Invalid when path is not a
	// folder.
	ListVolumeFolder(ctx context.Context, node string, of VolumeRef, path string, depth int) ([]VolumeFile, error)
	// MakeVolumeFolder makes a folder, owned by root and with mode 0755 unless c
	// overrides them. With force it also makes missing parents, and an existing folder is
	// a success. Without force an existing folder is a Conflict.
	MakeVolumeFolder(ctx context.Context, node string, of VolumeRef, path string, c VolumeFileChange, force bool) (VolumeFile, error)
	// ReadVolumeFile writes the bytes of a regular file to w; Invalid for other types.
	ReadVolumeFile(ctx context.Context, node string, of VolumeRef, path string, w io.Writer) error
	// WriteVolumeFile writes a file from r atomically: the old file stays until r is read
	// to its end. An existing file is a Conflict without force; an existing folder always
	// is. With force missing parents are made. TooLarge when the Volume is full.
	WriteVolumeFile(ctx context.Context, node string, of VolumeRef, path string, c VolumeFileChange, force bool, r io.Reader) (VolumeFile, error)
	// ChangeVolumeFile changes owner and mode; of a link only the owner.
	ChangeVolumeFile(ctx context.Context, node string, of VolumeRef, path string, c VolumeFileChange) (VolumeFile, error)
	// RemoveVolumeFile removes a file, or a folder with its contents. The root is
	// Invalid.
	RemoveVolumeFile(ctx context.Context, node string, of VolumeRef, path string) error
}

// MaxVolumeEntries bounds the files that ListVolumeFolder returns.
const MaxVolumeEntries = 10000

// VolumeRef names a Volume and its expected owner.
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

// CheckVolumeName returns Invalid for text that cannot be the name of a Volume.
func CheckVolumeName(name string) error {
	if !volumeNamePattern.MatchString(name) || ValidVolumeID(name) {
		return Errorf(Invalid, "the name of a volume has 1 to 128 letters, digits and the characters _ and -, and does not look like a volume ID")
	}
	return nil
}

// CheckVolumeBytes returns Invalid when n cannot be the MaxBytes of a Volume.
func CheckVolumeBytes(n int64) error {
	if n < 1<<20 || n > MaxVolumeBytes {
		return Errorf(Invalid, "a volume holds 1 MiB to %d GiB", MaxVolumeBytes>>30)
	}
	return nil
}

// CheckVolumePath returns Invalid when p cannot be the path of a file in a Volume.
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

// notMounted lists the folders on or below which no Volume may be mounted, because a Boot
// needs them unchanged.
var notMounted = []string{"/dev", "/proc", "/sys", "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/sbin", "/usr", "/run", "/.cloud-sandbox"}

// CheckVolumeMounts returns Invalid for mounts that a Sandbox cannot have. One Volume
// cannot be mounted inside another.
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
				return Errorf(Invalid, "a volume cannot be mounted at %s, which the system of the sandbox uses: choose another path", m.Path)
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
