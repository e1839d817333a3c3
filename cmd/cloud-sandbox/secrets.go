//go:build linux && !client

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
)

func secretsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Manage the master keys of tenants' secrets, on the server",
	}
	cmd.AddCommand(secretsRotateCommand())
	return cmd
}

func secretsRotateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Encrypt every secret again with the first master key",
		Long: `Encrypt every secret of every tenant again with the first master key, so that the
other master keys can be removed.

Set CLOUD_SANDBOX_SECRETS_KEY or CLOUD_SANDBOX_SECRETS_KEY_FILE as for the
server: the new key first, then the old one. Restart the server with both, run
this, and restart the server with the new key alone. It works on the data folder,
as root, whether the server runs or not, and can be repeated.`,
		Example: `  sudo CLOUD_SANDBOX_SECRETS_KEY=$NEW,$OLD cloud-sandbox secrets rotate`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.OnFolder(cmd, os.Getenv); err != nil {
				return err
			}
			return withStore(cmd, "secrets belong", func(s sandbox.Store) error {
				return rotateSecrets(cmd, s)
			})
		},
	}
	cli.JSONFlag(cmd)
	return cmd
}

func rotateSecrets(cmd *cobra.Command, s interface {
	sandbox.SecretStore
	sandbox.AuditStore
},
) error {
	service, err := serve.OperatorSecrets(os.Getenv, s)
	if err != nil {
		return err
	}
	n, err := service.Rotate(cmd.Context())
	did := sandbox.AuditEntry{Operation: "rotateSecrets", Detail: fmt.Sprintf("%d secrets", n)}
	if err := serve.AuditOperator(cmd.Context(), s, did, err); err != nil {
		return err
	}
	return cli.Print(cmd, map[string]int{"sealed": n}, fmt.Sprintf("%d secrets were encrypted again; all are under the first key", n))
}
