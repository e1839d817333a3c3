package docker_test

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit/redistest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
)

// compose is the part of the format of Compose that compose.yaml uses. Anything else is an
// error.
type compose struct {
	Name     string             `yaml:"name"`
	Services map[string]service `yaml:"services"`
	Volumes  map[string]any     `yaml:"volumes"`
}

type service struct {
	Image       string            `yaml:"image"`
	Entrypoint  []string          `yaml:"entrypoint"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Ports       []string          `yaml:"ports"`
	Volumes     []string          `yaml:"volumes"`
	Restart     string            `yaml:"restart"`
	Healthcheck struct {
		Test     []string `yaml:"test"`
		Interval string   `yaml:"interval"`
		Timeout  string   `yaml:"timeout"`
		Retries  int      `yaml:"retries"`
	} `yaml:"healthcheck"`
}

func readCompose(t *testing.T) compose {
	t.Helper()
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var c compose
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

// readEnv reads development.env as `make run-all` does.
func readEnv(t *testing.T) (environ []string) {
	t.Helper()
	text, err := os.ReadFile("development.env")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, _, ok := strings.Cut(line, "=")
		if !ok || strings.ContainsAny(line, " \t\"'$`\\") || seen[name] {
			t.Errorf("not a plain NAME=VALUE, once: %q", line)
		}
		seen[name] = true
		environ = append(environ, line)
	}
	return environ
}

// A fixed version; a tag that moves would be another program one day.
var pinned = regexp.MustCompile(`^[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?(-[a-z0-9.]+)?$`)

func TestServices(t *testing.T) {
	c := readCompose(t)
	for name, s := range c.Services {
		if !pinned.MatchString(s.Image) {
			t.Errorf("%s: the image %q is not pinned to a version", name, s.Image)
		}
		if len(s.Ports) == 0 || len(s.Volumes) == 0 {
			t.Errorf("%s has no port or no volume: %v, %v", name, s.Ports, s.Volumes)
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") || strings.Count(p, ":") != 2 {
				t.Errorf("%s: the port %q is open to other machines", name, p)
			}
		}
		for _, v := range s.Volumes {
			volume, path, _ := strings.Cut(v, ":")
			if _, ok := c.Volumes[volume]; !ok || !filepath.IsAbs(path) {
				t.Errorf("%s: the volume %q is not among the named ones", name, v)
			}
		}
		h := s.Healthcheck
		if len(h.Test) < 2 || h.Test[0] != "CMD" && h.Test[0] != "CMD-SHELL" || h.Interval == "" || h.Timeout == "" || h.Retries == 0 {
			t.Errorf("%s: the health check is %+v", name, h)
		}
	}
	if len(c.Services) != 3 || len(c.Volumes) != 3 {
		t.Errorf("%d services and %d volumes, want three", len(c.Services), len(c.Volumes))
	}
}

// The settings are accepted, and name the services as they are.
func TestEnvironmentNamesTheServices(t *testing.T) {
	c := readCompose(t)
	environ := readEnv(t)
	cfg, err := config.Load(map[string]string{config.FlagDev: "true"}, environ)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Warnings) > 0 {
		t.Errorf("warnings: %v", cfg.Warnings)
	}
	published := func(service, hostPort string) {
		t.Helper()
		_, port, _ := net.SplitHostPort(hostPort)
		if want := hostPort + ":" + port; len(c.Services[service].Ports) != 1 || c.Services[service].Ports[0] != want {
			t.Errorf("%s is at %v, the settings name %s", service, c.Services[service].Ports, hostPort)
		}
	}

	database, err := url.Parse(cfg.Database)
	if err != nil {
		t.Fatal(err)
	}
	published("postgres", database.Host)
	password, _ := database.User.Password()
	want := map[string]string{"POSTGRES_USER": database.User.Username(), "POSTGRES_PASSWORD": password, "POSTGRES_DB": strings.TrimPrefix(database.Path, "/")}
	if got := c.Services["postgres"].Environment; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the database is %v, the settings name %v", got, want)
	}

	if cfg.Redis == nil {
		t.Fatal("the settings name no Redis")
	}
	published("redis", cfg.Redis.HostPort)
	redis := c.Services["redis"]
	if cfg.Redis.User != "" || !strings.Contains(strings.Join(redis.Command, " "), "--requirepass "+cfg.Redis.Password+" ") || redis.Environment["REDISCLI_AUTH"] != cfg.Redis.Password {
		t.Errorf("the password of Redis differs: %v, %v", redis.Command, redis.Environment)
	}

	endpoint, err := url.Parse(cfg.Blobs.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	published("s3", endpoint.Host)
	s3 := c.Services["s3"]
	if s3.Environment["ROOT_ACCESS_KEY"] != cfg.Blobs.AccessKey || s3.Environment["ROOT_SECRET_KEY"] != cfg.Blobs.SecretKey || s3.Environment["VGW_REGION"] != cfg.Blobs.Region {
		t.Errorf("the S3 server has %v", s3.Environment)
	}
	if made := "mkdir -p /data/" + cfg.Blobs.Bucket + " "; !strings.Contains(strings.Join(s3.Entrypoint, " "), made) {
		t.Errorf("nothing makes the bucket %q", cfg.Blobs.Bucket)
	}
	for _, p := range []string{password, cfg.Redis.Password, cfg.Blobs.SecretKey, string(cfg.Blobs.Keys[0])} {
		if !strings.Contains(p, "development-only") {
			t.Errorf("a password does not say that it is for development: %q", p)
		}
	}
}

// The services have the versions that the tests use, where these are installed.
func TestVersions(t *testing.T) {
	c := readCompose(t)
	script, err := os.ReadFile("../../scripts/versitygw.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(c.Services["s3"].Image, ":")
	if !strings.Contains(string(script), "version="+version+"\n") {
		t.Errorf("the tests use another version of versitygw than %s", version)
	}
	for name, tt := range map[string]struct{ folder, program, begins string }{
		"postgres": {postgrestest.Programs, "postgres", "postgres (PostgreSQL) "},
		"redis":    {redistest.Programs, "redis-server", "Redis server v="},
	} {
		t.Run(name, func(t *testing.T) {
			folder := os.Getenv(tt.folder)
			if folder == "" {
				t.Skipf("%s is not set: nothing to compare the image with", tt.folder)
			}
			out, err := exec.Command(filepath.Join(folder, tt.program), "--version").Output()
			if err != nil {
				t.Fatal(err)
			}
			_, tag, _ := strings.Cut(c.Services[name].Image, ":")
			major, _, _ := strings.Cut(tag, ".")
			if !strings.HasPrefix(string(out), tt.begins+major+".") {
				t.Errorf("the image is %s, the tests use %s", c.Services[name].Image, out)
			}
		})
	}
}

// Compose itself accepts the file, where it is installed.
func TestComposeAcceptsTheFile(t *testing.T) {
	if err := exec.Command("docker", "compose", "version").Run(); err != nil {
		t.Skipf("docker compose is not installed: %v", err)
	}
	if out, err := exec.Command("docker", "compose", "--file", "compose.yaml", "config", "--quiet").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
