// Package volumetoken makes and checks the tokens that open the files of one
// Volume, to read or to write too, until they expire or their Tenant's signing key
// is replaced.
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

// Life is how long a token is good at most.
const Life = 24 * time.Hour

// prefix tells a token of a Volume from other credentials, and its form from
// later ones.
const prefix = "vol1"

// purpose keeps a signature from meaning anything elsewhere.
const purpose = "cloud-sandbox volume token 1\n"

// What a token lets do.
const (
	readOnly  = "r"
	readWrite = "rw"
)

// Grant is what one token allows.
type Grant struct {
	Tenant sandbox.TenantID
	Volume string // its ID
	Write  bool   // not only to read
	// Until is when it ends at the latest, as that of who asks for it does; zero:
	// after Life.
	Until time.Time
}

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

// Sign returns a token for what g allows, which is good for Life at most.
func (t *Tokens) Sign(ctx context.Context, g Grant) (string, error) {
	key, err := t.keys.EnsureSigningKey(ctx, sandbox.NewSigningKey(g.Tenant, t.now()))
	if err != nil {
		return "", err
	}
	until, may := t.now().Add(Life), readOnly
	if !g.Until.IsZero() && g.Until.Before(until) {
		until = g.Until
	}
	if g.Write {
		may = readWrite
	}
	signed := strings.Join([]string{prefix, key.ID, g.Volume, strconv.FormatInt(until.Unix(), 10), may}, ".")
	return signed + "." + base64.RawURLEncoding.EncodeToString(sum(key, signed)), nil
}

func sum(key sandbox.SigningKey, signed string) []byte {
	h := hmac.New(sha256.New, key.Secret)
	h.Write([]byte(purpose + signed))
	return h.Sum(nil)
}

// Is reports whether a credential says that it is a token of a Volume.
func Is(token string) bool { return strings.HasPrefix(token, prefix+".") }

// Begins reports whether parts, which dots stood between, begin with a token of a
// Volume. Nothing of it is checked: it is for keeping what may be valid from others.
func Begins(parts []string) bool {
	const all = 6
	return len(parts) >= all && strings.HasSuffix(parts[0], prefix) && len(parts[all-1]) >= base64.RawURLEncoding.EncodedLen(sha256.Size)
}

// errWrong is the one answer to every token that is not as it was signed.
var errWrong = sandbox.Errorf(sandbox.Anonymous, "this is no valid token of a volume: get the volume once more for a new one")

// Check returns what a token allows. Every failure is the same Anonymous; that it
// has expired is told only of a token that was good.
func (t *Tokens) Check(ctx context.Context, token string) (Grant, error) {
	const all, last = 6, 5
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != all || parts[0] != prefix || !sandbox.ValidSigningKeyID(parts[1]) {
		return Grant{}, errWrong
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(parts[last])
	if err != nil {
		return Grant{}, errWrong
	}
	key, err := t.keys.SigningKeyByID(ctx, parts[1])
	switch {
	case errors.Is(err, sandbox.NotFound):
		return Grant{}, errWrong
	case err != nil:
		return Grant{}, err
	}
	seconds, err := strconv.ParseInt(parts[3], 10, 64)
	if !hmac.Equal(signature, sum(key, strings.Join(parts[:last], "."))) || err != nil {
		return Grant{}, errWrong
	}
	g := Grant{Tenant: key.Tenant, Volume: parts[2], Write: parts[4] == readWrite, Until: time.Unix(seconds, 0).UTC()}
	if !t.now().Before(g.Until) {
		return Grant{}, sandbox.Errorf(sandbox.Anonymous, "this token of a volume has expired: get the volume once more for a new one")
	}
	return g, nil
}
