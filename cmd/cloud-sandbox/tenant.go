package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
	"github.com/cloud-sandbox/cloud-sandbox/internal/tenants"
)

func tenantCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenant",
		Short: "Look after tenants, on the server",
		Long: `Look after tenants, on the server.

These commands work on the data folder, as root, while the server runs or not.
What they change holds for a running server within seconds.`,
	}
	cmd.AddCommand(tenantListCommand(), tenantCreateCommand(), tenantSuspendCommand(), tenantResumeCommand(), tenantRemoveCommand(), tenantQuotaCommand())
	return cmd
}

// withTenants calls use with the Tenants of the data folder and its audit log.
func withTenants(cmd *cobra.Command, use func(*tenants.Service, sandbox.AuditStore) error) error {
	data, err := config.DataFolder(given(cmd), os.Getenv)
	if err != nil {
		return err
	}
	return withStore(cmd, "tenants belong", func(s sandbox.Store) error {
		all, err := serve.TenantsOf(s, launch.Layout{Root: data})
		if err != nil {
			return err
		}
		return use(all, s)
	})
}

func tenantListCommand() *cobra.Command {
	var state string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List tenants, by ID",
		Long: `List tenants, by ID: those that were made, and those of which a valid credential
was ever used.`,
		Example: `  sudo cloud-sandbox tenant ls
  sudo cloud-sandbox tenant ls --state suspended --json | jq -r .tenant`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withTenants(cmd, func(s *tenants.Service, _ sandbox.AuditStore) error {
				print := printTenants(cmd.OutOrStdout(), asJSON)
				for q := (sandbox.TenantQuery{State: sandbox.TenantState(state)}); ; {
					page, err := s.List(cmd.Context(), q)
					if err == nil {
						err = print(page.Tenants...)
					}
					if q.Cursor = page.Next; err != nil || q.Cursor == "" {
						return err
					}
				}
			})
		},
	}
	cmd.Flags().StringVar(&state, "state", "", "only those that are active, or suspended")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

// printTenants prints Tenants, a line each.
func printTenants(out io.Writer, asJSON bool) func(...sandbox.Tenant) error {
	if asJSON {
		to := json.NewEncoder(out)
		return func(all ...sandbox.Tenant) error {
			for _, t := range all {
				if err := to.Encode(rest.TenantViewOf(t)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	header := true
	return func(all ...sandbox.Tenant) error {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		if header {
			fmt.Fprintln(w, "TENANT\tSTATE\tCREATED\tNAME\tREASON")
			header = false
		}
		for _, t := range all {
			reason := ""
			if t.Suspended != nil {
				reason = t.Suspended.Reason
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.ID, t.State(), t.CreatedAt.Format(time.DateTime), t.Name, reason)
		}
		return w.Flush()
	}
}

// changesTenant is a command that changes the Tenant in its first argument, is
// recorded as operation, and prints what has become of it.
func changesTenant(cmd *cobra.Command, operation string, change func(ctx context.Context, s *tenants.Service, id sandbox.TenantID) (sandbox.Tenant, error)) *cobra.Command {
	var asJSON bool
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id := sandbox.TenantID(args[0])
		if err := id.Check(); err != nil {
			return err
		}
		return withTenants(cmd, func(s *tenants.Service, log sandbox.AuditStore) error {
			t, err := change(cmd.Context(), s, id)
			if err := serve.AuditOperator(cmd.Context(), log, sandbox.AuditEntry{Tenant: id, Operation: operation, Target: args[0]}, err); err != nil {
				return err
			}
			return printTenants(cmd.OutOrStdout(), asJSON)(t)
		})
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func tenantCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create TENANT",
		Short: "Make a tenant",
		Long: `Make a tenant, of a new ID without a slash. It need not be made: the first use of a
valid credential of it makes its record.`,
		Example: `  sudo cloud-sandbox tenant create acme --name "Acme Ltd"
  sudo cloud-sandbox key create --tenant acme --role owner`,
	}
	name := cmd.Flags().String("name", "", "for people")
	return changesTenant(cmd, "createTenant", func(ctx context.Context, s *tenants.Service, id sandbox.TenantID) (sandbox.Tenant, error) {
		return s.Create(ctx, id, *name)
	})
}

func tenantSuspendCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "suspend TENANT",
		Short: "Refuse a tenant's credentials and pause its sandboxes",
		Long: `Refuse a tenant's credentials, and those of tenants below it, and pause their
sandboxes, until "resume". Nothing is lost, however long it takes. What is under
way ends. A running server acts within seconds.`,
		Example: `  sudo cloud-sandbox tenant suspend acme --reason "mines coins"`,
	}
	reason := cmd.Flags().String("reason", "", "why, for operators; required")
	return changesTenant(cmd, sandbox.AuditTenantSuspended, func(ctx context.Context, s *tenants.Service, id sandbox.TenantID) (sandbox.Tenant, error) {
		return s.Change(ctx, serve.Operator("", sandbox.RoleOperator), id, sandbox.TenantChange{State: new(sandbox.TenantSuspended), Reason: *reason})
	})
}

func tenantResumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "resume TENANT",
		Short:   "Let a suspended tenant go on",
		Long:    `Let a suspended tenant go on. Its sandboxes resume when they are used.`,
		Example: "  sudo cloud-sandbox tenant resume acme",
	}
	return changesTenant(cmd, sandbox.AuditTenantResumed, func(ctx context.Context, s *tenants.Service, id sandbox.TenantID) (sandbox.Tenant, error) {
		return s.Change(ctx, serve.Operator("", sandbox.RoleOperator), id, sandbox.TenantChange{State: new(sandbox.TenantActive)})
	})
}

func tenantRemoveCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rm TENANT...",
		Short: "Remove tenants with their users, keys, secrets and quotas",
		Long: `Remove tenants with their users, keys, secrets and quotas. One that has sessions that have
not ended, snapshots, templates or tenants below it stays. A token that is still
valid makes the record anew.`,
		Example: "  sudo cloud-sandbox tenant rm acme",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withTenants(cmd, func(s *tenants.Service, log sandbox.AuditStore) error {
				for _, id := range args {
					did := sandbox.AuditEntry{Tenant: sandbox.TenantID(id), Operation: "deleteTenant", Target: id}
					if err := serve.AuditOperator(cmd.Context(), log, did, s.Remove(cmd.Context(), serve.Operator("", sandbox.RoleOperator), sandbox.TenantID(id))); err != nil {
						return fmt.Errorf("%s: %w", id, err)
					}
					if !asJSON {
						continue
					}
					if err := json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"tenant": id, "deleted": true}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func tenantQuotaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "quota TENANT [QUOTA]",
		Short: "Show or set what a tenant's sandboxes and snapshots may have together",
		Long: `Show or set what a tenant's sandboxes and snapshots may have together.

QUOTA is FIELD=NUMBER with commas between, of sandboxes, cpus, memory_mb,
disk_mb, creates_per_minute, session_minutes, egress_mb, bandwidth_mbps and snapshot_mb, and of keep_snapshots,
keep_snapshot_mb and keep_snapshot_hours, beyond which snapshots go that no
session refers to, without a name first, and of these the oldest; "off" bounds
nothing, and with "default" the tenant has what CLOUD_SANDBOX_QUOTA says for all.
It holds at once, for what is created from now on; snapshots go within minutes. It works on the data folder, as root, while the server runs
or not.`,
		Example: `  sudo cloud-sandbox tenant quota acme sandboxes=50,cpus=32
  sudo cloud-sandbox tenant quota acme snapshot_mb=20000,keep_snapshots=100
  sudo cloud-sandbox tenant quota acme`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" || len(args[0]) > 128 {
				return errors.New("a tenant has 1 to 128 bytes")
			}
			return withStore(cmd, "quotas belong", func(s sandbox.Store) error {
				return tenantQuota(cmd, s, sandbox.TenantID(args[0]), args[1:])
			})
		},
	}
}

// tenantQuota sets the Quota that args has, if any, and shows the one in force.
func tenantQuota(cmd *cobra.Command, s sandbox.Store, tenant sandbox.TenantID, args []string) error {
	if len(args) == 1 {
		did := sandbox.AuditEntry{Tenant: tenant, Operation: "setQuota", Target: string(tenant)}
		if err := serve.AuditOperator(cmd.Context(), s, did, setQuota(cmd, s, tenant, args[0])); err != nil {
			return err
		}
	}
	q, own, used, err := s.QuotaOf(cmd.Context(), tenant)
	if err != nil {
		return err
	}
	text := q.String()
	if !own {
		text = "default (as CLOUD_SANDBOX_QUOTA of the server says)"
	}
	const mib = 1 << 20
	has := sandbox.Quota{
		Sandboxes: used.Sandboxes, CPUs: used.CPUs, MemoryBytes: used.MemoryBytes, DiskBytes: used.DiskBytes,
		SnapshotBytes: (used.SnapshotBytes + mib - 1) / mib * mib,
	}
	fmt.Fprintf(cmd.OutOrStdout(), "quota  %s\n", text)
	if has == (sandbox.Quota{}) {
		fmt.Fprintln(cmd.OutOrStdout(), "used   nothing")
		return nil
	}
	fmt.Fprintf(cmd.OutOrStdout(), "used   %s\n", has)
	return nil
}

func setQuota(cmd *cobra.Command, s sandbox.QuotaStore, tenant sandbox.TenantID, text string) error {
	if text == "default" {
		return s.SetQuota(cmd.Context(), tenant, nil)
	}
	q, err := sandbox.ParseQuota(text)
	if err != nil {
		return err
	}
	return s.SetQuota(cmd.Context(), tenant, &q)
}
