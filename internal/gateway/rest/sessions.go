package rest

import (
	"encoding/json"
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
	Network        string            `json:"network"`
	Metadata       map[string]string `json:"metadata"`
	Env            map[string]string `json:"env"`
	User           string            `json:"user"`
	Cwd            string            `json:"cwd"`
	OnTimeout      string            `json:"on_timeout"`
	IfExists       string            `json:"if_exists"`

	// These are known and not there yet: refused by name, never ignored.
	SnapshotID         json.RawMessage `json:"snapshot_id"`
	IdleTimeoutSeconds json.RawMessage `json:"idle_timeout_seconds"`
	AutoResume         json.RawMessage `json:"auto_resume"`
	Volumes            json.RawMessage `json:"volumes"`
	Secrets            json.RawMessage `json:"secrets"`
}

// resourcesBody is a Shape in JSON; absent fields are those of DefaultShape.
type resourcesBody struct {
	CPUs     *float64 `json:"cpus"`
	MemoryMB *int64   `json:"memory_mb"`
	DiskMB   *int64   `json:"disk_mb"`
	Pids     *int64   `json:"pids"`
}

// request checks b and returns what it asks for, with timeout when it asks for
// none.
func (b *createBody) request(timeout time.Duration) (sandbox.CreateRequest, error) {
	if err := b.unsupported(); err != nil {
		return sandbox.CreateRequest{}, err
	}
	if d := b.TimeoutSeconds.duration(); d != 0 {
		timeout = d
	}
	req := sandbox.CreateRequest{
		Template: b.Template, Name: b.Name, Timeout: timeout,
		Network:  sandbox.NetworkPolicy(b.Network),
		Metadata: b.Metadata, Env: b.Env, User: b.User, Cwd: b.Cwd,
	}
	if b.Resources != nil {
		shape, err := b.Resources.shape()
		if err != nil {
			return req, err
		}
		req.Shape = shape
	}
	return req, req.Check()
}

func (b *createBody) unsupported() error {
	for _, f := range []struct {
		name  string
		value json.RawMessage
	}{
		{"snapshot_id", b.SnapshotID},
		{"idle_timeout_seconds", b.IdleTimeoutSeconds},
		{"auto_resume", b.AutoResume},
		{"volumes", b.Volumes},
		{"secrets", b.Secrets},
	} {
		if f.value != nil {
			return sandbox.Errorf(sandbox.Unsupported, "%s is not supported yet", f.name)
		}
	}
	switch b.OnTimeout {
	case "", string(sandbox.OnTimeoutEnd):
	case "pause", "pause_files":
		return sandbox.Errorf(sandbox.Unsupported, "on_timeout %q is not supported yet; a sandbox ends at its deadline", b.OnTimeout)
	default:
		return sandbox.Errorf(sandbox.Invalid, "on_timeout must be %q", sandbox.OnTimeoutEnd)
	}
	switch b.IfExists {
	case "", "fail":
	case "return":
		return sandbox.Errorf(sandbox.Unsupported, `if_exists "return" is not supported yet; a name in use is a conflict`)
	default:
		return sandbox.Errorf(sandbox.Invalid, `if_exists must be "fail"`)
	}
	return nil
}

func (b *resourcesBody) shape() (sandbox.Shape, error) {
	s := sandbox.DefaultShape()
	if b.CPUs != nil {
		s.CPUs = *b.CPUs
	}
	for _, f := range []struct {
		from *int64
		to   *int64
		unit uint
	}{
		{b.MemoryMB, &s.MemoryBytes, 20},
		{b.DiskMB, &s.DiskBytes, 20},
		{b.Pids, &s.Pids, 0},
	} {
		if f.from != nil {
			*f.to = min(max(*f.from, -1), 1<<40) << f.unit // beyond every bound, and no overflow
		}
	}
	return s, s.Check()
}

// CreateSession answers POST /api/v1/sessions with 201 and the new Sandbox.
func (a *API) CreateSession(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.create(w, r, who, http.StatusCreated, sandbox.DefaultSessionTimeout)
}

// Acquire answers POST /api/v1/sandbox/acquire with a running Sandbox.
func (a *API) Acquire(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	return a.create(w, r, who, http.StatusOK, sandbox.DefaultAcquireTimeout)
}

func (a *API) create(w http.ResponseWriter, r *http.Request, who sandbox.Identity, status int, timeout time.Duration) error {
	var body createBody
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := body.request(timeout)
	if err != nil {
		return err
	}
	sb, err := a.Sandboxes.Create(r.Context(), who.Tenant, req)
	if err != nil {
		return err
	}
	return Reply(w, status, viewOf(sb))
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
		reply.Sessions = append(reply.Sessions, viewOf(sb))
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

// states are those that a client may filter by, in the order of a life.
var states = []sandbox.State{
	sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused,
	sandbox.Resuming, sandbox.Stopping, sandbox.Ended,
}

func parseStates(s string) ([]sandbox.State, error) {
	var found []sandbox.State
	for _, name := range strings.SplitN(s, ",", len(states)+2) {
		state, ok := stateNamed(name)
		if !ok {
			return nil, sandbox.Errorf(sandbox.Invalid, "%.32q is not a state", name)
		}
		found = append(found, state)
	}
	return found, nil
}

func stateNamed(name string) (sandbox.State, bool) {
	for _, s := range states {
		if string(s) == name {
			return s, true
		}
	}
	return "", false
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
		return execution.Absent(err)
	}
	return Reply(w, http.StatusOK, viewOf(sb))
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
	sb, err := a.Sandboxes.End(r.Context(), who.Tenant, idOrName, sandbox.CauseReleased)
	if err != nil {
		return execution.Absent(err)
	}
	a.Guests.Forget(sb.ID)
	return Reply(w, http.StatusOK, viewOf(sb))
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
		return execution.Absent(err)
	}
	return Reply(w, http.StatusOK, viewOf(sb))
}
