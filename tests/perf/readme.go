package perf

import (
	"fmt"
	"os"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// These lines enclose the table of README, which only Publish writes.
const (
	tableBegins = "<!-- bench: written by `make bench` from docs/benchmarks/report.json -->"
	tableEnds   = "<!-- bench ends -->"
)

// headlines are the rows of README's table, by their names in a Report: one for each
// kind of operation. report.md has all rows.
var headlines = []string{
	bench.Acquire,
	bench.AcquireAndRun,
	bench.RunPython,
	bench.RunBash,
	bench.Spawn,
	bench.Echo,
	bench.Overhead,
	bench.ColdCreate,
	bench.Pause(bench.IdleSession),
	bench.Resume(bench.IdleSession),
	bench.Pause(bench.LargeFileSession + bench.AtRest),
	bench.Pause(bench.LargeFileSession + bench.RightAfterWrite),
	bench.Pause(bench.LargeFileSession + bench.RightAfterResume),
	bench.Fork(10),
	bench.BurstOf(20, 5),
	bench.LiveMemory(1000),
	bench.LiveCPU(1000),
	bench.Upload(1 << 30),
	bench.Download(1 << 30),
}

// readmeTable returns the text between the marks of README: the machine, and the
// headline rows of report.
func readmeTable(report *bench.Report) string {
	return fmt.Sprintf("Measured on %s\n\n%s", report.Heading(), report.Headlines(headlines))
}

// split returns the parts of a README before, between and after the marks.
func split(readme string) (before, table, after string, err error) {
	before, rest, begins := strings.Cut(readme, tableBegins+"\n\n")
	table, after, ends := strings.Cut(rest, "\n"+tableEnds)
	if !begins || !ends {
		return "", "", "", fmt.Errorf("README has no lines %q and %q", tableBegins, tableEnds)
	}
	return before, table, after, nil
}

// Publish writes the table of a README, and report.md, from the report.json in a
// folder.
func Publish(readme, dir string) error {
	report, err := bench.ReadReport(dir)
	if err != nil {
		return err
	}
	if err := report.WritePage(dir); err != nil {
		return err
	}
	text, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	before, _, after, err := split(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(readme, []byte(before+tableBegins+"\n\n"+readmeTable(report)+"\n"+tableEnds+after), 0o644)
}
