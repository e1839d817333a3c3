package cli

import (
	"fmt"
	"net"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

func (a *app) benchCommand() *cobra.Command {
	var plan bench.Plan
	var size int64
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a server as its users feel it",
		Long: `Measure a server as its users feel it: through the public API, from this
machine, over kept-alive connections. It prints a table of medians and 95th and
99th percentiles, and ends with exit code 1 when anything failed.

Sandboxes are taken, used and ended; give the server nothing else to do, or the
figures are of both. --live starts many and needs their memory.`,
		Example: `  cloud-sandbox bench
  cloud-sandbox bench --rounds 200 --burst 10,50,100
  cloud-sandbox bench --live 1000 --rounds 0 --calls 0
  cloud-sandbox bench --json > bench.json`,
		Args: Args(0, 0, "no arguments"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			plan.Size = size << 20
			if err := checkPlan(plan); err != nil {
				return err
			}
			return runBench(cmd, c, plan)
		}),
	}
	clientFlags(cmd)
	f := cmd.Flags()
	f.IntVar(&plan.Rounds, "rounds", 30, "how often a sandbox is taken for each operation; 0 leaves these out")
	f.IntVar(&plan.Calls, "calls", 100, "how often each operation within a sandbox is done; 0 leaves these out")
	f.IntSliceVar(&plan.Bursts, "burst", []int{10}, "how many sandboxes are taken at once; several sizes are measured one after another")
	f.Int64Var(&size, "size-mb", 64, "size of uploads and downloads in MiB; 0 leaves these out")
	f.IntVar(&plan.Saves, "saves", 0, "how often sandboxes are paused, resumed and forked; 0 leaves these out")
	f.IntVar(&plan.Storm, "storm", 0, "how many paused sandboxes resume at once; 0 leaves this out")
	f.IntVar(&plan.Volumes, "volumes", 0, "how often a large file of a volume is written and read; 0 leaves volumes out")
	f.IntVar(&plan.Live, "live", 0, "how many sandboxes to keep alive side by side; 0 leaves this out")
	return cmd
}

// Upper bounds of bench's flags.
const (
	maxRounds  = 100_000
	maxAtOnce  = 10_000
	maxSizeMiB = 64 << 10
	// maxVolumeRounds is the most rounds that fit the timeout of their program.
	maxVolumeRounds = 100
)

func checkPlan(p bench.Plan) error {
	for _, v := range []struct {
		flag  string
		value int
		most  int
	}{{"rounds", p.Rounds, maxRounds}, {"calls", p.Calls, maxRounds}, {"live", p.Live, maxAtOnce}, {"saves", p.Saves, maxRounds}, {"storm", p.Storm, maxAtOnce}, {"volumes", p.Volumes, maxVolumeRounds}, {"size-mb", int(p.Size >> 20), maxSizeMiB}} {
		if v.value < 0 || v.value > v.most {
			return usagef("--%s must be from 0 to %d", v.flag, v.most)
		}
	}
	for _, n := range p.Bursts {
		if n < 1 || n > maxAtOnce {
			return usagef("--burst must be from 1 to %d", maxAtOnce)
		}
	}
	return nil
}

func runBench(cmd *cobra.Command, c *client.Client, plan bench.Plan) error {
	ctx := cmd.Context()
	size, err := bench.PoolSize(ctx, c)
	if err != nil {
		return err
	}
	plan.Local = onThisMachine(c.URL())
	report := bench.NewReport(cmd.ErrOrStderr())
	meter := &bench.Meter{Client: c, Report: report, PoolSize: size}
	report.Step("%s on %s", c.URL(), report.Machine)
	if err := meter.Run(ctx, plan); err != nil {
		return err
	}
	if wantsJSON(cmd) {
		err = printJSON(cmd, report)
	} else {
		fmt.Fprintln(cmd.ErrOrStderr())
		err = report.Markdown(cmd.OutOrStdout())
	}
	if n := report.Failures(); err == nil && n > 0 {
		err = fmt.Errorf("%d operations failed", n)
	}
	return err
}

// onThisMachine reports whether an address of a server is a loopback one.
func onThisMachine(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
