package chaos

import (
	"strings"
	"testing"
	"time"
)

// The report has the longest time for which a client had no answer, for each fault.
func TestReport(t *testing.T) {
	at := func(client int, kind Kind, call, end int, unknown bool) Operation {
		return Operation{Client: client, In: Input{Sandbox: box, Kind: kind}, Out: Output{Unknown: unknown}, Call: time.Duration(call) * time.Second, Return: time.Duration(end) * time.Second}
	}
	r := Report{
		Seed: 5, Duration: time.Minute,
		All: []Operation{
			at(1, Get, 1, 2, false), at(1, Pause, 11, 14, true), at(1, Resume, 15, 16, true), at(1, Get, 17, 19, false),
			at(2, Get, 11, 13, false), at(2, AddFile, 40, 43, false), at(0, Beat, 0, 50, false),
		},
		Spans: []Span{
			{Fault: Fault{Name: "S3 is away"}, Began: 10 * time.Second, Ended: 12 * time.Second, Settled: 18 * time.Second, Lost: 1},
			{Fault: Fault{Name: "Redis is away"}, Began: 18500 * time.Millisecond, Ended: 20 * time.Second, Settled: 21 * time.Second},
			{Fault: Fault{Name: "a slow disk", Target: "node-b"}, Began: 30 * time.Second, Skipped: "no cgroup"},
		},
		Verdicts: []Verdict{{Result: "Ok"}, {Result: "Illegal"}}, Failures: []string{"one is illegal"},
	}
	got := r.Text()
	for _, want := range []string{
		"seed 5", "6 operations of clients and 1 calls", "1 of 2 histories",
		"| 10 s | S3 is away | 2 s | 6.0 s | 8.0 s | pause | 2 | 1 |", "| 18 s | Redis is away | 2 s | 1.0 s | 0.0 s |", "| 30 s | a slow disk: node-b | skipped: no cgroup |",
		"the longest stall was 3.0 s (add to file)", "Not reached in this time: kill -9 of a gateway;", "- one is illegal",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the report lacks %q:\n%s", want, got)
		}
	}
}
