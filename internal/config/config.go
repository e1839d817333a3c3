// Package config turns flags and environment into one checked Config. It is
// the only package that reads the environment.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/oidc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// Config is the operator's configuration. Load fills in every default; a Config made by
// hand has none.
type Config struct {
	// Role is the only role of the process; empty: all roles.
	Role string
	// Version is the version of the program, which sets it itself.
	Version string
	// Addr is where the gateway, or the process of another role, listens, host:port. The
	// host "localhost" means both loopback addresses, so that every client finds it.
	Addr string
	// Data is the absolute path of the data folder.
	Data string
	// Database is the address of a PostgreSQL database, postgres://...; empty: a SQLite
	// file under Data.
	Database string
	// Dev lets anyone mint tokens; it is only for a loopback Addr.
	Dev bool
	// DevFailpoint is a file by which tests crash a server in dev mode at a step; empty:
	// never.
	DevFailpoint string
	// Secret signs tokens, at least MinSecret bytes; SecretFile is the absolute path of a
	// file with it, for ReadSecrets. In dev mode Load may leave both empty; KeepSecret
	// then fills Secret in.
	Secret     []byte
	SecretFile string
	// GuestSeed derives the tokens of guests, at least MinSecret bytes; GuestSeedFile is
	// the absolute path of a file with it, for ReadSecrets. Both empty: one is kept in the
	// data folder.
	GuestSeed     []byte
	GuestSeedFile string

	PoolMin int // idle Boots that each Pool keeps ready; 0: none
	PoolMax int // idle Boots of a Pool at most; 0 parks none
	// SnapshotCache is how many bytes of Snapshots stay unpacked for fast starts. Unused
	// ones are packed after SnapshotPackAfter.
	SnapshotCache     int64
	SnapshotPackAfter time.Duration
	// BuildCache is how many bytes of build steps are cached for each Tenant; zero: none.
	BuildCache int64
	// SpareSentries is how many empty pre-warmed sentries wait for the next starts.
	SpareSentries int
	// OldestGVisor is the oldest version of gVisor that resumes saved memory; empty: any.
	OldestGVisor string
	// Blobs configures copies of Snapshots.
	Blobs Blobs
	// StartWait is the longest expected wait of a request to start or resume a Sandbox.
	StartWait time.Duration

	SandboxImage string // OCI reference for the Template "base"
	// InexactImages allows an image of another distribution or version if a registry does
	// not answer.
	InexactImages bool
	Egress        sandbox.NetworkPolicy
	// EgressOpen lists addresses that Sandboxes may reach although they are not public,
	// each an address or a CIDR, optionally with ports.
	EgressOpen []string
	// Quota bounds each Tenant without a quota of its own.
	Quota sandbox.Quota
	// AuditLife is how long the audit log is kept; zero: forever.
	AuditLife time.Duration
	// UsageLife is how long usage can be queried; zero: forever. Prices are its cost.
	UsageLife time.Duration
	Prices    sandbox.Prices
	// Issuers are the identity providers whose tokens are accepted.
	Issuers []oidc.Issuer
	// NameServers answer Sandboxes' DNS queries instead of the host's, each ADDRESS:PORT;
	// at most MaxNameServers.
	NameServers []string
	// RateLimits bound the request rate of each caller. Gateways with the same Redis count
	// requests together; nil: each by itself.
	RateLimits ratelimit.Rules
	Redis      *ratelimit.Address
	// TrustedProxies are proxies whose statement of a client's address is believed.
	TrustedProxies []netip.Prefix
	LogLevel       slog.Level

	// Domain is where clients reach ports of Sandboxes, as PORT-ID.Domain; it may have a
	// port. Empty: any name.
	Domain string
	// TLSCert and TLSKey are absolute paths of files in PEM; empty: no TLS.
	TLSCert, TLSKey string
	ACME            ACME // instead of TLSCert and TLSKey
	// DevTLS makes the server issue certificates for this machine's names from its own
	// authority, instead of either; only for dev mode.
	DevTLS bool
	// E2BTemplates maps names that E2B's clients use, and images that they build from,
	// NAME:* for any tag, to Templates. It applies if no Template has the name.
	E2BTemplates map[string]string
	// E2BSecure makes the services inside E2B clients' Sandboxes require a token, even if
	// a client does not ask for it.
	E2BSecure bool

	// CPU limits the CPU features that sandboxes see.
	CPU sandbox.CPULimit

	// NodeName is the name of the Node, for the role node. Load fills in DefaultNode, unless
	// Cluster is set: then empty means the name in its certificate.
	NodeName string
	// Cluster is the absolute path of the folder with the certificate of this role, for
	// calls between machines; empty: none. MonitorAddr is then where monitoring is served
	// without TLS, HOST:PORT; empty: on the role's socket alone.
	Cluster, MonitorAddr string
	// ServiceSecret signs the calls between roles, at least MinSecret bytes;
	// ServiceSecretFile is the absolute path of a file with it, for ReadSecrets. Both
	// empty: one is kept in the data folder.
	ServiceSecret     []byte
	ServiceSecretFile string
	// Addresses of roles, unix:/PATH, https://HOST:PORT with Cluster, or http://HOST:PORT
	// without; empty: their sockets in the data folder. For a Node, SessionManagerURL may
	// list several with commas; see SessionManagerURLs.
	SessionManagerURL, SchedulerURL, NodeURL string
	// TemplatesURL is the address of the Node that keeps the Templates of the
	// installation; empty: they are in the data folder.
	// TemplatesNode is the name of that Node, which its certificate must have.
	TemplatesURL, TemplatesNode string
	// fence is FenceAfter, if it was set.
	fence *time.Duration

	// SecretsKeys are the master keys of Tenants' secrets, in hexadecimal, the current
	// one first; SecretsKeyFile is the absolute path of a file with them. Both empty:
	// secrets are off, or in dev mode use one key kept under Data.
	SecretsKeys, SecretsKeyFile string
	// SecretsRoots is the absolute path of a file in PEM with extra authorities for hosts
	// that get secrets, beside the system's; empty: none.
	SecretsRoots string

	// CACerts is the absolute path of a file in PEM with authorities that every Sandbox
	// trusts, beside its Template's; empty: none.
	CACerts string

	// UpstreamProxy is the URL of an upstream.Proxy for Sandboxes' connections; empty:
	// none.
	UpstreamProxy string

	// Webhooks are URLs that receive events; WebhookSecret signs them, at least MinSecret
	// bytes. WebhookEvents are the kinds; nil: the security kinds.
	Webhooks      []string
	WebhookEvents []sandbox.EventKind
	WebhookSecret []byte

	// Warnings are sentences to log once a logger exists.
	Warnings []string
}

