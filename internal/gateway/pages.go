package gateway

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"regexp"
	"strings"
	texttemplate "text/template"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

var (
	//go:embed pages/start.html
	startHTML string
	//go:embed pages/start.txt
	startText string

	startPage  = template.Must(template.New("start.html").Parse(startHTML))
	startLines = texttemplate.Must(texttemplate.New("start.txt").Parse(startText))
)

// start is the data of the start page.
type start struct {
	Origin string // of this server, as the client reaches it: "http://localhost:8080"
	Dev    bool   // tokens are free on this machine
	Ready  bool
	Why    []string // why it is not Ready
}

// startPage answers GET / with the first steps on this server: a page for browsers,
// text for every other client.
func (s *Server) startPage(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	state := s.readiness(r.Context())
	data := start{Origin: origin(r), Dev: s.Dev, Ready: state.Ready, Why: state.Reasons}
	var page bytes.Buffer
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		if err := startLines.Execute(&page, data); err != nil {
			return fmt.Errorf("start page: %w", err)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		if err := startPage.Execute(&page, data); err != nil {
			return fmt.Errorf("start page: %w", err)
		}
		pageHeaders(w, pagePolicy([]byte(startHTML)))
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Vary", "Accept")
	_, err := w.Write(page.Bytes())
	return err
}

var stylePattern = regexp.MustCompile(`(?s)<style>(.*?)</style>`)

// pagePolicy is the Content-Security-Policy of a page: its own style and nothing
// else, no script, no other host, no frame.
func pagePolicy(html []byte) string {
	policy := "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if style := stylePattern.FindSubmatch(html); style != nil {
		sum := sha256.Sum256(style[1])
		policy += "; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return policy
}

func pageHeaders(w http.ResponseWriter, policy string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", policy)
	w.Header().Set("Referrer-Policy", "no-referrer")
}

// docsPage answers GET /docs with the API's description for people. Its examples use
// the server's address as the client reaches it.
func (s *Server) docsPage(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	page, err := api.DocsHTML()
	if err != nil {
		return err
	}
	pageHeaders(w, pagePolicy(page))
	_, err = w.Write(bytes.ReplaceAll(page, []byte(api.ExampleOrigin), []byte(origin(r))))
	return err
}

// hostPattern accepts a Host that contains neither markup nor shell syntax.
var hostPattern = regexp.MustCompile(`^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

// origin is the scheme and host by which the client of r reaches this server, or the
// examples' origin when the client's Host is not valid.
func origin(r *http.Request) string {
	if !hostPattern.MatchString(r.Host) {
		return api.ExampleOrigin
	}
	return strings.TrimSuffix(rest.OwnURL(r, "/", nil), "/")
}

// openAPI answers GET /api/v1/openapi.yaml with the OpenAPI document.
func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request, _ sandbox.Identity) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(api.OpenAPI)
	return err
}
