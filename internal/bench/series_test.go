package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPercentile(t *testing.T) {
	for _, tt := range []struct {
		name    string
		samples []time.Duration
		p       int
		want    time.Duration
	}{
		{"no samples", nil, 50, 0},
		{"one", []time.Duration{7}, 99, 7},
		{"median of an even number is the lower", []time.Duration{4, 1, 3, 2}, 50, 2},
		{"median of an odd number", []time.Duration{5, 1, 3}, 50, 3},
		{"p99 of few is the worst", []time.Duration{1, 9, 3}, 99, 9},
		{"p95 of twenty", []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, 95, 19},
	} {
		var s Series
		for _, d := range tt.samples {
			s.add(d, nil)
		}
		if got := s.Percentile(tt.p); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.0", 8432 * time.Nanosecond: "0.008", 123456 * time.Nanosecond: "0.12", 1234 * time.Microsecond: "1.2", 278149 * time.Microsecond: "278.1",
	} {
		if got := number(milliseconds(d)); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// A goal that is a multiple of the rival follows what the rival took.
func TestFloor(t *testing.T) {
	series := func(ms ...int) *Series {
		s := new(Series)
		for _, v := range ms {
			s.add(time.Duration(v)*time.Millisecond, nil)
		}
		return s
	}
	for _, tt := range []struct {
		name  string
		ours  *Series
		rival *Series
		goal  string
		met   *bool
	}{
		{"as fast", series(1000), series(1000), "1100", new(true)},
		{"within the margin", series(1100), series(1000), "1100", new(true)},
		{"slower", series(1101), series(1000), "1100", new(false)},
		{"no rival", series(1000), nil, "", nil},
		{"a rival that failed", series(1000), series(), "", nil},
	} {
		tt.ours.Floor, tt.ours.Rival = 1.1, tt.rival
		if err := tt.ours.sum(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.met, tt.ours.Met); tt.ours.Goal != tt.goal || diff != "" {
			t.Errorf("%s: goal %q, want %q; met: %s", tt.name, tt.ours.Goal, tt.goal, diff)
		}
	}
}

func TestRepeat(t *testing.T) {
	n := 0
	op := func(fails func(int) bool) func(context.Context) (time.Duration, error) {
		n = 0
		return func(context.Context) (time.Duration, error) {
			n++
			if fails(n) {
				return 0, errors.New("it broke")
			}
			return time.Duration(n), nil
		}
	}
	var s Series
	if err := Repeat(t.Context(), &s, 10, op(func(n int) bool { return n%4 == 0 })); err != nil {
		t.Error(err)
	}
	if n != 11 || len(s.Samples) != 8 || s.Failures != 2 || s.Samples[0] != 2 || s.Failure != "it broke" {
		t.Errorf("after %d rounds, the first of which does not count: %+v", n, s)
	}
	s = Series{Operation: "x"}
	if err := Repeat(t.Context(), &s, 100, op(func(int) bool { return true })); err == nil || n > 60 {
		t.Errorf("%d rounds of nothing but failures: %v", n, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if err := Repeat(ctx, &s, 10, op(func(int) bool { return false })); !errors.Is(err, stop) || n != 1 {
		t.Errorf("after its context ended, %d rounds: %v", n, err)
	}
}

func TestMarkdown(t *testing.T) {
	var progress, table strings.Builder
	r := NewReport(&progress)
	s := &Series{Operation: "op", Who: "us", Goal: "3 (15)"}
	AtOnce(s, 3, func(i int) error {
		if i == 1 {
			return errors.New("no room")
		}
		return nil
	})
	r.Add(s)
	r.AddFact(Fact{What: "rate", Who: "us", Value: 12.5, Unit: "MB/s", Goal: ">= 10"})
	if err := r.Markdown(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| op | 0.", "| 2 | 1 | 3 (15) | yes |", "| rate | 12.5 MB/s |  |  |  |  | >= 10 | yes |"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is not in:\n%s", want, table.String())
		}
	}
	if r.Failures() != 1 || !strings.Contains(progress.String(), "1 FAILED: no room") {
		t.Errorf("%d failures; progress:\n%s", r.Failures(), progress.String())
	}
}

func TestRatioDigits(t *testing.T) {
	for _, tt := range []struct{ over, under, want float64 }{
		{300, 2, 150}, {10.4, 1, 10}, {9.876, 1, 9.88}, {0.5, 2, 0.25}, {0.003, 1, 0.003}, {0, 1, 0}, {1, 0, 0},
	} {
		if got := ratio(tt.over, tt.under); got != tt.want {
			t.Errorf("%v over %v is %v, want %v", tt.over, tt.under, got, tt.want)
		}
	}
}
