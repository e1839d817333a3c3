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
	// MaxSecretUses is how many SecretUses a Sandbox may have.
	MaxSecretUses = 32
	// MaxSecretBytes bounds the headers of a Sandbox's Secrets in all.
	MaxSecretBytes = 128 << 10
	// maxSecretFormat and maxSecretHeader bound SecretUse's, in bytes, and maxPlainFormat
	// that of one without a Secret.
	maxSecretFormat = 512
	maxPlainFormat  = 2 << 10
	maxSecretHeader = 64
	// maxUsesLen bounds the text of SecretUses, in bytes.
	maxUsesLen = 64 << 10
	// secretPlace is where Format has the value.
	secretPlace = "{value}"
	// HiddenValue is shown for a value that whoever asks may not know.
	HiddenValue = "[hidden]"
	// HTTPSPort is that of a SecretUse whose Host names none.
	HTTPSPort = 443
)

// A SecretUse has requests of a Sandbox to a host get a header with a Secret's
// value, on the way: the value never enters the Sandbox. Only HTTPS requests get
// it, whose server shows a valid certificate for the host. A host that several
// SecretUses are about gets what those say that name it, or else those with the
// longest name that it is below.
type SecretUse struct {
	// Secret is its name; empty: none, and Format is the value, which is then no
	// secret of the Sandbox's owner.
	Secret string `json:"name"`
	Host   string `json:"host"`   // a name, perhaps after "*.", which is all below it, and perhaps with :PORT
	Header string `json:"header"` // is replaced if the request has it
	// Format is the header's value, with "{value}" once; empty: the value alone.
	Format string `json:"format,omitempty"`
}

// SecretUses are the SecretUses of a Sandbox as a list in JSON, in its one form;
// empty: none. Equal uses are equal strings.
type SecretUses string

// NamedSecretUses are the uses that a request names, each of a Secret.
func NamedSecretUses(uses []SecretUse) (SecretUses, error) {
	for _, u := range uses {
		if err := CheckSecretName(u.Secret); err != nil {
			return "", err
		}
	}
	return NewSecretUses(uses)
}

// NewSecretUses checks uses and returns them in their one form.
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

// List returns the uses; Invalid when s is not in its one form.
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

// Masked returns s with HiddenValue for each value that is no Secret's and stands in s
// itself. It is for showing only.
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

var errUses = Errorf(Invalid, "the uses of secrets are not in their one form")

func (s SecretUses) check() error {
	_, err := s.List()
	return err
}

// Uses reports whether one of them is of the Secret called name, which is not empty.
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

// Site returns the host and port that u is about; the host may be after "*.".
func (u SecretUse) Site() (host string, port uint16, err error) {
	bad := Errorf(Invalid, "secrets: host must be a name like api.example.com or *.example.com, perhaps with :PORT, not %.64q; write names beyond ASCII as xn--", u.Host)
	if host, port, ok := parseSites(u.Host); ok {
		return host, port, nil
	}
	return "", 0, bad
}

// parseSites reads a name, perhaps after "*." and perhaps with :PORT.
func parseSites(text string) (host string, port uint16, ok bool) {
	name, below := strings.CutPrefix(text, "*.")
	if host, port, ok = parseSite(name); ok && below {
		host = "*." + host
	}
	return host, port, ok
}

// parseSite reads a name, perhaps with :PORT.
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

// Value is what the header gets.
func (u SecretUse) Value(v SecretValue) SecretValue {
	switch {
	case u.Secret == "":
		return SecretValue(u.Format)
	case u.Format == "":
		return v
	}
	return SecretValue(strings.Replace(u.Format, secretPlace, string(v), 1))
}

// framing are headers that say how a request is read or where it goes, so that
// no Secret may stand in them.
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

// SecretBinding is what a Boot's link is told of the Sandbox's Secrets. It is
// kept in memory only. The zero value is none.
type SecretBinding struct {
	// Authority is a certificate in PEM that programs inside trust, and Key, in
	// PEM, what certificates are made with in its name; Key stays outside.
	Authority string         `json:"authority,omitempty"`
	Key       SecretValue    `json:"key,omitempty"`
	Headers   []SecretHeader `json:"headers,omitempty"`
}

// SecretHeader is a header that requests to a host and port get.
type SecretHeader struct {
	Host   string      `json:"host"` // as in a SecretUse, without the port
	Port   uint16      `json:"port"`
	Header string      `json:"header"` // empty: none; then what is less particular about the host does not hold either
	Value  SecretValue `json:"value"`
}
