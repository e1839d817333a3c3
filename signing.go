package sandbox

import (
	"crypto/rand"
	"time"
)

// SigningKey signs URLs that read and write one Tenant's files without a token. A Tenant
// has one key at a time: replacing it revokes the URLs that the old key signed.
type SigningKey struct {
	ID        string // "g" and 20 of [a-z0-9], "k" from earlier versions; part of the URLs
	Tenant    TenantID
	Secret    []byte // 32 bytes; never leaves the gateway and the Store
	CreatedAt time.Time
}

const signingSecretBytes = 32

// NewSigningKey returns a fresh key for a Tenant.
func NewSigningKey(tenant TenantID, now time.Time) SigningKey {
	secret := make([]byte, signingSecretBytes)
	_, _ = rand.Read(secret) // never fails: crypto/rand aborts the process instead
	return SigningKey{ID: signingKeyID.fresh(), Tenant: tenant, Secret: secret, CreatedAt: now.UTC().Truncate(time.Microsecond)}
}

// ValidSigningKeyID reports whether s has the form of a SigningKey ID. It also accepts
// IDs from earlier versions, which begin with the letter of a Key.
func ValidSigningKeyID(s string) bool { return signingKeyID.matches(s) || keyID.matches(s) }
