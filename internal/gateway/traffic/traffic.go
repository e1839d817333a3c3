// Package traffic proxies requests to the ports inside Sandboxes: HTTP, streams and
// WebSockets. Anyone who knows the ID of a Sandbox may reach its ports, unless its
// owner makes them private; the services inside do their own authentication. The bytes
// belong to the owner on either side, so only the head is inspected.
package traffic

import (
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// stalled is the timeout of one write to a client that does not read.
	stalled = 10 * time.Minute
	// maxConcurrent bounds the concurrent requests of one Sandbox.
	maxConcurrent = 4096
	// maxHead bounds the response head of a service inside, in bytes.
	maxHead = 256 << 10
)

// Config holds a Proxy's dependencies. All fields are required.
type Config struct {
	// Records finds Sandboxes of any owner.
	Records Records
	Nodes   sandbox.BootDialer
	// Forward makes conn, a connection to the Guest, a stream to a port that listens
	// only on loopback inside. It returns Unavailable when nothing listens there
	// either. It closes conn when it fails.
	Forward func(ctx context.Context, conn net.Conn, port uint16) (net.Conn, error)
	// Wake returns a Sandbox once it runs. A paused Sandbox resumes, unless it must
	// stay paused.
	Wake func(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error)
	// Enter admits a request for a Sandbox of a Tenant, or returns ErrSuspended. The
	// returned context ends when the Tenant is suspended or leave is called.
	Enter func(ctx context.Context, tenant sandbox.TenantID) (_ context.Context, leave func(), err error)
	// Use marks a Sandbox as used until ctx ends.
	Use func(ctx context.Context, id string)
	// AccessToken returns the token that the Guest's E2B services require.
	AccessToken func(id string) string
	// Tokens checks tokens for private ports.
	Tokens *signing.Ports
	// OwnToken reports whether a JWT may be valid for this installation, now or later:
	// nothing inside a Sandbox may see it.
	OwnToken func(token string) bool
	Log      *slog.Logger
}

// Records are the reads of a sandbox.SandboxRecords that a Proxy needs.
type Records interface {
	SandboxByID(ctx context.Context, id string) (sandbox.Sandbox, error)
	SandboxesByID(ctx context.Context, ids []string) ([]sandbox.Sandbox, error)
}

// Proxy forwards requests to the ports of Sandboxes. Use New. While Run runs, ports that
// were used of late can also be reached while the Records are away. Its methods are safe for
// concurrent use.
type Proxy struct {
	Config
	proxy *httputil.ReverseProxy
	plain *http.Transport // HTTP/1.1 to services inside
	h2    *http.Transport // HTTP/2, for gRPC

	memory memory

	mu       sync.Mutex
	underWay map[string]int // requests by Sandbox ID
}

// New returns a Proxy.
func New(c Config) *Proxy {
	p := &Proxy{Config: c, underWay: map[string]int{}, memory: memory{byID: map[string]remembered{}}}
	p.plain, p.h2 = p.transport(), p.transport()
	p.plain.Protocols, p.h2.Protocols = new(http.Protocols), new(http.Protocols)
	p.plain.Protocols.SetHTTP1(true)
	p.h2.Protocols.SetUnencryptedHTTP2(true)
	p.h2.Protocols.SetHTTP2(true) // where the port speaks TLS
	p.proxy = &httputil.ReverseProxy{
		Rewrite:       p.rewrite,
		Transport:     roundTrip(p.roundTrip),
		FlushInterval: -1, // at once
		ErrorHandler:  p.failed,
		ErrorLog:      slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		BufferPool:    &buffers{},
	}
	return p
}

// Close closes idle connections.
func (p *Proxy) Close() {
	p.plain.CloseIdleConnections()
	p.h2.CloseIdleConnections()
}

