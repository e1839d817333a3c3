package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
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
	if c.Role == RoleNode && c.Cluster != "" && c.SessionManagerURL == "" {
		c.Warnings = append(c.Warnings, "CLOUD_SANDBOX_SESSION_MANAGER_URL is not set: this node asks the session-manager at the socket in its data folder; on a machine of its own, set it to the addresses of all session-managers, separated by commas")
	}
	if c.Role == RoleGateway && c.MonitorAddr != "" {
		c.Warnings = append(c.Warnings, "CLOUD_SANDBOX_MONITOR_ADDR is not used: the gateway serves monitoring on the port for clients")
	}
	if c.Role != RoleNode && c.fence != nil && *c.fence != 0 {
		c.Warnings = append(c.Warnings, "CLOUD_SANDBOX_FENCE_SECONDS is for the program node and is not used")
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
		far := slices.ContainsFunc(c.SessionManagerURLs(), func(url string) bool { return !strings.HasPrefix(url, "unix:") })
		if c.Role == RoleNode && (c.Database != "" || far) && !c.Dev && c.Cluster == "" {
			errs = append(errs, errors.New("CLOUD_SANDBOX_NODE: it is not set, and other nodes may have records in this database too; set it to a name that no other node has, for example the name of this machine"))
		}
	case !nodeNamePattern.MatchString(c.NodeName):
		errs = append(errs, fmt.Errorf("CLOUD_SANDBOX_NODE: %q must be 1 to 63 of a-z, 0-9, '.' and '-', and begin and end with a letter or digit", c.NodeName))
	}
	if c.Role == RoleNode && c.Cluster != "" && c.Database != "" {
		errs = append(errs, errors.New("CLOUD_SANDBOX_DATABASE: a node of a cluster has no access to the database, so that a stolen node reads no records; unset it, and set CLOUD_SANDBOX_SESSION_MANAGER_URL to the addresses of the session-managers"))
	}
	if c.Role != RoleNode && len(c.SessionManagerURLs()) > 1 {
		errs = append(errs, errors.New("CLOUD_SANDBOX_SESSION_MANAGER_URL: only a node takes several addresses; a session-manager takes its own, and a gateway over PostgreSQL none"))
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
	urls := []addressOf{
		{"CLOUD_SANDBOX_SCHEDULER_URL", c.SchedulerURL},
		{"CLOUD_SANDBOX_NODE_URL", c.NodeURL},
		{"CLOUD_SANDBOX_TEMPLATES_URL", c.TemplatesURL},
	}
	for _, url := range c.SessionManagerURLs() {
		urls = append(urls, addressOf{"CLOUD_SANDBOX_SESSION_MANAGER_URL", url})
	}
	for _, u := range urls {
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

// usualFence is FenceAfter of a node of a cluster whose Snapshots are copied to where other
// nodes find them. A database may be away for a minute before Sandboxes stop.
const usualFence = 90 * time.Second

// FenceAfter is how long after the last renewal of its lease a node cuts its Sandboxes off,
// so that they can start elsewhere; zero: never.
func (c *Config) FenceAfter() time.Duration {
	switch {
	case c.Role != RoleNode:
		return 0
	case c.fence != nil:
		return *c.fence
	case c.Cluster != "" && c.Blobs.Wanted():
		return usualFence
	}
	return 0
}

// addressOf is the address in a variable.
type addressOf struct{ name, url string }

// SessionManagerURLs are the addresses in SessionManagerURL. A Node asks the session
// managers there which of them leads, and for all records that it needs.
func (c *Config) SessionManagerURLs() []string {
	if c.SessionManagerURL == "" {
		return nil
	}
	return strings.Split(c.SessionManagerURL, ",")
}

// KeepsTemplates reports whether the process uses the Templates in the data folder of
// its own machine. If TemplatesURL is empty, they are the Templates of this machine. If
// it names this Node, they are the Templates of the whole installation.
func (c *Config) KeepsTemplates() bool {
	return c.TemplatesURL == "" || c.Role == RoleNode && c.TemplatesURL == c.NodeURL
}

func checkURLs(v string) error {
	for _, url := range strings.Split(v, ",") {
		if err := checkURL(url); err != nil {
			return err
		}
	}
	return nil
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
