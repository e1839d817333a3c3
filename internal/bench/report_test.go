package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		goal        string
		value, tail float64
		want        bool
	}{
		{"60", 60, 1000, true},
		{"60", 60.1, 1, false},
		{"60 (150)", 60, 150, true},
		{"60 (150)", 59, 151, false},
		{"60 (150)", 61, 100, false},
		{"(100)", 1000, 100, true},
		{"(100)", 1, 100.1, false},
		{">= 200", 200, 0, true},
		{">= 200", 199.9, 0, false},
		{"<= 12", 12, 0, true},
		{"<= 12", 12.1, 0, false},
		{"< 1000", 1000, 0, false},
		{"< 1000", 999, 0, true},
		{"0.5", 0.5, 0, true},
	} {
		got, err := judge(tt.goal, tt.value, tt.tail)
		if err != nil || got == nil || *got != tt.want {
			t.Errorf("%q of %v (%v): %v, %v", tt.goal, tt.value, tt.tail, got, err)
		}
	}
	if got, err := judge("", 1, 1); got != nil || err != nil {
		t.Errorf("no goal: %v, %v", got, err)
	}
	for _, bad := range []string{"fast", "0.5 more", "60 (150", "60 150", "522 MB/s", "> 5"} {
		if _, err := judge(bad, 1, 1); err == nil {
			t.Errorf("%q is taken for a goal", bad)
		}
	}
}

// Every goal that the bench sets can be read.
func TestGoals(t *testing.T) {
	goals := []string{
		goalAcquire, goalFirst, goalCold, goalNodeWarm, goalNodeCold, goalInterpreter, goalSpawn, goalOverhead, goalBurst100, goalBurst20, goalLiveRun,
		goalLiveMemory, goalIdleCPU, goalUpload, goalDownload, goalPause, goalResume, goalResumeHeap, goalHalfSecond, goalManyFiles, goalFork10,
		goalNeighbour,
	}
	for _, op := range volumeOps {
		if op.goal != "" {
			goals = append(goals, op.goal)
		}
	}
	for _, g := range goals {
		if _, err := parseGoal(g); err != nil {
			t.Error(err)
		}
	}
}

func series(operation, goal string, samples ...time.Duration) *Series {
	s := &Series{Operation: operation, Who: Ours, Goal: goal}
	for _, d := range samples {
		s.add(d, nil)
	}
	return s
}

// A row says how many times as good it is as its rival: of times and sizes less is
// better, of rates more.
func TestRatio(t *testing.T) {
	r := NewReport(nil)
	fast := series("fast", "3", 2*time.Millisecond)
	fast.Rival = series("slow", "", 85*time.Millisecond)
	slow := series("slow", "3", 4*time.Millisecond)
	slow.Rival = series("fast", "", time.Millisecond)
	r.Add(fast, slow, series("alone", "", time.Millisecond))
	r.AddFact(
		Fact{What: "rate", Who: Ours, Value: 200, Unit: "MB/s", Goal: ">= 200", Rival: &Fact{What: "plain", Value: 800, Unit: "MB/s"}},
		Fact{What: "requests", Who: Ours, Value: 20, Unit: "a second", Rival: &Fact{What: "plain", Value: 8, Unit: "a second"}},
		Fact{What: "size", Who: Ours, Value: 13, Unit: "MB", Goal: "<= 12", Rival: &Fact{What: "plain", Value: 26, Unit: "MB"}},
	)
	got := []float64{}
	for _, s := range r.Series {
		got = append(got, s.Ratio)
	}
	for _, f := range r.Facts {
		got = append(got, f.Ratio)
	}
	if want := []float64{43, 0.25, 0, 0.25, 2.5, 2}; !cmp.Equal(got, want) {
		t.Errorf("ratios are %v, want %v", got, want)
	}
	var table strings.Builder
	if err := r.Markdown(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| fast | 2.0 ms | 2.0 | 2.0 | 1 | 3 | yes | slow | 85.0 ms | 43× |",
		"| slow | 4.0 ms | 4.0 | 4.0 | 1 | 3 | **no** | fast | 1.0 ms | 0.25× |",
		"| alone | 1.0 ms | 1.0 | 1.0 | 1 |  |  | none |  |  |",
		"| rate | 200 MB/s |  |  |  | >= 200 | yes | plain | 800 MB/s | 0.25× |",
		"| size | 13 MB |  |  |  | <= 12 | **no** | plain | 26 MB | 2× |",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is not in:\n%s", want, table.String())
		}
	}
}

