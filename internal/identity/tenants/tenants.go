// Package tenants manages the records of Tenants, and rejects requests of suspended ones.
package tenants

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/inflight"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// maxKnown bounds the cache of Tenants with a record.
	maxKnown = 100_000
)

// Config of a Service; only Store is required.
type Config struct {
	Store sandbox.TenantStore
	// Templates lists a Tenant's own Templates; nil: none have any.
	Templates interface {
		List(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Template, error)
	}
	// Audit logs suspensions in the Tenant's log; nil: the caller does.
	Audit sandbox.AuditStore
	// Event receives suspensions; nil: none.
	Event func(sandbox.Event)
	Log   *slog.Logger // may be nil
}

// Service manages Tenants. Its methods are safe for concurrent use.
type Service struct {
	cfg Config

	flushing sync.Mutex // serializes flush

	mu        sync.Mutex
	loaded    bool
	suspended sandbox.Suspensions
	epoch     uint64 // increments with each change here
	known     map[sandbox.TenantID]bool
	unnoted   map[sandbox.TenantID]sandbox.Tenant // seen, not recorded yet
	inFlight  inflight.Requests[sandbox.TenantID]
}

// New returns a Service. Run keeps it in step with other processes.
func New(c Config) *Service {
	if c.Event == nil {
		c.Event = func(sandbox.Event) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{
		cfg: c, known: map[sandbox.TenantID]bool{}, unnoted: map[sandbox.TenantID]sandbox.Tenant{},
	}
}

// Enter admits a request of a Tenant, or returns ErrSuspended. If the Tenant is suspended
// before leave is called, the returned context is cancelled with that cause. It reads the
// Store only the first time.
func (s *Service) Enter(ctx context.Context, id sandbox.TenantID) (_ context.Context, leave func(), err error) {
	if err := s.load(ctx); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspended.Hold(id) {
		return nil, nil, sandbox.ErrSuspended
	}
	s.note(id, parentOf(id))
	ctx, left := s.inFlight.Enter(ctx, id)
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left()
	}, nil
}

// Check returns ErrSuspended for a suspended Tenant.
func (s *Service) Check(ctx context.Context, id sandbox.TenantID) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.suspended.Hold(id) {
		return sandbox.ErrSuspended
	}
	return nil
}

// Vouch records which Tenant vouches for another before that one gets a credential: a
// Hidden ID does not contain it.
func (s *Service) Vouch(ctx context.Context, parent, id sandbox.TenantID) error {
	s.mu.Lock()
	s.note(parent, parentOf(parent))
	s.note(id, parent)
	s.mu.Unlock()
	return s.flush(ctx)
}

// note queues a record for a Tenant that may have none. The caller holds s.mu.
func (s *Service) note(id, parent sandbox.TenantID) {
	if s.known[id] && (parent == "" || !id.Hidden()) { // a Hidden one may be known without its parent
		return
	}
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[id] = true
	s.unnoted[id] = sandbox.Tenant{ID: id, Parent: parent, CreatedAt: identity.Now()}
}

// parentOf is the Tenant that vouches for id, from id alone; empty: none, or id is
// Hidden.
func parentOf(id sandbox.TenantID) sandbox.TenantID {
	if above := id.Above(); len(above) > 0 {
		return above[0]
	}
	return ""
}

// flush writes the queued records.
func (s *Service) flush(ctx context.Context) error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	s.mu.Lock()
	all := make([]sandbox.Tenant, 0, len(s.unnoted))
	for _, t := range s.unnoted {
		all = append(all, t)
	}
	clear(s.unnoted)
	s.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	err := s.cfg.Store.NoteTenants(ctx, all)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range all {
		if have, newer := s.unnoted[t.ID]; !newer || have.Parent == "" {
			s.unnoted[t.ID] = t
		}
	}
	return err
}

// load reads the suspended Tenants unless they are known.
func (s *Service) load(ctx context.Context) error {
	s.mu.Lock()
	loaded := s.loaded
	s.mu.Unlock()
	if loaded {
		return nil
	}
	return s.refresh(ctx)
}

// refresh reads the suspended Tenants, and cancels their requests.
func (s *Service) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identity.RefreshLimit)
	defer cancel()
	for {
		s.mu.Lock()
		epoch := s.epoch
		s.mu.Unlock()
		suspended, err := s.cfg.Store.Suspensions(ctx)
		if err != nil {
			return err
		}
		if s.hold(suspended, epoch) {
			return nil
		}
	}
}

// hold stores the suspended Tenants, unless something changed here since epoch.
func (s *Service) hold(suspended sandbox.Suspensions, epoch uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.epoch { // it may have been read before the change
		return false
	}
	s.suspended, s.loaded = suspended, true
	if len(suspended) == 0 {
		return true
	}
	for _, id := range s.inFlight.Keys() {
		if suspended.Hold(id) {
			s.inFlight.End(id, sandbox.ErrSuspended)
		}
	}
	return true
}

// Run synchronizes records and suspensions with the Store until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	return identity.InStep(ctx, s.flush, s.refresh, func(err error) {
		s.cfg.Log.Warn("reading suspended tenants failed; new suspensions take effect later", telemetry.KeyError, err.Error())
	})
}

