// Command perf measures Cloud Sandbox through its public REST API over
// kept-alive loopback connections, beside Docker and bare runsc running the same
// root filesystem, in one run, and writes the tables. scripts/bench.sh prepares
// what it needs and calls it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

type options struct {
	binary string // bin/cloud-sandbox
	data   string // data folder whose template base is measured
	runsc  string // bare runsc
	s3     string // versitygw, an S3 server; empty: none is measured with
	rootfs string // the template's root filesystem, unpacked
	work   string // scratch folder
	out    string // folder for report.json and report.md; empty: the table goes to standard output only
	sdks   string // E2B's SDKs, as scripts/e2b-sdks.sh installs them; needed when full
	full   bool
	parts  *regexp.Regexp // of what is measured, by the names that errors give them; nil: all
}

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "bin/cloud-sandbox", "the server")
	flag.StringVar(&o.data, "data", "/var/lib/cloud-sandbox", "data folder with the template base")
	flag.StringVar(&o.runsc, "runsc", ".tools/runsc", "bare runsc")
	flag.StringVar(&o.s3, "versitygw", "", "S3 server to measure resumes from")
	flag.StringVar(&o.rootfs, "rootfs", "", "root filesystem of the template base")
	flag.StringVar(&o.work, "work", "", "scratch folder")
	flag.StringVar(&o.out, "out", "", "folder for the report")
	flag.StringVar(&o.sdks, "sdks", "", "folder of E2B's SDKs, for more rows")
	flag.BoolVar(&o.full, "full", false, "more rounds and more rows")
	flag.Func("parts", "measure only parts whose name has this regular expression in it, as \"walls\"", func(v string) (err error) {
		o.parts, err = regexp.Compile(v)
		return err
	})
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// rounds is how often each kind of operation is measured.
type rounds struct {
	warm, cold, calls, docker, runsc int
	bursts                           []int
	size                             int64
	live                             int
	saves, chain, storm, paused, sdk int
	walls                            int // what audit, quotas and policies cost
	volumes                          int
}

func run(ctx context.Context, o options) error {
	n := rounds{warm: 30, cold: 20, calls: 100, docker: 8, runsc: 8}
	if o.full {
		n = rounds{warm: 50, cold: 25, calls: 150, docker: 8, runsc: 8, bursts: []int{10, 50, 100}, size: 1 << 30, live: 1000, saves: 12, chain: 10, storm: 200, paused: 10000, sdk: 12, walls: 5, volumes: 10}
	}
	report := bench.NewReport(os.Stderr)
	var failed error
	for _, part := range []struct {
		who     string
		measure func(context.Context, options, rounds, *bench.Report) error
	}{
		{"cloud-sandbox", measureServer},
		{"cloud-sandbox, paused", measurePaused},
		{"cloud-sandbox, S3", measureS3},
		{"cloud-sandbox by E2B's SDK", measureSDK},
		{"cloud-sandbox, walls", measureWalls},
		{"cloud-sandbox, volumes", measureVolumes},
		{"docker", measureDocker},
		{"runsc", measureRunsc},
	} {
		if o.parts != nil && !o.parts.MatchString(part.who) {
			continue
		}
		err := part.measure(ctx, o, n, report)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil { // what the other parts measure is not lost
			failed = errors.Join(failed, fmt.Errorf("%s: %w", part.who, err))
		}
	}
	fmt.Printf("\n%s, %s; took %s\n\n", report.Machine, report.At.Format(time.DateOnly), time.Since(report.At).Round(time.Second))
	err := errors.Join(failed, report.Markdown(os.Stdout))
	if o.out != "" {
		err = errors.Join(err, write(report, o.out))
	}
	if failures := report.Failures(); failures > 0 {
		err = errors.Join(err, fmt.Errorf("%d operations failed", failures))
	}
	return err
}

// write keeps a Report as JSON, from which the plots are drawn, and as Markdown.
func write(report *bench.Report, dir string) error {
	b, err := json.Marshal(report)
	if err != nil {
		return err
	}
	table, err := os.Create(filepath.Join(dir, "report.md"))
	if err != nil {
		return err
	}
	defer table.Close()
	fmt.Fprintf(table, "%s, %s.\n\n", report.Machine, report.At.Format(time.DateOnly))
	return errors.Join(report.Markdown(table), os.WriteFile(filepath.Join(dir, "report.json"), b, 0o644))
}
