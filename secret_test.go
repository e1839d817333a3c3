package sandbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

func TestSecretUses(t *testing.T) {
	for _, tt := range []struct {
		name string
		use  sandbox.SecretUse
		want sandbox.SecretUses // empty: Invalid
	}{
		{"plain", sandbox.SecretUse{Secret: "A", Host: "api.example.com", Header: "X-Key"}, `[{"name":"A","host":"api.example.com","header":"X-Key"}]`},
		{"in other forms", sandbox.SecretUse{Secret: "a.b-C_1", Host: "API.Example.com.:443", Header: "authorization", Format: "{value}"}, `[{"name":"a.b-C_1","host":"api.example.com","header":"Authorization"}]`},
		{"port and format", sandbox.SecretUse{Secret: "A", Host: "a.b:8443", Header: "x_key", Format: "Bearer {value}"}, `[{"name":"A","host":"a.b:8443","header":"X_key","format":"Bearer {value}"}]`},
		{"no secret", sandbox.SecretUse{Host: "a.b", Header: "X", Format: "plain {value}"}, `[{"name":"","host":"a.b","header":"X","format":"plain {value}"}]`},
		{"neither secret nor value", sandbox.SecretUse{Host: "a.b", Header: "X"}, ""},
		{"no secret, and a value of two lines", sandbox.SecretUse{Host: "a.b", Header: "X", Format: "a\nb"}, ""},
		{"no secret, and a long value", sandbox.SecretUse{Host: "a.b", Header: "X", Format: strings.Repeat("a", 2049)}, ""},
		{"no host", sandbox.SecretUse{Secret: "A", Header: "X"}, ""},
		{"no header", sandbox.SecretUse{Secret: "A", Host: "a.b"}, ""},
		{"all below", sandbox.SecretUse{Secret: "A", Host: "*.A.b.:443", Header: "X"}, `[{"name":"A","host":"*.a.b","header":"X"}]`},
		{"all below, at a port", sandbox.SecretUse{Secret: "A", Host: "*.a.b:8443", Header: "X"}, `[{"name":"A","host":"*.a.b:8443","header":"X"}]`},
		{"all", sandbox.SecretUse{Secret: "A", Host: "*", Header: "X"}, ""},
		{"all below nothing", sandbox.SecretUse{Secret: "A", Host: "*.", Header: "X"}, ""},
		{"some below", sandbox.SecretUse{Secret: "A", Host: "a*.a.b", Header: "X"}, ""},
		{"below twice", sandbox.SecretUse{Secret: "A", Host: "*.*.a.b", Header: "X"}, ""},
		{"below an address", sandbox.SecretUse{Secret: "A", Host: "*.1.2.3.4", Header: "X"}, ""},
		{"an address", sandbox.SecretUse{Secret: "A", Host: "1.2.3.4", Header: "X"}, ""},
		{"an IPv6 address", sandbox.SecretUse{Secret: "A", Host: "[::1]:443", Header: "X"}, ""},
		{"a URL", sandbox.SecretUse{Secret: "A", Host: "https://a.b", Header: "X"}, ""},
		{"port 0", sandbox.SecretUse{Secret: "A", Host: "a.b:0", Header: "X"}, ""},
		{"a large port", sandbox.SecretUse{Secret: "A", Host: "a.b:65536", Header: "X"}, ""},
		{"no port after the colon", sandbox.SecretUse{Secret: "A", Host: "a.b:", Header: "X"}, ""},
		{"a header with a colon", sandbox.SecretUse{Secret: "A", Host: "a.b", Header: "X:"}, ""},
		{"a pseudo header", sandbox.SecretUse{Secret: "A", Host: "a.b", Header: ":authority"}, ""},
		{"the host", sandbox.SecretUse{Secret: "A", Host: "a.b", Header: "HOST"}, ""},
		{"the length", sandbox.SecretUse{Secret: "A", Host: "a.b", Header: "content-length"}, ""},
		{"the framing", sandbox.SecretUse{Secret: "A", Host: "a.b", Header: "transfer-encoding"}, ""},
		{"a format without a place", sandbox.SecretUse{Secret: "A", Host: "a.b", Header: "X", Format: "Bearer"}, ""},
		{"a format with two", sandbox.SecretUse{Secret: "A", Host: "a.b", Header: "X", Format: "{value} {value}"}, ""},
		{"a format with a line's end", sandbox.SecretUse{Secret: "A", Host: "a.b", Header: "X", Format: "{value}\r\nX: y"}, ""},
		{"a long format", sandbox.SecretUse{Secret: "A", Host: "a.b", Header: "X", Format: strings.Repeat("x", 600) + "{value}"}, ""},
	} {
		got, err := sandbox.NewSecretUses([]sandbox.SecretUse{tt.use})
		if got != tt.want || (tt.want == "") != errors.Is(err, sandbox.Invalid) {
			t.Errorf("%s: %s, %v, want %s", tt.name, got, err, tt.want)
		}
		if err != nil {
			continue
		}
		if list, err := got.List(); err != nil || len(list) != 1 || !got.Uses(tt.use.Secret) || got.Uses("other") {
			t.Errorf("%s: List = %v, %v", tt.name, list, err)
		}
	}
}

