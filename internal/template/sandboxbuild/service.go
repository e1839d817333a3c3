package sandboxbuild

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/dockerfile"
)

const (
	maxGoing     = 4  // queued and running builds of one Tenant
	maxAll       = 64 // of all Tenants
	maxKept      = 20 // builds of one Tenant, with finished ones and those never started
	maxKeptAll   = 1000
	maxSteps     = 1000
	maxRecipe    = 1 << 20 // bytes of all steps
	maxPackages  = 500
	retryAfter   = 30 * time.Second
	defaultLimit = time.Hour
	defaultRuns  = 2
)

// State is the state of a build. Ready and failed are final.
type State string

// The states of a build.
const (
	Waiting  State = "waiting" // announced, without a Recipe
	Building State = "building"
	Ready    State = "ready"
	Failed   State = "error"
)

// Draft names a future Template.
type Draft struct {
	Name     string
	Tags     []string // at least one
	Defaults sandbox.TemplateDefaults
}

// Recipe describes how to build a Template.
type Recipe struct {
	// Image is the base image, pulled from its registry; empty: From is the base.
	Image string
	From  string // base Template, or stand-in for Image; empty: none
	Asked string // the base as the client named it
	Steps []Step
	Start string // command that runs in every Sandbox; empty: From's
	Ready string // command that succeeds once Start has come up; empty: see Start
	Force bool   // do not use cached results

	// Own marks a request of this server's own API: Start and Ready are kept as they are,
	// the first step runs as root in "/", and the Template has the user and folder that
	// a step sets explicitly, not the user and folder of the last step.
	Own   bool
	Files []sandbox.TemplateFile // added after the steps
	// Upload is an archive of more files; nil: none.
	Upload *upload
	// Dockerfile replaces Steps, and Context holds the files that it copies; nil: none.
	Dockerfile *dockerfile.File
	Context    *buildContext
}

// Build is the record of a build.
type Build struct {
	ID     string // a UUID
	Tenant sandbox.TenantID
	Draft
	State     State
	CreatedAt time.Time
	EndedAt   time.Time // zero: still running or waiting
	Failure   *Failure  // nil unless it failed

	Source    string // base as the client named it
	Version   string // set when ready
	SizeBytes int64  // of its image
	Cached    bool   // nothing had to be built
}

// Places of a Failure outside the steps.
const (
	AtBase = "base"
	AtEnd  = "finalize"
)

// Failure describes why a build failed.
type Failure struct {
	Message string
	Step    string // number from 1, or one of the places above
	Code    sandbox.Code
	// Cancelled reports that the client cancelled the build.
	Cancelled bool
}

// Config of a Service. Sandboxes, Guests, Templates, TemplateBuilds, Uploads and Log are
// required.
type Config struct {
	Sandboxes      sandboxes
	Guests         *execution.Guests
	Templates      templates
	TemplateBuilds sandbox.TemplateBuilds
	Log            *slog.Logger
	Uploads        sandbox.TemplateUploads
	Scratch        string        // folder for files sent with a build; empty: the system's temporary folder
	Kept           string        // folder for build records across restarts; empty: builds are lost
	Limit          time.Duration // for one build; zero: 1 h
	AtOnce         int           // concurrent builds; zero: 2
	// Inexact allows a Template of another distribution or version as the stand-in for an
	// image whose registry does not answer.
	Inexact bool
	// StandIns maps an image, as NAME, NAME:TAG or NAME:*, to the Template that replaces
	// it if no registry answers.
	StandIns map[string]string
	// Records shares builds with the other gateways; nil: this is the only gateway.
	Records sandbox.BuildRecords
}

// sandboxes is the part of the session manager for builds: they run in Sandboxes and save
// layers as Snapshots.
type sandboxes interface {
	Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error)
	End(ctx context.Context, tenant sandbox.TenantID, idOrName string, cause sandbox.Cause) (sandbox.Sandbox, error)
	TakeSnapshot(ctx context.Context, tenant sandbox.TenantID, idOrName string, req sandbox.SnapshotRequest) (sandbox.Snapshot, error)
	ListSnapshots(ctx context.Context, tenant sandbox.TenantID, query sandbox.SnapshotQuery) (sandbox.SnapshotPage, error)
	DeleteSnapshot(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.Snapshot, error)
}

// templates is the part of the Templates that builds start from and add to.
type templates interface {
	sandbox.TemplateCatalog
	Admit(ctx context.Context, tenant sandbox.TenantID, version string) error // of sandbox.TemplateQuota
}

