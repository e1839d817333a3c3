package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/golang-jwt/jwt/v5"

	"github.com/cloud-sandbox/cloud-sandbox"
	nodev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/node/v1/nodev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/certs"
)

// pki is an authority of a cluster of tests.
type pki struct{ ca *certs.Certificate }

func newPKI(t testing.TB) pki { return pki{certs.SelfSigned(t)} }

func uri(role Role, name string) string { return fmt.Sprintf("spiffe://prod/%s/%s", role, name) }

// identity makes the identity of an instance.
func (p pki) identity(t testing.TB, role Role, name string) *cluster.Identity {
	t.Helper()
	i, _ := p.identityIn(t, p.ca.Issue(t, uri(role, name)))
	return i
}

// identityIn is identity for a certificate; it returns the folder too.
func (p pki) identityIn(t testing.TB, c *certs.Certificate) (*cluster.Identity, string) {
	t.Helper()
	dir := t.TempDir()
	c.WriteIdentity(t, dir, p.ca)
	i, err := cluster.Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return i, dir
}

// secured serves a service over TLS as a role's instance.
func (p pki) secured(t testing.TB, role Role, name string, services ...Service) *server {
	t.Helper()
	s := prepare(t, role, services...)
	s.identity = p.identity(t, role, name)
	s.start(t)
	return s
}

// by is a caller with a certificate.
func (s *server) by(identity *cluster.Identity) Self {
	id := identity.ID()
	self := s.self(Role(id.Role), id.Name)
	self.Identity = identity
	return self
}

// sayingNodes answers stats, and remembers the Tenant of starts.
type sayingNodes struct {
	sandbox.Nodes
	mu      sync.Mutex
	tenants []sandbox.TenantID
}

func (n *sayingNodes) Stats(_ context.Context, node string) (sandbox.NodeStats, error) {
	return sandbox.NodeStats{Node: node}, nil
}

func (n *sayingNodes) Start(_ context.Context, _ string, r sandbox.StartRequest) (sandbox.Started, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tenants = append(n.tenants, r.Binding.Tenant)
	return sandbox.Started{BootID: "b1"}, nil
}

// nodesAt calls Nodes at fixed addresses.
func nodesAt(t testing.TB, self Self, addresses map[string]string) *Nodes {
	t.Helper()
	n := NewNodes(func(context.Context) ([]sandbox.NodeRecord, error) {
		var all []sandbox.NodeRecord
		for name, address := range addresses {
			all = append(all, sandbox.NodeRecord{Name: name, Address: address})
		}
		return all, nil
	}, self)
	t.Cleanup(n.Close)
	return n
}

// Each end refuses a connection unless the other end has the expected certificate.
func TestWhoConnects(t *testing.T) {
	p, foreign := newPKI(t), newPKI(t)
	s := p.secured(t, Node, "a", NodeService(&sayingNodes{}, nil))
	manager := p.identity(t, SessionManager, "m")
	plain := serve(t, Node, NodeService(&sayingNodes{}, nil))
	for _, tt := range []struct {
		name, node, address string
		by                  Self
		want                string // in the causes; empty: the call succeeds
	}{
		{"right", "a", s.tcp, s.by(manager), ""},
		{"another node's name", "b", s.tcp, s.by(manager), "node/a answers instead of node/b"},
		{"a foreign certificate", "a", s.tcp, s.by(foreign.identity(t, SessionManager, "m")), "unknown authority"},
		{"no certificate", "a", s.tcp, s.self(SessionManager, ""), "CLOUD_SANDBOX_CLUSTER"},
		{"http:// with a certificate", "a", "http://" + strings.TrimPrefix(s.tcp, "https://"), s.by(manager), "http://, which is refused"},
		{"TLS to a plaintext port", "a", "https://" + strings.TrimPrefix(plain.tcp, "http://"), s.by(manager), "does not look like a TLS handshake"},
	} {
		_, err := nodesAt(t, tt.by, map[string]string{tt.node: tt.address}).Stats(t.Context(), tt.node)
		switch {
		case tt.want == "":
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		case sandbox.CodeOf(err) != sandbox.Unavailable || !strings.Contains(err.Error(), tt.want):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		case adviceOf(err) != awayAdvice:
			t.Errorf("%s: the call counts as begun", tt.name)
		}
	}
}

