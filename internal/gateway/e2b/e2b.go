// Package e2b is the control API that E2B's SDKs speak: it decodes a request,
// calls, and encodes the answer. It keeps E2B's words (templateID, pause,
// envVars) and holds no rules of its own. What it does not know it refuses by
// name.
package e2b

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/steps"
)

// Version of E2B's agent whose services the Guest has: clients look at it to
// know what they may ask for.
const Version = "0.6.13"

// clientID is a field that clients want and do not use.
const clientID = "cloudsandbox"

// API holds what the handlers call. All fields are required but Domain,
// TLS, DevAuthority, Templates and Secure.
type API struct {
	Sandboxes sandbox.SandboxReader
	Lifecycle sandbox.Lifecycle
	Updates   sandbox.Updates
	Snapshots sandbox.Snapshots
	Volumes   sandbox.Volumes
	// Records finds a Sandbox, whoever owns it.
	Records interface {
		SandboxByID(ctx context.Context, id string) (sandbox.Sandbox, error)
	}
	Guests     *execution.Guests
	Executions *execution.Service
	// AccessToken is what the services inside a Sandbox ask for.
	AccessToken func(id string) string
	// PortTokens open private ports.
	PortTokens *signing.Ports
	Catalog    sandbox.TemplateCatalog
	Secrets    *secrets.Service
	Builds     *steps.Service
	Keys       *keys.Service
	URLs       *signing.URLs
	// VolumeFiles reaches files of Volumes, which VolumeTokens open.
	VolumeFiles  sandbox.VolumeFiles
	VolumeTokens *signing.Volumes
	// Domain is where Sandboxes are reached, as PORT-ID.Domain; empty: below the name
	// that clients reach this server by.
	Domain string
	// TLS says whether the server speaks it, and DevAuthority, in PEM, whom clients must
	// trust for that; empty: they do already.
	TLS          bool
	DevAuthority string
	// Templates says what is meant by names that no Template of ours has, and by
	// images: NAME, NAME:TAG or NAME:* for any tag.
	Templates map[string]string
	// Secure has every Sandbox that is created ask for a token, as those of the second
	// generation do.
	Secure bool
	Log    *slog.Logger

	loads loads
	told  sync.Map // names of Templates that others stand in for, once logged
}

// failure is the body of every answer that is not a success. Some clients look
// at Code, others at the status: they are equal.
type failure struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	ErrorCode string `json:"error_code,omitempty"`
}

// errorCode is what E2B calls a failure of the server's, for a request that may
// start Sandboxes or another.
func errorCode(status int, starts bool) string {
	switch {
	case status == http.StatusInternalServerError && starts:
		return "sandbox_create_failed"
	case status == http.StatusInternalServerError:
		return "internal_server_error"
	case status == http.StatusServiceUnavailable && starts:
		return "sandbox_capacity_unavailable"
	case status == http.StatusGatewayTimeout && starts:
		return "sandbox_placement_timeout"
	}
	return ""
}

// starts reports whether a request is one that starts Sandboxes.
func starts(r *http.Request) bool {
	return r.Method == http.MethodPost && slices.Contains([]string{"sandboxes", "connect", "resume", "fork"}, path.Base(r.URL.Path))
}

// Fail answers the request r that failed with f.
func Fail(w http.ResponseWriter, r *http.Request, f v1.Failure) {
	code := f.Status
	if f.Code == sandbox.Unsupported {
		code = http.StatusBadRequest // E2B's clients know no other for what cannot be
	}
	if f.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfterSeconds))
	}
	_ = rest.Reply(w, code, failure{code, f.Message, errorCode(code, starts(r))}) // a client that is gone hears nothing
}

// failureOf is f, of a Sandbox that could not be started, as a part of an answer.
func failureOf(f v1.Failure) *failure {
	return &failure{f.Status, f.Message, errorCode(f.Status, true)}
}

// noRoom makes what the host has no room for Unavailable: of 429, which the rest of
// what is Exhausted is answered with, clients say that a limit of requests was reached.
func noRoom(err error) error {
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Code != sandbox.Exhausted || errors.Is(err, sandbox.ErrOverQuota) {
		return err
	}
	return &sandbox.Error{Code: sandbox.Unavailable, Detail: e.Detail, RetryAfter: e.RetryAfter, Cause: err}
}

// errNoSandbox is the one answer about a Sandbox that is absent, has ended or is
// another Tenant's.
func errNoSandbox(id string) error {
	return sandbox.Errorf(sandbox.NotFound, "sandbox %.80q not found", id)
}

// sandboxID is the ID that a path names. What old clients append to it is left
// out. What is no ID is the ID of none: clients ask whether it is there.
func sandboxID(r *http.Request) (string, error) {
	id, _, _ := strings.Cut(r.PathValue("id"), "-")
	if !sandbox.ValidSandboxID(id) {
		return "", errNoSandbox(r.PathValue("id"))
	}
	return id, nil
}

// live returns the Sandbox that a path names, if it is there for its owner.
func (a *API) live(r *http.Request, who sandbox.Identity) (sandbox.Sandbox, error) {
	id, err := sandboxID(r)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return a.liveByID(r.Context(), who, id)
}

func (a *API) liveByID(ctx context.Context, who sandbox.Identity, id string) (sandbox.Sandbox, error) {
	sb, err := a.Sandboxes.Get(ctx, who.Tenant, id)
	switch {
	case err != nil:
		return sb, absent(err, id)
	case !sb.Live() || sb.State == sandbox.Starting:
		return sb, errNoSandbox(id)
	}
	return sb, nil
}

// running returns the Sandbox that a path names once nothing is under way with it, or
// Conflict if it does not run then.
func (a *API) running(r *http.Request, who sandbox.Identity) (sandbox.Sandbox, error) {
	sb, err := a.live(r, who)
	if err != nil {
		return sb, err
	}
	if sb.State == sandbox.Pausing || sb.State == sandbox.Resuming {
		if sb, err = a.Sandboxes.Settled(r.Context(), who.Tenant, sb.ID); err != nil {
			return sb, absent(err, sb.ID)
		}
	}
	switch {
	case !sb.Live():
		return sb, errNoSandbox(sb.ID)
	case sb.State != sandbox.Running:
		return sb, errNotRunning(sb)
	}
	return sb, nil
}

func errNotRunning(sb sandbox.Sandbox) error {
	return sandbox.Errorf(sandbox.Conflict, "sandbox %q is %s", sb.ID, sb.State)
}

// absent makes every NotFound about a Sandbox the same.
func absent(err error, id string) error {
	if sandbox.CodeOf(err) == sandbox.NotFound { // not of something that only caused it
		return errNoSandbox(id)
	}
	return err
}

// noContent answers what has nothing to say.
func noContent(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}
