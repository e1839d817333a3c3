package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

const (
	// goalClass is the goal for a class of 1,000, in seconds.
	goalClass = "<= 120"
	// hostileEvery is the number of submissions for each hostile one.
	hostileEvery = 6
	// submissionTimeout is the timeout of each submission.
	submissionTimeout = 5 * time.Second
)

// program is a program that only a limit ends, with the statuses with which it may
// end. It may also detect its limit by itself and fail.
type program struct {
	name, code string
	ends       []string
}

var hostile = []program{
	{"loop", "while True: pass", []string{"timeout"}},
	{"memory bomb", "a = []\nwhile True: a.append(bytearray(1 << 20))", []string{"oom", "error", "killed"}},
	{"fork bomb", "import os\nwhile True: os.fork()", []string{"pids", "error", "timeout", "oom", "killed"}},
	{"flood", "while True: print('x' * 4096)", []string{"timeout"}},
}

// Class measures n concurrent submissions, none of which names a Sandbox, from
// tenants in turn. One in six is hostile. A submission fails when it gets no verdict,
// or a wrong one.
func (m *Meter) Class(ctx context.Context, tenants []*client.Client, n int) error {
	operation := fmt.Sprintf("verdict on a submission, %d at once by %d tenants, one in %d hostile", n, len(tenants), hostileEvery)
	s, took, err := m.crowd(ctx, operation, tenants, n, submit)
	if err != nil {
		return err
	}
	goal := ""
	if n == 1000 {
		goal = goalClass
	}
	m.Report.AddFact(Fact{
		What: fmt.Sprintf("verdicts on all of %d submissions, %d failed", n, s.Failures),
		Who:  Ours, Value: took.Seconds(), Unit: "s", Goal: goal, Note: endlessNote(n, runtime.NumCPU()),
	})
	return context.Cause(ctx)
}

// endlessNote describes how long the endless programs of n submissions keep so many
// cores busy, if each has a core to itself until its timeout.
func endlessNote(n, cores int) string {
	endless := 0
	for i := range n {
		if p, ok := hostileOf(i); ok && slices.Equal(p.ends, []string{"timeout"}) {
			endless++
		}
	}
	return fmt.Sprintf("%d of the %d programs are loops or floods that only their timeout of %g s ends: with a core each, on %d cores, these alone take %.0f s",
		endless, n, submissionTimeout.Seconds(), cores, float64(endless)*submissionTimeout.Seconds()/float64(cores))
}

// hostileOf returns the hostile program of a submission; false: it is not hostile.
func hostileOf(number int) (program, bool) {
	if number%hostileEvery != hostileEvery-1 {
		return program{}, false
	}
	return hostile[number/hostileEvery%len(hostile)], true
}

// submit sends one submission and checks its verdict.
func submit(ctx context.Context, c *client.Client, number int) error {
	p, ok := hostileOf(number)
	if !ok {
		return printOne(ctx, c, number)
	}
	result, err := c.Execute(ctx, client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Language: "python", Code: p.code, TimeoutSeconds: new(v1.SecondsOrNone(submissionTimeout))}})
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	if !slices.Contains(p.ends, result.Status) {
		return fmt.Errorf("a %s ended with %s, want one of %v", p.name, result.Status, p.ends)
	}
	return nil
}
