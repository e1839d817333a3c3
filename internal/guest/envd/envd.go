// Package envd implements the Guest's E2B-compatible services: processes, the file
// system and plain HTTP for file contents, on one port. Names, statuses and messages
// match the API that the E2B SDKs expect.
package envd

import (
	"crypto/subtle"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox/api/gen/filesystem/filesystemconnect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/process/processconnect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/files"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// tokenHeader carries the Sandbox's access token.
const tokenHeader = "X-Access-Token"

// maxMessage bounds one RPC message.
const maxMessage = 16 << 20

// Server serves envd's port. Use New.
type Server struct {
	guest *server.Guest
	mux   *http.ServeMux
	cpu   meter
}

// New returns the services of a Guest.
func New(g *server.Guest) *Server {
	s := &Server{guest: g, mux: http.NewServeMux()}
	limit := connect.WithReadMaxBytes(maxMessage)
	path, handler := processconnect.NewProcessHandler(newProcesses(g), limit, server.Uncompressed)
	s.mux.Handle(path, s.withToken(handler))
	path, handler = filesystemconnect.NewFilesystemHandler(newFilesystem(g), limit, server.Uncompressed)
	s.mux.Handle(path, s.withToken(handler))
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	s.mux.Handle("GET /metrics", s.withToken(http.HandlerFunc(s.metrics)))
	s.mux.Handle("GET /envs", s.withToken(http.HandlerFunc(s.envs)))
	s.mux.HandleFunc("GET /files", s.download)
	s.mux.HandleFunc("POST /files", s.upload)
	s.mux.Handle("POST /files/compose", s.withToken(http.HandlerFunc(s.compose)))
	return s
}

// ServeHTTP answers one request, from any origin: SDKs in browsers call from
// foreign pages, and the token protects the service.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "*")
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
		h.Set("Access-Control-Allow-Headers", allowedHeaders(r))
		h.Set("Access-Control-Max-Age", "7200")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.mux.ServeHTTP(w, r)
}

func allowedHeaders(r *http.Request) string {
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		return asked
	}
	return "*"
}

// withToken refuses a request without the Sandbox's token, if it has one.
func (s *Server) withToken(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		owner, _ := s.guest.Owner()
		if owner.AccessToken != "" && !sameToken(r.Header.Get(tokenHeader), owner.AccessToken) {
			files.Fail(w, http.StatusUnauthorized, "the access token is missing or wrong")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func sameToken(got, want string) bool {
	return subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1
}

// userOf returns the user of an RPC's Basic authentication; empty: none.
func userOf(h http.Header) string {
	r := http.Request{Header: h}
	name, _, _ := r.BasicAuth()
	return strings.TrimSpace(name)
}

// envs answers with the Sandbox's variables.
func (s *Server) envs(w http.ResponseWriter, _ *http.Request) {
	owner, _ := s.guest.Owner()
	files.Reply(w, http.StatusOK, server.SandboxEnv(owner))
}