// Create makes a record. Invalid for the ID of a vouched-for Tenant: only its user's
// credentials make it.
func (s *Service) Create(ctx context.Context, id sandbox.TenantID, name string) (sandbox.Tenant, error) {
	if err := id.Check(); err != nil {
		return sandbox.Tenant{}, err
	}
	if id.Hidden() || len(id.Above()) > 0 {
		return sandbox.Tenant{}, sandbox.Errorf(sandbox.Invalid, "the ID of a tenant that is made has no slash, and does not begin with sha256:")
	}
	if err := (sandbox.TenantChange{Name: &name}).Check(); err != nil {
		return sandbox.Tenant{}, err
	}
	t := sandbox.Tenant{ID: id, Name: name, CreatedAt: identity.Now()}
	if err := s.cfg.Store.InsertTenant(ctx, t); err != nil {
		return sandbox.Tenant{}, err
	}
	return t, nil
}

// Get returns a record, or NotFound.
func (s *Service) Get(ctx context.Context, id sandbox.TenantID) (sandbox.Tenant, error) {
	if err := errors.Join(id.Check(), s.flush(ctx)); err != nil {
		return sandbox.Tenant{}, err
	}
	return s.cfg.Store.TenantByID(ctx, id)
}

// List returns a page of records.
func (s *Service) List(ctx context.Context, query sandbox.TenantQuery) (sandbox.TenantPage, error) {
	if query.State != "" && query.State != sandbox.TenantActive && query.State != sandbox.TenantSuspended {
		return sandbox.TenantPage{}, sandbox.Errorf(sandbox.Invalid, "state must be %q or %q", sandbox.TenantActive, sandbox.TenantSuspended)
	}
	if err := s.flush(ctx); err != nil {
		return sandbox.TenantPage{}, err
	}
	return s.cfg.Store.ListTenants(ctx, query)
}

// Change changes a record and returns it. Suspending a Tenant rejects its requests and
// cancels those in flight, here at once and elsewhere within a second. NotFound without a
// record; Conflict for suspending oneself.
func (s *Service) Change(ctx context.Context, who sandbox.Identity, id sandbox.TenantID, change sandbox.TenantChange) (sandbox.Tenant, error) {
	if err := errors.Join(id.Check(), change.Check()); err != nil {
		return sandbox.Tenant{}, err
	}
	suspends := change.State != nil && *change.State == sandbox.TenantSuspended
	if suspends && (sandbox.Suspensions{id: true}).Hold(who.Tenant) {
		return sandbox.Tenant{}, sandbox.Errorf(sandbox.Conflict, "you cannot suspend your own tenant, or one above it: you could not resume it")
	}
	if err := s.flush(ctx); err != nil {
		return sandbox.Tenant{}, err
	}
	before, after, err := s.cfg.Store.ChangeTenant(ctx, id, change, identity.Now())
	if err != nil || change.State == nil {
		return after, err
	}
	s.mu.Lock()
	s.epoch++
	s.mu.Unlock()
	if err := s.refresh(context.WithoutCancel(ctx)); err != nil {
		return after, err
	}
	if before.State() != after.State() {
		err = s.report(ctx, who, after)
	}
	return after, err
}

// report audits and reports that a Tenant was suspended or resumed.
func (s *Service) report(ctx context.Context, who sandbox.Identity, t sandbox.Tenant) error {
	kind, operation := sandbox.EventTenantResumed, sandbox.AuditTenantResumed
	if t.Suspended != nil {
		kind, operation = sandbox.EventTenantSuspended, sandbox.AuditTenantSuspended
	}
	s.cfg.Event(sandbox.Event{Kind: kind, Tenant: t.ID, User: sandbox.AuditText(who.User), Key: who.Key, Operation: operation})
	if s.cfg.Audit == nil {
		return nil
	}
	_, err := s.cfg.Audit.AppendAudit(context.WithoutCancel(ctx), sandbox.AuditEntry{
		At: identity.Now(), Tenant: t.ID, User: "operator", Operation: operation, Target: sandbox.AuditText(string(t.ID)),
	})
	return err
}

// Remove removes a record with the Tenant's Keys, Secrets and Quota. Conflict, naming the
// rest, while it has anything else; NotFound without a record.
func (s *Service) Remove(ctx context.Context, who sandbox.Identity, id sandbox.TenantID) error {
	if err := id.Check(); err != nil {
		return err
	}
	if id == who.Tenant {
		return sandbox.Errorf(sandbox.Conflict, "you cannot remove your own tenant")
	}
	if err := s.flush(ctx); err != nil {
		return err
	}
	own, err := s.templates(ctx, id)
	if err != nil {
		return err
	}
	if own > 0 {
		return sandbox.Errorf(sandbox.Conflict, "the tenant still has %d templates", own)
	}
	if err := s.cfg.Store.DeleteTenant(ctx, id); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.known, id)
	s.epoch++
	s.mu.Unlock()
	return s.refresh(context.WithoutCancel(ctx))
}

// templates counts a Tenant's own Templates.
func (s *Service) templates(ctx context.Context, id sandbox.TenantID) (own int, err error) {
	if s.cfg.Templates == nil {
		return 0, nil
	}
	all, err := s.cfg.Templates.List(ctx, id)
	for _, t := range all {
		if !t.Shared {
			own++
		}
	}
	return own, err
}
