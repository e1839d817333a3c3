package cluster

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
)

// sessionsKept is how many TLS sessions a process keeps for resumption.
const sessionsKept = 1024

// Identity is the identity of this process, in a folder of files. Methods are safe for
// concurrent use. Use Open.
type Identity struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex // of reading and writing the folder
	read    files
	current atomic.Pointer[Pair]
}

// Open reads an identity, which must be valid now. The error says what to do.
func Open(dir string, log *slog.Logger) (*Identity, error) {
	i := &Identity{dir: dir, log: log}
	if _, err := i.Reload(); err != nil {
		return nil, err
	}
	if p := i.Current(); p.Expired(time.Now()) {
		return nil, fmt.Errorf("the certificate %s of %s expired at %s: join again with a new token of `cloud-sandbox cluster token`, or replace the files",
			filepath.Join(dir, certFile), p.ID.Short(), p.leaf().NotAfter.UTC().Format(time.RFC3339))
	}
	return i, nil
}

// ID returns the identity.
func (i *Identity) ID() ID { return i.Current().ID }

// Current returns the certificate in use.
func (i *Identity) Current() *Pair { return i.current.Load() }

// Reload reads the files again, and reports whether they have changed. On an error the
// certificate in use stays.
func (i *Identity) Reload() (changed bool, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.reload()
}

func (i *Identity) reload() (changed bool, err error) {
	f, err := readFiles(i.dir)
	if err != nil {
		return false, err
	}
	last := i.Current()
	if last != nil && f.equal(i.read) {
		return false, nil
	}
	p, err := newPair(f)
	switch {
	case err != nil:
		return false, fmt.Errorf("the identity in %s: %w", i.dir, err)
	case last != nil && p.ID != last.ID:
		return false, fmt.Errorf("the identity in %s became %s, and this process is %s: restart it if that is intended", i.dir, p.ID, last.ID)
	}
	if last != nil {
		p.Generation = last.Generation + 1
	}
	i.read = f
	i.current.Store(p)
	return true, nil
}

// finishRenewal gives the key of an interrupted renewal its name.
func (i *Identity) finishRenewal() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p := i.Current(); p == nil || !p.interrupted {
		return nil
	}
	if err := durable.Rename(filepath.Join(i.dir, nextKeyFile), filepath.Join(i.dir, keyFile)); err != nil {
		return err
	}
	_, err := i.reload()
	return err
}

// Server returns the TLS configuration of a listener for other roles: TLS 1.3, with a
// certificate of an instance of this cluster.
func (i *Identity) Server() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return i.Current().server, nil },
	}
}

// Pair is a certificate of an identity with its key, and the certificates that it
// trusts. It does not change.
type Pair struct {
	ID ID
	// Generation grows with each replacement of the files.
	Generation int

	certificate tls.Certificate
	roots       *x509.CertPool
	revoked     map[string]bool // by serial number, as text
	renewAt     string          // HOST:PORT; empty: nowhere
	interrupted bool            // a renewal; finishRenewal ends it
	crl         *big.Int        // number of the list of revoked certificates; nil: none

	server   *tls.Config
	sessions tls.ClientSessionCache
	verified sync.Map // SHA-256 of a certificate -> ID
}

func newPair(f files) (*Pair, error) {
	authorities, err := parseCertificates(f.ca)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", caFile, err)
	}
	p := &Pair{roots: x509.NewCertPool(), sessions: tls.NewLRUClientSessionCache(sessionsKept)}
	for _, a := range authorities {
		if !a.IsCA {
			return nil, fmt.Errorf("%s: the certificate %q is not an authority's", caFile, a.Subject)
		}
		p.roots.AddCert(a)
	}
	if p.certificate, p.interrupted, err = f.pair(); err != nil {
		return nil, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	if _, err := algorithm(p.leaf().PublicKey); err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	if p.ID, err = idOf(p.leaf()); err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	if p.crl, p.revoked, err = parseCRL(f.crl, authorities); err != nil {
		return nil, fmt.Errorf("%s: %w", crlFile, err)
	}
	if len(f.join) > 0 {
		var r renewal
		if err := json.Unmarshal(f.join, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", joinFile, err)
		}
		p.renewAt = r.Address
	}
	// An expired certificate is read: it is refused where it is used, with its date.
	at := time.Now()
	if p.Expired(at) {
		at = p.NotAfter()
	}
	if err := p.verify(p.chain(), at, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth); err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	p.server = &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{p.certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    p.roots,
		NextProtos:   []string{"http/1.1"},
		// VerifyConnection is called for resumed sessions too.
		VerifyConnection: func(s tls.ConnectionState) error {
			_, err := p.Peer(s.PeerCertificates, x509.ExtKeyUsageClientAuth)
			return err
		},
	}
	return p, nil
}

// algorithm returns the name of the signature of tokens by a key, as JWTs have it.
func algorithm(public any) (string, error) {
	switch k := public.(type) {
	case ed25519.PublicKey:
		return "EdDSA", nil
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() {
			return "ES256", nil
		}
	}
	return "", errors.New("the key of an identity must be ECDSA P-256 or Ed25519")
}

// Algorithm is the signature that a certificate's key makes, by its name in JWTs.
func Algorithm(c *x509.Certificate) (string, error) { return algorithm(c.PublicKey) }

// leaf returns the certificate.
func (p *Pair) leaf() *x509.Certificate { return p.certificate.Leaf }

