package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/after"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/e2b"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/linger"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// handle makes a route an http.Handler: it authenticates, bounds the body, turns an
// error or a panic into an answer, and writes the request's one log line.
func (s *Server) handle(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		id := requestID(r)
		out := &writer{ResponseWriter: w, flow: http.NewResponseController(w)}
		out.Header().Set(telemetry.RequestHeader, id)
		out.Header().Set("X-Content-Type-Options", "nosniff")
		s.metrics.inFlight.Inc()
		defer s.metrics.inFlight.Dec()
		out.audit = &auditing{log: s.audit, route: rt, r: r, id: id, credential: sendsCredential(rt, r)}

		ctx, begin := after.With(telemetry.WithRequest(r.Context(), id))
		defer begin()

		who, err := s.answer(rt, out, r.WithContext(out.audit.withAuditing(ctx)))
		err = s.withVersions(rt, r, err)
		err = settleAudit(out.audit, out, r, err)
		if errors.Is(err, sandbox.ErrOverQuota) {
			s.event(rt, r, sandbox.EventQuotaHit, who, string(sandbox.CodeOf(err)))
		}
		broken := s.conclude(rt, out, r, err)
		out.closeUnread(r)
		took := time.Since(start)
		s.metrics.request(rt, out.status, took)
		s.logRequest(rt, r, id, who, out, err, took)
		if after.Pending(ctx) {
			out.send()
		}
		if broken {
			panic(http.ErrAbortHandler) // the only way to signal an incomplete answer
		}
	})
}

// answer authenticates and runs the handler of a route. A panic becomes an error.
func (s *Server) answer(rt route, w *writer, r *http.Request) (who sandbox.Identity, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	who, r, err = s.authenticate(rt, w, r)
	if err != nil {
		s.refuseBody(w, r)
		return who, sandbox.NotBegun(err)
	}
	if who.Tenant == "" {
		return who, s.allow(rt, w, r, who)
	}
	ctx, leave, err := s.Tenants.Enter(r.Context(), who.Tenant)
	if err != nil {
		s.keepOut(rt, w, r, who, err)
		return who, sandbox.NotBegun(err)
	}
	defer leave()
	who, ctx, leaveUser, err := s.Users.Enter(ctx, who)
	if err != nil {
		s.keepOut(rt, w, r, who, err)
		return who, sandbox.NotBegun(err)
	}
	defer leaveUser()
	w.audit.is(who)
	ctx, release := s.memory.With(ctx, string(who.Tenant))
	defer release()
	err = s.allow(rt, w, r.WithContext(ctx), who)
	var why *sandbox.Error
	if errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &why) { // suspended meanwhile
		err = why
	}
	return who, err
}

// keepOut refuses a request of a suspended Tenant or User.
func (s *Server) keepOut(rt route, w *writer, r *http.Request, who sandbox.Identity, err error) {
	s.refuseBody(w, r)
	w.audit.pass() // the suspension itself is in the log
	s.refuseSuspended(rt, r, who, err)
}

// authenticate returns the Identity of a request, if its route needs one or takes a
// Key, and the request that the handler gets.
func (s *Server) authenticate(rt route, w *writer, r *http.Request) (who sandbox.Identity, _ *http.Request, err error) {
	switch {
	case byURL(rt, r):
		if who, r, err = s.openURL(r); err != nil {
			s.refused(rt, r, sandbox.Identity{}, refusedURL)
			return who, r, err
		}
	case !rt.op.Anyone, rt.op.OptionalKey && sendsKey(r):
		if who, err = s.recognize(rt, oneCredential(r)); err != nil {
			w.Header().Set("WWW-Authenticate", challenge(r))
			s.refuseAnonymous(rt, w, r, err)
			return who, r, err
		}
	default:
		return who, r, nil
	}
	w.audit.is(who)
	return who, r, nil
}

// allow runs the handler of a route if the caller has its scope and the request is
// admitted.
func (s *Server) allow(rt route, w *writer, r *http.Request, who sandbox.Identity) error {
	if scope := rt.op.Scope; !rt.op.Anyone && !who.May(scope) {
		s.refuseBody(w, r)
		w.audit.refuse()
		s.refused(rt, r, who, refusedScope)
		if who.Key == "" {
			return sandbox.Errorf(sandbox.Denied, "this needs the scope %q, which the role %q does not have", scope, v1.RoleName(who.Role))
		}
		return sandbox.Errorf(sandbox.Denied, "this API key does not have the scope %q", scope)
	}
	if err := s.admit(rt, w, r, who); err != nil {
		s.refuseBody(w, r)
		return sandbox.NotBegun(err)
	}
	body, err := newBody(w, r, rt.maxBody)
	if err != nil {
		s.refuseBody(w, r)
		return err
	}
	if b := w.body; b != nil {
		if rt.op != catalogue.CallMCP { // which counts its messages for itself
			b.gather(r, rt.maxBody)
		}
		defer func() { b.release() }()
	}
	bounded := *r // the server looks at the body of r itself when it closes the connection
	bounded.Body = body
	err = s.idempotently(rt, w, &bounded, who)
	if !rt.op.Changes {
		err = sandbox.NotBegun(err)
	}
	return err
}

// refuseSuspended counts a request of a suspended Tenant or User.
func (s *Server) refuseSuspended(rt route, r *http.Request, who sandbox.Identity, err error) {
	if errors.Is(err, sandbox.Denied) { // otherwise the Store failed
		s.refused(rt, r, who, refusedSuspended)
	}
}

