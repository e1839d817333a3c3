package config

import (
	"strings"
	"testing"
	"time"
)

// Calls between machines need certificates, and roles with certificates make no other
// ones.
func TestClusterSettings(t *testing.T) {
	const manager = "CLOUD_SANDBOX_SESSION_MANAGER_URL"
	for _, tt := range []struct {
		name string
		env  []string
		want string // in the error; empty: none
	}{
		{"sockets", nil, ""},
		{"plain TCP without certificates", env(manager, "http://127.0.0.1:9091", "CLOUD_SANDBOX_NODE", "a"), ""},
		{"the same without a name", env(manager, "http://127.0.0.1:9091"), "CLOUD_SANDBOX_NODE: it is not set"},
		{"TLS with certificates", env(manager, "https://control.example:9091", "CLOUD_SANDBOX_CLUSTER", "/c"), ""},
		{"a socket with certificates", env(manager, "unix:/s", "CLOUD_SANDBOX_CLUSTER", "/c"), ""},
		{"plain TCP with certificates", env(manager, "http://127.0.0.1:9091", "CLOUD_SANDBOX_CLUSTER", "/c"), manager + ": http:// is refused with CLOUD_SANDBOX_CLUSTER"},
		{"TLS without certificates", env(manager, "https://control.example:9091"), manager + ": https:// needs a certificate"},
		{"no port", env(manager, "https://control.example", "CLOUD_SANDBOX_CLUSTER", "/c"), "neither unix:/PATH nor https://HOST:PORT"},
		{"an address for monitoring", env("CLOUD_SANDBOX_MONITOR_ADDR", "127.0.0.1:9191", "CLOUD_SANDBOX_CLUSTER", "/c"), ""},
		{"a bad one", env("CLOUD_SANDBOX_MONITOR_ADDR", "9191", "CLOUD_SANDBOX_CLUSTER", "/c"), "CLOUD_SANDBOX_MONITOR_ADDR"},
		{"several session-managers", env(manager, "https://a.example:9091,https://b.example:9091", "CLOUD_SANDBOX_CLUSTER", "/c"), ""},
		{"one of them without TLS", env(manager, "https://a.example:9091,http://b.example:9091", "CLOUD_SANDBOX_CLUSTER", "/c"), manager + ": http:// is refused"},
		{"an empty one of them", env(manager, "https://a.example:9091,", "CLOUD_SANDBOX_CLUSTER", "/c"), "neither unix:/PATH nor https://HOST:PORT"},
		{"the database in a cluster", env("CLOUD_SANDBOX_DATABASE", "postgres://h/d", "CLOUD_SANDBOX_CLUSTER", "/c"), "CLOUD_SANDBOX_DATABASE: a node of a cluster has no access"},
		{"one without certificates", env("CLOUD_SANDBOX_MONITOR_ADDR", "127.0.0.1:9191"), "without CLOUD_SANDBOX_CLUSTER"},
	} {
		_, err := LoadRole(RoleNode, nil, tt.env)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	for _, role := range []string{RoleGateway, RoleSessionManager} {
		if _, err := LoadRole(role, nil, env(manager, "https://a.example:9091,https://b.example:9091", "CLOUD_SANDBOX_CLUSTER", "/c", "CLOUD_SANDBOX_DEV", "true")); err == nil || !strings.Contains(err.Error(), manager+": only a node takes several") {
			t.Errorf("several session-managers of a %s: %v", role, err)
		}
	}
	for name, want := range map[string]string{"": "local", "node-1": "node-1"} {
		c, err := LoadRole(RoleNode, nil, env("CLOUD_SANDBOX_NODE", name))
		if err != nil || c.NodeName != want {
			t.Errorf("the node %q is named %q, %v", name, c.NodeName, err)
		}
	}
	// Its certificate names it, if the operator does not.
	c, err := LoadRole(RoleNode, nil, env("CLOUD_SANDBOX_CLUSTER", "/c"))
	if err != nil || c.NodeName != "" || c.Cluster != "/c" {
		t.Errorf("%q, %v", c.NodeName, err)
	}
	all, err := Load(map[string]string{FlagDev: "true"}, env("CLOUD_SANDBOX_CLUSTER", "/c"))
	if err != nil || len(all.Warnings) != 1 || !strings.Contains(all.Warnings[0], "CLOUD_SANDBOX_CLUSTER") {
		t.Errorf("with all roles: %q, %v", all.Warnings, err)
	}
}

// A node fences itself where another one can take its sandboxes over, or as it is set.
func TestFenceAfter(t *testing.T) {
	const name, key = "CLOUD_SANDBOX_FENCE_SECONDS", "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	copied := env("CLOUD_SANDBOX_BLOBS", "file:///b", "CLOUD_SANDBOX_BLOBS_KEY", key)
	joined := append(env("CLOUD_SANDBOX_CLUSTER", "/c"), copied...)
	for _, tt := range []struct {
		name string
		env  []string
		want time.Duration
	}{
		{"a node with certificates and copies", joined, 90 * time.Second},
		{"without certificates", copied, 0},
		{"without copies", env("CLOUD_SANDBOX_CLUSTER", "/c"), 0},
		{"turned off", append(env(name, "0"), joined...), 0},
		{"set", append(env(name, "9"), copied...), 9 * time.Second},
	} {
		if c, err := LoadRole(RoleNode, nil, tt.env); err != nil || c.FenceAfter() != tt.want {
			t.Errorf("%s: %v, %v, want %v", tt.name, c.FenceAfter(), err, tt.want)
		}
	}
	for _, value := range []string{"8", "86401", "-1", "a", "90s"} {
		if _, err := LoadRole(RoleNode, nil, env(name, value)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	c, err := LoadRole(RoleGateway, nil, env("JWT_SECRET", longSecret, name, "30"))
	if err != nil || c.FenceAfter() != 0 || !strings.Contains(strings.Join(c.Warnings, " "), name) {
		t.Errorf("of a gateway: %v, %q, %v", c.FenceAfter(), c.Warnings, err)
	}
}
