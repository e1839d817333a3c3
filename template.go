package sandbox

import (
	"cmp"
	"context"
	"io"
	"time"
)

// Template is one name of one version of a Template: a root filesystem that
// Sandboxes start from.
type Template struct {
	Name      string
	Tag       string // empty when it was asked for by its version
	Version   string // 64 lower-case hex digits
	Shared    bool   // it is the operator's, for every Tenant
	Source    string // what it was really made of, for example "debian:bookworm"
	Packages  []string
	Env       map[string]string // of Processes
	Start     string            // shell command that runs in every Sandbox; empty: none
	Ready     string            // shell command that is waited for; empty: none
	Defaults  TemplateDefaults
	Build     string // what made it, as whoever asked for it calls that; may be empty
	Layer     string // names the steps that made it, in the words of who asked; may be empty
	SizeBytes int64  // of the image
	// StoredBytes is how much the image takes on the disk, whoever else names it.
	StoredBytes int64
	CreatedAt   time.Time
	MadeAt      time.Time // of the image, before CreatedAt where the image was there; zero: at CreatedAt
}

// TemplateDefaults is what a Sandbox of a Template has unless it is asked for
// otherwise. Zero fields say nothing.
type TemplateDefaults struct {
	User        string  `json:"user,omitempty"` // of Processes
	Cwd         string  `json:"cwd,omitempty"`  // where they start
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	DiskBytes   int64   `json:"disk_bytes,omitempty"`
}

// Shape is DefaultShape with what d says.
func (d TemplateDefaults) Shape() Shape {
	s := DefaultShape()
	s.CPUs, s.MemoryBytes, s.DiskBytes = cmp.Or(d.CPUs, s.CPUs), cmp.Or(d.MemoryBytes, s.MemoryBytes), cmp.Or(d.DiskBytes, s.DiskBytes)
	return s
}

// Check returns Invalid for what no Sandbox can have.
func (d TemplateDefaults) Check() error {
	if err := d.Shape().Check(); err != nil {
		return err
	}
	return checkPlace(d.User, d.Cwd)
}

// TemplateRequest says what a Template is to be made of.
type TemplateRequest struct {
	Template string // NAME or NAME:TAG
	Source   string // "oci:REF", "debian:SUITE", or "tar:" with an archive beside
	// Dockerfile is the text of one, in place of Source; the archive is its build
	// context then, which may be missing. BuildArgs are its arguments.
	Dockerfile string
	BuildArgs  map[string]string
	Packages   []string
	Files      []TemplateFile
	Env        map[string]string
	// Upload is an archive of more files, put in after Files, with their owners and
	// modes: tar, perhaps compressed. It is read to its end before the archive is; nil:
	// there are none.
	Upload io.Reader `json:"-"`
	Start  string
	Ready  string
	Bare   bool // the image stays as it is
	Force  bool // build it although it is there
	// Whole says that the archive is all that is in a Sandbox: nothing of it is
	// tidied away.
	Whole bool
	// Base is a Template that the archive changes: it begins with a file that lists
	// what there is now, each path ended by a zero byte, and goes on with what is
	// new or different, or has special permissions. Empty: it holds everything.
	Base     string
	Defaults TemplateDefaults
	Build    string // see Template.Build
	Layer    string // see Template.Layer
}

// TemplateFile is put into a Template.
type TemplateFile struct {
	Path    string // absolute
	Content []byte
	Mode    uint32 // permissions; zero: 0644
	User    bool   // it belongs to the default user, not to root
}

// RemovedTemplates is what a removal took away.
type RemovedTemplates struct {
	Names []string // NAME, NAME:TAG and NAME@VERSION
	// FreedBytes is how much disk that gave back; zero where other names still need
	// the images.
	FreedBytes int64
}

// BuildState is where a build of a Template is. Ready, failed and cancelled are
// final.
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
	Progress  string // what it does now, or did last
	CreatedAt time.Time
	StartedAt time.Time // zero: it waits
	EndedAt   time.Time // zero: it goes on
	Version   string    // of a build that is ready
	SizeBytes int64     // of its image
	Cached    bool      // nothing was to be done
	Failure   *Failure  // why it failed; nil otherwise
	Build     string    // see TemplateRequest.Build
}

// Failure is why a build failed.
type Failure struct {
	Code    Code
	Message string
}

// BuildLine is one line of a build's log.
type BuildLine struct {
	At   time.Time
	Text string
	Next int64 // where the line after it begins, in bytes
}

