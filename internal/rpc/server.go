package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	headerTime = 10 * time.Second
	readyTime  = 2 * time.Second
	// drainTime is how long calls in progress may take after a shutdown begins.
	drainTime = 10 * time.Second
)

// Service is a service of a process.
type Service struct {
	Name    string // its full name in gRPC
	handler func(...connect.HandlerOption) (string, http.Handler)
	nodes   sandbox.BootDialer  // whose Dial is served too; nil: none
	homes   sandbox.VolumeHomes // that are served too; nil: none
	carried map[string]transfer
}

// Server serves a role to the other roles and to monitoring: its services, /health,
// /ready and /metrics, and gRPC's health and reflection. Over TLS, monitoring is limited
// to /health. It is an http.Handler; Run serves it with the right limits.
type Server struct {
	Role     Role
	Keys     *Keys
	Services []Service
	// Identity authenticates callers over TLS. With one, only a Unix socket accepts
	// callers without TLS. Nil: the roles have no certificates.
	Identity *cluster.Identity
	// Monitors are listeners for monitoring alone, without TLS.
	Monitors []net.Listener
	// Ready returns the reasons why the process is not ready, a sentence each.
	Ready func(context.Context) []string
	// Leads reports whether this process leads its role, for /ready; nil: the role has no
	// leader.
	Leads    func() bool
	Registry *prometheus.Registry
	Log      *slog.Logger

	once    sync.Once
	mux     *http.ServeMux // of services and /health
	monitor *http.ServeMux
	open    *http.ServeMux // of both
	dials   dials
	terms   terms
	tokens  checkedTokens

	draining chan struct{} // closed when the shutdown begins
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.once.Do(s.build)
	r = withConnection(r)
	EndConnection(w, s.draining)
	if r.TLS != nil {
		s.mux.ServeHTTP(w, r)
		return
	}
	s.open.ServeHTTP(w, r)
}

func (s *Server) build() {
	s.mux, s.monitor, s.open = http.NewServeMux(), http.NewServeMux(), http.NewServeMux()
	handle := func(pattern string, h http.Handler, into ...*http.ServeMux) {
		for _, mux := range into {
			mux.Handle(pattern, h)
		}
	}
	handle("GET /health", http.HandlerFunc(s.health), s.mux, s.monitor, s.open)
	handle("GET /ready", http.HandlerFunc(s.ready), s.monitor, s.open)
	handle("GET /metrics", promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{}), s.monitor, s.open)
	s.dials = dials{caller: s.caller, open: map[net.Conn]*x509.Certificate{}}
	options := []connect.HandlerOption{
		connect.WithReadMaxBytes(maxMessage),
		connect.WithInterceptors(s.check()),
		connect.WithRecover(func(_ context.Context, _ connect.Spec, _ http.Header, p any) error {
			s.Log.Error("the handler of a call panicked", telemetry.KeyError, fmt.Sprint(p))
			return internal(fmt.Errorf("panic: %v", p))
		}),
	}
	var names []string
	for _, service := range s.Services {
		path, h := service.handler(options...)
		handle(path, h, s.mux, s.open)
		names = append(names, service.Name)
		for pattern, do := range service.carried {
			handle(pattern, s.carries(pattern, do), s.mux, s.open)
		}
		if service.nodes != nil {
			s.dials.nodes = service.nodes
			handle("GET "+dialPath, &s.dials, s.mux, s.open)
		}
		if service.homes != nil {
			handle("GET "+volumesPath, &volumeStreams{&s.dials, service.homes}, s.mux, s.open)
		}
	}
	s.draining = make(chan struct{})
	health := Health{
		Ready:    func(ctx context.Context) bool { return len(s.Ready(ctx)) == 0 },
		Draining: s.draining,
	}
	for path, h := range Tools(health, names...) {
		handle(path, h, s.monitor, s.open)
	}
}

// caller authenticates the caller of a procedure and checks that it may call it. The
// Caller of an error is as much as is known.
func (s *Server) caller(ctx context.Context, procedure string, h http.Header) (c Caller, err error) {
	switch on := connectionOf(ctx); {
	case on.tls != nil && s.Identity != nil:
		pair := s.Identity.Current()
		c, err = s.tokens.checkSigned(pair, on.tls.PeerCertificates, h, audience(s.Role, pair.ID.Name))
	case s.Identity != nil && !on.unix:
		err = anonymous(errors.New("the connection is neither TLS nor a Unix socket"))
	default:
		c, err = s.Keys.check(h, s.Role)
	}
	if err == nil {
		err = authorize(procedure, c)
	}
	return c, err
}

// Tools returns the handlers, by path, for gRPC's tools: health, and reflection of the
// named services.
func Tools(health Health, services ...string) map[string]http.Handler {
	handlers := map[string]http.Handler{}
	add := func(path string, h http.Handler) { handlers[path] = h }
	add(healthHandler(health, services))
	reflector := grpcreflect.NewStaticReflector(append(services, healthName)...)
	add(grpcreflect.NewHandlerV1(reflector))
	add(grpcreflect.NewHandlerV1Alpha(reflector))
	return handlers
}

// forRequest is ctx with the ID of the client's request behind a call, if any.
func forRequest(ctx context.Context, h http.Header) context.Context {
	if id := h.Get(telemetry.RequestHeader); telemetry.ValidRequest(id) {
		return telemetry.WithRequest(ctx, id)
	}
	return ctx
}

