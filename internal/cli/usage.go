package cli

import (
	"fmt"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

func (a *app) usageCommand() *cobra.Command {
	var from, to string
	var by []string
	cmd := &cobra.Command{
		Use:   "usage [SANDBOX_ID]",
		Short: "Show the usage of your sandboxes, and its cost",
		Long: `Show the usage of your sandboxes, or of one of them, by day in UTC, and its cost if the
server has prices. Time counts while they run, at their limits; running sandboxes are
counted every minute.`,
		Example: `  cloud-sandbox usage
  cloud-sandbox usage --from 2026-01-01 --to 2026-02-01 --by day
  cloud-sandbox usage --by sandbox --json | jq '.[].vcpu_seconds'`,
		Args: Args(0, 1, "at most one SANDBOX_ID"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			query := url.Values{}
			for name, value := range map[string]string{"from": from, "to": to, "group_by": strings.Join(by, ",")} {
				if value != "" {
					query.Set(name, value)
				}
			}
			if len(args) > 0 {
				query.Set("sandbox_id", args[0])
			}
			rows, err := c.Usage(cmd.Context(), query)
			if err != nil {
				return err
			}
			return printUsage(cmd, rows)
		}),
		ValidArgsFunction: a.firstSandbox,
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "the first day (default the first of this month)")
	f.StringVar(&to, "to", "", "the day after the last (default tomorrow)")
	f.StringSliceVar(&by, "by", nil, "group by day, sandbox, or day,sandbox")
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"day", "sandbox", "day,sandbox"}, cobra.ShellCompDirectiveNoFileComp))
	clientFlags(cmd)
	return cmd
}

func printUsage(cmd *cobra.Command, rows []v1.Usage) error {
	if wantsJSON(cmd) {
		return printAll(cmd, rows)
	}
	const hour = 3600
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "DAY\tSANDBOX\tHOURS\tVCPU HOURS\tMEMORY GIB HOURS\tDISK GIB HOURS\tEGRESS\tCOST")
	for _, r := range rows {
		cost := ""
		if r.Cost != nil {
			cost = fmt.Sprintf("%.4f %s", r.Cost.Total, r.Cost.Currency)
		}
		number := func(n float64) string { return fmt.Sprintf("%.3f", n/hour) }
		fmt.Fprintln(t, row(r.Day, r.SandboxID, number(r.Seconds), number(r.CPUSeconds), number(r.MemoryGiBSeconds), number(r.DiskGiBSeconds), size(r.EgressBytes), cost))
	}
	return t.Flush()
}
