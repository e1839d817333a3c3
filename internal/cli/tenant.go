package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// Tenants are the tenants that commands work on: of an operator's *client.Client, or
// of this machine's data folder. Methods are as the Client's.
type Tenants interface {
	Tenants(ctx context.Context, state string) ([]v1.Tenant, error)
	CreateTenant(ctx context.Context, id, name string) (v1.Tenant, error)
	SuspendTenant(ctx context.Context, id, reason string) (v1.Tenant, error)
	ResumeTenant(ctx context.Context, id string) (v1.Tenant, error)
	RemoveTenant(ctx context.Context, id string) error
	TenantQuota(ctx context.Context, id string) (v1.TenantQuota, error)
	SetTenantQuota(ctx context.Context, id string, limits map[string]float64) (v1.TenantQuota, error)
}

// TenantCommand returns the command tenant. local calls use with the Tenants of this
// machine's data folder.
func TenantCommand(getenv func(string) string, local func(cmd *cobra.Command, use func(Tenants) error) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenant",
		Short: "Manage tenants, for operators",
		Long: "Manage tenants, for operators.\n\n" + fmt.Sprintf(reachHelp, "--data") + `

A running server applies changes within seconds.`,
		Example: `  cloud-sandbox tenant ls
  cloud-sandbox tenant suspend acme --reason "mines coins"
  sudo cloud-sandbox tenant quota acme sandboxes=50,cpus=32`,
	}
	t := tenantCommands{app: &app{getenv: getenv}, local: local}
	clientFlags(cmd)
	cmd.AddCommand(t.list(), t.create(), t.suspend(), t.resume(), t.remove(), t.quota())
	return cmd
}

type tenantCommands struct {
	*app
	local func(cmd *cobra.Command, use func(Tenants) error) error
}

// with is the RunE of a command that uses Tenants.
func (t *tenantCommands) with(work func(cmd *cobra.Command, tenants Tenants, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return t.through(cmd, []string{"data"}, func() error {
			return t.local(cmd, func(tenants Tenants) error { return work(cmd, tenants, args) })
		}, func(c *client.Client) error { return work(cmd, c, args) })
	}
}

