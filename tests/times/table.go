package main

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
)

// How many of each the tables have.
const (
	mostPackages = 12
	mostTests    = 20
)

// table prints the steps in the order in which they ended, the slowest packages
// and the slowest tests.
func table(out io.Writer, notes []Note) error {
	var steps, packages, tests []Note
	for _, n := range notes {
		switch {
		case n.Step != "":
			steps = append(steps, n)
		case n.Test != "":
			tests = append(tests, n)
		default:
			packages = append(packages, n)
		}
	}
	slowest := func(a, b Note) int { return cmp.Compare(b.Seconds, a.Seconds) }
	slices.SortStableFunc(packages, slowest)
	slices.SortStableFunc(tests, slowest)

	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\nclock\tCPU\t  step\n")
	for _, n := range steps {
		fmt.Fprintf(w, "%s\t%s\t  %s\n", minutes(n.Seconds), minutes(n.CPU), n.Step)
	}
	if len(packages) > 0 {
		fmt.Fprintf(w, "\nclock\t\t  the slowest packages\n")
	}
	for _, n := range packages[:min(mostPackages, len(packages))] {
		fmt.Fprintf(w, "%s\t\t  %s\n", minutes(n.Seconds), n.Package)
	}
	if len(tests) > 0 {
		fmt.Fprintf(w, "\nclock\t\t  the slowest tests\n")
	}
	for _, n := range tests[:min(mostTests, len(tests))] {
		fmt.Fprintf(w, "%s\t\t  %s %s\n", minutes(n.Seconds), short(n.Package), n.Test)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, n := range steps {
		if n.Share > 0 && n.Seconds > n.Share {
			fmt.Fprintf(out, "\nWARNING: %s took %s, and its share is %s\n", n.Step, minutes(n.Seconds), minutes(n.Share))
		}
	}
	return nil
}

// minutes is a number of seconds as 1:02.3.
func minutes(seconds float64) string {
	tenths := int(seconds*10 + 0.5)
	return fmt.Sprintf("%d:%02d.%d", tenths/600, tenths/10%60, tenths%10)
}

// short is the path of a package as its last two names.
func short(pkg string) string {
	dir, last := path.Split(pkg)
	return path.Join(path.Base(strings.TrimSuffix(dir, "/")), last)
}