// MinSecret is the least length of a signing secret in bytes: the output size of SHA-256,
// as HS256 requires.
const MinSecret = 32

// publishedSecret appears in old examples, so anyone can sign with it.
const publishedSecret = "cloud-sandbox-secret"

// Names of the flags that Load knows.
const (
	FlagAddr     = "addr"
	FlagData     = "data"
	FlagDev      = "dev"
	FlagTLS      = "tls"
	FlagLogLevel = "log-level"
)

// A setting is one option that an operator may set.
type setting struct {
	flag  string // empty: environment only
	env   string
	apply func(*Config, string) error
}

var settings = []setting{
	{FlagAddr, "CLOUD_SANDBOX_ADDR", func(c *Config, v string) error { c.Addr = v; return nil }},
	{FlagData, "CLOUD_SANDBOX_DATA", func(c *Config, v string) (err error) { c.Data, err = filepath.Abs(v); return }},
	{"", "CLOUD_SANDBOX_DATABASE", func(c *Config, v string) error { c.Database = v; return checkDatabase(v) }},
	{FlagDev, "CLOUD_SANDBOX_DEV", func(c *Config, v string) (err error) { c.Dev, err = parseBool(v); return }},
	{FlagLogLevel, "CLOUD_SANDBOX_LOG_LEVEL", func(c *Config, v string) error { return parseLevel(v, &c.LogLevel) }},
	{"", "CLOUD_SANDBOX_NODE", func(c *Config, v string) error { c.NodeName = v; return nil }},
	{"", "CLOUD_SANDBOX_CLUSTER", func(c *Config, v string) (err error) { c.Cluster, err = filepath.Abs(v); return }},
	{"", "CLOUD_SANDBOX_MONITOR_ADDR", func(c *Config, v string) error { c.MonitorAddr = v; return checkMonitorAddr(v) }},
	{"", "CLOUD_SANDBOX_SERVICE_SECRET", func(c *Config, v string) error { c.ServiceSecret = []byte(v); return nil }},
	{"", "CLOUD_SANDBOX_SERVICE_SECRET_FILE", func(c *Config, v string) (err error) { c.ServiceSecretFile, err = filepath.Abs(v); return }},
	{"", "CLOUD_SANDBOX_GUEST_SEED", func(c *Config, v string) error { c.GuestSeed = []byte(v); return nil }},
	{"", "CLOUD_SANDBOX_GUEST_SEED_FILE", func(c *Config, v string) (err error) { c.GuestSeedFile, err = filepath.Abs(v); return }},
	{"", "CLOUD_SANDBOX_TEMPLATES_NODE", func(c *Config, v string) error { c.TemplatesNode = v; return nil }},
	{"", "CLOUD_SANDBOX_TEMPLATES_URL", func(c *Config, v string) error { c.TemplatesURL = v; return checkURL(v) }},
	{"", "CLOUD_SANDBOX_SESSION_MANAGER_URL", func(c *Config, v string) error { c.SessionManagerURL = v; return checkURLs(v) }},
	{"", "CLOUD_SANDBOX_SCHEDULER_URL", func(c *Config, v string) error { c.SchedulerURL = v; return checkURL(v) }},
	{"", "CLOUD_SANDBOX_NODE_URL", func(c *Config, v string) error { c.NodeURL = v; return checkURL(v) }},
	{"", "CLOUD_SANDBOX_FENCE_SECONDS", func(c *Config, v string) (err error) { c.fence, err = parseFence(v); return }},
	{"", "JWT_SECRET", func(c *Config, v string) error { c.Secret = []byte(v); return nil }},
	{"", "JWT_SECRET_FILE", func(c *Config, v string) (err error) { c.SecretFile, err = filepath.Abs(v); return }},
	{"", "POOL_MIN_SIZE", func(c *Config, v string) (err error) { c.PoolMin, err = parseCount(v, maxPool); return }},
	{"", "POOL_MAX_SIZE", func(c *Config, v string) (err error) { c.PoolMax, err = parseCount(v, maxPool); return }},
	{"", "START_WAIT_SECONDS", func(c *Config, v string) (err error) { c.StartWait, err = parseStartWait(v); return }},
	{"", "SPARE_SENTRIES", func(c *Config, v string) (err error) { c.SpareSentries, err = parseCount(v, maxPrewarmed); return }},
	{"", "CLOUD_SANDBOX_CPU_FEATURES", func(c *Config, v string) (err error) { c.CPU, err = sandbox.ParseCPULimit(v); return }},
	{"", "OLDEST_GVISOR", func(c *Config, v string) error { c.OldestGVisor = v; return checkVersion(v) }},
	{"", "SNAPSHOT_CACHE_MB", func(c *Config, v string) (err error) { c.SnapshotCache, err = parseMegabytes(v); return }},
	{"", "SNAPSHOT_PACK_SECONDS", func(c *Config, v string) (err error) { c.SnapshotPackAfter, err = parsePackAfter(v); return }},
	{"", "BUILD_CACHE_MB", func(c *Config, v string) (err error) { c.BuildCache, err = parseMegabytes(v); return }},
	{"", "SNAPSHOT_DISK_MB", func(c *Config, v string) (err error) { c.Blobs.DiskBytes, err = parseMegabytes(v); return }},
	{"", "SNAPSHOT_BACKLOG_MB_PER_SECOND", func(c *Config, v string) (err error) { c.Blobs.BacklogRate, err = parseMegabytes(v); return }},
	{"", "CLOUD_SANDBOX_BLOBS", func(c *Config, v string) error { return c.Blobs.place(v) }},
	{"", "CLOUD_SANDBOX_BLOBS_KEY", func(c *Config, v string) (err error) { c.Blobs.Keys, err = parseBlobsKeys(v); return }},
	{"", "CLOUD_SANDBOX_BLOBS_KEY_FILE", func(c *Config, v string) (err error) { c.Blobs.KeyFile, err = filepath.Abs(v); return }},
	{"", "CLOUD_SANDBOX_S3_ENDPOINT", func(c *Config, v string) error { c.Blobs.Endpoint = v; return checkEndpoint(v) }},
	{"", "CLOUD_SANDBOX_S3_REGION", func(c *Config, v string) error { c.Blobs.Region = v; return nil }},
	{"", "CLOUD_SANDBOX_S3_ACCESS_KEY", func(c *Config, v string) error { c.Blobs.AccessKey = v; return nil }},
	{"", "CLOUD_SANDBOX_S3_SECRET_KEY", func(c *Config, v string) error { c.Blobs.SecretKey = v; return nil }},
	{"", "CLOUD_SANDBOX_S3_CREDENTIALS_FILE", func(c *Config, v string) (err error) { c.Blobs.CredentialsFile, err = filepath.Abs(v); return }},
	{"", "SANDBOX_IMAGE", func(c *Config, v string) error { c.SandboxImage = v; return nil }},
	{"", "CLOUD_SANDBOX_INEXACT_IMAGES", func(c *Config, v string) (err error) { c.InexactImages, err = parseBool(v); return }},
	{"", "RATE_LIMITS", func(c *Config, v string) (err error) { c.RateLimits, c.Redis, err = ratelimit.Parse(v); return }},
	{"", "CLOUD_SANDBOX_TRUSTED_PROXIES", func(c *Config, v string) (err error) { c.TrustedProxies, err = parseProxies(v); return }},
	{"", "CLOUD_SANDBOX_DOMAIN", func(c *Config, v string) (err error) { c.Domain, err = parseDomain(v); return }},
	{"", "CLOUD_SANDBOX_TLS_CERT", func(c *Config, v string) (err error) { c.TLSCert, err = filepath.Abs(v); return }},
	{"", "CLOUD_SANDBOX_TLS_KEY", func(c *Config, v string) (err error) { c.TLSKey, err = filepath.Abs(v); return }},
	{FlagTLS, "CLOUD_SANDBOX_DEV_TLS", func(c *Config, v string) (err error) { c.DevTLS, err = parseBool(v); return }},
	{"", "CLOUD_SANDBOX_TLS_ACME", func(c *Config, v string) (err error) { c.ACME.Hosts, err = parseACMEHosts(v); return }},
	{"", "CLOUD_SANDBOX_TLS_ACME_EMAIL", func(c *Config, v string) error { c.ACME.Email = v; return checkEmail(v) }},
	{"", "CLOUD_SANDBOX_TLS_ACME_DIRECTORY", func(c *Config, v string) error { c.ACME.Directory = v; return checkDirectory(v) }},
	{"", "CLOUD_SANDBOX_E2B_TEMPLATES", func(c *Config, v string) (err error) { err = addAliases(c.E2BTemplates, v); return }},
	{"", "CLOUD_SANDBOX_E2B_SECURE", func(c *Config, v string) (err error) { c.E2BSecure, err = parseBool(v); return }},
	{"", "CLOUD_SANDBOX_SECRETS_KEY", func(c *Config, v string) error { c.SecretsKeys = v; return nil }},
	{"", "CLOUD_SANDBOX_SECRETS_KEY_FILE", func(c *Config, v string) (err error) { c.SecretsKeyFile, err = filepath.Abs(v); return }},
	{"", "CLOUD_SANDBOX_DEV_FAILPOINT", func(c *Config, v string) (err error) { c.DevFailpoint, err = filepath.Abs(v); return }},
	{"", "CLOUD_SANDBOX_SECRETS_ROOTS", func(c *Config, v string) (err error) { c.SecretsRoots, err = filepath.Abs(v); return }},
	{"", "CLOUD_SANDBOX_CA_CERTS", func(c *Config, v string) (err error) { c.CACerts, err = filepath.Abs(v); return }},
	{"", upstreamProxy, func(c *Config, v string) error { c.UpstreamProxy = v; _, err := upstream.Parse(v); return err }},
	{"", "CLOUD_SANDBOX_EGRESS", func(c *Config, v string) error { c.Egress = sandbox.NetworkPolicy(v); return nil }},
	{"", "CLOUD_SANDBOX_QUOTA", func(c *Config, v string) (err error) { c.Quota, err = sandbox.ParseQuota(v); return }},
	{"", "AUDIT_DAYS", func(c *Config, v string) (err error) { c.AuditLife, err = parseDays(v); return }},
	{"", "USAGE_DAYS", func(c *Config, v string) (err error) { c.UsageLife, err = parseDays(v); return }},
	{"", "CLOUD_SANDBOX_PRICES", func(c *Config, v string) (err error) { c.Prices, err = sandbox.ParsePrices(v); return }},
	{"", "CLOUD_SANDBOX_OIDC", func(c *Config, v string) (err error) { c.Issuers, err = oidc.Parse(v); return }},
	{"", "CLOUD_SANDBOX_EGRESS_OPEN", func(c *Config, v string) (err error) { c.EgressOpen, err = parseOpen(v); return }},
	{"", "CLOUD_SANDBOX_WEBHOOKS", func(c *Config, v string) (err error) { c.Webhooks, err = parseWebhooks(v); return }},
	{"", "CLOUD_SANDBOX_WEBHOOK_EVENTS", func(c *Config, v string) (err error) { c.WebhookEvents, err = parseEventKinds(v); return }},
	{"", "CLOUD_SANDBOX_WEBHOOK_SECRET", func(c *Config, v string) error { c.WebhookSecret = []byte(v); return nil }},
	{"", "CLOUD_SANDBOX_NAMESERVERS", func(c *Config, v string) (err error) { c.NameServers, err = parseNameServers(v); return }},
}

