// Package gateway is the front end for clients: it authenticates and authorizes them,
// and answers. The work itself is behind the ports of the root package.
package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/e2b"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/traffic"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/oidc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/tenants"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/users"
	"github.com/cloud-sandbox/cloud-sandbox/internal/mcp"
	internalrpc "github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/sandboxbuild"
)

const (
	headerTime  = 10 * time.Second // for the head of a request to arrive
	idleTime    = 2 * time.Minute  // a kept connection without a request
	maxHeader   = 64 << 10         // bytes
	stalledTime = 30 * time.Second // without progress in either direction
	minRate     = 1 << 10          // bytes a second, the least rate of a body
	maxPiece    = 32 << 10         // bytes that a client must take in stalledTime
	errorGrace  = 5 * time.Second  // for requests that outlast the drain to say why they end
)

const (
	// spooled bounds the output of executions that clients have not read yet, in bytes
	// on disk. A Tenant gets a quarter.
	spooled = 2 << 30
	// messageMemory bounds the memory of large messages that must be held whole, in
	// bytes. A Tenant gets a half.
	messageMemory = 512 << 20
)

// Config holds the dependencies and settings of a Server. A field whose comment does
// not say otherwise is required.
type Config struct {
	// Version is the version of this server; empty: clients do not learn it.
	Version string
	// The ports of the session manager.
	Sandboxes     sandbox.SandboxReader
	Lifecycle     sandbox.Lifecycle
	Updates       sandbox.Updates
	Snapshots     sandbox.Snapshots
	SnapshotFiles sandbox.SnapshotFiles
	Volumes       sandbox.Volumes
	// The ports of the Nodes.
	Boots       sandbox.BootDialer
	Reports     sandbox.NodeReports
	NodeVolumes sandbox.NodeVolumes
	VolumeFiles sandbox.VolumeFiles
	// The ports of the Templates.
	Templates      sandbox.TemplateCatalog
	TemplateBuilds sandbox.TemplateBuilds
	TemplateQuota  sandbox.TemplateQuota
	// Starts finds the Templates that new Sandboxes start from; nil: Templates does. Only
	// their Version and Defaults are used.
	Starts sandbox.TemplateFinder
	// NodeNames lists the Nodes of this installation, and NodeRecords has their records.
	NodeNames   func(context.Context) ([]string, error)
	NodeRecords rest.NodeRecords
	NewGuest    execution.NewGuest
	Tokens      *Tokens
	Keys        *keys.Service
	Secrets     *secrets.Service
	Tenants     *tenants.Service
	Users       *users.Service
	// Issuers are the accepted identity providers; nil: none.
	Issuers *oidc.Issuers
	// Store keeps the idempotency records.
	Store sandbox.IdempotencyStore
	// CheckWrite returns an error while records cannot be written; nil: they always
	// can.
	CheckWrite func(context.Context) error
	// Audit keeps the audit log.
	Audit sandbox.AuditStore
	// AuditLife is how long entries are kept; zero: for ever.
	AuditLife time.Duration
	// Quotas has the limits and use of Tenants.
	Quotas sandbox.QuotaStore
	// Usage has the resource use, and Prices its cost.
	Usage  sandbox.UsageStore
	Prices sandbox.Prices
	// SigningKeys keeps the keys that sign URLs of files.
	SigningKeys sandbox.SigningKeyStore
	// Records finds Sandboxes by their IDs, for requests to their ports.
	Records traffic.Records
	// Forward reaches ports that listen only on a Sandbox's loopback; see
	// traffic.Config.
	Forward func(ctx context.Context, conn net.Conn, port uint16) (net.Conn, error)
	// AccessToken returns the token for the E2B services inside a Sandbox.
	AccessToken func(id string) string
	// TrafficToken returns the token for the private ports of a Sandbox.
	TrafficToken func(id string) string
	// TLS serves TLS on the same port beside plain HTTP; nil: no TLS.
	TLS *tls.Config
	// DevAuthority is the certificate, in PEM, of dev mode's authority, if TLS uses
	// one.
	DevAuthority string
	// Domain is the domain of Sandboxes, as PORT-ID.Domain; empty: the name by which
	// clients reach this server. It may have a port.
	Domain string
	// E2BTemplates maps names that E2B's clients know, and that no Template has, to
	// Templates.
	E2BTemplates map[string]string
	// InexactImages allows an image of another distribution or version as a replacement
	// for an image whose registry does not answer.
	InexactImages bool
	// E2BSecure makes Sandboxes of E2B's clients require an access token, even if the
	// client asks for none.
	E2BSecure bool
	// Uploads keeps files that clients upload for later Template builds.
	Uploads sandbox.TemplateUploads
	// Spool is a folder for the output of executions until their clients have read it, and
	// for files sent with a Template build until it has ended; empty: the system's temporary
	// folder.
	Spool string
	// Builds is a folder that keeps builds over a restart; empty: they are forgotten.
	Builds string
	// BuildRecords shares builds with other gateways; nil: this is the only gateway.
	BuildRecords sandbox.BuildRecords
	// TrustedProxies are the addresses of proxies whose forwarding headers are trusted;
	// none: the client is the peer of its connection.
	TrustedProxies []netip.Prefix
	// Limits are the rate limits of each caller, which this process counts requests
	// against; nil: none.
	Limits ratelimit.Rules
	// Limiter decides in place of Limits; nil: Limits do.
	Limiter limiter
	// Event receives events for the operator; nil: they are dropped.
	Event func(sandbox.Event)
	// Dev gives a token to any client on this machine.
	Dev bool
	Log *slog.Logger
	// Registry is the registry of the metrics that /metrics shows; nil: a new one.
	Registry *prometheus.Registry
	// Drain is how long requests in progress may take after a shutdown begins; zero: 10
	// s.
	Drain time.Duration
}

