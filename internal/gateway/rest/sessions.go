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

// CreateSession answers POST /api/v1/sessions with 201 and the new Sandbox.
func (a *API) CreateSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.create(w, r, who, http.StatusCreated, sandbox.SessionDefaults())
}

// Acquire answers POST /api/v1/sandbox/acquire with a running Sandbox.
func (a *API) Acquire(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.create(w, r, who, http.StatusOK, sandbox.AcquireDefaults())
}

func (a *API) create(w http.ResponseWriter, r *http.Request, who sandbox.Identity, status int, otherwise sandbox.Defaults) error {
	var body v1.CreateRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := createRequest(&body, otherwise)
	if err != nil {
		return err
	}
	sb, created, err := Create(r.Context(), a.Sandboxes, a.Lifecycle, a.Guests, who.Tenant, req, body.IfExists)
	if err != nil {
		return err
	}
	if !created {
		status = http.StatusOK
	}
	return Reply(w, status, viewOf(who, sb))
}

// Create creates a Sandbox for a request of any API, and returns false for a Sandbox
// that existed before. A request that must take effect once gets the Sandbox that an
// earlier attempt created.
func Create(ctx context.Context, known sandbox.SandboxReader, lives sandbox.Lifecycle, guests *execution.Guests, tenant sandbox.TenantID, req sandbox.CreateRequest, ifExists sandbox.IfExists) (sb sandbox.Sandbox, created bool, err error) {
	if err := cmp.Or(ifExists.Check(), req.Check()); err != nil {
		return sb, false, err
	}
	if req.ID = Resource(ctx); req.ID != "" {
		made, err := Earlier(ctx, known, tenant, req.ID)
		switch {
		case err != nil:
			return sb, false, err
		case made.Ended != nil: // it failed: this is another attempt
			req.ID = ""
		case made.ID != "":
			return made, true, nil
		}
	}
	if created = ifExists != sandbox.IfExistsReturn; created {
		sb, err = lives.Create(ctx, tenant, req)
	} else {
		sb, created, err = lives.Ensure(ctx, tenant, req)
	}
	if err == nil && created {
		guests.Warm(ctx, sb)
	}
	return sb, created, err
}

// ErrUnderWay answers a repeat while the first request may still take effect.
var ErrUnderWay = &sandbox.Error{
	Code: sandbox.Conflict, Detail: "the first request with this Idempotency-Key is still under way", RetryAfter: time.Second,
}

// Earlier returns the Sandbox that an earlier attempt of an idempotent request created:
// the process that handled it may have died before it answered. The Sandbox has no ID
// when none was created, and has ended when its creation failed.
func Earlier(ctx context.Context, from sandbox.SandboxReader, tenant sandbox.TenantID, id string) (sandbox.Sandbox, error) {
	sb, err := from.Get(ctx, tenant, id)
	switch {
	case errors.Is(err, sandbox.NotFound):
		return sandbox.Sandbox{}, nil
	case err != nil:
		return sandbox.Sandbox{}, err
	case sb.State == sandbox.Starting, sb.State == sandbox.Stopping && sb.StartedAt.IsZero():
		return sandbox.Sandbox{}, ErrUnderWay
	case sb.Ended != nil && !sb.StartedAt.IsZero():
		return sandbox.Sandbox{}, sandbox.Errorf(sandbox.Conflict, "the sandbox %s, which the first request with this Idempotency-Key made, has ended", id)
	}
	return sb, nil
}

// ListSessions answers GET /api/v1/sessions with a page of the Tenant's
// Sandboxes, newest first.
func (a *API) ListSessions(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	q, err := listQuery(r)
	if err != nil {
		return err
	}
	page, err := a.Sandboxes.List(r.Context(), who.Tenant, q)
	if err != nil {
		return err
	}
	reply := v1.Sandboxes{Sandboxes: []v1.Sandbox{}, Next: page.Next}
	for _, sb := range page.Sandboxes {
		reply.Sandboxes = append(reply.Sandboxes, listedViewOf(who, sb))
	}
	return Reply(w, http.StatusOK, reply)
}

func listQuery(r *http.Request) (sandbox.ListQuery, error) {
	values, err := query(r, "limit", "cursor", "state", "metadata[]")
	if err != nil {
		return sandbox.ListQuery{}, err
	}
	q := sandbox.ListQuery{Cursor: values.Get("cursor"), Metadata: metadataFilter(values)}
	if err := pageLimit(values, sandbox.MaxPage, &q.Limit); err != nil {
		return q, err
	}
	if s := values.Get("state"); s != "" {
		for name := range strings.SplitSeq(s, ",") {
			q.States = append(q.States, sandbox.State(name))
		}
	}
	return q, q.Check()
}

// pageLimit sets limit if the request has one, which may be at most most.
func pageLimit(values url.Values, most int, limit *int) (err error) {
	if s := values.Get("limit"); s != "" {
		n, _ := strconv.Atoi(s) // 0, which is refused, for text that is not a number
		*limit, err = sandbox.PageLimit(n, most)
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

// GetSession answers GET /api/v1/sessions/{id}, by ID or name.
func (a *API) GetSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	sb, err := a.Sandboxes.Get(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	return Reply(w, http.StatusOK, viewOf(who, sb))
}

// DeleteSession answers DELETE /api/v1/sessions/{id} with the last record.
func (a *API) DeleteSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.end(w, r, who, r.PathValue("id"))
}

// Release answers POST /api/v1/sandbox/release with the last record.
func (a *API) Release(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.Target
	if err := Decode(r, &body); err != nil {
		return err
	}
	id, err := body.Required()
	if err != nil {
		return err
	}
	return a.end(w, r, who, id)
}

func (a *API) end(w http.ResponseWriter, r *http.Request, who sandbox.Identity, idOrName string) error {
	sb, err := a.Executions.End(r.Context(), who.Tenant, idOrName)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, viewOf(who, sb))
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

// UpdateSession answers PATCH /api/v1/sessions/{id} with the changed record.
func (a *API) UpdateSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.UpdateRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	change, err := changeOf(&body)
	if err != nil {
		return err
	}
	sb, err := a.Updates.Update(r.Context(), who.Tenant, r.PathValue("id"), change)
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	return Reply(w, http.StatusOK, viewOf(who, sb))
}

// TouchSession answers POST /api/v1/sessions/{id}/touch: its timeout starts anew.
func (a *API) TouchSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if err := Decode(r, &struct{}{}); err != nil {
		return err
	}
	sb, err := a.Updates.Touch(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	return Reply(w, http.StatusOK, viewOf(who, sb))
}

// SetTimeout answers POST /api/v1/sessions/{id}/timeout: the deadline becomes
// timeout_seconds from now.
func (a *API) SetTimeout(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.TimeoutRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	sb, err := a.Updates.SetTimeout(r.Context(), who.Tenant, r.PathValue("id"), body.TimeoutSeconds.Duration())
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	return Reply(w, http.StatusOK, viewOf(who, sb))
}