// MaxNameServers is how many name servers are tried in turn.
const MaxNameServers = 3

func parseOpen(v string) ([]string, error) {
	var out []string
	for text := range strings.SplitSeq(v, ",") {
		rule, err := sandbox.ParseNetworkRule(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		if rule.Any || rule.Domain != "" {
			return nil, fmt.Errorf("%q: name an address or a CIDR, perhaps with ports", text)
		}
		out = append(out, rule.String())
	}
	return out, nil
}

func parseNameServers(v string) ([]string, error) {
	const portDNS = 53
	var out []string
	for text := range strings.SplitSeq(v, ",") {
		text = strings.TrimSpace(text)
		at, err := netip.ParseAddrPort(text)
		if addr, plainErr := netip.ParseAddr(text); plainErr == nil {
			at, err = netip.AddrPortFrom(addr, portDNS), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q is not an address, or ADDRESS:PORT", text)
		}
		out = append(out, at.String())
	}
	if len(out) > MaxNameServers {
		return nil, fmt.Errorf("there may be at most %d", MaxNameServers)
	}
	return out, nil
}

// maxProxies bounds the comparisons per request.
const maxProxies = 64

// parseProxies reads addresses and CIDRs separated by commas.
func parseProxies(v string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for text := range strings.SplitSeq(v, ",") {
		text = strings.TrimSpace(text)
		p, err := netip.ParsePrefix(text)
		if a, plainErr := netip.ParseAddr(text); plainErr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
		}
		switch {
		case err != nil || p.Addr().Is4In6():
			return nil, fmt.Errorf("%q is neither an address nor a CIDR such as 10.0.0.0/8", text)
		case p.Bits() == 0:
			return nil, fmt.Errorf("%q contains every address, and a client could then claim any address: name your proxies", text)
		}
		out = append(out, p.Masked())
	}
	if len(out) > maxProxies {
		return nil, fmt.Errorf("there may be at most %d", maxProxies)
	}
	return out, nil
}

