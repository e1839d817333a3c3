package secrets_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
)

var (
	oldKey = strings.Repeat("0a", 32)
	newKey = strings.Repeat("b1", 32)
)

func open(t *testing.T) sandbox.Store {
	t.Helper()
	return sqlitetest.Open(t)
}

func service(t *testing.T, store sandbox.SecretStore, keys ...string) *secrets.Service {
	t.Helper()
	ring, err := secrets.ParseKeyring(strings.Join(keys, ","))
	if err != nil {
		t.Fatal(err)
	}
	return secrets.New(store, ring)
}

func create(t *testing.T, s *secrets.Service, tenant sandbox.TenantID, name, value string) sandbox.Secret {
	t.Helper()
	made, err := s.Create(t.Context(), tenant, secrets.Request{Name: name, Value: sandbox.SecretValue(value)})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestSecretLife(t *testing.T) {
	store := open(t)
	s := service(t, store, oldKey)
	const value = "sk-live-0123456789"
	made := create(t, s, "t", "API_KEY", value)
	if bytes.Contains(made.Sealed.Value, []byte(value)) || bytes.Contains(made.Sealed.Key, []byte(value)) {
		t.Error("the value is kept in the clear")
	}
	if got, err := s.Open(t.Context(), "t", "API_KEY"); err != nil || got.Value != value {
		t.Errorf("Value = %q, %v", string(got.Value), err)
	}
	if _, err := s.Create(t.Context(), "t", secrets.Request{Name: "API_KEY", Value: "x"}); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("the same name = %v", err)
	}
	if _, err := s.Open(t.Context(), "other", "API_KEY"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("another tenant's = %v", err)
	}
	text := "for the payment service"
	replaced, err := s.Replace(t.Context(), "t", secrets.Request{Name: "API_KEY", Value: "second", Description: &text})
	if err != nil || replaced.Description != text || bytes.Equal(replaced.Sealed.Key, made.Sealed.Key) {
		t.Errorf("Replace = %+v, %v", replaced, err)
	}
	if got, err := s.Open(t.Context(), "t", "API_KEY"); err != nil || got.Value != "second" {
		t.Errorf("after Replace Value = %q, %v", string(got.Value), err)
	}
	if kept, err := s.Replace(t.Context(), "t", secrets.Request{Name: "API_KEY", Value: "third"}); err != nil || kept.Description != text {
		t.Errorf("Replace without a description = %+v, %v", kept, err)
	}
	if err := s.Delete(t.Context(), "t", "API_KEY"); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"Delete":  s.Delete(t.Context(), "t", "API_KEY"),
		"Value":   codetest.ErrOf(s.Open(t.Context(), "t", "API_KEY")),
		"Replace": codetest.ErrOf(s.Replace(t.Context(), "t", secrets.Request{Name: "API_KEY", Value: "x"})),
	} {
		if !errors.Is(err, sandbox.NotFound) {
			t.Errorf("%s of what is deleted = %v", what, err)
		}
	}
}

func TestCreateOnce(t *testing.T) {
	s := service(t, open(t), oldKey)
	req := secrets.Request{ID: sandbox.NewSecretID(), Name: "A", Value: "v"}
	for range 2 { // the second is a repeat of a request whose answer was lost
		if made, err := s.Create(t.Context(), "t", req); err != nil || made.ID != req.ID {
			t.Errorf("Create = %+v, %v", made, err)
		}
	}
	req.ID = sandbox.NewSecretID()
	if _, err := s.Create(t.Context(), "t", req); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("another request = %v", err)
	}
}