// The port accepts only TLS 1.3 with a certificate. The log has the reason of each refusal.
func TestPlaintextAndOldTLS(t *testing.T) {
	p := newPKI(t)
	log := &lines{}
	s := prepare(t, Node, NodeService(&sayingNodes{}, nil))
	s.identity, s.log = p.identity(t, Node, "a"), slog.New(slog.NewJSONHandler(log, nil))
	s.start(t)
	address := strings.TrimPrefix(s.tcp, "https://")
	res, err := http.Post("http://"+address+nodev1connect.NodeServiceStatsProcedure, "application/json", strings.NewReader("{}"))
	if err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("plaintext: %v, %v", res, err)
	} else {
		res.Body.Close()
	}
	gateway := p.ca.Issue(t, uri(Gateway, "g")).TLS()
	for name, config := range map[string]*tls.Config{
		"TLS 1.2":        {Certificates: []tls.Certificate{gateway}, MaxVersion: tls.VersionTLS12},
		"no certificate": {},
	} {
		config.InsecureSkipVerify = true
		conn, err := tls.Dial("tcp", address, config)
		if err == nil { // TLS 1.3 reports a missing certificate later
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !strings.Contains(log.text(), "refused a connection without a valid certificate") {
		t.Errorf("the log says %s", log.text())
	}
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// A call to a host that accepts the connection and then stays silent fails within
// reachLimit.
func TestSilentHost(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p := newPKI(t)
	n := nodesAt(t, Self{Role: SessionManager, Keys: testKeys(t), Identity: p.identity(t, SessionManager, "m")}, map[string]string{"a": "https://" + ln.Addr().String()})
	for name, ask := range map[string]func() error{
		"a call": func() error { _, err := n.Stats(t.Context(), "a"); return err },
		"a dial": func() error { _, err := n.Dial(t.Context(), "a", anyBoot, 1); return err },
	} {
		began := time.Now()
		err := ask()
		if sandbox.CodeOf(err) != sandbox.Unavailable || adviceOf(err) != awayAdvice || time.Since(began) < reachLimit/2 {
			t.Errorf("%s: %v after %v", name, err, time.Since(began))
		}
	}
}

// bearer sends a call with a certificate and any token.
func bearer(t testing.TB, s *server, pair *cluster.Pair, procedure, token string) error {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: pair.Client(string(s.role), "")}
	defer transport.CloseIdleConnections()
	client := nodev1connect.NewNodeServiceClient(&http.Client{Transport: transport}, s.tcp, connect.WithInterceptors(
		connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
				r.Header().Set("Authorization", "Bearer "+token)
				return next(ctx, r)
			}
		})))
	var err error
	switch procedure {
	case nodev1connect.NodeServiceStatsProcedure:
		_, err = client.Stats(t.Context(), connect.NewRequest(&nodev1.StatsRequest{Node: s.identity.ID().Name}))
	case nodev1connect.NodeServiceStartProcedure:
		_, err = client.Start(t.Context(), connect.NewRequest(&nodev1.StartRequest{Node: s.identity.ID().Name, Binding: &nodev1.Binding{Tenant: "t"}}))
	default:
		t.Fatal(procedure)
	}
	var remote *connect.Error
	if errors.As(err, &remote) {
		if e := detailOf(remote); e != nil {
			return e
		}
	}
	return err
}

