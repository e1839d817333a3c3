// Package perf has the parts of `cloud-sandbox bench` that need this repository: they
// start servers of their own, and measure Docker and bare runsc with the same root
// filesystem in the same run. Only a program with the build tag rivals has them.
// scripts/bench.sh prepares their inputs.
package perf

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// options are the inputs of the parts.
type options struct {
	binary     string // bin/cloud-sandbox
	addr       string // where the measured servers listen
	data       string // data folder with the measured template base
	runsc      string // bare runsc
	s3         string // versitygw, an S3 server; empty: no S3
	rootfs     string // the template's root filesystem, unpacked
	work       string // scratch folder
	out        string // folder for the report; empty: none
	sdks       string // E2B's SDKs, as scripts/e2b-sdks.sh installs them
	typescript string // our TypeScript SDK, as scripts/typescript-env.sh compiles it
}

// url is the URL of the measured servers.
func (o options) url() string { return "http://" + o.addr }

// rounds is the number of measurements of each kind of operation.
type rounds struct {
	bench.Plan
	rival, chain, paused, sdk int
	policy                    int // cost of audit, quotas and network policies
	neighbours                int
	throughput, class         int  // concurrent requests of a crowd of tenants
	profiles                  bool // flame charts and timelines
}

var (
	quickRounds = rounds{Plan: bench.Plan{Rounds: 30, Calls: 100}, rival: 8}
	fullRounds  = rounds{
		Plan:  bench.Plan{Rounds: 50, Calls: 150, Bursts: []int{10, 20, 50, 100}, Size: 1 << 30, Live: 1000, Saves: 12, Storm: 200, Volumes: 10},
		rival: 8, chain: 10, paused: 10000, sdk: 12, policy: 5, neighbours: 100, throughput: 300, class: 1000, profiles: true,
	}
)

// numbers are the flags for numbers that only these parts have.
var numbers = []struct {
	flag, help string
	of         func(*rounds) *int
}{
	{"rival-rounds", "how often each operation of a rival is done", func(n *rounds) *int { return &n.rival }},
	{"chain", "how many snapshots of one session are packed", func(n *rounds) *int { return &n.chain }},
	{"paused", "how many paused sandboxes a server keeps", func(n *rounds) *int { return &n.paused }},
	{"sdk-rounds", "how often each operation of an SDK is done", func(n *rounds) *int { return &n.sdk }},
	{"policy-rounds", "how often each policy is measured", func(n *rounds) *int { return &n.policy }},
	{"neighbours", "how often a program is spawned beside each attack", func(n *rounds) *int { return &n.neighbours }},
	{"throughput", "how many executions a crowd of tenants sends at once", func(n *rounds) *int { return &n.throughput }},
	{"class", "how many submissions a crowd of tenants sends at once", func(n *rounds) *int { return &n.class }},
}

// Servers measures servers that it starts itself, beside rivals. It implements
// cli.OwnServers.
type Servers struct {
	o           options
	given       rounds // numbers, as their flags set them
	quick, full bool
}

// Flags adds the flags of these parts to the command bench.
func (s *Servers) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&s.quick, "quick", false, "measure the main rows on servers of its own, beside Docker and bare runsc")
	f.BoolVar(&s.full, "full", false, "the same with all rows and more rounds")
	f.StringVar(&s.o.binary, "binary", "bin/cloud-sandbox", "the program whose servers are measured")
	f.StringVar(&s.o.addr, "addr", "127.0.0.1:18080", "where these servers listen")
	f.StringVar(&s.o.runsc, "runsc", ".tools/runsc", "bare runsc")
	f.StringVar(&s.o.rootfs, "rootfs", "", "root filesystem of the template base, unpacked")
	f.StringVar(&s.o.work, "work", "", "scratch folder")
	f.StringVar(&s.o.s3, "versitygw", "", "S3 server to measure resumes from")
	f.StringVar(&s.o.sdks, "sdks", "", "folder of E2B's SDKs")
	f.StringVar(&s.o.typescript, "typescript", "", "folder of our TypeScript SDK")
	for _, n := range numbers {
		f.IntVar(n.of(&s.given), n.flag, 0, n.help+"; 0 leaves this out (default by --quick and --full)")
	}
	cmd.MarkFlagsMutuallyExclusive("quick", "full")
}

// Wanted reports whether the command line asks for servers of its own.
func (s *Servers) Wanted() bool { return s.quick || s.full }

// Plan returns the numbers of --quick or --full.
func (s *Servers) Plan() bench.Plan { return s.defaults().Plan }

func (s *Servers) defaults() rounds {
	if s.full {
		return fullRounds
	}
	return quickRounds
}

// Measure measures the parts that run selects.
func (s *Servers) Measure(cmd *cobra.Command, run bench.Run, plan bench.Plan) error {
	n := s.defaults()
	n.Plan = plan
	for _, number := range numbers {
		if cmd.Flags().Changed(number.flag) {
			*number.of(&n) = *number.of(&s.given)
		}
	}
	o := s.o
	o.out = run.Folder
	if o.work == "" || o.rootfs == "" {
		return errors.New("--work and --rootfs are needed: `make bench` prepares them")
	}
	data, err := cmd.Flags().GetString(config.FlagData)
	if err != nil {
		return err
	}
	if o.data, err = config.DataFolder(map[string]string{config.FlagData: data}, os.Getenv); err != nil {
		return err
	}
	watch, err := bench.NewWatch(o.work, o.runsc)
	if err != nil {
		return err
	}
	run.Report.Watch(watch)
	rivals := newRivals(o, n)
	defer rivals.stop()
	return run.Measure(cmd.Context(), parts(o, n, run.Report, rivals))
}

// parts returns all parts in the order in which they are measured.
func parts(o options, n rounds, report *bench.Report, beside *rivals) []bench.Part {
	var all []bench.Part
	add := func(when bool, name string, measure func(context.Context, options, rounds, *bench.Report, *rivals) error) {
		if when {
			all = append(all, bench.Part{Name: name, Measure: func(ctx context.Context) error { return measure(ctx, o, n, report, beside) }})
		}
	}
	add(true, "warm pool", setting(5, 50, bench.Plan{Rounds: n.Rounds, Calls: n.Calls, Size: n.Size}))
	add(true, "no pool", setting(0, 0, bench.Plan{Rounds: max(n.Rounds/2, 1), Live: n.Live, Local: true}))
	add(n.Saves > 0, "pause, resume and fork", setting(0, 0, bench.Plan{Saves: n.Saves, Uncached: true}))
	add(n.chain > 0, "snapshots that are packed", measureChain)
	for _, size := range n.Bursts {
		add(true, fmt.Sprintf("burst of %d, pool of as many", size), setting(size, size, bench.Plan{Bursts: []int{size}}))
	}
	add(len(n.Bursts) > 0, "bursts, pool of 5", setting(5, 50, bench.Plan{Bursts: n.Bursts}))
	add(true, "MCP", measureMCP)
	add(n.paused > 0, fmt.Sprintf("%d paused sandboxes", n.paused), measurePaused)
	add(n.Saves > 0, "snapshots in S3", measureS3)
	add(n.sdk > 0, "E2B's JavaScript SDK and our TypeScript SDK", measureSDK)
	add(n.policy > 0, "policy overhead", measurePolicyOverhead)
	add(n.Volumes > 0, "volumes", setting(0, 0, bench.Plan{Volumes: n.Volumes}))
	add(n.neighbours > 0, "neighbours of attacks", measureNeighbours)
	add(n.throughput > 0 || n.class > 0, "a crowd", measureCrowd)
	add(n.profiles, "profiles", measureProfiles)
	return all
}