// limiter counts requests against the rate limits of their callers. Take waits only
// briefly, and decides in any case.
type limiter interface {
	Take(caller string, class ratelimit.Class, now time.Time) ratelimit.Decision
}

// Server answers every request of a client. It is an http.Handler; Run serves
// it with the right limits.
type Server struct {
	Config
	api        *rest.API
	e2b        *e2b.API
	traffic    *traffic.Proxy
	limits     limiter
	guests     *execution.Guests
	services   []rpc.Service                   // of Connect and gRPC
	procedures map[string]*catalogue.Operation // of services, by the URL's path
	metrics    *metrics
	audit      *auditLog
	builds     *sandboxbuild.Service
	mcp        *mcp.Handler
	memory     *spool.Memory // of large messages in progress
	underWay   underWay
	mux        *http.ServeMux
	// requests are those in progress, on taken-over connections too.
	requests sync.WaitGroup
	draining chan struct{} // closed when the shutdown begins
}

// New returns a Server. It panics on a Config that lacks a required part: that is a
// bug.
func New(c Config) *Server {
	if c.Sandboxes == nil || c.Lifecycle == nil || c.Updates == nil || c.Snapshots == nil || c.SnapshotFiles == nil || c.Volumes == nil ||
		c.Boots == nil || c.Reports == nil || c.NodeVolumes == nil || c.VolumeFiles == nil || c.Templates == nil || c.TemplateBuilds == nil || c.TemplateQuota == nil ||
		c.NodeNames == nil || c.NodeRecords == nil || c.NewGuest == nil || c.Tokens == nil ||
		c.Keys == nil || c.Secrets == nil || c.Tenants == nil || c.Users == nil || c.Store == nil || c.Audit == nil || c.Quotas == nil || c.Usage == nil || c.SigningKeys == nil || c.Records == nil || c.Forward == nil || c.AccessToken == nil || c.TrafficToken == nil || c.Log == nil {
		panic("gateway.New: a required part of the Config is missing")
	}
	if c.Starts == nil {
		c.Starts = c.Templates
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if c.Event == nil {
		c.Event = func(sandbox.Event) {}
	}
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	c.Sandboxes, c.Lifecycle, c.Updates = auditedReader{c.Sandboxes}, auditedLifecycle{c.Lifecycle}, auditedUpdates{c.Updates}
	c.Snapshots, c.SnapshotFiles = auditedSnapshots{c.Snapshots, c.Sandboxes}, auditedFiles{c.SnapshotFiles}
	s := &Server{
		Config: c, limits: c.Limiter, draining: make(chan struct{}),
		metrics: newMetrics(c.Registry), memory: spool.NewMemory(messageMemory, messageMemory/2),
	}
	if s.limits == nil {
		s.limits = ratelimit.New(c.Limits)
	}
	s.audit = &auditLog{store: c.Audit, log: c.Log, failed: s.metrics.unrecorded}
	ports := signing.NewPorts(c.TrafficToken, nil)
	s.guests = execution.NewGuests(struct {
		sandbox.SandboxReader
		sandbox.Lifecycle
		sandbox.Updates
	}{c.Sandboxes, c.Lifecycle, c.Updates}, c.Boots, c.NewGuest)
	lives := placed{c.Lifecycle, c.Starts}
	s.api = &rest.API{
		Sandboxes: c.Sandboxes, Lifecycle: lives, Updates: c.Updates, Snapshots: c.Snapshots, SnapshotFiles: c.SnapshotFiles, Volumes: c.Volumes,
		Reports: c.Reports, NodeVolumes: c.NodeVolumes, NodeNames: c.NodeNames, NodeRecords: c.NodeRecords, Templates: c.Templates, TemplateQuota: c.TemplateQuota,
		Guests: s.guests, URLs: signing.NewURLs(c.SigningKeys, nil), Keys: c.Keys, Secrets: c.Secrets, Tenants: c.Tenants, Users: c.Users, Quotas: c.Quotas, Audit: c.Audit, Log: c.Log,
		Usage: c.Usage, Prices: c.Prices, PortTokens: ports, Domain: c.Domain,
	}
	s.api.Executions = execution.New(execution.Config{
		Sandboxes: struct {
			sandbox.SandboxReader
			sandbox.Lifecycle
		}{c.Sandboxes, lives},
		Guests: s.guests, Log: c.Log, Observe: s.metrics.execution, Event: c.Event,
		Spools: spool.NewBudget(c.Spool, spooled, spooled/4),
	})
	s.builds = sandboxbuild.New(sandboxbuild.Config{
		Sandboxes: struct {
			sandbox.Lifecycle
			sandbox.Snapshots
		}{c.Lifecycle, c.Snapshots},
		Templates: struct {
			sandbox.TemplateCatalog
			sandbox.TemplateQuota
		}{c.Templates, c.TemplateQuota},
		TemplateBuilds: c.TemplateBuilds, Guests: s.guests, Uploads: c.Uploads, Scratch: c.Spool, Kept: c.Builds, Records: c.BuildRecords, Inexact: c.InexactImages, StandIns: c.E2BTemplates, Log: c.Log,
	})
	s.api.TemplateBuilds = sandboxbuild.Builds{TemplateBuilds: c.TemplateBuilds, Service: s.builds}
	s.procedures = procedures(unaries(s.api))
	s.services = rpc.Services(&rpc.API{
		Guests: s.guests, Executions: s.api.Executions, TemplateBuilds: s.api.TemplateBuilds, Unary: unaryCalls(s.api), Once: s.callIdempotently, Explain: s.explainCall,
	})
	s.e2b = &e2b.API{
		Sandboxes: c.Sandboxes, Lifecycle: c.Lifecycle, Updates: c.Updates, Snapshots: c.Snapshots, Volumes: c.Volumes, VolumeFiles: c.VolumeFiles, Records: c.Records, Guests: s.guests, Executions: s.api.Executions,
		AccessToken: c.AccessToken, PortTokens: ports, Domain: c.Domain, TLS: c.TLS != nil, DevAuthority: c.DevAuthority, Templates: c.E2BTemplates, Secure: c.E2BSecure, Catalog: c.Templates, Starts: c.Starts, Secrets: c.Secrets, Builds: s.builds, Uploads: c.Uploads, Keys: c.Keys, URLs: s.api.URLs, Log: c.Log,
		VolumeTokens: signing.NewVolumes(c.SigningKeys, nil),
	}
	s.traffic = traffic.New(traffic.Config{
		Records: c.Records, Nodes: c.Boots, Forward: c.Forward, Wake: s.wake, Use: s.guests.Use, Enter: c.Tenants.Enter, AccessToken: c.AccessToken, Tokens: ports, OwnToken: s.ours, Log: c.Log,
	})
	s.api.Ports = s.traffic
	s.mcp = mcp.NewHandler(c.Version, inProcess{s}, s.draining)
	s.mux = s.newMux()
	return s
}

// newMux serves every route. It answers a wrong method on a known path with the allowed
// ones, and any other path with NotFound.
func (s *Server) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for _, rt := range s.allRoutes() {
		mux.Handle(rt.method+" "+pattern(rt.path), s.handle(rt))
		methods[rt.path] = append(methods[rt.path], rt.method)
	}
	for p, allowed := range methods {
		if covered(p, methods) {
			continue // the other path answers wrong methods
		}
		if slices.Contains(allowed, http.MethodGet) {
			allowed = append(allowed, http.MethodHead)
		}
		slices.Sort(allowed)
		mux.Handle(pattern(p), s.handle(missing(p, wrongMethod(strings.Join(allowed, ", ")))))
	}
	path, procedure := s.handle(unmatched), s.handle(unmatchedCall)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if rpc.IsCall(r) {
			procedure.ServeHTTP(w, r)
			return
		}
		path.ServeHTTP(w, r)
	})
	return mux
}

