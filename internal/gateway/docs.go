package gateway

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"regexp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api"
)

// docs is the documentation that this server hands out.
type docs struct {
	policy string // Content-Security-Policy of the page
}

var stylePattern = regexp.MustCompile(`(?s)<style>(.*?)</style>`)

// newDocs allows the page its own style and nothing else: no script, no other
// host, no frame.
func newDocs() docs {
	policy := "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if style := stylePattern.FindSubmatch(api.DocsHTML); style != nil {
		sum := sha256.Sum256(style[1])
		policy += "; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return docs{policy: policy}
}

// docsPage answers GET /docs with the API's description for people.
func (s *Server) docsPage(w http.ResponseWriter, _ *http.Request, _ sandbox.Identity) error {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", s.docs.policy)
	w.Header().Set("Referrer-Policy", "no-referrer")
	_, err := w.Write(api.DocsHTML)
	return err
}

// openAPI answers GET /api/v1/openapi.yaml with the contract itself.
func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request, _ sandbox.Identity) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(api.OpenAPI)
	return err
}
