package gateway

import (
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/e2b"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

// byURL reports whether a request is allowed by its URL alone. URLs of calls are never
// signed.
func byURL(rt route, r *http.Request) bool {
	return rt.op.SignedURL && rt.surface != connectSurface && signing.IsSigned(r.URL)
}

// openURL returns the Identity of a signed URL, and the request that the handler gets:
// without the signature. A token beside the signature is ignored.
func (s *Server) openURL(r *http.Request) (sandbox.Identity, *http.Request, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return sandbox.Identity{}, r, sandbox.Errorf(sandbox.Invalid, "the query of the URL is malformed")
	}
	tenant, g, err := s.api.URLs.Check(r.Context(), r.Method, query)
	if err != nil {
		return sandbox.Identity{}, r, err
	}
	hash := r.PathValue("hash") // of an upload; empty: the URL is for a file in a Sandbox and signed with the Sandbox's ID
	if hash != "" && g != e2b.UploadGrant(hash, g.Expires) || hash == "" && !sandbox.ValidSandboxID(g.SandboxID) {
		return sandbox.Identity{}, r, sandbox.Errorf(sandbox.Denied, "this signed URL is for something else")
	}
	plain, u := *r, *r.URL
	u.RawQuery = url.Values{"sandbox_id": {g.SandboxID}, "path": {g.Path}}.Encode()
	plain.URL = &u
	return sandbox.Identity{Tenant: tenant, User: signedURLUser, Role: sandbox.RoleDeveloper}, &plain, nil
}
