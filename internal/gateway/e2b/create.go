package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// Default lifetimes of a Sandbox, by generation of the API.
const (
	timeoutV1 = 15 * time.Second
	timeoutV2 = 300 * time.Second
)

// home is the default folder of Processes.
const home = "/home/user"

// createBody requests a Sandbox.
type createBody struct {
	TemplateID          string            `json:"templateID"`
	Timeout             *int64            `json:"timeout"`
	AutoPause           bool              `json:"autoPause"`
	AutoPauseMemory     *bool             `json:"autoPauseMemory"`
	AutoResume          *autoResume       `json:"autoResume"`
	AllowInternetAccess *bool             `json:"allow_internet_access"`
	Network             *networkBody      `json:"network"`
	Metadata            map[string]string `json:"metadata"`
	EnvVars             map[string]string `json:"envVars"`
	// MCP is implemented by clients alone: they start the gateway as a Process.
	MCP          json.RawMessage `json:"mcp"`
	IAM          *iamBody        `json:"iam"`
	VolumeMounts []mountBody     `json:"volumeMounts"`
	// open makes the services inside accept requests without a token.
	open bool
}

// createBodyV1 is the body of the first generation.
type createBodyV1 struct {
	Secure *bool `json:"secure"`
	createBody
}

type autoResume struct {
	Enabled bool `json:"enabled"`
}

type iamBody struct {
	Tokens map[string]any `json:"tokens"`
}

// request converts b; timeout is the default.
func (b *createBody) request(who sandbox.Identity, timeout time.Duration) (sandbox.CreateRequest, error) {
	req := sandbox.CreateRequest{Metadata: b.Metadata, Env: b.EnvVars}
	if b.TemplateID == "" {
		return req, sandbox.Errorf(sandbox.Invalid, "templateID is missing")
	}
	if err := b.refuse(); err != nil {
		return req, err
	}
	var err error
	if req.Template, err = templateName(who, b.TemplateID); err != nil {
		return req, err
	}
	if sandbox.ValidSnapshotID(req.Template) {
		req.Snapshot, req.Template = req.Template, ""
	}
	if req.Volumes, err = mountsOf(b.VolumeMounts); err != nil {
		return req, err
	}
	req.OnTimeout = onTimeout(b.AutoPause, b.AutoPauseMemory)
	req.StayPaused = b.AutoResume == nil || !b.AutoResume.Enabled
	if req.Timeout, err = seconds(b.Timeout, timeout); err != nil {
		return req, err
	}
	if req.Network, err = b.policy(); err != nil {
		return req, err
	}
	network := b.Network
	if network == nil {
		network = &networkBody{}
	}
	if req.Secrets, err = network.Rules.uses(); err != nil {
		return req, err
	}
	if req.Ingress, err = network.ingress(b.open); err != nil {
		return req, err
	}
	return req, req.Check()
}

// refuse returns Unsupported for features that do not exist here, and Invalid for
// fields that contradict each other.
func (b *createBody) refuse() error {
	resumes := b.AutoResume != nil && b.AutoResume.Enabled
	switch {
	case b.AutoPauseMemory != nil && !*b.AutoPauseMemory && !b.AutoPause:
		return sandbox.Errorf(sandbox.Invalid, "autoPauseMemory needs autoPause")
	case b.AutoPauseMemory != nil && !*b.AutoPauseMemory && resumes:
		return sandbox.Errorf(sandbox.Invalid, "autoPauseMemory false cannot be combined with autoResume: traffic does not wake a sandbox that was paused without memory")
	case b.IAM != nil && len(b.IAM.Tokens) > 0:
		return unsupported("iam")
	}
	return nil
}

func unsupported(field string) error {
	return sandbox.Errorf(sandbox.Unsupported, "%s is not supported by this server yet", field)
}

// seconds is a lifetime; n may be nil.
func seconds(n *int64, otherwise time.Duration) (time.Duration, error) {
	switch {
	case n == nil:
		return otherwise, nil
	case *n <= 0:
		return 0, sandbox.Errorf(sandbox.Invalid, "timeout must be more than 0 seconds")
	case *n > int64(sandbox.MaxTimeout/time.Second) || *n > math.MaxInt32:
		return 0, sandbox.Errorf(sandbox.Invalid, "timeout cannot be greater than %d seconds", int64(sandbox.MaxTimeout/time.Second))
	}
	return time.Duration(*n) * time.Second, nil
}

// policy is the network policy; empty: the operator's default.
func (b *createBody) policy() (sandbox.NetworkPolicy, error) {
	switch {
	case b.Network == nil && b.AllowInternetAccess == nil:
		return "", nil
	case b.Network == nil:
		return new(egressBody).policy(b.AllowInternetAccess)
	}
	if b.AllowInternetAccess == nil && len(b.Network.AllowOut)+len(b.Network.DenyOut) == 0 {
		return "", b.Network.egressBody.refuse()
	}
	return b.Network.policy(b.AllowInternetAccess)
}

