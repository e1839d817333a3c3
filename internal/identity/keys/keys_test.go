package keys

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
)

func openStore(t *testing.T) sandbox.Store {
	t.Helper()
	return sqlitetest.Open(t)
}

func newService(store sandbox.KeyStore) *Service { return New(store, slog.New(slog.DiscardHandler)) }

var (
	developer = sandbox.Identity{Tenant: "t", Role: sandbox.RoleDeveloper}
	admin     = sandbox.Identity{Tenant: "t", Role: sandbox.RoleAdmin}
)

func make1(t *testing.T, s *Service, who sandbox.Identity, r Request) (sandbox.Key, string) {
	t.Helper()
	r.Name = "k"
	key, secret, err := s.Create(t.Context(), who, r)
	if err != nil {
		t.Fatal(err)
	}
	return key, secret
}

func TestCheck(t *testing.T) {
	s := newService(openStore(t))
	key, secret := make1(t, s, developer, Request{Scopes: []sandbox.Scope{sandbox.ScopeRead, sandbox.ScopeRead}})
	who, err := s.Check(t.Context(), secret)
	if err != nil || who.Tenant != "t" || who.Key != key.ID || who.Role != sandbox.RoleDeveloper || !slices.Equal(who.Scopes, []sandbox.Scope{sandbox.ScopeRead}) {
		t.Errorf("%+v, %v", who, err)
	}
	if who.May(sandbox.ScopeWrite) || !who.May(sandbox.ScopeRead) {
		t.Errorf("%+v may something else", who)
	}
	for _, bad := range []string{"", "e2b_", sandbox.NewKeySecret(), secret + "0", secret[:43], "E2B_" + secret[4:]} {
		if _, err := s.Check(t.Context(), bad); !errors.Is(err, sandbox.Anonymous) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestNobodyGivesMoreThanTheyHave(t *testing.T) {
	s := newService(openStore(t))
	soon := time.Now().Add(time.Hour).UTC()
	limited := admin
	limited.Key, limited.Scopes, limited.Until = "k", []sandbox.Scope{sandbox.ScopeRead, sandbox.ScopeKeys}, soon
	for name, tt := range map[string]struct {
		who sandbox.Identity
		ask Request
	}{
		"a scope of the role":  {developer, Request{Scopes: []sandbox.Scope{sandbox.ScopeTokens}}},
		"a scope of the key":   {limited, Request{Scopes: []sandbox.Scope{sandbox.ScopeWrite}}},
		"a role":               {developer, Request{Role: sandbox.RoleAdmin}},
		"a role above":         {admin, Request{Role: sandbox.RoleOwner}},
		"the operator's":       {admin, Request{Role: sandbox.RoleOperator}},
		"a role below":         {developer, Request{Role: sandbox.RoleViewer}},
		"of no role":           {sandbox.Identity{Tenant: "t"}, Request{}},
		"a scope of that role": {admin, Request{Role: sandbox.RoleDeveloper, Scopes: []sandbox.Scope{sandbox.ScopeTokens}}},
	} {
		tt.ask.Name = "k"
		if _, _, err := s.Create(t.Context(), tt.who, tt.ask); !errors.Is(err, sandbox.Denied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if key, _ := make1(t, s, limited, Request{}); !slices.Equal(key.Scopes, limited.Scopes) || !key.ExpiresAt.Equal(soon) {
		t.Errorf("%+v", key)
	}
	if key, _ := make1(t, s, limited, Request{Life: 2 * time.Hour}); !key.ExpiresAt.Equal(soon) {
		t.Errorf("it outlives its maker: %+v", key)
	}
	if key, _ := make1(t, s, limited, Request{Life: time.Minute}); !key.ExpiresAt.Before(soon) {
		t.Errorf("%+v", key)
	}
	if key, _ := make1(t, s, admin, Request{Role: sandbox.RoleDeveloper}); key.Role != sandbox.RoleDeveloper || slices.Contains(key.Scopes, sandbox.ScopeTokens) {
		t.Errorf("%+v", key)
	}
}

func TestExpiry(t *testing.T) {
	store := openStore(t)
	secret := sandbox.NewKeySecret()
	now := time.Now().UTC()
	err := store.InsertKey(t.Context(), sandbox.Key{
		ID: sandbox.NewKeyID(), Tenant: "t", Name: "k", Role: sandbox.RoleAdmin, Hash: sandbox.HashKeySecret(secret),
		CreatedAt: now.Add(-time.Hour), ExpiresAt: now.Add(-time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newService(store).Check(t.Context(), secret); !errors.Is(err, sandbox.Anonymous) {
		t.Errorf("%v", err)
	}
}

// Nobody learns from what is stored how to be let in.
func TestOnlyTheHashIsStored(t *testing.T) {
	store := openStore(t)
	s := newService(store)
	key, secret := make1(t, s, developer, Request{})
	all, err := store.Keys(t.Context(), "t")
	if err != nil || len(all) != 1 || all[0].Hash != sandbox.HashKeySecret(secret) || key.Hint != secret[40:] {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestRevoke(t *testing.T) {
	store := openStore(t)
	s := newService(store)
	key, secret := make1(t, s, developer, Request{})
	if _, err := s.Check(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := s.Revoke(t.Context(), sandbox.Identity{Tenant: "other", Role: sandbox.RoleAdmin}, key.ID); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("another tenant: %v", err)
	}
	if err := s.Revoke(t.Context(), admin, key.ID); err != nil {
		t.Error(err)
	}
	if _, err := s.Check(t.Context(), secret); !errors.Is(err, sandbox.Anonymous) {
		t.Errorf("a revoked key: %v", err)
	}
	if err := s.Revoke(t.Context(), admin, key.ID); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("a second time: %v", err)
	}
}

// rows are Keys in memory, for tests whose clock is not the database's.
type rows struct {
	sandbox.KeyStore
	mu      sync.Mutex
	byHash  map[sandbox.KeyHash]sandbox.Key
	used    map[sandbox.KeyHash]time.Time
	fail    error
	reads   int
	reading func()
}

func (r *rows) InsertKey(_ context.Context, k sandbox.Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byHash[k.Hash] = k
	return nil
}

func (r *rows) KeyByHash(_ context.Context, hash sandbox.KeyHash) (sandbox.Key, error) {
	r.mu.Lock()
	k, ok := r.byHash[hash]
	r.reads++
	reading := r.reading
	r.mu.Unlock()
	if reading != nil {
		reading()
	}
	if !ok {
		return k, sandbox.Errorf(sandbox.NotFound, "no such key")
	}
	return k, nil
}

func (r *rows) Keys(_ context.Context, tenant sandbox.TenantID) (all []sandbox.Key, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.byHash {
		if k.Tenant == tenant {
			all = append(all, k)
		}
	}
	return all, nil
}

func (r *rows) DeleteKey(_ context.Context, _ sandbox.TenantID, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for hash, k := range r.byHash {
		if k.ID == id {
			delete(r.byHash, hash)
		}
	}
	return nil
}

func (r *rows) RenameKey(_ context.Context, _ sandbox.TenantID, id, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for hash, k := range r.byHash {
		if k.ID == id {
			k.Name = name
			r.byHash[hash] = k
		}
	}
	return nil
}

func (r *rows) RotateKey(_ context.Context, k sandbox.Key, had sandbox.KeyHash) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byHash, had)
	r.byHash[k.Hash] = k
	return nil
}

func (r *rows) UsedKeys(_ context.Context, used map[sandbox.KeyHash]time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	for hash, at := range used {
		r.used[hash] = at
	}
	return nil
}

func newRows() *rows {
	return &rows{byHash: map[sandbox.KeyHash]sandbox.Key{}, used: map[sandbox.KeyHash]time.Time{}}
}

// Another process's revocation is heard of within trustTime, and until then the
// Store is not asked again.
func TestRevokedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRows()
		here, there := newService(store), newService(store)
		key, secret := make1(t, here, developer, Request{})
		for range 10 {
			if _, err := here.Check(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}
		if store.reads != 1 {
			t.Errorf("the store was asked %d times", store.reads)
		}
		if err := there.Revoke(t.Context(), admin, key.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(trustTime)
		if _, err := here.Check(t.Context(), secret); !errors.Is(err, sandbox.Anonymous) {
			t.Errorf("after a second: %v", err)
		}
	})
}

// A Key that was read just before it was revoked is not believed after it.
func TestRevokedWhileRead(t *testing.T) {
	store := newRows()
	s := newService(store)
	key, secret := make1(t, s, developer, Request{})
	store.reading = func() {
		if err := s.Revoke(t.Context(), admin, key.ID); err != nil {
			t.Error(err)
		}
	}
	_, _ = s.Check(t.Context(), secret) // either is right: both happen at once
	store.reading = nil
	if _, err := s.Check(t.Context(), secret); !errors.Is(err, sandbox.Anonymous) {
		t.Errorf("%v", err)
	}
}

func TestExpiresWhileTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(newRows())
		_, secret := make1(t, s, developer, Request{Life: trustTime / 2})
		if _, err := s.Check(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		time.Sleep(trustTime / 2)
		if _, err := s.Check(t.Context(), secret); !errors.Is(err, sandbox.Anonymous) {
			t.Errorf("%v", err)
		}
	})
}

// Uses are told now and then and at the end, and those that could not be are
// told later.
func TestUsesAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newRows()
		s := newService(store)
		key, secret := make1(t, s, developer, Request{})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = s.Run(ctx) })
		first := time.Now()
		if _, err := s.Check(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		used := func() time.Time {
			store.mu.Lock()
			defer store.mu.Unlock()
			return store.used[key.Hash]
		}
		store.mu.Lock()
		store.fail = errors.New("away")
		store.mu.Unlock()
		time.Sleep(flushEvery + time.Second)
		if !used().IsZero() {
			t.Error("it was recorded although the store was away")
		}
		store.mu.Lock()
		store.fail = nil
		store.mu.Unlock()
		time.Sleep(flushEvery)
		if !used().Equal(first) {
			t.Errorf("used at %v, recorded %v", first, used())
		}
		last := time.Now()
		if _, err := s.Check(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		cancel()
		running.Wait()
		if !used().Equal(last) {
			t.Errorf("used last at %v, recorded %v", last, used())
		}
	})
}

func TestRevokeOfARoleAbove(t *testing.T) {
	s := newService(openStore(t))
	owner := sandbox.Identity{Tenant: "t", Role: sandbox.RoleOwner}
	above, _ := make1(t, s, owner, Request{})
	for _, who := range []sandbox.Identity{developer, admin, {Tenant: "t"}} {
		if err := s.Revoke(t.Context(), who, above.ID); !errors.Is(err, sandbox.Denied) {
			t.Errorf("by %q: %v", who.Role, err)
		}
	}
	if err := s.Revoke(t.Context(), owner, above.ID); err != nil {
		t.Error(err)
	}
}
