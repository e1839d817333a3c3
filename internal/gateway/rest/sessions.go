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
	IfExists       string            `json:"if_exists"`

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
	Bandwidth *int64 `json:"bandwidth_mbps"`
}

// asked is what a door has where a request says nothing.
type asked struct {
	timeout   time.Duration
	onTimeout sandbox.OnTimeout
}

// request checks b and returns what it asks for.
func (b *createBody) request(otherwise asked) (sandbox.CreateRequest, error) {
	if b.IfExists != "" && b.IfExists != "fail" && b.IfExists != "return" {
		return sandbox.CreateRequest{}, sandbox.Errorf(sandbox.Invalid, `if_exists must be "fail" or "return"`)
	}
	req := sandbox.CreateRequest{
		Template: b.Template, Name: b.Name, Timeout: cmp.Or(b.TimeoutSeconds.duration(), otherwise.timeout),
		OnTimeout:  cmp.Or(sandbox.OnTimeout(b.OnTimeout), otherwise.onTimeout),
		StayPaused: b.AutoResume != nil && !*b.AutoResume, Snapshot: b.SnapshotID,
		Network: sandbox.NetworkPolicy(b.Network), Ingress: b.Ports.ingress(), Secrets: b.Secrets.uses(), Volumes: b.Volumes.mounts(),
		Metadata: b.Metadata, Env: b.Env, User: b.User, Cwd: b.Cwd,
		IdleTimeout: time.Duration(b.IdleTimeoutSeconds), CheckpointEvery: time.Duration(b.CheckpointSeconds),
	}
	if b.Resources != nil {
		if n := bytesPerSecond(b.Resources.Bandwidth); n != nil {
			req.Bandwidth = *n
		}
		shape, err := b.Resources.shape()
		if err != nil {
			return req, err
		}
		req.Shape = shape
	}
	return req, req.Check()
}

// shape is zero when b names nothing of one.
func (b *resourcesBody) shape() (sandbox.Shape, error) {
	if b.Bandwidth != nil && *b == (resourcesBody{Bandwidth: b.Bandwidth}) {
		return sandbox.Shape{}, nil
	}
	s := sandbox.DefaultShape()
	if b.Type != "" {
		var err error
		if s, err = sandbox.ShapeOfType(b.Type); err != nil {
			return s, err
		}
	}
	if b.CPUs != nil {
		s.CPUs = *b.CPUs
	}
	for _, f := range []struct{ from, to *int64 }{
		{bytesOf(b.MemoryMB), &s.MemoryBytes}, {bytesOf(b.DiskMB), &s.DiskBytes}, {b.Pids, &s.Pids},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	return s, s.Check()
}

// bytesPerSecond turns Mbit/s into bytes a second; what would overflow stays beyond
// every bound.
func bytesPerSecond(mbps *int64) *int64 {
	if mbps == nil {
		return nil
	}
	return new(min(max(*mbps, -1), 1<<40) * sandbox.Megabit)
}

// bytesOf turns MiB into bytes; what would overflow stays beyond every bound.
func bytesOf(mib *int64) *int64 {
	if mib == nil {
		return nil
	}
	n := min(max(*mib, -1), 1<<40) << 20
	return &n
}

// CreateSession answers POST /api/v1/sessions with 201 and the new Sandbox.
func (a *API) CreateSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.create(w, r, who, http.StatusCreated, asked{sandbox.DefaultSessionTimeout, sandbox.OnTimeoutPause})
}

// Acquire answers POST /api/v1/sandbox/acquire with a running Sandbox.
func (a *API) Acquire(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.create(w, r, who, http.StatusOK, asked{sandbox.DefaultAcquireTimeout, sandbox.OnTimeoutEnd})
}

func (a *API) create(w http.ResponseWriter, r *http.Request, who sandbox.Identity, status int, otherwise asked) error {
	var body createBody
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := body.request(otherwise)
	if err != nil {
		return err
	}
	req.ID = Resource(r.Context())
	if req.ID != "" {
		made, err := Earlier(r.Context(), a.Sandboxes, who.Tenant, req.ID)
		switch {
		case err != nil:
			return err
		case made.Ended != nil: // it failed: this is another attempt
			req.ID = ""
		case made.ID != "":
			return Reply(w, status, viewOf(who, made))
		}
	}
	if body.IfExists == "return" {
		sb, created, err := a.Sandboxes.Ensure(r.Context(), who.Tenant, req)
		if err != nil {
			return err
		}
		if !created {
			status = http.StatusOK
		}
		return Reply(w, status, viewOf(who, sb))
	}
	sb, err := a.Sandboxes.Create(r.Context(), who.Tenant, req)
	if err != nil {
		return err
	}
	a.Guests.Warm(r.Context(), sb)
	return Reply(w, status, viewOf(who, sb))
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
	reply := struct {
		Sessions []sandboxView `json:"sessions"`
		Next     string        `json:"next_cursor,omitempty"`
	}{[]sandboxView{}, page.Next}
	for _, sb := range page.Sandboxes {
		reply.Sessions = append(reply.Sessions, listedViewOf(who, sb))
	}
	return Reply(w, http.StatusOK, reply)
}

const maxCursor = 512 // bytes

func listQuery(r *http.Request) (sandbox.ListQuery, error) {
	values, err := query(r, "limit", "cursor", "state", "metadata[]")
	if err != nil {
		return sandbox.ListQuery{}, err
	}
	q := sandbox.ListQuery{Cursor: values.Get("cursor"), Metadata: metadataFilter(values)}
	if len(q.Cursor) > maxCursor {
		return q, sandbox.Errorf(sandbox.Invalid, "cursor is not one of an earlier page")
	}
	if s := values.Get("limit"); s != "" {
		if q.Limit, err = strconv.Atoi(s); err != nil || q.Limit < 1 || q.Limit > 100 {
			return q, sandbox.Errorf(sandbox.Invalid, "limit must be a whole number from 1 to 100")
		}
	}
	if s := values.Get("state"); s != "" {
		q.States, err = parseStates(s)
	}
	return q, err
}

// maxStates is how many states a filter may name.
const maxStates = 8

func parseStates(s string) ([]sandbox.State, error) {
	var found []sandbox.State
	for _, name := range strings.SplitN(s, ",", maxStates+1) {
		state := sandbox.State(name)
		if !state.Valid() {
			return nil, sandbox.Errorf(sandbox.Invalid, "%.32q is not a state", name)
		}
		found = append(found, state)
	}
	return found, nil
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
		if res.Type != "" {
			return c, sandbox.Errorf(sandbox.Conflict, "the instance type cannot change while the sandbox runs: change cpus, memory_mb, pids or bandwidth_mbps, or create another one")
		}
		c.CPUs, c.MemoryBytes, c.DiskBytes, c.Pids = res.CPUs, bytesOf(res.MemoryMB), bytesOf(res.DiskMB), res.Pids
		c.Bandwidth = bytesPerSecond(res.Bandwidth)
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
	d := body.TimeoutSeconds.duration()
	if d <= 0 || d > sandbox.MaxTimeout {
		return sandbox.Errorf(sandbox.Invalid, "timeout_seconds must be more than 0 and at most %d", int(sandbox.MaxTimeout.Seconds()))
	}
	sb, err := a.Sandboxes.SetTimeout(r.Context(), who.Tenant, r.PathValue("id"), d)
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	return Reply(w, http.StatusOK, viewOf(who, sb))
}
