package keys

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestRotate(t *testing.T) {
	store := openStore(t)
	for name, check := range map[string]func(*testing.T, sandbox.Store){
		"rotate twice":                     rotateTwice,
		"rotate after a lost answer":       rotateAfterALostAnswer,
		"rotate says which secret is used": rotateSaysWhichSecretIsUsed,
		"rotate overlap ends":              rotateOverlapEnds,
		"rotate refusals":                  rotateRefusals,
		"rotate expired":                   rotateExpired,
	} {
		t.Run(name, func(t *testing.T) { check(t, store) })
	}
}

func rotate(t *testing.T, s *Service, id string, overlap time.Duration) (sandbox.Key, string) {
	t.Helper()
	key, secret, err := s.Rotate(t.Context(), developer, id, overlap)
	if err != nil {
		t.Fatal(err)
	}
	return key, secret
}

// valid is checked with a fresh look at the Store, as another process does.
func valid(t *testing.T, s *Service, secret string) bool {
	t.Helper()
	_, err := s.Check(t.Context(), secret)
	if err != nil && !errors.Is(err, sandbox.Anonymous) {
		t.Fatal(err)
	}
	return err == nil
}

func rotateTwice(t *testing.T, store sandbox.Store) {
	s := newService(store)
	made, first := make1(t, s, developer, Request{})
	valid(t, s, first)
	key, second := rotate(t, s, made.ID, time.Hour)
	if key.ID != made.ID || key.Previous.Hint != made.Hint || time.Until(key.Previous.Until) > time.Hour || first == second {
		t.Errorf("rotated to %+v", key)
	}
	if !valid(t, s, first) || !valid(t, s, second) {
		t.Error("both secrets are to be valid for the overlap")
	}
	if _, _, err := s.Rotate(t.Context(), developer, made.ID, time.Hour); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("a third secret while two are used: %v", err)
	}
	_, third := rotate(t, s, made.ID, 0)
	if valid(t, s, first) || valid(t, s, second) || !valid(t, s, third) {
		t.Error("without overlap only the new secret is valid")
	}
}

// Whoever lost the answer rotates again, and the secret in use stays valid.
func rotateAfterALostAnswer(t *testing.T, store sandbox.Store) {
	s := newService(store)
	made, first := make1(t, s, developer, Request{})
	valid(t, s, first)
	_, lost := rotate(t, s, made.ID, time.Hour)
	key, third := rotate(t, s, made.ID, 2*time.Hour)
	if key.Previous.Hint != made.Hint || time.Until(key.Previous.Until) < time.Hour {
		t.Errorf("the secret before is %+v", key.Previous)
	}
	if !valid(t, s, first) || valid(t, s, lost) || !valid(t, s, third) {
		t.Error("the lost secret alone is to be gone")
	}
}

func rotateSaysWhichSecretIsUsed(t *testing.T, store sandbox.Store) {
	s := newService(store)
	made, first := make1(t, s, developer, Request{})
	rotate(t, s, made.ID, time.Hour)
	valid(t, s, first)
	s.flush(t.Context())
	all, err := store.Keys(t.Context(), "t")
	if err != nil || !all[0].UsedAt.IsZero() || all[0].Previous.UsedAt.IsZero() || !all[0].LastUsed().Equal(all[0].Previous.UsedAt) {
		t.Errorf("%+v, %v", all, err)
	}
}

// The secret before ends by itself, and never outlives its key.
func rotateOverlapEnds(t *testing.T, store sandbox.Store) {
	s := newService(store)
	made, first := make1(t, s, developer, Request{Life: time.Minute})
	if key, _ := rotate(t, s, made.ID, time.Hour); !key.Previous.Until.Equal(key.ExpiresAt) {
		t.Errorf("%+v outlives its key", key.Previous)
	}
	had := sandbox.HashKeySecret(first)
	key, err := store.KeyByHash(t.Context(), had)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		after time.Duration
		valid bool
	}{{-time.Microsecond, true}, {0, false}} {
		if got := speaksFor(had, key, key.Previous.Until.Add(tt.after)); got != tt.valid {
			t.Errorf("valid at its end and %v: %v", tt.after, got)
		}
	}
}

func rotateRefusals(t *testing.T, store sandbox.Store) {
	s := newService(store)
	mine, secret := make1(t, s, developer, Request{Scopes: []sandbox.Scope{sandbox.ScopeRead, sandbox.ScopeWrite}})
	above, _ := make1(t, s, admin, Request{})
	reader := developer
	reader.Scopes = []sandbox.Scope{sandbox.ScopeRead, sandbox.ScopeKeys}
	brief := developer
	brief.Until = time.Now().Add(time.Hour)
	for name, tt := range map[string]struct {
		who     sandbox.Identity
		id      string
		overlap time.Duration
		want    error
	}{
		"one of a role above":     {developer, above.ID, 0, sandbox.Denied},
		"one of more scopes":      {reader, mine.ID, 0, sandbox.Denied},
		"one that lives longer":   {brief, mine.ID, 0, sandbox.Denied},
		"by nobody":               {sandbox.Identity{Tenant: "t"}, mine.ID, 0, sandbox.Denied},
		"none":                    {developer, "k0", 0, sandbox.NotFound},
		"another tenant's":        {sandbox.Identity{Tenant: "other", Role: sandbox.RoleOwner}, mine.ID, 0, sandbox.NotFound},
		"a negative overlap":      {developer, mine.ID, -1, sandbox.Invalid},
		"an overlap without end":  {developer, mine.ID, sandbox.MaxKeyOverlap + 1, sandbox.Invalid},
		"an admin, of one's own":  {admin, above.ID, 0, nil},
		"an admin, of a lower":    {admin, mine.ID, time.Hour, nil},
		"a second time by others": {developer, mine.ID, time.Hour, nil}, // nobody used what came of the first
	} {
		if _, _, err := s.Rotate(t.Context(), tt.who, tt.id, tt.overlap); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	if !valid(t, s, secret) {
		t.Error("a refused rotation ended a secret")
	}
}

func rotateExpired(t *testing.T, store sandbox.Store) {
	now := time.Now().UTC()
	key := sandbox.Key{
		ID: sandbox.NewKeyID(), Tenant: "t", Name: "k", Role: sandbox.RoleDeveloper,
		CreatedAt: now.Add(-time.Hour), ExpiresAt: now.Add(-time.Second),
	}
	secret := sandbox.NewKeySecret()
	key.Hash = sandbox.HashKeySecret(secret)
	if err := store.InsertKey(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if _, err := newService(store).Check(t.Context(), secret); !errors.Is(err, sandbox.Anonymous) || !strings.Contains(err.Error(), "the API key expired at "+key.ExpiresAt.Format(time.RFC3339)) {
		t.Errorf("its secret: %v", err)
	}
	if _, _, err := newService(store).Rotate(t.Context(), developer, key.ID, 0); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("%v", err)
	}
}
