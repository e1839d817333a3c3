package e2b

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// environment runs `cloud-sandbox e2b env` and returns the printed variables, as
// NAME=VALUE and as a map, and its whole output. with wraps the command so that names
// resolve.
func environment(t *testing.T, s *rig.Server, with func(...string) []string, more ...string) (env []string, vars map[string]string, said string) {
	t.Helper()
	args := with(append([]string{s.Bin, "e2b", "env", "--url", s.URL, "--user-id", t.Name()}, more...)...)
	cmd := rig.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if len(more) > 0 {
		if err := json.Unmarshal(stdout.Bytes(), &vars); err != nil {
			t.Fatal(err)
		}
		for name, value := range vars {
			env = append(env, name+"="+value)
		}
	}
	return env, vars, stdout.String() + stderr.String()
}

// get_host() of the SDKs leads to the server and never to E2B's own cloud. This holds
// with the output of `cloud-sandbox e2b env`, and with the API's variables alone, the
// only ones that older SDKs know. If clients cannot resolve the names, the command says
// so.
func TestHostsInDevMode(t *testing.T) {
	dir := sdks(t)
	s, secured := shared.Server(t), rig.Own(t, rig.Options{Pool: 2, Env: []string{"CLOUD_SANDBOX_DEV_TLS=true"}})
	with := answeringNames(t)
	run := func(name string, env []string, program ...string) {
		t.Run(name, func(t *testing.T) {
			program = with(program...)
			run(t, env, program[0], program[1:]...)
		})
	}
	here := func(s *rig.Server) string {
		_, port, err := net.SplitHostPort(s.Addr)
		if err != nil {
			t.Fatal(err)
		}
		return net.JoinHostPort("localhost", port)
	}
	plain, _, said := environment(t, s, with, "--json")
	if !strings.Contains(said, "has no TLS") || strings.Contains(said, "does not resolve names") {
		t.Errorf("e2b env without TLS says %s", said)
	}
	safe, vars, said := environment(t, secured, with, "--json")
	if strings.Contains(said, "cloud-sandbox:") || vars["E2B_DOMAIN"] != here(secured) {
		t.Errorf("e2b env with TLS says %s", said)
	}
	alone := []string{"E2B_API_URL=" + s.URL, "E2B_API_KEY=" + key(t, s, t.Name())}
	for _, age := range []string{"old", "new"} {
		python, node := filepath.Join(dir, age, "py/bin/python"), filepath.Join(dir, "node")
		javascript := script(t, filepath.Join(dir, age, "js"), "hosts.mjs")
		run(age+" python alone", alone, python, "hosts.py", here(s), "")
		run(age+" javascript alone", alone, node, javascript, here(s), "")
		if age == "new" {
			run(age+" python", plain, python, "hosts.py", here(s), "http")
			run(age+" javascript", plain, node, javascript, here(s), "http")
		}
		run(age+" python with TLS", safe, python, "hosts.py", here(secured), "https")
		run(age+" javascript with TLS", safe, node, javascript, here(secured), "https")
	}

	nowhere := filepath.Join(t.TempDir(), "nsswitch.conf")
	if err := os.WriteFile(nowhere, []byte("hosts: files\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, _, said = environment(t, s, func(program ...string) []string {
		return append([]string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/nsswitch.conf && exec "$@"`, nowhere}, program...)
	})
	for _, want := range []string{"export E2B_API_URL='" + s.URL + "'", "export E2B_DOMAIN='" + here(s) + "'", "export E2B_API_KEY='e2b_", "libnss-myhostname"} {
		if !strings.Contains(said, want) {
			t.Errorf("where names are not found e2b env does not say %q: %s", want, said)
		}
	}
}
