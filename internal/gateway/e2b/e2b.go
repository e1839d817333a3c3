// Package e2b is the control API of E2B's SDKs: it decodes a request, calls, and
// encodes the answer. It keeps E2B's names (templateID, pause, envVars) and holds no
// rules of its own. Unknown features are refused by name.
package e2b

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/sandboxbuild"
)

// Version is the version of E2B's agent whose services the Guest has: clients choose
// features by it.
const Version = "0.6.13"

// clientID is a field that clients require and do not use.
const clientID = "cloudsandbox"

// API holds the services that the handlers call. All fields are required but Domain,
// TLS, DevAuthority, Templates and Secure.
type API struct {
	Sandboxes sandbox.SandboxReader
	Lifecycle sandbox.Lifecycle
	Updates   sandbox.Updates
	Snapshots sandbox.Snapshots
	Volumes   sandbox.Volumes
	// Records finds a Sandbox of any owner.
	Records interface {
		SandboxByID(ctx context.Context, id string) (sandbox.Sandbox, error)
	}
	Guests     *execution.Guests
	Executions *execution.Service
	// AccessToken returns the token for the services inside a Sandbox.
	AccessToken func(id string) string
	// PortTokens sign tokens for private ports.
	PortTokens *signing.Ports
	Catalog    sandbox.TemplateCatalog
	// Starts finds the Templates that new Sandboxes start from.
	Starts  sandbox.TemplateFinder
	Secrets *secrets.Service
	Builds  *sandboxbuild.Service
	Uploads sandbox.TemplateUploads
	Keys    *keys.Service
	URLs    *signing.URLs
	// VolumeFiles accesses files of Volumes, and VolumeTokens sign tokens for them.
	VolumeFiles  sandbox.VolumeFiles
	VolumeTokens *signing.Volumes
	// Domain is the domain of Sandboxes, as PORT-ID.Domain; empty: the name by which
	// clients reach this server.
	Domain string
	// TLS says whether the server speaks TLS. DevAuthority is the certificate, in PEM,
	// of the authority that clients must trust for it; empty: they do already.
	TLS          bool
	DevAuthority string
	// Templates maps names that no Template of ours has, and images, to Templates:
	// NAME, NAME:TAG or NAME:* for any tag.
	Templates map[string]string
	// Secure makes every new Sandbox require a token, as the second generation's do.
	Secure bool
	Log    *slog.Logger

	loads loads
	told  sync.Map // names of replaced Templates, once logged
}

// failure is the body of every error answer. Some clients read Code, others the status:
// they are equal.
type failure struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	ErrorCode string `json:"error_code,omitempty"`
}

// errorCode is E2B's code for a server error; starts is whether the request may start
// Sandboxes.
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

// starts reports whether an operation may start Sandboxes.
func starts(op *catalogue.Operation) bool {
	return op == catalogue.CreateSession || op == catalogue.ResumeSession || op == catalogue.ForkSession
}

// Fail answers a request for the operation op that failed with f.
func Fail(w http.ResponseWriter, op *catalogue.Operation, f v1.Failure) {
	code := f.Status
	if f.Code == sandbox.Unsupported {
		code = http.StatusBadRequest // E2B's clients know no other status for an unsupported request
	}
	if f.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfterSeconds))
	}
	_ = rest.Reply(w, code, failure{code, f.Message, errorCode(code, starts(op))}) // an error means that the client is gone
}

// failureOf is the part of an answer about a Sandbox that could not be started.
func failureOf(f v1.Failure) *failure {
	return &failure{f.Status, f.Message, errorCode(f.Status, true)}
}

// noRoom makes an Exhausted error Unavailable, unless it is about a quota: the host has
// no capacity. Clients report 429, the status of Exhausted, as a rate limit.
func noRoom(err error) error {
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Code != sandbox.Exhausted || errors.Is(err, sandbox.ErrOverQuota) {
		return err
	}
	return &sandbox.Error{Code: sandbox.Unavailable, Detail: e.Detail, RetryAfter: e.RetryAfter, Cause: err}
}

// errNoSandbox is the one answer for a Sandbox that does not exist, has ended or is
// another Tenant's.
func errNoSandbox(id string) error {
	return sandbox.Errorf(sandbox.NotFound, "sandbox %.80q not found", id)
}

// sandboxID is the ID in the path, without the suffix that old clients append. A
// malformed ID is NotFound: clients use it to ask whether a Sandbox exists.
func sandboxID(r *http.Request) (string, error) {
	id, _, _ := strings.Cut(r.PathValue("id"), "-")
	if !sandbox.ValidSandboxID(id) {
		return "", errNoSandbox(r.PathValue("id"))
	}
	return id, nil
}

// live returns the Sandbox in the path, if it has started and not ended.
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

// running returns the Sandbox in the path once it has finished pausing or resuming, or
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
	if sandbox.CodeOf(err) == sandbox.NotFound { // the cause's Code does not count
		return errNoSandbox(id)
	}
	return err
}

// noContent answers with 204.
func noContent(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}
