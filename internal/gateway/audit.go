package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// auditTime is the timeout of writing one entry.
	auditTime = 5 * time.Second
	// auditRetry is the least interval between attempts to write while the log is
	// failing.
	auditRetry = time.Second
	// auditSweep is how often old entries are removed, auditTrim how many at a time.
	auditSweep = time.Hour
	auditTrim  = 1000
	// signedURLUser is the user of a request that a signed URL allows.
	signedURLUser = "signed-url"
	// volumeTokenUser is the user of a request that a Volume token allows.
	volumeTokenUser = "volume-token"
)

// auditLog writes the entries of this gateway.
type auditLog struct {
	store  sandbox.AuditStore
	log    *slog.Logger
	failed prometheus.Counter

	failing atomic.Bool // the last entry could not be written
	mu      sync.Mutex
	lost    int       // entries since the last that was written
	tried   time.Time // the last attempt, while failing
}

// errUnrecorded refuses a request whose audit entry could not be written.
var errUnrecorded = &sandbox.Error{
	Code: sandbox.Unavailable, Detail: "the audit log cannot be written, and nothing changes without it: try again later", RetryAfter: auditRetry,
}

// errEffect answers a request that took effect but whose audit entry could not be
// written. A client must not repeat it blindly.
var errEffect = &sandbox.Error{
	Code: sandbox.Unavailable, Detail: "the request took effect, but the audit log could not be written: check the state before you repeat it",
}

// errUncertain answers a request with an idempotency key during which the database went
// away.
var errUncertain = &sandbox.Error{
	Code: sandbox.Unavailable, Detail: "the database was away while the request ended, and the request may have taken effect: check the state, or send it again with the same Idempotency-Key",
}

// ready returns errUnrecorded while entries cannot be written, so that nothing changes
// without an entry. It retries at most every auditRetry.
func (l *auditLog) ready(ctx context.Context) error {
	if !l.failing.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.failing.Load():
		return nil
	case time.Since(l.tried) < auditRetry:
		return errUnrecorded
	}
	l.tried = time.Now()
	ctx, cancel := context.WithTimeout(ctx, auditTime)
	defer cancel()
	_, err := l.store.AppendAudit(ctx, sandbox.AuditEntry{
		At: l.tried.UTC().Truncate(time.Microsecond), Operation: sandbox.AuditResumed, Detail: fmt.Sprintf("%d entries are only in the server's log", l.lost),
	})
	if err != nil {
		return errUnrecorded.WithCause(err)
	}
	l.lost = 0
	l.failing.Store(false)
	return nil
}

// A finisher writes an entry together with the answer to an idempotency key.
type finisher func(ctx context.Context, e sandbox.AuditEntry, started []string) error

// append writes an entry, also after the client has left. finish may be nil. If it fails,
// the entry is written without, and a repeat runs again for the same resource. An entry
// that cannot be written goes to the server's log. started are the IDs of Sandboxes that
// the request started: append fails if the database has lost one. If the database went away
// at finish, append fails also when it is back: it may have lost other writes of the request
// that did not wait for the disk.
func (l *auditLog) append(ctx context.Context, e sandbox.AuditEntry, started []string, finish finisher) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTime)
	defer cancel()
	var failure error // the client's, if the entry is written
	if finish != nil {
		err := finish(ctx, e, started)
		if err == nil {
			return nil
		}
		if sandbox.CodeOf(err) == sandbox.Unavailable {
			failure = errUncertain.WithCause(err)
		}
		l.log.WarnContext(ctx, "recording the answer to an idempotency key failed", telemetry.KeyError, err.Error())
	}
	_, err := l.store.AppendAudit(ctx, e, started...)
	if errors.Is(err, sandbox.ErrLost) {
		f := status.Of(err)
		failure, e.Status, e.Code = err, f.Status, string(f.Code)
		_, err = l.store.AppendAudit(ctx, e)
	}
	if err == nil {
		return failure
	}
	l.failed.Inc()
	l.log.ErrorContext(ctx, "writing an audit entry failed", telemetry.KeyError, err.Error(), "entry", slog.GroupValue(
		slog.Time("at", e.At), slog.Any("tenant", e.Tenant), slog.String("user", e.User), slog.String("key", e.Key),
		slog.String("operation", e.Operation), slog.String("target", e.Target), slog.String("sandbox", e.Sandbox),
		slog.String("remote", e.Remote), slog.String("request", e.Request), slog.Int("status", e.Status), slog.String("code", e.Code)))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost++
	l.failing.Store(true)
	return errEffect.WithCause(err)
}

