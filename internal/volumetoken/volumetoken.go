// Package volumetoken makes and checks the tokens that open the files of one
// Volume, until they expire or their Tenant's signing key is replaced.
package volumetoken

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Life is how long a token is good.
const Life = 24 * time.Hour

// prefix tells a token of a Volume from other credentials, and its form from
// later ones.
const prefix = "vol1"

// purpose keeps a signature from meaning anything elsewhere.
const purpose = "cloud-sandbox volume token 1\n"

// maxToken bounds a token, in bytes; ours have about 110.
const maxToken = 256

// Tokens signs with the keys of a Store and checks. Its methods are safe for
// concurrent use.
type Tokens struct {
	keys sandbox.SigningKeyStore
	now  func() time.Time
}

// New returns Tokens. now is the clock; nil means time.Now.
func New(keys sandbox.SigningKeyStore, now func() time.Time) *Tokens {
	if now == nil {
		now = time.Now
	}
	return &Tokens{keys: keys, now: now}
}

// Sign returns a token for a Volume of a Tenant that is good for Life.
func (t *Tokens) Sign(ctx context.Context, tenant sandbox.TenantID, volume string) (string, error) {
	key, err := t.keys.EnsureSigningKey(ctx, sandbox.NewSigningKey(tenant, t.now()))
	if err != nil {
		return "", err
	}
	signed := strings.Join([]string{prefix, key.ID, volume, strconv.FormatInt(t.now().Add(Life).Unix(), 10)}, ".")
	return signed + "." + base64.RawURLEncoding.EncodeToString(sum(key, signed)), nil
}

func sum(key sandbox.SigningKey, signed string) []byte {
	h := hmac.New(sha256.New, key.Secret)
	h.Write([]byte(purpose + signed))
	return h.Sum(nil)
}

// Is reports whether a credential says that it is a token of a Volume.
func Is(token string) bool { return strings.HasPrefix(token, prefix+".") }

// errWrong is the one answer to every token that is not as it was signed.
var errWrong = sandbox.Errorf(sandbox.Anonymous, "this is no valid token of a volume: get the volume once more for a new one")

// Check returns which Volume a token opens, and whose Tenant's it is. Every
// failure is the same Anonymous; that it has expired is told only of a token that
// was good.
func (t *Tokens) Check(ctx context.Context, token string) (tenant sandbox.TenantID, volume string, err error) {
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != 5 || parts[0] != prefix || !sandbox.ValidSigningKeyID(parts[1]) {
		return "", "", errWrong
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(parts[4])
	if err != nil {
		return "", "", errWrong
	}
	key, err := t.keys.SigningKeyByID(ctx, parts[1])
	switch {
	case errors.Is(err, sandbox.NotFound):
		return "", "", errWrong
	case err != nil:
		return "", "", err
	}
	seconds, err := strconv.ParseInt(parts[3], 10, 64)
	if !hmac.Equal(signature, sum(key, strings.Join(parts[:4], "."))) || err != nil {
		return "", "", errWrong
	}
	if !t.now().Before(time.Unix(seconds, 0)) {
		return "", "", sandbox.Errorf(sandbox.Anonymous, "this token of a volume has expired: get the volume once more for a new one")
	}
	return key.Tenant, parts[2], nil
}
