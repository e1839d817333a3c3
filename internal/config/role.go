package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

// Roles that a process may run alone.
const (
	RoleGateway        = "gateway"
	RoleSessionManager = "session-manager"
	RoleScheduler      = "scheduler"
	RoleNode           = "node"
)

// addresses is where each role listens by default.
var addresses = map[string]string{
	RoleGateway:        "localhost:8080",
	RoleSessionManager: "localhost:9091",
	RoleScheduler:      "localhost:9090",
	RoleNode:           "localhost:9092",
}

// LoadRole is Load for a process of one role. The address of a role other than
// the gateway is set by CLOUD_SANDBOX_<ROLE>_ADDR.
func LoadRole(role string, flags map[string]string, environ []string) (Config, error) {
	c := defaults(lookup(environ))
	addr, ok := addresses[role]
	if !ok {
		return c, fmt.Errorf("no role %q", role)
	}
	c.Role, c.Addr = role, addr
	return load(c, flags, environ)
}

// addrVariable is the environment variable that sets Addr.
func addrVariable(role string) string {
	if role == "" || role == RoleGateway {
		return "CLOUD_SANDBOX_ADDR"
	}
	return "CLOUD_SANDBOX_" + strings.ToUpper(strings.ReplaceAll(role, "-", "_")) + "_ADDR"
}

// KeepServiceSecret fills in ServiceSecret as KeepSecret does Secret, under
// Data.
func (c *Config) KeepServiceSecret() error {
	kept := Config{Data: filepath.Join(c.Data, "services"), Secret: c.ServiceSecret}
	err := kept.KeepSecret()
	c.ServiceSecret = kept.Secret
	return err
}

// DefaultNode is the name of a Node that has none.
const DefaultNode = "local"

var nodeNamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// warnCluster adds warnings about settings of certificates that have no effect, or less
// than expected.
func (c *Config) warnCluster() {
	if c.Role == RoleSessionManager && c.Cluster != "" && c.SessionManagerURL == "" {
		c.Warnings = append(c.Warnings, "CLOUD_SANDBOX_SESSION_MANAGER_URL is not set: processes on other machines cannot reach this session-manager; set it to its own https:// address")
	}
	if c.Role == RoleGateway && c.MonitorAddr != "" {
		c.Warnings = append(c.Warnings, "CLOUD_SANDBOX_MONITOR_ADDR is not used: the gateway serves monitoring on the port for clients")
	}
	if c.Role == "" && c.Cluster != "" {
		c.Warnings = append(c.Warnings, "CLOUD_SANDBOX_CLUSTER is for roles as programs of their own and is not used")
	}
}

func (c *Config) checkServices() error {
	var errs []error
	switch {
	case c.NodeName == "":
		// Records say by the name where a Sandbox runs, so two Nodes must not share one.
		if c.Role == RoleNode && c.Database != "" && !c.Dev && c.Cluster == "" {
			errs = append(errs, errors.New("CLOUD_SANDBOX_NODE: it is not set, and other nodes may have records in this database too; set it to a name that no other node has, for example the name of this machine"))
		}
	case !nodeNamePattern.MatchString(c.NodeName):
		errs = append(errs, fmt.Errorf("CLOUD_SANDBOX_NODE: %q must be 1 to 63 of a-z, 0-9, '.' and '-', and begin and end with a letter or digit", c.NodeName))
	}
	if c.Role == "" && c.TemplatesURL != "" {
		errs = append(errs, errors.New("CLOUD_SANDBOX_TEMPLATES_URL: a server with all roles keeps its templates itself; unset it"))
	}
	if strings.HasPrefix(c.TemplatesURL, "https:") && c.TemplatesNode == "" {
		errs = append(errs, errors.New("CLOUD_SANDBOX_TEMPLATES_NODE: it is not set; set it to the name of the node at CLOUD_SANDBOX_TEMPLATES_URL, which its certificate must have"))
	}
	if c.MonitorAddr != "" && c.Cluster == "" {
		errs = append(errs, errors.New("CLOUD_SANDBOX_MONITOR_ADDR: without CLOUD_SANDBOX_CLUSTER each role serves monitoring on its own port; unset it"))
	}
	for _, u := range []struct{ name, url string }{
		{"CLOUD_SANDBOX_SESSION_MANAGER_URL", c.SessionManagerURL},
		{"CLOUD_SANDBOX_SCHEDULER_URL", c.SchedulerURL},
		{"CLOUD_SANDBOX_NODE_URL", c.NodeURL},
		{"CLOUD_SANDBOX_TEMPLATES_URL", c.TemplatesURL},
	} {
		switch {
		case c.Role == "":
		case strings.HasPrefix(u.url, "http:") && c.Cluster != "":
			errs = append(errs, fmt.Errorf("%s: http:// is refused with CLOUD_SANDBOX_CLUSTER, because it shows secrets to the network; use https://HOST:PORT or unix:/PATH", u.name))
		case strings.HasPrefix(u.url, "https:") && c.Cluster == "":
			errs = append(errs, fmt.Errorf("%s: https:// needs a certificate for this role; set CLOUD_SANDBOX_CLUSTER to its folder", u.name))
		}
	}
	return errors.Join(errs...)
}

// KeepsTemplates reports whether the Templates are in the data folder of a Node: those of
// the installation, or of this machine.
func (c *Config) KeepsTemplates() bool {
	return c.TemplatesURL == "" || c.Role == RoleNode && c.TemplatesURL == c.NodeURL
}

func checkURL(v string) error {
	if path, ok := strings.CutPrefix(v, "unix:"); ok && filepath.IsAbs(path) {
		return nil
	}
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.User != nil || u.RawQuery != "" {
		return fmt.Errorf("%q is neither unix:/PATH nor https://HOST:PORT nor http://HOST:PORT", v)
	}
	return nil
}

func checkMonitorAddr(v string) error {
	if host, port, err := net.SplitHostPort(v); err != nil || host == "" || port == "" {
		return fmt.Errorf("%q is not HOST:PORT", v)
	}
	return nil
}
