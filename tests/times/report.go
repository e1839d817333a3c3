package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// An event is a line of go test -json: see go doc test2json, and go help buildjson.
type event struct {
	Action, Package, Test, Output string

	Elapsed float64 // seconds

	FailedBuild string // the package that did not build
}

// A line is output of one test, or of a subtest.
type line struct{ test, text string }

// A running package has tests whose output is kept until they end.
type running struct {
	tests  map[string][]line // by the top-level test
	others []line            // output of no test
}

// report prints on w what a person wants to know of events, the output of go test
// -json: each failure with all its output at once, each test that was skipped with
// its reason, each package at its end. It returns how long they took.
func report(w *bufio.Writer, events io.Reader) ([]Note, error) {
	var taken []Note
	packages := map[string]*running{}
	for r := bufio.NewReader(events); ; {
		raw, err := r.ReadBytes('\n')
		if len(raw) > 0 {
			var e event
			if json.Unmarshal(raw, &e) != nil || e.Action == "" {
				_, _ = w.Write(raw) // of go itself
			} else {
				p := packages[e.Package]
				if p == nil {
					p = &running{tests: map[string][]line{}}
					packages[e.Package] = p
				}
				if n := p.take(w, e); n.Package != "" {
					taken = append(taken, n)
				}
				if e.ends() && e.Test == "" {
					delete(packages, e.Package)
				}
			}
			if r.Buffered() == 0 {
				if err := w.Flush(); err != nil {
					return taken, err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return taken, w.Flush()
		}
		if err != nil {
			return taken, err
		}
	}
}

// ends says whether nothing more comes from the event's test or package.
func (e event) ends() bool { return e.Action == "pass" || e.Action == "fail" || e.Action == "skip" }

// take prints what e brings to its end, and returns how long a test or a package
// took that ended, or a Note without a Package.
func (p *running) take(w io.Writer, e event) Note {
	root, _, sub := strings.Cut(e.Test, "/")
	switch {
	case e.Action == "build-output":
		fmt.Fprint(w, e.Output)
	case e.Action == "output" && e.Test == "":
		p.others = append(p.others, line{text: e.Output})
	case e.Action == "output":
		p.tests[root] = append(p.tests[root], line{e.Test, e.Output})
	case !e.ends():
	case sub:
		if e.Action == "pass" {
			p.tests[root] = without(p.tests[root], e.Test)
		}
	case e.Test != "":
		lines := p.tests[root]
		delete(p.tests, root)
		switch e.Action {
		case "fail":
			show(w, lines)
		case "skip":
			fmt.Fprintf(w, "skip  %s %s: %s\n", e.Package, e.Test, reason(lines))
		}
		return Note{Package: e.Package, Test: e.Test, Seconds: e.Elapsed}
	case e.Action == "skip": // it has no tests
	case e.Action == "fail":
		for _, lines := range p.tests { // the process ended in these
			show(w, lines)
		}
		show(w, p.others)
		why := ""
		if e.FailedBuild != "" {
			why = ": it does not build"
		}
		fmt.Fprintf(w, "FAIL  %s %.1fs%s\n", e.Package, e.Elapsed, why)
		return Note{Package: e.Package, Seconds: e.Elapsed}
	default:
		how := ""
		if n := len(p.others); n > 0 && strings.Contains(p.others[n-1].text, "\t(cached)") {
			how = " (cached)"
		}
		fmt.Fprintf(w, "ok    %s %.1fs%s\n", e.Package, e.Elapsed, how)
		return Note{Package: e.Package, Seconds: e.Elapsed}
	}
	return Note{}
}

// without drops the output of one test.
func without(lines []line, test string) []line {
	var kept []line
	for _, l := range lines {
		if l.test != test {
			kept = append(kept, l)
		}
	}
	return kept
}

// show prints lines, but for those that say no more than that a test goes on, or
// that a package failed.
func show(w io.Writer, lines []line) {
	for _, l := range lines {
		if !strings.HasPrefix(l.text, "=== ") && !(l.test == "" && strings.HasPrefix(l.text, "FAIL")) {
			fmt.Fprint(w, l.text)
		}
	}
}

// reason is what the test said that skipped itself.
func reason(lines []line) string {
	for i := len(lines) - 1; i >= 0; i-- {
		text := strings.TrimSpace(lines[i].text)
		if text == "" || strings.HasPrefix(text, "--- SKIP") || strings.HasPrefix(text, "=== ") {
			continue
		}
		if _, said, ok := strings.Cut(text, "_test.go:"); ok { // file_test.go:12: the reason
			if _, said, ok = strings.Cut(said, ": "); ok {
				return said
			}
		}
		return text
	}
	return "it does not say why"
}
