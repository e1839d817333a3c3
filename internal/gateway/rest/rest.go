// Package rest is the native JSON API: it decodes a request, calls, and encodes
// the answer. It holds no rules of its own.
package rest

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// API holds what the handlers call. All fields are required.
type API struct {
	Sandboxes  sandbox.Sandboxes
	Nodes      sandbox.Nodes
	NodeNames  func(context.Context) ([]string, error)
	Guests     *execution.Guests
	Executions *execution.Service
	Log        *slog.Logger
}

// Handler answers one request of an authenticated caller. When it returns an
// error it has written nothing, or its answer is broken off.
type Handler func(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error

// Reply writes v as JSON with a status.
func Reply(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, err = w.Write(append(body, '\n'))
	return err
}
