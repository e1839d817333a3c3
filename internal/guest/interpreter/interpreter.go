// Package interpreter is the Guest's E2B-compatible code interpreter: contexts that
// keep their state, and executions in them, as plain HTTP on one port. Paths, statuses,
// events and messages match the API that the E2B SDKs expect; package contexts runs the
// interpreters.
package interpreter

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/contexts"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// tokenHeader carries the Sandbox's access token.
	tokenHeader = "X-Access-Token"
	// maxBody bounds the body of a request, in bytes.
	maxBody = 8 << 20
	// user is the account of interpreters, as in E2B's own image: code has the same
	// rights as there.
	user = "root"
	// python is the language of a request that names none.
	python = "python"
)

// Server serves the code interpreter's port. Use New.
type Server struct {
	guest    *server.Guest
	contexts *contexts.Contexts
	folder   string // first folder of interpreters
	mux      *http.ServeMux
}

// New returns the service of a Guest over its contexts.
func New(g *server.Guest, c *contexts.Contexts) *Server {
	s := &Server{guest: g, contexts: c, folder: "/home/user", mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { reply(w, "OK") })
	s.mux.HandleFunc("POST /execute", s.withToken(s.execute))
	// E2B's SDKs send the token only with executions.
	s.mux.HandleFunc("GET /contexts", s.list)
	s.mux.HandleFunc("POST /contexts", s.create)
	s.mux.HandleFunc("POST /contexts/{id}/restart", s.restart)
	s.mux.HandleFunc("DELETE /contexts/{id}", s.remove)
	return s
}

// ServeHTTP answers one request, from any origin: the token protects the service.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
		h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
		h.Set("Access-Control-Max-Age", "7200")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// withToken refuses a request without the Sandbox's token, if it has one.
func (s *Server) withToken(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		owner, _ := s.guest.Owner()
		got := r.Header.Get(tokenHeader)
		if owner.AccessToken != "" && subtle.ConstantTimeCompare([]byte(got), []byte(owner.AccessToken)) != 1 {
			fail(w, http.StatusUnauthorized, "the access token is missing or wrong")
			return
		}
		next(w, r)
	}
}

// list answers with all contexts: the default ones of Python and JavaScript first,
// then the others in order of creation. Unused default contexts of other APIs are
// left out.
func (s *Server) list(w http.ResponseWriter, _ *http.Request) {
	views := []contextView{}
	for _, l := range []string{python, "javascript"} {
		info, err := s.contexts.Default(s.target("", l))
		if err != nil {
			fail(w, statusOf(err), err.Error())
			return
		}
		views = append(views, viewOf(info))
	}
	var made []contextView
	for _, info := range s.contexts.List() {
		switch known := slices.Contains(views, viewOf(info)); {
		case !info.Default:
			made = append(made, viewOf(info))
		case !known && info.Count > 0:
			views = append(views, viewOf(info))
		}
	}
	reply(w, append(views, made...))
}

type contextView struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func viewOf(i contexts.Info) contextView { return contextView{i.ID, i.Language, i.Cwd} }

// create makes a context.
func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Language *string `json:"language"`
		Cwd      *string `json:"cwd"`
	}
	if !decode(w, r, &body) {
		return
	}
	cwd := s.folder
	if body.Cwd != nil && *body.Cwd != "" {
		cwd = *body.Cwd
	}
	l, err := languageOf(body.Language)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	info, err := s.contexts.Create(l, cwd, user)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	reply(w, viewOf(info))
}

// restart drops a context's state; its ID stays.
func (s *Server) restart(w http.ResponseWriter, r *http.Request) {
	if _, err := s.contexts.Restart(r.PathValue("id")); err != nil {
		s.absent(w, r.PathValue("id"), err)
		return
	}
	reply(w, nil)
}

// remove deletes a context.
func (s *Server) remove(w http.ResponseWriter, r *http.Request) {
	if err := s.contexts.Delete(r.PathValue("id")); err != nil {
		s.absent(w, r.PathValue("id"), err)
		return
	}
	reply(w, nil)
}

func (s *Server) absent(w http.ResponseWriter, id string, err error) {
	if errors.Is(err, contexts.ErrUnknown) {
		fail(w, http.StatusNotFound, fmt.Sprintf("Context %s not found", id))
		return
	}
	fail(w, statusOf(err), err.Error())
}

// target returns the context of an ID, or the default context of a language here.
func (s *Server) target(id, language string) contexts.Target {
	if id != "" {
		return contexts.Target{ID: id}
	}
	return contexts.Target{Language: language, User: user, Cwd: s.folder}
}

// aliases maps names of languages to languages.
var aliases = map[string]string{
	"": python, "python": python, "py": python, "python3": python, "js": "javascript", "javascript": "javascript",
	"ts": "typescript", "typescript": "typescript", "bash": "bash", "sh": "bash",
	"r": "r", "java": "java",
}

// languageOf returns the language of a request's name for it.
func languageOf(asked *string) (string, error) {
	if asked == nil {
		return python, nil
	}
	if l, ok := aliases[strings.ToLower(strings.TrimSpace(*asked))]; ok {
		return l, nil
	}
	return "", fmt.Errorf("no interpreter for %.40q here; use python, javascript, typescript, bash, r or java", *asked)
}

// decode reads a JSON body, or answers with the error.
func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(into)
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return true
	case errors.As(err, &large):
		fail(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body may have at most %d bytes", maxBody))
	default:
		unprocessable(w, "body", "the body is not the JSON object that is expected: "+err.Error())
	}
	return false
}

// unprocessable answers that a part of a request violates the schema.
func unprocessable(w http.ResponseWriter, where, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusUnprocessableEntity)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"detail": []any{map[string]any{"loc": []string{"body", where}, "msg": message, "type": "value_error"}},
	})
}

// statusOf returns the status for an error of the contexts.
func statusOf(err error) int {
	switch {
	case errors.Is(err, contexts.ErrUnknown):
		return http.StatusNotFound
	case errors.Is(err, contexts.ErrBusy):
		return http.StatusTooManyRequests
	}
	return http.StatusInternalServerError
}

func fail(w http.ResponseWriter, status int, message string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = fmt.Fprint(w, message)
}

func reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}
