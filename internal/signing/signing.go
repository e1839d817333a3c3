// Package signing makes and checks credentials that open one object of a Tenant
// without an account: tokens for private ports of Sandboxes, URLs that read or write
// one file, and tokens for the files of a Volume. Each is valid until it expires.
// URLs and a Volume's tokens end earlier when their Tenant's signing key is replaced,
// and a port's token with its Sandbox.
package signing

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// MaxLife is the longest validity of a URL or a token for one port.
const MaxLife = 7 * 24 * time.Hour

// encodedLen is the length of a signature in base64.
var encodedLen = base64.RawURLEncoding.EncodedLen(sha256.Size)

// signature returns the HMAC-SHA256 of content in base64. purpose is a line that
// makes a signature of one kind of content invalid for another kind.
func signature(secret []byte, purpose, content string) string {
	return base64.RawURLEncoding.EncodeToString(sum(secret, purpose, content))
}

func sum(secret []byte, purpose, content string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(purpose + content))
	return h.Sum(nil)
}

// verify reports whether got is the signature of content, in its canonical encoding
// without spare bits and padding.
func verify(got string, secret []byte, purpose, content string) bool {
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(got)
	return err == nil && hmac.Equal(decoded, sum(secret, purpose, content))
}

// clockOr returns now, or time.Now when now is nil.
func clockOr(now func() time.Time) func() time.Time {
	if now == nil {
		return time.Now
	}
	return now
}

// expiry returns life from now, rounded up to a second. life must be in (0, MaxLife];
// another one is Invalid.
func expiry(now time.Time, life time.Duration) (time.Time, error) {
	if life <= 0 || life > MaxLife {
		return time.Time{}, sandbox.Errorf(sandbox.Invalid, "expires_in_seconds must be more than 0 and at most %d", int(MaxLife.Seconds()))
	}
	return now.Add(life + time.Second - 1).Truncate(time.Second).UTC(), nil
}

// keyOf returns the signing key of an untrusted ID. It returns wrong for a malformed
// ID and for a key that was replaced.
func keyOf(ctx context.Context, keys sandbox.SigningKeyStore, id string, wrong error) (sandbox.SigningKey, error) {
	if !sandbox.ValidSigningKeyID(id) {
		return sandbox.SigningKey{}, wrong
	}
	key, err := keys.SigningKeyByID(ctx, id)
	if errors.Is(err, sandbox.NotFound) {
		return sandbox.SigningKey{}, wrong
	}
	return key, err
}
