package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// finding is one line of `cloud-sandbox doctor --json`.
type finding struct{ Check, Level, Detail, Fix string }

// doctor runs the command and returns its findings by check, and its exit code.
func doctor(t *testing.T, bin string, args ...string) (map[string]finding, int) {
	t.Helper()
	cmd := rig.CommandContext(t.Context(), bin, append([]string{"doctor", "--json"}, args...)...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	var said struct {
		OK     bool
		Checks []finding
	}
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all := map[string]finding{}
	for _, f := range said.Checks {
		all[f.Check] = f
		said.OK = said.OK && f.Level != "problem"
	}
	if code := cmd.ProcessState.ExitCode(); said.OK != (code == 0) {
		t.Errorf("it ends with %d and says ok: %t", code, said.OK)
	}
	return all, cmd.ProcessState.ExitCode()
}

// `doctor` reports the problems that a start on this host would have.
func TestDoctor(t *testing.T) {
	t.Parallel()
	s := shared.Machine(t)
	empty := openFolder(t)
	for name, tt := range map[string]struct {
		args               []string
		check, level, says string
		code               int
	}{
		"a server runs":     {[]string{"--data", s.Data, "--addr", s.Addr}, "address", "ok", "of this data folder", 0},
		"its sandboxes":     {[]string{"--data", s.Data, "--addr", s.Addr}, "leftovers", "ok", "a server uses", 0},
		"its template":      {[]string{"--data", s.Data, "--addr", s.Addr}, "templates", "ok", "base", 0},
		"a port in use":     {[]string{"--data", empty, "--addr", s.Addr}, "address", "problem", s.Addr + " is in use", 1},
		"a small disk":      {[]string{"--data", small(t), "--addr", "127.0.0.1:0"}, "disk", "problem", "MiB free", 1},
		"a read-only disk":  {[]string{"--data", readOnly(t), "--addr", "127.0.0.1:0"}, "disk", "problem", "read-only", 1},
		"not a data folder": {[]string{"--data", "/etc/passwd", "--addr", "127.0.0.1:0"}, "data folder", "problem", "/etc/passwd", 1},
		"a new folder":      {[]string{"--data", filepath.Join(empty, "new"), "--addr", "127.0.0.1:0"}, "data folder", "ok", "new", 0},
	} {
		t.Run(name, func(t *testing.T) {
			found, code := doctor(t, s.Bin, tt.args...)
			if f := found[tt.check]; f.Level != tt.level || !strings.Contains(f.Detail, tt.says) || code != tt.code {
				t.Errorf("%+v, and it ends with %d", f, code)
			}
			for _, check := range []string{"system", "rights", "cgroups", "namespaces", "platform"} {
				if f := found[check]; f.Level == "problem" || f.Level == "" { // sandboxes start on this host
					t.Errorf("%s: %+v", check, f)
				}
			}
		})
	}
	if _, err := os.Stat(filepath.Join(empty, "new")); err == nil {
		t.Error("looking made the data folder")
	}
}

// A command does not use the recorded address of a killed server, because another
// program may have the port by now.
func TestAddressOfAKilledServer(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	s := rig.Own(t, rig.Options{Pool: 1})
	run := func() (string, error) {
		cmd := rig.CommandContext(t.Context(), s.Bin, "ls", "--data", s.Data)
		cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rig.Kill(t, s.One(t, rig.Launcher))
	<-s.Done()
	rig.Within(t, rig.Patience, "the end of the server", func() bool { return len(s.Processes(rig.ServerRole)) == 0 })
	if _, err := os.Stat(filepath.Join(s.Data, "run", "address")); err != nil {
		t.Fatalf("a killed server takes its address back, so this tests nothing: %v", err)
	}
	if out, err := run(); err == nil || !strings.Contains(out, "no server runs with the data folder "+s.Data) {
		t.Errorf("%v: %s", err, out)
	}
	if found, _ := doctor(t, s.Bin, "--data", s.Data, "--addr", "127.0.0.1:0"); found["leftovers"].Level != "warning" {
		t.Errorf("%+v", found["leftovers"])
	}
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	if out, err := run(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
