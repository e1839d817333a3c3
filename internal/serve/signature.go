package serve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
)

// SignatureCommand is the subcommand of cloud-sandbox that prints the signature of a build.
const SignatureCommand = "build-signature"

// Signature returns the signature of a build from the authority of the cluster. See
// launch.Options. It runs SignatureCommand as a separate process, because the caller is
// root, and the server owns the certificate.
func Signature(ctx context.Context, cfg config.Config, build string) ([]byte, error) {
	exe, err := program(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, SignatureCommand, build, "--identity", cfg.Cluster)
	cmd.Env = withoutSecrets(os.Environ())
	cmd.WaitDelay = time.Second // the server's user could keep the pipes open
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(problem.Bytes()))
	}
	return out.Bytes(), nil
}

// PrintSignature implements SignatureCommand with the identity in a folder. It gives up root
// for good before it opens that.
func PrintSignature(ctx context.Context, folder, build string, out io.Writer) error {
	if err := launch.BecomeServer(); err != nil {
		return err
	}
	identity, err := cluster.Open(folder, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	raw, err := identity.BuildSignature(ctx, build)
	if err == nil {
		_, err = out.Write(raw)
	}
	return err
}
