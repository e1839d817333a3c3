package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
)

func tenantCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenant",
		Short: "Look after tenants, on the server",
	}
	cmd.AddCommand(tenantQuotaCommand())
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