// forget removes entries that are older than life until ctx ends. A zero life keeps
// them for ever.
func (l *auditLog) forget(ctx context.Context, life time.Duration) {
	if life == 0 {
		return
	}
	tick := time.NewTicker(auditSweep)
	defer tick.Stop()
	for {
		if err := l.trim(ctx, time.Now().Add(-life)); err != nil && ctx.Err() == nil {
			l.log.Warn("removing old audit entries failed", telemetry.KeyError, err.Error())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// trim removes the entries before the given time, in batches, so that writes do not
// wait.
func (l *auditLog) trim(ctx context.Context, before time.Time) error {
	for {
		n, err := l.store.TrimAudit(ctx, before, auditTrim)
		if err != nil || n < auditTrim {
			return err
		}
	}
}

// An auditing collects the audit entry of one request. Its methods may be called from
// any goroutine of the request.
type auditing struct {
	log   *auditLog
	route route
	r     *http.Request
	id    string // of the request

	credential bool // the request sent a credential, valid or not

	mu      sync.Mutex
	who     sandbox.Identity
	passed  bool // nothing is to be recorded
	refused bool // the caller lacks the scope
	done    bool
	sandbox string   // ID
	made    []string // IDs
	named   string   // the ID or name of the request's object
	changed []string // see rest.Notes
	started []string // IDs of Sandboxes
	finish  finisher
	leave   func() // see finishes; nil: nothing is finished
}

type auditingKey struct{}

// auditingOf returns the auditing of the request of ctx; nil: it has none.
func auditingOf(ctx context.Context) *auditing {
	a, _ := ctx.Value(auditingKey{}).(*auditing)
	return a
}

// withAuditing returns ctx with the auditing, for code that finds the request's target.
func (a *auditing) withAuditing(ctx context.Context) context.Context {
	return rest.WithNotes(context.WithValue(ctx, auditingKey{}, a), a)
}

// is notes the caller.
func (a *auditing) is(who sandbox.Identity) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.who = who
}

// pass keeps the request out of the log: it was not handled.
func (a *auditing) pass() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.passed = true
}

// refuse notes that the caller lacks the scope.
func (a *auditing) refuse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = true
}

// auditTarget records the ID of the request's Sandbox, the first one only.
func auditTarget(ctx context.Context, id string, err error) {
	if a := auditingOf(ctx); a != nil && err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sandbox = cmp.Or(a.sandbox, id)
	}
}

// auditStarted records the ID of a Sandbox that the request started.
func auditStarted(ctx context.Context, id string) {
	if a := auditingOf(ctx); a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.started = append(a.started, id)
	}
}

// Made implements rest.Notes.
func (a *auditing) Made(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.made = append(a.made, id)
}

// Changed implements rest.Notes.
func (a *auditing) Changed(change string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed = append(a.changed, change)
}

// Named implements rest.Notes.
func (a *auditing) Named(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.named = id
}

// finishes has the entry written by finish, together with the answer to an idempotency
// key, and then calls leave.
func (a *auditing) finishes(finish finisher, leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done { // never: an answer that has begun is not stored
		leave()
		return
	}
	a.finish, a.leave = finish, leave
}

// wanted reports whether a request that ends with code gets an entry: it is of an
// audited operation, or its caller was refused.
func (a *auditing) wanted(code sandbox.Code) bool {
	switch {
	case a.passed:
		return false
	case a.who.Tenant != "":
		return a.route.op.Audited || a.refused
	case a.route.op.Authenticates():
		return a.credential && (code == sandbox.Anonymous || code == sandbox.Denied)
	}
	return false
}

