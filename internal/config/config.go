// Package config turns flags and environment into one checked Config. It is
// the only package that reads the environment.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Config is what the operator decides. Load fills in every default; a Config
// made by hand has none.
type Config struct {
	// Addr is where the gateway listens, host:port. The host "localhost" means
	// both loopback addresses, so that every client finds it.
	Addr string
	// Data is the absolute path of the folder that keeps everything.
	Data string
	// Dev lets anyone mint tokens; it is only for a loopback Addr.
	Dev bool
	// Secret signs tokens, at least MinSecret bytes. In dev mode Load may leave
	// it empty; KeepSecret then fills it in.
	Secret []byte

	PoolMin int // idle Boots that each Pool keeps ready; 0 keeps none
	PoolMax int // idle Boots that a Pool never exceeds; 0 parks nothing

	SandboxImage string // OCI reference that the Template "base" is made of
	Egress       sandbox.NetworkPolicy
	LogLevel     slog.Level

	// Warnings are sentences to log once the logger exists.
	Warnings []string
}

// MinSecret is the least length of a signing secret in bytes: that of the
// SHA-256 that HS256 is made of.
const MinSecret = 32

// publishedSecret stands in old examples, so anyone can sign with it.
const publishedSecret = "cloud-sandbox-secret"

// Names of the flags that Load knows.
const (
	FlagAddr     = "addr"
	FlagData     = "data"
	FlagDev      = "dev"
	FlagLogLevel = "log-level"
)

// A setting is one thing that an operator may set.
type setting struct {
	flag  string // empty: environment only
	env   string
	apply func(*Config, string) error
}

var settings = []setting{
	{FlagAddr, "CLOUD_SANDBOX_ADDR", func(c *Config, v string) error { c.Addr = v; return nil }},
	{FlagData, "CLOUD_SANDBOX_DATA", func(c *Config, v string) (err error) { c.Data, err = filepath.Abs(v); return }},
	{FlagDev, "CLOUD_SANDBOX_DEV", func(c *Config, v string) (err error) { c.Dev, err = parseBool(v); return }},
	{FlagLogLevel, "CLOUD_SANDBOX_LOG_LEVEL", func(c *Config, v string) error { return parseLevel(v, &c.LogLevel) }},
	{"", "JWT_SECRET", func(c *Config, v string) error { c.Secret = []byte(v); return nil }},
	{"", "POOL_MIN_SIZE", func(c *Config, v string) (err error) { c.PoolMin, err = parseCount(v); return }},
	{"", "POOL_MAX_SIZE", func(c *Config, v string) (err error) { c.PoolMax, err = parseCount(v); return }},
	{"", "SANDBOX_IMAGE", func(c *Config, v string) error { c.SandboxImage = v; return nil }},
	{"", "CLOUD_SANDBOX_EGRESS", func(c *Config, v string) error { c.Egress = sandbox.NetworkPolicy(v); return nil }},
}

func defaults(getenv func(string) string) Config {
	return Config{
		Addr:         "localhost:8080",
		Data:         defaultData(getenv),
		PoolMin:      5,
		PoolMax:      50,
		SandboxImage: "python:3.11-slim",
		Egress:       sandbox.NetworkPublic,
		LogLevel:     slog.LevelInfo,
	}
}

// defaultData is the system's place for root and the user's own otherwise.
func defaultData(getenv func(string) string) string {
	if os.Geteuid() == 0 {
		return "/var/lib/cloud-sandbox"
	}
	if state := getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "cloud-sandbox")
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "cloud-sandbox")
	}
	return filepath.Join(os.TempDir(), "cloud-sandbox-"+strconv.Itoa(os.Geteuid()))
}

// Load returns the defaults, changed by the environment, changed by flags, and
// checked. flags holds only those that were given, by name without dashes; an
// environment variable that is empty counts as absent. The error names every
// problem, one a line.
func Load(flags map[string]string, getenv func(string) string) (Config, error) {
	c := defaults(getenv)
	var problems []error
	for _, s := range settings {
		name, value, given := s.env, getenv(s.env), getenv(s.env) != ""
		if v, ok := flags[s.flag]; ok && s.flag != "" {
			name, value, given = "--"+s.flag, v, true
		}
		if !given {
			continue
		}
		if err := s.apply(&c, value); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	}
	c.dropWeakDevSecret()
	return c, errors.Join(append(problems, c.Validate())...)
}

