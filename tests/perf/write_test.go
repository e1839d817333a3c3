package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// After a part that failed, what was measured before is in the folder, and the part
// is named with what went wrong.
func TestWriteAfterAFailure(t *testing.T) {
	dir := t.TempDir()
	report := bench.NewReport(nil)
	_ = report.Measure("the first", func() error {
		report.AddFact(bench.Fact{What: "a size", Who: bench.Ours, Value: 12, Unit: "MB", Goal: "<= 12"})
		return nil
	})
	if err := write(report, dir); err != nil {
		t.Fatal(err)
	}
	if err := report.Measure("the second", func() error { return errors.New("no daemon") }); err == nil {
		t.Error("a part that fails does not")
	}
	if err := write(report, dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| a size | 12 MB | <= 12 | yes |", "| the first | 0 |  |", "| the second | 0 | no daemon |"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("%q is not in\n%s", want, page)
		}
	}
	read, err := readReport(filepath.Join(dir, "report.json"))
	if err != nil || len(read.Parts) != 2 || len(read.Facts) != 1 {
		t.Errorf("%+v, %v", read, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.new"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Files that come and go while they are counted disturb nothing, and a file with two
// names counts once.
func TestDiskUsed(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := errors.Join(os.WriteFile(kept, make([]byte, 1<<20), 0o644), os.Link(kept, filepath.Join(dir, "again"))); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				brief := filepath.Join(dir, "brief")
				_ = os.MkdirAll(filepath.Join(brief, "deep"), 0o755)
				_ = os.RemoveAll(brief)
			}
		}
	}()
	for until := time.Now().Add(200 * time.Millisecond); time.Now().Before(until); {
		used, err := diskUsed(dir)
		if err != nil || used < 1<<20 || used > 1<<20+1<<17 {
			t.Fatalf("%d bytes, %v", used, err)
		}
	}
	close(stop)
	<-stopped
}
