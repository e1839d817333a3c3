package perf

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// README's table and report.md match report.json. Only `make bench` writes them.
func TestReadmeIsOfTheReport(t *testing.T) {
	const docs = "../../docs/benchmarks"
	report, err := bench.ReadReport(docs)
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _, err := split(string(readme))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(readmeTable(report), table); diff != "" {
		t.Errorf("README's table is not of report.json (run go run ./tests/perf/publish README.md docs/benchmarks):\n%s", diff)
	}
	want, err := report.Page()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(docs, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("report.md is not of report.json:\n%s", diff)
	}
}

// Publish changes only the table, and is idempotent.
func TestPublish(t *testing.T) {
	dir := t.TempDir()
	readme := filepath.Join(dir, "README.md")
	content, err := os.ReadFile("../../docs/benchmarks/report.json")
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, text string) {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("report.json", string(content))
	write("README.md", "before\n\n"+tableBegins+"\n\nold\n\n"+tableEnds+"\n\nafter\n")
	var last string
	for range 2 {
		if err := Publish(readme, dir); err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(readme)
		if err != nil {
			t.Fatal(err)
		}
		before, table, after, err := split(string(now))
		if err != nil || before != "before\n\n" || after != "\n\nafter\n" || table == "old\n" {
			t.Fatalf("%v: before %q, table %q, after %q", err, before, table, after)
		}
		if last != "" && last != string(now) {
			t.Errorf("the second time it is\n%s", now)
		}
		last = string(now)
	}
	write("README.md", "no table here")
	if err := Publish(readme, dir); err == nil {
		t.Error("a README without a table is taken")
	}
}

// Every headline has a rival in a full run, except those without a counterpart in any
// product.
func TestHeadlinesHaveRivals(t *testing.T) {
	without := map[string]bool{
		bench.LiveCPU(1000):    true,
		bench.LiveMemory(1000): true, // its rival is a Fact
	}
	rivals := newRivals(options{}, fullRounds).table()
	for _, name := range headlines {
		if has := rivals[name] != nil; has == without[name] {
			t.Errorf("%q has a rival: %v", name, has)
		}
	}
}
