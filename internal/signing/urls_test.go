package signing_test

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
)

const id = "i4k2m9x0qa7c1z8w3e5r6"

// clock is a time that a test moves.
type clock struct{ now time.Time }

func open(t testing.TB) (*signing.URLs, *clock) {
	t.Helper()
	st := sqlitetest.Open(t)
	c := &clock{time.Date(2030, 1, 2, 3, 4, 5, 600, time.UTC)}
	return signing.NewURLs(st, func() time.Time { return c.now }), c
}

func copyOf(q url.Values) url.Values {
	c := url.Values{}
	for name, all := range q {
		c[name] = append([]string(nil), all...)
	}
	return c
}

func TestURLs(t *testing.T) {
	s, c := open(t)
	g := signing.URLGrant{Method: "GET", SandboxID: id, Path: "/workspace/a\nb é&=%.txt"}
	q, g, err := s.Sign(t.Context(), "tenant", g, 90*time.Second)
	if err != nil || g.Expires.Sub(c.now) < 90*time.Second || g.Expires.Sub(c.now) > 91*time.Second {
		t.Fatalf("%v, %v", g, err)
	}
	q, err = url.ParseQuery(q.Encode())
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"GET", "HEAD"} {
		tenant, got, err := s.Check(t.Context(), method, q)
		if err != nil || tenant != "tenant" || got != g {
			t.Errorf("%s: %v, %v, %v, want %v", method, tenant, got, err, g)
		}
	}
	for name, change := range map[string]func(url.Values){
		"path":         func(q url.Values) { q.Set("path", "/workspace/a") },
		"sandbox":      func(q url.Values) { q.Set("sandbox_id", "i00000000000000000000") },
		"expires":      func(q url.Values) { q.Set("expires", strconv.FormatInt(g.Expires.Unix()+1, 10)) },
		"expires word": func(q url.Values) { q.Set("expires", "never") },
		"no expires":   func(q url.Values) { q.Del("expires") },
		"key":          func(q url.Values) { q.Set("key", "k00000000000000000000") },
		"key form":     func(q url.Values) { q.Set("key", "' OR 1=1") },
		"more":         func(q url.Values) { q.Set("recursive", "true") },
		"twice":        func(q url.Values) { q.Add("path", "/workspace/a") },
		"cut":          func(q url.Values) { q.Set("signature", q.Get("signature")[:20]) },
		"empty":        func(q url.Values) { q.Set("signature", "") },
		"padded":       func(q url.Values) { q.Set("signature", q.Get("signature")+"=") },
		"longer":       func(q url.Values) { q.Set("signature", q.Get("signature")+"AAAA") },
		"other":        func(q url.Values) { q.Set("signature", strings.Repeat("A", 43)) },
		"spare bits":   func(q url.Values) { q.Set("signature", nextLetter(q.Get("signature"))) },
	} {
		bad := copyOf(q)
		change(bad)
		if tenant, _, err := s.Check(t.Context(), "GET", bad); !errors.Is(err, sandbox.Denied) || tenant != "" {
			t.Errorf("%s: %v, %v", name, tenant, err)
		}
	}
	for _, method := range []string{"PUT", "POST", "DELETE", ""} {
		if _, _, err := s.Check(t.Context(), method, q); !errors.Is(err, sandbox.Denied) {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// nextLetter changes the bits of the last letter that no byte has.
func nextLetter(s string) string { return s[:len(s)-1] + string(s[len(s)-1]+1) }

func TestURLsExpire(t *testing.T) {
	s, c := open(t)
	q, g, err := s.Sign(t.Context(), "a", signing.URLGrant{Method: "PUT", SandboxID: id, Path: "/f"}, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	c.now = g.Expires.Add(-1)
	if _, _, err := s.Check(t.Context(), "PUT", q); err != nil {
		t.Errorf("at the last moment: %v", err)
	}
	c.now = g.Expires
	if _, _, err := s.Check(t.Context(), "PUT", q); !errors.Is(err, sandbox.Denied) || !strings.Contains(err.Error(), "expired at 2030") {
		t.Errorf("afterwards: %v", err)
	}
	for _, life := range []time.Duration{0, -1, signing.MaxLife + 1} {
		if _, _, err := s.Sign(t.Context(), "a", g, life); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%s: %v", life, err)
		}
	}
}

func TestURLsEndWithTheirKey(t *testing.T) {
	s, _ := open(t)
	sign := func(tenant sandbox.TenantID) url.Values {
		t.Helper()
		q, _, err := s.Sign(t.Context(), tenant, signing.URLGrant{Method: "GET", SandboxID: id, Path: "/f"}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	before, other := sign("a"), sign("b")
	if before.Get("key") == other.Get("key") || sign("a").Get("signature") != before.Get("signature") {
		t.Errorf("%v, %v", before, other)
	}
	if err := s.Rotate(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Check(t.Context(), "GET", before); !errors.Is(err, sandbox.Denied) {
		t.Errorf("signed before: %v", err)
	}
	// Nor is the old signature good under the name of the new key.
	after := sign("a")
	before.Set("key", after.Get("key"))
	if _, _, err := s.Check(t.Context(), "GET", before); !errors.Is(err, sandbox.Denied) {
		t.Errorf("renamed: %v", err)
	}
	for _, q := range []url.Values{after, other} {
		if _, _, err := s.Check(t.Context(), "GET", q); err != nil {
			t.Errorf("%v: %v", q, err)
		}
	}
}

func FuzzURLs(f *testing.F) {
	s, _ := open(f)
	q, _, err := s.Sign(f.Context(), "a", signing.URLGrant{Method: "GET", SandboxID: id, Path: "/f"}, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	good := q.Encode()
	for _, seed := range []string{good, good + "&path=/g", good[1:], "signature=&key=", "%", "key=k00000000000000000000"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		tenant, _, err := s.Check(t.Context(), "GET", got)
		if err == nil && got.Encode() != good || err != nil && (tenant != "" || !errors.Is(err, sandbox.Denied)) {
			t.Fatalf("%q: %v, %v", raw, tenant, err)
		}
	})
}
