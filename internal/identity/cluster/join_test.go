package cluster

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/certs"
)

// world is an authority that answers joins.
type world struct {
	*Authority
	dir     string
	bundles []Bundle
	stop    func()
}

func found(t testing.TB, life time.Duration) *world {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{dir: filepath.Join(t.TempDir(), "cluster")}
	if w.Authority, w.bundles, err = Create(w.dir, "prod", ln.Addr().String(), "first", os.Geteuid()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- NewJoins(w.Authority, life, quiet).Run(ctx, ln) }()
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(w.stop)
	return w
}

func (w *world) token(t testing.TB, role, name string) JoinToken {
	t.Helper()
	token, err := w.NewToken(role, name, time.Hour, "")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ParseJoinToken("  " + token.String() + "\n")
	if err != nil || parsed != token {
		t.Fatalf("%v, %v", parsed, err)
	}
	return parsed
}

func (w *world) join(t testing.TB, role, name string) *Identity {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "deep", "identity")
	if _, err := Join(t.Context(), w.token(t, role, name), dir, os.Geteuid(), nil); err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

// reaches checks whether a reaches b.
func reaches(t testing.TB, a, b *Identity) error {
	t.Helper()
	address, _ := listen(t, b.Server())
	_, err := exchange(address, a.Current().Client(b.ID().Role, b.ID().Name))
	return err
}

func TestInitTokenJoin(t *testing.T) {
	w := found(t, 0)
	node := w.join(t, Node, "n-1")
	if id := node.ID(); id != (ID{"prod", Node, "n-1"}) {
		t.Errorf("joined as %v", id)
	}
	if left := time.Until(node.Current().NotAfter()); left < CertificateLife-time.Minute || left > CertificateLife {
		t.Errorf("the certificate is valid for %v", left)
	}
	if len(w.bundles) != 3 {
		t.Fatalf("%+v", w.bundles)
	}
	for _, b := range w.bundles {
		first := open(t, b.Folder)
		if first.ID() != b.ID || b.ID.Name != "first" {
			t.Errorf("%v is in the folder of %v", first.ID(), b.ID)
		}
		for _, err := range []error{reaches(t, first, node), reaches(t, node, first)} {
			if err != nil {
				t.Errorf("%s and %s: %v", b.ID.Short(), node.ID().Short(), err)
			}
		}
	}
	all, err := w.Issued()
	if err != nil || len(all) != 4 || all[1].ID != "node/n-1" {
		t.Errorf("issued: %+v, %v", all, err)
	}
	for path, want := range map[string]os.FileMode{
		filepath.Join(w.dir, authorityFolder):                   0o700,
		filepath.Join(w.dir, authorityFolder, authorityKeyFile): 0o600,
		filepath.Join(w.dir, authorityFolder, tokensFolder):     0o700,
		w.bundles[0].Folder:                         0o700,
		filepath.Join(w.bundles[0].Folder, keyFile): 0o600,
		node.dir:                         0o700,
		filepath.Join(node.dir, keyFile): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if _, _, err := Create(w.dir, "prod", "a.example:1", "first", os.Geteuid()); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second authority in a folder: %v", err)
	}
}

