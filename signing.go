package sandbox

import (
	"crypto/rand"
	"time"
)

// SigningKey signs the URLs by which one Tenant's files are read and written
// without a token. A Tenant has one at a time: with another, the URLs that the
// one before signed are good for nothing.
type SigningKey struct {
	ID        string // "g" and 20 of [a-z0-9], "k" if an earlier version made it; stands in the URLs
	Tenant    TenantID
	Secret    []byte // 32 bytes; never leaves the gateway and the Store
	CreatedAt time.Time
}

const signingSecretBytes = 32

// NewSigningKey returns a fresh key of a Tenant.
func NewSigningKey(tenant TenantID, now time.Time) SigningKey {
	secret := make([]byte, signingSecretBytes)
	_, _ = rand.Read(secret) // never fails: crypto/rand aborts the process instead
	return SigningKey{ID: signingKeyID.fresh(), Tenant: tenant, Secret: secret, CreatedAt: now.UTC().Truncate(time.Microsecond)}
}

// ValidSigningKeyID reports whether s has the form of a SigningKey's ID, also of one that
// an earlier version made, with the letter of a Key.
func ValidSigningKeyID(s string) bool { return signingKeyID.matches(s) || keyID.matches(s) }
