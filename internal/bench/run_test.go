package bench

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A part that fails costs no other, and the report is kept after each.
func TestRun(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "new")
	var ran []string
	part := func(name string, err error) Part {
		return Part{name, func(context.Context) error {
			if len(ran) > 0 {
				if kept, err := ReadReport(folder); err != nil || len(kept.Parts) != len(ran) {
					t.Errorf("before %s the folder has %+v, %v", name, kept, err)
				}
			}
			ran = append(ran, name)
			return err
		}}
	}
	all := []Part{part("one", nil), part("two", errors.New("broken")), part("other", nil), part("last", context.Canceled)}
	for _, tt := range []struct {
		name string
		only string
		want []string
		err  string
	}{
		{"all", "", []string{"one", "two", "other", "last"}, "two: broken\nlast: context canceled"},
		{"some", "o.e|oth", []string{"one", "other"}, ""},
		{"none", "nonsense", nil, `no part matches "nonsense"; parts: one, two, other, last`},
	} {
		ran = nil
		run := Run{Report: NewReport(nil), Folder: folder}
		if tt.only != "" {
			run.Only = regexp.MustCompile(tt.only)
		}
		err := run.Measure(t.Context(), all)
		got := ""
		if err != nil {
			got = err.Error()
		}
		// Whoever sees the error must not take it for an interruption.
		if !slices.Equal(ran, tt.want) || got != tt.err || errors.Is(err, context.Canceled) {
			t.Errorf("%s: measured %v, error %q", tt.name, ran, got)
		}
	}
}

func TestRunIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	run := Run{Report: NewReport(nil), Folder: t.TempDir()}
	err := run.Measure(ctx, []Part{
		{"interrupted", func(ctx context.Context) error { cancel(stopped); return ctx.Err() }},
		{"next", func(context.Context) error { t.Error("it goes on"); return nil }},
	})
	if !errors.Is(err, stopped) {
		t.Errorf("the error is %v", err)
	}
	if kept, err := ReadReport(run.Folder); err != nil || len(kept.Parts) != 1 {
		t.Errorf("kept %+v, %v", kept, err)
	}
}

// Each number of a Plan that is not zero is a part.
func TestPartsOfPlan(t *testing.T) {
	var names []string
	for _, part := range new(Meter).Parts(Plan{Rounds: 1, Calls: 1, Bursts: []int{2, 3}, Size: 1, Saves: 1, Storm: 4, Volumes: 1, Live: 5}) {
		names = append(names, part.Name)
	}
	if got, want := strings.Join(names, ", "), "creates, calls, burst of 2, burst of 3, transfers, pauses, resumes and forks, 4 resumes at once, volumes, 5 live sandboxes"; got != want {
		t.Errorf("parts are %s", got)
	}
	if none := new(Meter).Parts(Plan{}); len(none) != 0 {
		t.Errorf("an empty plan has %v", none)
	}
}
