// Package porttoken makes and checks the tokens that open private ports of
// Sandboxes: a Sandbox's own, for all of them, and others for one port until they
// expire.
package porttoken

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// MaxLife bounds how long a token for one port is good.
const MaxLife = 7 * 24 * time.Hour

// Param is the parameter of a link that has a token, and the name of the cookie
// that a browser keeps it as.
const Param = "cloud_sandbox_port"

// prefix tells a token for one port from a Sandbox's own, and its form from
// later ones.
const prefix = "p1"

// purpose keeps a signature from meaning anything elsewhere.
const purpose = "cloud-sandbox port token 1\n"

// maxToken bounds a token, in bytes.
const maxToken = 256

// Tokens are those of an installation. The methods are safe for concurrent use.
type Tokens struct {
	own func(id string) string
	now func() time.Time
}

// New returns the Tokens of an installation, where own derives a Sandbox's, which
// nobody can guess. now is the clock; nil means time.Now.
func New(own func(id string) string, now func() time.Time) *Tokens {
	if now == nil {
		now = time.Now
	}
	return &Tokens{own: own, now: now}
}

// Of is a Sandbox's own token: it opens all its ports as long as it lives.
func (t *Tokens) Of(id string) string { return t.own(id) }

// Sign returns a token for one port of a Sandbox, and when it expires: life from
// now, rounded up to a second. life must be in (0, MaxLife]; another one is
// Invalid.
func (t *Tokens) Sign(id string, port uint16, life time.Duration) (token string, expires time.Time, err error) {
	if life <= 0 || life > MaxLife {
		return "", time.Time{}, sandbox.Errorf(sandbox.Invalid, "expires_in_seconds must be more than 0 and at most %d", int(MaxLife.Seconds()))
	}
	expires = t.now().Add(life + time.Second - 1).Truncate(time.Second).UTC()
	until := strconv.FormatInt(expires.Unix(), 10)
	sum := base64.RawURLEncoding.EncodeToString(t.sum(id, port, until))
	return strings.Join([]string{prefix, until, sum}, "."), expires, nil
}

func (t *Tokens) sum(id string, port uint16, until string) []byte {
	h := hmac.New(sha256.New, []byte(t.own(id)))
	fmt.Fprintf(h, "%s%s\n%d\n%s", purpose, id, port, until)
	return h.Sum(nil)
}

// Begins reports whether parts, which dots stood between, begin with a token for one
// port, of whichever Sandbox. Nothing of it is checked: it is for keeping what may
// be valid from others.
func Begins(parts []string) bool {
	return len(parts) >= 3 && strings.HasSuffix(parts[0], prefix) && parts[1] != "" && strings.Trim(parts[1], "0123456789") == "" &&
		len(parts[2]) >= base64.RawURLEncoding.EncodedLen(sha256.Size)
}

// Check reports whether a token opens a port of a Sandbox now, and until when;
// zero: as long as the Sandbox lives.
func (t *Tokens) Check(token, id string, port uint16) (until time.Time, ok bool) {
	if token == "" || len(token) > maxToken {
		return time.Time{}, false
	}
	if hmac.Equal([]byte(token), []byte(t.own(id))) {
		return time.Time{}, true
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 || parts[0] != prefix {
		return time.Time{}, false
	}
	sum, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil || !hmac.Equal(sum, t.sum(id, port, parts[1])) {
		return time.Time{}, false
	}
	seconds, err := strconv.ParseInt(parts[1], 10, 64)
	until = time.Unix(seconds, 0)
	return until, err == nil && t.now().Before(until)
}