// A token is for one join, in time, and its secret is nowhere on disk.
func TestTokens(t *testing.T) {
	w := found(t, 0)
	token := w.token(t, Gateway, "g")
	err := filepath.WalkDir(w.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if strings.Contains(path+string(raw), token.Secret) {
			t.Errorf("%s has the secret of a token", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var joined atomic.Int32
	var all sync.WaitGroup
	for range 10 {
		dir := filepath.Join(t.TempDir(), "identity")
		all.Go(func() {
			switch _, err := Join(t.Context(), token, dir, os.Geteuid(), nil); {
			case err == nil:
				joined.Add(1)
			case err.Error() != errToken.Error():
				t.Error(err)
			}
		})
	}
	all.Wait()
	if joined.Load() != 1 {
		t.Errorf("%d of 10 joined with one token", joined.Load())
	}

	old := w.token(t, Node, "n")
	raw, err := json.Marshal(kept{Role: Node, Name: "n", Expires: time.Now().Add(-time.Second)})
	if err == nil {
		err = durable.Write(w.tokenFile(old.Secret), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Join(t.Context(), old, t.TempDir(), os.Geteuid(), nil); err == nil || err.Error() != errToken.Error() {
		t.Errorf("an expired token: %v", err)
	}
	made := token
	made.Secret = "x"
	if _, err := Join(t.Context(), made, t.TempDir(), os.Geteuid(), nil); err == nil || err.Error() != errToken.Error() {
		t.Errorf("a made up token: %v", err)
	}
	// The holder of a token cannot choose an identity.
	forged := w.token(t, Node, "n")
	forged.Role, forged.Name = Gateway, "g2"
	dir := t.TempDir()
	if _, err := Join(t.Context(), forged, dir, os.Geteuid(), nil); err == nil || !strings.Contains(err.Error(), "node/n instead of") {
		t.Errorf("a token for another identity: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the refused identity was written: %v, %v", left, err)
	}
	for _, bad := range []struct {
		role, name string
		life       time.Duration
	}{{"root", "n", time.Hour}, {Node, "N", time.Hour}, {authorityRole, "join", time.Hour}, {Node, "n", 0}, {Node, "n", MaxTokenLife + 1}} {
		if _, err := w.NewToken(bad.role, bad.name, bad.life, ""); err == nil {
			t.Errorf("a token for %+v", bad)
		}
	}
	for _, text := range []string{"", "cst1_", "cst1_e30", "x" + token.String(), token.String()[:40], tokenPrefix + strings.Repeat("a", maxJoinToken)} {
		if got, err := ParseJoinToken(text); err == nil {
			t.Errorf("%.60q is %+v", text, got)
		}
	}
}

// A token goes to no other authority than the one that made it.
func TestJoinsTrustOneAuthority(t *testing.T) {
	w, other := found(t, 0), found(t, 0)
	token := w.token(t, Node, "n")
	token.Address = other.Address()
	if _, err := Join(t.Context(), token, t.TempDir(), os.Geteuid(), nil); err == nil || !strings.Contains(err.Error(), "fingerprint differs") {
		t.Errorf("another authority: %v", err)
	}
	// A role of the cluster is no authority, although the authority signed its certificate.
	node := w.join(t, Node, "thief")
	pair := node.Current().certificate
	pair.Certificate = append(pair.Certificate, w.cert.Raw)
	address, _ := listen(t, &tls.Config{Certificates: []tls.Certificate{pair}})
	token.Address = address
	if _, err := Join(t.Context(), token, t.TempDir(), os.Geteuid(), nil); err == nil || !strings.Contains(err.Error(), "instead of the authority") {
		t.Errorf("a node as the authority: %v", err)
	}
	token.Address = w.Address()
	if _, err := Join(t.Context(), token, filepath.Join(t.TempDir(), "identity"), os.Geteuid(), nil); err != nil {
		t.Errorf("the token was used up by another: %v", err)
	}
}

func TestRenew(t *testing.T) {
	w := found(t, 0)
	node, gateway := w.join(t, Node, "n"), w.join(t, Gateway, "g")
	first := node.Current()
	if err := node.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := node.Current()
	if next.ID != first.ID || next.leaf().Equal(first.leaf()) || next.interrupted {
		t.Errorf("renewed to %v", next.ID)
	}
	if _, err := os.Stat(filepath.Join(node.dir, nextKeyFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the key of the renewal is left: %v", err)
	}
	if err := reaches(t, gateway, node); err != nil {
		t.Error(err)
	}

	// A crash after the new certificate was written, and before its key was renamed.
	key, err := os.ReadFile(filepath.Join(node.dir, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(filepath.Join(gateway.dir, keyFile))
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(node.dir, nextKeyFile), key, 0o600), os.WriteFile(filepath.Join(node.dir, keyFile), old, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	again := open(t, node.dir)
	if !again.Current().interrupted || again.finishRenewal() != nil || again.Current().interrupted {
		t.Error("the interrupted renewal was not finished")
	}
	if now, err := os.ReadFile(filepath.Join(node.dir, keyFile)); err != nil || string(now) != string(key) {
		t.Errorf("the key is not in place: %v", err)
	}

	// A renewal needs a certificate of this cluster that has not expired.
	csr := must(request(gateway.Current().certificate.PrivateKey.(crypto.Signer)))(t)
	none := gateway.Current().authorityConfig()
	none.Certificates = nil
	if _, err := ask(t.Context(), w.Address(), http.MethodPost, renewPath, none, joinRequest{CSR: csr}); err == nil || !strings.Contains(err.Error(), "needs the current certificate") {
		t.Errorf("a renewal without a certificate: %v", err)
	}
	foreign := certs.SelfSigned(t)
	none.Certificates = []tls.Certificate{foreign.Issue(t, "spiffe://prod/gateway/g").TLS()}
	if _, err := ask(t.Context(), w.Address(), http.MethodPost, renewPath, none, joinRequest{CSR: csr}); err == nil {
		t.Error("a foreign certificate was renewed")
	}
}

// A role renews by itself when half of the life is over, and says when it cannot.
func TestRunRenews(t *testing.T) {
	w := found(t, 0)
	node := w.join(t, Node, "n")
	first := node.Current()
	k := keeper{Identity: node}
	k.look(t.Context(), time.Now())
	if node.Current() != first {
		t.Error("renewed at once")
	}
	half := first.NotAfter().Add(-CertificateLife / 2)
	k.look(t.Context(), half.Add(time.Hour))
	second := node.Current()
	if second.leaf().Equal(first.leaf()) {
		t.Error("not renewed after half of the life")
	}
	w.stop()
	var said strings.Builder
	k.log = slog.New(slog.NewTextHandler(&said, nil))
	later := second.NotAfter().Add(-CertificateLife / 5)
	k.look(t.Context(), later)
	k.look(t.Context(), later.Add(time.Second))
	k.look(t.Context(), second.NotAfter().Add(2*time.Hour))
	for want, times := range map[string]int{"renewing the identity of this role failed": 2, "expires soon": 1, "has expired": 1} {
		if got := strings.Count(said.String(), want); got != times {
			t.Errorf("%q is said %d times:\n%s", want, got, said.String())
		}
	}
}

func TestRevoke(t *testing.T) {
	w := found(t, 0)
	node, gateway := w.join(t, Node, "n"), w.join(t, Gateway, "g")
	unused := w.token(t, Gateway, "g")
	address, _ := listen(t, node.Server())
	client := gateway.Current().Client(Node, "n")
	if _, err := exchange(address, client); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Revoke(gateway.ID()); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	k := keeper{Identity: node}
	k.look(t.Context(), time.Now())
	// Also a session that was resumed.
	if _, err := exchange(address, client); err == nil {
		t.Error("a revoked gateway is accepted")
	}
	if !node.Current().Revoked(gateway.Current().leaf()) || node.Current().Revoked(node.Current().leaf()) {
		t.Error("the list has other certificates")
	}
	if _, err := node.Current().Peer([]*x509.Certificate{gateway.Current().leaf()}, x509.ExtKeyUsageClientAuth); err == nil || !strings.Contains(err.Error(), "gateway/g is revoked") {
		t.Errorf("%v", err)
	}
	// It stays revoked after a restart without the authority.
	if !open(t, node.dir).Current().Revoked(gateway.Current().leaf()) {
		t.Error("a restart forgets revocations")
	}
	if err := gateway.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "is revoked") {
		t.Errorf("a revoked certificate is renewed: %v", err)
	}
	if _, err := Join(t.Context(), unused, t.TempDir(), os.Geteuid(), nil); err == nil || err.Error() != errToken.Error() {
		t.Errorf("a token from before: %v", err)
	}
	for _, i := range must(w.Issued())(t) {
		if i.ID == "gateway/g" {
			t.Errorf("left: %+v", i)
		}
	}
	// A new token brings it back.
	again := w.join(t, Gateway, "g")
	if err := reaches(t, again, node); err != nil {
		t.Error(err)
	}
	// The refused renewal has revoked its certificate too. A list from before is ignored,
	// and so is one with the same content.
	before := must(os.ReadFile(filepath.Join(node.dir, crlFile)))(t)
	newer := must(w.CRL())(t)
	for i, list := range [][]byte{newer, newer, must(w.CRL())(t), before} {
		if changed, err := node.replaceCRL(list); changed != (i == 0) || err != nil {
			t.Errorf("list %d: %v, %v", i, changed, err)
		}
	}
	if n := len(node.Current().revoked); n != 2 {
		t.Errorf("%d certificates are revoked", n)
	}
	other := found(t, 0)
	if _, err := node.replaceCRL(must(other.CRL())(t)); err == nil {
		t.Error("the list of another authority was taken")
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