// pattern is a path in ServeMux's syntax, where "/" alone means every path.
func pattern(path string) string {
	if path == "/" {
		return "/{$}"
	}
	return path
}

// covered reports whether another path with a wildcard matches a path.
func covered(p string, methods map[string][]string) bool {
	if strings.HasPrefix(path.Base(p), "{") {
		return false
	}
	for _, wildcard := range []string{"/{id}", "/{template}"} {
		if _, ok := methods[path.Dir(p)+wildcard]; ok {
			return true
		}
	}
	return false
}

// allRoutes are all URLs that are served.
func (s *Server) allRoutes() []route {
	return slices.Concat(s.routes(), s.e2bRoutes(), s.callRoutes())
}

var unmatched = missing("unmatched", func(http.ResponseWriter, *http.Request, sandbox.Identity) error {
	return sandbox.Errorf(sandbox.NotFound, "no operation has this path; /docs lists the API").WithCause(sandbox.ErrUnknown)
})

// missing is the route of a request without an operation.
func missing(path string, answer rest.Handler) route {
	return route{binding{"", path, &catalogue.Operation{Anyone: true}, answer}, restSurface, catalogue.Streamed}
}

// unmatchedCall answers a call of Connect or gRPC that this server does not have, with
// the code by which their clients recognize it.
var unmatchedCall = func() route {
	rt := missing("unmatched", func(http.ResponseWriter, *http.Request, sandbox.Identity) error {
		return sandbox.Errorf(sandbox.Unsupported, "this server does not have the procedure; reflection lists all").WithCause(sandbox.ErrUnknown)
	})
	rt.surface = connectSurface
	return rt
}()

