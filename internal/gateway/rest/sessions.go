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

// createBody asks for a Sandbox.
type createBody struct {
	Template       string            `json:"template"`
	Name           string            `json:"name"`
	TimeoutSeconds *seconds          `json:"timeout_seconds"`
	Resources      *resourcesBody    `json:"resources"`
	Network        networkBody       `json:"network"`
	Ports          *portsBody        `json:"ports"`
	Secrets        *usesBody         `json:"secrets"`
	Metadata       map[string]string `json:"metadata"`
	Env            map[string]string `json:"env"`
	User           string            `json:"user"`
	Cwd            string            `json:"cwd"`
	IfExists       sandbox.IfExists  `json:"if_exists"`

	IdleTimeoutSeconds secondsOrNone `json:"idle_timeout_seconds"`
	OnTimeout          string        `json:"on_timeout"`
	AutoResume         *bool         `json:"auto_resume"`
	SnapshotID         string        `json:"snapshot_id"`
	CheckpointSeconds  secondsOrNone `json:"checkpoint_every_seconds"`
	Volumes            *mountsBody   `json:"volumes"`
}

// resourcesBody is a Shape in JSON; absent fields are those of the instance type
// that it names, or of DefaultShape.
type resourcesBody struct {
	Type     string   `json:"type"`
	CPUs     *float64 `json:"cpus"`
	MemoryMB *int64   `json:"memory_mb"`
	DiskMB   *int64   `json:"disk_mb"`
	Pids     *int64   `json:"pids"`
	// Bandwidth is no part of the Shape.
	BandwidthMbps *int64 `json:"bandwidth_mbps"`
}

