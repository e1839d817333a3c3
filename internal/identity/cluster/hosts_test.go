package cluster

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
)

// joinHost joins as a node, with a key of a sentry host.
func (w *world) joinHost(t testing.TB, name string) (*Identity, *installation.Keys) {
	t.Helper()
	own := installation.Open(t.TempDir())
	dir := filepath.Join(t.TempDir(), "identity")
	joined, err := Join(t.Context(), w.token(t, Node, name), dir, os.Geteuid(), own)
	if err != nil || !joined.Hosts {
		t.Fatalf("joined: %+v, %v", joined, err)
	}
	return open(t, dir), own
}

// trusts reports whether the sentry host with the Keys a takes states of b.
func trusts(t testing.TB, a, b *installation.Keys) bool {
	t.Helper()
	key, err := b.Own()
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	return must(a.TrustsMember(key, c))(t) && !must(a.Revoked(key))(t)
}

func TestJoinCertifiesSentryHosts(t *testing.T) {
	w, other := found(t, 0), found(t, 0)
	nodeA, a := w.joinHost(t, "a")
	_, b := w.joinHost(t, "b")
	_, stranger := other.joinHost(t, "b")
	if !trusts(t, a, b) || !trusts(t, b, a) {
		t.Error("the sentry hosts of one cluster do not trust each other")
	}
	if trusts(t, a, stranger) || trusts(t, stranger, a) {
		t.Error("the sentry hosts of two clusters trust each other")
	}

	// Without a list, and after a list without entries, nothing is revoked.
	k := keeper{Identity: nodeA}
	k.look(t.Context(), time.Now())
	before := nodeA.RevokedHosts()
	if err := a.UpdateRevocations(before); err != nil || !trusts(t, a, b) {
		t.Errorf("the first list: %s, %v", before, err)
	}
	if _, err := w.Revoke(ID{"prod", Node, "b"}); err != nil {
		t.Fatal(err)
	}
	k.look(t.Context(), time.Now().Add(2*crlEvery))
	if err := a.UpdateRevocations(nodeA.RevokedHosts()); err != nil || trusts(t, a, b) {
		t.Errorf("a revoked sentry host is trusted: %s, %v", nodeA.RevokedHosts(), err)
	}
	// The machine cannot come back with the same key, nor can the list be taken back.
	if _, err := Join(t.Context(), w.token(t, Node, "b"), t.TempDir(), os.Geteuid(), b); err == nil || !strings.Contains(err.Error(), "is revoked") {
		t.Errorf("joined with a revoked key: %v", err)
	}
	if err := a.UpdateRevocations(before); err != nil || trusts(t, a, b) {
		t.Errorf("an old list: %v", err)
	}
	if _, again := w.joinHost(t, "b"); !trusts(t, a, again) {
		t.Error("the same node with a new key is not trusted")
	}
}

// The certificate of a node is no right to certify a key: its server has it, which is not
// root.
func TestOnlyJoinsCertifySentryHosts(t *testing.T) {
	w := found(t, 0)
	node, _ := w.joinHost(t, "a")
	forged := installation.Open(t.TempDir())
	key, _, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	req := joinRequest{}
	if req.CSR, err = request(key); err != nil {
		t.Fatal(err)
	}
	if req.Host, err = newHostRequest(forged, req.CSR); err != nil {
		t.Fatal(err)
	}
	p := node.Current()
	answer, err := ask(t.Context(), w.Address(), http.MethodPost, renewPath, p.authorityConfig(), req)
	if err != nil || strings.Contains(string(answer), "sentry_host") {
		t.Errorf("a renewal with a sentry host's key: %s, %v", answer, err)
	}

	// Nor is a token a right to certify a key that the machine does not have.
	req.Host.Proof = []byte("x")
	token := w.token(t, Node, "c")
	req.Secret = token.Secret
	if answer, err := ask(t.Context(), w.Address(), http.MethodPost, joinPath, p.authorityConfig(), req); err == nil || !strings.Contains(err.Error(), "not signed by the key") {
		t.Errorf("a join without a proof: %s, %v", answer, err)
	}
	// A role other than node has no sentry host.
	joined, err := Join(t.Context(), w.token(t, Gateway, "g"), filepath.Join(t.TempDir(), "identity"), os.Geteuid(), installation.Open(t.TempDir()))
	if err != nil || joined.Hosts {
		t.Errorf("a gateway: %+v, %v", joined, err)
	}
}