// record writes the entry of a request that is about to be answered with an HTTP
// status, or with the error err if that is not nil. It writes at most once.
func (a *auditing) record(httpStatus int, err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.done {
		return nil
	}
	a.done = true
	if a.leave != nil {
		defer a.leave()
	}
	code := ""
	if err != nil {
		f := status.Of(err)
		httpStatus, code = f.Status, string(f.Code)
	}
	if httpStatus == status.ClientClosed {
		code = sandbox.AuditClientLeft
	}
	if !a.wanted(sandbox.Code(code)) {
		return nil
	}
	e := sandbox.AuditEntry{
		At: time.Now().UTC().Truncate(time.Microsecond), Tenant: a.who.Tenant, User: sandbox.AuditText(a.who.User), Role: a.who.Role, Key: a.who.Key,
		Operation: a.route.name(), Target: a.target(), Sandbox: a.sandbox, Remote: remoteOf(a.r), Request: a.id, Status: httpStatus, Code: code,
	}
	switch {
	case a.who.Tenant == "":
		e.Operation, e.Target, e.Detail = sandbox.AuditRefused, "", a.route.name()
	case len(a.made) > 1:
		e.Detail = "made " + strings.Join(a.made, " ")
	case len(a.changed) > 0:
		e.Detail = strings.Join(a.changed, " ")
	}
	unrecorded := a.log.append(a.r.Context(), e, a.started, a.finish)
	if err != nil && httpStatus >= http.StatusInternalServerError {
		return nil // it failed, and its own error says why
	}
	return unrecorded
}

// target is the target of the entry, as catalogue.Target defines it.
func (a *auditing) target() string {
	if len(a.made) == 1 {
		return sandbox.AuditText(a.made[0])
	}
	named := cmp.Or(a.inPath(), a.named)
	if a.sandbox != "" && (named == "" || a.route.op.Target == catalogue.Sandbox) {
		return a.sandbox
	}
	return sandbox.AuditText(named)
}

// inPath is the target in the path of the request; empty: the path has none.
func (a *auditing) inPath() string {
	switch a.route.op.Target {
	case catalogue.User:
		return a.r.PathValue("user")
	case catalogue.TenantUser:
		if user := a.r.PathValue("user"); user != "" {
			return a.r.PathValue("id") + "/users/" + user
		}
	case catalogue.Template:
		if part := a.r.PathValue("part"); part != "" {
			return a.r.PathValue("template") + "/" + part
		}
		return a.r.PathValue("template")
	}
	return cmp.Or(a.r.PathValue("id"), a.r.PathValue("name"), a.r.PathValue("template"))
}

// remoteOf is the client's address, without its port.
func remoteOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return sandbox.AuditText(host)
}

// sendsCredential reports whether a request carries any credential.
func sendsCredential(rt route, r *http.Request) bool {
	return r.Header.Get("Authorization") != "" || r.Header.Get(keyHeader) != "" || len(rest.SocketTokens(r)) > 0 || byURL(rt, r)
}

// settleAudit records a request whose answer has not begun and whose result is err. It
// returns the error to answer with.
func settleAudit(a *auditing, w *writer, r *http.Request, err error) error {
	if w.status != 0 {
		return err // recorded when the answer began
	}
	if w.unrecorded == nil {
		if w.gone || err != nil && clientLeft(r, err) {
			w.unrecorded = a.record(status.ClientClosed, nil)
		} else {
			w.unrecorded = a.record(http.StatusOK, causeOf(r, err))
		}
	}
	if w.unrecorded == nil {
		return err
	}
	err, w.unrecorded = w.unrecorded, nil
	for name := range w.Header() {
		if !slices.Contains(alwaysSent, name) {
			w.Header().Del(name)
		}
	}
	return err
}

// alwaysSent are headers that reveal nothing about the result.
var alwaysSent = []string{telemetry.RequestHeader, "X-Content-Type-Options", "Ratelimit", "Ratelimit-Policy", "Connection"}

// These decorators note the Sandboxes of requests.
type (
	auditedReader    struct{ sandbox.SandboxReader }
	auditedLifecycle struct{ sandbox.Lifecycle }
	auditedUpdates   struct{ sandbox.Updates }
	auditedSnapshots struct {
		sandbox.Snapshots
		sandboxes sandbox.SandboxReader
	}
	auditedFiles struct{ sandbox.SnapshotFiles }
)

// audited passes on the result of a call and notes its Sandbox.
func audited(ctx context.Context) func(sandbox.Sandbox, error) (sandbox.Sandbox, error) {
	return func(sb sandbox.Sandbox, err error) (sandbox.Sandbox, error) {
		auditTarget(ctx, sb.ID, err)
		return sb, err
	}
}

