package steps

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
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
	maxGoing     = 4  // builds of one Tenant that wait for their turn or run
	maxAll       = 64 // of all Tenants
	maxKept      = 20 // builds of one Tenant, with those that are over or never began
	maxKeptAll   = 1000
	maxSteps     = 1000
	maxRecipe    = 1 << 20 // bytes of all steps
	maxPackages  = 500
	retryAfter   = 30 * time.Second
	defaultLimit = time.Hour
	defaultRuns  = 2
)

// State is where a build is. Ready and failed are final.
type State string

// The states of a build.
const (
	Waiting  State = "waiting" // nobody has said yet what is to be done
	Building State = "building"
	Ready    State = "ready"
	Failed   State = "error"
)

// Draft names a Template to be.
type Draft struct {
	Name     string
	Tags     []string // at least one
	Defaults sandbox.TemplateDefaults
}

// Recipe says how it is built.
type Recipe struct {
	// Image is what it begins with, pulled from its registry; empty: From is.
	Image string
	From  string // the Template that it begins with, or that stands in for Image; empty: none does
	Asked string // what that is called by who asks
	Steps []Step
	Start string // command that runs in every Sandbox; empty: that of From
	Ready string // command that succeeds when all is up; empty: see Start
	Force bool   // nothing that was built before is used

	// Own says that it was asked for in words of our own: Start and Ready are kept as
	// they are, the first step is root's in "/", and the Template has the user and
	// the folder that a step says, not those of the last one.
	Own   bool
	Files []sandbox.TemplateFile // put in after the steps
	// Upload is an archive of more files; nil: there are none.
	Upload *upload
	// Dockerfile is in place of Steps, and Context the files that it copies; nil:
	// there are none.
	Dockerfile *dockerfile.File
	Context    *buildContext
}

// Build is one build as it is known.
type Build struct {
	ID     string // a UUID
	Tenant sandbox.TenantID
	Draft
	State     State
	CreatedAt time.Time
	EndedAt   time.Time // zero: it is not over
	Failure   *Failure  // why it failed; nil otherwise

	Source    string // what it was begun with, as who asked says
	Version   string // of a build that is ready
	SizeBytes int64  // of its image
	Cached    bool   // nothing was to be made
}

// Places of a Failure that are no step.
const (
	AtBase = "base"
	AtEnd  = "finalize"
)

// Failure is why a build failed.
type Failure struct {
	Message string
	Step    string // its number, from 1, or where else it was
	Code    sandbox.Code
	// Cancelled says that whoever asked for the build gave it up.
	Cancelled bool
}

// Config of a Service. Sandboxes, Guests, Templates, TemplateBuilds and Log are required.
type Config struct {
	Sandboxes      sandboxes
	Guests         *execution.Guests
	Templates      templates
	TemplateBuilds sandbox.TemplateBuilds
	Log            *slog.Logger
	Uploads        string        // folder for what clients send; empty: they may not
	Kept           string        // folder that builds are known from after a restart; empty: they are forgotten
	Limit          time.Duration // for one build; zero: 1 h
	AtOnce         int           // builds; zero: 2
	// Inexact lets a Template of another distribution or version stand in for an
	// image whose registry does not answer.
	Inexact bool
	// StandIns names the Template that stands for an image where no registry answers,
	// by NAME, NAME:TAG or NAME:*.
	StandIns map[string]string
}

// sandboxes is the part of the session manager that builds call: they run in Sandboxes
// and keep layers as Snapshots.
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

// Service keeps and runs builds. One that runs when the process ends has failed;
// Templates that were made stay. Its methods are safe for concurrent use, and
// answer about another Tenant's build as about none.
type Service struct {
	cfg   Config
	slots chan struct{} // one for each build that runs
	ctx   context.Context
	stop  context.CancelCauseFunc
	going sync.WaitGroup

	mu     sync.Mutex
	builds map[string]*build
	taking map[sandbox.TenantID]int // contexts that are sent or used
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
	errClosing   = sandbox.Errorf(sandbox.Unavailable, "the server stops: build it again")
	errTooSlow   = sandbox.Errorf(sandbox.Timeout, "the build took too long")
	errCancelled = sandbox.Errorf(sandbox.Conflict, "the build was cancelled")
)

