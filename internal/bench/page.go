package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
)

// Files of a Report in a folder.
const (
	reportFile  = "report.json"  // without samples
	pageFile    = "report.md"    // its tables
	samplesFile = "samples.json" // with all samples, from which plots are drawn
)

// Heading names the machine and the day.
func (r *Report) Heading() string {
	return fmt.Sprintf("%s, %s.", r.Machine, r.At.Format(time.DateOnly))
}

// Took returns the time since r began, in seconds.
func (r *Report) Took() time.Duration { return time.Since(r.At).Round(time.Second) }

// legend explains the columns of a page.
const legend = "Times are in milliseconds; goals are medians, with the 99th percentile in brackets. " +
	"Each rival was measured right after its row, on the same machine with the same root filesystem. " +
	"The ratio says how many times as good the row is as its rival: above 1 it is better.\n"

// Page returns the tables with a title and a legend, in Markdown.
func (r *Report) Page() ([]byte, error) {
	var page bytes.Buffer
	fmt.Fprintf(&page, "# Benchmarks\n\n%s %s\n", r.Heading(), legend)
	err := r.Markdown(&page)
	return page.Bytes(), err
}

// Write writes r to a folder, which it makes, as report.json and report.md, and with
// all samples as samples.json. Each file is replaced as a whole.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	published := r.Published()
	whole, err := json.MarshalIndent(published, "", " ")
	if err != nil {
		return err
	}
	samples, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return errors.Join(
		durable.WriteLoose(filepath.Join(dir, reportFile), append(whole, '\n'), 0o644),
		durable.WriteLoose(filepath.Join(dir, samplesFile), samples, 0o644),
		published.WritePage(dir))
}

// WritePage writes only report.md.
func (r *Report) WritePage(dir string) error {
	page, err := r.Page()
	if err != nil {
		return err
	}
	return durable.WriteLoose(filepath.Join(dir, pageFile), page, 0o644)
}

// ReadReport reads the report.json of a folder.
func ReadReport(dir string) (*Report, error) {
	file := filepath.Join(dir, reportFile)
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	report := new(Report)
	if err := json.Unmarshal(b, report); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return report, nil
}
