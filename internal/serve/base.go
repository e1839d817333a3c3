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
// the server lacks the rights. It takes the release's base, if that exists and no other
// image is configured, or else builds it. The program for it, cloud-sandbox, is this one
// or lies beside it.
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
	// CLOUD_SANDBOX_URL of this shell may name another server.
	build.Env = append(withoutSecrets(os.Environ()), "SANDBOX_IMAGE="+cfg.SandboxImage, "CLOUD_SANDBOX_URL=")
	return build.Run()
}

// program is the executable cloud-sandbox: this one, or the one beside a role's.
func program(cfg config.Config) (string, error) {
	exe, err := os.Executable()
	if err != nil || cfg.Role == "" {
		return exe, err
	}
	exe = filepath.Join(filepath.Dir(exe), "cloud-sandbox")
	_, err = os.Stat(exe)
	return exe, err
}

// secretVariables are hidden from processes that run package scripts: the keys that
// sign tokens, the keys that encrypt Tenants' secrets and copies of Snapshots, the seed
// of guests' tokens, and the credentials for the API, the database and S3.
var secretVariables = []string{
	"JWT_SECRET", "CLOUD_SANDBOX_DATABASE", "PGPASSWORD", "CLOUD_SANDBOX_SERVICE_SECRET", "CLOUD_SANDBOX_GUEST_SEED", "CLOUD_SANDBOX_SECRETS_KEY",
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