func defaults(getenv func(string) string) Config {
	return Config{
		Addr:      "localhost:8080",
		Data:      defaultData(getenv),
		PoolMin:   5,
		PoolMax:   50,
		StartWait: 90 * time.Second,

		Blobs:         Blobs{Endpoint: "https://s3.amazonaws.com", Region: "us-east-1", BacklogRate: defaultBacklogRate},
		SnapshotCache: 4 << 30, BuildCache: 8 << 30, SnapshotPackAfter: time.Hour, SpareSentries: 2,

		SandboxImage: DefaultSandboxImage,
		Egress:       sandbox.NetworkPublic,
		E2BTemplates: map[string]string{
			"code-interpreter-v1": "base", "e2bdev/base": "base", "e2bdev/code-interpreter": "code-interpreter-v1", "mcp-gateway": "base",
			"debian:*": "base", "ubuntu:*": "base", "python:*": "base", "node:*": "base",
		},
		RateLimits: ratelimit.Defaults(),
		LogLevel:   slog.LevelInfo,
		AuditLife:  365 * day,
		UsageLife:  800 * day,
	}
}

// DefaultSandboxImage is the image of the Template base. The base that a release includes
// replaces it.
const DefaultSandboxImage = "python:3.11-slim"

// defaultData is the system's folder for root and the user's own otherwise.
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

