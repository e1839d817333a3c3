package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

func (a *app) linkCommand() *cobra.Command {
	var expires seconds
	cmd := &cobra.Command{
		Use:   "link SANDBOX PORT",
		Short: "Print a link that opens a port of a sandbox in a browser",
		Long: `Print a link that opens a port of a sandbox in a browser, also a private port, until
the link expires. Every owner of the link can use it.`,
		Example: `  cloud-sandbox link my-agent 3000
  cloud-sandbox link my-agent 3000 --expires 10m --json | jq -r .token`,
		Args: Args(2, 2, "SANDBOX and PORT"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 {
				return usagef("PORT must be a number from 1 to 65535, not %q", args[1])
			}
			return printLink(cmd, c, args[0], uint16(port), expires.duration())
		}),
		ValidArgsFunction: a.firstSandbox,
	}
	cmd.Flags().Var(&expires, "expires", "how long the link is valid (default 1h)")
	clientFlags(cmd)
	return cmd
}

func printLink(cmd *cobra.Command, c *client.Client, id string, port uint16, life time.Duration) error {
	link, err := c.LinkPort(cmd.Context(), id, port, life)
	switch {
	case err != nil:
		return err
	case wantsJSON(cmd):
		return printJSON(cmd, link)
	case link.URL == "":
		return sandbox.Errorf(sandbox.Invalid, "the server is reached by an IP address, which has no subdomains: reach it by a host name, or send the token of --json as a header")
	}
	if _, err = fmt.Fprintln(cmd.OutOrStdout(), clean(link.URL)); err == nil {
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "valid until %s\n", link.ExpiresAt.Local().Format(time.DateTime))
	}
	return err
}
