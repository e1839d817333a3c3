package serve

import (
	"fmt"
	"net"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve/run"
)

// openIdentity reads the certificate of this role, if one is configured, and keeps it
// current. A Node is named by it.
func (r *role) openIdentity(parts *run.Parts) error {
	if r.cfg.Cluster == "" {
		return nil
	}
	identity, err := cluster.Open(r.cfg.Cluster, r.log)
	if err != nil {
		return fmt.Errorf("CLOUD_SANDBOX_CLUSTER: %w", err)
	}
	id := identity.ID()
	if id.Role != r.cfg.Role {
		return fmt.Errorf("CLOUD_SANDBOX_CLUSTER: the certificate in %s is of %s, and this is the %s", r.cfg.Cluster, id.Short(), r.cfg.Role)
	}
	if id.Role == config.RoleNode {
		if given := r.cfg.NodeName; given != "" && given != id.Name {
			return fmt.Errorf("CLOUD_SANDBOX_NODE is %q, and the certificate in %s is of the node %q: unset the variable, or join under its name", given, r.cfg.Cluster, id.Name)
		}
		r.cfg.NodeName = id.Name
	}
	r.self.Identity, r.revokedHosts, r.buildKey = identity, identity.RevokedHosts, identity.BuildKey
	r.log.Info("this role has a certificate of a cluster", "identity", id.String(), "expires", identity.Current().NotAfter())
	parts.Start("identity", ended(identity.Run))
	return nil
}

// forRoles makes listeners accept only other roles, if this role has a certificate.
func (r *role) forRoles(listeners []net.Listener) []net.Listener {
	if r.self.Identity == nil {
		return listeners
	}
	var out []net.Listener
	for _, ln := range listeners {
		out = append(out, rpc.Secured(ln, r.self.Identity))
	}
	return out
}

// monitors opens the address for monitoring, if one is configured.
func (r *role) monitors() ([]net.Listener, error) {
	if r.cfg.MonitorAddr == "" {
		return nil, nil
	}
	files, err := launch.Listen(r.cfg.MonitorAddr)
	if err != nil {
		return nil, fmt.Errorf("CLOUD_SANDBOX_MONITOR_ADDR: %w", err)
	}
	var out []net.Listener
	for _, f := range files {
		ln, err := net.FileListener(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("listen for monitoring: %w", err)
		}
		out = append(out, ln)
	}
	return out, nil
}