func wrongMethod(allow string) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
		w.Header().Set("Allow", allow)
		return status.MethodNotAllowed(r.Method)
	}
}

// ServeHTTP answers one request. A path that is not clean is not found; ServeMux would
// redirect it with a page of its own.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	defer s.requests.Done()
	internalrpc.EndConnection(w, s.draining)
	r = s.fromClient(r)
	// A request for a port of a Sandbox may have any path.
	if to, ok, err := traffic.TargetOf(r, asksControl); ok {
		s.carry(w, r, to, err)
		return
	}
	if openToPages(w, r) {
		return
	}
	if p := r.URL.Path; p == "" || p[0] != '/' || path.Clean(p) != p {
		s.handle(unmatched).ServeHTTP(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// errDraining is the cause of ending the requests that outlast a drain.
var errDraining = sandbox.Errorf(sandbox.Unavailable, "the server is shutting down")

// EndedBuilds returns the events of builds by steps that ended at since or later.
func (s *Server) EndedBuilds(since time.Time) []sandbox.Event { return s.builds.Ended(since) }

// Run serves on the listeners until ctx ends. Then it accepts no more connections, ends
// connections in use by the answer to their next request, gives the requests in progress
// Config.Drain and ends the rest. It returns when every request has ended, with nil after
// the end of ctx. It closes the listeners; an error of one ends them all.
func (s *Server) Run(ctx context.Context, listeners ...net.Listener) error {
	base, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	srv := &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		Protocols:         internalrpc.Protocols(),
		// Pings detect a client that is gone without closing its connection, also on a
		// silent stream of a shared connection.
		HTTP2:    &http.HTTP2Config{SendPingTimeout: stalledTime, PingTimeout: stalledTime, WriteByteTimeout: stalledTime},
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	defer s.guests.Close()
	defer s.traffic.Close()
	defer s.builds.Close()
	defer s.mcp.Close()
	using, stopUsing := context.WithCancel(base)
	var told sync.WaitGroup
	told.Go(func() { s.guests.KeepTelling(using, s.Log) })
	told.Go(func() { s.traffic.Run(using) })
	told.Go(func() { s.forgetOnces(using) })
	told.Go(func() { s.e2b.Sample(using) })
	told.Go(func() { s.audit.forget(using, s.AuditLife) })
	told.Go(func() { _ = s.Keys.Run(using) }) // it returns when using ends
	told.Go(func() { _ = s.Tenants.Run(using) })
	told.Go(func() { _ = s.Users.Run(using) })
	defer told.Wait()
	defer stopUsing()
	defer s.requests.Wait()
	var serving sync.WaitGroup
	defer serving.Wait()
	failed := make(chan error, len(listeners))
	for _, ln := range listeners {
		if s.TLS != nil {
			ln = secure(ln, s.TLS)
		}
		serving.Go(func() { failed <- srv.Serve(ln) })
	}
	select {
	case err := <-failed:
		cancel(errDraining)
		return errors.Join(err, srv.Close())
	case <-ctx.Done():
	}
	internalrpc.LetConnectionsEnd(s.draining, listeners)
	return s.drain(srv, cancel)
}

// drain shuts srv down gracefully within Config.Drain, and after that with end.
func (s *Server) drain(srv *http.Server, end context.CancelCauseFunc) error {
	patience, stop := context.WithTimeout(context.Background(), s.Drain)
	defer stop()
	if srv.Shutdown(patience) == nil && s.finished(patience) {
		return nil
	}
	s.Log.Warn("the drain timed out; ending the requests that are left")
	end(errDraining)
	last, stop := context.WithTimeout(context.Background(), errorGrace)
	defer stop()
	if srv.Shutdown(last) != nil {
		return srv.Close()
	}
	return nil
}

// finished waits for all requests, on taken-over connections too, and reports whether
// they ended before ctx.
func (s *Server) finished(ctx context.Context) bool {
	done := make(chan struct{})
	go func() {
		s.requests.Wait() // Run waits for them too
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
