package cli

import (
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

func (a *app) networkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "network",
		Short: "Show what a sandbox's network policy decided",
		Long: `Show what a sandbox's network policy decided. The policy is set when a sandbox is
created: create --network, --allow and --deny.`,
		Example: `  cloud-sandbox network log my-agent
  cloud-sandbox network log my-agent --verdict refused`,
	}
	cmd.AddCommand(a.networkLogCommand())
	clientFlags(cmd)
	return cmd
}

func (a *app) networkLogCommand() *cobra.Command {
	var verdict string
	cmd := &cobra.Command{
		Use:   "log SANDBOX",
		Short: "List names and connections that were allowed or refused, oldest first",
		Long: `List the names that a running sandbox asked for and the connections that it began,
oldest first, with the verdict and its reason. The latest 256 decisions are kept;
equal ones are counted.`,
		Example: `  cloud-sandbox network log my-agent
  cloud-sandbox network log my-agent --verdict refused
  cloud-sandbox network log my-agent --json | jq '.decisions[].name'`,
		Args: Args(1, 1, "one SANDBOX"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if verdict != "" && verdict != "allowed" && verdict != "refused" {
				return usagef("--verdict must be allowed or refused")
			}
			log, err := c.NetworkLog(cmd.Context(), args[0], verdict)
			if err != nil {
				return err
			}
			return printNetworkLog(cmd, log)
		}),
		ValidArgsFunction: a.firstSandbox,
	}
	cmd.Flags().StringVar(&verdict, "verdict", "", "only decisions with this verdict: allowed or refused")
	_ = cmd.RegisterFlagCompletionFunc("verdict", cobra.FixedCompletions([]string{"allowed", "refused"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func printNetworkLog(cmd *cobra.Command, log v1.NetworkLog) error {
	if wantsJSON(cmd) {
		return printJSON(cmd, log)
	}
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "LAST\tTIMES\tVERDICT\tPROTOCOL\tNAME\tADDRESS\tPORT\tREASON")
	for _, d := range log.Decisions {
		fmt.Fprintln(t, row(brief(time.Since(d.LastAt))+" ago", strconv.FormatInt(d.Count, 10), d.Verdict, d.Protocol,
			d.Name, d.Address, strconv.Itoa(int(d.Port)), d.Reason))
	}
	return t.Flush()
}
