package config

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/certs"
)

const longSecret = "0123456789abcdef0123456789abcdef"

func env(pairs ...string) []string {
	var environ []string
	for i := 0; i < len(pairs); i += 2 {
		environ = append(environ, pairs[i]+"="+pairs[i+1])
	}
	return environ
}

func TestLoadDefaults(t *testing.T) {
	c, err := Load(map[string]string{"dev": "true"}, env())
	if err != nil {
		t.Fatal(err)
	}
	if c.Addr != "localhost:8080" || c.PoolMin != 5 || c.PoolMax != 50 || c.StartWait.Seconds() != 90 || c.SandboxImage != "python:3.11-slim" || c.Egress != "public" || !c.Dev || c.AuditLife != 365*day {
		t.Errorf("defaults = %+v", c)
	}
	if c.SnapshotCache != 4<<30 || c.SnapshotPackAfter.Hours() != 1 || c.BuildCache != 8<<30 {
		t.Errorf("snapshots: %d bytes, %v, and %d of builds", c.SnapshotCache, c.SnapshotPackAfter, c.BuildCache)
	}
	if !filepath.IsAbs(c.Data) {
		t.Errorf("data = %q", c.Data)
	}
}

func TestLoadFlagBeatsEnvironment(t *testing.T) {
	c, err := Load(
		map[string]string{FlagAddr: "127.0.0.1:1", FlagDev: "true", FlagLogLevel: "debug"},
		env("CLOUD_SANDBOX_ADDR", "127.0.0.1:2", "POOL_MIN_SIZE", "0", "POOL_MAX_SIZE", "0", "CLOUD_SANDBOX_EGRESS", "none", "START_WAIT_SECONDS", "7", "AUDIT_DAYS", "30"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Addr != "127.0.0.1:1" || c.PoolMax != 0 || c.StartWait.Seconds() != 7 || c.Egress != "none" || c.LogLevel.String() != "DEBUG" || c.AuditLife != 30*day {
		t.Errorf("config = %+v", c)
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		flags map[string]string
		env   []string
		want  []string // every one stands in the error
	}{
		{"no secret", nil, nil, []string{"JWT_SECRET: it is not set"}},
		{"published secret", nil, []string{"JWT_SECRET", "cloud-sandbox-secret"}, []string{"is published"}},
		{"webhooks without a secret", nil, []string{"CLOUD_SANDBOX_WEBHOOKS", "https://a.example/x"}, []string{"CLOUD_SANDBOX_WEBHOOK_SECRET: it signs", "openssl rand -hex 32"}},
		{"a secret for no webhooks", nil, []string{"CLOUD_SANDBOX_WEBHOOK_SECRET", longSecret}, []string{"set both or neither"}},
		{"a webhook in the clear", nil, []string{"CLOUD_SANDBOX_WEBHOOKS", "https://a.example,http://b.example/x", "CLOUD_SANDBOX_WEBHOOK_SECRET", longSecret}, []string{"the URL number 2 is not https"}},
		{"a webhook with a password", nil, []string{"CLOUD_SANDBOX_WEBHOOKS", "https://me:pw@a.example/"}, []string{"the URL number 1"}},
		{"many webhooks", nil, []string{"CLOUD_SANDBOX_WEBHOOKS", "https://a.example,https://b.example,https://c.example,https://d.example,https://e.example"}, []string{"at most 4"}},
		{"a webhook twice", nil, []string{"CLOUD_SANDBOX_WEBHOOKS", "https://a.example/x,https://a.example/x"}, []string{"the URL number 2 is listed twice"}},
		{"an event unknown", nil, []string{"CLOUD_SANDBOX_WEBHOOK_EVENTS", "sandbox.ended,sandbox.gone"}, []string{`no type of event "sandbox.gone"`, "snapshot.deleted", `"sandbox.*"`}},
		{"events for no webhooks", nil, []string{"CLOUD_SANDBOX_WEBHOOK_EVENTS", "*"}, []string{"CLOUD_SANDBOX_WEBHOOK_EVENTS: it selects"}},
		{"ACME for all names", nil, []string{"CLOUD_SANDBOX_TLS_ACME", "a.example,*.a.example"}, []string{"CLOUD_SANDBOX_TLS_ACME", `"*.a.example"`, "DNS challenge", "CLOUD_SANDBOX_TLS_CERT"}},
		{"ACME for an address", nil, []string{"CLOUD_SANDBOX_TLS_ACME", "192.0.2.1:443"}, []string{`"192.0.2.1:443" is not a public host name`}},
		{"ACME for no domain", nil, []string{"CLOUD_SANDBOX_TLS_ACME", "localhost"}, []string{`"localhost" is not a public host name`}},
		{"ACME for one twice", nil, []string{"CLOUD_SANDBOX_TLS_ACME", "a.example,A.example"}, []string{`"a.example" is listed twice`}},
		{"ACME beside files", nil, []string{"CLOUD_SANDBOX_TLS_ACME", "a.example", "CLOUD_SANDBOX_TLS_CERT", "/c", "CLOUD_SANDBOX_TLS_KEY", "/k"}, []string{"CLOUD_SANDBOX_TLS_ACME and CLOUD_SANDBOX_TLS_CERT are both set"}},
		{"ACME without hosts", nil, []string{"CLOUD_SANDBOX_TLS_ACME_EMAIL", "a@a.example"}, []string{"is set without CLOUD_SANDBOX_TLS_ACME"}},
		{"ACME in the clear", nil, []string{"CLOUD_SANDBOX_TLS_ACME", "a.example", "CLOUD_SANDBOX_TLS_ACME_DIRECTORY", "http://ca.example/dir"}, []string{"CLOUD_SANDBOX_TLS_ACME_DIRECTORY: it is not https://"}},
		{"ACME and no address", nil, []string{"CLOUD_SANDBOX_TLS_ACME", "a.example", "CLOUD_SANDBOX_TLS_ACME_EMAIL", "Ann <a@a.example>"}, []string{"CLOUD_SANDBOX_TLS_ACME_EMAIL: it is not an address"}},
		{"short secret", nil, []string{"JWT_SECRET", "short"}, []string{"it has 5 bytes"}},
		{"dev on every address", map[string]string{"dev": "true", "addr": ":8080"}, nil, []string{"dev mode"}},
		{"dev on 0.0.0.0", map[string]string{"dev": "true", "addr": "0.0.0.0:8080"}, nil, []string{"dev mode"}},
		{"dev on a name", map[string]string{"dev": "true", "addr": "localhost.example:8080"}, nil, []string{"dev mode"}},
		{"no proxies", map[string]string{"dev": "true"}, []string{"CLOUD_SANDBOX_TRUSTED_PROXIES", "10.0.0.0/8,proxy.example"}, []string{"CLOUD_SANDBOX_TRUSTED_PROXIES", `"proxy.example" is neither an address nor a CIDR`}},
		{"a proxy on a link", map[string]string{"dev": "true"}, []string{"CLOUD_SANDBOX_TRUSTED_PROXIES", "fe80::1%eth0"}, []string{"neither an address nor a CIDR"}},
		{"mapped proxies", map[string]string{"dev": "true"}, []string{"CLOUD_SANDBOX_TRUSTED_PROXIES", "::ffff:10.0.0.0/104"}, []string{"neither an address nor a CIDR"}},
		{"everybody a proxy", map[string]string{"dev": "true"}, []string{"CLOUD_SANDBOX_TRUSTED_PROXIES", "0.0.0.0/0"}, []string{"contains every address"}},
		{"everybody of IPv6 a proxy", map[string]string{"dev": "true"}, []string{"CLOUD_SANDBOX_TRUSTED_PROXIES", "10.0.0.1, ::/0"}, []string{"contains every address"}},
		{"too many proxies", map[string]string{"dev": "true"}, []string{"CLOUD_SANDBOX_TRUSTED_PROXIES", strings.Repeat("10.0.0.1,", 64) + "10.0.0.1"}, []string{"at most 64"}},
		{"a rate limit unknown", map[string]string{"dev": "true"}, []string{"RATE_LIMITS", "creates=1:2"}, []string{"RATE_LIMITS", `"creates=1:2" is not a limit`, "redis://HOST:PORT"}},
		{"no address of Redis", map[string]string{"dev": "true"}, []string{"RATE_LIMITS", "redis://:p@h:1?db=2"}, []string{"RATE_LIMITS: the address of Redis has the form", "percent-encoded"}},
		{"a database of Redis", map[string]string{"dev": "true"}, []string{"RATE_LIMITS", "create=1:2,redis://:p@h:1/x"}, []string{"RATE_LIMITS: the path of the address of Redis is not the number"}},
		{"no port", map[string]string{"dev": "true", "addr": "localhost"}, nil, []string{"not host:port"}},
		{"odd port", map[string]string{"dev": "true", "addr": "localhost:http"}, nil, []string{`the port "http"`}},
		{"pool", map[string]string{"dev": "true"}, []string{"POOL_MIN_SIZE", "6", "POOL_MAX_SIZE", "5"}, []string{"6 is more than POOL_MAX_SIZE"}},
		{"audit", map[string]string{"dev": "true"}, []string{"AUDIT_DAYS", "-1"}, []string{"AUDIT_DAYS", "whole number of days"}},
		{"negative pool", map[string]string{"dev": "true"}, []string{"POOL_MIN_SIZE", "-1"}, []string{"POOL_MIN_SIZE"}},
		{"no wait at all", map[string]string{"dev": "true"}, []string{"START_WAIT_SECONDS", "0"}, []string{"START_WAIT_SECONDS", "from 1 to 120"}},
		{"a wait beyond every limit", map[string]string{"dev": "true"}, []string{"START_WAIT_SECONDS", "121"}, []string{"START_WAIT_SECONDS"}},
		{"a wait that is no number", map[string]string{"dev": "true"}, []string{"START_WAIT_SECONDS", "90s"}, []string{"START_WAIT_SECONDS"}},
		{"no CPU feature", map[string]string{"dev": "true"}, []string{"CLOUD_SANDBOX_CPU_FEATURES", "AVX"}, []string{"CLOUD_SANDBOX_CPU_FEATURES", "no CPU feature"}},
		{"no level of x86-64", map[string]string{"dev": "true"}, []string{"CLOUD_SANDBOX_CPU_FEATURES", "x86-64-v9"}, []string{"CLOUD_SANDBOX_CPU_FEATURES", "no level"}},
		{"fewer spares than none", map[string]string{"dev": "true"}, []string{"SPARE_SENTRIES", "-1"}, []string{"SPARE_SENTRIES", "from 0 to 64"}},
		{"no version of gVisor", map[string]string{"dev": "true"}, []string{"OLDEST_GVISOR", "20260905"}, []string{"OLDEST_GVISOR", "cloud-sandbox builds"}},
		{"too many spares", map[string]string{"dev": "true"}, []string{"SPARE_SENTRIES", "65"}, []string{"SPARE_SENTRIES"}},
		{"a negative cache", map[string]string{"dev": "true"}, []string{"SNAPSHOT_CACHE_MB", "-1"}, []string{"SNAPSHOT_CACHE_MB"}},
		{"a cache beyond all disks", map[string]string{"dev": "true"}, []string{"SNAPSHOT_CACHE_MB", "2000000000"}, []string{"SNAPSHOT_CACHE_MB"}},
		{"a build cache below nothing", map[string]string{"dev": "true"}, []string{"BUILD_CACHE_MB", "-1"}, []string{"BUILD_CACHE_MB"}},
		{"snapshots that are never ready", map[string]string{"dev": "true"}, []string{"SNAPSHOT_PACK_SECONDS", "0"}, []string{"SNAPSHOT_PACK_SECONDS", "from 1"}},
		{
			"everything at once",
			map[string]string{"log-level": "loud", "dev": "maybe"},
			[]string{"POOL_MAX_SIZE", "many", "CLOUD_SANDBOX_EGRESS", "all"},
			[]string{"--log-level", "--dev", "POOL_MAX_SIZE", "CLOUD_SANDBOX_EGRESS", "JWT_SECRET"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(tt.flags, env(tt.env...))
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q:\n%v", want, err)
				}
			}
		})
	}
}

