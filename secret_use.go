package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

const (
	// MaxSecretUses bounds the SecretUses of a Sandbox.
	MaxSecretUses = 32
	// MaxSecretBytes bounds the total size of a Sandbox's secret headers, in bytes.
	MaxSecretBytes = 128 << 10
	// maxSecretFormat and maxSecretHeader bound SecretUse.Format and Header, in bytes;
	// maxPlainFormat bounds Format in a SecretUse without a Secret.
	maxSecretFormat = 512
	maxPlainFormat  = 2 << 10
	maxSecretHeader = 64
	// maxUsesLen bounds the text of SecretUses, in bytes.
	maxUsesLen = 64 << 10
	// secretPlace is the placeholder of the value in Format.
	secretPlace = "{value}"
	// HiddenValue replaces a value that the caller may not see.
	HiddenValue = "[hidden]"
	// HTTPSPort is the default port of SecretUse.Host.
	HTTPSPort = 443
)

// A SecretUse adds a header with a Secret's value to a Sandbox's requests to a host. The
// header is added outside, so that the value never enters the Sandbox. It is added only
// to HTTPS requests whose server has a valid certificate for the host. If several
// SecretUses match a host, only the most specific Host applies: the host's own name, or
// else the longest wildcard.
type SecretUse struct {
	// Secret is the Secret's name. Empty: Format is the value itself, which is then not
	// secret from the Sandbox's owner.
	Secret string `json:"name"`
	Host   string `json:"host"`   // a name, or "*." and a name for all names below it, perhaps with :PORT
	Header string `json:"header"` // replaces the request's own header of that name
	// Format is the header's value, containing "{value}" once; empty: only the value.
	Format string `json:"format,omitempty"`
}

// SecretUses is a Sandbox's list of SecretUse as JSON in canonical form; empty: none.
// Equal uses are equal strings.
type SecretUses string

// NamedSecretUses is NewSecretUses for a request, where each use must name a Secret.
func NamedSecretUses(uses []SecretUse) (SecretUses, error) {
	for _, u := range uses {
		if err := CheckSecretName(u.Secret); err != nil {
			return "", err
		}
	}
	return NewSecretUses(uses)
}

// NewSecretUses checks uses and returns them in canonical form.
func NewSecretUses(uses []SecretUse) (SecretUses, error) {
	if len(uses) > MaxSecretUses {
		return "", Errorf(Invalid, "a sandbox may use at most %d secrets", MaxSecretUses)
	}
	if len(uses) == 0 {
		return "", nil
	}
	normal := make([]SecretUse, len(uses))
	seen := map[string]bool{}
	for i, u := range uses {
		var err error
		if normal[i], err = u.normal(); err != nil {
			return "", err
		}
		at := normal[i].Host + " " + normal[i].Header
		if seen[at] {
			return "", Errorf(Invalid, "secrets: requests to %s get the header %s twice", normal[i].Host, normal[i].Header)
		}
		seen[at] = true
	}
	text, err := json.Marshal(normal)
	if len(text) > maxUsesLen {
		return "", Errorf(Invalid, "the headers that a sandbox's requests get have at most %d bytes in all", maxUsesLen)
	}
	return SecretUses(text), err
}

// List returns the uses; Invalid when s is not in canonical form.
func (s SecretUses) List() ([]SecretUse, error) {
	if s == "" {
		return nil, nil
	}
	var uses []SecretUse
	d := json.NewDecoder(bytes.NewReader([]byte(s)))
	d.DisallowUnknownFields()
	if len(s) > maxUsesLen || d.Decode(&uses) != nil {
		return nil, errUses
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errUses
	}
	normal, err := NewSecretUses(uses)
	if err == nil && normal != s {
		err = errUses
	}
	return uses, err
}

// Masked returns s with HiddenValue in place of each Format that is a literal value,
// without a Secret. The result is for display only.
func (s SecretUses) Masked() SecretUses {
	uses, err := s.List()
	if err != nil {
		return ""
	}
	for i := range uses {
		if uses[i].Secret == "" {
			uses[i].Format = HiddenValue
		}
	}
	if s, err = NewSecretUses(uses); err != nil {
		return ""
	}
	return s
}

var errUses = Errorf(Invalid, "the uses of secrets are not in canonical form")

func (s SecretUses) check() error {
	_, err := s.List()
	return err
}

