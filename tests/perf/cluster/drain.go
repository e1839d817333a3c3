package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	v1 "github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

const (
	// stallGoal is the goal for the time that a Sandbox stands still while it moves, in ms.
	stallGoal = "1500 (5000)"
	// askEvery is the pause between two requests to each Sandbox while its Node drains.
	askEvery = 500 * time.Millisecond
	// untilKnown is the time in which all schedulers learn that a Node drains or does not.
	untilKnown = 6 * time.Second
)

// setDraining starts or ends the drain of a Node.
func setDraining(ops *rig.Client, node string, draining bool) error {
	return ops.Try("PATCH", "/api/v1/nodes/"+node, rig.Body{"draining": draining}, nil)
}

// drains measures how long n Sandboxes stand still that leave a Node which drains. Each of
// them has a client that counts in a variable of it, and one runs a command whose output is
// followed. A request that fails or counts wrongly, and output that is lost or repeated, is
// an error; a request that is refused for the time being is repeated, and its wait counts.
func drains(ctx context.Context, t testing.TB, report *bench.Report, s side, n int) error {
	ops := s.gateway.Operator(t)
	if err := setDraining(ops, rig.FleetHome, true); err != nil { // so that all of them are on the other node
		return err
	}
	time.Sleep(untilKnown)
	all := make([]target, n)
	for i := range all {
		sb, err := s.client.Create(ctx, v1.CreateRequest{})
		if err != nil {
			return err
		}
		all[i] = target{client: s.client, id: sb.ID}
		defer func() { _, _ = s.client.End(ctx, sb.ID) }() // otherwise it ends with its node
		if _, err := all[i].run(ctx, "python", "x = 0"); err != nil {
			return err
		}
	}
	if err := setDraining(ops, rig.FleetHome, false); err != nil {
		return err
	}
	time.Sleep(untilKnown)
	lines := all[0].prints(ctx)
	stop := make(chan struct{})
	stalls, errs := make([]time.Duration, n), make([]error, n)
	var asking sync.WaitGroup
	for i := range all {
		asking.Go(func() { stalls[i], errs[i] = all[i].counts(ctx, stop) })
	}
	began := time.Now()
	err := setDraining(ops, rig.FleetNode, true)
	if err == nil {
		rig.Within(t, 5*time.Minute, "the node is empty", func() bool {
			var node struct{ Records struct{ Running int } }
			return ops.Try("GET", "/api/v1/nodes/"+rig.FleetNode, nil, &node) == nil && node.Records.Running == 0
		})
	}
	took := time.Since(began)
	close(stop)
	asking.Wait()
	_, stopErr := all[0].run(ctx, "bash", "touch /tmp/stop")
	err = errors.Join(err, errors.Join(errs...), stopErr, <-lines, setDraining(ops, rig.FleetNode, false))
	time.Sleep(untilKnown)
	if err != nil {
		return fmt.Errorf("a drain of %d sandboxes: %w", n, err)
	}
	slices.Sort(stalls)
	report.Add(&bench.Series{
		Operation: fmt.Sprintf("longest wait of a request to each of %d sandboxes while their node drains", n), Who: aCluster, Goal: stallGoal, Samples: stalls,
	})
	report.AddFact(bench.Fact{What: fmt.Sprintf("drain of a node with %d sandboxes in use", n), Who: aCluster, Value: took.Seconds(), Unit: "s"})
	return nil
}

// A target is a Sandbox, and the client that uses it.
type target struct {
	client *client.Client
	id     string
}

func (c target) run(ctx context.Context, language, code string) (string, error) {
	r := client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Language: language, Code: code}}
	r.SandboxID = c.id
	result, err := c.client.Execute(ctx, r)
	return result.Stdout, err
}

// counts adds one to the counter again and again until stop is closed, and returns the
// longest time that a request took.
func (c target) counts(ctx context.Context, stop <-chan struct{}) (longest time.Duration, _ error) {
	for x := 1; ; x++ {
		began := time.Now()
		out, err := c.run(ctx, "python", "x += 1; print(x)")
		for errors.Is(err, sandbox.Unavailable) && time.Since(began) < rig.Patience {
			// Refused, with or without its effect, since it had just begun when the Sandbox was frozen.
			time.Sleep(askEvery)
			out, err = c.run(ctx, "python", fmt.Sprintf("x += x == %d; print(x)", x-1))
		}
		if err != nil {
			return 0, err
		}
		longest = max(longest, time.Since(began))
		if out != fmt.Sprintln(x) {
			return 0, fmt.Errorf("the counter of %s is %q, want %d", c.id, out, x)
		}
		select {
		case <-stop:
			return longest, nil
		case <-time.After(askEvery):
		}
	}
}

// prints follows a command that prints numbers until there is a file /tmp/stop. The result
// gets nil if each of them arrived once.
func (c target) prints(ctx context.Context) <-chan error {
	r := client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Language: "bash", Code: "i=0; until [ -e /tmp/stop ]; do i=$((i+1)); echo $i; sleep 0.1; done; echo end"}}
	r.SandboxID = c.id
	done := make(chan error, 1)
	go func() {
		var got, want strings.Builder
		_, err := c.client.Stream(ctx, r, func(e client.Event) error {
			if e.Kind == "stdout" {
				got.Write(e.Output)
			}
			return nil
		})
		for i := range strings.Count(got.String(), "\n") - 1 {
			fmt.Fprintln(&want, i+1)
		}
		if err == nil && got.String() != want.String()+"end\n" {
			err = fmt.Errorf("the output of a command that moved is %q", got.String())
		}
		done <- err
	}()
	return done
}
