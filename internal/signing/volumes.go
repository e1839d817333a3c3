package signing

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// VolumeLife is the longest validity of a Volume's token.
const VolumeLife = 24 * time.Hour

// volumePrefix distinguishes a Volume's token from other credentials, and versions
// its format.
const volumePrefix = "vol1"

const volumePurpose = "cloud-sandbox volume token 1\n"

// Access modes of a Volume's token.
const (
	readOnly  = "r"
	readWrite = "rw"
)

// VolumeGrant is the permission of a token for a Volume's files.
type VolumeGrant struct {
	Tenant sandbox.TenantID
	Volume string // its ID
	Write  bool   // also to write
	// Until is the latest expiry of the token: not after the credential that requested
	// it. Zero means after VolumeLife, which bounds it too.
	Until time.Time
}

// Volumes makes and checks the tokens for the files of Volumes, with the keys of a
// Store. Its methods are safe for concurrent use.
type Volumes struct {
	keys sandbox.SigningKeyStore
	now  func() time.Time
}

// NewVolumes returns Volumes. now is the clock; nil means time.Now.
func NewVolumes(keys sandbox.SigningKeyStore, now func() time.Time) *Volumes {
	return &Volumes{keys: keys, now: clockOr(now)}
}

// Sign returns a token for g, which is valid for VolumeLife at most.
func (t *Volumes) Sign(ctx context.Context, g VolumeGrant) (string, error) {
	key, err := t.keys.EnsureSigningKey(ctx, sandbox.NewSigningKey(g.Tenant, t.now()))
	if err != nil {
		return "", err
	}
	until, may := t.now().Add(VolumeLife), readOnly
	if !g.Until.IsZero() && g.Until.Before(until) {
		until = g.Until
	}
	if g.Write {
		may = readWrite
	}
	signed := strings.Join([]string{volumePrefix, key.ID, g.Volume, strconv.FormatInt(until.Unix(), 10), may}, ".")
	return signed + "." + signature(key.Secret, volumePurpose, signed), nil
}

// volumeTokenParts is the number of parts of a Volume's token, separated by dots:
// prefix, key, Volume, expiry, access and signature.
const volumeTokenParts = 6

// IsVolumeToken reports whether a credential has the form of a Volume's token.
func IsVolumeToken(token string) bool { return strings.HasPrefix(token, volumePrefix+".") }

// BeginsVolumeToken reports whether parts, the pieces of a text between dots, begin
// with a Volume's token. The signature is not checked: the aim is to find possible
// tokens, to keep them from others.
func BeginsVolumeToken(parts []string) bool {
	return len(parts) >= volumeTokenParts && strings.HasSuffix(parts[0], volumePrefix) && len(parts[volumeTokenParts-1]) >= encodedLen
}

// errVolumeToken is the error for every token that differs from the signed one.
var errVolumeToken = sandbox.Errorf(sandbox.Anonymous, "this is not a valid token of a volume: get the volume again for a new one")

// Check returns the permission of a token. Every failure is the same Anonymous;
// expiry is reported only for a token with a valid signature.
func (t *Volumes) Check(ctx context.Context, token string) (VolumeGrant, error) {
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != volumeTokenParts || parts[0] != volumePrefix {
		return VolumeGrant{}, errVolumeToken
	}
	key, err := keyOf(ctx, t.keys, parts[1], errVolumeToken)
	if err != nil {
		return VolumeGrant{}, err
	}
	const last = volumeTokenParts - 1
	seconds, err := strconv.ParseInt(parts[3], 10, 64)
	if !verify(parts[last], key.Secret, volumePurpose, strings.Join(parts[:last], ".")) || err != nil {
		return VolumeGrant{}, errVolumeToken
	}
	g := VolumeGrant{Tenant: key.Tenant, Volume: parts[2], Write: parts[4] == readWrite, Until: time.Unix(seconds, 0).UTC()}
	if !t.now().Before(g.Until) {
		return VolumeGrant{}, sandbox.Errorf(sandbox.Anonymous, "this token of a volume has expired: get the volume again for a new one")
	}
	return g, nil
}
