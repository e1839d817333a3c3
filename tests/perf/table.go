package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// table collects rows in the order in which they were measured.
type table struct{ rows []row }

type row struct {
	what, who string
	samples   []time.Duration
	goal      string
}

func (t *table) add(what, who, goal string, samples []time.Duration) {
	slices.Sort(samples)
	t.rows = append(t.rows, row{what, who, samples, goal})
	fmt.Printf("  %-58s %-14s %8s (%s)\n", what, who, ms(percentile(samples, 50)), ms(percentile(samples, 99)))
}

// print writes Markdown: median, 99th percentile and number of rounds.
func (t *table) print(w io.Writer) {
	fmt.Fprintln(w, "| Operation | | median ms | p99 ms | n | goal |")
	fmt.Fprintln(w, "|---|---|---:|---:|---:|---|")
	for _, r := range t.rows {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %d | %s |\n", r.what, r.who, ms(percentile(r.samples, 50)), ms(percentile(r.samples, 99)), len(r.samples), r.goal)
	}
}

// percentile of sorted samples, by the nearest rank.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := (len(sorted)*p + 99) / 100
	return sorted[max(i, 1)-1]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1000) }

// repeat measures f n times, after one unmeasured round.
func repeat(ctx context.Context, n int, f func() (time.Duration, error)) ([]time.Duration, error) {
	if _, err := f(); err != nil {
		return nil, err
	}
	samples := make([]time.Duration, 0, n)
	for range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		d, err := f()
		if err != nil {
			return nil, err
		}
		samples = append(samples, d)
	}
	return samples, nil
}

// timed measures one call.
func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}
