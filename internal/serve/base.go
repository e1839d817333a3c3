package serve

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// BuildBase makes the Template base in a process of its own, if it is missing, because
// that needs rights that the server has not: it takes the one that came with the
// release, if it is there and no other image was asked for, or else builds it. The
// program for it, cloud-sandbox, is this one or lies beside it.
func BuildBase(ctx context.Context, cfg config.Config) error {
	store, err := template.Open(launch.Layout{Root: cfg.Data}.Templates())
	if err != nil {
		return err
	}
	if _, err := store.Resolve(ctx, "", "base"); err == nil {
		return nil
	}
	exe, err := program(cfg)
	if err != nil {
		return fmt.Errorf("run `cloud-sandbox template build base` once: %w", err)
	}
	args := []string{"template", "build", "base", "--data", cfg.Data}
	released := config.ReleasedBase(exe)
	if _, err := os.Stat(released); err == nil && cfg.SandboxImage == config.DefaultSandboxImage {
		args = []string{"template", "import", released, "--data", cfg.Data}
	}
	build := exec.CommandContext(ctx, exe, args...)
	build.Cancel = func() error { return build.Process.Signal(syscall.SIGTERM) }
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	// A server that clients in this shell use is another matter.
	build.Env = append(withoutSecrets(os.Environ()), "SANDBOX_IMAGE="+cfg.SandboxImage, "CLOUD_SANDBOX_URL=")
	return build.Run()
}

// program is the executable cloud-sandbox: this one, or beside that of a role.
func program(cfg config.Config) (string, error) {
	exe, err := os.Executable()
	if err != nil || cfg.Role == "" {
		return exe, err
	}
	exe = filepath.Join(filepath.Dir(exe), "cloud-sandbox")
	_, err = os.Stat(exe)
	return exe, err
}

// secretVariables are not for processes that run package scripts: what signs
// tokens, and what Tenants' secrets and the copies of Snapshots are sealed with.
var secretVariables = []string{
	"JWT_SECRET", "CLOUD_SANDBOX_SERVICE_SECRET", "CLOUD_SANDBOX_SECRETS_KEY",
	"CLOUD_SANDBOX_API_KEY", "CLOUD_SANDBOX_BLOBS_KEY", "CLOUD_SANDBOX_S3_ACCESS_KEY", "CLOUD_SANDBOX_S3_SECRET_KEY",
}

func withoutSecrets(env []string) []string {
	kept := env[:0:0]
	for _, v := range env {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains(secretVariables, name) {
			kept = append(kept, v)
		}
	}
	return kept
}
