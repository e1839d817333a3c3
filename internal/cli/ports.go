package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

func (a *app) portsCommand() *cobra.Command {
	var all bool
	var forward forwards
	var address string
	var public, private []uint
	cmd := &cobra.Command{
		Use:   "ports SANDBOX",
		Short: "List the TCP ports of a sandbox, or reach them from here",
		Long: `List the TCP ports that programs in a sandbox listen on, as the sandbox reports
them, and the address of each from outside.

With --forward, TCP connections to a port of this machine are forwarded to a port in
the sandbox, also one on its loopback address, until Ctrl-C. The sandbox counts as
used while a connection is open.

With --public a port needs no token, and with --private it needs one. This applies at
once, and to that port alone.`,
		Example: `  cloud-sandbox ports my-agent
  cloud-sandbox ports my-agent --json | jq '.[].port'
  cloud-sandbox ports my-agent --forward 8080:3000
  cloud-sandbox ports my-agent -f 5432 -f 0:6379
  cloud-sandbox ports my-agent --private 8000`,
		Args: Args(1, 1, "one SANDBOX"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if len(public)+len(private) > 0 {
				if len(forward) > 0 || all {
					return usagef("--public and --private change ports: leave --forward and --all out")
				}
				return setPorts(cmd, c, args[0], public, private)
			}
			if len(forward) > 0 {
				return forwardPorts(cmd, c, args[0], address, forward)
			}
			if cmd.Flags().Changed("address") {
				return usagef("--address needs --forward")
			}
			return listPorts(cmd, c, args[0], all)
		}),
		ValidArgsFunction: a.firstSandbox,
	}
	f := cmd.Flags()
	f.BoolVarP(&all, "all", "a", false, "also the ports of the guest agent")
	f.VarP(&forward, "forward", "f", "forward a local port to a port in the sandbox; local port 0 is any free port")
	f.StringVar(&address, "address", "localhost", "address of this machine to listen on, with --forward")
	f.UintSliceVar(&public, "public", nil, "make this port public: it needs no token; may be repeated")
	f.UintSliceVar(&private, "private", nil, "make this port private: it needs a token, see link; may be repeated")
	clientFlags(cmd)
	return cmd
}

// setPorts makes ports public or private and prints how to reach them then.
func setPorts(cmd *cobra.Command, c *client.Client, id string, public, private []uint) error {
	changed := []v1.Port{}
	for i, n := range append(slices.Clone(public), private...) {
		if n == 0 || n > math.MaxUint16 {
			return usagef("%d is not a port: it must be a number from 1 to 65535", n)
		}
		p, err := c.SetPort(cmd.Context(), id, uint16(n), i >= len(public))
		if err != nil {
			return err
		}
		changed = append(changed, p)
	}
	if wantsJSON(cmd) {
		return printJSON(cmd, changed)
	}
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "PORT\tURL")
	for _, p := range changed {
		fmt.Fprintln(t, row(strconv.Itoa(int(p.Port)), marked(p.URL, p.Private)))
	}
	return t.Flush()
}

// marked returns a URL, with a note if its port requires a token.
func marked(url string, private bool) string {
	if private && url != "" {
		return url + " (private)"
	}
	return url
}

func listPorts(cmd *cobra.Command, c *client.Client, id string, all bool) error {
	ports, truncated, err := c.Ports(cmd.Context(), id, all)
	if err != nil {
		return err
	}
	if truncated {
		fmt.Fprintln(cmd.ErrOrStderr(), "cloud-sandbox: the list is cut off: the sandbox has more ports")
	}
	if wantsJSON(cmd) {
		return printJSON(cmd, ports)
	}
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "PORT\tADDRESS\tPID\tPROCESS\tURL")
	for _, p := range ports {
		pid := ""
		if p.PID > 0 {
			pid = strconv.FormatInt(p.PID, 10)
		}
		fmt.Fprintln(t, row(strconv.Itoa(int(p.Port)), p.Address, pid, p.Process, marked(p.URL, p.Private)))
	}
	return t.Flush()
}
