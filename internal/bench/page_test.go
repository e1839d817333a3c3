package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// After a part that failed, what was measured before is in the folder, and the part
// is named with what went wrong.
func TestWriteAfterAFailure(t *testing.T) {
	dir := t.TempDir()
	report := NewReport(nil)
	_ = report.Measure("the first", func() error {
		report.AddFact(Fact{What: "a size", Who: Ours, Value: 12, Unit: "MB", Goal: "<= 12"})
		return nil
	})
	if err := report.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := report.Measure("the second", func() error { return errors.New("no daemon") }); err == nil {
		t.Error("a part that fails does not")
	}
	if err := report.Write(dir); err != nil {
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
	read, err := ReadReport(dir)
	if err != nil || len(read.Parts) != 2 || len(read.Facts) != 1 {
		t.Errorf("%+v, %v", read, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 3 {
		t.Errorf("left: %v, %v", left, err)
	}
}