func (t *tenantCommands) list() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List tenants, by ID",
		Long: `List tenants, by ID: tenants that were created, and tenants whose valid credentials
were ever used. --json prints one object a line.`,
		Example: `  cloud-sandbox tenant ls
  sudo cloud-sandbox tenant ls --state suspended --json | jq -r .tenant`,
		Args: Args(0, 0, "no arguments"),
		RunE: t.with(func(cmd *cobra.Command, tenants Tenants, _ []string) error {
			all, err := tenants.Tenants(cmd.Context(), state)
			if err != nil {
				return err
			}
			return printTenants(cmd, all...)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&state, "state", "", "only active, or only suspended tenants")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(userStates, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// printTenants prints Tenants, a line each.
func printTenants(cmd *cobra.Command, all ...v1.Tenant) error {
	if wantsJSON(cmd) {
		to := json.NewEncoder(cmd.OutOrStdout())
		for _, t := range all {
			if err := to.Encode(t); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TENANT\tSTATE\tCREATED\tNAME\tREASON")
	for _, t := range all {
		reason := ""
		if t.Suspended != nil {
			reason = t.Suspended.Reason
		}
		fmt.Fprintln(w, row(t.ID, t.State, t.CreatedAt.UTC().Format(time.DateTime), t.Name, reason))
	}
	return w.Flush()
}

// changes returns the RunE of a command that changes the Tenant in its first
// argument, and prints the changed Tenant.
func (t *tenantCommands) changes(change func(ctx context.Context, tenants Tenants, id string) (v1.Tenant, error)) func(*cobra.Command, []string) error {
	return t.with(func(cmd *cobra.Command, tenants Tenants, args []string) error {
		if err := sandbox.TenantID(args[0]).Check(); err != nil {
			return err
		}
		changed, err := change(cmd.Context(), tenants, args[0])
		if err != nil {
			return err
		}
		return printTenants(cmd, changed)
	})
}

func (t *tenantCommands) create() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create TENANT",
		Short: "Make a tenant",
		Long: `Make a tenant with a new ID without a slash. This is optional: the first use of a valid
credential of the tenant makes its record.`,
		Example: `  cloud-sandbox tenant create acme --name "Acme Ltd"
  sudo cloud-sandbox key create --tenant acme --role owner`,
		Args:              Args(1, 1, "one TENANT"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	name := cmd.Flags().String("name", "", "for people")
	cmd.RunE = t.changes(func(ctx context.Context, tenants Tenants, id string) (v1.Tenant, error) {
		return tenants.CreateTenant(ctx, id, *name)
	})
	return cmd
}

func (t *tenantCommands) suspend() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "suspend TENANT",
		Short: "Refuse a tenant's credentials and pause its sandboxes",
		Long: `Refuse the credentials of a tenant and of tenants below it, and pause their sandboxes,
until "resume". Nothing is lost. Requests in progress are cancelled. A running server
acts within seconds.`,
		Example:           `  cloud-sandbox tenant suspend acme --reason "mines coins"`,
		Args:              Args(1, 1, "one TENANT"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	reason := cmd.Flags().String("reason", "", "reason, for operators; required")
	cmd.RunE = t.changes(func(ctx context.Context, tenants Tenants, id string) (v1.Tenant, error) {
		return tenants.SuspendTenant(ctx, id, *reason)
	})
	return cmd
}

func (t *tenantCommands) resume() *cobra.Command {
	return &cobra.Command{
		Use:               "resume TENANT",
		Short:             "Lift the suspension of a tenant",
		Long:              `Lift the suspension of a tenant. Its sandboxes resume when they are used.`,
		Example:           "  cloud-sandbox tenant resume acme",
		Args:              Args(1, 1, "one TENANT"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: t.changes(func(ctx context.Context, tenants Tenants, id string) (v1.Tenant, error) {
			return tenants.ResumeTenant(ctx, id)
		}),
	}
}

func (t *tenantCommands) remove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm TENANT...",
		Short: "Remove tenants with their users, keys, secrets and quotas",
		Long: `Remove tenants with their users, keys, secrets and quotas. A tenant is not removed
while it has sessions that have not ended, snapshots, templates or tenants below it. A
token that is still valid makes the record again. --json prints one object a line.`,
		Example:           "  cloud-sandbox tenant rm acme",
		Args:              Args(1, -1, "one TENANT or more"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: t.with(func(cmd *cobra.Command, tenants Tenants, args []string) error {
			for _, id := range args {
				if err := tenants.RemoveTenant(cmd.Context(), id); err != nil {
					return fmt.Errorf("%s: %w", clean(id), err)
				}
				if !wantsJSON(cmd) {
					continue
				}
				if err := json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"tenant": id, "deleted": true}); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

func (t *tenantCommands) quota() *cobra.Command {
	return &cobra.Command{
		Use:   "quota TENANT [QUOTA]",
		Short: "Show or set the quota of a tenant",
		Long: `Show or set the quota of a tenant: limits on the sum of its sandboxes and snapshots.

QUOTA is a list of FIELD=NUMBER, separated by commas. The fields are sandboxes, cpus,
memory_mb, disk_mb, creates_per_minute, session_minutes, egress_mb, bandwidth_mbps,
snapshot_mb, volumes, volume_mb, template_mb, keep_snapshots, keep_snapshot_mb and
keep_snapshot_hours. Beyond the last three, snapshots that no session refers to are
deleted within minutes: first snapshots without a name, the oldest first. "off" sets
no limit, and "default" applies CLOUD_SANDBOX_QUOTA of the server. The other limits
apply at once, to objects created from now on.`,
		Example: `  cloud-sandbox tenant quota acme sandboxes=50,cpus=32
  cloud-sandbox tenant quota acme snapshot_mb=20000,keep_snapshots=100
  sudo cloud-sandbox tenant quota acme`,
		Args:              Args(1, 2, "one TENANT, and a QUOTA to set"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: t.with(func(cmd *cobra.Command, tenants Tenants, args []string) error {
			if err := sandbox.TenantID(args[0]).Check(); err != nil {
				return err
			}
			if len(args) == 1 {
				q, err := tenants.TenantQuota(cmd.Context(), args[0])
				return printQuota(cmd, q, err)
			}
			var limits map[string]float64
			if args[1] != "default" {
				q, err := sandbox.ParseQuota(args[1])
				if err != nil {
					return err
				}
				limits = quotaNumbers(q)
			}
			q, err := tenants.SetTenantQuota(cmd.Context(), args[0], limits)
			return printQuota(cmd, q, err)
		}),
	}
}

// quotaNumbers are the fields of q by their names.
func quotaNumbers(q sandbox.Quota) map[string]float64 {
	fields := map[string]float64{}
	for pair := range strings.SplitSeq(q.String(), ",") {
		name, value, _ := strings.Cut(pair, "=")
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			fields[name] = n
		}
	}
	return fields
}

// printQuota prints a quota and its usage. If err is not nil, it returns err.
func printQuota(cmd *cobra.Command, q v1.TenantQuota, err error) error {
	if err != nil {
		return err
	}
	if wantsJSON(cmd) {
		return printJSON(cmd, q)
	}
	limits, err := sandbox.QuotaOf(q.Limits.Numbers())
	if err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	text := limits.String()
	if !q.Own {
		text = "default (as CLOUD_SANDBOX_QUOTA of the server says)"
	}
	// Per-minute usage and the number of snapshots are only in the JSON.
	used := q.Used.Numbers()
	maps.DeleteFunc(used, func(name string, n float64) bool {
		return n <= 0 || name == "creates_per_minute" || name == "snapshots"
	})
	has, err := sandbox.QuotaOf(used)
	if err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "quota  %s\n", text)
	if has == (sandbox.Quota{}) {
		fmt.Fprintln(cmd.OutOrStdout(), "used   nothing")
		return nil
	}
	fmt.Fprintf(cmd.OutOrStdout(), "used   %s\n", has)
	return nil
}