// dropWeakDevSecret makes dev mode start whatever JWT_SECRET says: a secret
// that cannot sign safely is not used, and the log says so.
func (c *Config) dropWeakDevSecret() {
	if c.Dev && len(c.Secret) > 0 && checkSecret(c.Secret) != nil {
		c.Secret = nil
		c.Warnings = append(c.Warnings, fmt.Sprintf("JWT_SECRET is shorter than %d bytes and is not used: dev mode signs with a secret of its own", MinSecret))
	}
}

// Validate reports every problem of c, one a line, or nil.
func (c *Config) Validate() error {
	return errors.Join(
		c.checkAddr(),
		c.checkData(),
		c.checkSecret(),
		c.checkPool(),
		c.checkEgress(),
		c.checkImage(),
	)
}

func (c *Config) checkAddr() error {
	host, port, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return fmt.Errorf("addr: %q is not host:port", c.Addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return fmt.Errorf("addr: the port %q is not a number from 0 to 65535", port)
	}
	if c.Dev && !loopback(host) {
		return fmt.Errorf("addr: dev mode gives a token to anyone who asks, so it listens on localhost only, not on %q; start without --dev and with a JWT_SECRET to serve others", c.Addr)
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func (c *Config) checkData() error {
	if !filepath.IsAbs(c.Data) {
		return fmt.Errorf("data: %q is not an absolute path", c.Data)
	}
	return nil
}

func (c *Config) checkSecret() error {
	if c.Dev && len(c.Secret) == 0 {
		return nil // KeepSecret makes one
	}
	return checkSecret(c.Secret)
}

func checkSecret(secret []byte) error {
	switch {
	case len(secret) == 0:
		return errors.New("JWT_SECRET: it is not set, and without it anyone's token or no one's would be valid; set it to at least 32 random bytes, for example from `openssl rand -hex 32`, or try things out on this machine with --dev")
	case string(secret) == publishedSecret:
		return fmt.Errorf("JWT_SECRET: %q is published, so anyone could sign tokens with it; set it to at least 32 random bytes, for example from `openssl rand -hex 32`", publishedSecret)
	case len(secret) < MinSecret:
		return fmt.Errorf("JWT_SECRET: it has %d bytes, and one shorter than %d can be guessed from a single token; make one with `openssl rand -hex 32`", len(secret), MinSecret)
	}
	return nil
}

func (c *Config) checkPool() error {
	switch {
	case c.PoolMin < 0 || c.PoolMax < 0:
		return errors.New("POOL_MIN_SIZE and POOL_MAX_SIZE: they must not be negative")
	case c.PoolMin > c.PoolMax:
		return fmt.Errorf("POOL_MIN_SIZE: %d is more than POOL_MAX_SIZE, %d", c.PoolMin, c.PoolMax)
	}
	return nil
}

func (c *Config) checkEgress() error {
	if !c.Egress.Valid() {
		return fmt.Errorf("CLOUD_SANDBOX_EGRESS: %q must be %q or %q", c.Egress, sandbox.NetworkPublic, sandbox.NetworkNone)
	}
	return nil
}

func (c *Config) checkImage() error {
	if c.SandboxImage == "" {
		return errors.New("SANDBOX_IMAGE: it is empty")
	}
	return nil
}

func parseBool(v string) (bool, error) {
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, fmt.Errorf("%q is neither true nor false", v)
	}
	return b, nil
}

// maxPool is far beyond what one machine can park and keeps a typing error
// from starting thousands.
const maxPool = 10_000

func parseCount(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > maxPool {
		return 0, fmt.Errorf("%q is not a whole number from 0 to %d", v, maxPool)
	}
	return n, nil
}

func parseLevel(v string, into *slog.Level) error {
	if err := into.UnmarshalText([]byte(v)); err != nil {
		return fmt.Errorf("%q is none of debug, info, warn and error", v)
	}
	return nil
}
