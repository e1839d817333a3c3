package config

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestMisspelledNames(t *testing.T) {
	for _, tt := range []struct {
		variable string
		problem  string // what the error says; empty: there is none
		warning  string // what the warning says; empty: there is none
	}{
		{"CLOUD_SANDBOX_EGRES=none", "CLOUD_SANDBOX_EGRES: no setting has this name; the nearest is CLOUD_SANDBOX_EGRESS. Correct", ""},
		{"CLOUD_SANDBOX_ERGESS=none", "nearest is CLOUD_SANDBOX_EGRESS.", ""},
		{"cloud_sandbox_egress=none", "cloud_sandbox_egress: no setting has this name; the nearest is CLOUD_SANDBOX_EGRESS.", ""},
		{"CLOUDSANDBOX_EGRESS=none", "nearest is CLOUD_SANDBOX_EGRESS.", ""},
		{"CLOUD_SANBOX_EGRESS=none", "nearest is CLOUD_SANDBOX_EGRESS.", ""},
		{"CLOUD_SANDBOX_EGRESSOPEN=10.0.0.1", "nearest is CLOUD_SANDBOX_EGRESS_OPEN.", ""},
		{"CLOUD_SANDBOX_EGRESS_=none", "nearest is CLOUD_SANDBOX_EGRESS.", ""},
		{"CLOUD_SANDBOX_WEBHOOK=https://a.example", "nearest is CLOUD_SANDBOX_WEBHOOKS.", ""},
		{"CLOUD_SANDBOX_PORT=9000", "CLOUD_SANDBOX_PORT: no setting has this name", ""},
		{"CLOUD_SANDBOX_NODE_PORT=9000", "CLOUD_SANDBOX_NODE_PORT: no setting has this name", ""},
		{"CLOUD_SANDBOX_POOL_MIN_SIZE=3", "CLOUD_SANDBOX_POOL_MIN_SIZE: no setting has this name", ""},
		{"CLOUD_SANDBOX_=x", "CLOUD_SANDBOX_: no setting has this name", ""},
		{"CLOUD_SANDBOX_" + strings.Repeat("A", 5000) + "=x", "no setting has this name", ""},
		{"CLOUD_SANDBOX_EGRES=", "", ""}, // empty counts as absent
		{"CLOUD_SANDBOX_EGRESS=none", "", ""},
		{"CLOUD_SANDBOX_NODE_ADDR=localhost:1", "", ""},
		{"CLOUD_SANDBOX_API_KEY=k", "", ""},
		{"CLOUD_SANDBOX_E2E=bin/cloud-sandbox", "", ""},
		{"CLOUD_SANDBOX_PORT=tcp://10.0.0.1:8080", "", ""}, // Kubernetes, for a Service "cloud-sandbox"
		{"CLOUD_SANDBOX_PORT_8080_TCP_PORT=8080", "", ""},
		{"CLOUD_SANDBOX_PORT_8080_TCP_ADDR=10.0.0.1", "", ""},
		{"CLOUD_SANDBOX_SERVICE_PORT_HTTP=8080", "", ""},
		{"CLOUD_SANDBOX_SERVICE_PORT=8080", "", ""},
		{"CLOUD_SANDBOX_NODE_SERVICE_HOST=10.0.0.1", "", ""},
		{"POOL_MINSIZE=3", "", "POOL_MINSIZE is not a setting and is not used; POOL_MIN_SIZE is one"},
		{"POOL_MIN_SZIE=3", "", "POOL_MIN_SIZE is one"},
		{"AUDIT_DAY=3", "", "AUDIT_DAYS is one"},
		{"RATE_LIMIT=3", "", "RATE_LIMITS is one"},
		{"POOL_MIN_SIZE=3", "", ""},
		{"PATH=/bin", "", ""},
		{"LANG=C", "", ""},
		{"", "", ""},
	} {
		warnings, err := checkNames([]string{"HOME=/root", tt.variable})
		if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%.80s: %v, want %q", tt.variable, err, tt.problem)
		}
		if all := strings.Join(warnings, "\n"); (all == "") != (tt.warning == "") || !strings.Contains(all, tt.warning) {
			t.Errorf("%.80s: warns %q, want %q", tt.variable, all, tt.warning)
		}
	}
	for range 3 { // always in the same order, and every one
		c, err := Load(map[string]string{"dev": "true"}, env("CLOUD_SANDBOX_ZZ", "s3cret", "CLOUD_SANDBOX_AA", "s3cret", "CLOUD_SANDBOX_EGRESS", "all", "POOL_MINSIZE", "1"))
		if err == nil || len(c.Warnings) != 1 {
			t.Fatalf("%v, warnings %q", err, c.Warnings)
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != 3 || !strings.HasPrefix(lines[0], "CLOUD_SANDBOX_AA:") || !strings.HasPrefix(lines[1], "CLOUD_SANDBOX_ZZ:") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the problems:\n%v", err)
		}
	}
	if _, err := LoadRole(RoleScheduler, nil, env("CLOUD_SANDBOX_EGRES", "none")); err == nil || !strings.Contains(err.Error(), "CLOUD_SANDBOX_EGRESS") {
		t.Errorf("a role: %v", err)
	}
}

var nameInText = regexp.MustCompile(`CLOUD_SANDBOX_[A-Z0-9_]*[A-Z0-9]`)

// Every name that stands in code, scripts and docs is one that a start takes, and
// every one that can be set is documented.
func TestNamesAreKnownAndDocumented(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range documentedNames() {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/configuration.md lacks `%s`", name)
		}
	}
	// These hold names that are wrong on purpose, or halves of names.
	passed := []string{"internal/config/names.go", "internal/config/names_test.go", "tests/e2e/start_test.go", "tests/e2e/roles_test.go"}
	known := append(documentedNames(), quietNames...)
	files := 0
	for _, dir := range []string{"README.md", "Makefile", "cmd", "docs", "internal", "scripts", "sdk/python/src", "tests"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(root, path)
			switch {
			case err != nil:
				return err
			case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "node_modules"):
				return filepath.SkipDir
			case !d.Type().IsRegular() || slices.Contains(passed, rel):
				return nil
			}
			if info, err := d.Info(); err != nil || info.Size() > 4<<20 {
				return err
			}
			text, err := os.ReadFile(path)
			for _, name := range nameInText.FindAllString(string(text), -1) {
				if !slices.Contains(known, name) {
					t.Errorf("%s: %s is in no list of names.go", rel, name)
				}
			}
			files++
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 500 {
		t.Errorf("only %d files were read", files)
	}
}