// Serve answers a request. t and err are TargetOf's result for it.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, t Target, err error) {
	switch {
	case err != nil:
		refuse(w, r, answer{Code: http.StatusBadRequest, Message: detail(err)})
		return
	case r.Method == http.MethodConnect:
		refuse(w, r, answer{Code: http.StatusMethodNotAllowed, Message: "CONNECT is not possible here"})
		return
	}
	sb, err := p.record(r.Context(), t.SandboxID)
	switch {
	case err != nil:
		p.refuseFor(w, r, t, err)
		return
	case sandbox.HostPort(t.Port): // their only protection is that they accept the host alone, which is us
		refuse(w, r, closed(t))
		return
	case t.Port == sandbox.EnvdPort && ownPath(r.URL.Path):
		refuse(w, r, answer{Code: http.StatusNotFound, Message: "this path is not for clients", Path: r.URL.Path})
		return
	case p.sieveOf(route{target: t, sandbox: sb}).path(r.URL.Opaque + r.URL.EscapedPath()): // removing it would change the path for the service
		refuse(w, r, answer{Code: http.StatusBadRequest, SandboxID: t.SandboxID, Message: "The path shows an API key or token of this server, which nothing in a sandbox may see: leave it out of the path"})
		return
	}
	ctx, leave, err := p.Enter(r.Context(), sb.Tenant)
	if err != nil {
		p.refuseFor(w, r, t, err)
		return
	}
	defer leave()
	r = r.WithContext(ctx)
	rules := sb.Ingress.RulesOrClosed()
	if rules.PrivateAt(t.Port) && t.Port != sandbox.EnvdPort && !p.opens(w, r, t) {
		return
	}
	if t.Port == sandbox.EnvdPort && sb.State != sandbox.Running && IsPreflight(r) {
		AllowOrigins(w, r) // as envd would
		return
	}
	if sb, err = p.awake(r, t, sb); err != nil {
		p.refuseFor(w, r, t, err)
		return
	}
	if !p.begin(t.SandboxID) {
		limit := maxConcurrent
		refuse(w, r, answer{Code: http.StatusTooManyRequests, SandboxID: t.SandboxID, Message: "too many requests to this sandbox are in progress: wait until one has ended", Limit: &limit})
		return
	}
	defer p.end(t.SandboxID)
	p.Use(ctx, sb.ID)
	flow := http.NewResponseController(w)
	_ = flow.EnableFullDuplex() // HTTP/2 always is
	rt := route{target: t, sandbox: sb, rules: rules}
	r = r.WithContext(withRoute(ctx, rt))
	if r.Body != nil && r.Body != http.NoBody {
		b := &body{ReadCloser: r.Body, ends: func() { p.sieveOf(rt).header(r.Trailer) }}
		r.Body = b
		defer b.closeUnread(w, r)
	}
	p.stream(&patient{w, flow}, r, sb.ID)
}

// errNotWoken reports that a request to envd's port does not wake a Sandbox: envd would
// refuse it.
var errNotWoken = errors.New("the access token is missing or wrong")

// awake returns sb once it runs. A paused Sandbox resumes, but not for a request that
// envd would refuse.
func (p *Proxy) awake(r *http.Request, t Target, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	if sb.State == sandbox.Running {
		return sb, nil
	}
	open := sb.Ingress.RulesOrClosed().OpenServices
	if t.Port == sandbox.EnvdPort && !sb.StayPaused && !open && !p.knowsToken(r, sb.ID) {
		return sb, errNotWoken
	}
	return p.Wake(r.Context(), sb)
}

// knowsToken reports whether a request carries envd's token.
func (p *Proxy) knowsToken(r *http.Request, id string) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get(accessHeader)), []byte(p.AccessToken(id))) == 1
}

func (p *Proxy) begin(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.underWay[id] >= maxConcurrent {
		return false
	}
	p.underWay[id]++
	return true
}

func (p *Proxy) end(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.underWay[id]--; p.underWay[id] == 0 {
		delete(p.underWay, id)
	}
}

// ownPaths are envd's paths for E2B's control plane, closed to all clients.
var ownPaths = []string{"/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"}

func ownPath(p string) bool { return slices.Contains(ownPaths, path.Clean("/"+p)) }

// rewrite builds the request that is sent inside.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	rt, _ := routeOf(pr.In.Context())
	out := pr.Out
	out.URL.Scheme, out.URL.Host = "http", rt.host()
	if rt.rules.TLSAt(rt.target.Port) {
		out.URL.Scheme = "https"
	}
	if host := rt.rules.HostAt(rt.target.Port); host != "" && rt.target.Port != sandbox.EnvdPort {
		out.Host = host
	}
	keep := p.sieveOf(rt)
	out.URL.User, out.URL.RawQuery = nil, keep.query(pr.In.URL.RawQuery)
	out.Trailer = pr.In.Trailer // filled while the body is read
	keep.header(out.Header)
	pr.SetXForwarded()
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// send sends a request to the service inside: in HTTP/2 if it is a gRPC call, which
// needs it.
func (p *Proxy) send(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") && r.Header.Get("Te") != "" {
		return p.h2.RoundTrip(r)
	}
	return p.plain.RoundTrip(r)
}

// failed answers a request that got no answer from inside.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	rt, _ := routeOf(r.Context())
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone, or the server ends the request
	}
	p.Log.DebugContext(r.Context(), "forwarding a request to a sandbox failed", telemetry.KeySandbox, rt.target.SandboxID, "port", rt.target.Port, telemetry.KeyError, err.Error())
	p.refuseFor(w, r, rt.target, err)
}

// patient gives each write of an answer its own, long deadline.
type patient struct {
	http.ResponseWriter
	flow *http.ResponseController
}

func (p *patient) Write(b []byte) (int, error) {
	_ = p.flow.SetWriteDeadline(time.Now().Add(stalled)) // not all writers can
	return p.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find the rest.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// buffers are copy buffers for answers.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
