package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// goalThroughput is the goal in executions a second, on 2 cores: as many as bare runsc
// runs there (docs/benchmarks/README.md).
const goalThroughput = ">= 14"

// Throughput measures n concurrent executions of one line of Python, none of which
// names a Sandbox. The tenants send them in turn.
func (m *Meter) Throughput(ctx context.Context, tenants []*client.Client, n int) error {
	operation := fmt.Sprintf("execute a line of Python in a sandbox of its own, %d at once by %d tenants", n, len(tenants))
	s, took, err := m.crowd(ctx, operation, tenants, n, printOne)
	if err != nil {
		return err
	}
	m.Report.AddFact(Fact{
		What: fmt.Sprintf("executions in sandboxes of their own, %d at once by %d tenants", n, len(tenants)),
		Who:  Ours, Value: float64(len(s.Samples)) / took.Seconds(), Unit: "a second", Goal: goalThroughput,
	})
	return context.Cause(ctx)
}

// crowd starts n requests at once, spread over the tenants in turn, and adds their
// durations. It returns the duration of all together, and an error when none
// succeeded.
func (m *Meter) crowd(ctx context.Context, operation string, tenants []*client.Client, n int, request func(context.Context, *client.Client, int) error) (*Series, time.Duration, error) {
	if err := m.settle(ctx); err != nil {
		return nil, 0, err
	}
	s := &Series{Operation: operation, Who: Ours}
	began := time.Now()
	AtOnce(s, n, func(i int) error { return request(ctx, tenants[i%len(tenants)], i) })
	took := time.Since(began)
	m.Report.Add(s)
	if len(s.Samples) == 0 {
		return nil, 0, errors.Join(fmt.Errorf("%s: all failed: %s", s.Operation, s.Failure), context.Cause(ctx))
	}
	return s, took, nil
}

// printOne runs a line of Python that prints a number, and checks its output.
func printOne(ctx context.Context, c *client.Client, number int) error {
	result, err := c.Execute(ctx, client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Language: "python", Code: fmt.Sprintf("print(%d * 3)", number)}})
	if err != nil {
		return err
	}
	if got, want := strings.TrimSpace(result.Stdout), fmt.Sprint(number*3); result.Status != "ok" || got != want {
		return fmt.Errorf("execution %d ended with %s and printed %.40q, want %s", number, result.Status, got, want)
	}
	return nil
}
