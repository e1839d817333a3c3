//go:build linux && !client

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make access tokens",
	}
	var tenant, user, role string
	create := &cobra.Command{
		Use:   "create",
		Short: "Print an access token, valid for 24 hours",
		Long: `Print an access token, valid for 24 hours, signed with the server's JWT_SECRET.

Set the same JWT_SECRET as the server; with --dev the secret that dev mode keeps
in the data folder is used.`,
		Example: `  sudo JWT_SECRET=$SECRET cloud-sandbox token create --tenant acme --user alice`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkTenant(tenant); err != nil {
				return err
			}
			as, err := rest.ParseRole(role)
			if err != nil {
				return cli.FlagError(cmd, fmt.Errorf("--role: %w", err))
			}
			if err := cli.OnFolder(cmd, os.Getenv); err != nil {
				return err
			}
			cfg, err := config.Load(setFlags(cmd), os.Environ())
			if err != nil {
				return err
			}
			cfg.Data = launch.Layout{Root: cfg.Data}.Server()
			if err := cfg.KeepSecret(); err != nil {
				return err
			}
			if err := (sandbox.User{ID: user}).Check(); err != nil {
				return cli.FlagError(cmd, fmt.Errorf("--user: %w", err))
			}
			token, err := mint(cfg, sandbox.Identity{Tenant: sandbox.TenantID(tenant), User: user, Role: as})
			if err != nil {
				return err
			}
			return cli.Print(cmd, map[string]any{
				"access_token": token, "token_type": "bearer", "expires_in": int(gateway.TokenLife.Seconds()),
			}, token)
		},
	}
	create.Flags().StringVar(&tenant, "tenant", "", "tenant of the token (required)")
	create.Flags().StringVar(&user, "user", "operator", "user of the tenant")
	create.Flags().StringVar(&role, "role", v1.RoleName(sandbox.RoleDeveloper), "viewer, user, admin, owner or operator")
	create.Flags().Bool("dev", false, "use the secret of dev mode")
	_ = create.MarkFlagRequired("tenant")
	cli.JSONFlag(create)
	cmd.AddCommand(create)
	return cmd
}

func mint(cfg config.Config, who sandbox.Identity) (string, error) {
	tokens, err := gateway.NewTokens(cfg.Secret, nil)
	if err != nil {
		return "", err
	}
	token, _, err := tokens.Mint(who, gateway.TokenLife)
	return token, err
}
