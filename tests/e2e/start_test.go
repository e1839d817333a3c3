package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A start that fails prints one clear sentence and exits with a non-zero code.
func TestStartsThatCannotWork(t *testing.T) {
	t.Parallel()
	s := shared.Machine(t)
	empty := openFolder(t)
	public := filepath.Join("/var/tmp", filepath.Base(s.Data)+"-binary") // where the user nobody can reach it
	if out, err := rig.Command("install", "-m", "755", s.Bin, public).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { os.Remove(public) })
	nobody := []string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", public}
	for _, tt := range []struct {
		name string
		args []string
		env  []string
		want []string // the sentence has all of them
	}{
		{"not root", append(nobody, "serve", "--dev", "--addr", "127.0.0.1:0", "--data", empty+"/none"), nil, []string{"root"}},
		{"down, not root", append(nobody, "down", "--data", s.Data), nil, []string{"root"}},
		{"port in use", []string{s.Bin, "serve", "--dev", "--addr", s.Addr, "--data", empty + "/port"}, nil, []string{s.Addr, "in use", "--addr"}},
		{"data folder in use", []string{s.Bin, "serve", "--dev", "--addr", "127.0.0.1:0", "--data", s.Data}, nil, []string{s.Data, "another", "--data", "`cloud-sandbox doctor`"}},
		{"no space", []string{s.Bin, "serve", "--dev", "--addr", "127.0.0.1:0", "--data", small(t)}, nil, []string{"MiB free", "--data"}},
		{"read-only", []string{s.Bin, "serve", "--dev", "--addr", "127.0.0.1:0", "--data", readOnly(t)}, nil, []string{"read-only file system", "--data", "dmesg"}},
		{"a long path", []string{s.Bin, "serve", "--dev", "--addr", "127.0.0.1:0", "--data", empty + "/" + strings.Repeat("long", 10)}, nil, []string{"bytes", "sockets", "--data"}},
		{"no space at all", []string{s.Bin, "serve", "--dev", "--addr", "127.0.0.1:0", "--data", filepath.Join(full(t), "data")}, nil, []string{"data"}},
		{"no secret", []string{s.Bin, "serve", "--addr", "127.0.0.1:0", "--data", empty + "/secret"}, nil, []string{"JWT_SECRET", "not set"}},
		{"published secret", []string{s.Bin, "serve", "--addr", "127.0.0.1:0", "--data", empty + "/secret"}, []string{"JWT_SECRET=cloud-sandbox-secret"}, []string{"JWT_SECRET", "published"}},
		{"short secret", []string{s.Bin, "serve", "--addr", "127.0.0.1:0", "--data", empty + "/secret"}, []string{"JWT_SECRET=abc"}, []string{"JWT_SECRET", "32"}},
		{"dev mode for others", []string{s.Bin, "serve", "--dev", "--addr", "0.0.0.0:0", "--data", empty + "/dev"}, nil, []string{"dev mode", "localhost"}},
		{"not an address", []string{s.Bin, "serve", "--dev", "--addr", "nonsense", "--data", empty + "/addr"}, nil, []string{"host:port"}},
		{"data is a file", []string{s.Bin, "serve", "--dev", "--addr", "127.0.0.1:0", "--data", "/etc/passwd"}, nil, []string{"/etc/passwd"}},
		{"blobs without a key", []string{s.Bin, "serve", "--dev", "--addr", "127.0.0.1:0", "--data", empty + "/blobs"}, []string{"CLOUD_SANDBOX_BLOBS=file:///var/tmp"}, []string{"CLOUD_SANDBOX_BLOBS_KEY", "openssl"}},
		{"a misspelled setting", []string{s.Bin, "serve", "--dev", "--addr", "127.0.0.1:0", "--data", empty + "/names"}, []string{"CLOUD_SANDBOX_EGRES=none"}, []string{"CLOUD_SANDBOX_EGRES:", "nearest is CLOUD_SANDBOX_EGRESS."}},
		{"unknown flag", []string{s.Bin, "serve", "--nonsense"}, nil, []string{"--nonsense"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
			defer cancel()
			cmd := rig.CommandContext(ctx, tt.args[0], tt.args[1:]...)
			cmd.Dir = "/"
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "POOL_MIN_SIZE=0", "POOL_MAX_SIZE=0"}, tt.env...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() <= 0 || ctx.Err() != nil {
				t.Fatalf("it ended with %v: %s", err, out.String())
			}
			text := strings.TrimSpace(out.String())
			if strings.Count(text, "\n") > 0 || !strings.HasPrefix(text, "cloud-sandbox: ") {
				t.Errorf("it says more than one sentence:\n%s", text)
			}
			for _, w := range tt.want {
				if !strings.Contains(text, w) {
					t.Errorf("it does not say %q: %s", w, text)
				}
			}
		})
	}
	// None of these disturbed the server whose port and folder they tried.
	c := s.Client(t, "undisturbed")
	if r := c.Run(t, c.Acquire(t), "bash", "true", nil); r.Status != "ok" {
		t.Error(r)
	}
	for _, p := range []string{"port", "secret", "dev", "addr", "names"} {
		if sockets, _ := filepath.Glob(filepath.Join(empty, p, "run", "*")); len(sockets) > 0 {
			t.Errorf("a start that failed left %v", sockets)
		}
	}
}

// openFolder is a folder that every user may enter, as the server's must.
func openFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "start-") // data folders have short names
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// small is a folder on a disk of 64 MiB.
func small(t *testing.T) string { return tmpfs(t, "size=64m") }

// full is a folder on a full disk.
func full(t *testing.T) string {
	dir := tmpfs(t, "size=4k,nr_inodes=1")
	return dir
}

// readOnly is a folder on a read-only disk.
func readOnly(t *testing.T) string {
	dir := tmpfs(t, "size=4g")
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=4g"); err != nil {
		t.Fatal(err)
	}
	return dir
}

func tmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := openFolder(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Outside dev mode the API mints no token without a credential. A token from the
// operator's command works.
func TestOutsideDevMode(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	const secret = "JWT_SECRET=0123456789abcdef0123456789abcdef"
	s := rig.Own(t, rig.Options{Env: []string{secret}, Strict: true, Pool: 1})
	c := &rig.Client{URL: s.URL, HTTP: shared.Server(t).Client(t, "strict").HTTP}
	if code, raw, err := c.Do("POST", "/api/v1/auth/token", rig.Body{"user_id": "x", "role": "admin"}); err != nil || code != 403 {
		t.Errorf("a token answers %d %s %v", code, raw, err)
	}
	cmd := rig.Command(s.Bin, "token", "create", "--tenant", "acme", "--data", s.Data)
	cmd.Env = append(os.Environ(), secret)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("token create: %v: %s", err, out)
	}
	c.Token = strings.TrimSpace(string(out))
	if r := c.Run(t, "", "python", "print(1)", nil); r.Stdout != "1\n" {
		t.Error(r)
	}
}

// A restrictive umask of the shell that starts the server has no effect: other users can
// run the unpacked programs.
func TestStartWithACarefulUmask(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	script := filepath.Join(t.TempDir(), "serve") // created first, so that it is removed after the server
	s, err := rig.New(rig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(script, []byte("#!/bin/sh\numask 077\nexec "+s.Bin+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Bin = script
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	if r := s.Client(t, "careful").Run(t, "", "bash", "echo works", nil); r.Stdout != "works\n" {
		t.Error(r)
	}
}
