// Command perf measures Cloud Sandbox through its public REST API over a
// kept-alive loopback connection, beside Docker and bare runsc running the same
// root filesystem, in one run, and prints a table of medians and 99th
// percentiles. scripts/bench.sh prepares what it needs and calls it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

type options struct {
	binary string // bin/cloud-sandbox
	data   string // data folder whose template base is measured
	runsc  string // bare runsc
	rootfs string // the template's root filesystem, unpacked
	work   string // scratch folder
	full   bool
}

func main() {
	var o options
	flag.StringVar(&o.binary, "binary", "bin/cloud-sandbox", "the server")
	flag.StringVar(&o.data, "data", "/var/lib/cloud-sandbox", "data folder with the template base")
	flag.StringVar(&o.runsc, "runsc", ".tools/runsc", "bare runsc")
	flag.StringVar(&o.rootfs, "rootfs", "", "root filesystem of the template base")
	flag.StringVar(&o.work, "work", "", "scratch folder")
	flag.BoolVar(&o.full, "full", false, "more rounds and more rows")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	rounds := map[bool]rounds{
		false: {warm: 30, cold: 20, spawn: 100, docker: 8, runsc: 8, burst: 0},
		true:  {warm: 200, cold: 60, spawn: 500, docker: 20, runsc: 20, burst: 100},
	}[o.full]
	var t table
	began := time.Now()
	if err := measureServer(ctx, o, rounds, &t); err != nil {
		return fmt.Errorf("cloud-sandbox: %w", err)
	}
	if err := measureDocker(ctx, o, rounds, &t); err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	if err := measureRunsc(ctx, o, rounds, &t); err != nil {
		return fmt.Errorf("runsc: %w", err)
	}
	fmt.Printf("\n%s, %s; %s\n\n", machine(), time.Now().UTC().Format("2006-01-02"), time.Since(began).Round(time.Second))
	t.print(os.Stdout)
	return nil
}

// rounds is how often each kind of operation is measured.
type rounds struct{ warm, cold, spawn, docker, runsc, burst int }

// machine describes where this ran, for the line above the table.
func machine() string {
	cpu, kernel := "unknown CPU", "unknown kernel"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		n := strings.Count(string(b), "processor\t")
		if _, name, ok := strings.Cut(string(b), "model name\t: "); ok {
			name, _, _ = strings.Cut(name, "\n")
			cpu = fmt.Sprintf("%d cores of %s", n, name)
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = "Linux " + strings.TrimSpace(string(b))
	}
	memory := ""
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kb int
		if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &kb); err == nil {
			memory = fmt.Sprintf(", %d GiB", (kb+1<<19)>>20)
		}
	}
	return cpu + memory + ", " + kernel
}
