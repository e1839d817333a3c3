// Command perf measures Cloud Sandbox through its public REST API over kept-alive
// loopback connections. In the same run it measures Docker and bare runsc with the
// same root filesystem. It writes the tables. scripts/bench.sh prepares its inputs
// and calls it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

type options struct {
	binary     string // bin/cloud-sandbox
	data       string // data folder with the measured template base
	runsc      string // bare runsc
	s3         string // versitygw, an S3 server; empty: no S3
	rootfs     string // the template's root filesystem, unpacked
	work       string // scratch folder
	out        string // folder for the report; empty: the table goes to standard output only
	sdks       string // E2B's SDKs, as scripts/e2b-sdks.sh installs them; needed when full
	typescript string // our TypeScript SDK, as scripts/typescript-env.sh compiles it; needed when full
	full       bool
	parts      *regexp.Regexp // selects measurements by the names that errors give them; nil: all
}

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "bin/cloud-sandbox", "the server")
	flag.StringVar(&address, "addr", address, "where the server listens")
	flag.StringVar(&o.data, "data", "/var/lib/cloud-sandbox", "data folder with the template base")
	flag.StringVar(&o.runsc, "runsc", ".tools/runsc", "bare runsc")
	flag.StringVar(&o.s3, "versitygw", "", "S3 server to measure resumes from")
	flag.StringVar(&o.rootfs, "rootfs", "", "root filesystem of the template base")
	flag.StringVar(&o.work, "work", "", "scratch folder")
	flag.StringVar(&o.out, "out", "", "folder for the report")
	flag.StringVar(&o.sdks, "sdks", "", "folder of E2B's SDKs, for more rows")
	flag.StringVar(&o.typescript, "typescript", "", "folder of our TypeScript SDK, for rows beside E2B's")
	flag.BoolVar(&o.full, "full", false, "more rounds and more rows")
	flag.Func("parts", "measure only parts whose name has this regular expression in it, as \"policy\"", func(v string) (err error) {
		o.parts, err = regexp.Compile(v)
		return err
	})
	readme := flag.String("readme", "", "measure nothing: write the table of this README, and report.md, from the report.json in --out")
	flag.Parse()
	if *readme != "" {
		if err := publish(*readme, o.out); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		if ctx.Err() != nil {
			os.Exit(exitStopped)
		}
		os.Exit(1)
	}
}

// exitStopped is the exit status after a signal, as shells have it for Ctrl-C. Some
// parts are then missing.
const exitStopped = 130

// rounds is the number of measurements of each kind of operation.
type rounds struct {
	warm, cold, calls, rival         int
	bursts                           []int
	size                             int64
	live                             int
	saves, chain, storm, paused, sdk int
	policy                           int // cost of audit, quotas and network policies
	volumes, neighbours              int
	throughput, class                int  // concurrent requests of a crowd of tenants
	profiles                         bool // flame charts and timelines
}

// part is a group of measurements with one set of servers.
type part struct {
	name    string
	measure func(context.Context, options, rounds, *bench.Report, *rivals) error
}

// parts returns all parts in the order in which they are measured.
func parts(n rounds) []part {
	all := append(settings(n), part{"MCP", measureMCP})
	if n.paused > 0 {
		all = append(all, part{fmt.Sprintf("%d paused sandboxes", n.paused), measurePaused})
	}
	if n.saves > 0 {
		all = append(all, part{"snapshots in S3", measureS3})
	}
	if n.sdk > 0 {
		all = append(all, part{"E2B's JavaScript SDK and our TypeScript SDK", measureSDK})
	}
	if n.policy > 0 {
		all = append(all, part{"policy overhead", measurePolicyOverhead})
	}
	if n.volumes > 0 {
		all = append(all, setting("volumes", 0, 0, bench.Plan{Volumes: n.volumes}))
	}
	if n.neighbours > 0 {
		all = append(all, part{"neighbours of attacks", measureNeighbours})
	}
	if n.throughput > 0 || n.class > 0 {
		all = append(all, part{"a crowd", measureCrowd})
	}
	if n.profiles {
		all = append(all, part{"profiles", measureProfiles})
	}
	return all
}

var (
	quickRounds = rounds{warm: 30, cold: 20, calls: 100, rival: 8}
	fullRounds  = rounds{
		warm: 50, cold: 25, calls: 150, rival: 8, bursts: []int{10, 20, 50, 100}, size: 1 << 30, live: 1000,
		saves: 12, chain: 10, storm: 200, paused: 10000, sdk: 12, policy: 5, volumes: 10, neighbours: 100, throughput: 300, class: 1000, profiles: true,
	}
)

func run(ctx context.Context, o options) error {
	n := quickRounds
	if o.full {
		n = fullRounds
	}
	report := bench.NewReport(os.Stderr)
	watch, err := bench.NewWatch(o.work, o.runsc)
	if err != nil {
		return err
	}
	report.Watch(watch)
	rivals := newRivals(o, n)
	defer rivals.stop()
	var failed error
	for _, part := range parts(n) {
		if o.parts != nil && !o.parts.MatchString(part.name) {
			continue
		}
		err := report.Measure(part.name, func() error { return part.measure(ctx, o, n, report, rivals) })
		// Keep the results so far, however the next parts end.
		if failed = errors.Join(failed, err, keepReport(report, o.out)); ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), failed)
		}
	}
	fmt.Printf("\n%s took %s\n\n", report.Heading(), time.Since(report.At).Round(time.Second))
	failed = errors.Join(failed, report.Markdown(os.Stdout))
	if failures := report.Failures(); failures > 0 {
		failed = errors.Join(failed, fmt.Errorf("%d operations failed", failures))
	}
	return failed
}

// keepReport writes report into a folder; an empty dir writes nothing.
func keepReport(report *bench.Report, dir string) error {
	if dir == "" {
		return nil
	}
	return report.Write(dir)
}
