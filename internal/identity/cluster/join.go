package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Paths of the process that answers joins.
const (
	joinPath  = "/v1/join"  // for a token
	renewPath = "/v1/renew" // for the current certificate
	crlPath   = "/v1/crl"
	// revokedHostsPath is the list of revoked sentry hosts.
	revokedHostsPath = "/v1/revoked-hosts"
	// buildKeyPath is the statement of the key of builds, and buildsPath, with the name of a
	// build, its signature.
	buildKeyPath = "/v1/build-key"
	buildsPath   = "/v1/builds/"
)

const (
	// maxBody bounds a request and an answer, in bytes.
	maxBody = 256 << 10
	// callLimit bounds a call, and each request at the other end.
	callLimit = 15 * time.Second
	// serverLife is the life of the certificate of the process that answers joins.
	serverLife = 24 * time.Hour
	drainTime  = 5 * time.Second
)

// joinRequest is the body of both paths; a renewal has no secret.
type joinRequest struct {
	Secret string `json:"secret,omitempty"`
	CSR    []byte `json:"csr"` // DER; only its key counts
	// Host asks for a certificate of the sentry host too; only for a node that joins.
	Host *hostRequest `json:"sentry_host,omitempty"`
}

// refusalBody is the body of an error.
type refusalBody struct {
	Error string `json:"error"`
}

// Joins answers joins and renewals over TLS. Use NewJoins.
type Joins struct {
	authority *Authority
	life      time.Duration
	log       *slog.Logger

	mu   sync.Mutex
	cert *tls.Certificate // of this process
}

// NewJoins returns the Joins of an authority; life is the life of the certificates that
// it issues, zero means CertificateLife.
func NewJoins(a *Authority, life time.Duration, log *slog.Logger) *Joins {
	if life == 0 {
		life = CertificateLife
	}
	return &Joins{authority: a, life: life, log: log}
}

// certificate returns the certificate of this process. When half of its life is over,
// it makes a new one. The chain includes the authority, by whose fingerprint a machine
// that joins recognizes it.
func (j *Joins) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.cert != nil && time.Until(j.cert.Leaf.NotAfter) > serverLife/2 {
		return j.cert, nil
	}
	key, _, err := newKey()
	if err != nil {
		return nil, err
	}
	id := ID{j.authority.Cluster(), authorityRole, "join"}
	leaf, err := j.authority.certify(id, key.Public(), serverLife)
	if err != nil {
		return nil, err
	}
	j.cert = &tls.Certificate{Certificate: [][]byte{leaf.Raw, j.authority.cert.Raw}, PrivateKey: key, Leaf: leaf}
	return j.cert, nil
}

// Run answers on ln until ctx ends.
func (j *Joins) Run(ctx context.Context, ln net.Listener) error {
	roots := x509.NewCertPool()
	roots.AddCert(j.authority.cert)
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+joinPath, j.answer(j.join))
	mux.HandleFunc("POST "+renewPath, j.answer(j.renew))
	mux.HandleFunc("GET "+crlPath, j.crl)
	mux.HandleFunc("GET "+revokedHostsPath, j.revokedHosts)
	mux.HandleFunc("GET "+buildKeyPath, j.buildKey)
	mux.HandleFunc("GET "+buildsPath+"{build}", j.signedBuild)
	srv := &http.Server{
		Handler: mux, ReadTimeout: callLimit, WriteTimeout: callLimit, IdleTimeout: 2 * callLimit, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(j.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() {
		failed <- srv.Serve(tls.NewListener(ln, &tls.Config{
			MinVersion: tls.VersionTLS13, GetCertificate: j.certificate, NextProtos: []string{"http/1.1"},
			ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots, SessionTicketsDisabled: true,
		}))
	}()
	select {
	case err := <-failed:
		return errors.Join(err, srv.Close())
	case <-ctx.Done():
	}
	patience, stop := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer stop()
	if err := srv.Shutdown(patience); err != nil {
		return srv.Close()
	}
	return nil
}

// refused is an error whose text the other end may read.
type refused struct{ error }

func (j *Joins) answer(do func(*http.Request, joinRequest) (ID, issued, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var req joinRequest
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req)
		if err != nil {
			err = refused{errors.New("the request is no JSON of a join")}
		}
		var id ID
		var of issued
		if err == nil {
			id, of, err = do(r, req)
		}
		if err != nil {
			j.log.Warn("a request for a certificate was refused", "from", r.RemoteAddr, "path", r.URL.Path, "identity", id.Short(), telemetry.KeyError, err.Error())
			text := "the authority failed; its log has the reason"
			if told := (refused{}); errors.As(err, &told) {
				text = told.Error()
			}
			refuse(w, text)
			return
		}
		j.log.Info("issued a certificate", "from", r.RemoteAddr, "path", r.URL.Path, "identity", id.Short())
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(of) // the client may be gone
	}
}

// refuse answers with an error whose text the other end may read.
func refuse(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(w).Encode(refusalBody{Error: text}) // the client may be gone
}

