package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// Commands that work on a server or a data folder use the one that is named, and refuse
// both. If none is named, they ask for one or report the folder that they use.
func TestWhichInstallation(t *testing.T) {
	t.Parallel()
	here, there := rig.Own(t, rig.Options{}), shared.Server(t)
	ops := there.Client(t, "reacher")
	var minted struct {
		Token string `json:"access_token"`
	}
	ops.Must(t, "POST", "/api/v1/auth/token", rig.Body{"user_id": "reacher", "role": "operator"}, &minted)
	remote := []string{"CLOUD_SANDBOX_URL=" + there.URL, "CLOUD_SANDBOX_API_KEY=" + minted.Token}
	folder := []string{"CLOUD_SANDBOX_DATA=" + here.Data}
	// run returns a command's output, its errors and its exit code.
	run := func(env []string, args ...string) (out, errs string, code int) {
		t.Helper()
		cmd := rig.Command(here.Bin, args...)
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	}
	// Commands for the server change the server and not the data folder here.
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"tenant", "create", "reached", "--name", "Far Ltd"}, "Far Ltd"},
		{[]string{"tenant", "ls"}, "reached"},
		{[]string{"tenant", "quota", "reached", "sandboxes=3,cpus=1.5"}, "quota  sandboxes=3,cpus=1.5\nused   nothing"},
		{[]string{"tenant", "quota", "reached"}, "quota  sandboxes=3,cpus=1.5"},
		{[]string{"tenant", "quota", "reached", "--json"}, `"own": true`},
		{[]string{"tenant", "quota", "reached", "default"}, "quota  default"},
		{[]string{"tenant", "suspend", "reached", "--reason", "a test"}, "a test"},
		{[]string{"tenant", "ls", "--state", "suspended", "--json"}, `"tenant":"reached"`},
		{[]string{"tenant", "resume", "reached"}, "active"},
		{[]string{"key", "ls"}, "KEY"},
		{[]string{"template", "ls"}, "base"},
		{[]string{"user", "ls", "--tenant", "reached"}, "USER"},
	} {
		if out, errs, code := run(remote, step.args...); code != 0 || !strings.Contains(out, step.want) || errs != "" {
			t.Errorf("%v through the server ends with %d and says %s%s", step.args, code, out, errs)
		}
		if out, _, _ := run(folder, "tenant", "ls"); strings.Contains(out, "reached") {
			t.Fatalf("%v reached the data folder:\n%s", step.args, out)
		}
	}
	if out, errs, code := run(remote, "tenant", "rm", "reached", "--json"); code != 0 || out != "{\"deleted\":true,\"tenant\":\"reached\"}\n" {
		t.Errorf("rm ends with %d and says %s%s", code, out, errs)
	}
	if out, _, _ := run(remote, "tenant", "ls"); strings.Contains(out, "reached") {
		t.Errorf("it is still there:\n%s", out)
	}
	// A data folder from the environment is reported; one from --data is not.
	told := "on the data folder " + here.Data + " of this machine"
	for _, args := range [][]string{
		{"tenant", "ls"},
		{"tenant", "quota", "acme"},
		{"key", "ls"},
		{"key", "ls", "--tenant", "acme"},
		{"template", "ls"},
		{"template", "path", "base"},
		{"audit", "export"},
		{"audit", "verify"},
		{"trust", "key"},
		{"trust", "list"},
		{"builds"},
		{"token", "create", "--tenant", "acme", "--dev"},
	} {
		if out, errs, code := run(folder, args...); code != 0 || !strings.HasPrefix(errs, told) {
			t.Errorf("%v ends with %d and says %s%s", args, code, out, errs)
		}
		if out, errs, code := run(nil, append(args, "--data", here.Data)...); code != 0 || errs != "" {
			t.Errorf("%v --data ends with %d and says %s%s", args, code, out, errs)
		}
	}
	far := "CLOUD_SANDBOX_URL=" + there.URL
	for _, tt := range []struct {
		name string
		env  []string
		args []string
		want string
	}{
		{"two flags", nil, []string{"tenant", "ls", "--url", there.URL, "--data", here.Data}, "give one"},
		{"a flag and the environment", remote, []string{"tenant", "ls", "--data", here.Data}, "--data is for the data folder of this machine, and CLOUD_SANDBOX_URL names a server"},
		{"keys", remote, []string{"key", "ls", "--data", here.Data}, "CLOUD_SANDBOX_URL names a server"},
		{"keys of a tenant", remote, []string{"key", "ls", "--tenant", "acme"}, "--tenant is for the data folder"},
		{"templates", remote, []string{"template", "ls", "--data", here.Data}, "CLOUD_SANDBOX_URL names a server"},
		{"sandboxes", remote, []string{"ls", "--data", here.Data}, "--data and CLOUD_SANDBOX_URL each name a server"},
		{"sandboxes, by flags", nil, []string{"ls", "--data", here.Data, "--url", there.URL}, "--data and --url each name a server"},
		{"a folder without a server", nil, []string{"ls", "--data", t.TempDir()}, "no server runs with the data folder"},
		{"users", remote, []string{"user", "ls", "--data", here.Data}, "each name a server"},
		{"secrets", remote, []string{"secret", "ls", "--data", here.Data}, "each name a server"},
		{"usage", remote, []string{"usage", "--data", here.Data}, "each name a server"},
		{"the audit log", remote, []string{"audit", "ls", "--data", here.Data}, "each name a server"},
		{"export", []string{far}, []string{"audit", "export"}, "say which folder with --data"},
		{"verify", []string{far}, []string{"audit", "verify"}, "say which folder with --data"},
		{"trust", []string{far}, []string{"trust", "list"}, "say which folder with --data"},
		{"trust key", []string{far}, []string{"trust", "key"}, "say which folder with --data"},
		{"builds", []string{far}, []string{"builds"}, "say which folder with --data"},
		{"master keys", []string{far}, []string{"secrets", "rotate"}, "say which folder with --data"},
		{"tokens", []string{far}, []string{"token", "create", "--tenant", "acme", "--dev"}, "say which folder with --data"},
		{"an image", []string{far}, []string{"template", "path", "base"}, "say which folder with --data"},
	} {
		if out, errs, code := run(tt.env, tt.args...); code != 2 || out != "" || !strings.Contains(errs, tt.want) {
			t.Errorf("%s: it ends with %d and says %s%s", tt.name, code, out, errs)
		}
	}
}