// Load returns the defaults, overridden by the environment, then by flags, and checked.
// flags holds only the given ones, by name without dashes. An empty environment variable
// counts as absent; environ has each as NAME=VALUE. A variable that looks like a
// misspelled setting is a problem. The error names every problem, one a line.
func Load(flags map[string]string, environ []string) (Config, error) {
	return load(defaults(lookup(environ)), flags, environ)
}

// lookup returns an os.Getenv over environ.
func lookup(environ []string) func(string) string {
	values := make(map[string]string, len(environ))
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}

func load(c Config, flags map[string]string, environ []string) (Config, error) {
	getenv := lookup(environ)
	warnings, err := checkNames(environ)
	c.Warnings = append(c.Warnings, warnings...)
	problems := []error{err}
	for _, s := range settings {
		if s.flag == FlagAddr {
			s.env = addrVariable(c.Role)
		}
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
	c.warnCluster()
	c.dropWeakDevSecret()
	problems = append(problems, c.Validate())
	if c.Cluster == "" {
		c.NodeName = cmp.Or(c.NodeName, DefaultNode)
	}
	return c, errors.Join(problems...)
}

// dropWeakDevSecret lets dev mode start with any JWT_SECRET: a secret that cannot sign
// safely is dropped with a warning.
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
		c.checkServices(),
		c.checkPool(),
		c.checkEgress(),
		c.checkImage(),
		c.checkTLS(),
		c.checkSecretsKeys(),
		c.checkSecretFiles(),
		c.checkFailpoint(),
		c.checkWebhooks(),
		c.Blobs.check(c.Role),
	)
}

