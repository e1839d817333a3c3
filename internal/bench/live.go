package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// Live starts n concurrent Sandboxes, a few at a time, runs `true` in each while all
// live, and ends them. local means that the server is on this machine. Live then also
// adds each Sandbox's memory, as the fall of the memory that the kernel calls
// available, and the CPU of the idle Sandboxes.
func (m *Meter) Live(ctx context.Context, n int, local bool) error {
	before, err := available(local)
	if err != nil {
		return err
	}
	created := &Series{Operation: fmt.Sprintf("create, while %d come to live side by side", n), Who: Ours}
	m.Report.Begin()
	ids, err := m.fill(ctx, created, n)
	defer func() { _ = m.endAll(ctx, ids) }()
	if err != nil {
		return err
	}
	if err := m.add(ctx, created); err != nil {
		return err
	}
	after, err := available(local)
	if err != nil {
		return err
	}
	if !local {
		return m.answerEach(ctx, ids)
	}
	each := float64(before-after) * 1024 / 1e6 / float64(max(len(created.Samples), 1))
	return errors.Join(
		m.addFact(ctx, Fact{What: LiveMemory(n), Who: Ours, Value: tenths(each), Unit: "MB", Goal: goalLiveMemory}),
		m.idleCPU(ctx, n),
		m.answerEach(ctx, ids))
}

// LiveCPU names the CPU usage of n idle Sandboxes.
func LiveCPU(n int) string {
	return fmt.Sprintf("CPU of %d live sandboxes that are idle, everything of ours included", n)
}

// RunAmong names a command in each of n live Sandboxes.
func RunAmong(n int) string { return fmt.Sprintf("execute `true` while %d live, once in each", n) }

// LiveMemory names the memory of each of n Sandboxes.
func LiveMemory(n int) string {
	return fmt.Sprintf("memory of each of %d live sandboxes, everything of ours included", n)
}

// Sandboxes come to rest for quietTime after the last of them was created, and are then
// watched for idleTime. Two minutes after its last request the Guest frees memory, and the
// sentry's watchdog looks 45 seconds later (ADR 12).
const (
	quietTime = 170 * time.Second
	idleTime  = 20 * time.Second
)

// LiveRest names the CPU usage of n Sandboxes that come to rest.
func LiveRest(n int) string {
	return fmt.Sprintf("CPU of %d live sandboxes in the %v after the last of them was created, everything of ours included", n, quietTime)
}

// idleCPU adds the usage of a processor core by n idle Sandboxes, including the server's
// own processes: while they come to rest, and after that. It adds nothing where the Report
// does not watch the machine.
func (m *Meter) idleCPU(ctx context.Context, n int) error {
	if m.Report.watch == nil {
		return nil
	}
	for _, f := range []struct {
		what, goal string
		time       time.Duration
	}{{LiveRest(n), "", quietTime}, {LiveCPU(n), goalIdleCPU, idleTime}} {
		m.Report.Begin()
		if err := sleep(ctx, f.time); err != nil {
			return err
		}
		d, err := m.Report.watch.Since()
		if err != nil {
			return err
		}
		if err := m.addFact(ctx, Fact{
			What: f.what, Who: Ours, Value: d.BenchPercent * float64(runtime.NumCPU()), Unit: "% of a core", Goal: f.goal,
		}); err != nil {
			return err
		}
	}
	return nil
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fill creates n Sandboxes and returns the IDs of the successful ones.
func (m *Meter) fill(ctx context.Context, s *Series, n int) ([]string, error) {
	var mu sync.Mutex
	var ids []string
	var all sync.WaitGroup
	slots := make(chan struct{}, 4)
	for range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			var sb v1.Sandbox
			took, err := timed(func() (err error) {
				sb, err = m.Client.Create(ctx, v1.CreateRequest{TimeoutSeconds: v1.SecondsOf(time.Hour)})
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			if s.add(took, err); err == nil {
				ids = append(ids, sb.ID)
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return ids, context.Cause(ctx)
	}
	if s.Failures > n/2 {
		return ids, errors.New("most creates fail: " + s.Failure)
	}
	return ids, nil
}

// answerEach measures `true` in each Sandbox, one after another.
func (m *Meter) answerEach(ctx context.Context, ids []string) error {
	s := &Series{Operation: RunAmong(len(ids)), Who: Ours, Goal: goalLiveRun}
	m.Report.Begin()
	for _, id := range ids {
		took, err := timed(func() error { return m.execute(ctx, id, "bash", "true") })
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.add(took, err)
	}
	return m.add(ctx, s)
}

// available is Available; zero if the server is not on this machine.
func available(local bool) (int64, error) {
	if !local {
		return 0, nil
	}
	return Available()
}

// Available returns the memory that processes could still get, in KiB.
func Available() (int64, error) {
	time.Sleep(2 * time.Second) // the kernel counts in batches
	return memInfo("MemAvailable")
}
