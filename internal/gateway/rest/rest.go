// Package rest is the native JSON API: it decodes a request, calls, and encodes the
// answer. It holds no rules of its own.
package rest

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/tenants"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/users"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

// API holds the services that the handlers call. All fields are required but Domain.
type API struct {
	Sandboxes      sandbox.SandboxReader
	Lifecycle      sandbox.Lifecycle
	Updates        sandbox.Updates
	Snapshots      sandbox.Snapshots
	SnapshotFiles  sandbox.SnapshotFiles
	Volumes        sandbox.Volumes
	Reports        sandbox.NodeReports
	NodeVolumes    sandbox.NodeVolumes
	NodeNames      func(context.Context) ([]string, error)
	NodeRecords    NodeRecords
	Guests         *execution.Guests
	Executions     *execution.Service
	Ports          Ports
	Templates      sandbox.TemplateCatalog
	TemplateBuilds sandbox.TemplateBuilds
	TemplateQuota  sandbox.TemplateQuota
	URLs           *signing.URLs
	Keys           *keys.Service
	Secrets        *secrets.Service
	Tenants        *tenants.Service
	Users          *users.Service
	Quotas         sandbox.QuotaStore
	Usage          sandbox.UsageStore
	Prices         sandbox.Prices
	Audit          sandbox.AuditStore
	PortTokens     *signing.Ports
	// Domain is the domain of Sandboxes' ports, which are reached as PORT-ID.Domain; it
	// may be empty.
	Domain string
	Log    *slog.Logger
}

// Handler answers one request of an authenticated caller. When it returns an error it
// has written nothing, or its answer is cut short.
type Handler func(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error

type resourceKey struct{}

type resource struct {
	id    string
	again bool
}

// WithResource sets the ID of the object that the request of ctx creates, because the
// request must take effect once. again says that an earlier attempt may have created it.
func WithResource(ctx context.Context, id string, again bool) context.Context {
	return context.WithValue(ctx, resourceKey{}, resource{id, again})
}

// Resource is the ID of the object that the request of ctx creates; empty for a request
// that may take effect more than once.
func Resource(ctx context.Context) string {
	r, _ := ctx.Value(resourceKey{}).(resource)
	return r.id
}

// firstAttempt reports whether no attempt before the request of ctx can have created its
// Resource.
func firstAttempt(ctx context.Context) bool {
	r, set := ctx.Value(resourceKey{}).(resource)
	return set && !r.again
}

// ResourceLike is Resource as an ID of the kind that begins with letter: IDs of all
// kinds have the same form after it.
func ResourceLike(ctx context.Context, letter string) string {
	id := Resource(ctx)
	if id == "" {
		return ""
	}
	return letter + id[1:]
}

type unkeptKey struct{}

// WithUnkept sets the function that Unkept calls: the answer to the request must not be
// stored.
func WithUnkept(ctx context.Context, told func()) context.Context {
	return context.WithValue(ctx, unkeptKey{}, told)
}

// Unkept keeps the answer to the request of ctx from being stored, because it holds a
// credential. A repeat of a request with an Idempotency-Key then runs again with the
// same Resource, so the handler must return the object with that ID.
func Unkept(ctx context.Context) {
	if told, ok := ctx.Value(unkeptKey{}).(func()); ok {
		told()
	}
}

// Notes takes reports of handlers about their request, for its audit entry.
type Notes interface {
	// Made is called with the ID of each object that the request created.
	Made(id string)
	// Named is called with the ID or name of the request's object, if the path does not
	// have it as {id}.
	Named(id string)
	// Changed is called with each change of an operation that can change several things.
	// It is never text from a client.
	Changed(change string)
}

type notesKey struct{}

// WithNotes sets the Notes of a request.
func WithNotes(ctx context.Context, n Notes) context.Context {
	return context.WithValue(ctx, notesKey{}, n)
}

// Made calls Notes.Made of the request of ctx.
func Made(ctx context.Context, id string) {
	if n, ok := ctx.Value(notesKey{}).(Notes); ok {
		n.Made(id)
	}
}

// Named calls Notes.Named of the request of ctx.
func Named(ctx context.Context, id string) {
	if n, ok := ctx.Value(notesKey{}).(Notes); ok {
		n.Named(id)
	}
}

// Changed calls Notes.Changed of the request of ctx.
func Changed(ctx context.Context, change string) {
	if n, ok := ctx.Value(notesKey{}).(Notes); ok {
		n.Changed(change)
	}
}

// Reply writes v as JSON with a status.
func Reply(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	body = append(body, '\n')
	h.Set("Content-Length", strconv.Itoa(len(body))) // so that it can be sent as soon as it is written
	w.WriteHeader(status)
	_, err = w.Write(body)
	return err
}
