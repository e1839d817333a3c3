// Package users manages the records of Users of Tenants, and applies an admin's decisions
// about them at once.
package users

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/inflight"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// trustTime is how long a record is cached after the Store last reported no change.
	// It is longer than identity.RefreshEvery, so that a record is read once while
	// nothing changes.
	trustTime = 3 * time.Second
	// seenEvery is the least time between two records of when a User was last seen.
	seenEvery = time.Minute
	// maxKnown bounds the cached records, maxUnnoted those queued for writing.
	maxKnown   = 10_000
	maxUnnoted = 10_000
	// maxTries bounds the retries of a change on conflict.
	maxTries = 5
)

// Config of a Service; only Store is required.
type Config struct {
	Store sandbox.UserStore
	// Audit logs an operator's changes to another Tenant's Users in that Tenant's log;
	// nil: the caller does.
	Audit sandbox.AuditStore
	// Revoked is called after Keys were revoked with their User; nil: none.
	Revoked func()
	Log     *slog.Logger // may be nil
}

// Service manages Users. Its methods are safe for concurrent use.
type Service struct {
	cfg Config

	flushing sync.Mutex // serializes flush

	mu       sync.Mutex
	known    map[userID]record
	unnoted  map[userID]sandbox.User // seen, not recorded yet
	lapsed   map[userID]sandbox.User // Users at the moment when their decision lapsed, not recorded yet
	changed  int64                   // the Store's last change number
	checked  time.Time               // when it was read
	epoch    uint64                  // increments when the cache is cleared
	inFlight inflight.Requests[principal]
}

type userID struct {
	tenant sandbox.TenantID
	id     string
}

// A record is the Store's User; the zero User: none.
type record struct {
	user sandbox.User
	read time.Time
}

// A principal identifies an in-flight request: its User, and the Role it was admitted with.
type principal struct {
	userID
	role   sandbox.Role       // from their credential
	source sandbox.UserSource // from their token; empty: a Key
	as     sandbox.Role
}

// errLowered cancels the requests of Users whose Role was lowered.
var errLowered = sandbox.Errorf(sandbox.Denied, "your role in the tenant was lowered meanwhile: ask again")

// New returns a Service. Run keeps it in step with other processes.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Revoked == nil {
		c.Revoked = func() {}
	}
	return &Service{cfg: c, known: map[userID]record{}, unnoted: map[userID]sandbox.User{}, lapsed: map[userID]sandbox.User{}, changed: -1}
}

// Enter admits a request and returns its Identity as a User, or why the User may do
// nothing. If the User is suspended, removed or given a lower Role before leave is
// called, the returned context is cancelled with that cause. It reads the Store once for
// each User, while no User changes.
func (s *Service) Enter(ctx context.Context, who sandbox.Identity) (_ sandbox.Identity, _ context.Context, leave func(), err error) {
	if who.Person == "" {
		who, err = (sandbox.User{}).Admit(who)
		return who, ctx, func() {}, err
	}
	id := userID{who.Tenant, who.Person}
	for {
		u, epoch, err := s.find(ctx, id)
		if err != nil {
			return who, nil, nil, err
		}
		as, err := u.Admit(who)
		if err != nil {
			return who, nil, nil, err
		}
		if ctx, left, ok := s.admit(ctx, epoch, u, who, as.Role); ok {
			return as, ctx, left, nil
		}
	}
}

// admit admits who, unless the cache was cleared since epoch.
func (s *Service) admit(ctx context.Context, epoch uint64, u sandbox.User, who sandbox.Identity, as sandbox.Role) (_ context.Context, leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.epoch {
		return nil, nil, false
	}
	s.note(u, who)
	v := principal{userID: userID{who.Tenant, who.Person}, role: who.Role, as: as}
	if who.Profile != nil {
		v.source = who.Profile.Source
	}
	ctx, left := s.inFlight.Enter(ctx, v)
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left()
	}, true
}

// Admit applies the User of an Identity: it returns the Identity with the Role that the
// User was given, where that overrides its own, or why the User may do nothing.
func (s *Service) Admit(ctx context.Context, who sandbox.Identity) (sandbox.Identity, error) {
	var u sandbox.User
	if who.Person != "" {
		var err error
		if u, _, err = s.find(ctx, userID{who.Tenant, who.Person}); err != nil {
			return who, err
		}
	}
	return u.Admit(who)
}