// Service keeps and runs builds. A build that runs when the process ends has failed;
// finished Templates stay. Its methods are safe for concurrent use, and treat another
// Tenant's build as missing.
type Service struct {
	cfg   Config
	slots chan struct{} // one for each running build
	ctx   context.Context
	stop  context.CancelCauseFunc
	going sync.WaitGroup

	mu     sync.Mutex
	builds map[string]*build
	taking map[sandbox.TenantID]int // files sent with builds, received or in use
	closed bool
}

// New returns a Service. Close ends its builds.
func New(c Config) *Service {
	c.Limit, c.AtOnce = cmp.Or(c.Limit, defaultLimit), cmp.Or(c.AtOnce, defaultRuns)
	s := &Service{cfg: c, slots: make(chan struct{}, c.AtOnce), builds: map[string]*build{}, taking: map[sandbox.TenantID]int{}}
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	if err := s.load(); err != nil {
		c.Log.Error("opening the folder of builds failed; builds are lost at the next restart", telemetry.KeyError, err.Error())
		s.cfg.Kept = ""
	}
	return s
}

var (
	errClosing   = sandbox.Errorf(sandbox.Unavailable, "the server is stopping: build it again")
	errTooSlow   = sandbox.Errorf(sandbox.Timeout, "the build took too long")
	errCancelled = sandbox.Errorf(sandbox.Conflict, "the build was cancelled")
)

// Close cancels every build and waits for their end.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop(errClosing)
	s.going.Wait()
}

// Announce creates a waiting build. It returns Invalid for an invalid name, Denied for a
// name reserved for the server, and Exhausted when there are too many builds or the
// Tenant's Quota of templates is used up.
func (s *Service) Announce(ctx context.Context, tenant sandbox.TenantID, d Draft) (Build, error) {
	if err := s.checkDraft(ctx, tenant, d); err != nil {
		return Build{}, err
	}
	b := newBuild(Build{ID: newID(), Tenant: tenant, Draft: d, State: Waiting, CreatedAt: time.Now().UTC()})
	displaced, err := s.add(b)
	if err != nil {
		return Build{}, err
	}
	if displaced.ID != "" {
		s.unshare(displaced)
	}
	s.share(viewOf(b))
	return b.snapshot(), nil
}

// add adds a build. It returns the old build that makeRoom removed for it, if any.
func (s *Service) add(b *build) (displaced Build, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Build{}, errClosing
	}
	if displaced, err = s.makeRoom(b.record.Tenant); err != nil {
		return Build{}, err
	}
	s.builds[b.record.ID] = b
	s.keep(b)
	return displaced, nil
}

// checkDraft checks a Draft. It rejects a Draft before any upload if the Tenant's Quota
// of templates is used up.
func (s *Service) checkDraft(ctx context.Context, tenant sandbox.TenantID, d Draft) error {
	if d.Name == "base" {
		return sandbox.Errorf(sandbox.Denied, "the template base is the server's own: choose another name")
	}
	if err := d.Defaults.Check(); err != nil {
		return err
	}
	for _, tag := range d.Tags {
		_, err := s.cfg.Templates.Find(ctx, tenant, d.Name+":"+tag)
		if sandbox.CodeOf(err) == sandbox.Invalid {
			return err
		}
	}
	return s.cfg.Templates.Admit(ctx, tenant, "")
}

// newID returns a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	text := hex.EncodeToString(b[:])
	return strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")
}

// makeRoom removes the oldest build that has ended or never started when the Tenant, or
// the server, has too many, and returns it. Service.mu is held.
func (s *Service) makeRoom(tenant sandbox.TenantID) (removed Build, err error) {
	var own, all []*build
	for _, b := range s.builds {
		if all = append(all, b); b.record.Tenant == tenant {
			own = append(own, b)
		}
	}
	from := own
	switch {
	case len(own) >= maxKept:
	case len(all) >= maxKeptAll:
		from = all
	default:
		return Build{}, nil
	}
	slices.SortFunc(from, func(a, b *build) int { return a.record.CreatedAt.Compare(b.record.CreatedAt) })
	for _, b := range from {
		if b.snapshot().State != Building {
			delete(s.builds, b.record.ID)
			s.forget(b.record.ID)
			return b.snapshot(), nil
		}
	}
	return Build{}, tooMany()
}

func tooMany() error {
	e := sandbox.Errorf(sandbox.Exhausted, "too many templates are being built: wait for one to end")
	e.RetryAfter = retryAfter
	return e
}

// Start starts a waiting build, without waiting for its end. It returns Invalid for an
// invalid Recipe or a build that is not waiting, NotFound, and Exhausted when too many
// builds run.
func (s *Service) Start(ctx context.Context, tenant sandbox.TenantID, name, id string, r Recipe) error {
	if err := r.check(); err != nil {
		return err
	}
	if err := s.take(ctx, tenant, name, id); err != nil {
		return err
	}
	waits, err := s.begin(tenant, name, id, r)
	if waits != nil { // any gateway may take it again
		s.share(viewOf(waits))
	}
	return err
}

