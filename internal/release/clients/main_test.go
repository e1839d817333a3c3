package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Versions are such that pip and npm take them, and later ones are greater.
func TestVersions(t *testing.T) {
	made := time.Date(2026, 11, 24, 12, 30, 0, 0, time.UTC)
	for version, want := range map[string][2]string{
		"v1.2.3":              {"1.2.3", "1.2.3"},
		"1.2.3":               {"1.2.3", "1.2.3"},
		"v1.2.3-4-gabcdef0":   {"0.0.0.dev202611241230", "0.0.0-dev.202611241230"},
		"3287fc2-dirty":       {"0.0.0.dev202611241230", "0.0.0-dev.202611241230"},
		"v1.2.3; rm -rf /tmp": {"0.0.0.dev202611241230", "0.0.0-dev.202611241230"},
	} {
		r := release{version: version, made: made}
		if got := [2]string{r.pythonVersion(), r.npmVersion()}; got != want {
			t.Errorf("%s is %v, want %v", version, got, want)
		}
	}
}

// Two runs with the same programs give the same files.
func TestEqualInputs(t *testing.T) {
	programs, license := t.TempDir(), filepath.Join(t.TempDir(), "LICENSE")
	for _, f := range []string{filepath.Join(programs, "cloud-sandbox-linux-amd64"), filepath.Join(programs, "cloud-sandbox-windows-arm64.exe"), license} {
		if err := os.WriteFile(f, []byte(f), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var made [2]map[string]string
	for i := range made {
		out := t.TempDir()
		if err := run([]string{"--programs", programs, "--version", "v1.0.0", "--time", "1790000000", "--license", license, "--out", out}); err != nil {
			t.Fatal(err)
		}
		made[i] = map[string]string{}
		entries, err := os.ReadDir(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			content, err := os.ReadFile(filepath.Join(out, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			made[i][e.Name()] = string(content)
		}
	}
	for _, name := range []string{
		"cloud_sandbox_cli-1.0.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64.whl", "cloud_sandbox_cli-1.0.0-py3-none-win_arm64.whl",
		"cloud-sandbox-cli-1.0.0.tgz", "cloud-sandbox-cli-linux-x64-1.0.0.tgz", "cloud-sandbox-cli-win32-arm64-1.0.0.tgz",
	} {
		if made[0][name] == "" || made[0][name] != made[1][name] {
			t.Errorf("%s has %d and %d bytes", name, len(made[0][name]), len(made[1][name]))
		}
	}
	if len(made[0]) != 5 {
		t.Errorf("it made %d files", len(made[0]))
	}
	if err := run([]string{"--programs", t.TempDir(), "--license", license, "--out", t.TempDir()}); err == nil || !strings.Contains(err.Error(), "make clients") {
		t.Errorf("without programs: %v", err)
	}
}
