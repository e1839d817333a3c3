// Package gateway is the door for clients: it says who asks, whether they may,
// and what they are told. What is asked for happens behind the ports of the
// root package.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
)

const (
	headerTime  = 10 * time.Second // for the head of a request to arrive
	idleTime    = 2 * time.Minute  // a kept connection without a request
	maxHeader   = 64 << 10         // bytes
	stalledTime = 30 * time.Second // without progress in either direction
	minRate     = 1 << 10          // bytes a second, what a body must keep up
)

// Config is what a Server is made of. What says nothing else is required.
type Config struct {
	Sandboxes sandbox.Sandboxes
	Nodes     sandbox.Nodes
	// NodeNames lists the Nodes of this installation.
	NodeNames func(context.Context) ([]string, error)
	NewGuest  execution.NewGuest
	Tokens    *Tokens
	// Dev gives a token to anyone who asks from this machine.
	Dev bool
	Log *slog.Logger
	// Registry is where metrics go and what /metrics shows; nil: a new one.
	Registry *prometheus.Registry
	// Drain is what requests under way get once the end is near; zero: 10 s.
	Drain time.Duration
	// States counts everyone's Sandboxes by State, for metrics; nil: not shown.
	States func(context.Context) (map[sandbox.State]int, error)
}

// Server answers every request of a client. It is an http.Handler; Run serves
// it with the right limits.
type Server struct {
	Config
	api     *rest.API
	guests  *execution.Guests
	metrics *metrics
	mux     *http.ServeMux
	docs    docs
	// requests are those under way, whoever serves them.
	requests sync.WaitGroup
}

// New returns a Server. It panics on a Config that lacks a required part: that
// is a mistake of the program.
func New(c Config) *Server {
	if c.Sandboxes == nil || c.Nodes == nil || c.NodeNames == nil || c.NewGuest == nil || c.Tokens == nil || c.Log == nil {
		panic("gateway.New: a required part of the Config is missing")
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	s := &Server{Config: c, docs: newDocs()}
	s.guests = execution.NewGuests(c.Sandboxes, c.Nodes, c.NewGuest)
	s.api = &rest.API{
		Sandboxes: c.Sandboxes, Nodes: c.Nodes, NodeNames: c.NodeNames,
		Guests: s.guests, Log: c.Log,
	}
	s.metrics = newMetrics(c.Registry, s.api.NodeStates, c.States)
	s.api.Executions = execution.New(execution.Config{
		Sandboxes: c.Sandboxes, Guests: s.guests, Log: c.Log, Observe: s.metrics.execution,
	})
	s.mux = s.newMux()
	return s
}

// newMux serves every route, tells who asks a known path with a wrong method
// what the right ones are, and everything else that it is not there.
func (s *Server) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for _, rt := range s.routes() {
		mux.Handle(rt.method+" "+rt.path, s.handle(rt))
		methods[rt.path] = append(methods[rt.path], rt.method)
	}
	for p, allowed := range methods {
		if slices.Contains(allowed, http.MethodGet) {
			allowed = append(allowed, http.MethodHead)
		}
		slices.Sort(allowed)
		mux.Handle(p, s.handle(route{path: p, maxBody: endless, answer: wrongMethod(strings.Join(allowed, ", "))}))
	}
	mux.Handle("/", s.handle(unmatched))
	return mux
}

var unmatched = route{path: "unmatched", maxBody: endless, answer: func(http.ResponseWriter, *http.Request, sandbox.Identity) error {
	return sandbox.Errorf(sandbox.NotFound, "there is nothing at this path; /docs lists what there is")
}}

func wrongMethod(allow string) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
		w.Header().Set("Allow", allow)
		return status.MethodNotAllowed(r.Method)
	}
}

// ServeHTTP answers one request. A path that is not in its clean form is not
// found, where ServeMux would redirect with a page of its own.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	defer s.requests.Done()
	if p := r.URL.Path; p == "" || p[0] != '/' || path.Clean(p) != p {
		s.handle(unmatched).ServeHTTP(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// errDraining is why requests that outlast a drain end.
var errDraining = sandbox.Errorf(sandbox.Unavailable, "the server is shutting down")

// Run serves on the listeners until ctx ends, then takes no more connections,
// gives the requests under way Config.Drain and ends those that are left. It
// returns when every request has ended, with nil after the end of ctx. It
// closes the listeners; one that fails ends them all.
func (s *Server) Run(ctx context.Context, listeners ...net.Listener) error {
	base, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	srv := &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	defer s.guests.Close()
	defer s.requests.Wait()
	var serving sync.WaitGroup
	defer serving.Wait()
	failed := make(chan error, len(listeners))
	for _, ln := range listeners {
		serving.Go(func() { failed <- srv.Serve(ln) })
	}
	select {
	case err := <-failed:
		cancel(errDraining)
		return errors.Join(err, srv.Close())
	case <-ctx.Done():
	}
	return s.drain(srv, cancel)
}

// drain ends srv: by itself within the time for it, or else by end.
func (s *Server) drain(srv *http.Server, end context.CancelCauseFunc) error {
	patience, stop := context.WithTimeout(context.Background(), s.Drain)
	defer stop()
	if srv.Shutdown(patience) == nil {
		return nil
	}
	s.Log.Warn("requests outlasted the drain and are ended")
	end(errDraining)
	last, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if srv.Shutdown(last) != nil { // time to say why
		return srv.Close()
	}
	return nil
}