func (n auditedLifecycle) Create(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	sb, err := n.Lifecycle.Create(ctx, tenant, req)
	if err == nil {
		auditStarted(ctx, sb.ID)
	}
	return audited(ctx)(sb, err)
}

func (n auditedLifecycle) Ensure(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, bool, error) {
	sb, created, err := n.Lifecycle.Ensure(ctx, tenant, req)
	if err == nil && created {
		auditStarted(ctx, sb.ID)
	}
	auditTarget(ctx, sb.ID, err)
	return sb, created, err
}

func (n auditedReader) Get(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	return audited(ctx)(n.SandboxReader.Get(ctx, tenant, idOrName))
}

func (n auditedReader) Settled(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	return audited(ctx)(n.SandboxReader.Settled(ctx, tenant, idOrName))
}

func (n auditedUpdates) SetTimeout(ctx context.Context, tenant sandbox.TenantID, idOrName string, timeout time.Duration) (sandbox.Sandbox, error) {
	return audited(ctx)(n.Updates.SetTimeout(ctx, tenant, idOrName, timeout))
}

func (n auditedUpdates) RunFor(ctx context.Context, tenant sandbox.TenantID, idOrName string, timeout time.Duration) (sandbox.Sandbox, error) {
	return audited(ctx)(n.Updates.RunFor(ctx, tenant, idOrName, timeout))
}

func (n auditedUpdates) Update(ctx context.Context, tenant sandbox.TenantID, idOrName string, change sandbox.Change) (sandbox.Sandbox, error) {
	return audited(ctx)(n.Updates.Update(ctx, tenant, idOrName, change))
}

func (n auditedUpdates) Touch(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	return audited(ctx)(n.Updates.Touch(ctx, tenant, idOrName))
}

func (n auditedLifecycle) End(ctx context.Context, tenant sandbox.TenantID, idOrName string, cause sandbox.Cause) (sandbox.Sandbox, error) {
	return audited(ctx)(n.Lifecycle.End(ctx, tenant, idOrName, cause))
}

func (n auditedLifecycle) Pause(ctx context.Context, tenant sandbox.TenantID, idOrName string, filesOnly bool) (sandbox.Sandbox, error) {
	return audited(ctx)(n.Lifecycle.Pause(ctx, tenant, idOrName, filesOnly))
}

func (n auditedLifecycle) Resume(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	return audited(ctx)(n.Lifecycle.Resume(ctx, tenant, idOrName))
}

func (n auditedLifecycle) Reboot(ctx context.Context, tenant sandbox.TenantID, idOrName string) (sandbox.Sandbox, error) {
	return audited(ctx)(n.Lifecycle.Reboot(ctx, tenant, idOrName))
}

func (n auditedSnapshots) Rollback(ctx context.Context, tenant sandbox.TenantID, idOrName, snapshot string) (sandbox.Sandbox, error) {
	return audited(ctx)(n.Snapshots.Rollback(ctx, tenant, idOrName, snapshot))
}

func (n auditedSnapshots) Fork(ctx context.Context, tenant sandbox.TenantID, idOrName string, req sandbox.ForkRequest) ([]sandbox.Forked, error) {
	_, _ = n.sandboxes.Get(ctx, tenant, idOrName) // for its ID; the fork itself reports errors
	forks, err := n.Snapshots.Fork(ctx, tenant, idOrName, req)
	for _, f := range forks {
		if f.Err == nil {
			rest.Made(ctx, f.Sandbox.ID)
			auditStarted(ctx, f.Sandbox.ID)
		}
	}
	return forks, err
}

func (n auditedSnapshots) TakeSnapshot(ctx context.Context, tenant sandbox.TenantID, idOrName string, req sandbox.SnapshotRequest) (sandbox.Snapshot, error) {
	taken, err := n.Snapshots.TakeSnapshot(ctx, tenant, idOrName, req)
	if err == nil {
		auditTarget(ctx, taken.SandboxID, nil)
		rest.Made(ctx, taken.ID)
	}
	return taken, err
}

func (n auditedFiles) ImportSnapshot(ctx context.Context, tenant sandbox.TenantID, req sandbox.ImportRequest, file io.Reader) (sandbox.Snapshot, error) {
	taken, err := n.SnapshotFiles.ImportSnapshot(ctx, tenant, req, file)
	if err == nil {
		rest.Made(ctx, taken.ID)
	}
	return taken, err
}
