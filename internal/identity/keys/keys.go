// Package keys makes, checks, rotates and revokes API keys.
package keys

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// trustTime is how long a Key is cached. A revocation in another process takes effect
	// within this time; a revocation here takes effect at once.
	trustTime = time.Second
	// maxTrusted bounds the cache.
	maxTrusted = 10_000
	// flushEvery is how often the last uses are recorded.
	flushEvery = 30 * time.Second
	flushLimit = 10 * time.Second
	// MaxLife is the longest life of a Key that expires.
	MaxLife = 10 * 365 * 24 * time.Hour
)

// Service makes, checks and revokes Keys. Its methods are safe for concurrent
// use.
type Service struct {
	store sandbox.KeyStore
	log   *slog.Logger

	mu      sync.Mutex
	trusted map[sandbox.KeyHash]trusted
	used    map[sandbox.KeyHash]time.Time // by the hash of a secret, not recorded yet
	epoch   uint64                        // grows with each revocation and rotation here
}

type trusted struct {
	key   sandbox.Key
	until time.Time
}

// New returns a Service over store.
func New(store sandbox.KeyStore, log *slog.Logger) *Service {
	return &Service{store: store, log: log, trusted: map[sandbox.KeyHash]trusted{}, used: map[sandbox.KeyHash]time.Time{}}
}

// Request describes a Key to make.
type Request struct {
	ID     string // of the new Key; empty: a fresh ID
	Name   string
	Scopes []sandbox.Scope // empty: all that its maker may grant
	Role   sandbox.Role    // empty: its maker's
	Life   time.Duration   // zero: it does not expire
}

// Create makes a Key of the caller's Tenant and returns it with its secret, which
// cannot be retrieved again. Create returns Denied if the Key would have more rights
// than the caller. A Key made by a Key expires with it at the latest.
func (s *Service) Create(ctx context.Context, who sandbox.Identity, r Request) (sandbox.Key, string, error) {
	if err := checkName(r.Name); err != nil {
		return sandbox.Key{}, "", err
	}
	if r.Life < 0 || r.Life > MaxLife {
		return sandbox.Key{}, "", sandbox.Errorf(sandbox.Invalid, "expires_in_seconds must be between 1 and %d, or absent for a key that does not expire", int64(MaxLife.Seconds()))
	}
	if r.Role == "" {
		r.Role = who.Role
	}
	if !who.Role.Gives(r.Role) {
		return sandbox.Key{}, "", sandbox.Errorf(sandbox.Denied, "the role %q may not make a key of the role %.40q: choose your own role; an admin may also choose a lower one", who.Role, r.Role)
	}
	maker := who
	maker.Role = r.Role
	scopes, err := scopesFor(maker, r.Scopes)
	if err != nil {
		return sandbox.Key{}, "", err
	}
	secret := sandbox.NewKeySecret()
	now := time.Now().UTC().Truncate(time.Microsecond)
	key := sandbox.Key{
		ID: cmp.Or(r.ID, sandbox.NewKeyID()), Tenant: who.Tenant, Name: r.Name, Role: r.Role, Scopes: scopes, CreatedBy: who.Person,
		Hash: sandbox.HashKeySecret(secret), Hint: hintOf(secret), CreatedAt: now,
	}
	if r.Life > 0 {
		key.ExpiresAt = now.Add(r.Life)
	}
	if !who.Until.IsZero() && (key.ExpiresAt.IsZero() || key.ExpiresAt.After(who.Until)) {
		key.ExpiresAt = who.Until
	}
	return key, secret, sandbox.NotBegun(s.store.InsertKey(ctx, key))
}

func checkName(name string) error {
	bad := !utf8.ValidString(name) || utf8.RuneCountInString(name) > sandbox.MaxKeyName || name == ""
	for _, c := range name {
		bad = bad || !unicode.IsPrint(c)
	}
	if bad {
		return sandbox.Errorf(sandbox.Invalid, "name must be 1 to %d printable characters", sandbox.MaxKeyName)
	}
	return nil
}

func scopesFor(who sandbox.Identity, want []sandbox.Scope) ([]sandbox.Scope, error) {
	if len(want) == 0 {
		return slices.DeleteFunc(sandbox.Scopes(), func(s sandbox.Scope) bool { return !who.May(s) }), nil
	}
	var out []sandbox.Scope
	for _, s := range want {
		switch {
		case !s.Valid():
			return nil, sandbox.Errorf(sandbox.Invalid, "no scope %.40q: scopes are %s", string(s), list(sandbox.Scopes()))
		case !who.May(s):
			return nil, sandbox.Errorf(sandbox.Denied, "you do not have the scope %q, so your keys cannot have it", s)
		case !slices.Contains(out, s):
			out = append(out, s)
		}
	}
	return out, nil
}

func list(scopes []sandbox.Scope) string {
	text := ""
	for i, s := range scopes {
		if i > 0 {
			text += ", "
		}
		text += string(s)
	}
	return text
}