func TestLoadAcceptsLoopbackInDev(t *testing.T) {
	for _, addr := range []string{"localhost:0", "127.0.0.1:8080", "127.1.2.3:80", "[::1]:8080", "[::ffff:127.0.0.1]:80"} {
		if _, err := Load(map[string]string{"dev": "true", "addr": addr}, env()); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

func TestTrustedProxies(t *testing.T) {
	c, err := Load(map[string]string{"dev": "true"}, env("CLOUD_SANDBOX_TRUSTED_PROXIES", "10.1.2.3/8, 192.0.2.1,::1,::ffff:192.0.2.2,fd00::/8"))
	if got := fmt.Sprint(c.TrustedProxies); err != nil || got != "[10.0.0.0/8 192.0.2.1/32 ::1/128 192.0.2.2/32 fd00::/8]" {
		t.Errorf("%s, %v", got, err)
	}
	if c, _ = Load(map[string]string{"dev": "true"}, env()); len(c.TrustedProxies) != 0 {
		t.Errorf("by default: %v", c.TrustedProxies)
	}
}

func TestWeakSecretInDevIsReplaced(t *testing.T) {
	c, err := Load(map[string]string{"dev": "true"}, env("JWT_SECRET", "cloud-sandbox-secret"))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Secret) != 0 || len(c.Warnings) != 1 {
		t.Errorf("secret %q, warnings %q", c.Secret, c.Warnings)
	}
	c, err = Load(map[string]string{"dev": "true"}, env("JWT_SECRET", longSecret))
	if err != nil || string(c.Secret) != longSecret {
		t.Errorf("a good secret was not taken: %q, %v", c.Secret, err)
	}
}

func TestKeepSecret(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	secrets := make([][]byte, 8)
	var wg sync.WaitGroup
	for i := range secrets {
		wg.Go(func() {
			c := Config{Data: data}
			if err := c.KeepSecret(); err != nil {
				t.Error(err)
			}
			secrets[i] = c.Secret
		})
	}
	wg.Wait()
	for _, s := range secrets {
		if len(s) < MinSecret || !bytes.Equal(s, secrets[0]) {
			t.Errorf("secret %q, want the same %q for all", s, secrets[0])
		}
	}
	info, err := os.Stat(filepath.Join(data, secretFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := os.ReadDir(data); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// Only a server in dev mode dies for tests.
func TestDevTLSNeedsDev(t *testing.T) {
	if c, err := Load(map[string]string{"dev": "true", "tls": "true"}, nil); err != nil || !c.DevTLS {
		t.Errorf("in dev mode: %v, %v", c.DevTLS, err)
	}
	for want, set := range map[string][]string{
		"--dev":                  {"CLOUD_SANDBOX_DEV_TLS", "true", "JWT_SECRET", longSecret},
		"CLOUD_SANDBOX_TLS_CERT": {"CLOUD_SANDBOX_DEV_TLS", "true", "CLOUD_SANDBOX_DEV", "true", "CLOUD_SANDBOX_TLS_CERT", "/c", "CLOUD_SANDBOX_TLS_KEY", "/k"},
		"CLOUD_SANDBOX_TLS_ACME": {"CLOUD_SANDBOX_DEV_TLS", "true", "CLOUD_SANDBOX_DEV", "true", "CLOUD_SANDBOX_TLS_ACME", "box.example.com"},
	} {
		if _, err := Load(nil, env(set...)); err == nil || !strings.Contains(err.Error(), "--tls: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("with %v: %v", set, err)
		}
	}
}

func TestFailpointNeedsDev(t *testing.T) {
	set := []string{"CLOUD_SANDBOX_DEV_FAILPOINT", "/run/at", "JWT_SECRET", longSecret}
	if c, err := Load(map[string]string{"dev": "true"}, env(set...)); err != nil || c.DevFailpoint != "/run/at" {
		t.Errorf("in dev mode: %q, %v", c.DevFailpoint, err)
	}
	if _, err := Load(nil, env(set...)); err == nil || !strings.Contains(err.Error(), "CLOUD_SANDBOX_DEV_FAILPOINT") {
		t.Errorf("without dev mode: %v", err)
	}
}

// A file that is no list of certificates stops the start, and says which it is.
func TestReadCACerts(t *testing.T) {
	t.Parallel()
	good := string(certs.SelfSigned(t).PEM())
	for name, tt := range map[string]struct{ content, says string }{
		"one":           {"a comment\n" + strings.TrimSpace(good), ""},
		"two":           {good + good, ""},
		"empty":         {"", "no certificate in PEM"},
		"no PEM":        {"hello", "no certificate in PEM"},
		"a private key": {good + "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "PRIVATE KEY"},
		"damaged":       {"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no certificate"},
		"too large":     {strings.Repeat("#", maxRoots+1), "more than"},
	} {
		c := Config{CACerts: filepath.Join(t.TempDir(), "ca.pem")}
		if err := os.WriteFile(c.CACerts, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := c.ReadCACerts()
		if tt.says == "" {
			if err != nil || strings.Trim(strings.ReplaceAll(got, good, ""), " ") != "" || got == "" {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "CLOUD_SANDBOX_CA_CERTS") {
			t.Errorf("%s: %v, want %q", name, err, tt.says)
		}
	}
	absent := Config{CACerts: "/absent/ca.pem"}
	if _, err := absent.ReadCACerts(); err == nil || !strings.Contains(err.Error(), "/absent/ca.pem") {
		t.Errorf("a file that is not there: %v", err)
	}
	if none, err := new(Config).ReadCACerts(); none != "" || err != nil {
		t.Errorf("without the setting: %q, %v", none, err)
	}
}
