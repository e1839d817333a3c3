package sandbox

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"
)

// Template is one name of one version of a Template, a root filesystem that Sandboxes
// start from.
type Template struct {
	Name      string
	Tag       string // empty when it was looked up by version
	Version   string // 64 lower-case hex digits
	Shared    bool   // owned by the operator, available to every Tenant
	Source    string // resolved source, for example "debian:bookworm"
	Packages  []string
	Env       map[string]string // of Processes
	Start     string            // shell command that runs in every Sandbox; empty: none
	Ready     string            // shell command that must succeed before it is ready; empty: none
	Defaults  TemplateDefaults
	Build     string // the requester's ID of the build that made it; may be empty
	Layer     string // the requester's ID of the steps that made it; may be empty
	SizeBytes int64  // of the image
	// StoredBytes is the size of the image on disk, even if other Templates share it.
	StoredBytes int64
	CreatedAt   time.Time
	MadeAt      time.Time // of the image; before CreatedAt if the image already existed; zero: at CreatedAt
}

// ErrBeingBuilt is the Cause of an Unavailable for a Template that has no version yet and
// is being built.
var ErrBeingBuilt = errors.New("being built for the first time")

// NoSuchTemplate reports whether err says that a Template does not exist, or has no
// version yet.
func NoSuchTemplate(err error) bool {
	return errors.Is(err, NotFound) || errors.Is(err, ErrBeingBuilt)
}

// TemplateDefaults holds the defaults for Sandboxes of a Template. Zero fields set
// nothing.
type TemplateDefaults struct {
	User        string  `json:"user,omitempty"` // of Processes
	Cwd         string  `json:"cwd,omitempty"`  // where they start
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	DiskBytes   int64   `json:"disk_bytes,omitempty"`
}

// Shape returns DefaultShape with the fields of d that are set.
func (d TemplateDefaults) Shape() Shape {
	s := DefaultShape()
	s.CPUs, s.MemoryBytes, s.DiskBytes = cmp.Or(d.CPUs, s.CPUs), cmp.Or(d.MemoryBytes, s.MemoryBytes), cmp.Or(d.DiskBytes, s.DiskBytes)
	return s
}

// Check returns Invalid for defaults that no Sandbox can have.
func (d TemplateDefaults) Check() error {
	if err := d.Shape().Check(); err != nil {
		return err
	}
	return checkPlace(d.User, d.Cwd)
}

// ArchiveSource is the source of a Template that is built from an archive.
const ArchiveSource = "tar:"

// ErrLogOffset is the error for a position that a build's log cannot have.
var ErrLogOffset = Errorf(Invalid, "from must be 0, or the next_offset of a line before")

// TemplateRequest describes the Template to build.
type TemplateRequest struct {
	Template string // NAME or NAME:TAG
	Source   string // "oci:REF", "debian:SUITE", or ArchiveSource with a separate archive
	// Dockerfile is the text of a Dockerfile, instead of Source. The archive is then its
	// build context and may be missing. BuildArgs are its arguments.
	Dockerfile string
	BuildArgs  map[string]string
	Packages   []string
	Files      []TemplateFile
	Env        map[string]string
	// Upload is a tar archive, perhaps compressed, of more files with their owners and
	// modes. They are added after Files. Upload is read to its end before the archive;
	// nil: no files.
	Upload io.Reader `json:"-"`
	Start  string
	Ready  string
	Bare   bool // leave the image unmodified
	Force  bool // build even if it exists
	// Whole says that the archive is the complete root filesystem of a Sandbox. The build
	// removes nothing from it.
	Whole bool
	// Base is the Template to which the archive is a diff. The archive begins with a file
	// that lists all present paths, each ended by a zero byte. The new and changed
	// files follow, and all files with special permissions. Empty: the archive is
	// complete.
	Base     string
	Defaults TemplateDefaults
	Build    string // see Template.Build
	Layer    string // see Template.Layer
}

// TemplateFile is a file to put into a Template.
type TemplateFile struct {
	Path    string // absolute
	Content []byte
	Mode    uint32 // permissions; zero: 0644
	User    bool   // owned by the default user, not by root
}

