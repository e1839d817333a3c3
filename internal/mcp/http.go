package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

// Bounds of the sessions that clients hold.
const (
	// maxSessions is the limit of sessions in all, and maxOwnSessions the limit of one
	// Tenant. A new session beyond the latter ends the Tenant's longest idle one.
	maxSessions    = 4096
	maxOwnSessions = 256
	// maxOpening bounds the message that begins a session, in bytes: it stays in memory.
	maxOpening = 64 << 10
	// sessionIdle is the time without a request after which a session ends.
	sessionIdle = 2 * time.Hour
)

// Names of HTTP headers.
const (
	sessionHeader = "Mcp-Session-Id"
	// postHeader carries the ID of the request that a message came with. Handler sets it
	// and drops a client's own value.
	postHeader = "Cloud-Sandbox-Mcp-Post"
)

// Handler serves MCP over Streamable HTTP. Its methods are safe for concurrent use.
type Handler struct {
	client  *client.Client
	serving map[Set]http.Handler
	// draining is closed when idle streams must end.
	draining <-chan struct{}

	mu       sync.Mutex
	sessions map[string]*httpSession // by ID
	opening  map[sandbox.TenantID]int
	posts    map[string]*post // in flight, by their ID in postHeader
	closed   bool
	ended    sync.WaitGroup // sessions
}

// httpSession is a Session and its owner.
type httpSession struct {
	*Session
	id      string
	owner   owner
	set     Set
	mcp     *sdk.ServerSession
	live    context.Context // until the session ends
	end     context.CancelFunc
	last    *http.Request // the client's latest request, as credential returns it; under Handler.mu
	used    time.Time     // time of the latest request; under Handler.mu
	running int           // requests in flight; under Handler.mu
}

// owner identifies the caller who may use a session. To other callers the session
// does not exist.
type owner struct {
	tenant       sandbox.TenantID
	user, person string
	key          string
}

func ownerOf(who sandbox.Identity) owner {
	return owner{who.Tenant, who.User, who.Person, who.Key}
}

// post is a request in flight.
type post struct {
	r      *http.Request
	who    sandbox.Identity
	stream *stream
}

type callerKey struct{}

// CallerHeaders are the headers that identify a Caller.
func CallerHeaders() []string {
	return []string{"Authorization", "X-API-Key", "X-Forwarded-Proto"}
}

// Caller returns the client's request on whose behalf an API call is made. Its
// credential and its address apply to the call. ctx is the context of a call through
// the RoundTripper of a Handler.
func Caller(ctx context.Context) *http.Request {
	r, _ := ctx.Value(callerKey{}).(*http.Request)
	return r
}

// NewHandler returns a Handler of a server of a version, empty for an unknown one, whose
// tools call the API through way. Idle streams end when draining is closed.
func NewHandler(version string, way http.RoundTripper, draining <-chan struct{}) *Handler {
	h := &Handler{
		client: client.NewOver("http://localhost", way), draining: draining, serving: map[Set]http.Handler{},
		sessions: map[string]*httpSession{}, opening: map[sandbox.TenantID]int{}, posts: map[string]*post{},
	}
	for _, set := range Sets() {
		server := newServer(version, set, h.sessionOf)
		server.AddReceivingMiddleware(h.openSessions(set), h.showTools(set))
		h.serving[set] = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{
			SessionTimeout:      sessionIdle,
			MaxRequestBodyBytes: -1, // Serve has read the body, within its bound
			// The caller is identified by a credential that no page can make a browser send.
			DisableLocalhostProtection: true,
		})
	}
	return h
}

var errNoSession = sandbox.Errorf(sandbox.NotFound, "no such MCP session: begin a new one")

// Serve answers a request of the caller who.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	set, err := choose(r)
	if err != nil {
		return err
	}
	var session *httpSession
	if id := r.Header.Get(sessionHeader); id != "" {
		if session, err = h.find(id, who, r); err != nil {
			return err
		}
		defer h.release(session)
		set = session.set
	} else if r.Method == http.MethodPost {
		if err := h.admit(who.Tenant); err != nil {
			return err
		}
		defer h.admitted(who.Tenant)
	}
	body, err := readMessage(r, session == nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	out := newStream(w)
	defer out.end()
	if r.Method == http.MethodGet {
		out.keepAlive()
		go func() {
			select {
			case <-h.draining:
				cancel(nil)
			case <-ctx.Done():
			}
		}()
	}
	if r.Method == http.MethodDelete && session != nil {
		session.end() // its calls end first: closing waits for them
	}
	token := rand.Text()
	asked := r.Clone(ctx)
	asked.Body = io.NopCloser(bytes.NewReader(body))
	asked.Header.Set(postHeader, token)
	h.mu.Lock()
	h.posts[token] = &post{asked, who, out}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.posts, token)
		h.mu.Unlock()
	}()
	h.serving[set].ServeHTTP(out, asked)
	return nil
}

