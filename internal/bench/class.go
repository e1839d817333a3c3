package bench

import (
	"context"
	"fmt"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

const (
	// goalClass is how many seconds a class of 1,000 may take.
	goalClass = "<= 120"
	// hostileEvery is how many submissions there are for each hostile one.
	hostileEvery = 6
	// submissionTimeout is what each submission may take to run, in seconds.
	submissionTimeout = 5.0
)

// hostile are programs that only a limit ends, and the statuses with which they
// may end. A program may notice its limit by itself, which is an error.
var hostile = []struct {
	name, code string
	ends       []string
}{
	{"loop", "while True: pass", []string{"timeout"}},
	{"memory bomb", "a = []\nwhile True: a.append(bytearray(1 << 20))", []string{"oom", "error", "killed"}},
	{"fork bomb", "import os\nwhile True: os.fork()", []string{"pids", "error", "timeout", "oom", "killed"}},
	{"flood", "while True: print('x' * 4096)", []string{"timeout"}},
}

// Class measures n submissions that arrive at once, none of which names a
// Sandbox, from tenants in turn. One in six is hostile. A submission fails when
// it gets no verdict, or a wrong one.
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
		Who:  Ours, Value: took.Seconds(), Unit: "s", Goal: goal,
	})
	return context.Cause(ctx)
}

// submit sends one submission and checks its verdict.
func submit(ctx context.Context, c *client.Client, number int) error {
	if number%hostileEvery != hostileEvery-1 {
		return printOne(ctx, c, number)
	}
	program := hostile[number/hostileEvery%len(hostile)]
	result, err := c.Execute(ctx, client.ExecuteRequest{Language: "python", Code: program.code, Timeout: new(submissionTimeout)})
	if err != nil {
		return fmt.Errorf("%s: %w", program.name, err)
	}
	if !slices.Contains(program.ends, result.Status) {
		return fmt.Errorf("a %s ended with %s, want one of %v", program.name, result.Status, program.ends)
	}
	return nil
}
