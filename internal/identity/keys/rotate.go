package keys

import (
	"context"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Rotate gives a Key of the caller's Tenant a new secret and returns it; it cannot be
// retrieved again. The old secret stays valid for overlap, which must be in [0,
// MaxKeyOverlap], and never longer than the Key. With 0 it ends at once here, and
// elsewhere within a second.
//
// A secret that was never used, as after a lost answer, is replaced and ends at once, and
// the previous one stays valid. Otherwise a Key has at most two valid secrets: Conflict
// if it has two, unless overlap is 0.
//
// The Key then belongs to the User who rotated it, and is revoked with them.
//
// NotFound if the Tenant has no such Key; Denied if the Key may do more than the
// caller, or for longer; Conflict if it has expired.
func (s *Service) Rotate(ctx context.Context, who sandbox.Identity, id string, overlap time.Duration) (sandbox.Key, string, error) {
	if overlap < 0 || overlap > sandbox.MaxKeyOverlap {
		return sandbox.Key{}, "", sandbox.Errorf(sandbox.Invalid, "overlap_seconds must be between 0, for no overlap, and %d", int64(sandbox.MaxKeyOverlap.Seconds()))
	}
	s.flush(ctx) // the result depends on whether the last secret was used
	all, err := s.store.Keys(ctx, who.Tenant)
	if err != nil {
		return sandbox.Key{}, "", err
	}
	i := slices.IndexFunc(all, func(k sandbox.Key) bool { return k.ID == id })
	if i < 0 {
		return sandbox.Key{}, "", sandbox.Errorf(sandbox.NotFound, "no such key")
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
		key.CreatedBy = who.Person // they know its secret now
	}
	secret := sandbox.NewKeySecret()
	key.Hash, key.Hint, key.UsedAt = sandbox.HashKeySecret(secret), hintOf(secret), time.Time{}
	err = s.store.RotateKey(ctx, key, had)
	s.Distrust()
	return key, secret, err
}

// hintOf is the part of a secret that is shown later.
func hintOf(secret string) string { return secret[len(secret)-4:] }

// mayRotate refuses a Key that would give the caller (who) more than they have.
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

// overlapping is the secret that stays valid beside the new one.
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