// Close ends every build and waits for that.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop(errClosing)
	s.going.Wait()
}

// Announce makes a build that waits for what is to be done. It returns Invalid
// for a name that none can have, Denied for one that is the server's, and
// Exhausted when there are too many or the Tenant's Quota of templates is used up.
func (s *Service) Announce(ctx context.Context, tenant sandbox.TenantID, d Draft) (Build, error) {
	if err := s.checkDraft(ctx, tenant, d); err != nil {
		return Build{}, err
	}
	b := newBuild(Build{ID: newID(), Tenant: tenant, Draft: d, State: Waiting, CreatedAt: time.Now().UTC()})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Build{}, errClosing
	}
	if err := s.makeRoom(tenant); err != nil {
		return Build{}, err
	}
	s.builds[b.record.ID] = b
	s.keep(b)
	return b.record, nil
}

// checkDraft also refuses what there is no room for, before anything is sent.
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

// makeRoom forgets the oldest build that is over, or never began, when a Tenant
// has too many or all have. Service.mu is held.
func (s *Service) makeRoom(tenant sandbox.TenantID) error {
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
		return nil
	}
	slices.SortFunc(from, func(a, b *build) int { return a.record.CreatedAt.Compare(b.record.CreatedAt) })
	for _, b := range from {
		if b.snapshot().State != Building {
			delete(s.builds, b.record.ID)
			s.forget(b.record.ID)
			return nil
		}
	}
	return tooMany()
}

func tooMany() error {
	e := sandbox.Errorf(sandbox.Exhausted, "too many templates are being built: wait for one to end")
	e.RetryAfter = retryAfter
	return e
}

// Start begins a build that waits, and does not wait for its end. It returns
// Invalid for a Recipe that cannot be carried out or a build that does not wait,
// NotFound, and Exhausted when too many run.
func (s *Service) Start(tenant sandbox.TenantID, name, id string, r Recipe) error {
	if err := r.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosing
	}
	b, err := s.lookUp(tenant, name, id)
	switch {
	case err != nil:
		return err
	case b.snapshot().State != Waiting:
		return sandbox.Errorf(sandbox.Invalid, "the build is not waiting: ask for another one")
	case !s.mayStart(tenant):
		return tooMany()
	}
	ctx, stop := context.WithCancelCause(s.ctx)
	b.begin(stop, r.Asked)
	s.keep(b)
	s.going.Go(func() {
		defer stop(nil)
		s.run(ctx, b, r)
	})
	return nil
}

// mayStart reports whether one more build may run. Service.mu is held.
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
	return sandbox.Errorf(sandbox.NotFound, "there is no build %.40q", id)
}

func (s *Service) find(tenant sandbox.TenantID, name, id string) (*build, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookUp(tenant, name, id)
}

// lookUp is find while Service.mu is held.
func (s *Service) lookUp(tenant sandbox.TenantID, name, id string) (*build, error) {
	b := s.builds[id]
	if b == nil || b.record.Tenant != tenant || b.record.Name != name {
		return nil, errNoBuild(id)
	}
	return b, nil
}

// Known reports whether there is a build of a Template.
func (s *Service) Known(tenant sandbox.TenantID, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.builds {
		if b.record.Tenant == tenant && b.record.Name == name {
			return true
		}
	}
	return false
}

// Build returns a build of a Template and its log so far.
func (s *Service) Build(tenant sandbox.TenantID, name, id string) (Build, []Line, error) {
	b, err := s.find(tenant, name, id)
	if err != nil {
		return Build{}, nil, err
	}
	record, lines := b.view()
	return record, lines, nil
}

// Ended returns what there is to tell of builds, of every Tenant, that ended at a time
// or later.
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

// Cancel ends the builds of a Template and waits until they have ended. It
// returns how many there were.
func (s *Service) Cancel(ctx context.Context, tenant sandbox.TenantID, name string) (int, error) {
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