// errNoKey is the answer to every invalid secret.
var errNoKey = sandbox.Errorf(sandbox.Anonymous, "the API key is not valid: it is unknown, has expired or was revoked")

// Check returns the Identity of a secret. Every failure is the same Anonymous, except the
// Store's errors and the expiry of the secret's Key.
func (s *Service) Check(ctx context.Context, secret string) (sandbox.Identity, error) {
	if !sandbox.ValidKeySecret(secret) {
		return sandbox.Identity{}, errNoKey
	}
	hash := sandbox.HashKeySecret(secret)
	now := time.Now()
	key, err := s.find(ctx, hash, now)
	if errors.Is(err, sandbox.NotFound) {
		return sandbox.Identity{}, errNoKey
	}
	if err != nil {
		return sandbox.Identity{}, err
	}
	// The row was found by its hash; a Store that matches too much must not grant access.
	if current(hash, key) && key.Expired(now) {
		return sandbox.Identity{}, sandbox.Errorf(sandbox.Anonymous, "the API key expired at %s: make another with `cloud-sandbox key create`", key.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if !speaksFor(hash, key, now) {
		return sandbox.Identity{}, errNoKey
	}
	s.mu.Lock()
	s.used[hash] = now.UTC()
	s.mu.Unlock()
	return sandbox.Identity{Tenant: key.Tenant, User: "key:" + key.ID, Role: key.Role, Key: key.ID, Person: key.CreatedBy, Scopes: key.Scopes, Until: key.ExpiresAt}, nil
}

// speaksFor reports whether hash belongs to a valid secret of key.
func speaksFor(hash sandbox.KeyHash, key sandbox.Key, now time.Time) bool {
	previous := subtle.ConstantTimeCompare(key.Previous.Hash[:], hash[:]) == 1 && key.Previous.ValidAt(now)
	return (current(hash, key) || previous) && !key.Expired(now)
}

func current(hash sandbox.KeyHash, key sandbox.Key) bool {
	return subtle.ConstantTimeCompare(key.Hash[:], hash[:]) == 1
}

func (s *Service) find(ctx context.Context, hash sandbox.KeyHash, now time.Time) (sandbox.Key, error) {
	s.mu.Lock()
	t, ok := s.trusted[hash]
	epoch := s.epoch
	s.mu.Unlock()
	if ok && now.Before(t.until) {
		return t.key, nil
	}
	key, err := s.store.KeyByHash(ctx, hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.trusted, hash)
		return key, err
	}
	if epoch == s.epoch { // a result read before a revocation is not cached after it
		if len(s.trusted) >= maxTrusted {
			clear(s.trusted)
		}
		s.trusted[hash] = trusted{key: key, until: now.Add(trustTime)}
	}
	return key, nil
}

// List returns the Keys of a Tenant, newest first.
func (s *Service) List(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.Key, error) {
	return s.store.Keys(ctx, tenant)
}

// Revoke ends a Key of the caller's Tenant for good: at once here, within a second
// elsewhere. NotFound if the Tenant has no such Key, Denied if its Role is above the
// caller's.
func (s *Service) Revoke(ctx context.Context, who sandbox.Identity, id string) error {
	if err := s.mayChange(ctx, who, id); err != nil {
		return err
	}
	err := s.store.DeleteKey(ctx, who.Tenant, id)
	s.Distrust()
	return err
}

// Rename changes the name of a Key of the caller's Tenant; it accepts the names that
// Create does. It fails as Revoke does.
func (s *Service) Rename(ctx context.Context, who sandbox.Identity, id, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := s.mayChange(ctx, who, id); err != nil {
		return err
	}
	err := s.store.RenameKey(ctx, who.Tenant, id, name)
	s.Distrust()
	return err
}

// mayChange refuses a Key whose Role is above who's.
func (s *Service) mayChange(ctx context.Context, who sandbox.Identity, id string) error {
	all, err := s.store.Keys(ctx, who.Tenant)
	if err != nil {
		return err
	}
	for _, k := range all {
		if k.ID == id && k.Role.Above(who.Role) {
			return sandbox.Errorf(sandbox.Denied, "the key %q has the role %q, which is above yours: ask a user with that role or a higher one", k.ID, k.Role)
		}
	}
	return nil
}

// Distrust clears the cache: some Keys were revoked in the Store.
func (s *Service) Distrust() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	clear(s.trusted)
}

// Run records when Keys were last used, every half minute and when ctx ends.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.flush(ctx)
		case <-ctx.Done():
			s.flush(context.WithoutCancel(ctx))
			return ctx.Err()
		}
	}
}

func (s *Service) flush(ctx context.Context) {
	s.mu.Lock()
	used := s.used
	s.used = map[sandbox.KeyHash]time.Time{}
	s.mu.Unlock()
	if len(used) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	if err := s.store.UsedKeys(ctx, used); err != nil {
		s.log.Warn("recording when keys were last used failed", telemetry.KeyError, err)
		s.mu.Lock()
		defer s.mu.Unlock()
		for hash, at := range used {
			if _, newer := s.used[hash]; !newer {
				s.used[hash] = at
			}
		}
	}
}
