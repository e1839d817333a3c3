package config

import (
	"errors"
	"fmt"
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

func (c *Config) checkServices() error {
	var errs []error
	switch {
	case c.NodeName == "":
		// Records say by the name where a Sandbox runs, so two Nodes must not share one.
		if c.Role == RoleNode && c.Database != "" && !c.Dev {
			errs = append(errs, errors.New("CLOUD_SANDBOX_NODE: it is not set, and other nodes may have records in this database too; set it to a name that no other node has, for example the name of this machine"))
		}
	case !nodeNamePattern.MatchString(c.NodeName):
		errs = append(errs, fmt.Errorf("CLOUD_SANDBOX_NODE: %q must be 1 to 63 of a-z, 0-9, '.' and '-', and begin and end with a letter or digit", c.NodeName))
	}
	if c.Role == "" && c.TemplatesURL != "" {
		errs = append(errs, errors.New("CLOUD_SANDBOX_TEMPLATES_URL: a server with all roles keeps its templates itself; unset it"))
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
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.User != nil || u.RawQuery != "" {
		return fmt.Errorf("%q is neither unix:/PATH nor http://HOST:PORT", v)
	}
	return nil
}
