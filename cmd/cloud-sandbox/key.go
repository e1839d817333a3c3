package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
)

func keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Make, list, rotate and revoke API keys, on the server",
		Long: `Make, list, rotate and revoke API keys, on the server.

These commands work on the data folder, as root, while the server runs or not.
Clients manage the keys of their own tenant with /api/v1/keys.`,
	}
	cmd.PersistentFlags().String("tenant", "default", "whose keys")
	cmd.AddCommand(keyCreateCommand(), keyListCommand(), keyRotateCommand(), keyRevokeCommand())
	return cmd
}

// withKeys calls use with the keys of the data folder and its audit log.
func withKeys(cmd *cobra.Command, use func(*keys.Service, sandbox.AuditStore, sandbox.TenantID) error) error {
	tenant, err := cmd.Flags().GetString("tenant")
	if err != nil {
		return err
	}
	if err := checkTenant(tenant); err != nil {
		return err
	}
	return withStore(cmd, "the keys belong", func(s sandbox.Store) error {
		return use(serve.KeysOf(s), s, sandbox.TenantID(tenant))
	})
}

// checkTenant keeps slashes for the Tenants of users that a key vouches for.
func checkTenant(tenant string) error {
	if tenant == "" || len(tenant) > 100 || strings.Contains(tenant, "/") {
		return errors.New("--tenant must have 1 to 100 bytes and no slash")
	}
	return nil
}

func keyCreateCommand() *cobra.Command {
	var name string
	var admin bool
	var roleName string
	var scopes []string
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an API key and print it, once",
		Example: `  sudo cloud-sandbox key create --admin
  sudo cloud-sandbox key create --tenant ops --role operator
  sudo cloud-sandbox key create --tenant acme --name ci --scope read,write --expires-in 720h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			role := sandbox.Role(roleName)
			if admin {
				role = sandbox.RoleAdmin
			}
			if !role.Valid() {
				return fmt.Errorf("--role must be one of %q", sandbox.Roles())
			}
			req := keys.Request{Name: name, Life: life}
			for _, s := range scopes {
				req.Scopes = append(req.Scopes, sandbox.Scope(s))
			}
			return withKeys(cmd, func(s *keys.Service, log sandbox.AuditStore, tenant sandbox.TenantID) error {
				key, secret, err := s.Create(cmd.Context(), serve.Operator(tenant, role), req)
				did := sandbox.AuditEntry{Tenant: tenant, Operation: "createKey", Target: key.ID}
				if err := serve.AuditOperator(cmd.Context(), log, did, err); err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "key %s of tenant %s, scopes %v; it is not shown again:\n", key.ID, tenant, key.Scopes)
				fmt.Fprintln(cmd.OutOrStdout(), secret)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "operator", "what it is for")
	cmd.Flags().BoolVar(&admin, "admin", false, "for an admin, who may also mint tokens")
	cmd.Flags().StringVar(&roleName, "role", string(sandbox.RoleDeveloper), "viewer, developer, admin, owner or operator, who looks after all tenants")
	cmd.MarkFlagsMutuallyExclusive("admin", "role")
	cmd.Flags().StringSliceVar(&scopes, "scope", nil, fmt.Sprintf("what it may do, of %q (default all of its role)", sandbox.Scopes()))
	cmd.Flags().DurationVar(&life, "expires-in", 0, "how long it is valid (default for ever)")
	return cmd
}

func keyListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the API keys of a tenant, newest first",
		Example: "  sudo cloud-sandbox key list --tenant acme",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withKeys(cmd, func(s *keys.Service, _ sandbox.AuditStore, tenant sandbox.TenantID) error {
				all, err := s.List(cmd.Context(), tenant)
				if err != nil {
					return err
				}
				return printKeys(cmd.OutOrStdout(), all)
			})
		},
	}
}

func printKeys(out io.Writer, all []sandbox.Key) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tNAME\tENDS IN\tROLE\tSCOPES\tCREATED\tEXPIRES\tUSED")
	day := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return t.Format(time.DateTime)
	}
	for _, k := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%v\t%s\t%s\t%s\n", k.ID, k.Name, k.Hint, k.Role, k.Scopes, day(k.CreatedAt), day(k.ExpiresAt), day(k.LastUsed()))
	}
	return w.Flush()
}

func keyRotateCommand() *cobra.Command {
	var overlap time.Duration
	cmd := &cobra.Command{
		Use:   "rotate ID",
		Short: "Give an API key another secret and print it, once",
		Long: `Give an API key another secret and print it, once. The one before stays valid for
--overlap, so that all who use it can change over; with 0 it ends at once, and a
running server refuses it within a second.`,
		Example: `  sudo cloud-sandbox key rotate kx0zqk3v9a1b2c3d4e5f6 --tenant acme --overlap 1h`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withKeys(cmd, func(s *keys.Service, log sandbox.AuditStore, tenant sandbox.TenantID) error {
				key, secret, err := s.Rotate(cmd.Context(), serve.Operator(tenant, sandbox.RoleOperator), args[0], overlap)
				did := sandbox.AuditEntry{Tenant: tenant, Operation: "rotateKey", Target: args[0]}
				if err := serve.AuditOperator(cmd.Context(), log, did, err); err != nil {
					return err
				}
				if p := key.Previous; p.ValidAt(time.Now()) {
					fmt.Fprintf(cmd.ErrOrStderr(), "the secret that ends in %s is valid until %s\n", p.Hint, p.Until.Format(time.DateTime))
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "key %s of tenant %s; it is not shown again:\n", key.ID, tenant)
				fmt.Fprintln(cmd.OutOrStdout(), secret)
				return nil
			})
		},
	}
	cmd.Flags().DurationVar(&overlap, "overlap", sandbox.DefaultKeyOverlap, "how long the secret before stays valid")
	return cmd
}

func keyRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "revoke ID...",
		Short:   "Revoke API keys; a running server refuses them within a second",
		Example: "  sudo cloud-sandbox key revoke kx0zqk3v9a1b2c3d4e5f6 --tenant acme",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withKeys(cmd, func(s *keys.Service, log sandbox.AuditStore, tenant sandbox.TenantID) error {
				for _, id := range args {
					did := sandbox.AuditEntry{Tenant: tenant, Operation: "deleteKey", Target: id}
					if err := serve.AuditOperator(cmd.Context(), log, did, s.Revoke(cmd.Context(), serve.Operator(tenant, sandbox.RoleOperator), id)); err != nil {
						return fmt.Errorf("%s: %w", id, err)
					}
				}
				return nil
			})
		},
	}
}