func TestBadSecrets(t *testing.T) {
	s := service(t, open(t), oldKey)
	long, unprintable := strings.Repeat("x", sandbox.MaxSecretDescription+1), "a\x00b"
	for name, r := range map[string]secrets.Request{
		"no name":         {Value: "v"},
		"a path":          {Name: "../x", Value: "v"},
		"a long name":     {Name: strings.Repeat("n", 129), Value: "v"},
		"no value":        {Name: "n"},
		"a long value":    {Name: "n", Value: sandbox.SecretValue(strings.Repeat("v", sandbox.MaxSecretValue+1))},
		"a line break":    {Name: "n", Value: "hidden\r\nX-Evil: 1"},
		"a NUL":           {Name: "n", Value: "hidden\x00"},
		"a space at end":  {Name: "n", Value: "hidden "},
		"a long text":     {Name: "n", Value: "hidden", Description: &long},
		"an unclear text": {Name: "n", Value: "hidden", Description: &unprintable},
	} {
		for what, do := range map[string]func(context.Context, sandbox.TenantID, secrets.Request) (sandbox.Secret, error){"Create": s.Create, "Replace": s.Replace} {
			if _, err := do(t.Context(), "t", r); !errors.Is(err, sandbox.Invalid) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
}

func TestSecretValueDoesNotPrint(t *testing.T) {
	v := sandbox.SecretValue("hidden")
	for _, verb := range []string{"%v", "%s", "%+v", "%#v", "%q"} {
		if text := fmt.Sprintf(verb, struct{ V sandbox.SecretValue }{v}); strings.Contains(text, "hidden") {
			t.Errorf("%s prints %s", verb, text)
		}
	}
}

// What is sealed for one record opens in no other.
func TestSealedValuesStayWhereTheyAre(t *testing.T) {
	store := open(t)
	s := service(t, store, oldKey)
	a, b := create(t, s, "t", "a", "of a"), create(t, s, "other", "b", "of b")
	b.Sealed = a.Sealed
	if _, err := store.UpdateSecret(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Open(t.Context(), "other", "b"); !errors.Is(err, sandbox.Unavailable) || v.Value != "" {
		t.Errorf("a value that was moved = %q, %v", string(v.Value), err)
	}
	a.Sealed.Value[len(a.Sealed.Value)-1] ^= 1
	if _, err := store.UpdateSecret(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Open(t.Context(), "t", "a"); !errors.Is(err, sandbox.Unavailable) || v.Value != "" {
		t.Errorf("a value that was changed = %q, %v", string(v.Value), err)
	}
}

func TestRotate(t *testing.T) {
	store := open(t)
	before := service(t, store, oldKey)
	const count = 130 // more than are read at a time
	for i := range count {
		create(t, before, sandbox.TenantID(fmt.Sprint("t", i%3)), fmt.Sprint("n", i), fmt.Sprint("value ", i))
	}
	if _, err := service(t, store, newKey).Open(t.Context(), "t1", "n1"); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("without its key a secret = %v", err)
	}
	if n, err := service(t, store, newKey).Rotate(t.Context()); err == nil || n != 0 {
		t.Errorf("without the old key Rotate = %d, %v", n, err)
	}
	both := service(t, store, newKey, oldKey)
	create(t, both, "t1", "fresh", "new from the start")
	if n, err := both.Rotate(t.Context()); err != nil || n != count {
		t.Errorf("Rotate = %d, %v, want %d", n, err, count)
	}
	if n, err := both.Rotate(t.Context()); err != nil || n != 0 {
		t.Errorf("a second Rotate = %d, %v", n, err)
	}
	after := service(t, store, newKey)
	for i := range count {
		v, err := after.Open(t.Context(), sandbox.TenantID(fmt.Sprint("t", i%3)), fmt.Sprint("n", i))
		if err != nil || string(v.Value) != fmt.Sprint("value ", i) {
			t.Fatalf("after Rotate n%d = %q, %v", i, string(v.Value), err)
		}
	}
}

func TestWithoutKey(t *testing.T) {
	s := secrets.New(open(t), nil)
	for what, err := range map[string]error{
		"Create":  codetest.ErrOf(s.Create(t.Context(), "t", secrets.Request{Name: "n", Value: "v"})),
		"Replace": codetest.ErrOf(s.Replace(t.Context(), "t", secrets.Request{Name: "n", Value: "v"})),
		"List":    codetest.ErrOf(s.List(t.Context(), "t")),
		"Value":   codetest.ErrOf(s.Open(t.Context(), "t", "n")),
		"Delete":  s.Delete(t.Context(), "t", "n"),
		"Rotate":  codetest.ErrOf(s.Rotate(t.Context())),
	} {
		if !errors.Is(err, sandbox.Unsupported) {
			t.Errorf("%s = %v", what, err)
		}
	}
}

func TestKeyring(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		ok   bool
	}{
		"one":            {oldKey, true},
		"lines":          {"# the new one\n" + newKey + "\n\n# before\n" + oldKey + "\n", true},
		"commas":         {newKey + ", " + oldKey, true},
		"none":           {"\n# nothing\n", false},
		"short":          {oldKey[:62], false},
		"not hex":        {strings.Repeat("zz", 32), false},
		"twice the same": {oldKey + "," + oldKey, false},
	} {
		path := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, parseErr := secrets.ParseKeyring(tt.text)
		_, readErr := secrets.ReadKeyring(path)
		for _, err := range []error{parseErr, readErr} {
			if (err == nil) != tt.ok || err != nil && strings.Contains(err.Error(), "0a0a") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := secrets.ReadKeyring(t.TempDir()); err == nil {
		t.Error("a folder was read as keys")
	}
}