// messageCopies is the most copies of a message in memory at once: as received, as
// parsed, and as the API request.
const messageCopies = 4

// readMessage reads a message, perhaps one that opens a session.
func readMessage(r *http.Request, opens bool) ([]byte, error) {
	if err := spool.HoldToTheEnd(r.Context(), messageCopies*bodyBound(r)); err != nil {
		return nil, err
	}
	if !opens {
		return io.ReadAll(r.Body)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxOpening+1))
	if err == nil && len(body) > maxOpening {
		err = sandbox.Errorf(sandbox.TooLarge, "the message that begins a session may have at most %d bytes", maxOpening)
	}
	return body, err
}

// bodyBound returns the most bytes that the body of r may have.
func bodyBound(r *http.Request) int64 {
	switch {
	case r.Body == http.NoBody:
		return 0
	case r.ContentLength >= 0:
		return r.ContentLength
	}
	return catalogue.MCPMessage
}

// Parameters of the URL.
const (
	toolsParameter    = "tools"
	sessionParameter  = "session"
	templateParameter = "template"
)

// choose checks the parameters of the URL and returns the set of tools.
func choose(r *http.Request) (Set, error) {
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if known := []string{toolsParameter, sessionParameter, templateParameter}; !slices.Contains(known, name) {
			return "", sandbox.Errorf(sandbox.Invalid, "unknown query parameter %q: /mcp knows %q", name, known).WithCause(sandbox.ErrUnknown)
		}
	}
	if name := query.Get(sessionParameter); name != "" {
		if err := (sandbox.CreateRequest{Name: name}).Check(); err != nil {
			return "", err
		}
	}
	return ParseSet(query.Get(toolsParameter))
}

// find returns the session with an ID if who owns it. The session is in use until
// release.
func (h *Handler) find(id string, who sandbox.Identity, r *http.Request) (*httpSession, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil || s.owner != ownerOf(who) {
		return nil, errNoSession
	}
	s.last, s.used = credential(r), time.Now()
	s.running++
	return s, nil
}

// credential returns a small copy of r that may be kept: only the parts that
// authenticate and locate the client.
func credential(r *http.Request) *http.Request {
	kept := &http.Request{Host: r.Host, RemoteAddr: r.RemoteAddr, TLS: r.TLS, Header: http.Header{}}
	for _, name := range CallerHeaders() {
		if values := r.Header.Values(name); len(values) > 0 {
			kept.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	return kept
}

func (h *Handler) release(s *httpSession) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.running--
}

// admit reserves room for a session that is about to be opened. A Tenant at its limit
// loses its longest idle session.
func (h *Handler) admit(tenant sandbox.TenantID) error {
	h.mu.Lock()
	var oldest *httpSession
	own, opening := 0, 0
	for _, n := range h.opening {
		opening += n
	}
	for _, s := range h.sessions {
		if s.owner.tenant != tenant {
			continue
		}
		own++
		if s.running == 0 && (oldest == nil || s.used.Before(oldest.used)) {
			oldest = s
		}
	}
	own += h.opening[tenant]
	switch {
	case own >= maxOwnSessions && oldest == nil:
		h.mu.Unlock()
		return sandbox.Errorf(sandbox.Exhausted, "your tenant has %d MCP sessions, and all are in use", maxOwnSessions)
	case own < maxOwnSessions && len(h.sessions)+opening >= maxSessions:
		h.mu.Unlock()
		return sandbox.Errorf(sandbox.Unavailable, "the server has %d MCP sessions, as many as it may", maxSessions)
	}
	h.opening[tenant]++
	h.mu.Unlock()
	if own >= maxOwnSessions {
		_ = oldest.mcp.Close() // it ends in any case
	}
	return nil
}

// admitted releases the reservation of admit.
func (h *Handler) admitted(tenant sandbox.TenantID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.opening[tenant]--; h.opening[tenant] == 0 {
		delete(h.opening, tenant)
	}
}

// postOf returns the request that carried a message.
func (h *Handler) postOf(req sdk.Request) (*post, error) {
	if extra := req.GetExtra(); extra != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if p := h.posts[extra.Header.Get(postHeader)]; p != nil {
			return p, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.Unavailable, "the client has left")
}

// openSessions records the sessions that clients initialize.
func (h *Handler) openSessions(set Set) sdk.Middleware {
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			result, err := next(ctx, method, req)
			if err != nil || method != "initialize" {
				return result, err
			}
			p, err := h.postOf(req)
			if err != nil {
				return nil, err
			}
			return result, h.open(p, set, req.GetSession().(*sdk.ServerSession))
		}
	}
}