// begin starts a waiting build of this process. It returns the build if it still waits,
// because too many others run.
func (s *Service) begin(tenant sandbox.TenantID, name, id string, r Recipe) (waits *build, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosing
	}
	b, err := s.lookUp(tenant, name, id)
	switch {
	case err != nil:
		return nil, err
	case b.snapshot().State != Waiting:
		return nil, errNotWaiting
	case !s.mayStart(tenant):
		return b, tooMany()
	}
	ctx, stop := context.WithCancelCause(s.ctx)
	b.begin(stop, r.Asked)
	s.keep(b)
	s.going.Go(func() {
		defer stop(nil)
		s.run(ctx, b, r)
	})
	return nil, nil
}

// mayStart reports whether one more build may start. Service.mu is held.
func (s *Service) mayStart(tenant sandbox.TenantID) bool {
	own, all := 0, 0
	for _, b := range s.builds {
		if b.snapshot().State != Building {
			continue
		}
		if all++; b.record.Tenant == tenant {
			own++
		}
	}
	return own < maxGoing && all < maxAll
}

func errNoBuild(id string) error {
	return sandbox.Errorf(sandbox.NotFound, "no build %.40q", id)
}

// lookUp finds a build of this process. Service.mu is held.
func (s *Service) lookUp(tenant sandbox.TenantID, name, id string) (*build, error) {
	b := s.builds[id]
	if b == nil || b.record.Tenant != tenant || b.record.Name != name {
		return nil, errNoBuild(id)
	}
	return b, nil
}

// Known reports whether a Template has a build, of any gateway.
func (s *Service) Known(ctx context.Context, tenant sandbox.TenantID, name string) (bool, error) {
	if s.knownHere(tenant, name) {
		return true, nil
	}
	others, err := s.others(ctx, tenant)
	return slices.ContainsFunc(others, func(v view) bool { return v.record.Name == name }), err
}

func (s *Service) knownHere(tenant sandbox.TenantID, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.builds {
		if b.record.Tenant == tenant && b.record.Name == name {
			return true
		}
	}
	return false
}

// Build returns a build of a Template, of any gateway, and its log so far.
func (s *Service) Build(ctx context.Context, tenant sandbox.TenantID, name, id string) (Build, []Line, error) {
	v, _, err := s.view(ctx, tenant, id)
	if err == nil && v.record.Name != name {
		err = errNoBuild(id)
	}
	if err != nil {
		return Build{}, nil, err
	}
	return v.record, v.lines, nil
}

// Ended returns the events of all Tenants' builds that ended at since or later.
func (s *Service) Ended(since time.Time) (events []sandbox.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.builds {
		r := b.snapshot()
		if r.State != Ready && r.State != Failed || r.EndedAt.Before(since) {
			continue
		}
		told := sandbox.TemplateBuild{ID: r.ID, Tenant: r.Tenant, Template: r.Name + ":" + r.Tags[0], EndedAt: r.EndedAt, State: sandbox.BuildReady}
		if r.State == Failed {
			told.State = sandbox.BuildFailed
		}
		if e, is := told.Event(); is {
			events = append(events, e)
		}
	}
	return events
}

// Cancel cancels the builds of a Template, of all gateways, and waits for their end. It
// returns their number.
func (s *Service) Cancel(ctx context.Context, tenant sandbox.TenantID, name string) (int, error) {
	ended, err := s.cancelHere(ctx, tenant, name)
	if err != nil {
		return 0, err
	}
	others, err := s.others(ctx, tenant)
	if err != nil {
		return 0, err
	}
	for _, v := range others {
		if v.record.Name != name || v.record.State != Building {
			continue
		}
		switch _, err := s.cancelElsewhere(ctx, tenant, v.record.ID); {
		case err == nil:
			ended++
		case !errors.Is(err, sandbox.Conflict) && !errors.Is(err, sandbox.NotFound): // it ended meanwhile
			return 0, err
		}
	}
	return ended, nil
}

func (s *Service) cancelHere(ctx context.Context, tenant sandbox.TenantID, name string) (int, error) {
	var ended []*build
	s.mu.Lock()
	for _, b := range s.builds {
		if b.record.Tenant == tenant && b.record.Name == name && b.cancel() {
			ended = append(ended, b)
		}
	}
	s.mu.Unlock()
	for _, b := range ended {
		select {
		case <-b.done:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return len(ended), nil
}
