package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write returns the path of a file with a text.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Each role reads the files of the secrets that it needs, and of no other.
func TestReadSecrets(t *testing.T) {
	jwt, seed, service := longSecret+"-jwt", longSecret+"-seed", longSecret+"-service"
	environ := env("JWT_SECRET_FILE", write(t, jwt+"\n"), "CLOUD_SANDBOX_GUEST_SEED_FILE", write(t, seed), "CLOUD_SANDBOX_SERVICE_SECRET_FILE", write(t, service+"\r\n"))
	for role, want := range map[string][3]string{
		"":                 {jwt, seed, ""},
		RoleGateway:        {jwt, seed, service},
		RoleSessionManager: {"", seed, service},
		RoleScheduler:      {"", "", service},
		RoleNode:           {"", "", service},
	} {
		load := func() (Config, error) { return LoadRole(role, nil, environ) }
		if role == "" {
			load = func() (Config, error) { return Load(nil, environ) }
		}
		c, err := load()
		if err == nil {
			err = c.ReadSecrets()
		}
		if got := [3]string{string(c.Secret), string(c.GuestSeed), string(c.ServiceSecret)}; err != nil || got != want {
			t.Errorf("the role %q has %q, %v", role, got, err)
		}
		if guests := want[1] != ""; c.NeedsGuests() != guests {
			t.Errorf("the role %q needs guests: %v", role, c.NeedsGuests())
		}
	}
}

func TestReadSecretsRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		env  []string
		want string
	}{
		"a file that is missing":   {[]string{"CLOUD_SANDBOX_GUEST_SEED_FILE", "/nonexistent/seed"}, "CLOUD_SANDBOX_GUEST_SEED_FILE, which the server's user must be able to read"},
		"an empty file":            {[]string{"CLOUD_SANDBOX_GUEST_SEED_FILE", write(t, "\n")}, "is empty"},
		"a short seed":             {[]string{"CLOUD_SANDBOX_GUEST_SEED_FILE", write(t, "short")}, "CLOUD_SANDBOX_GUEST_SEED_FILE: it has 5 bytes"},
		"a short secret of tokens": {[]string{"JWT_SECRET_FILE", write(t, "short")}, "JWT_SECRET: it has 5 bytes"},
		"a published secret":       {[]string{"JWT_SECRET_FILE", write(t, publishedSecret)}, "is published"},
		"a large file":             {[]string{"CLOUD_SANDBOX_SERVICE_SECRET_FILE", write(t, strings.Repeat("x", maxSecretFile+1))}, "has more than 4096 bytes"},
	} {
		if !strings.HasPrefix(tt.env[0], "JWT") {
			tt.env = append(tt.env, "JWT_SECRET", longSecret)
		}
		c, err := LoadRole(RoleGateway, nil, env(tt.env...))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := c.ReadSecrets(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSharedSettingsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		role string
		env  []string
		want string
	}{
		"a seed twice":                  {RoleGateway, []string{"CLOUD_SANDBOX_GUEST_SEED", longSecret, "CLOUD_SANDBOX_GUEST_SEED_FILE", "/x"}, "CLOUD_SANDBOX_GUEST_SEED and CLOUD_SANDBOX_GUEST_SEED_FILE: set one of them"},
		"a secret of tokens twice":      {RoleGateway, []string{"JWT_SECRET", longSecret, "JWT_SECRET_FILE", "/x"}, "JWT_SECRET and JWT_SECRET_FILE: set one of them"},
		"a short seed":                  {RoleSessionManager, []string{"CLOUD_SANDBOX_GUEST_SEED", "short"}, "CLOUD_SANDBOX_GUEST_SEED: it has 5 bytes"},
		"a short secret of services":    {RoleNode, []string{"CLOUD_SANDBOX_SERVICE_SECRET", "short"}, "CLOUD_SANDBOX_SERVICE_SECRET: it has 5 bytes"},
		"templates elsewhere for all":   {"", []string{"CLOUD_SANDBOX_TEMPLATES_URL", "http://h:1"}, "CLOUD_SANDBOX_TEMPLATES_URL: a server with all roles"},
		"no URL of templates":           {RoleGateway, []string{"CLOUD_SANDBOX_TEMPLATES_URL", "h:1"}, "CLOUD_SANDBOX_TEMPLATES_URL"},
		"a node without a name":         {RoleNode, []string{"CLOUD_SANDBOX_DATABASE", "postgres://h/x"}, "CLOUD_SANDBOX_NODE: it is not set"},
		"a node with an impossible one": {RoleNode, []string{"CLOUD_SANDBOX_NODE", "A b"}, "CLOUD_SANDBOX_NODE: \"A b\" must be"},
	} {
		if tt.role == RoleGateway && tt.env[0] != "JWT_SECRET" || tt.role == "" {
			tt.env = append(tt.env, "JWT_SECRET", longSecret)
		}
		load := func() (Config, error) { return LoadRole(tt.role, nil, env(tt.env...)) }
		if tt.role == "" {
			load = func() (Config, error) { return Load(nil, env(tt.env...)) }
		}
		if _, err := load(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A Node needs a name where others may share its records. Elsewhere it is "local".
func TestNodeName(t *testing.T) {
	for _, tt := range []struct {
		role string
		env  []string
		want string
	}{
		{RoleNode, nil, "local"},
		{RoleNode, []string{"CLOUD_SANDBOX_DATABASE", "postgres://h/x", "CLOUD_SANDBOX_DEV", "true"}, "local"},
		{RoleNode, []string{"CLOUD_SANDBOX_DATABASE", "postgres://h/x", "CLOUD_SANDBOX_NODE", "n1"}, "n1"},
		{RoleScheduler, []string{"CLOUD_SANDBOX_DATABASE", "postgres://h/x"}, "local"},
	} {
		if c, err := LoadRole(tt.role, nil, env(tt.env...)); err != nil || c.NodeName != tt.want {
			t.Errorf("the %s with %q is named %q, %v", tt.role, tt.env, c.NodeName, err)
		}
	}
}

// One environment may serve all roles: the Node that it names keeps the Templates.
func TestKeepsTemplates(t *testing.T) {
	at := func(role, templates, node string) bool {
		c, err := LoadRole(role, nil, env("JWT_SECRET", longSecret, "CLOUD_SANDBOX_TEMPLATES_URL", templates, "CLOUD_SANDBOX_NODE_URL", node))
		if err != nil {
			t.Fatal(err)
		}
		return c.KeepsTemplates()
	}
	if !at(RoleNode, "", "") || !at(RoleNode, "http://a:1", "http://a:1") || at(RoleNode, "http://a:1", "http://b:1") || at(RoleGateway, "http://a:1", "http://a:1") {
		t.Error("another Node keeps the templates")
	}
}
