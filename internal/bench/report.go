package bench

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Report collects results in the order of their measurement. Its methods are safe for
// concurrent use.
type Report struct {
	Machine string     `json:"machine"` // where the bench ran
	At      time.Time  `json:"at"`
	Parts   []Measured `json:"parts,omitempty"`
	Series  []*Series  `json:"series"`
	Facts   []Fact     `json:"facts"`

	mu sync.Mutex
	// progress receives each result at once; may be nil.
	progress io.Writer
	watch    *Watch // nil: the machine is not watched
}

// Measured is a Part that has ended.
type Measured struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"` // of the part's failure
}

// NewReport returns an empty Report about this machine, which writes each result to
// progress at once. A nil progress receives nothing.
func NewReport(progress io.Writer) *Report {
	return &Report{Machine: Machine(), At: time.Now().UTC(), progress: progress}
}

// Watch adds to every result the use of the machine by others since the last Begin.
func (r *Report) Watch(w *Watch) { r.watch = w }

// Begin starts the time for which the next results are watched.
func (r *Report) Begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watch == nil {
		return
	}
	if err := r.watch.Begin(); err != nil {
		r.say("  cannot watch what else uses the machine: %v\n", err)
	}
}

func (r *Report) disturbance() *Disturbance {
	if r.watch == nil {
		return nil
	}
	d, err := r.watch.Since()
	if err != nil {
		r.say("  cannot watch what else uses the machine: %v\n", err)
	}
	return d
}

// Add adds finished Series that were measured together.
func (r *Report) Add(all ...*Series) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.disturbance()
	for _, s := range all {
		s.Disturbed = d
		if err := s.sum(); err != nil {
			r.say("  %s: %v\n", s.Operation, err)
		}
		r.Series = append(r.Series, s)
		r.say("  %-62s %9s ms (p99 %s, n %d)%s%s%s%s\n", s.Operation, number(s.Median), number(s.P99), s.N, verdict(s.Goal, s.Met), beside(s), disturbed(d), failed(s))
	}
}

// AddFact adds values that were measured together.
func (r *Report) AddFact(all ...Fact) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.disturbance()
	for _, f := range all {
		f.Disturbed = d
		if err := f.sum(); err != nil {
			r.say("  %s: %v\n", f.What, err)
		}
		r.Facts = append(r.Facts, f)
		against := ""
		if f.Rival != nil {
			against = fmt.Sprintf("; %s: %s, ratio %s", f.Rival.What, f.Rival, times(f.Ratio))
		}
		r.say("  %-62s %9s%s%s%s\n", f.What, f, verdict(f.Goal, f.Met), against, disturbed(d))
	}
}

func verdict(goal string, met *bool) string {
	switch {
	case met == nil:
		return ""
	case *met:
		return ", goal " + goal + " met"
	default:
		return ", goal " + goal + " MISSED"
	}
}

func beside(s *Series) string {
	if s.Rival == nil {
		return ""
	}
	return fmt.Sprintf("; %s: %s ms, ratio %s", s.Rival.Operation, number(s.Rival.Median), times(s.Ratio))
}

func disturbed(d *Disturbance) string {
	if text := d.String(); text != "" {
		return ", disturbed: " + text
	}
	return ""
}

func failed(s *Series) string {
	if s.Failures == 0 {
		return ""
	}
	return fmt.Sprintf(", %d FAILED: %s", s.Failures, s.Failure)
}

// Step announces the next measurement, and the time since the Report began.
func (r *Report) Step(format string, args ...any) {
	r.say("%s (after %s)\n", fmt.Sprintf(format, args...), r.Took())
	r.Begin()
}

// Measure runs the measurements of one part, and records their duration and error.
func (r *Report) Measure(name string, measure func() error) error {
	began := time.Now()
	r.Step("%s", name)
	err := measure()
	part := Measured{Name: name, Seconds: tenths(time.Since(began).Seconds())}
	if err != nil {
		part.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
		err = fmt.Errorf("%s: %w", name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Parts = append(r.Parts, part)
	outcome := "took"
	if err != nil {
		outcome = "FAILED after"
	}
	r.say("  %s %.1f s\n", outcome, part.Seconds)
	return err
}

func (r *Report) say(format string, args ...any) {
	if r.progress != nil {
		fmt.Fprintf(r.progress, format, args...)
	}
}

// Failures returns the number of failed operations.
func (r *Report) Failures() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, s := range r.Series {
		n += s.Failures
	}
	return n
}

// Published returns a copy of r without samples, small enough to commit with the
// code.
func (r *Report) Published() *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &Report{Machine: r.Machine, At: r.At, Parts: r.Parts, Facts: r.Facts}
	for _, s := range r.Series {
		p.Series = append(p.Series, s.published())
	}
	return p
}

func (s *Series) published() *Series {
	p := *s
	p.Samples = nil
	if s.Rival != nil {
		p.Rival = s.Rival.published()
	}
	return &p
}