// RemovedTemplates is the result of a removal.
type RemovedTemplates struct {
	Names []string // NAME, NAME:TAG and NAME@VERSION
	// FreedBytes is the disk space that the removal freed; zero if other names still need
	// the images.
	FreedBytes int64
}

// BuildState is the state of a Template build. Ready, failed and cancelled are final.
type BuildState string

const (
	BuildQueued    BuildState = "queued"
	BuildRunning   BuildState = "building"
	BuildReady     BuildState = "ready"
	BuildFailed    BuildState = "failed"
	BuildCancelled BuildState = "cancelled"
)

// Final reports whether the build has ended.
func (s BuildState) Final() bool {
	return s == BuildReady || s == BuildFailed || s == BuildCancelled
}

// TemplateBuild is one build of a Template.
type TemplateBuild struct {
	ID        string
	Tenant    TenantID
	Template  string // NAME or NAME:TAG
	Source    string
	State     BuildState
	Progress  string // current step, or the last one
	CreatedAt time.Time
	StartedAt time.Time // zero: still queued
	EndedAt   time.Time // zero: not ended
	Version   string    // of the Template, once ready
	SizeBytes int64     // of its image
	Cached    bool      // nothing had to be built
	Failure   *Failure  // nil unless it failed
	Build     string    // see TemplateRequest.Build
}

// Failure is the reason why a build failed.
type Failure struct {
	Code    Code
	Message string
}

// BuildLine is one line of a build's log.
type BuildLine struct {
	At   time.Time
	Text string
	Next int64 // offset of the next line, in bytes
}

// Templates builds, lists and removes the Templates of Tenants, and lists the operator's
// public ones. It joins the ports below for the code that connects parts. Other code
// depends only on the ports whose methods it calls.
//
// In each port, a build or a private Template of another Tenant is NotFound. An image
// that would exceed a Tenant's Quota of TemplateBytes is refused with Exhausted, whose
// Cause is ErrOverQuota. That applies to a build request while the Quota is used up, and
// to a build whose finished image turns out too large; such a build leaves nothing.
// Methods are safe for concurrent use.
type Templates interface {
	TemplateBuilds
	TemplateCatalog
	TemplateQuota
}

// TemplateBuilds builds Templates. The rules of Templates apply.
type TemplateBuilds interface {
	// Build queues a build for a Tenant and returns it. archive is the content of a
	// source "tar:" or the build context of a Dockerfile, nil otherwise; it is read
	// before Build returns. It returns Invalid for a request that cannot be built, Denied
	// for a source that only the operator may use, TooLarge, and Exhausted when too many
	// builds are queued or the Quota is used up.
	Build(ctx context.Context, tenant TenantID, req TemplateRequest, archive io.Reader) (TemplateBuild, error)
	// Builds returns a Tenant's recent builds, newest first.
	Builds(ctx context.Context, tenant TenantID) ([]TemplateBuild, error)
	// BuildByID returns one of a Tenant's builds.
	BuildByID(ctx context.Context, tenant TenantID, id string) (TemplateBuild, error)
	// CancelBuild cancels a build and returns it once it has ended; Conflict when it had
	// already ended.
	CancelBuild(ctx context.Context, tenant TenantID, id string) (TemplateBuild, error)
	// BuildLog calls each with every line of a build's log, starting at offset from: zero
	// or a BuildLine.Next. Any other offset is Invalid. With follow it continues until
	// the build has ended.
	BuildLog(ctx context.Context, tenant TenantID, id string, from int64, follow bool, each func(BuildLine) error) error
}

// BuildRecord shares the state of one gateway's build with the other gateways of the
// installation.
type BuildRecord struct {
	ID     string
	Tenant TenantID
	State  BuildRecordState
	Body   []byte // of the gateways' own
	Log    []byte // of the gateways' own
	// Changes grows whenever the Log does.
	Changes int64
	// Cancel is set when another gateway asks for its end.
	Cancel bool
	// Silence is how long ago its gateway wrote it, by the clock of the Store.
	Silence time.Duration
}

// BuildRecordState is the state of a BuildRecord.
type BuildRecordState string