// fail answers with an error that only the log has.
func (j *Joins) fail(w http.ResponseWriter, what string, err error) {
	j.log.Error(what, telemetry.KeyError, err.Error())
	w.WriteHeader(http.StatusInternalServerError)
}

// join issues a certificate for a token. The request is read only when the token is good.
func (j *Joins) join(_ *http.Request, req joinRequest) (ID, issued, error) {
	id, err := j.authority.claim(req.Secret)
	if errors.Is(err, errToken) {
		return ID{}, issued{}, refused{err}
	} else if err != nil {
		return ID{}, issued{}, err
	}
	public, err := publicOf(req.CSR)
	if err != nil {
		return id, issued{}, refused{fmt.Errorf("the request for a certificate: %w", err)}
	}
	var host *installation.Membership
	var buildKey *installation.BuildKey
	if req.Host != nil && id.Role == Node {
		m, err := j.authority.certifyHost(id.Name, *req.Host, req.CSR)
		if err != nil {
			return id, issued{}, err
		}
		host = &m
		if buildKey, err = j.authority.BuildKey(); err != nil {
			return id, issued{}, err
		}
	}
	of, err := j.authority.issue(id, public, j.life)
	of.Host, of.BuildKey = host, buildKey
	return id, of, err
}

// renew issues a certificate for the identity of the client's current one.
func (j *Joins) renew(r *http.Request, req joinRequest) (ID, issued, error) {
	if len(r.TLS.VerifiedChains) == 0 {
		return ID{}, issued{}, refused{errors.New("a renewal needs the current certificate")}
	}
	leaf := r.TLS.PeerCertificates[0]
	id, err := idOf(leaf)
	if err != nil || id.Check() != nil || id.Cluster != j.authority.Cluster() {
		return id, issued{}, refused{errors.New("the certificate is of no instance of this cluster")}
	}
	public, err := publicOf(req.CSR)
	if err != nil {
		return id, issued{}, refused{fmt.Errorf("the request for a renewal: %w", err)}
	}
	of, err := j.authority.issue(id, public, j.life)
	if err != nil {
		return id, issued{}, err
	}
	// After the issue: Revoke looks again for certificates once it has revoked this one.
	revoked, err := j.authority.isRevoked(leaf.SerialNumber)
	if err != nil {
		return id, issued{}, err
	}
	if revoked {
		made, err := parseCertificates(of.Certificate)
		if err == nil {
			err = j.authority.revoke(made[0].SerialNumber.String())
		}
		if err != nil {
			return id, issued{}, err
		}
		return id, issued{}, refused{fmt.Errorf("the certificate of %s is revoked: it can join again with a new token", id.Short())}
	}
	return id, of, nil
}

func (j *Joins) crl(w http.ResponseWriter, _ *http.Request) {
	crl, err := j.authority.CRL()
	if err != nil {
		j.fail(w, "making the list of revoked certificates failed", err)
		return
	}
	w.Header().Set("Content-Type", "application/pkix-crl")
	_, _ = w.Write(crl) // the client may be gone
}

