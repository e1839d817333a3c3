package installation_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
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
	b, keyB := member(t, authority, "b")
	trusted := func() bool { return must[bool](t)(a.TrustsMember(keyB, certificate(t, b))) }
	update := func(signer *installation.Keys, number int64, keys ...installation.Key) error {
		return a.UpdateRevocations(must[[]byte](t)(signer.Revoke(number, keys)))
	}
	if err := update(authority, 1); err != nil || !trusted() {
		t.Fatalf("an empty list: %v", err)
	}
	if err := update(installation.Open(t.TempDir()), 2, keyB); err == nil || !trusted() {
		t.Fatalf("a list of another authority: %v", err)
	}
	if err := update(authority, 3, keyB); err != nil || trusted() {
		t.Fatalf("a revoked key is trusted; %v", err)
	}
	if err := update(authority, 2); err != nil || trusted() {
		t.Fatalf("an older list took a revocation back: %v", err)
	}
	var list installation.Revocations
	if err := json.Unmarshal(must[[]byte](t)(authority.Revoke(9, []installation.Key{keyB})), &list); err != nil {
		t.Fatal(err)
	}
	list.Keys = nil
	if err := a.UpdateRevocations(must[[]byte](t)(json.Marshal(list))); err == nil || trusted() {
		t.Fatalf("a changed list: %v", err)
	}
	for _, raw := range []string{"", "{", "null"} {
		if err := a.UpdateRevocations([]byte(raw)); err == nil {
			t.Errorf("took %q for a list", raw)
		}
	}
	if err := update(authority, 10); err != nil || !trusted() {
		t.Errorf("a newer list does not replace the last: %v", err)
	}
	if err := installation.Open(t.TempDir()).UpdateRevocations([]byte("x")); err != nil {
		t.Errorf("outside of a cluster: %v", err)
	}
}

// A machine that joins another cluster takes its first list, whatever its number.
func TestEnlistInAnotherCluster(t *testing.T) {
	first, second := installation.Open(t.TempDir()), installation.Open(t.TempDir())
	dir := t.TempDir()
	k := installation.Open(dir)
	own := must[installation.Key](t)(k.Own())
	for i, authority := range []*installation.Keys{first, second} {
		if err := k.Enlist(must[installation.Membership](t)(authority.Certify("prod", "a", own))); err != nil {
			t.Fatal(err)
		}
		list := must[[]byte](t)(authority.Revoke(int64(10-i), []installation.Key{{byte(i)}}))
		if err := k.UpdateRevocations(list); err != nil {
			t.Fatal(err)
		}
		if kept := must[[]byte](t)(os.ReadFile(filepath.Join(dir, "revoked.json"))); !slices.Equal(append(list, '\n'), kept) {
			t.Errorf("keeps %s instead of %s", kept, list)
		}
	}
}