// request is the request that b stands for. Create checks it.
func (b *createBody) request(otherwise sandbox.Defaults) (sandbox.CreateRequest, error) {
	req := sandbox.CreateRequest{
		Template: b.Template, Name: b.Name, Timeout: b.TimeoutSeconds.duration(), OnTimeout: sandbox.OnTimeout(b.OnTimeout),
		StayPaused: b.AutoResume != nil && !*b.AutoResume, Snapshot: b.SnapshotID,
		Network: sandbox.NetworkPolicy(b.Network), Ingress: b.Ports.ingress(), Secrets: b.Secrets.uses(), Volumes: b.Volumes.mounts(),
		Metadata: b.Metadata, Env: b.Env, User: b.User, Cwd: b.Cwd,
		IdleTimeout: time.Duration(b.IdleTimeoutSeconds), CheckpointEvery: time.Duration(b.CheckpointSeconds),
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
	var body createBody
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := body.request(otherwise)
	if err != nil {
		return err
	}
	sb, created, err := Create(r.Context(), a.Sandboxes, a.Guests, who.Tenant, req, body.IfExists)
	if err != nil {
		return err
	}
	if !created {
		status = http.StatusOK
	}
	return Reply(w, status, viewOf(who, sb))
}

// Create creates a Sandbox for a request of any door, and reports false for one that
// was there before. A request that must take effect once gets the Sandbox that an
// earlier attempt created.
func Create(ctx context.Context, in sandbox.Sandboxes, guests *execution.Guests, tenant sandbox.TenantID, req sandbox.CreateRequest, ifExists sandbox.IfExists) (sb sandbox.Sandbox, created bool, err error) {
	if err := cmp.Or(ifExists.Check(), req.Check()); err != nil {
		return sb, false, err
	}
	if req.ID = Resource(ctx); req.ID != "" {
		made, err := Earlier(ctx, in, tenant, req.ID)
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
		sb, err = in.Create(ctx, tenant, req)
	} else {
		sb, created, err = in.Ensure(ctx, tenant, req)
	}
	if err == nil && created {
		guests.Warm(ctx, sb)
	}
	return sb, created, err
}

// ErrUnderWay answers a repeat whose first request may still take effect.
var ErrUnderWay = &sandbox.Error{
	Code: sandbox.Conflict, Detail: "the first request with this Idempotency-Key is still under way", RetryAfter: time.Second,
}

// Earlier returns the Sandbox that a request has made which must take effect
// once: the process that carried it out may have died before it said so. It has
// no ID when there is none, and has ended when its creation failed.
func Earlier(ctx context.Context, from sandbox.Sandboxes, tenant sandbox.TenantID, id string) (sandbox.Sandbox, error) {
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

// pageLimit sets limit if the request names one, of at most most.
func pageLimit(values url.Values, most int, limit *int) (err error) {
	if s := values.Get("limit"); s != "" {
		n, _ := strconv.Atoi(s) // 0, which is refused, for text that is no number
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
	var body target
	if err := Decode(r, &body); err != nil {
		return err
	}
	id, err := body.required()
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

// updateBody changes a Sandbox. What is absent stays.
type updateBody struct {
	Name           optional[string]   `json:"name"`
	TimeoutSeconds *seconds           `json:"timeout_seconds"`
	Metadata       map[string]*string `json:"metadata"`
	Env            map[string]*string `json:"env"`
	Network        *networkBody       `json:"network"`
	Ports          *portsBody         `json:"ports"`
	Secrets        *usesBody          `json:"secrets"`
	Resources      *resourcesBody     `json:"resources"`
	User           optional[string]   `json:"user"`
	Cwd            optional[string]   `json:"cwd"`
	Template       *string            `json:"template"`

	IdleTimeoutSeconds optional[secondsOrNone] `json:"idle_timeout_seconds"`
	OnTimeout          *string                 `json:"on_timeout"`
	AutoResume         *bool                   `json:"auto_resume"`
	CheckpointSeconds  optional[secondsOrNone] `json:"checkpoint_every_seconds"`
	Volumes            *mountsBody             `json:"volumes"`
}

func (b *updateBody) change() (sandbox.Change, error) {
	c := sandbox.Change{
		Name: b.Name.pointer(), Timeout: (*time.Duration)(b.TimeoutSeconds),
		IdleTimeout: (*time.Duration)(b.IdleTimeoutSeconds.pointer()),
		OnTimeout:   (*sandbox.OnTimeout)(b.OnTimeout), StayPaused: inverse(b.AutoResume),
		CheckpointEvery: (*time.Duration)(b.CheckpointSeconds.pointer()),
		Network:         (*sandbox.NetworkPolicy)(b.Network), Ingress: (*sandbox.Ingress)(b.Ports), Secrets: (*sandbox.SecretUses)(b.Secrets),
		Metadata: b.Metadata, Env: b.Env, User: b.User.pointer(), Cwd: b.Cwd.pointer(), Template: b.Template,
		Volumes: (*[]sandbox.VolumeMount)(b.Volumes),
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
	var body updateBody
	if err := Decode(r, &body); err != nil {
		return err
	}
	change, err := body.change()
	if err != nil {
		return err
	}
	sb, err := a.Sandboxes.Update(r.Context(), who.Tenant, r.PathValue("id"), change)
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	return Reply(w, http.StatusOK, viewOf(who, sb))
}

// TouchSession answers POST /api/v1/sessions/{id}/touch: its time starts anew.
func (a *API) TouchSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if err := Decode(r, &struct{}{}); err != nil {
		return err
	}
	sb, err := a.Sandboxes.Touch(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	return Reply(w, http.StatusOK, viewOf(who, sb))
}

// SetTimeout answers POST /api/v1/sessions/{id}/timeout: the deadline becomes
// timeout_seconds from now.
func (a *API) SetTimeout(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		TimeoutSeconds *seconds `json:"timeout_seconds"`
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	sb, err := a.Sandboxes.SetTimeout(r.Context(), who.Tenant, r.PathValue("id"), body.TimeoutSeconds.duration())
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	return Reply(w, http.StatusOK, viewOf(who, sb))
}