func (j *Joins) revokedHosts(w http.ResponseWriter, _ *http.Request) {
	list, err := j.authority.RevokedHosts()
	if err != nil {
		j.fail(w, "making the list of revoked sentry hosts failed", err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(list) // the client may be gone
}

// isAuthority checks that the other end is the process that answers joins of a cluster.
func isAuthority(certs []*x509.Certificate, roots *x509.CertPool, cluster string) error {
	p := &Pair{roots: roots}
	if err := p.verify(certs, time.Now(), x509.ExtKeyUsageServerAuth); err != nil {
		return err
	}
	id, err := idOf(certs[0])
	if err != nil {
		return err
	}
	if id.Role != authorityRole || id.Cluster != cluster {
		return fmt.Errorf("%s answers instead of the authority of %q", id, cluster)
	}
	return nil
}

// errNotServed says that the process that answers joins does not know a path.
var errNotServed = errors.New("the authority is of another version and does not answer this")

// ask makes one call to the process that answers joins.
func ask(ctx context.Context, address, method, path string, secure *tls.Config, body any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "https://"+address+path, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("reach the authority at %s: %w", address, err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read the authority's answer: %w", err)
	}
	if res.StatusCode == http.StatusNotFound {
		return nil, errNotServed
	}
	if res.StatusCode != http.StatusOK {
		var b refusalBody
		if json.Unmarshal(answer, &b) != nil || b.Error == "" {
			return nil, fmt.Errorf("the authority answers %s", res.Status)
		}
		return nil, errors.New(b.Error)
	}
	return answer, nil
}

// Join makes a key, gets a certificate for it with a token, and writes both into a
// folder that belongs to uid. It sends the token only to the authority with the token's
// fingerprint. For a node, it also has the key of the sentry host certified, whose Keys are
// own; nil: not.
func Join(ctx context.Context, t JoinToken, dir string, uid int, own *installation.Keys) (Joined, error) {
	key, text, err := newKey()
	if err != nil {
		return Joined{}, err
	}
	req := joinRequest{Secret: t.Secret}
	if req.CSR, err = request(key); err != nil {
		return Joined{}, err
	}
	if own != nil && t.Role == Node {
		if req.Host, err = newHostRequest(own, req.CSR); err != nil {
			return Joined{}, fmt.Errorf("the key of the sentry host: %w", err)
		}
	}
	var authority *x509.Certificate
	secure := &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, // the fingerprint names the only root
		VerifyConnection: func(s tls.ConnectionState) error {
			for _, c := range s.PeerCertificates[1:] {
				if fingerprint(c) == t.Fingerprint && c.IsCA {
					authority = c
				}
			}
			if authority == nil {
				return errors.New("the other end is not the authority of the token: its fingerprint differs")
			}
			roots := x509.NewCertPool()
			roots.AddCert(authority)
			return isAuthority(s.PeerCertificates, roots, t.Cluster)
		},
	}
	raw, err := ask(ctx, t.Address, http.MethodPost, joinPath, secure, req)
	if err != nil {
		return Joined{}, err
	}
	var of issued
	if err := json.Unmarshal(raw, &of); err != nil {
		return Joined{}, fmt.Errorf("the authority's answer: %w", err)
	}
	if err := checkIssued(of, text, t.ID(), authority); err != nil {
		return Joined{}, err
	}
	joined, err := enlist(own, of)
	if err != nil {
		return Joined{}, err
	}
	return joined, writeFolder(dir, uid, text, of, t.Address)
}

// checkIssued checks that an answer is the requested identity.
func checkIssued(of issued, key []byte, want ID, authority *x509.Certificate) error {
	p, err := newPair(files{ca: of.CA, cert: of.Certificate, key: key, crl: of.CRL})
	switch {
	case err != nil:
		return fmt.Errorf("the authority's certificate: %w", err)
	case p.ID != want:
		return fmt.Errorf("the authority's certificate is for %s instead of %s", p.ID, want)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	p.roots = roots
	if err := p.verify(p.chain(), time.Now(), x509.ExtKeyUsageServerAuth); err != nil {
		return fmt.Errorf("the authority of the token did not sign the certificate: %w", err)
	}
	return nil
}

// authorityConfig is the TLS configuration of a call to the authority with the current
// certificate.
func (p *Pair) authorityConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{p.certificate}, RootCAs: p.roots, InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error { return isAuthority(s.PeerCertificates, p.roots, p.ID.Cluster) },
	}
}

// errNowhere says that the folder names no process that renews.
var errNowhere = errors.New("the identity has no address where it is renewed: replace its files, or join again")

// Renew gets a new key and certificate for the identity, with the current certificate.
// The files keep their owner.
func (i *Identity) Renew(ctx context.Context) error {
	unlock, err := lockFolder(i.dir)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := i.Reload(); err != nil {
		return err
	}
	p := i.Current()
	switch {
	case p.renewAt == "":
		return errNowhere
	case p.Expired(time.Now()):
		return fmt.Errorf("the certificate of %s expired and cannot renew itself: join again with a new token of `cloud-sandbox cluster token`", p.ID.Short())
	}
	key, text, err := newKey()
	if err != nil {
		return err
	}
	csr, err := request(key)
	if err != nil {
		return err
	}
	raw, err := ask(ctx, p.renewAt, http.MethodPost, renewPath, p.authorityConfig(), joinRequest{CSR: csr})
	if err != nil {
		return err
	}
	var of issued
	if err := json.Unmarshal(raw, &of); err != nil {
		return fmt.Errorf("the authority's answer: %w", err)
	}
	return i.install(text, of)
}

// install replaces key and certificate so that a crash leaves the old or the new ones.
func (i *Identity) install(key []byte, of issued) error {
	i.mu.Lock()
	// The roots stay: only the operator changes the authorities that are trusted.
	p, err := newPair(files{ca: i.read.ca, cert: of.Certificate, key: key})
	if err == nil && p.ID != i.Current().ID {
		err = fmt.Errorf("the renewed certificate is for %s instead of %s", p.ID, i.Current().ID)
	}
	uid, ownerErr := ownerOf(i.dir)
	if err = errors.Join(err, ownerErr); err == nil {
		next, cert := filepath.Join(i.dir, nextKeyFile), filepath.Join(i.dir, certFile)
		err = durable.WriteFor(uid, next, key, 0o600)
		if err == nil {
			err = durable.WriteFor(uid, cert, of.Certificate, 0o644)
		}
	}
	if err == nil {
		_, err = i.reload()
	}
	i.mu.Unlock()
	if err != nil {
		return fmt.Errorf("write the renewed identity: %w", err)
	}
	return i.finishRenewal()
}

// fetchCRL replaces the list of revoked certificates by a newer one of the authority.
func (i *Identity) fetchCRL(ctx context.Context) (bool, error) {
	p := i.Current()
	if p.renewAt == "" {
		return false, nil
	}
	crl, err := ask(ctx, p.renewAt, http.MethodGet, crlPath, p.authorityConfig(), nil)
	if err != nil {
		return false, err
	}
	return i.replaceCRL(crl)
}
