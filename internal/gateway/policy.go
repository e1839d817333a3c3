package gateway

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/context/v1/contextv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1/filev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/git/v1/gitv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/key/v1/keyv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1/processv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1/sandboxv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1/templatev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/ratelimit"
)

const (
	keysPath    = "/api/v1/keys"
	tokenPath   = "/api/v1/auth/token"
	auditPath   = "/api/v1/audit"
	nodesPath   = "/api/v1/nodes"
	secretsPath = "/api/v1/secrets"
	volumesPath = "/api/v1/volumes"
	forkPath    = "/api/v1/sessions/{id}/fork"

	// One connection may say anything to what listens.
	connectPath = "/api/v1/sessions/{id}/ports/{port}/connect"

	rotateKeyPath   = "/api/v1/keys/{id}/rotate"
	tenantsPath     = "/api/v1/tenants"
	tenantQuotaPath = "/api/v1/tenants/{id}/quota"
	tenantUsersPath = "/api/v1/tenants/{id}/users"
	usersPath       = "/api/v1/users"

	sessionSnapshotsPath = "/api/v1/sessions/{id}/snapshots"
	importPath           = "/api/v1/snapshots/import"
	exportPath           = "/api/v1/snapshots/{id}/export"
)

// looks reports whether a route only looks: by its method, but for terminals and
// connections, which take input, questions that are a body, and calls.
func looks(rt route) bool {
	switch {
	case rt.path == "/api/v1/processes/{id}/attach", rt.path == connectPath:
		return false
	case slices.Contains([]string{"/api/v1/files/search", "/api/v1/git/status", "/api/v1/git/branches"}, rt.path):
		return true
	case rt.isCall():
		return slices.Contains(lookingCalls, path.Base(rt.path))
	}
	return rt.method == http.MethodGet
}

// lookingCalls are the names of calls that only look, in whichever service.
var lookingCalls = []string{
	"Get", "List", "History", "Output", "Wait",
	"Read", "Stat", "Search", "Archive", "Watch", "Changes",
	"GetBuild", "ListBuilds", "BuildLog",
	"Status", "Branches",
}

// scopeOf is what a Key needs to use a route: by what the route is about, and
// else by whether it only looks.
func scopeOf(rt route) sandbox.Scope {
	switch {
	case strings.HasPrefix(rt.path, keysPath), strings.HasPrefix(rt.path, e2bKeysPath), strings.HasPrefix(rt.path, e2bTokensPath), isCallOf(rt, keyv1connect.KeyServiceName):
		return sandbox.ScopeKeys
	case rt.path == auditPath:
		return sandbox.ScopeAudit
	case strings.HasPrefix(rt.path, usersPath):
		return sandbox.ScopeUsers
	case strings.HasPrefix(rt.path, tenantsPath), strings.HasPrefix(rt.path, nodesPath):
		return sandbox.ScopeTenants
	case rt.path == uploadPath: // also its GET, which answers with a URL to write to
		return sandbox.ScopeTemplates
	case looks(rt):
		return sandbox.ScopeRead
	case isCallOf(rt, templatev1connect.TemplateServiceName), strings.HasPrefix(rt.path, "/api/v1/templates"), strings.HasPrefix(rt.path, "/api/v1/builds"),
		isE2B(rt.path) && strings.Contains(rt.path, "/templates") && (rt.method != http.MethodDelete || rt.path != deleteTemplatePath && rt.path != deleteSpacedPath): // which snapshots share
		return sandbox.ScopeTemplates
	}
	return sandbox.ScopeWrite
}

// creates reports whether a route makes something that lasts, so that it must
// not be made twice by a repeat. Processes see to that themselves, in the guest.
func creates(rt route) bool {
	if rt.method != http.MethodPost {
		return false
	}
	switch rt.path {
	case "/sandboxes", "/v2/sandboxes", "/sandboxes/{id}/fork", "/sandboxes/{id}/snapshots", "/api/v1/sessions", "/api/v1/sandbox/acquire", forkPath, sessionSnapshotsPath, importPath, keysPath, rotateKeyPath, secretsPath, volumesPath, "/api/v1/templates", "/v3/templates", "/v2/templates", e2bKeysPath, "/api/v1/contexts":
		return true
	}
	return false
}

