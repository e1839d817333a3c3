// Package users looks after the records of who acts for Tenants, and has what an
// admin decided about them hold at once.
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
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/visits"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// trustTime is how long a record is believed after the Store last said that there
	// was no change. It is longer than identity.RefreshEvery, so that a record is read once
	// while nothing changes.
	trustTime = 3 * time.Second
	// seenEvery is how often at most it is recorded that a User is still there.
	seenEvery = time.Minute
	// maxKnown bounds how many records are remembered, maxUnnoted how many wait to be
	// written.
	maxKnown   = 10_000
	maxUnnoted = 10_000
	// maxTries bounds how often a change begins anew because of another.
	maxTries = 5
)

// Config is what a Service is made of; only Store is required.
type Config struct {
	Store sandbox.UserStore
	// Audit keeps in a Tenant's log what an operator of another did to its Users; nil:
	// the caller does.
	Audit sandbox.AuditStore
	// Revoked is called after Keys went with their User; nil: nobody has to know.
	Revoked func()
	Log     *slog.Logger // may be nil
}

// Service looks after Users. Its methods are safe for concurrent use.
type Service struct {
	cfg Config

	noting sync.Mutex // one at a time records who was seen

	mu      sync.Mutex
	known   map[userID]record
	unnoted map[userID]sandbox.User // seen, and not recorded yet
	lapsed  map[userID]sandbox.User // of those, what had a decision lapse
	changed int64                   // what the Store said last
	checked time.Time               // when
	epoch   uint64                  // grows when what is known is forgotten
	inside  visits.Set[visitor]
}

type userID struct {
	tenant sandbox.TenantID
	id     string
}

// A record is what the Store had of a User; the zero User: nothing.
type record struct {
	user sandbox.User
	read time.Time
}

// A visitor is who a request under way is of, and as what they were let in.
type visitor struct {
	userID
	said   sandbox.Role       // by their credential
	source sandbox.UserSource // of their token; empty: a Key
	as     sandbox.Role
}

// errLowered ends the requests of who may do less than they began with.
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

// Enter lets a request in and returns the Identity that it has as its User, or
// says why they may do nothing. The context that it returns ends, with why as its
// cause, should they be suspended, removed or given a lower Role before leave is
// called. It asks the Store once for each User, while nobody is changed.
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
		if ctx, left, ok := s.let(ctx, epoch, u, who, as.Role); ok {
			return as, ctx, left, nil
		}
	}
}

// let lets who in, unless what u says may have changed since epoch.
func (s *Service) let(ctx context.Context, epoch uint64, u sandbox.User, who sandbox.Identity, as sandbox.Role) (_ context.Context, leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.epoch {
		return nil, nil, false
	}
	s.note(u, who)
	v := visitor{userID: userID{who.Tenant, who.Person}, said: who.Role, as: as}
	if who.Profile != nil {
		v.source = who.Profile.Source
	}
	ctx, left := s.inside.Enter(ctx, v)
	return ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		left()
	}, true
}

// Admit returns the Identity that who has as their User, or why they may do
// nothing.
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

// find returns the record of a User, or the zero one, and the epoch that it is of.
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
	if epoch == s.epoch { // what was read before a change is not kept after it
		s.remember(id, record{u, asked})
	}
	return u, epoch, nil
}

// remember keeps what is known of a User. The caller holds s.mu.
func (s *Service) remember(id userID, r record) {
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[id] = r
}

// note has it be recorded that a token came for a User, when that is news. The
// caller holds s.mu.
func (s *Service) note(u sandbox.User, who sandbox.Identity) {
	p := who.Profile
	if p == nil || len(s.unnoted) >= maxUnnoted {
		return
	}
	at := identity.Now()
	told := u.Told(who.Role)
	same := told == u && u.Said == who.Role && (p.Name == "" || p.Name == u.Name) && (p.Email == "" || p.Email == u.Email)
	if u.ID != "" && same && at.Sub(u.SeenAt) < seenEvery {
		return
	}
	lapsed := told != u
	if u.ID == "" {
		told = sandbox.User{Tenant: who.Tenant, ID: who.Person, Source: p.Source, Issuer: p.Issuer, State: sandbox.UserActive, CreatedAt: at}
	}
	u = told
	u.Name, u.Email = cmp.Or(p.Name, u.Name), cmp.Or(p.Email, u.Email)
	u.Said, u.SeenAt = who.Role, at
	id := userID{u.Tenant, u.ID}
	s.unnoted[id] = u
	if lapsed {
		s.lapsed[id] = u
	}
	if r, ok := s.known[id]; ok {
		s.known[id] = record{u, r.read}
	}
}

// flush records who was seen.
func (s *Service) flush(ctx context.Context) error {
	s.noting.Lock()
	defer s.noting.Unlock()
	s.mu.Lock()
	// What had a decision lapse comes first: a later token of theirs may say less.
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
		return s.tellLapsed(ctx, lapsed)
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

// tellLapsed writes into the logs of Tenants whose Users are what they were before
// somebody below them decided otherwise: their own token changed that.
func (s *Service) tellLapsed(ctx context.Context, lapsed map[userID]sandbox.User) error {
	var errs []error
	for _, u := range lapsed {
		s.cfg.Log.Warn("dropped an admin's decision about a user: the user's token has a higher role than that admin", telemetry.KeyTenant, u.Tenant, telemetry.KeyUser, u.ID)
		if s.cfg.Audit == nil {
			continue
		}
		_, err := s.cfg.Audit.AppendAudit(ctx, sandbox.AuditEntry{
			At: identity.Now(), Tenant: u.Tenant, User: sandbox.AuditText(u.ID), Role: u.Said, Operation: opChange, Target: sandbox.AuditText(u.ID),
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// refresh asks whether there was a change, and if so forgets what is known and
// ends the requests of who may no longer make them.
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
	inside := s.inside.Keys()
	s.mu.Unlock()
	return s.see(ctx, inside)
}

// see ends the requests of those who would not be let in now as they were.
func (s *Service) see(ctx context.Context, inside []visitor) error {
	for _, v := range inside {
		u, _, err := s.find(ctx, v.userID)
		if err != nil {
			s.mu.Lock()
			s.changed = -1 // so that all are looked at again
			s.mu.Unlock()
			return err
		}
		who := sandbox.Identity{Role: v.said}
		if v.source != "" {
			who.Profile = &sandbox.Profile{Source: v.source}
		}
		as, err := u.Admit(who)
		if err == nil && v.as.Above(as.Role) {
			err = errLowered
		}
		if err != nil {
			s.mu.Lock()
			s.inside.End(v, err)
			s.mu.Unlock()
		}
	}
	return nil
}

// Run keeps the records and what was decided in step with the Store until ctx
// ends.
func (s *Service) Run(ctx context.Context) error {
	return identity.InStep(ctx, s.flush, s.refresh, func(err error) {
		s.cfg.Log.Warn("syncing changes of users with the store failed", telemetry.KeyError, err.Error())
	})
}
