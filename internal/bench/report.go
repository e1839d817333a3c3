package bench

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// Report collects what was measured, in the order in which it was measured. Its
// methods are safe for concurrent use.
type Report struct {
	Machine string    `json:"machine"` // where the bench ran
	At      time.Time `json:"at"`
	Series  []*Series `json:"series"`
	Facts   []Fact    `json:"facts"`

	mu sync.Mutex
	// progress is told each result as soon as it is there; may be nil.
	progress io.Writer
}

// NewReport returns an empty Report about this machine, which tells progress of
// each result as soon as it is there. A nil progress is told nothing.
func NewReport(progress io.Writer) *Report {
	return &Report{Machine: Machine(), At: time.Now().UTC(), progress: progress}
}

// Add adds a finished Series.
func (r *Report) Add(s *Series) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Series = append(r.Series, s)
	r.say("  %-62s %-14s %9s (p99 %s)%s\n", s.Operation, s.Who, ms(s.Percentile(50)), ms(s.Percentile(99)), failed(s))
}

// AddFact adds a value.
func (r *Report) AddFact(f Fact) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Facts = append(r.Facts, f)
	r.say("  %-62s %-14s %9s\n", f.What, f.Who, f)
}

// Step announces what is measured next, and how long the Report is under way.
func (r *Report) Step(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.say("%s (%s)\n", fmt.Sprintf(format, args...), time.Since(r.At).Round(time.Second))
}

func (r *Report) say(format string, args ...any) {
	if r.progress != nil {
		fmt.Fprintf(r.progress, format, args...)
	}
}

// Failures is how many operations failed.
func (r *Report) Failures() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, s := range r.Series {
		n += s.Failures
	}
	return n
}

// Markdown writes the tables.
func (r *Report) Markdown(w io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	if len(r.Series) > 0 {
		b.WriteString("| Operation | | median ms | p95 ms | p99 ms | n | failed | goal |\n|---|---|---:|---:|---:|---:|---:|---|\n")
	}
	for _, s := range r.Series {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %d | %d | %s |\n", s.Operation, s.Who,
			ms(s.Percentile(50)), ms(s.Percentile(95)), ms(s.Percentile(99)), len(s.Samples), s.Failures, s.Goal)
	}
	if len(r.Facts) > 0 {
		b.WriteString("\n| Figure | | measured | goal |\n|---|---|---:|---|\n")
	}
	for _, f := range r.Facts {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.What, f.Who, f, f.Goal)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }

func failed(s *Series) string {
	if s.Failures == 0 {
		return ""
	}
	return fmt.Sprintf(", %d FAILED: %s", s.Failures, s.Failure)
}

// Machine describes this machine in a line: processors, memory and kernel.
func Machine() string {
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
	if kib, err := memInfo("MemTotal"); err == nil {
		memory = fmt.Sprintf(", %d GiB", (kib+1<<19)>>20)
	}
	return cpu + memory + ", " + kernel
}

// memInfo returns a line of /proc/meminfo in KiB.
func memInfo(name string) (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			var kib int64
			if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
				return 0, fmt.Errorf("/proc/meminfo: %s: %w", name, err)
			}
			return kib, nil
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no %s", name)
}