// Uses reports whether s uses the Secret called name, which must not be empty.
func (s SecretUses) Uses(name string) bool {
	uses, err := s.List()
	return err == nil && slices.ContainsFunc(uses, func(u SecretUse) bool { return u.Secret == name })
}

func (u SecretUse) normal() (SecretUse, error) {
	if u.Secret != "" {
		if err := CheckSecretName(u.Secret); err != nil {
			return u, err
		}
	}
	host, port, err := u.Site()
	if err != nil {
		return u, err
	}
	u.Host = siteText(host, port)
	if u.Header, err = normalHeader(u.Header); err != nil {
		return u, err
	}
	if u.Secret == "" {
		if u.Format == "" || len(u.Format) > maxPlainFormat || !validHeaderValue(u.Format) {
			return u, Errorf(Invalid, "secrets: the value of a header has 1 to %d bytes, and nothing that a header cannot have", maxPlainFormat)
		}
		return u, nil
	}
	if u.Format == secretPlace {
		u.Format = ""
	}
	if u.Format != "" && (len(u.Format) > maxSecretFormat || strings.Count(u.Format, secretPlace) != 1 || !validHeaderValue(u.Format)) {
		return u, Errorf(Invalid, "secrets: format has %q once, at most %d bytes, and nothing that a header cannot have", secretPlace, maxSecretFormat)
	}
	return u, nil
}

// Site returns the host and port of u.Host; the host may begin with "*.".
func (u SecretUse) Site() (host string, port uint16, err error) {
	bad := Errorf(Invalid, "secrets: host must be a name like api.example.com or *.example.com, perhaps with :PORT, not %.64q; write names beyond ASCII as xn--", u.Host)
	if host, port, ok := parseSites(u.Host); ok {
		return host, port, nil
	}
	return "", 0, bad
}

// parseSites parses a name, perhaps after "*." and perhaps with :PORT.
func parseSites(text string) (host string, port uint16, ok bool) {
	name, below := strings.CutPrefix(text, "*.")
	if host, port, ok = parseSite(name); ok && below {
		host = "*." + host
	}
	return host, port, ok
}

// parseSite parses a name, perhaps with :PORT.
func parseSite(text string) (host string, port uint16, ok bool) {
	host, port = text, HTTPSPort
	if strings.Contains(text, ":") {
		name, number, err := net.SplitHostPort(text)
		n, numberErr := strconv.ParseUint(number, 10, 16)
		if err != nil || numberErr != nil || n == 0 {
			return "", 0, false
		}
		host, port = name, uint16(n)
	}
	host, ok = NormalDomain(host)
	return host, port, ok
}

// Value returns the header's value, where v is the Secret's.
func (u SecretUse) Value(v SecretValue) SecretValue {
	switch {
	case u.Secret == "":
		return SecretValue(u.Format)
	case u.Format == "":
		return v
	}
	return SecretValue(strings.Replace(u.Format, secretPlace, string(v), 1))
}

// framing lists headers that control the framing or routing of a request. They must not
// hold a Secret.
var framing = []string{
	"Connection", "Content-Length", "Expect", "Forwarded", "Host", "Http2-Settings", "Keep-Alive", "Max-Forwards", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Via",
}

func normalHeader(name string) (string, error) {
	bad := name == "" || len(name) > maxSecretHeader
	for i := range len(name) {
		c := name[i]
		bad = bad || (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	}
	if bad {
		return "", Errorf(Invalid, "secrets: header must be a name of at most %d letters, digits, '-' and '_'", maxSecretHeader)
	}
	name = textproto.CanonicalMIMEHeaderKey(name)
	if slices.Contains(framing, name) {
		return "", Errorf(Invalid, "secrets: the header %s is not for secrets", name)
	}
	return name, nil
}

// SecretBinding holds the Sandbox's Secrets for a Boot's link. It is kept in memory only.
// The zero value is no Secrets.
type SecretBinding struct {
	// Authority is the PEM certificate of the per-sandbox CA that programs inside trust.
	// Key is the CA's private key in PEM; it stays outside.
	Authority string         `json:"authority,omitempty"`
	Key       SecretValue    `json:"key,omitempty"`
	Headers   []SecretHeader `json:"headers,omitempty"`
}

// SecretHeader is a header that is added to requests to a host and port.
type SecretHeader struct {
	Host   string      `json:"host"` // as SecretUse.Host, without the port
	Port   uint16      `json:"port"`
	Header string      `json:"header"` // empty: none, and less specific hosts do not apply either
	Value  SecretValue `json:"value"`
}
