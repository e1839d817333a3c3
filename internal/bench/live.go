package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// Live starts n Sandboxes that live side by side, a few at a time, runs `true`
// in each while all live, and ends them. With local, which says that the server
// is on this machine, it adds what each costs as the fall of the memory that
// the kernel calls available.
func (m *Meter) Live(ctx context.Context, n int, local bool) error {
	before, err := available(local)
	if err != nil {
		return err
	}
	created := &Series{Operation: fmt.Sprintf("create, while %d come to live side by side", n), Who: Ours}
	ids, err := m.fill(ctx, created, n)
	defer func() { _ = m.endAll(ctx, ids) }()
	if err != nil {
		return err
	}
	m.Report.Add(created)
	after, err := available(local)
	if err != nil {
		return err
	}
	if err := m.answerEach(ctx, ids); err != nil {
		return err
	}
	if local {
		each := float64(before-after) * 1024 / 1e6 / float64(max(len(created.Samples), 1))
		m.Report.AddFact(Fact{
			What: fmt.Sprintf("memory of each of %d live sandboxes, everything of ours included", n),
			Who:  Ours, Value: float64(int64(each*10)) / 10, Unit: "MB", Goal: "<= 12",
		})
	}
	return ctx.Err()
}

// fill creates n Sandboxes and returns the IDs of those that came to be.
func (m *Meter) fill(ctx context.Context, s *Series, n int) ([]string, error) {
	var mu sync.Mutex
	var ids []string
	var all sync.WaitGroup
	slots := make(chan struct{}, 4)
	for range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			var sb client.Sandbox
			took, err := timed(func() (err error) {
				sb, err = m.Client.Create(ctx, client.CreateRequest{Timeout: 3600})
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

// answerEach measures `true` in each of many, one after another.
func (m *Meter) answerEach(ctx context.Context, ids []string) error {
	s := &Series{Operation: fmt.Sprintf("execute `true` while %d live, once in each", len(ids)), Who: Ours, Goal: "(100)"}
	for _, id := range ids {
		took, err := timed(func() error { return m.execute(ctx, id, "bash", "true") })
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.add(took, err)
	}
	m.Report.Add(s)
	return nil
}

// available is the memory that processes could still get, in KiB; zero when
// this machine's memory says nothing.
func available(local bool) (int64, error) {
	if !local {
		return 0, nil
	}
	time.Sleep(2 * time.Second) // the kernel counts in batches
	return memInfo("MemAvailable")
}