// refuseAnonymous counts a request whose caller was not recognized.
func (s *Server) refuseAnonymous(rt route, w *writer, r *http.Request, err error) {
	switch {
	case !errors.Is(err, sandbox.Anonymous): // the keys could not be read, or it tried too often
	case w.audit.credential:
		s.refused(rt, r, sandbox.Identity{}, refusedCredential)
	default:
		s.metrics.refuse(refusedNobody)
	}
}

// refused counts a request that was refused because of its caller, and sends an event.
func (s *Server) refused(rt route, r *http.Request, who sandbox.Identity, reason string) {
	s.metrics.refuse(reason)
	s.event(rt, r, sandbox.EventAuthFailed, who, reason)
}

// event sends an event about a request.
func (s *Server) event(rt route, r *http.Request, kind sandbox.EventKind, who sandbox.Identity, reason string) {
	s.Event(sandbox.Event{
		Kind: kind, Tenant: who.Tenant, User: sandbox.AuditText(who.User), Key: who.Key, Remote: remoteOf(r), Operation: rt.name(), Reason: reason,
	})
}

// admit checks a request's rate limit and, if it changes anything, that the audit log
// can be written. A request that is not admitted is not recorded: nothing happens.
func (s *Server) admit(rt route, w *writer, r *http.Request, who sandbox.Identity) error {
	err := s.limit(rt, w, r, who)
	if err != nil {
		s.metrics.refuse(refusedRate)
	}
	if err == nil && rt.op.Changes {
		err = s.audit.ready(r.Context())
	}
	if err != nil {
		w.audit.pass()
	}
	return err
}

// refuseBody keeps an unread body from holding the connection.
func (s *Server) refuseBody(w *writer, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody && r.ProtoMajor < 2 { // later ones share the connection
		w.Header().Set("Connection", "close")
		_ = w.flow.SetReadDeadline(time.Now().Add(time.Second)) // not all writers can
		if expects(r) {
			linger.Close(w.ResponseWriter)
		}
	}
}

// conclude answers with err, unless the client is gone or has been answered. It reports
// whether an answer that has begun is cut short.
func (s *Server) conclude(rt route, w *writer, r *http.Request, err error) (broken bool) {
	if err == nil {
		if w.status == 0 {
			w.status = http.StatusOK
		}
		return false
	}
	var answered *rest.Answered
	switch {
	case w.gone || clientLeft(r, err):
		w.status = status.ClientClosed
		return true
	case errors.As(err, &answered):
		if rt.surface == connectSurface {
			w.status = status.Of(err).Status
		}
		return false
	case w.status != 0:
		return true
	}
	err = causeOf(r, err)
	f := status.Of(err)
	if rt.surface == connectSurface {
		_ = rpc.Fail(w, r, err) // an error means that the client is gone
		w.status = f.Status     // for the log: the answer itself is 200 in gRPC
		return false
	}
	for _, name := range []string{"Content-Length", "Content-Disposition", "Content-Range", "Accept-Ranges", "Last-Modified"} {
		w.Header().Del(name) // set for an answer that did not begin
	}
	switch {
	case isVolumeContent(r.URL.Path):
		e2b.FailContent(w, f)
		return false
	case isE2B(r.URL.Path):
		e2b.Fail(w, rt.op, f)
		return false
	}
	if f.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfterSeconds))
	}
	_ = rest.Reply(w, f.Status, v1.FailureBody{Error: f}) // an error means that the client is gone
	return false
}

// causeOf is err, or for a cancellation the reason why the server ended the request.
func causeOf(r *http.Request, err error) error {
	if cause := context.Cause(r.Context()); errors.Is(err, context.Canceled) && cause != nil {
		return cause
	}
	return err
}

// clientLeft reports whether a request failed because its client went away.
func clientLeft(r *http.Request, err error) bool {
	return errors.Is(err, context.Canceled) && context.Cause(r.Context()) == context.Canceled
}

func (s *Server) logRequest(rt route, r *http.Request, id string, who sandbox.Identity, w *writer, err error, took time.Duration) {
	level := slog.LevelInfo
	if rt.op.Quiet {
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.String(telemetry.KeyRequest, id),
		slog.String(telemetry.KeyMethod, truncate(r.Method, 16)),
		slog.String(telemetry.KeyRoute, rt.path),
		slog.Int(telemetry.KeyStatus, w.status),
		slog.Float64(telemetry.KeyDuration, float64(took.Microseconds())/1000),
	}
	if who.Tenant != "" {
		attrs = append(attrs, slog.String(telemetry.KeyTenant, string(who.Tenant)))
	}
	if err != nil {
		code := sandbox.CodeOf(err)
		attrs = append(attrs, slog.String(telemetry.KeyCode, string(code)), slog.String(telemetry.KeyError, truncate(err.Error(), 8<<10)))
		switch {
		case w.status == status.ClientClosed:
		case code == sandbox.Internal && w.status >= 500:
			level = slog.LevelError
		case code == sandbox.Unavailable || code == sandbox.Timeout:
			level = slog.LevelWarn
		}
	}
	s.Log.LogAttrs(context.WithoutCancel(r.Context()), level, "request", attrs...)
}

func truncate(s string, max int) string {
	if len(s) > max {
		return s[:max]
	}
	return s
}

// requestID is the client's own ID if it is safe in a log, or a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get(telemetry.RequestHeader); telemetry.ValidRequest(id) {
		return id
	}
	return rand.Text()
}
