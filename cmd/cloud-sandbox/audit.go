package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/audit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
)

func auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List a tenant's audit log; export and verify the whole log, on the server",
		Long: `List a tenant's audit log; export and verify the whole log, on the server.

"ls" asks a server for the entries of your own tenant. The other commands work on
the data folder of this machine, as root, whether a server runs or not. They need
--data when CLOUD_SANDBOX_URL names a server.`,
	}
	cmd.AddCommand(cli.AuditList(os.Getenv), auditExportCommand(), auditVerifyCommand())
	return cmd
}

// withAudit calls use with the audit log of the data folder.
func withAudit(cmd *cobra.Command, use func(sandbox.AuditStore) error) error {
	if err := cli.OnFolder(cmd, os.Getenv); err != nil {
		return err
	}
	return withStore(cmd, "the audit log belongs", func(s sandbox.Store) error { return use(s) })
}

func auditExportCommand() *cobra.Command {
	var tenant string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the audit log as JSON Lines, oldest entry first",
		Long: `Write the audit log as JSON Lines, oldest entry first.

An export of the whole log can be verified on any machine. An export of a single
tenant cannot: the hash chain goes through the entries of all tenants.`,
		Example: `  sudo cloud-sandbox audit export > audit.jsonl
  sudo cloud-sandbox audit export --tenant acme | jq -c 'select(.outcome == "denied")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAudit(cmd, func(s sandbox.AuditStore) error {
				return audit.Export(cmd.Context(), s, cmd.OutOrStdout(), func(e sandbox.AuditEntry) bool {
					return !cmd.Flags().Changed("tenant") || e.Tenant == sandbox.TenantID(tenant)
				})
			})
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "only entries of this tenant; empty: only requests without a valid credential (default all)")
	return cmd
}

func auditVerifyCommand() *cobra.Command {
	var expect string
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Check that no entry of the audit log was changed, removed or inserted",
		Long: `Check that no entry of the audit log was changed, removed or inserted.

It checks the log of the data folder, or a whole export in FILE ("-": standard
input), and names the first entry that is wrong. It prints the last entry as
SEQ:HASH. Keep that on another machine: with --expect-last it shows later whether
the end was cut off or the log was rewritten.`,
		Example: `  sudo cloud-sandbox audit verify
  cloud-sandbox audit verify audit.jsonl --expect-last 4711:5f1d...`,
		Args: cli.Args(0, 1, "one FILE or none"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var check audit.Checker
			if cmd.Flags().Changed("expect-last") {
				mark, err := audit.ParseMark(expect)
				if err != nil {
					return fmt.Errorf("--expect-last: %w", err)
				}
				check.Expect = &mark
			}
			if err := verify(cmd, &check, args); err != nil {
				return err
			}
			last := audit.Mark(check.Last)
			return cli.Print(cmd, map[string]any{"entries": check.Entries, "after": check.First.Seq, "last": last},
				fmt.Sprintf("whole: %d entries after entry %d\nlast %s", check.Entries, check.First.Seq, last))
		},
	}
	cli.JSONFlag(cmd)
	cmd.Flags().StringVar(&expect, "expect-last", "", "SEQ:HASH of an entry that must exist, as an earlier verify printed it")
	return cmd
}

// verify feeds check the log that args name.
func verify(cmd *cobra.Command, check *audit.Checker, args []string) error {
	if len(args) == 0 {
		return withAudit(cmd, func(s sandbox.AuditStore) error { return check.Store(cmd.Context(), s) })
	}
	if args[0] == "-" {
		return check.Lines(cmd.InOrStdin())
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	return check.Lines(f)
}