// isCallOf reports whether a route is a call of a service.
func isCallOf(rt route, service string) bool { return strings.HasPrefix(rt.path, "/"+service+"/") }

// classOf is which limit a route counts against; empty: none.
func classOf(rt route) ratelimit.Class {
	switch {
	case rt.path == tokenPath:
		return ratelimit.Token
	case rt.access == anyone:
		return ""
	case rt.isCall():
		return classOfCall(rt)
	case rt.path == "/api/v1/sessions" && creates(rt), rt.path == "/api/v1/sandbox/acquire", rt.path == forkPath, isE2B(rt.path) && creates(rt) && !strings.HasSuffix(rt.path, "/templates") && rt.path != e2bKeysPath && !strings.HasSuffix(rt.path, "/snapshots"):
		return ratelimit.Create
	case strings.HasPrefix(rt.path, rest.FilesPath), isVolumeContent(rt.path):
		return ratelimit.Files
	case rt.method == http.MethodGet:
		return ratelimit.Read
	}
	for _, prefix := range []string{"/api/v1/execute", "/api/v1/processes", "/api/v1/contexts", "/api/v1/git"} {
		if strings.HasPrefix(rt.path, prefix) {
			return ratelimit.Execute
		}
	}
	return ratelimit.Write
}

func classOfCall(rt route) ratelimit.Class {
	name := path.Base(rt.path)
	switch {
	case isCallOf(rt, filev1connect.FileServiceName):
		return ratelimit.Files
	case isCallOf(rt, gitv1connect.GitServiceName):
		return ratelimit.Execute
	case looks(rt):
		return ratelimit.Read
	case isCallOf(rt, sandboxv1connect.SandboxServiceName) && (name == "Create" || name == "Fork"):
		return ratelimit.Create
	case name == "Execute", isCallOf(rt, processv1connect.ProcessServiceName), isCallOf(rt, contextv1connect.ContextServiceName):
		return ratelimit.Execute
	}
	return ratelimit.Write
}

// limit counts a request against its caller's limit and says in the headers how
// that stands: RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-10. Beyond it the answer is Exhausted.
func (s *Server) limit(rt route, w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	class := classOf(rt)
	if class == "" {
		return nil
	}
	d := s.limits.Take(callerOf(r, who), class, time.Now())
	if !d.Limited {
		return nil
	}
	window := int(math.Ceil(float64(d.Rule.Burst) / d.Rule.PerSecond))
	h := w.Header()
	h.Set("RateLimit-Policy", fmt.Sprintf("%q;q=%d;w=%d", class, d.Rule.Burst, window))
	h.Set("RateLimit", fmt.Sprintf("%q;r=%d;t=%d", class, d.Remaining, wholeSeconds(d.Reset)))
	if d.OK {
		return nil
	}
	e := sandbox.Errorf(sandbox.Exhausted, "too many requests of the kind %q: %d at once and %g a second are allowed", class, d.Rule.Burst, d.Rule.PerSecond)
	e.RetryAfter = max(d.Wait, time.Second)
	return e
}

// recognize is identify, but an address that keeps sending credentials that are
// not valid hears Exhausted instead. A valid one is let in whoever else is at its
// address: behind a proxy that is everybody.
func (s *Server) recognize(rt route, r *http.Request) (sandbox.Identity, error) {
	who, err := s.identify(rt, r)
	if !errors.Is(err, sandbox.Anonymous) {
		return who, err
	}
	if d := s.limits.Take(callerOf(r, sandbox.Identity{}), ratelimit.Token, time.Now()); !d.OK {
		e := sandbox.Errorf(sandbox.Exhausted, "too many credentials from this address were not valid: wait a little").WithCause(err)
		e.RetryAfter = max(d.Wait, time.Second)
		return who, e
	}
	return who, err
}

func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// callerOf is whose limit a request counts against: the Key's, or the user's
// within the Tenant, or for who is nobody yet the address's.
func callerOf(r *http.Request, who sandbox.Identity) string {
	switch {
	case who.Key != "":
		return "key:" + who.Key
	case who.Tenant != "":
		return "user:" + string(who.Tenant) + "/" + who.User
	}
	return "address:" + addressOf(r)
}