// Key returns the private key and the name of its signatures.
func (p *Pair) Key() (key any, name string) {
	name, _ = algorithm(p.leaf().PublicKey) // newPair checked it
	return p.certificate.PrivateKey, name
}

// NotAfter is the end of the certificate's life.
func (p *Pair) NotAfter() time.Time { return p.leaf().NotAfter }

// Expired reports whether the certificate is not valid any more.
func (p *Pair) Expired(now time.Time) bool { return now.After(p.leaf().NotAfter) }

func (p *Pair) chain() []*x509.Certificate {
	out := []*x509.Certificate{p.leaf()}
	for _, der := range p.certificate.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			out = append(out, c)
		}
	}
	return out
}

// verify checks a chain, with each of the usages, and returns no identity.
func (p *Pair) verify(certs []*x509.Certificate, at time.Time, usages ...x509.ExtKeyUsage) error {
	intermediates := x509.NewCertPool()
	for _, c := range certs[1:] {
		intermediates.AddCert(c)
	}
	for _, usage := range usages {
		_, err := certs[0].Verify(x509.VerifyOptions{
			Roots: p.roots, Intermediates: intermediates, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Peer returns the identity of the other end of a connection from its certificates. It
// checks that they are valid now, for a usage, and of this cluster.
func (p *Pair) Peer(certs []*x509.Certificate, usage x509.ExtKeyUsage) (ID, error) {
	if len(certs) == 0 {
		return ID{}, errors.New("the other end shows no certificate")
	}
	leaf, now := certs[0], time.Now()
	key := [sha256.Size + 1]byte{sha256.Size: byte(usage)}
	sum := sha256.Sum256(leaf.Raw)
	copy(key[:], sum[:])
	id, known := p.verified.Load(key)
	if !known {
		if err := p.verify(certs, now, usage); err != nil {
			return ID{}, err
		}
		of, err := idOf(leaf)
		if err != nil {
			return ID{}, err
		}
		id = of
	}
	peer := id.(ID)
	switch {
	case now.After(leaf.NotAfter):
		return ID{}, fmt.Errorf("the certificate of %s expired at %s", peer.Short(), leaf.NotAfter.UTC().Format(time.RFC3339))
	case p.Revoked(leaf):
		return ID{}, fmt.Errorf("the certificate of %s is revoked", peer.Short())
	case peer.Cluster != p.ID.Cluster:
		return ID{}, fmt.Errorf("the certificate is of the cluster %q, and this is %q", peer.Cluster, p.ID.Cluster)
	}
	p.verified.Store(key, peer)
	return peer, nil
}

// Revoked reports whether a certificate is on the list of revoked ones.
func (p *Pair) Revoked(c *x509.Certificate) bool { return p.revoked[c.SerialNumber.String()] }

// Client returns the TLS configuration of a connection to an instance of a role; an empty
// name means any instance.
func (p *Pair) Client(role, name string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{p.certificate},
		RootCAs:            p.roots,
		NextProtos:         []string{"http/1.1"},
		ServerName:         cmp.Or(name, "any") + "." + role + "." + p.ID.Cluster, // the key of kept sessions
		ClientSessionCache: p.sessions,
		// Certificates name an instance by its URI, not by a host. VerifyConnection checks
		// the whole chain, and is called for resumed sessions too.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			id, err := p.Peer(s.PeerCertificates, x509.ExtKeyUsageServerAuth)
			switch {
			case err != nil:
				return err
			case id.Role != role || name != "" && id.Name != name:
				return fmt.Errorf("%s answers instead of %s/%s", id.Short(), role, cmp.Or(name, "*"))
			}
			return nil
		},
	}
}

// parseCRL returns the number of a list of revoked certificates, and their serial
// numbers. One of the authorities must have signed it. Without a text, nothing is revoked.
func parseCRL(text []byte, authorities []*x509.Certificate) (*big.Int, map[string]bool, error) {
	if len(text) == 0 {
		return nil, nil, nil
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemCRL {
		return nil, nil, errors.New("no list of revoked certificates in PEM")
	}
	list, err := x509.ParseRevocationList(block.Bytes)
	if err != nil {
		return nil, nil, err
	}
	if !slices.ContainsFunc(authorities, func(a *x509.Certificate) bool { return list.CheckSignatureFrom(a) == nil }) {
		return nil, nil, errors.New("no authority of this cluster signed the list of revoked certificates")
	}
	revoked := map[string]bool{}
	for _, e := range list.RevokedCertificateEntries {
		revoked[e.SerialNumber.String()] = true
	}
	return list.Number, revoked, nil
}

// replaceCRL writes a newer list of revoked certificates, and reports whether it is one.
func (i *Identity) replaceCRL(text []byte) (bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(text) == 0 {
		return false, nil
	}
	authorities, err := parseCertificates(i.read.ca)
	if err != nil {
		return false, err
	}
	number, revoked, err := parseCRL(text, authorities)
	if err != nil {
		return false, err
	}
	last := i.Current()
	if last.crl != nil && number != nil && (number.Cmp(last.crl) < 0 || sameKeys(revoked, last.revoked)) {
		return false, nil // an older list would take back a revocation
	}
	if err := durable.Write(filepath.Join(i.dir, crlFile), text, 0o644); err != nil {
		return false, err
	}
	return i.reload()
}

func sameKeys(a, b map[string]bool) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return true
}