// check is the interceptor that authenticates callers, counts calls and logs each call:
// at level info for a client's request, and at debug otherwise.
func (s *Server) check() connect.Interceptor {
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "cloud_sandbox_rpc_duration_seconds",
		Help:    "How long calls of other roles took.",
		Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60},
	}, []string{"method", "code"})
	s.Registry.MustRegister(took)
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (res connect.AnyResponse, err error) {
			began := time.Now()
			ctx = forRequest(ctx, r.Header())
			var caller Caller
			defer func() {
				code := codeOf(err)
				lasted := time.Since(began)
				took.WithLabelValues(r.Spec().Procedure, code).Observe(lasted.Seconds())
				s.logCall(ctx, r.Spec().Procedure, caller, code, lasted)
			}()
			if caller, err = s.caller(ctx, r.Spec().Procedure, r.Header()); err != nil {
				s.Log.WarnContext(ctx, "refused a call without the right to it", telemetry.KeyMethod, r.Spec().Procedure, telemetry.KeyError, err)
				return nil, Public(err)
			}
			if err = s.terms.admit(caller, r.Header()); err != nil {
				return nil, internal(err)
			}
			return next(withCaller(ctx, caller), r)
		}
	})
}

// codeOf is a call's result: "ok", or the Code of its error.
func codeOf(err error) string {
	var remote *connect.Error
	switch {
	case err == nil:
		return "ok"
	case !errors.As(err, &remote):
		return string(sandbox.CodeOf(err))
	}
	if e := detailOf(remote); e != nil {
		return string(e.Code)
	}
	return remote.Code().String()
}

// logCall logs a call without its error: the caller logs that.
func (s *Server) logCall(ctx context.Context, procedure string, c Caller, code string, took time.Duration) {
	level := slog.LevelDebug
	if telemetry.RequestOf(ctx) != "" {
		level = slog.LevelInfo
	}
	attrs := []slog.Attr{
		slog.String(telemetry.KeyMethod, procedure), slog.String(telemetry.KeyCaller, string(c.Role)),
		slog.String(telemetry.KeyCode, code), slog.Float64(telemetry.KeyDuration, float64(took.Microseconds())/1000),
	}
	if c.Tenant != "" {
		attrs = append(attrs, slog.String(telemetry.KeyTenant, string(c.Tenant)))
	}
	s.Log.LogAttrs(ctx, level, "call", attrs...)
}

// health answers GET /health: this process serves.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	head(w)
	fmt.Fprintf(w, `{"service":%q,"status":"ok"}`, s.Role)
}

// ready answers GET /ready: 200 when the process can do its work, and otherwise 503
// with the reasons. A process that stands by is ready: it can take over.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTime)
	defer cancel()
	reasons := s.Ready(ctx)
	select {
	case <-s.draining:
		reasons = append(reasons, "the "+string(s.Role)+" is shutting down")
	default:
	}
	head(w)
	if len(reasons) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = s.writeReady(w, reasons) // the client may be gone
}

func head(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// Run serves on the listeners until ctx ends. Then it closes them, answers calls on open
// connections for lastRequests more, waits up to drainTime for the calls in progress,
// and ends the calls that are left and every stream. An error of one listener ends them all.
func (s *Server) Run(ctx context.Context, listeners ...net.Listener) error {
	s.once.Do(s.build)
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTime, IdleTimeout: 2 * idleLimit,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    serverErrors(s.Log),
		Protocols:   Protocols(),
	}
	monitor := &http.Server{Handler: s.monitor, ReadHeaderTimeout: headerTime, IdleTimeout: 2 * idleLimit, ErrorLog: srv.ErrorLog, Protocols: Protocols()}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer monitor.Close()
	defer s.dials.close()
	if s.Identity != nil {
		cutting, stop := context.WithCancel(base)
		defer stop()
		serving.Go(func() { s.dials.cut(cutting, s.Identity) })
	}
	failed := make(chan error, len(listeners)+len(s.Monitors))
	for _, ln := range listeners {
		serving.Go(func() { failed <- srv.Serve(ln) })
	}
	for _, ln := range s.Monitors {
		serving.Go(func() { failed <- monitor.Serve(ln) })
	}
	select {
	case err := <-failed:
		return errors.Join(err, srv.Close())
	case <-ctx.Done():
	}
	s.dials.refuseNew()
	LetConnectionsEnd(s.draining, listeners)
	patience, stop := context.WithTimeout(context.Background(), drainTime)
	defer stop()
	if srv.Shutdown(patience) == nil {
		return nil
	}
	s.Log.Warn("the drain timed out; ending the calls that are left")
	cancel()
	return srv.Close()
}

// Protocols are the protocols of every port of ours: HTTP/1.1, and HTTP/2 without TLS
// for gRPC.
func Protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// OwnUser accepts only connections of this process's own user and of root on a Unix
// listener.
func OwnUser(ln *net.UnixListener, log *slog.Logger) net.Listener {
	return &ownUser{UnixListener: ln, log: log}
}

type ownUser struct {
	*net.UnixListener
	log *slog.Logger
}

func (l *ownUser) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUser(conn)
		if err == nil && (uid == 0 || int(uid) == unix.Geteuid()) {
			return conn, nil
		}
		l.log.Warn("refused a connection of another user's process", "uid", uid, telemetry.KeyError, err)
		conn.Close()
	}
}

func peerUser(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(controlErr, err); err != nil {
		return 0, err
	}
	return cred.Uid, nil
}