// Templates builds, lists and removes the Templates of Tenants, and lists those of the
// operator that all may use. It joins the ports below for the code that connects parts;
// everything else takes the ports whose methods it calls.
//
// In each port, a build or a private Template of another Tenant is NotFound. Images that
// would take a Tenant beyond its Quota of TemplateBytes are refused with Exhausted, whose
// Cause is ErrOverQuota: a build that is asked for while the Quota is used up, and one
// whose image turns out too large when it is made, which leaves nothing. Methods are safe
// for concurrent use.
type Templates interface {
	TemplateBuilds
	TemplateCatalog
	TemplateQuota
}

// TemplateBuilds builds Templates. The rules of Templates apply.
type TemplateBuilds interface {
	// Build queues a build for a Tenant and returns it. archive, which is read
	// before Build returns, is what a source "tar:" is made of or what a Dockerfile
	// copies from, nil otherwise. It
	// returns Invalid for a request that cannot be built, Denied for a source that
	// only the operator may use, TooLarge, and Exhausted when too many wait or the
	// Quota is used up.
	Build(ctx context.Context, tenant TenantID, req TemplateRequest, archive io.Reader) (TemplateBuild, error)
	// Builds returns a Tenant's builds of late, the newest first.
	Builds(ctx context.Context, tenant TenantID) ([]TemplateBuild, error)
	// BuildByID returns one of them.
	BuildByID(ctx context.Context, tenant TenantID, id string) (TemplateBuild, error)
	// CancelBuild ends a build and returns it once it has ended; Conflict when it
	// has ended before.
	CancelBuild(ctx context.Context, tenant TenantID, id string) (TemplateBuild, error)
	// BuildLog calls each with every line of a build's log from offset from on,
	// which is zero or a Next of before. With follow it goes on until the build has
	// ended. Another offset is Invalid.
	BuildLog(ctx context.Context, tenant TenantID, id string, from int64, follow bool, each func(BuildLine) error) error
}

// TemplateCatalog finds the Templates that there are, and names and removes them. The
// rules of Templates apply.
type TemplateCatalog interface {
	// List returns what a Tenant may start from, by name and tag.
	List(ctx context.Context, tenant TenantID) ([]Template, error)
	// Find returns what template, NAME, NAME:TAG or NAME@VERSION, means to a Tenant.
	// One that is being built for the first time is Unavailable, with NotFound as its
	// Cause: who has another in its place goes on with that.
	Find(ctx context.Context, tenant TenantID, template string) (Template, error)
	// Versions returns what template, NAME, NAME:TAG or NAME@VERSION, means to a
	// Tenant, and every version of the same Template, newest first.
	Versions(ctx context.Context, tenant TenantID, template string) (Template, []Template, error)
	// Tag lets tags mean what template, NAME, NAME:TAG or NAME@VERSION, means, and
	// returns that. It must be the Tenant's own: NotFound otherwise. Exhausted when
	// there are too many.
	Tag(ctx context.Context, tenant TenantID, template string, tags []string) (Template, error)
	// Reuse lets as.Name and as.Tag mean the image of what template, NAME, NAME:TAG or
	// NAME@VERSION, means to a Tenant, and makes it a version of that Template, with
	// what as says of Defaults, Build and Layer: nothing is built that is there. It
	// returns Conflict when template does not mean as.Version any more, Denied for a
	// name that is the server's, and Exhausted when there are too many.
	Reuse(ctx context.Context, tenant TenantID, template string, as Template) (Template, error)
	// Remove removes a Template of the Tenant, a tag or a version. Denied when it is the
	// operator's, Conflict when Sandboxes run from what would go.
	Remove(ctx context.Context, tenant TenantID, template string) (RemovedTemplates, error)
}

// TemplateQuota tells how much of Quota.TemplateBytes is used. The rules of Templates
// apply.
type TemplateQuota interface {
	// StoredBytes returns how much of Quota.TemplateBytes a Tenant uses.
	StoredBytes(ctx context.Context, tenant TenantID) (int64, error)
	// Admit returns Exhausted when the Quota of TemplateBytes is used up and the image
	// of a version would add to it. An empty version is one that is still to be made.
	Admit(ctx context.Context, tenant TenantID, version string) error
}

// NewBuildID returns a fresh ID of a build: "t" and 20 of [a-z0-9].
func NewBuildID() string { return buildID.fresh() }

// ValidBuildID reports whether s has the form of a build's ID.
func ValidBuildID(s string) bool { return buildID.matches(s) }