// Markdown writes the tables. It leaves out columns without values.
func (r *Report) Markdown(w io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rows := r.rows()
	t := table{
		{name: "Operation"},
		{name: "Median", right: true},
		{name: "p95", right: true},
		{name: "p99", right: true},
		{name: "n", right: true},
		{name: "Failed", right: true},
		{name: "Goal"},
		{name: "Met"},
		{name: "Rival"},
		{name: "Its median", right: true},
		{name: "Ratio", right: true},
		{name: "Disturbed by"},
	}
	var notes []string
	for _, row := range rows {
		name := row.name
		if row.note != "" {
			if !slices.Contains(notes, row.note) {
				notes = append(notes, row.note)
			}
			name += fmt.Sprintf(" (note %d)", slices.Index(notes, row.note)+1)
		}
		t.add(name, row.value, row.p95, row.p99, row.n, row.failed, row.goal, row.met, row.rival, row.rivalValue, row.ratio, row.disturbed)
	}
	var b strings.Builder
	t.write(&b)
	for i, note := range notes {
		fmt.Fprintf(&b, "\nNote %d: %s\n", i+1, note)
	}
	if len(r.Parts) > 0 {
		parts := table{{name: "Part"}, {name: "Seconds", right: true}, {name: "Failed with"}}
		for _, p := range r.Parts {
			parts.add(p.Name, fmt.Sprintf("%.0f", p.Seconds), p.Error)
		}
		b.WriteString("\n")
		parts.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// row is a Series or a Fact in a table.
type row struct {
	name, value, p95, p99, n, failed, goal, met, rival, rivalValue, ratio, disturbed, note string
}

const noRival = "none"

// rows returns all results: first Series, then the rest.
func (r *Report) rows() []row {
	rivals := false
	for _, s := range r.Series {
		rivals = rivals || s.Rival != nil
	}
	var rows []row
	for _, s := range r.Series {
		shown := row{
			name: s.Operation, value: number(s.Median) + " ms", p95: number(s.P95), p99: number(s.P99), n: strconv.Itoa(s.N),
			goal: s.Goal, met: yesNo(s.Met), ratio: times(s.Ratio), disturbed: s.Disturbed.String(), note: s.Note,
		}
		if s.N == 0 {
			shown.value, shown.p95, shown.p99 = "none succeeded", "", ""
		}
		if s.Failures > 0 {
			shown.failed = strconv.Itoa(s.Failures)
		}
		if s.Rival != nil {
			shown.rival, shown.rivalValue = s.Rival.Operation, number(s.Rival.Median)+" ms"
		} else if rivals && s.Who == Ours {
			shown.rival = noRival
		}
		rows = append(rows, shown)
	}
	for _, f := range r.Facts {
		shown := row{name: f.What, value: f.String(), goal: f.Goal, met: yesNo(f.Met), ratio: times(f.Ratio), disturbed: f.Disturbed.String(), note: f.Note}
		if f.Rival != nil {
			shown.rival, shown.rivalValue = f.Rival.What, f.Rival.String()
		} else if rivals && f.Who == Ours {
			shown.rival = noRival
		}
		rows = append(rows, shown)
	}
	return rows
}

// Headlines returns the named rows as a table that begins with the ratio to the
// rival. A row without a measurement is marked.
func (r *Report) Headlines(names []string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := map[string]row{}
	for _, row := range r.rows() {
		known[row.name] = row
	}
	t := table{
		{name: "Operation"},
		{name: "Ratio", right: true},
		{name: "Rival of the same run"},
		{name: "Its median", right: true},
		{name: "Median", right: true},
		{name: "p99", right: true},
		{name: "n", right: true},
		{name: "Goal"},
		{name: "Met"},
	}
	for _, name := range names {
		row, ok := known[name]
		if !ok {
			row.value = "not measured"
		}
		if row.disturbed != "" {
			row.value += " (disturbed)"
		}
		t.add(name, row.ratio, row.rival, row.rivalValue, row.value, row.p99, row.n, row.goal, row.met)
	}
	var b strings.Builder
	t.write(&b)
	return b.String()
}

func yesNo(met *bool) string {
	switch {
	case met == nil:
		return ""
	case *met:
		return "yes"
	default:
		return "**no**"
	}
}

// number formats a value as milliseconds rounds it.
func number(v float64) string {
	switch {
	case v > 0 && v < 0.1:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case v > 0 && v < 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

// times formats a ratio; empty for none.
func times(ratio float64) string {
	if ratio == 0 {
		return ""
	}
	return strconv.FormatFloat(ratio, 'f', -1, 64) + "×"
}

// table is a table in Markdown; all its columns have the same number of cells.
type table []*column

type column struct {
	name  string
	right bool // its cells are aligned right
	cells []string
}

func (t table) add(cells ...string) {
	for i, c := range cells {
		t[i].cells = append(t[i].cells, strings.ReplaceAll(c, "|", `\|`))
	}
}

// write writes the columns that are not empty.
func (t table) write(b *strings.Builder) {
	var shown table
	for _, c := range t {
		if strings.Join(c.cells, "") != "" {
			shown = append(shown, c)
		}
	}
	if len(shown) == 0 {
		return
	}
	line := func(cell func(*column) string) {
		for _, c := range shown {
			b.WriteString("| " + cell(c) + " ")
		}
		b.WriteString("|\n")
	}
	line(func(c *column) string { return c.name })
	line(func(c *column) string {
		if c.right {
			return "---:"
		}
		return "---"
	})
	for i := range shown[0].cells {
		line(func(c *column) string { return c.cells[i] })
	}
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
