package sandbox

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

const (
	// MaxKeys is how many Keys a Tenant may have.
	MaxKeys = 1000
	// KeyMemory is how long a Key is still listed after it expired.
	KeyMemory = 7 * 24 * time.Hour
	// MaxKeyName bounds Key.Name, in characters.
	MaxKeyName = 100
	// DefaultKeyOverlap and MaxKeyOverlap are how long a secret stays valid after
	// another took its place.
	DefaultKeyOverlap = 24 * time.Hour
	MaxKeyOverlap     = 30 * 24 * time.Hour
)

// Key is an API key: a secret that speaks for a Tenant until it expires or is
// revoked, as far as who made it may. The secret is shown once and kept nowhere; Hash is what is stored.
// When it was rotated, the secret before may be valid for a while more.
type Key struct {
	ID        string // "k" and 20 of [a-z0-9]
	Tenant    TenantID
	Name      string
	Role      Role
	Scopes    []Scope
	CreatedBy string // ID of the User who made it, or a Key of theirs; empty: nobody's
	Hash      KeyHash
	Hint      string // the secret's last four characters
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	UsedAt    time.Time // with this secret; zero: never; up to a minute behind
	Previous  PreviousSecret
}

// PreviousSecret is the one that a Key had before it was rotated. The zero one is
// of a Key that never was.
type PreviousSecret struct {
	Hash   KeyHash
	Hint   string
	Until  time.Time // it is not valid from here on
	UsedAt time.Time // of this secret; as Key.UsedAt
}

// ValidAt reports whether the secret speaks for its Key at that time.
func (p PreviousSecret) ValidAt(at time.Time) bool { return at.Before(p.Until) }

// LastUsed is when the Key was last used, with whichever secret; zero: never.
func (k Key) LastUsed() time.Time {
	if k.Previous.UsedAt.After(k.UsedAt) {
		return k.Previous.UsedAt
	}
	return k.UsedAt
}

// Expired reports whether the Key speaks for nobody at that time.
func (k Key) Expired(at time.Time) bool { return !k.ExpiresAt.IsZero() && !at.Before(k.ExpiresAt) }

// KeyHash is the SHA-256 of a secret, which has 160 random bits: no slower hash
// is needed for what cannot be guessed.
type KeyHash [sha256.Size]byte

// The form of a secret is that of E2B's keys, which every E2B SDK accepts.
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

// HashKeySecret is what is stored of a secret.
func HashKeySecret(secret string) KeyHash { return sha256.Sum256([]byte(secret)) }

// NewKeyID returns a fresh Key ID: "k" and 20 of [a-z0-9].
func NewKeyID() string { return keyID.fresh() }