// templateName converts a client's name of a Template or Snapshot to ours, without the
// caller's own namespace. Names in another namespace do not exist.
func templateName(who sandbox.Identity, s string) (string, error) {
	const maxName = 256
	name := withoutNamespace(who, strings.ToLower(strings.TrimSpace(s)))
	if name == "" || len(name) > maxName {
		return "", sandbox.Errorf(sandbox.Invalid, "templateID is invalid")
	}
	if strings.Contains(name, "/") {
		return "", errNoTemplate(name)
	}
	return strings.TrimSuffix(swapReference(name), ":"+latest), nil
}

func errNoTemplate(name string) error {
	return sandbox.Errorf(sandbox.NotFound, "template %q not found", name)
}

// CreateV2 answers POST /v2/sandboxes with 201 and the new Sandbox.
func (a *API) CreateV2(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body createBody
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	return a.create(w, r, who, &body, timeoutV2)
}

// CreateV1 answers POST /sandboxes. Anyone who knows the ID of its Sandboxes may use
// their services, unless they request secure or all Sandboxes are secure. Clients see
// that by the token in the answer, and use it regardless of their request.
func (a *API) CreateV1(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body createBodyV1
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	body.open = !a.Secure && (body.Secure == nil || !*body.Secure)
	return a.create(w, r, who, &body.createBody, timeoutV1)
}

func (a *API) create(w http.ResponseWriter, r *http.Request, who sandbox.Identity, body *createBody, timeout time.Duration) error {
	req, err := body.request(who, timeout)
	if err != nil {
		return err
	}
	if req.Secrets, err = a.known(r.Context(), who, req.Secrets); err != nil {
		return err
	}
	if req.ID = rest.Resource(r.Context()); req.ID != "" {
		made, next, err := rest.Earlier(r.Context(), a.Sandboxes, who.Tenant, req.ID)
		switch {
		case err != nil:
			return err
		case made.ID != "":
			return rest.Reply(w, http.StatusCreated, a.viewOf(r, made))
		}
		req.ID = next
	}
	sb, err := a.make(r.Context(), who, req)
	if err != nil {
		return err
	}
	a.Guests.Warm(r.Context(), sb)
	return rest.Reply(w, http.StatusCreated, a.viewOf(r, sb))
}

// make creates a Sandbox from the named Template or Snapshot, or from the operator's
// replacement for that name. It uses the replacement also while a Template of that name
// is being built for the first time.
func (a *API) make(ctx context.Context, who sandbox.Identity, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	sb, absent := a.makeFrom(ctx, who, req)
	switch {
	case !sandbox.NoSuchTemplate(absent):
		return sb, absent
	case req.Snapshot != "":
		return sb, errNoTemplate(req.Snapshot)
	}
	if name, ok := notTagged(req.Template); ok {
		req.Template = name
		if sb, err := a.makeFrom(ctx, who, req); !sandbox.NoSuchTemplate(err) {
			return sb, err
		}
		req.Template = name + ":" + defaultTag
	}
	snapshot, err := a.snapshotNamed(ctx, who, req.Template, false)
	if err != nil {
		return sb, err
	}
	if snapshot != "" {
		req.Snapshot, req.Template = snapshot, ""
		return a.makeFrom(ctx, who, req)
	}
	asked := swapReference(req.Template)
	meant, ok := a.Templates[asked]
	if !ok {
		return sb, withoutTemplate(absent, asked)
	}
	req.Template = meant
	if sb, err = a.makeFrom(ctx, who, req); sandbox.NoSuchTemplate(err) {
		return sb, withoutTemplate(err, meant)
	}
	if _, told := a.told.LoadOrStore(asked, true); err == nil && !told {
		a.Log.WarnContext(ctx, "another template stands in for one that is not built; `cloud-sandbox template build` makes it",
			"asked", asked, "used", meant)
	}
	return sb, err
}

// withoutTemplate is the client's error for err, a missing Template. A Template that is
// being built is Unavailable instead.
func withoutTemplate(err error, name string) error {
	if sandbox.CodeOf(err) == sandbox.Unavailable {
		return err
	}
	return errNoTemplate(name)
}

// notTagged returns the name without its tag if a client wrote "NAME:latest", which is
// in our names here "NAME:default". Clients that never set that tag by E2B's API mean
// our own latest.
func notTagged(template string) (name string, ok bool) {
	return strings.CutSuffix(template, ":"+defaultTag)
}

// makeFrom creates a Sandbox with the shape, user and folder of its Template: E2B's
// clients cannot choose them.
func (a *API) makeFrom(ctx context.Context, who sandbox.Identity, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	if req.Snapshot == "" { // a Snapshot has its own
		t, err := a.Starts.Find(ctx, who.Tenant, req.Template)
		if err != nil {
			return sandbox.Sandbox{}, err
		}
		req.Shape, req.User, req.Cwd = t.Defaults.Shape(), t.Defaults.User, cmp.Or(t.Defaults.Cwd, home)
	}
	sb, err := a.Lifecycle.Create(ctx, who.Tenant, req)
	return sb, noRoom(err)
}