const (
	RecordWaiting BuildRecordState = "waiting" // any gateway may take it
	RecordTaken   BuildRecordState = "taken"   // its gateway writes it while it runs
	RecordOver    BuildRecordState = "over"
)

// BuildRecords keeps the builds of all gateways of an installation. Records that were
// last written more than 30 days ago may be deleted. A build of another Tenant is
// NotFound. Methods are safe for concurrent use.
type BuildRecords interface {
	// PutBuildRecord adds or replaces a record, without its Cancel.
	PutBuildRecord(ctx context.Context, r BuildRecord) error
	// TouchBuildRecord ends the Silence of a record, and returns its Cancel.
	TouchBuildRecord(ctx context.Context, id string) (cancel bool, err error)
	// TakeBuildRecord takes a waiting record; Conflict when it is not waiting. Of
	// concurrent calls one succeeds.
	TakeBuildRecord(ctx context.Context, tenant TenantID, id string) (BuildRecord, error)
	// BuildRecord returns a record. Its Log is nil if Changes is not above after.
	BuildRecord(ctx context.Context, tenant TenantID, id string, after int64) (BuildRecord, error)
	// ListBuildRecords returns the records of a Tenant without their Logs.
	ListBuildRecords(ctx context.Context, tenant TenantID) ([]BuildRecord, error)
	// CancelBuildRecord sets Cancel of a record that is taken; Conflict otherwise.
	CancelBuildRecord(ctx context.Context, tenant TenantID, id string) error
	// DeleteBuildRecord removes a record that is in a state; another one stays.
	DeleteBuildRecord(ctx context.Context, id string, state BuildRecordState) error
}

// TemplateFinder finds existing Templates. The rules of Templates apply.
type TemplateFinder interface {
	// Find resolves template (NAME, NAME:TAG or NAME@VERSION) for a Tenant. A Template
	// whose first build is running is Unavailable with the Cause NotFound, so that a
	// caller can fall back to another.
	Find(ctx context.Context, tenant TenantID, template string) (Template, error)
}

// TemplateMeaning is the part of a Template that a Sandbox needs to start from it.
type TemplateMeaning struct {
	Version  string
	Defaults TemplateDefaults
}

// MaxTemplateNames bounds the names of Templates that are remembered for one Tenant.
const MaxTemplateNames = 1000

// TemplateNames remembers the meaning of the names of Templates, for the time in which the
// Node that keeps the Templates is away. A name is NAME, NAME:TAG or NAME@VERSION as a
// Tenant asked for it, and means nothing to another Tenant. age is how long ago the
// question was sent: of two answers the later question's counts. Names are
// forgotten after 30 days without an answer, and the oldest ones of a Tenant that has
// more than MaxTemplateNames. Methods are safe for concurrent use.
type TemplateNames interface {
	// RememberTemplate records an answer. A crash may lose it.
	RememberTemplate(ctx context.Context, tenant TenantID, asked string, m TemplateMeaning, age time.Duration) error
	// RememberedTemplate returns the last answer; NotFound without one.
	RememberedTemplate(ctx context.Context, tenant TenantID, asked string) (TemplateMeaning, error)
	// ForgetName forgets one name for which no Template was found.
	ForgetName(ctx context.Context, tenant TenantID, asked string, age time.Duration) error
	// ForgetTemplate forgets all names of a Template. Answers to questions from before do not
	// count any more, also if they are recorded later.
	ForgetTemplate(ctx context.Context, tenant TenantID, template string) error
}

// TemplateCatalog finds, tags and removes existing Templates. The rules of Templates
// apply.
type TemplateCatalog interface {
	TemplateFinder
	// List returns the Templates that a Tenant may start from, by name and tag.
	List(ctx context.Context, tenant TenantID) ([]Template, error)
	// Versions resolves template as Find does, and also returns every version of the same
	// Template, newest first.
	Versions(ctx context.Context, tenant TenantID, template string) (Template, []Template, error)
	// Tag makes tags point to the version of template (NAME, NAME:TAG or NAME@VERSION)
	// and returns that version. The Template must be the Tenant's own: NotFound
	// otherwise. Exhausted when there are too many tags.
	Tag(ctx context.Context, tenant TenantID, template string, tags []string) (Template, error)
	// Reuse tags an existing image as as.Name and as.Tag instead of rebuilding it. The
	// image of template (NAME, NAME:TAG or NAME@VERSION) becomes a version of as.Name,
	// with the Defaults, Build and Layer of as. It returns Conflict when template no
	// longer resolves to as.Version, Denied for a name reserved by the server, and
	// Exhausted when there are too many tags.
	Reuse(ctx context.Context, tenant TenantID, template string, as Template) (Template, error)
	// Remove removes a Template of the Tenant, or one tag or version. Denied when it is
	// the operator's, Conflict when Sandboxes run from a version that would be removed.
	Remove(ctx context.Context, tenant TenantID, template string) (RemovedTemplates, error)
}

