package signing_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

func TestPorts(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 600, time.UTC)
	tokens := signing.NewPorts(func(id string) string { return "secret of " + id }, func() time.Time { return now })
	const a, b = "i00000000000000000000", "i00000000000000000001"
	token, expires, err := tokens.Sign(a, 8000, 90*time.Second)
	if err != nil || expires.Sub(now) < 90*time.Second || expires.Sub(now) > 91*time.Second {
		t.Fatalf("%v, %v", expires, err)
	}
	parts := strings.Split(token, ".")
	for _, tt := range []struct {
		name, token, id string
		port            uint16
		want            bool
	}{
		{"its port", token, a, 8000, true},
		{"another port", token, a, 8001, false},
		{"another sandbox's", token, b, 8000, false},
		{"its own", tokens.Of(a), a, 1, true},
		{"the own of another", tokens.Of(a), b, 1, false},
		{"none", "", a, 8000, false},
		{"longer", strings.Join([]string{parts[0], parts[1] + "0", parts[2]}, "."), a, 8000, false},
		{"for ever", strings.Join([]string{parts[0], "", parts[2]}, "."), a, 8000, false},
		{"another form", "p2" + token[2:], a, 8000, false},
		{"cut", token[:len(token)-2], a, 8000, false},
		{"padded", token + "=", a, 8000, false},
		{"endless", strings.Repeat("a", 1<<20), a, 8000, false},
	} {
		until, ok := tokens.Check(tt.token, tt.id, tt.port)
		if ok != tt.want || ok && tt.token == token && !until.Equal(expires) {
			t.Errorf("%s: %v, %v", tt.name, until, ok)
		}
	}
	now = expires.Add(-time.Nanosecond)
	if _, ok := tokens.Check(token, a, 8000); !ok {
		t.Error("it expires too early")
	}
	now = expires
	if _, ok := tokens.Check(token, a, 8000); ok {
		t.Error("it does not expire")
	}
	for _, life := range []time.Duration{0, -1, signing.MaxLife + 1} {
		if token, _, err := tokens.Sign(a, 1, life); err == nil || token != "" {
			t.Errorf("for %v: %q, %v", life, token, err)
		}
	}
}
