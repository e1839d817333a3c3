package sandbox

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

const (
	// MaxKeys bounds the Keys of a Tenant.
	MaxKeys = 1000
	// KeyMemory is how long an expired Key is still listed.
	KeyMemory = 7 * 24 * time.Hour
	// MaxKeyName bounds Key.Name, in characters.
	MaxKeyName = 100
	// DefaultKeyOverlap and MaxKeyOverlap are the default and the upper bound of the time
	// that a rotated secret stays valid.
	DefaultKeyOverlap = 24 * time.Hour
	MaxKeyOverlap     = 30 * 24 * time.Hour
)

// Key is an API key: a secret that acts for a Tenant until it expires or is revoked,
// within the permissions of its creator. The secret is shown once; only its Hash is
// stored. After a rotation the previous secret may stay valid for a while.
type Key struct {
	ID        string // "k" and 20 of [a-z0-9]
	Tenant    TenantID
	Name      string
	Role      Role
	Scopes    []Scope
	CreatedBy string // ID of the User who created it, directly or with a Key; empty: none
	Hash      KeyHash
	Hint      string // the secret's last four characters
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	UsedAt    time.Time // last use of this secret; zero: never; up to a minute behind
	Previous  PreviousSecret
}

// PreviousSecret is a Key's secret before its last rotation. It is zero for a Key that
// was never rotated.
type PreviousSecret struct {
	Hash   KeyHash
	Hint   string
	Until  time.Time // invalid from then on
	UsedAt time.Time // as Key.UsedAt, for this secret
}

// ValidAt reports whether the secret is valid at that time.
func (p PreviousSecret) ValidAt(at time.Time) bool { return at.Before(p.Until) }

// LastUsed returns the last use of the Key, with either secret; zero: never.
func (k Key) LastUsed() time.Time {
	if k.Previous.UsedAt.After(k.UsedAt) {
		return k.Previous.UsedAt
	}
	return k.UsedAt
}

// Expired reports whether the Key has expired at that time.
func (k Key) Expired(at time.Time) bool { return !k.ExpiresAt.IsZero() && !at.Before(k.ExpiresAt) }

// KeyHash is the SHA-256 of a secret. The secret has 160 random bits and cannot be
// guessed, so no slower hash is needed.
type KeyHash [sha256.Size]byte

// Secrets have the form of E2B's keys, because every E2B SDK accepts it.
const (
	keyPrefix = "e2b_"
	keyBytes  = 20
)

var keyPattern = lazily(`^e2b_[0-9a-f]{40}$`)

// NewKeySecret returns a fresh secret.
func NewKeySecret() string {
	b := make([]byte, keyBytes)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the process instead
	return keyPrefix + hex.EncodeToString(b)
}

// ValidKeySecret reports whether s has the form of a secret.
func ValidKeySecret(s string) bool { return keyPattern.MatchString(s) }

// HashKeySecret returns the hash that is stored for a secret.
func HashKeySecret(secret string) KeyHash { return sha256.Sum256([]byte(secret)) }

// NewKeyID returns a fresh Key ID: "k" and 20 of [a-z0-9].
func NewKeyID() string { return keyID.fresh() }
