package rest

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

// FilesPath is the path for reading and writing files, also for signed URLs.
const FilesPath = "/api/v1/files"

const defaultURLLife = time.Hour

// urlGrant returns the grant and the lifetime in b, without the Sandbox.
func urlGrant(b *v1.SignRequest) (g signing.URLGrant, life time.Duration, err error) {
	if b.Method != http.MethodGet && b.Method != http.MethodPut {
		return g, 0, sandbox.Errorf(sandbox.Invalid, `method must be "GET", to download, or "PUT", to upload`)
	}
	life = defaultURLLife
	if b.ExpiresInSeconds != nil {
		life = b.ExpiresInSeconds.Duration()
	}
	p, err := execution.Path("path", b.Path)
	return signing.URLGrant{Method: b.Method, Path: p}, life, err
}

// SignFile answers POST /api/v1/files/sign with a URL for one file.
func (a *API) SignFile(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.SignRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	g, life, err := urlGrant(&body)
	if err != nil {
		return err
	}
	id, err := body.Required()
	if err != nil {
		return err
	}
	sb, err := a.Sandboxes.Get(r.Context(), who.Tenant, id)
	if err != nil {
		return execution.Absent(id, err)
	}
	if sb.Ended != nil {
		return sandbox.Errorf(sandbox.Conflict, "the sandbox has ended")
	}
	g.SandboxID = sb.ID // a name may become another Sandbox's
	query, g, err := a.URLs.Sign(r.Context(), who.Tenant, g, life)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.SignedURL{URL: OwnURL(r, FilesPath, query), Method: g.Method, ExpiresAt: v1.Time(g.Expires)})
}

// OwnURL is a URL of this server, with the host by which the client of r reaches it.
func OwnURL(r *http.Request, path string, query url.Values) string {
	u := url.URL{Scheme: schemeOf(r), Host: r.Host, Path: path, RawQuery: query.Encode()}
	return u.String()
}

// schemeOf is the scheme by which the client of r reaches this server.
func schemeOf(r *http.Request) string {
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		return "https"
	}
	return "http"
}

// RotateFileKey answers POST /api/v1/files/sign/rotate: all URLs that were signed
// before are refused from now on.
func (a *API) RotateFileKey(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if err := Decode(r, &struct{}{}); err != nil {
		return err
	}
	if err := a.URLs.Rotate(r.Context(), who.Tenant); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
