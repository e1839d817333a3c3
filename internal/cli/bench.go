package cli

import (
	"fmt"
	"net"
	"net/url"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// OwnServers are parts of bench on servers that it starts itself, beside other
// products. Only a program of this repository with the build tag rivals has them.
type OwnServers interface {
	// Flags adds flags to the command.
	Flags(cmd *cobra.Command)
	// Wanted reports whether the command line asks for these parts in place of the server
	// that it names.
	Wanted() bool
	// Plan returns the numbers that apply where the command line has none.
	Plan() bench.Plan
	// Measure measures the parts that run selects.
	Measure(cmd *cobra.Command, run bench.Run, plan bench.Plan) error
}

// BenchCommand returns the command that measures a server. own may be nil.
func BenchCommand(getenv func(string) string, own OwnServers) *cobra.Command {
	a := &app{getenv: getenv}
	var given bench.Plan
	var size int64
	var only, folder string
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
  cloud-sandbox bench --parts 'creates|calls' --out report
  cloud-sandbox bench --json > bench.json`,
		Args: Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			given.Size = size << 20
			if err := checkPlan(given); err != nil {
				return err
			}
			run := bench.Run{Report: bench.NewReport(cmd.ErrOrStderr()), Folder: folder}
			if only != "" {
				var err error
				if run.Only, err = regexp.Compile(only); err != nil {
					return usagef("--parts: %v", err)
				}
			}
			if own != nil && own.Wanted() {
				return reportOf(cmd, run, own.Measure(cmd, run, over(own.Plan(), given, cmd.Flags().Changed)))
			}
			return a.bench(cmd, run, given)
		},
	}
	clientFlags(cmd)
	f := cmd.Flags()
	f.IntVar(&given.Rounds, "rounds", 30, "how often a sandbox is taken for each operation; 0 leaves these out")
	f.IntVar(&given.Calls, "calls", 100, "how often each operation within a sandbox is done; 0 leaves these out")
	f.IntSliceVar(&given.Bursts, "burst", []int{10}, "how many sandboxes are taken at once; several sizes are measured one after another")
	f.Int64Var(&size, "size-mb", 64, "size of uploads and downloads in MiB; 0 leaves these out")
	f.IntVar(&given.Saves, "saves", 0, "how often sandboxes are paused, resumed and forked; 0 leaves these out")
	f.IntVar(&given.Storm, "storm", 0, "how many paused sandboxes resume at once; 0 leaves this out")
	f.IntVar(&given.Volumes, "volumes", 0, "how often a large file of a volume is written and read; 0 leaves volumes out")
	f.IntVar(&given.Live, "live", 0, "how many sandboxes to keep alive side by side; 0 leaves this out")
	f.StringVar(&only, "parts", "", "measure only the parts whose name matches this regular expression")
	f.StringVar(&folder, "out", "", "folder that also receives the report, as report.json and report.md, after every part")
	if own != nil {
		own.Flags(cmd)
	}
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

// over returns base with the numbers of given whose flags were set.
func over(base, given bench.Plan, changed func(flag string) bool) bench.Plan {
	for flag, set := range map[string]func(){
		"rounds":  func() { base.Rounds = given.Rounds },
		"calls":   func() { base.Calls = given.Calls },
		"burst":   func() { base.Bursts = given.Bursts },
		"size-mb": func() { base.Size = given.Size },
		"saves":   func() { base.Saves = given.Saves },
		"storm":   func() { base.Storm = given.Storm },
		"volumes": func() { base.Volumes = given.Volumes },
		"live":    func() { base.Live = given.Live },
	} {
		if changed(flag) {
			set()
		}
	}
	return base
}

// bench measures the server that the command line names.
func (a *app) bench(cmd *cobra.Command, run bench.Run, plan bench.Plan) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	meter := &bench.Meter{Client: c, Report: run.Report}
	if meter.PoolSize, err = bench.PoolSize(cmd.Context(), c); err != nil {
		return err
	}
	plan.Local = onThisMachine(c.URL())
	run.Report.Step("%s on %s", c.URL(), run.Report.Machine)
	return reportOf(cmd, run, run.Measure(cmd.Context(), meter.Parts(plan)))
}

// reportOf prints the report of a benchmark run, and returns failed. It prints nothing
// after an interruption.
func reportOf(cmd *cobra.Command, run bench.Run, failed error) error {
	if cmd.Context().Err() != nil || len(run.Report.Parts) == 0 {
		return failed
	}
	if wantsJSON(cmd) {
		if err := printJSON(cmd, run.Report); err != nil {
			return err
		}
		return failed
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "\n%s took %s\n\n", run.Report.Heading(), run.Report.Took())
	if err := run.Report.Markdown(cmd.OutOrStdout()); err != nil {
		return err
	}
	return failed
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