func (c *Config) checkFailpoint() error {
	if c.DevFailpoint != "" && !c.Dev {
		return errors.New("CLOUD_SANDBOX_DEV_FAILPOINT: it kills the server for tests, so it needs --dev; unset it")
	}
	return nil
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
	if c.Role != "" && c.Role != RoleGateway {
		return nil // it signs nothing for users
	}
	if len(c.Secret) == 0 && (c.Dev || c.SecretFile != "") {
		return nil // KeepSecret makes one, or ReadSecrets reads it
	}
	return checkSecret(c.Secret)
}

func checkSecret(secret []byte) error {
	switch {
	case len(secret) == 0:
		return errors.New("JWT_SECRET: it is not set, and the server cannot check tokens without it; set it to at least 32 random bytes, for example from `openssl rand -hex 32`, or try things out on this machine with --dev")
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
	p, err := sandbox.ParseNetworkPolicy(string(c.Egress))
	if err != nil {
		return fmt.Errorf("CLOUD_SANDBOX_EGRESS: %w", err)
	}
	c.Egress = p
	return nil
}

func (c *Config) checkTLS() error {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return errors.New("CLOUD_SANDBOX_TLS_CERT and CLOUD_SANDBOX_TLS_KEY: set both, or neither")
	}
	switch {
	case c.DevTLS && !c.Dev:
		return errors.New("--tls: it certifies names of this machine for dev mode, so it needs --dev; set CLOUD_SANDBOX_TLS_CERT and CLOUD_SANDBOX_TLS_KEY to serve others")
	case c.DevTLS && (c.TLSCert != "" || len(c.ACME.Hosts) > 0):
		return errors.New("--tls: CLOUD_SANDBOX_TLS_CERT or CLOUD_SANDBOX_TLS_ACME brings a certificate already; leave out one of the two")
	}
	return c.ACME.check(c.TLSCert != "")
}