// TemplateQuota reports and checks the use of Quota.TemplateBytes. The rules of Templates
// apply.
type TemplateQuota interface {
	// StoredBytes returns a Tenant's use of Quota.TemplateBytes.
	StoredBytes(ctx context.Context, tenant TenantID) (int64, error)
	// Admit returns Exhausted when Quota.TemplateBytes is used up and the image of a
	// version would add to the use. An empty version stands for an image that is not
	// built yet.
	Admit(ctx context.Context, tenant TenantID, version string) error
}

// TemplateImages keeps the images of Template versions as files, and carries them between
// the Node that keeps the Templates of an installation and the others. A version is 64
// lower-case hex digits, the SHA-256 of its image; any other form is Invalid. Methods are
// safe for concurrent use.
type TemplateImages interface {
	// OpenImage reads the image of a version and returns its size in bytes. The caller
	// closes the image. A read fails when fewer bytes come. NotFound when the version has
	// no image here.
	OpenImage(ctx context.Context, version string) (image io.ReadCloser, bytes int64, err error)
	// StoreImage stores image as the image of a version, and reads it to its end. bytes
	// is its size. Invalid when image has another size or hash, Exhausted when the disk
	// has no room. On these errors nothing is left of the image. StoreImage does
	// nothing, and reads nothing, if the version has an image already. The image gets
	// no name, so no quota counts it.
	StoreImage(ctx context.Context, version string, bytes int64, image io.Reader) error
	// MissingImages returns the versions that have no image here, in the order of
	// versions.
	MissingImages(ctx context.Context, versions []string) ([]string, error)
}

// TemplateUploads keeps the archives that clients upload for a COPY of a later build, by
// Tenant and hash: 64 lower-case hex digits, which the client computes from the files;
// any other form is Invalid. The content is not checked against the hash: a Tenant can
// only deceive itself. The uploads of another Tenant do not exist. An upload expires a
// week after its last use, and may give way to a newer one of its Tenant after an hour
// without use. Methods are safe for concurrent use.
type TemplateUploads interface {
	// HasUpload reports whether an upload exists, and counts as its use.
	HasUpload(ctx context.Context, tenant TenantID, hash string) (bool, error)
	// OpenUpload reads an upload and returns its size in bytes, and counts as its use. The
	// caller closes the archive. A read fails when fewer bytes come. NotFound when it
	// does not exist.
	OpenUpload(ctx context.Context, tenant TenantID, hash string) (archive io.ReadCloser, bytes int64, err error)
	// StoreUpload stores archive, read to its end, instead of an upload with the same hash.
	// It returns TooLarge for an archive above the bound, and Exhausted when the Tenant or
	// the disk has no room. On an error, also one of archive, nothing is left of it.
	StoreUpload(ctx context.Context, tenant TenantID, hash string, archive io.Reader) error
}

var uploadHash = lazily(`^[0-9a-f]{64}$`)

// CheckUploadHash returns Invalid for a hash that no upload can have.
func CheckUploadHash(hash string) error {
	if !uploadHash.MatchString(hash) {
		return Errorf(Invalid, "the name of the upload must be 64 lower-case hex digits")
	}
	return nil
}

// NewBuildID returns a fresh build ID: "t" and 20 of [a-z0-9].
func NewBuildID() string { return buildID.fresh() }

// ValidBuildID reports whether s has the form of a build ID.
func ValidBuildID(s string) bool { return buildID.matches(s) }