// A token is valid for one Tenant at one process, and only with the certificate of its
// caller.
func TestStolenTokens(t *testing.T) {
	p := newPKI(t)
	served := &sayingNodes{}
	a, b := p.secured(t, Node, "a", NodeService(served, nil)), p.secured(t, Node, "b", NodeService(served, nil))
	manager := p.identity(t, SessionManager, "m").Current()
	other := p.identity(t, SessionManager, "other").Current()
	thief := p.identity(t, Node, "b").Current()
	token := func(pair *cluster.Pair, tenant sandbox.TenantID, to string) string {
		text, err := signFor(pair, tenant, to)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	shared, err := a.keys.sign(Caller{Role: SessionManager, Tenant: "t"}, Node)
	if err != nil {
		t.Fatal(err)
	}
	key, algorithm := manager.Key()
	claiming := func(change func(*claims), method string, key any) string {
		c := claims{Tenant: "t", RegisteredClaims: jwt.RegisteredClaims{
			Issuer: manager.ID.String(), Audience: jwt.ClaimStrings{"node/a"}, ExpiresAt: jwt.NewNumericDate(time.Now().Add(tokenLife)),
		}}
		change(&c)
		text, err := jwt.NewWithClaims(jwt.GetSigningMethod(method), c).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	forA := token(manager, "t", "node/a")
	const start, stats = nodev1connect.NodeServiceStartProcedure, nodev1connect.NodeServiceStatsProcedure
	for _, tt := range []struct {
		name      string
		at        *server
		with      *cluster.Pair
		procedure string
		token     string
		want      sandbox.Code
	}{
		{"right", a, manager, start, forA, ""},
		{"right, for no tenant", a, manager, stats, token(manager, "", "node/a"), ""},
		{"replayed to another node by the caller", b, manager, start, forA, sandbox.Anonymous},
		{"stolen at a, used by the node b at a", a, thief, start, forA, sandbox.Anonymous},
		{"stolen at a, used by a node at b", b, thief, start, forA, sandbox.Anonymous},
		{"of another instance of the role", a, other, start, forA, sandbox.Anonymous},
		{"for the role instead of the node", a, manager, start, token(manager, "t", "node"), sandbox.Anonymous},
		{"with the secret of sockets", a, manager, start, shared, sandbox.Anonymous},
		{"none", a, manager, start, "", sandbox.Anonymous},
		{"for another tenant than the binding's", a, manager, start, token(manager, "u", "node/a"), sandbox.Denied},
		{"for a tenant, of a call for none", a, manager, stats, token(manager, "t", "node/a"), sandbox.Denied},
		{"a node's own, for a tenant", a, thief, start, token(thief, "t", "node/a"), sandbox.Denied},
		{"expired", a, manager, start, claiming(func(c *claims) { c.ExpiresAt = jwt.NewNumericDate(time.Now().Add(-time.Minute)) }, algorithm, key), sandbox.Anonymous},
		{"without an end", a, manager, start, claiming(func(c *claims) { c.ExpiresAt = nil }, algorithm, key), sandbox.Anonymous},
		{"naming another issuer", a, manager, start, claiming(func(c *claims) { c.Issuer = other.ID.String() }, algorithm, key), sandbox.Anonymous},
		{"not signed", a, manager, start, claiming(func(*claims) {}, "none", jwt.UnsafeAllowNoneSignatureType), sandbox.Anonymous},
	} {
		if err := bearer(t, tt.at, tt.with, tt.procedure, tt.token); sandbox.CodeOf(err) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	served.mu.Lock()
	defer served.mu.Unlock()
	if len(served.tenants) != 1 || served.tenants[0] != "t" {
		t.Errorf("started for %v", served.tenants)
	}
}

// endings keeps the reports of ended Boots.
type endings struct {
	Manager
	nodes []string
}

func (e *endings) BootEnded(_ context.Context, end sandbox.BootEnd) error {
	e.nodes = append(e.nodes, end.Node)
	return nil
}

// A report counts for the node of the caller's certificate, not for the node that it
// names.
func TestReportsNameTheirNode(t *testing.T) {
	p := newPKI(t)
	m := &endings{}
	s := p.secured(t, SessionManager, "m", SessionService(m))
	self := s.by(p.identity(t, Node, "a"))
	self.Name = "b"
	c := NewSandboxes(s.tcp, self)
	defer c.Close()
	if err := c.BootEnded(t.Context(), sandbox.BootEnd{Node: "b", BootRef: anyBoot}); err != nil {
		t.Fatal(err)
	}
	if len(m.nodes) != 1 || m.nodes[0] != "a" {
		t.Errorf("reports of %v", m.nodes)
	}
}

// Calls succeed while the certificates of either end are replaced, also on open
// connections.
func TestReplacedCertificates(t *testing.T) {
	p := newPKI(t)
	s := prepare(t, Node, NodeService(&sayingNodes{}, nil))
	var serverDir string
	s.identity, serverDir = p.identityIn(t, p.ca.Issue(t, uri(Node, "a")))
	s.start(t)
	manager, managerDir := p.identityIn(t, p.ca.Issue(t, uri(SessionManager, "m")))
	n := nodesAt(t, s.by(manager), map[string]string{"a": s.tcp})
	stop := make(chan struct{})
	var calling sync.WaitGroup
	for range 4 {
		calling.Go(func() {
			for {
				if _, err := n.Stats(t.Context(), "a"); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 10 {
		for dir, replace := range map[string]struct {
			of   *cluster.Identity
			role Role
			name string
		}{serverDir: {s.identity, Node, "a"}, managerDir: {manager, SessionManager, "m"}} {
			p.ca.Issue(t, uri(replace.role, replace.name)).WriteIdentity(t, dir, p.ca)
			if changed, err := replace.of.Reload(); err != nil || !changed {
				t.Errorf("%v, %v", changed, err)
			}
		}
		if _, err := n.Stats(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	calling.Wait()
}

// Over TLS, monitoring is limited to /health: the rest has an address of its own, or is on
// the socket.
func TestMonitoring(t *testing.T) {
	p := newPKI(t)
	s := p.secured(t, SessionManager, "m", SessionService(&endings{}))
	node := p.identity(t, Node, "n").Current()
	over := map[string]*http.Client{
		"tls":  {Transport: &http.Transport{TLSClientConfig: node.Client(string(SessionManager), "m")}},
		"unix": {Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", s.path) }}},
	}
	for _, tt := range []struct {
		path      string
		tls, unix int
	}{
		{"/health", 200, 200},
		{"/ready", 404, 200},
		{"/metrics", 404, 200},
		{"/grpc.health.v1.Health/Check", 404, 415},
	} {
		for transport, want := range map[string]int{"tls": tt.tls, "unix": tt.unix} {
			base := s.tcp
			if transport == "unix" {
				base = "http://socket"
			}
			method := http.MethodGet
			if strings.HasPrefix(tt.path, "/grpc") {
				method = http.MethodPost
			}
			req, err := http.NewRequest(method, base+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := over[transport].Do(req)
			if err != nil {
				t.Errorf("%s over %s: %v", tt.path, transport, err)
				continue
			}
			res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("%s over %s is %d, want %d", tt.path, transport, res.StatusCode, want)
			}
		}
	}
	for _, c := range over {
		c.CloseIdleConnections()
	}
}

// Streams of a caller whose certificate is revoked end.
func TestRevokedStreams(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	authority, _, err := cluster.Create(dir, "prod", ln.Addr().String(), "first", os.Geteuid())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = cluster.NewJoins(authority, 0, quiet).Run(ctx, ln) })
	join := func(role, name string) *cluster.Identity {
		token, err := authority.NewToken(role, name, time.Hour, "")
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(t.TempDir(), "identity")
		if _, err := cluster.Join(t.Context(), token, at, os.Geteuid(), nil); err != nil {
			t.Fatal(err)
		}
		i, err := cluster.Open(at, quiet)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "g"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	go func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			go echo(c)
		}
	}()
	s := prepare(t, Node, NodeService(&guests{connect: func() (net.Conn, error) { return net.Dial("unix", socket.Addr().String()) }}, nil))
	s.identity = join(cluster.Node, "n")
	s.start(t)
	dial := func(name string) net.Conn {
		gateway := join(cluster.Gateway, name)
		c, err := nodesAt(t, s.by(gateway), map[string]string{"n": s.tcp}).Dial(t.Context(), "n", anyBoot, 8000)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	stolen, kept := dial("stolen"), dial("kept")
	if _, err := authority.Revoke(cluster.ID{Cluster: "prod", Role: cluster.Gateway, Name: "stolen"}); err != nil {
		t.Fatal(err)
	}
	running.Go(func() { _ = s.identity.Run(ctx) })
	_ = stolen.SetReadDeadline(time.Now().Add(2 * time.Minute))
	var late net.Error
	if _, err := stolen.Read(make([]byte, 1)); err == nil || errors.As(err, &late) && late.Timeout() {
		t.Errorf("the stream of a revoked gateway continues: %v", err)
	}
	if _, err := kept.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(kept, make([]byte, 1)); err != nil {
		t.Errorf("the stream of another gateway ended: %v", err)
	}
}
