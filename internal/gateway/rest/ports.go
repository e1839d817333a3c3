package rest

import (
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

// ListPorts answers GET /api/v1/sessions/{id}/ports with the listening ports inside and
// the URLs of each; with all=true also the agent's.
func (a *API) ListPorts(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := query(r, "all")
	if err != nil {
		return err
	}
	agents, err := parseFlag("all", values.Get("all"))
	if err != nil {
		return err
	}
	sb, all, truncated, err := a.Executions.ListPorts(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return err
	}
	how := sb.Ingress.RulesOrClosed()
	view := v1.Listeners{Ports: []v1.Listener{}, Truncated: truncated}
	for _, l := range all {
		if agents || !sandbox.AgentPort(l.Port) {
			view.Ports = append(view.Ports, a.listenerViewOf(r, sb.ID, how, l))
		}
	}
	return Reply(w, http.StatusOK, view)
}

// listenerViewOf shows a listening port. The agent's ports have no URL for browsers.
func (a *API) listenerViewOf(r *http.Request, id string, how sandbox.IngressRules, l execution.Listener) v1.Listener {
	v := v1.Listener{
		Port: l.Port, Address: l.Address.String(), Loopback: l.Address.IsLoopback(), PID: l.PID, Process: l.Process,
		Agent: sandbox.AgentPort(l.Port), Private: how.PrivateAt(l.Port), TLS: how.TLSAt(l.Port),
	}
	if origin := a.portOrigin(r, id, l.Port); origin != "" && !v.Agent {
		v.URL = origin + "/"
	}
	return v
}

func (a *API) portViewOf(r *http.Request, sb sandbox.Sandbox, port uint16) v1.Port {
	how := sb.Ingress.RulesOrClosed()
	v := v1.Port{Port: port, Private: how.PrivateAt(port), TLS: how.TLSAt(port)}
	if origin := a.portOrigin(r, sb.ID, port); origin != "" {
		v.URL = origin + "/"
	}
	return v
}

// ownPort parses the port in the path. The agent's own ports are refused.
func ownPort(r *http.Request) (uint16, error) {
	port, err := execution.Port(r.PathValue("port"))
	if err == nil && sandbox.AgentPort(port) {
		err = sandbox.Errorf(sandbox.Invalid, "the port %d is the agent's in the sandbox: name one of your own services", port)
	}
	return port, err
}

// GetPort answers GET /api/v1/sessions/{id}/ports/{port} with the port's URL and access
// rules. It reads only the record, and wakes nothing.
func (a *API) GetPort(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := query(r); err != nil {
		return err
	}
	port, err := ownPort(r)
	if err != nil {
		return err
	}
	sb, err := a.notEnded(r, who)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, a.portViewOf(r, sb, port))
}

// notEnded is the record of the Sandbox in the path, which must not have ended.
func (a *API) notEnded(r *http.Request, who sandbox.Identity) (sandbox.Sandbox, error) {
	sb, err := a.Sandboxes.Get(r.Context(), who.Tenant, r.PathValue("id"))
	if err == nil && sb.Ended != nil {
		err = sandbox.Errorf(sandbox.Conflict, "the sandbox has ended")
	}
	return sb, execution.Absent(r.PathValue("id"), err)
}

// SetPort answers PUT /api/v1/sessions/{id}/ports/{port}: it makes one port public or
// private, or sets whether it speaks TLS, regardless of the other ports.
func (a *API) SetPort(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.PortRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	port, err := ownPort(r)
	if err != nil {
		return err
	}
	if body.Private == nil && body.TLS == nil {
		return sandbox.Errorf(sandbox.Invalid, "name the change of the port: private or tls, true or false")
	}
	change := sandbox.Change{Port: &sandbox.PortChange{Port: port, Private: body.Private, TLS: body.TLS}}
	sb, err := a.Updates.Update(r.Context(), who.Tenant, r.PathValue("id"), change)
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	return Reply(w, http.StatusOK, a.portViewOf(r, sb, port))
}

// defaultLinkLife is the lifetime of a link to a port when the request names none.
const defaultLinkLife = time.Hour

// SignPort answers POST /api/v1/sessions/{id}/ports/{port}/sign with a link to a port,
// and the link's token.
func (a *API) SignPort(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.PortLinkRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	port, err := execution.Port(r.PathValue("port"))
	if err != nil {
		return err
	}
	life := defaultLinkLife
	if body.ExpiresInSeconds != nil {
		life = body.ExpiresInSeconds.Duration()
	}
	sb, err := a.notEnded(r, who)
	if err != nil {
		return err
	}
	token, expires, err := a.PortTokens.Sign(sb.ID, port, life)
	if err != nil {
		return err
	}
	reply := v1.PortLink{Token: token, ExpiresAt: v1.Time(expires)}
	if origin := a.portOrigin(r, sb.ID, port); origin != "" {
		reply.URL = origin + "/?" + signing.PortParam + "=" + token
	}
	return Reply(w, http.StatusOK, reply)
}

// portOrigin is the public origin of a Sandbox's port. It is empty when the client of r
// reaches this server by an IP address, which has no subdomains.
func (a *API) portOrigin(r *http.Request, id string, port uint16) string {
	domain := cmp.Or(a.Domain, DomainOf(r))
	if domain == "" {
		return ""
	}
	return schemeOf(r) + "://" + strconv.Itoa(int(port)) + "-" + id + "." + domain
}

// DomainOf is the domain by which the client of r reaches this server, with its port.
// It is localhost for a loopback address, because localhost has subdomains. It is empty
// for another IP address, which has none.
func DomainOf(r *http.Request) string {
	host, number, err := net.SplitHostPort(r.Host)
	if err != nil {
		host, number = r.Host, ""
	}
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		if !addr.Unmap().IsLoopback() {
			return ""
		}
		host = "localhost"
	}
	if number != "" {
		return net.JoinHostPort(host, number)
	}
	return host
}
