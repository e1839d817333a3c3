package session_test

import (
	"reflect"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func uses(t *testing.T, all ...sandbox.SecretUse) sandbox.SecretUses {
	t.Helper()
	u, err := sandbox.NewSecretUses(all)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestSecretsOfSandboxes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.secrets.Store("t A", sandbox.OpenSecret{Value: "one"})
		a := uses(t, sandbox.SecretUse{Secret: "A", Host: "a.example", Header: "X-A", Format: "Key {value}"})
		sb := w.create("t", sandbox.CreateRequest{Secrets: a})
		want1 := sandbox.SecretBinding{
			Authority: "authority of " + sb.ID, Key: sandbox.SecretValue("key of " + sb.ID),
			Headers: []sandbox.SecretHeader{{Host: "a.example", Port: 443, Header: "X-A", Value: "Key one"}},
		}
		if told := w.told(sb); !reflect.DeepEqual(told.Secrets, want1) {
			t.Errorf("told %#v", told.Secrets)
		}
		if r := w.record(sb.ID); r.Secrets != a {
			t.Errorf("recorded %s", r.Secrets)
		}

		// The Boot receives a changed value, and the deletion of a Secret.
		w.secrets.Store("t A", sandbox.OpenSecret{Value: "two"})
		if err := w.m.SecretChanged(t.Context(), "t", "A"); err != nil {
			t.Fatal(err)
		}
		if told := w.told(sb); len(told.Secrets.Headers) != 1 || told.Secrets.Headers[0].Value != "Key two" || told.Revision != 2 {
			t.Errorf("after a change it was told %#v, revision %d", told.Secrets, told.Revision)
		}
		for _, other := range []struct{ tenant, name string }{{"t", "B"}, {"x", "A"}} {
			if err := w.m.SecretChanged(t.Context(), sandbox.TenantID(other.tenant), other.name); err != nil || w.told(sb).Revision != 2 {
				t.Errorf("a change of %v: %v, revision %d", other, err, w.told(sb).Revision)
			}
		}
		w.secrets.Delete("t A")
		if err := w.m.SecretChanged(t.Context(), "t", "A"); err != nil || len(w.told(sb).Secrets.Headers) != 0 {
			t.Errorf("after its end it was told %#v, %v", w.told(sb).Secrets, err)
		}

		// A missing Secret cannot be requested. A Sandbox whose Secret was deleted can
		// still be changed.
		for what, err := range map[string]error{
			"create":           codetest.ErrOf(w.m.Create(t.Context(), "t", sandbox.CreateRequest{Secrets: a})),
			"another tenant's": codetest.ErrOf(w.m.Create(t.Context(), "x", sandbox.CreateRequest{Secrets: a})),
			"change":           codetest.ErrOf(w.m.Update(t.Context(), "t", sb.ID, sandbox.Change{Secrets: ptr(uses(t, sandbox.SecretUse{Secret: "B", Host: "a.example", Header: "X-A"}))})),
		} {
			codetest.Want(t, what, err, sandbox.Invalid)
		}
		if got := w.update(sb.ID, sandbox.Change{Network: ptr(sandbox.NetworkNone)}); got.Secrets != a {
			t.Errorf("after another change it uses %s", got.Secrets)
		}
		if got := w.update(sb.ID, sandbox.Change{Secrets: ptr(sandbox.SecretUses(""))}); got.Secrets != "" || w.told(sb).Secrets.Authority != "" {
			t.Errorf("after they were taken away it uses %s", got.Secrets)
		}
	})
}

// A header without a Secret is passed on unchanged, also if no Secrets exist.
func TestHeadersWithoutSecrets(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		sb := w.create("t", sandbox.CreateRequest{Secrets: uses(t, sandbox.SecretUse{Host: "a.example", Header: "X-A", Format: "plain {value}"})})
		told := w.told(sb).Secrets
		want := []sandbox.SecretHeader{{Host: "a.example", Port: 443, Header: "X-A", Value: "plain {value}"}}
		if !reflect.DeepEqual(told.Headers, want) || told.Authority == "" {
			t.Errorf("told %#v", told)
		}
	})
}

// A Secret is sent only to its hosts, also when they change while a Sandbox uses it.
func TestHostsOfSecrets(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.secrets.Store("t A", sandbox.OpenSecret{Value: "one", Hosts: sandbox.SecretHosts{"a.example"}})
		at := func(host string) sandbox.SecretUses {
			return uses(t, sandbox.SecretUse{Secret: "A", Host: host, Header: "X-A"})
		}
		sb := w.create("t", sandbox.CreateRequest{Secrets: at("a.example")})
		if told := w.told(sb); len(told.Secrets.Headers) != 1 {
			t.Errorf("told %#v", told.Secrets)
		}
		codetest.Want(t, "create for another", codetest.ErrOf(w.m.Create(t.Context(), "t", sandbox.CreateRequest{Secrets: at("b.example")})), sandbox.Denied)
		codetest.Want(t, "change to another", codetest.ErrOf(w.m.Update(t.Context(), "t", sb.ID, sandbox.Change{Secrets: ptr(at("b.example"))})), sandbox.Denied)
		// A wildcard host needs a Secret that is allowed for the whole wildcard. A host
		// that loses its own Secret does not get the wildcard's instead.
		codetest.Want(t, "create for all below", codetest.ErrOf(w.m.Create(t.Context(), "t", sandbox.CreateRequest{Secrets: at("*.example")})), sandbox.Denied)
		w.secrets.Store("t B", sandbox.OpenSecret{Value: "below", Hosts: sandbox.SecretHosts{"*.example"}})
		below := uses(t, sandbox.SecretUse{Secret: "A", Host: "a.example", Header: "X-A"}, sandbox.SecretUse{Secret: "B", Host: "*.example", Header: "X-B"})
		both := w.create("t", sandbox.CreateRequest{Secrets: below})
		w.secrets.Store("t A", sandbox.OpenSecret{Value: "two", Hosts: sandbox.SecretHosts{"b.example"}})
		if err := w.m.SecretChanged(t.Context(), "t", "A"); err != nil {
			t.Error(err)
		}
		left := []sandbox.SecretHeader{{Host: "a.example", Port: 443}, {Host: "*.example", Port: 443, Header: "X-B", Value: "below"}}
		if told := w.told(both).Secrets; !reflect.DeepEqual(told.Headers, left) {
			t.Errorf("told %#v, want %#v", told.Headers, left)
		}
		if err := w.m.SecretChanged(t.Context(), "t", "A"); err != nil || len(w.told(sb).Secrets.Headers) != 0 {
			t.Errorf("after its hosts changed it was told %#v, %v", w.told(sb).Secrets, err)
		}
	})
}
