package keys

import (
	"context"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Rotate gives a Key of who's Tenant another secret and returns it, which cannot
// be had again. The one before stays valid for overlap, which must be in [0,
// MaxKeyOverlap], and never longer than the Key; with 0 it ends at once, here,
// and elsewhere within a second.
//
// A secret that nobody has used yet, as when an answer was lost, is replaced and
// ends at once, and the one before it stays valid. Else a Key has two valid
// secrets at most: Conflict while there are, but for an overlap of 0.
//
// From then on it is a Key of the User who rotated it, and goes with them.
//
// NotFound when the Tenant has no Key of this ID; Denied when the Key may do more
// than who, or for longer; Conflict when it has expired.
func (s *Service) Rotate(ctx context.Context, who sandbox.Identity, id string, overlap time.Duration) (sandbox.Key, string, error) {
	if overlap < 0 || overlap > sandbox.MaxKeyOverlap {
		return sandbox.Key{}, "", sandbox.Errorf(sandbox.Invalid, "overlap_seconds must be between 0, for no overlap, and %d", int64(sandbox.MaxKeyOverlap.Seconds()))
	}
	s.tell(ctx) // whether the last secret was used decides
	all, err := s.store.Keys(ctx, who.Tenant)
	if err != nil {
		return sandbox.Key{}, "", err
	}
	i := slices.IndexFunc(all, func(k sandbox.Key) bool { return k.ID == id })
	if i < 0 {
		return sandbox.Key{}, "", sandbox.Errorf(sandbox.NotFound, "there is no such key")
	}
	key, had := all[i], all[i].Hash
	now := time.Now().UTC().Truncate(time.Microsecond)
	if err := mayRotate(who, key, now); err != nil {
		return sandbox.Key{}, "", err
	}
	if key.Previous, err = overlapping(key, now, overlap); err != nil {
		return sandbox.Key{}, "", err
	}
	if who.Person != "" {
		key.CreatedBy = who.Person // who knows its secret now
	}
	secret := sandbox.NewKeySecret()
	key.Hash, key.Hint, key.UsedAt = sandbox.HashKeySecret(secret), hintOf(secret), time.Time{}
	err = s.store.RotateKey(ctx, key, had)
	s.Distrust()
	return key, secret, err
}

// hintOf is what is shown of a secret later.
func hintOf(secret string) string { return secret[len(secret)-4:] }

// mayRotate refuses what would give who more than they have.
func mayRotate(who sandbox.Identity, key sandbox.Key, now time.Time) error {
	outlives := !who.Until.IsZero() && (key.ExpiresAt.IsZero() || key.ExpiresAt.After(who.Until))
	switch {
	case !who.Role.Gives(key.Role):
		return sandbox.Errorf(sandbox.Denied, "the key is of another role, and only an admin can rotate one of a role below their own")
	case slices.ContainsFunc(key.Scopes, func(scope sandbox.Scope) bool { return !who.May(scope) }):
		return sandbox.Errorf(sandbox.Denied, "the key has scopes that you do not have")
	case outlives:
		return sandbox.Errorf(sandbox.Denied, "the key is valid for longer than yours")
	case key.Expired(now):
		return sandbox.Errorf(sandbox.Conflict, "the key has expired: make another")
	}
	return nil
}

// overlapping is the secret that is valid beside the one to come.
func overlapping(key sandbox.Key, now time.Time, overlap time.Duration) (sandbox.PreviousSecret, error) {
	until := now.Add(overlap)
	if key.Expired(until) {
		until = key.ExpiresAt
	}
	switch {
	case overlap == 0 || !key.Previous.ValidAt(now):
		return sandbox.PreviousSecret{Hash: key.Hash, Hint: key.Hint, Until: until, UsedAt: key.UsedAt}, nil
	case key.UsedAt.IsZero():
		previous := key.Previous
		previous.Until = until
		return previous, nil
	}
	return sandbox.PreviousSecret{}, sandbox.Errorf(sandbox.Conflict,
		"the secret before the last one is valid until %s: rotate after that, or with an overlap_seconds of 0, which ends both",
		key.Previous.Until.Format(time.RFC3339))
}
