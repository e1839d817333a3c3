package installation_test

import (
	"encoding/json"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
)

// member returns Keys that authority certified for a node.
func member(t *testing.T, authority *installation.Keys, node string) (*installation.Keys, installation.Key) {
	t.Helper()
	k := installation.Open(t.TempDir())
	own := must[installation.Key](t)(k.Own())
	m := must[installation.Membership](t)(authority.Certify("prod", node, own))
	if err := k.Enlist(m); err != nil {
		t.Fatal(err)
	}
	return k, own
}

func certificate(t *testing.T, k *installation.Keys) *installation.Certificate {
	t.Helper()
	return must[*installation.Certificate](t)(k.Certificate())
}

func TestMembersTrustEachOther(t *testing.T) {
	authority := installation.Open(t.TempDir())
	a, keyA := member(t, authority, "a")
	b, keyB := member(t, authority, "b")
	trusts := func(k *installation.Keys, key installation.Key, c *installation.Certificate) bool {
		return must[bool](t)(k.TrustsMember(key, c))
	}
	if !trusts(a, keyB, certificate(t, b)) || !trusts(b, keyA, certificate(t, a)) {
		t.Error("members of one cluster do not trust each other")
	}
	stranger, strange := member(t, installation.Open(t.TempDir()), "a")
	outside := installation.Open(t.TempDir())
	if c := certificate(t, outside); c != nil {
		t.Errorf("outside of a cluster there is the certificate %+v", c)
	}
	renamed, forOther := *certificate(t, b), *certificate(t, b)
	renamed.Node = "c"
	forOther.Key = strange
	for name, wrong := range map[string]bool{
		"another cluster's":       trusts(a, strange, certificate(t, stranger)),
		"no certificate":          trusts(a, keyB, nil),
		"another key's":           trusts(a, strange, certificate(t, b)),
		"of another node":         trusts(a, keyB, &renamed),
		"with another key":        trusts(a, strange, &forOther),
		"outside of a cluster":    trusts(outside, keyB, certificate(t, b)),
		"without its signature":   trusts(a, keyB, &installation.Certificate{Cluster: "prod", Node: "b", Key: keyB}),
		"in the operator's list?": must[bool](t)(a.Trusts(keyB)),
	} {
		if wrong {
			t.Errorf("trusts a certificate %s", name)
		}
	}
}

func TestEnlistRefusesOthersCertificates(t *testing.T) {
	authority, k := installation.Open(t.TempDir()), installation.Open(t.TempDir())
	m := must[installation.Membership](t)(authority.Certify("prod", "a", must[installation.Key](t)(installation.Open(t.TempDir()).Own())))
	if err := k.Enlist(m); err == nil {
		t.Error("enlisted with the certificate of another key")
	}
	m = must[installation.Membership](t)(authority.Certify("prod", "a", must[installation.Key](t)(k.Own())))
	m.Certificate.Node = "b"
	if err := k.Enlist(m); err == nil {
		t.Error("enlisted with a changed certificate")
	}
	if c := certificate(t, k); c != nil {
		t.Errorf("kept %+v", c)
	}
}

func TestRevocations(t *testing.T) {
	authority := installation.Open(t.TempDir())
	a, _ := member(t, authority, "a")
	_, keyB := member(t, authority, "b")
	_, keyC := member(t, authority, "c")
	revoked := func(key installation.Key) bool { return must[bool](t)(a.Revoked(key)) }
	update := func(signer *installation.Keys, keys ...installation.Key) error {
		return a.UpdateRevocations(must[[]byte](t)(signer.Revoke(keys)))
	}
	if err := update(authority); err != nil || revoked(keyB) {
		t.Fatalf("an empty list: %v", err)
	}
	if err := update(installation.Open(t.TempDir()), keyB); err == nil || revoked(keyB) {
		t.Fatalf("a list of another authority: %v", err)
	}
	if err := update(authority, keyB); err != nil || !revoked(keyB) || revoked(keyC) {
		t.Fatalf("a list: %v", err)
	}
	// An older list, or one of an authority that lost some, takes nothing back.
	for _, keys := range [][]installation.Key{{}, {keyC}, {}} {
		if err := update(authority, keys...); err != nil || !revoked(keyB) {
			t.Fatalf("the list %s: %v", keys, err)
		}
	}
	if !revoked(keyC) {
		t.Error("the second list was ignored")
	}
	var list installation.Revocations
	if err := json.Unmarshal(must[[]byte](t)(authority.Revoke([]installation.Key{keyB})), &list); err != nil {
		t.Fatal(err)
	}
	other := must[installation.Key](t)(installation.Open(t.TempDir()).Own())
	list.Keys = append(list.Keys, other)
	if err := a.UpdateRevocations(must[[]byte](t)(json.Marshal(list))); err == nil || revoked(other) {
		t.Fatalf("a changed list: %v", err)
	}
	for _, raw := range []string{"", "{", "null"} {
		if err := a.UpdateRevocations([]byte(raw)); err == nil {
			t.Errorf("took %q for a list", raw)
		}
	}
	if err := installation.Open(t.TempDir()).UpdateRevocations([]byte("x")); err != nil {
		t.Errorf("outside of a cluster: %v", err)
	}
}