var errClosed = errors.New("the server is shutting down")

// open stores a session that p has initialized, until it ends.
func (h *Handler) open(p *post, set Set, mcp *sdk.ServerSession) error {
	query := p.r.URL.Query()
	s := &httpSession{
		Session: newSession(h.client, Options{Create: v1.CreateRequest{Name: query.Get(sessionParameter), Template: query.Get(templateParameter)}}),
		id:      mcp.ID(), owner: ownerOf(p.who), set: set, mcp: mcp, last: credential(p.r), used: time.Now(),
	}
	s.live, s.end = context.WithCancel(context.Background())
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		s.end()
		return errClosed
	}
	h.sessions[s.id] = s
	h.ended.Go(func() {
		_ = mcp.Wait() // how it ended does not matter
		h.leave(s)
	})
	return nil
}

// leave ends a session: its running calls end, and its Sandbox pauses, unless another
// session uses it or the server is shutting down.
func (h *Handler) leave(s *httpSession) {
	s.end()
	h.mu.Lock()
	delete(h.sessions, s.id)
	last, closed := s.last, h.closed
	h.mu.Unlock()
	if closed {
		return
	}
	_ = s.Session.leave(context.WithValue(context.Background(), callerKey{}, last), func(id string) bool { // otherwise the idle timeout pauses it
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, other := range h.sessions {
			if other.owner.tenant == s.owner.tenant && other.known() == id {
				return true
			}
		}
		return h.closed
	})
}

// showTools removes the tools that the caller may not use from the list.
func (h *Handler) showTools(set Set) sdk.Middleware {
	hints := map[string]tool{}
	for _, t := range toolsOf(set) {
		hints[t.name] = t
	}
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			result, err := next(ctx, method, req)
			list, ok := result.(*sdk.ListToolsResult)
			if err != nil || !ok {
				return result, err
			}
			p, err := h.postOf(req)
			if err != nil {
				return nil, err
			}
			list.Tools = slices.DeleteFunc(slices.Clone(list.Tools), func(t *sdk.Tool) bool {
				known := hints[t.Name]
				return !known.mayBeCalled(p.who.May)
			})
			return list, nil
		}
	}
}

// sessionOf returns the Session of a call. The call ends with its session and with
// its request, after which its answer could not be delivered.
func (h *Handler) sessionOf(ctx context.Context, req *sdk.CallToolRequest) (context.Context, *Session, context.CancelFunc, error) {
	p, err := h.postOf(req)
	if err != nil {
		return nil, nil, nil, err
	}
	h.mu.Lock()
	s := h.sessions[req.Session.ID()]
	h.mu.Unlock()
	if s == nil {
		return nil, nil, nil, errNoSession
	}
	p.stream.keepAlive()
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, callerKey{}, p.r))
	left := context.AfterFunc(p.r.Context(), func() { cancel(context.Cause(p.r.Context())) })
	ended := context.AfterFunc(s.live, func() { cancel(context.Canceled) })
	return ctx, s.Session, func() { left(); ended(); cancel(nil) }, nil
}

// Close ends all sessions. Their Sandboxes keep running. It returns when the calls
// have ended.
func (h *Handler) Close() {
	h.mu.Lock()
	h.closed = true
	all := slices.Collect(maps.Values(h.sessions))
	h.mu.Unlock()
	for _, s := range all {
		s.end()
		_ = s.mcp.Close() // it ends in any case
	}
	h.ended.Wait()
	h.client.Close()
}
