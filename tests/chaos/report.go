package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Span is a fault that was made: it began, ended, and from settled on all Sandboxes answered.
type Span struct {
	Fault                 Fault
	Began, Ended, Settled time.Duration
	Lost                  int    // nodes that the leader declared lost
	Skipped               string // why it could not be made here; empty: it was made
}

// Stall is the time from a client's first call that had no answer until its next answer.
type Stall struct {
	Began, Ended time.Duration
	First, Last  Kind // operations
	Sandbox      string
}

func (s Stall) took() time.Duration { return s.Ended - s.Began }

// stalls returns the stalls of all clients. A single slow answer is one too.
func stalls(all []Operation) (found []Stall) {
	waiting := map[int]Stall{}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b Operation) int { return cmp.Compare(a.Return, b.Return) })
	for _, o := range sorted {
		if o.Client <= 0 || o.In.Kind == Beat || o.In.Kind == Loss {
			continue
		}
		s, ok := waiting[o.Client]
		if !ok {
			s = Stall{Began: o.Call, First: o.In.Kind, Sandbox: o.In.Sandbox}
		}
		if o.Out.Unknown {
			waiting[o.Client] = s
			continue
		}
		delete(waiting, o.Client)
		s.Ended, s.Last = o.Return, o.In.Kind
		found = append(found, s)
	}
	return found
}

// during returns the first fault that a stall overlaps; -1: none. A stall that lasts beyond
// the next fault is of the first one.
func (s Stall) during(faults []Span) int {
	return slices.IndexFunc(faults, func(f Span) bool { return f.Skipped == "" && s.Began <= f.Settled && s.Ended >= f.Began })
}

// longest returns the longest stall of a fault; -1: outside of all faults.
func (r Report) longest(all []Stall, fault int) (most Stall) {
	for _, s := range all {
		if s.took() > most.took() && s.during(r.Spans) == fault {
			most = s
		}
	}
	return most
}

// unanswered counts the operations without an answer that were called in a time.
func unanswered(all []Operation, from, to time.Duration) (n int) {
	for _, o := range all {
		if o.Client > 0 && o.Out.Unknown && o.Call >= from && o.Call <= to {
			n++
		}
	}
	return n
}

// Report is what a run found.
type Report struct {
	Seed      uint64
	Duration  time.Duration
	Spans     []Span
	All       []Operation
	Verdicts  []Verdict
	Sandboxes int
	Ended     []string // Sandboxes without a checkpoint that were lost
	Failures  []string
}

// Text is the report in Markdown.
func (r Report) Text() string {
	var b strings.Builder
	ok := 0
	for _, v := range r.Verdicts {
		if v.Result == "Ok" {
			ok++
		}
	}
	fmt.Fprintf(&b, "# Chaos, seed %d\n\n", r.Seed)
	fmt.Fprintf(&b, "%d faults in %v, %d operations of clients and %d calls of sandboxes to the outside. ", len(r.Spans), r.Duration.Round(time.Second), countKind(r.All, false), countKind(r.All, true))
	fmt.Fprintf(&b, "%d of %d histories are linearizable. %d sandboxes without a checkpoint ended by a fault.\n\n", ok, len(r.Verdicts), len(r.Ended))
	fmt.Fprintln(&b, "| At | Fault | Lasted | Until all answered | Longest stall | of | Without an answer | Nodes lost |\n|--:|---|--:|--:|--:|---|--:|--:|")
	all := stalls(r.All)
	for i, s := range r.Spans {
		if s.Skipped != "" {
			fmt.Fprintf(&b, "| %.0f s | %s | skipped: %s | | | | | |\n", s.Began.Seconds(), s.Fault, s.Skipped)
			continue
		}
		worst := r.longest(all, i)
		fmt.Fprintf(&b, "| %.0f s | %s | %.0f s | %.1f s | %.1f s | %s | %d | %d |\n", s.Began.Seconds(), s.Fault, (s.Ended - s.Began).Seconds(),
			(s.Settled - s.Ended).Seconds(), worst.took().Seconds(), worst.First, unanswered(r.All, s.Began, s.Settled), s.Lost)
	}
	if quiet := r.longest(all, -1); quiet.took() > 0 {
		fmt.Fprintf(&b, "\nWithout a fault, the longest stall was %.1f s (%s).\n", quiet.took().Seconds(), quiet.First)
	}
	var missing []string
	for _, k := range kinds {
		if !slices.ContainsFunc(r.Spans, func(s Span) bool { return s.Fault.Name == k.name }) && !slices.Contains(missing, k.name) {
			missing = append(missing, k.name)
		}
	}
	if len(missing) > 0 {
		fmt.Fprintf(&b, "\nNot reached in this time: %s.\n", strings.Join(missing, "; "))
	}
	if len(r.Failures) > 0 {
		fmt.Fprintf(&b, "\n## Failures\n\n- %s\n", strings.Join(r.Failures, "\n- "))
	}
	return b.String()
}

func countKind(all []Operation, beats bool) (n int) {
	for _, o := range all {
		if o.Client > 0 != beats && o.In.Kind != Loss {
			n++
		}
	}
	return n
}
