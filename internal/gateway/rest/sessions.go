package rest

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// createRequest converts b. Create checks it.
func createRequest(b *v1.CreateRequest, otherwise sandbox.Defaults) (sandbox.CreateRequest, error) {
	req := sandbox.CreateRequest{
		Template: b.Template, Name: b.Name, Timeout: b.TimeoutSeconds.Duration(), OnTimeout: b.OnTimeout,
		StayPaused: b.AutoResume != nil && !*b.AutoResume, Snapshot: b.SnapshotID,
		Network: sandbox.NetworkPolicy(b.Network), Ingress: b.Ports.Ingress(), Secrets: b.Secrets.Uses(), Volumes: b.Volumes.Mounts(),
		Metadata: b.Metadata, Env: b.Env, User: b.User, Cwd: b.Cwd,
		IdleTimeout: time.Duration(b.IdleTimeoutSeconds), CheckpointEvery: time.Duration(b.CheckpointEverySeconds),
	}
	if b.Resources != nil {
		if err := sandbox.Resources(*b.Resources).Create(&req); err != nil {
			return req, err
		}
	}
	otherwise.Fill(&req)
	return req, nil
}

// Created is a Sandbox that a request may have created.
type Created struct {
	v1.Sandbox
	// IsNew is false for a Sandbox that existed before. REST says it by the status.
	IsNew bool `json:"-"`
}

func (c Created) status() int {
	if c.IsNew {
		return http.StatusCreated
	}
	return http.StatusOK
}

// CreateSession creates a Sandbox.
func (a *API) CreateSession(ctx context.Context, c Call, in *v1.CreateRequest) (Created, error) {
	sb, isNew, err := a.create(ctx, c, in, sandbox.SessionDefaults())
	return Created{viewOf(c.Who, sb), isNew}, err
}

// Acquire returns a new Sandbox that is used for a short time.
func (a *API) Acquire(ctx context.Context, c Call, in *v1.CreateRequest) (v1.Sandbox, error) {
	sb, _, err := a.create(ctx, c, in, sandbox.AcquireDefaults())
	return viewOf(c.Who, sb), err
}

// create creates a Sandbox, and returns false for one that existed before. A request
// that must take effect once gets the Sandbox that an earlier attempt created.
func (a *API) create(ctx context.Context, c Call, in *v1.CreateRequest, otherwise sandbox.Defaults) (sb sandbox.Sandbox, created bool, err error) {
	req, err := createRequest(in, otherwise)
	if err != nil {
		return sb, false, err
	}
	tenant, ifExists := c.Who.Tenant, in.IfExists
	if err := cmp.Or(ifExists.Check(), req.Check()); err != nil {
		return sb, false, err
	}
	if req.ID = Resource(ctx); req.ID != "" {
		made, next, err := Earlier(ctx, a.Sandboxes, tenant, req.ID)
		switch {
		case err != nil:
			return sb, false, err
		case made.ID != "":
			return made, true, nil
		}
		req.ID = next
	}
	if created = ifExists != sandbox.IfExistsReturn; created {
		sb, err = a.Lifecycle.Create(ctx, tenant, req)
	} else {
		sb, created, err = a.Lifecycle.Ensure(ctx, tenant, req)
	}
	if err == nil && created {
		a.Guests.Warm(ctx, sb)
	}
	return sb, created, err
}

// ErrUnderWay answers a repeat while the first request may still take effect.
var ErrUnderWay = &sandbox.Error{
	Code: sandbox.Conflict, Detail: "the first request with this Idempotency-Key is still in progress", RetryAfter: time.Second,
}

// maxAttempts bounds the failed attempts of one idempotent request that are looked for.
const maxAttempts = 20

// Earlier returns the Sandbox that an earlier attempt of an idempotent request created for the
// Resource id: the process that handled it may have died before it answered. Without one, the
// Sandbox has no ID, and next is the ID for this attempt: id, or one that follows from it if
// earlier attempts failed. So a later attempt finds the Sandbox of this one.
func Earlier(ctx context.Context, from sandbox.SandboxReader, tenant sandbox.TenantID, id string) (made sandbox.Sandbox, next string, _ error) {
	if firstAttempt(ctx) {
		return sandbox.Sandbox{}, id, nil
	}
	next = id
	for range maxAttempts {
		sb, err := from.Get(ctx, tenant, next)
		switch {
		case errors.Is(err, sandbox.NotFound):
			return sandbox.Sandbox{}, next, nil
		case err != nil:
			return sandbox.Sandbox{}, "", err
		case sb.State == sandbox.Starting, sb.State == sandbox.Stopping && sb.StartedAt.IsZero():
			return sandbox.Sandbox{}, "", ErrUnderWay
		case sb.Ended == nil:
			return sb, "", nil
		case !sb.StartedAt.IsZero():
			return sandbox.Sandbox{}, "", sandbox.Errorf(sandbox.Conflict, "the sandbox %s, which the first request with this Idempotency-Key made, has ended", next)
		}
		next = sandbox.SandboxIDOf("attempt after " + next)
	}
	return sandbox.Sandbox{}, "", sandbox.Errorf(sandbox.Conflict, "%d requests with this Idempotency-Key have failed: use a new one", maxAttempts)
}

// listRequest asks for a page of Sandboxes. A nil Limit is the largest page.
type listRequest struct {
	States   []sandbox.State   `json:"states"`
	Metadata map[string]string `json:"metadata"`
	Limit    *int              `json:"limit"`
	Cursor   string            `json:"cursor"`
}

