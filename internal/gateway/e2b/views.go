package e2b

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// sandboxView is a Sandbox for a client that will use it.
type sandboxView struct {
	TemplateID         string  `json:"templateID"`
	Alias              string  `json:"alias,omitempty"`
	SandboxID          string  `json:"sandboxID"`
	ClientID           string  `json:"clientID"`
	EnvdVersion        string  `json:"envdVersion"`
	EnvdAccessToken    string  `json:"envdAccessToken,omitempty"`
	TrafficAccessToken *string `json:"trafficAccessToken"` // nil: the ports are not private
	Domain             string  `json:"domain"`
}

// viewOf shows sb to a client that will use it, and starts to measure it.
func (a *API) viewOf(r *http.Request, sb sandbox.Sandbox) sandboxView {
	a.loads.watch(sb.ID)
	template, alias := a.templateOf(r.Context(), sb)
	v := sandboxView{
		TemplateID: template, Alias: alias, SandboxID: sb.ID, ClientID: clientID,
		EnvdVersion: Version, EnvdAccessToken: a.tokenOf(sb), Domain: a.domain(r),
	}
	if rules, err := sb.Ingress.Rules(); err == nil && rules.Private {
		token := a.PortTokens.Of(sb.ID)
		v.TrafficAccessToken = &token
	}
	return v
}

// tokenOf is the token for the services inside; empty: they need none.
func (a *API) tokenOf(sb sandbox.Sandbox) string {
	if sb.Ingress.RulesOrClosed().OpenServices {
		return ""
	}
	return a.AccessToken(sb.ID)
}

// noDomain is the domain if clients reach the server by an IP address, which has no
// subdomains. Names below .invalid cannot be registered (RFC 2606). The text says what
// to configure.
const noDomain = "set-cloud-sandbox-domain.invalid"

// domain is the domain by which the client of r reaches ports of Sandboxes, as
// PORT-ID.DOMAIN. It is never empty: clients would then use E2B's own cloud, and send
// it tokens.
func (a *API) domain(r *http.Request) string {
	if a.Domain != "" {
		return a.Domain
	}
	if domain := rest.DomainOf(r); domain != "" {
		return strings.TrimPrefix(domain, "api.") // clients that are given a domain add this prefix
	}
	return noDomain
}

// templateOf returns the origin of a Sandbox and its name without tag or version: a
// Template, or a Snapshot, which is a template to clients and may have no name.
func (a *API) templateOf(ctx context.Context, sb sandbox.Sandbox) (id, alias string) {
	if sb.Origin == "" {
		name, _, _ := strings.Cut(sb.Template, "@")
		name, _, _ = strings.Cut(name, ":")
		return sb.Template, name
	}
	if s, err := a.Snapshots.SnapshotByID(ctx, sb.Tenant, sb.Origin); err == nil { // otherwise the Snapshot is gone
		alias, _ = snapshotTag(s)
	}
	return sb.Origin, alias
}

// listedView is a Sandbox in a list.
type listedView struct {
	TemplateID   string            `json:"templateID"`
	Alias        string            `json:"alias,omitempty"`
	SandboxID    string            `json:"sandboxID"`
	ClientID     string            `json:"clientID"`
	StartedAt    string            `json:"startedAt"`
	EndAt        string            `json:"endAt"`
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int64             `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	Metadata     map[string]string `json:"metadata"`
	State        string            `json:"state"`
	EnvdVersion  string            `json:"envdVersion"`
	VolumeMounts []mountBody       `json:"volumeMounts"`
}

// listedViewOf is sb in a list, with the template that it was created from.
func listedViewOf(sb sandbox.Sandbox, template, alias string) listedView {
	v := listedView{
		TemplateID: template, Alias: alias, SandboxID: sb.ID, ClientID: clientID,
		// Lists are sorted by the creation time too.
		StartedAt: timestamp(sb.CreatedAt), EndAt: timestamp(endOf(sb)),
		CPUCount: sb.Shape.VisibleCPUs(), MemoryMB: sb.Shape.MemoryBytes >> 20, DiskSizeMB: sb.Shape.DiskBytes >> 20,
		Metadata: sb.Metadata, State: stateOf(sb), EnvdVersion: Version, VolumeMounts: mountViews(sb.Volumes),
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	return v
}

// endOf is the deadline, or for a paused Sandbox the deadline when it was paused.
func endOf(sb sandbox.Sandbox) time.Time {
	if sb.State == sandbox.Paused {
		return sb.Deadline.Add(-sandbox.PausedLife)
	}
	return sb.Deadline
}

// stateOf is one of E2B's two States. A Sandbox that is being paused is already shown
// as paused: further requests wait until it is.
func stateOf(sb sandbox.Sandbox) string {
	if sb.State == sandbox.Pausing || sb.State == sandbox.Paused {
		return statePaused
	}
	return stateRunning
}

const (
	stateRunning = "running"
	statePaused  = "paused"
)

// detailView is all that a Sandbox's owner may see.
type detailView struct {
	listedView
	EnvdAccessToken     string        `json:"envdAccessToken,omitempty"`
	AllowInternetAccess *bool         `json:"allowInternetAccess"`
	Domain              string        `json:"domain"`
	Network             *networkView  `json:"network,omitempty"`
	Lifecycle           lifecycleView `json:"lifecycle"`
	PauseMode           string        `json:"pauseMode,omitempty"` // the kind of a paused Sandbox's Snapshot
}

type lifecycleView struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

func (a *API) detailOf(r *http.Request, sb sandbox.Sandbox) detailView {
	template, alias := a.templateOf(r.Context(), sb)
	v := detailView{
		listedView: listedViewOf(sb, template, alias), EnvdAccessToken: a.tokenOf(sb), Domain: a.domain(r),
		Lifecycle: lifecycleView{OnTimeout: "kill", AutoResume: !sb.StayPaused},
	}
	if pauses, _ := sb.OnTimeout.Pauses(); pauses {
		v.Lifecycle.OnTimeout = "pause"
	}
	v.Network, v.AllowInternetAccess = networkOf(sb)
	return v
}

// timestamp is a time in RFC 3339, UTC, to the microsecond.
func timestamp(t time.Time) string {
	return t.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)
}