func TestHeadlines(t *testing.T) {
	r := NewReport(nil)
	s := series("op", "3", 2*time.Millisecond)
	s.Rival = series("other", "", 10*time.Millisecond)
	r.Add(s)
	s.Disturbed = &Disturbance{Seconds: 1, StealPercent: 40}
	got := r.Headlines([]string{"op", "gone"})
	for _, line := range []string{"| op | 5× | other | 10.0 ms | 2.0 ms (disturbed) | 2.0 | 1 | 3 | yes |", "| gone |  |  |  | not measured |  |  |  |  |"} {
		if !strings.Contains(got, line+"\n") {
			t.Errorf("%q is not in:\n%s", line, got)
		}
	}
	if !strings.HasPrefix(got, "| Operation | Ratio |") {
		t.Errorf("the table begins with\n%s", got)
	}
}

// What is published is what was measured, without the samples.
func TestPublished(t *testing.T) {
	r := NewReport(nil)
	s := series("op", "3 (15)", time.Millisecond, 2*time.Millisecond)
	s.Rival, s.Note = series("other", "", time.Second), "because"
	r.Add(s)
	r.AddFact(Fact{What: "size", Who: Ours, Value: 0.25, Unit: "MB"})
	if err := r.Measure("broken", func() error { return errors.New("no\nroom") }); err == nil || err.Error() != "broken: no\nroom" {
		t.Errorf("the part failed with %v", err)
	}
	b, err := json.Marshal(r.Published())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte("samples_ns")) {
		t.Errorf("samples in %s", b)
	}
	read := new(Report)
	if err := json.Unmarshal(b, read); err != nil {
		t.Fatal(err)
	}
	var before, after strings.Builder
	if err := errors.Join(r.Markdown(&before), read.Markdown(&after)); err != nil || before.String() != after.String() {
		t.Errorf("%v: before\n%s\nafter\n%s", err, before.String(), after.String())
	}
	for _, want := range []string{"| op (note 1) |", "\nNote 1: because\n", "| broken | 0 | no; room |"} {
		if !strings.Contains(after.String(), want) {
			t.Errorf("%q is not in:\n%s", want, after.String())
		}
	}
	if len(s.Samples) != 2 || len(s.Rival.Samples) != 1 {
		t.Error("publishing took the samples")
	}
}

// A rival is measured right after its operation, and its failure loses no row.
func TestBeside(t *testing.T) {
	broken := errors.New("no daemon")
	m := &Meter{Report: NewReport(nil)}
	m.Beside = func(_ context.Context, operation string) (*Series, error) {
		switch operation {
		case "raced":
			return series("rival", "", 30*time.Millisecond), nil
		case "broken":
			return nil, broken
		}
		return nil, nil
	}
	ctx := t.Context()
	sleepless := func(context.Context) (time.Duration, error) { return 10 * time.Millisecond, nil }
	for operation, want := range map[string]error{"raced": nil, "broken": broken, "alone": nil} {
		if err := m.Rounds(ctx, operation, "", 3, sleepless); !errors.Is(err, want) {
			t.Errorf("%s: %v", operation, err)
		}
	}
	if len(m.Report.Series) != 3 {
		t.Errorf("%d rows", len(m.Report.Series))
	}
	for _, s := range m.Report.Series {
		if raced := s.Operation == "raced"; raced != (s.Rival != nil) || raced && s.Ratio != 3 {
			t.Errorf("%s has the rival %v and the ratio %v", s.Operation, s.Rival, s.Ratio)
		}
	}
}