func (in *listRequest) read(r *http.Request) error {
	values, err := query(r, "limit", "cursor", "state", "metadata[]")
	if err != nil {
		return err
	}
	in.Cursor, in.Metadata, in.Limit = values.Get("cursor"), metadataFilter(values), number(values.Get("limit"))
	if s := values.Get("state"); s != "" {
		for name := range strings.SplitSeq(s, ",") {
			in.States = append(in.States, sandbox.State(name))
		}
	}
	return nil
}

// ListSessions returns a page of the Tenant's Sandboxes, newest first.
func (a *API) ListSessions(ctx context.Context, c Call, in *listRequest) (v1.Sandboxes, error) {
	q := sandbox.ListQuery{States: in.States, Metadata: in.Metadata, Cursor: in.Cursor}
	if in.Limit != nil {
		var err error
		if q.Limit, err = sandbox.PageLimit(*in.Limit, sandbox.MaxPage); err != nil {
			return v1.Sandboxes{}, err
		}
	}
	if err := q.Check(); err != nil {
		return v1.Sandboxes{}, err
	}
	page, err := a.Sandboxes.List(ctx, c.Who.Tenant, q)
	if err != nil {
		return v1.Sandboxes{}, err
	}
	list := v1.Sandboxes{Sandboxes: []v1.Sandbox{}, Next: page.Next}
	for _, sb := range page.Sandboxes {
		list.Sandboxes = append(list.Sandboxes, listedViewOf(c.Who, sb))
	}
	return list, nil
}

// number parses text. It returns nil for an empty text, and 0 for a text that is not a
// number: operations refuse 0.
func number(text string) *int {
	if text == "" {
		return nil
	}
	n, _ := strconv.Atoi(text)
	return &n
}

// pageLimit sets limit if the request has one, which may be at most most.
func pageLimit(values url.Values, most int, limit *int) (err error) {
	if n := number(values.Get("limit")); n != nil {
		*limit, err = sandbox.PageLimit(*n, most)
	}
	return err
}

// metadataFilter reads metadata[key]=value.
func metadataFilter(values url.Values) map[string]string {
	filter := map[string]string{}
	for name := range values {
		if key, ok := strings.CutPrefix(name, "metadata["); ok {
			filter[strings.TrimSuffix(key, "]")] = values.Get(name)
		}
	}
	return filter
}

// GetSession returns a Sandbox.
func (a *API) GetSession(ctx context.Context, c Call, _ *Nothing) (v1.Sandbox, error) {
	sb, err := a.Sandboxes.Get(ctx, c.Who.Tenant, c.ID)
	return c.view(sb, err)
}

// view shows the Sandbox that a call is about, or returns the error about it.
func (c Call) view(sb sandbox.Sandbox, err error) (v1.Sandbox, error) {
	return viewOf(c.Who, sb), execution.Absent(c.ID, err)
}

// DeleteSession ends a Sandbox and returns its last record.
func (a *API) DeleteSession(ctx context.Context, c Call, _ *Nothing) (v1.Sandbox, error) {
	sb, err := a.Executions.End(ctx, c.Who.Tenant, c.ID)
	return c.view(sb, err)
}

// Release is DeleteSession of the Sandbox in the request.
func (a *API) Release(ctx context.Context, c Call, in *v1.Target) (v1.Sandbox, error) {
	id, err := in.Required()
	if err != nil {
		return v1.Sandbox{}, err
	}
	return a.DeleteSession(ctx, Call{c.Who, id}, nil)
}

// changeOf converts b. Update checks it.
func changeOf(b *v1.UpdateRequest) (sandbox.Change, error) {
	c := sandbox.Change{
		Name: b.Name.Pointer(), Timeout: (*time.Duration)(b.TimeoutSeconds),
		IdleTimeout: (*time.Duration)(b.IdleTimeoutSeconds.Pointer()),
		OnTimeout:   b.OnTimeout, StayPaused: inverse(b.AutoResume),
		CheckpointEvery: (*time.Duration)(b.CheckpointEverySeconds.Pointer()),
		Network:         (*sandbox.NetworkPolicy)(b.Network), Ingress: (*sandbox.Ingress)(b.Ports), Secrets: (*sandbox.SecretUses)(b.Secrets),
		Metadata: b.Metadata, Env: b.Env, User: b.User.Pointer(), Cwd: b.Cwd.Pointer(), Template: b.Template,
	}
	if b.Volumes != nil {
		c.Volumes = new(b.Volumes.Mounts())
	}
	if res := b.Resources; res != nil {
		if err := sandbox.Resources(*res).Change(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// UpdateSession changes a Sandbox.
func (a *API) UpdateSession(ctx context.Context, c Call, in *v1.UpdateRequest) (v1.Sandbox, error) {
	change, err := changeOf(in)
	if err != nil {
		return v1.Sandbox{}, err
	}
	sb, err := a.Updates.Update(ctx, c.Who.Tenant, c.ID, change)
	return c.view(sb, err)
}

// TouchSession restarts the timeout of a Sandbox.
func (a *API) TouchSession(ctx context.Context, c Call, _ *struct{}) (v1.Sandbox, error) {
	sb, err := a.Updates.Touch(ctx, c.Who.Tenant, c.ID)
	return c.view(sb, err)
}

// SetTimeout sets the deadline of a Sandbox to a time from now.
func (a *API) SetTimeout(ctx context.Context, c Call, in *v1.TimeoutRequest) (v1.Sandbox, error) {
	sb, err := a.Updates.SetTimeout(ctx, c.Who.Tenant, c.ID, in.TimeoutSeconds.Duration())
	return c.view(sb, err)
}