// find returns the record of a User, or the zero User, and its epoch.
func (s *Service) find(ctx context.Context, id userID) (sandbox.User, uint64, error) {
	asked := time.Now()
	s.mu.Lock()
	r, ok := s.known[id]
	epoch, checked := s.epoch, s.checked
	s.mu.Unlock()
	if checked.After(r.read) {
		r.read = checked
	}
	if ok && asked.Sub(r.read) < trustTime {
		return r.user, epoch, nil
	}
	u, err := s.cfg.Store.UserByID(ctx, id.tenant, id.id)
	if err != nil && !errors.Is(err, sandbox.NotFound) {
		return u, epoch, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch == s.epoch { // a record read before a change is not cached after it
		s.remember(id, record{u, asked})
	}
	return u, epoch, nil
}

// remember caches the record of a User. The caller holds s.mu.
func (s *Service) remember(id userID, r record) {
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[id] = r
}

// note queues a record of the User's token if it contains news. The caller holds s.mu.
func (s *Service) note(u sandbox.User, who sandbox.Identity) {
	p := who.Profile
	if p == nil || len(s.unnoted) >= maxUnnoted {
		return
	}
	at := identity.Now()
	told := u.WithTokenRole(who.Role)
	same := told == u && u.TokenRole == who.Role && (p.Name == "" || p.Name == u.Name) && (p.Email == "" || p.Email == u.Email)
	if u.ID != "" && same && at.Sub(u.SeenAt) < seenEvery {
		return
	}
	lapsed := told != u
	if u.ID == "" {
		told = sandbox.User{Tenant: who.Tenant, ID: who.Person, Source: p.Source, Issuer: p.Issuer, State: sandbox.UserActive, CreatedAt: at}
	}
	u = told
	u.Name, u.Email = cmp.Or(p.Name, u.Name), cmp.Or(p.Email, u.Email)
	u.TokenRole, u.SeenAt = who.Role, at
	id := userID{u.Tenant, u.ID}
	s.unnoted[id] = u
	if lapsed {
		s.lapsed[id] = u
	}
	if r, ok := s.known[id]; ok {
		s.known[id] = record{u, r.read}
	}
}

// flush writes the queued records.
func (s *Service) flush(ctx context.Context) error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	s.mu.Lock()
	// Lapsed decisions come first: a later token of the User may carry a lower Role.
	all := slices.AppendSeq(slices.Collect(maps.Values(s.lapsed)), maps.Values(s.unnoted))
	lapsed := maps.Clone(s.lapsed)
	clear(s.lapsed)
	clear(s.unnoted)
	s.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	err := s.cfg.Store.NoteUsers(ctx, all)
	if err == nil {
		return s.auditLapsed(ctx, lapsed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, u := range lapsed {
		s.lapsed[id] = u
	}
	for _, u := range all {
		id := userID{u.Tenant, u.ID}
		if _, newer := s.unnoted[id]; !newer {
			s.unnoted[id] = u
		}
	}
	return err
}

// auditLapsed audits decisions about Users that their tokens undid: the token's Role is
// above the decision maker's.
func (s *Service) auditLapsed(ctx context.Context, lapsed map[userID]sandbox.User) error {
	var errs []error
	for _, u := range lapsed {
		s.cfg.Log.Warn("dropped an admin's decision about a user: the user's token has a higher role than that admin", telemetry.KeyTenant, u.Tenant, telemetry.KeyUser, u.ID)
		if s.cfg.Audit == nil {
			continue
		}
		_, err := s.cfg.Audit.AppendAudit(ctx, sandbox.AuditEntry{
			At: identity.Now(), Tenant: u.Tenant, User: sandbox.AuditText(u.ID), Role: u.TokenRole, Operation: opChange, Target: sandbox.AuditText(u.ID),
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// refresh checks the Store for changes. After one it clears the cache and cancels
// requests that their Users may no longer make.
func (s *Service) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identity.RefreshLimit)
	defer cancel()
	at := time.Now()
	n, err := s.cfg.Store.UsersChanged(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.checked = at
	if n == s.changed {
		s.mu.Unlock()
		return nil
	}
	s.changed = n
	s.epoch++
	clear(s.known)
	inFlight := s.inFlight.Keys()
	s.mu.Unlock()
	return s.recheck(ctx, inFlight)
}

// recheck cancels the requests of principals who would no longer be admitted the same way.
func (s *Service) recheck(ctx context.Context, inFlight []principal) error {
	for _, v := range inFlight {
		u, _, err := s.find(ctx, v.userID)
		if err != nil {
			s.mu.Lock()
			s.changed = -1 // so that all are checked again
			s.mu.Unlock()
			return err
		}
		who := sandbox.Identity{Role: v.role}
		if v.source != "" {
			who.Profile = &sandbox.Profile{Source: v.source}
		}
		as, err := u.Admit(who)
		if err == nil && v.as.Above(as.Role) {
			err = errLowered
		}
		if err != nil {
			s.mu.Lock()
			s.inFlight.End(v, err)
			s.mu.Unlock()
		}
	}
	return nil
}

// Run synchronizes records and decisions with the Store until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	return identity.InStep(ctx, s.flush, s.refresh, func(err error) {
		s.cfg.Log.Warn("syncing changes of users with the store failed", telemetry.KeyError, err.Error())
	})
}
