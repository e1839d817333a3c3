package sandbox

import (
	"context"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxSecrets bounds the Secrets of a Tenant.
	MaxSecrets = 1000
	// MaxSecretValue bounds a Secret's value, in bytes: it is sent in a header.
	MaxSecretValue = 8 << 10
	// MaxSecretDescription bounds Secret.Description, in characters.
	MaxSecretDescription = 500
	// Bounds of Secret.Metadata: pairs, and bytes of a name, of a value and in all.
	maxSecretPairs                                            = 32
	maxSecretPairName, maxSecretPairValue, maxSecretPairBytes = 128, 1024, 8192
)

// Secret is a value that a Tenant's Sandboxes can use but never see. It cannot be read
// back; only the Sealed value is stored.
type Secret struct {
	ID          string // "p" and 20 of [a-z0-9], "s" from earlier versions; a Secret that replaces a deleted one has a new ID
	Tenant      TenantID
	Name        string // unique among the Tenant's Secrets; never changes
	Description string
	Metadata    map[string]string // client-defined; nil: none
	Hosts       SecretHosts
	// ValueVersion is the number of its values so far, from 1.
	ValueVersion int64
	Sealed       SealedValue
	CreatedAt    time.Time
	UpdatedAt    time.Time // last change of its value or Description
	Version      int64     // of the record; a write passes the version that it read
}

// OpenSecret is a Secret's value in the clear, with its allowed hosts.
type OpenSecret struct {
	Value SecretValue
	Hosts SecretHosts
}

// SealedValue is an encrypted value. Value is sealed with its own data key; Key is that
// data key, sealed with the master key KeyID.
type SealedValue struct {
	KeyID string
	Key   []byte
	Value []byte
}

// SecretValue is a Secret's value in the clear. It prints as "[secret]".
type SecretValue string

func (SecretValue) String() string   { return "[secret]" }
func (SecretValue) GoString() string { return "[secret]" }

// NewSecretID returns a fresh Secret ID: "p" and 20 of [a-z0-9]. Secrets that
// earlier versions made have an "s" instead.
func NewSecretID() string { return secretID.fresh() }

var secretNamePattern = lazily(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// CheckSecretName returns Invalid when name cannot name a Secret.
func CheckSecretName(name string) error {
	if !secretNamePattern.MatchString(name) {
		return Errorf(Invalid, "the name of a secret has 1 to 128 letters, digits and the characters _ . and -, and begins with a letter or digit")
	}
	return nil
}

// Check returns Invalid for a value that cannot be sent in a header. The error does not
// contain the value.
func (v SecretValue) Check() error {
	if v == "" || len(v) > MaxSecretValue {
		return Errorf(Invalid, "the value of a secret has 1 to %d bytes", MaxSecretValue)
	}
	if !validHeaderValue(string(v)) {
		return Errorf(Invalid, "the value of a secret is sent in a header: it must have no line breaks or other control characters, and no space at its ends")
	}
	return nil
}

// validHeaderValue reports whether v may stand in a header (RFC 9110, section
// 5.5).
func validHeaderValue(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return v == "" || !isBlank(v[0]) && !isBlank(v[len(v)-1])
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// CheckSecretDescription returns Invalid when text cannot be a Description.
func CheckSecretDescription(text string) error {
	bad := !utf8.ValidString(text) || utf8.RuneCountInString(text) > MaxSecretDescription
	for _, c := range text {
		bad = bad || !unicode.IsPrint(c)
	}
	if bad {
		return Errorf(Invalid, "description must be at most %d printable characters", MaxSecretDescription)
	}
	return nil
}

// CheckSecretMetadata returns Invalid when m cannot be Metadata.
func CheckSecretMetadata(m map[string]string) error {
	if len(m) > maxSecretPairs {
		return Errorf(Invalid, "metadata has at most %d pairs", maxSecretPairs)
	}
	all := 0
	for name, value := range m {
		if name == "" || len(name) > maxSecretPairName || len(value) > maxSecretPairValue || !utf8.ValidString(name) || !utf8.ValidString(value) {
			return Errorf(Invalid, "metadata: a name has 1 to %d bytes and a value at most %d", maxSecretPairName, maxSecretPairValue)
		}
		all += len(name) + len(value)
	}
	if all > maxSecretPairBytes {
		return Errorf(Invalid, "metadata has at most %d bytes in all", maxSecretPairBytes)
	}
	return nil
}

// SecretStore keeps Secrets, sealed. Only gateway writes here.
type SecretStore interface {
	// InsertSecret adds a Secret at version 1. A name in use is a Conflict; exceeding
	// MaxSecrets is Exhausted.
	InsertSecret(ctx context.Context, s Secret) (Secret, error)
	// UpdateSecret writes Description, Metadata, Hosts, ValueVersion, Sealed and
	// UpdatedAt of s if its stored version is s.Version, and returns it with the next
	// version. Conflict otherwise, NotFound if no record exists.
	UpdateSecret(ctx context.Context, s Secret) (Secret, error)
	// SecretByName returns a Tenant's Secret; NotFound when the name is unknown.
	SecretByName(ctx context.Context, tenant TenantID, name string) (Secret, error)
	// Secrets returns a Tenant's Secrets by name, at most MaxSecrets.
	Secrets(ctx context.Context, tenant TenantID) ([]Secret, error)
	// DeleteSecret removes a Tenant's Secret; NotFound when the name is unknown.
	DeleteSecret(ctx context.Context, tenant TenantID, name string) error
	// SecretsNotUnder returns up to limit Secrets, of all Tenants, that are not sealed
	// with the master key keyID.
	SecretsNotUnder(ctx context.Context, keyID string, limit int) ([]Secret, error)
}
