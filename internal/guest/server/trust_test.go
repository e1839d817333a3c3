package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTrust(t *testing.T) {
	const known = "-----BEGIN CERTIFICATE-----\nknown\n-----END CERTIFICATE-----" // without a line's end
	for name, tt := range map[string]struct {
		before map[string]string // path to content; "->" begins a link
		want   []string          // bundles that have it
	}{
		"nothing there": {nil, []string{systemBundle}},
		"Debian":        {map[string]string{systemBundle: known}, []string{systemBundle}},
		"Alpine":        {map[string]string{systemBundle: known, "/etc/ssl/cert.pem": "->certs/ca-certificates.crt"}, []string{systemBundle, "/etc/ssl/cert.pem"}},
		"Red Hat": {map[string]string{
			"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": known,
			"/etc/pki/tls/certs/ca-bundle.crt":                  "->../../ca-trust/extracted/pem/tls-ca-bundle.pem",
		}, []string{systemBundle, "/etc/pki/tls/certs/ca-bundle.crt"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range tt.before {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if to, is := strings.CutPrefix(content, "->"); is {
					if err := os.Symlink(to, path); err != nil {
						t.Fatal(err)
					}
				} else if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for _, authority := range []string{"first\n", "second\n"} {
				if err := trust(root, authority); err != nil {
					t.Fatal(err)
				}
				for _, path := range append(tt.want, authorityFile) {
					raw, err := os.ReadFile(filepath.Join(root, path))
					if err != nil || strings.Count(string(raw), authority) != 1 || authority == "second\n" && strings.Contains(string(raw), "first") {
						t.Errorf("%s: %v\n%s", path, err, raw)
					}
					if tt.before[path] == known && !strings.HasPrefix(string(raw), known+"\n") {
						t.Errorf("%s lost whom it knew:\n%s", path, raw)
					}
				}
			}
		})
	}
}

func TestTrustWithWhatIsNoFile(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, systemBundle)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := trust(root, "a"); err == nil {
		t.Error("a pipe was read as a bundle")
	}
}