func (c *Config) checkSecretsKeys() error {
	if c.SecretsKeys != "" && c.SecretsKeyFile != "" {
		return errors.New("CLOUD_SANDBOX_SECRETS_KEY and CLOUD_SANDBOX_SECRETS_KEY_FILE: set one of them")
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

var (
	domainPattern = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?(:[0-9]{1,5})?$`)
	// A name that E2B's clients use, or an image, of any tag with "*".
	imagePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._/:-]*(:[A-Za-z0-9._-]+|:\*)?$`)
	aliasPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(:[a-z0-9._-]+)?$`)
)

func parseDomain(v string) (string, error) {
	const maxDomain = 190 // leaves space in a name for a port and an ID
	if len(v) > maxDomain || !domainPattern.MatchString(v) {
		return "", fmt.Errorf("%q is not a domain, in small letters, with or without :PORT", v)
	}
	return v, nil
}

// addAliases adds NAME=TEMPLATE, joined by commas, to the defaults; NAME= removes one.
func addAliases(all map[string]string, v string) error {
	for pair := range strings.SplitSeq(v, ",") {
		name, template, ok := strings.Cut(strings.TrimSpace(pair), "=")
		switch {
		case !ok || !imagePattern.MatchString(name) || template != "" && !aliasPattern.MatchString(template):
			return fmt.Errorf("%q is not NAME=TEMPLATE", pair)
		case template == "":
			delete(all, name)
		default:
			all[name] = template
		}
	}
	return nil
}

const day = 24 * time.Hour

func parseDays(v string) (time.Duration, error) {
	const most = 36_500
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%q is not a whole number of days from 0 to %d", v, most)
	}
	return time.Duration(n) * day, nil
}

// maxPool bounds the size of a Pool. It is far above the number of Boots that one
// machine can park, and rejects a mistyped size.
const maxPool = 10_000

// maxPrewarmed bounds pre-warmed sentries.
const maxPrewarmed = 64

func parseCount(v string, most int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%q is not a whole number from 0 to %d", v, most)
	}
	return n, nil
}

func parseMegabytes(v string) (int64, error) {
	const most = 1 << 30
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%q is not a whole number of megabytes, 0 or more", v)
	}
	return n << 20, nil
}

func parsePackAfter(v string) (time.Duration, error) {
	const most = 365 * 24 * 60 * 60
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%q is not a whole number of seconds from 1 to %d", v, most)
	}
	return time.Duration(n) * time.Second, nil
}

// maxStartWait bounds starts and resumes in all.
const maxStartWait = 120

func parseStartWait(v string) (time.Duration, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > maxStartWait {
		return 0, fmt.Errorf("%q is not a whole number of seconds from 1 to %d", v, maxStartWait)
	}
	return time.Duration(n) * time.Second, nil
}

func parseFence(v string) (*time.Duration, error) {
	const least, most = int(sandbox.MinFenceAfter / time.Second), int(sandbox.MaxFenceAfter / time.Second)
	n, err := strconv.Atoi(v)
	if err != nil || n != 0 && (n < least || n > most) {
		return nil, fmt.Errorf("%q is neither 0 nor a whole number of seconds from %d to %d", v, least, most)
	}
	after := time.Duration(n) * time.Second
	return &after, nil
}

func checkVersion(v string) error {
	if !semver.IsValid(v) {
		return fmt.Errorf("%q is not a version as `cloud-sandbox builds` shows them, v0.0.0-20260905035102-160fafc42237 for example", v)
	}
	return nil
}

func parseLevel(v string, into *slog.Level) error {
	if err := into.UnmarshalText([]byte(v)); err != nil {
		return fmt.Errorf("%q is not debug, info, warn or error", v)
	}
	return nil
}
