package signing

import (
	"crypto/hmac"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// PortParam is the query parameter of a link that has a token for a port, and the
// name of the cookie in which a browser keeps the token.
const PortParam = "cloud_sandbox_port"

// portPrefix distinguishes a token for one port from a Sandbox's own, and versions
// its format.
const portPrefix = "p1"

const portPurpose = "cloud-sandbox port token 1\n"

// maxToken bounds a token, in bytes. A port's token has about 60, a Volume's about
// 110.
const maxToken = 256

// Ports makes and checks the tokens for private ports: a Sandbox's own token, which
// opens all its ports, and tokens for one port. Its methods are safe for concurrent
// use.
type Ports struct {
	own func(id string) string
	now func() time.Time
}

// NewPorts returns the Ports of an installation. own derives a Sandbox's own token
// from its ID; others must not be able to guess it. now is the clock; nil means
// time.Now.
func NewPorts(own func(id string) string, now func() time.Time) *Ports {
	return &Ports{own: own, now: clockOr(now)}
}

// Of is a Sandbox's own token: it opens all its ports as long as it lives.
func (t *Ports) Of(id string) string { return t.own(id) }

// Sign returns a token for one port of a Sandbox, and its expiry: life from now,
// rounded up to a second. life must be in (0, MaxLife]; another one is Invalid.
func (t *Ports) Sign(id string, port uint16, life time.Duration) (token string, expires time.Time, err error) {
	if expires, err = expiry(t.now(), life); err != nil {
		return "", time.Time{}, err
	}
	until := strconv.FormatInt(expires.Unix(), 10)
	return strings.Join([]string{portPrefix, until, signature([]byte(t.own(id)), portPurpose, portContent(id, port, until))}, "."), expires, nil
}

// portContent returns the content that the signature of a token for one port covers.
func portContent(id string, port uint16, until string) string {
	return fmt.Sprintf("%s\n%d\n%s", id, port, until)
}

// BeginsPortToken reports whether parts, the pieces of a text between dots, begin
// with a token for one port of any Sandbox. The signature is not checked: the aim is
// to find possible tokens, to keep them from others.
func BeginsPortToken(parts []string) bool {
	return len(parts) >= 3 && strings.HasSuffix(parts[0], portPrefix) && parts[1] != "" && strings.Trim(parts[1], "0123456789") == "" &&
		len(parts[2]) >= encodedLen
}

// Check reports whether a token opens a port of a Sandbox now, and until when;
// zero: as long as the Sandbox lives.
func (t *Ports) Check(token, id string, port uint16) (until time.Time, ok bool) {
	if token == "" || len(token) > maxToken {
		return time.Time{}, false
	}
	if hmac.Equal([]byte(token), []byte(t.own(id))) {
		return time.Time{}, true
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 || parts[0] != portPrefix || !verify(parts[2], []byte(t.own(id)), portPurpose, portContent(id, port, parts[1])) {
		return time.Time{}, false
	}
	seconds, err := strconv.ParseInt(parts[1], 10, 64)
	until = time.Unix(seconds, 0)
	return until, err == nil && t.now().Before(until)
}