func TestMaskedSecretUses(t *testing.T) {
	uses, err := sandbox.NewSecretUses([]sandbox.SecretUse{
		{Secret: "A", Host: "a.b", Header: "X", Format: "Bearer {value}"}, {Host: "a.b", Header: "Y", Format: "k"}, {Host: "a.c", Header: "Y", Format: "{value}"},
	})
	const want = `[{"name":"A","host":"a.b","header":"X","format":"Bearer {value}"},{"name":"","host":"a.b","header":"Y","format":"[hidden]"},{"name":"","host":"a.c","header":"Y","format":"[hidden]"}]`
	if got := uses.Masked(); err != nil || got != want {
		t.Errorf("%s, %v", got, err)
	}
	for _, s := range []sandbox.SecretUses{"", "no list of sk_plain"} {
		if got := s.Masked(); got != "" {
			t.Errorf("%q is shown as %q", s, got)
		}
	}
}

func TestManySecretUses(t *testing.T) {
	var uses []sandbox.SecretUse
	for i := range sandbox.MaxSecretUses {
		uses = append(uses, sandbox.SecretUse{Secret: "A", Host: fmt.Sprintf("h%d.example", i), Header: "X"})
	}
	if _, err := sandbox.NewSecretUses(uses); err != nil {
		t.Error(err)
	}
	more := sandbox.SecretUse{Secret: "A", Host: "more.example", Header: "X"}
	if _, err := sandbox.NewSecretUses(append(uses, more)); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("one too many: %v", err)
	}
	if _, err := sandbox.NewSecretUses([]sandbox.SecretUse{uses[0], {Secret: "B", Host: "H0.example:443", Header: "x"}}); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("one header twice: %v", err)
	}
	if none, err := sandbox.NewSecretUses(nil); err != nil || none != "" {
		t.Errorf("none: %q, %v", none, err)
	}
	for _, bad := range []sandbox.SecretUses{"[]", "{}", "x", `[{"name":"A","host":"A.B","header":"X"}]`, `[{"name":"A","host":"a.b","header":"X","more":1}]`, `[{"name":"A","host":"a.b","header":"X"}] `} {
		if _, err := bad.List(); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestSecretFormat(t *testing.T) {
	u := sandbox.SecretUse{Secret: "A", Format: "Basic {value}=="}
	if got := u.Value("v"); string(got) != "Basic v==" {
		t.Errorf("%q", string(got))
	}
	if got := (sandbox.SecretUse{Secret: "A"}).Value("{value}"); string(got) != "{value}" {
		t.Errorf("%q", string(got))
	}
}
