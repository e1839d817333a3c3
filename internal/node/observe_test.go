package node_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
)

// Every step of a Boot is told of, also one that fails.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{})
		defer w.close()
		var mu sync.Mutex
		var told []string
		w.cfg.Observe = func(step node.Step, err error, took time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, string(step)+" "+string(sandbox.CodeOf(err)))
		}
		w.run()
		synctest.Wait()
		started := w.start(request("t"))
		if err := w.node.Stop(t.Context(), name, started.BootID, 0); err != nil {
			t.Fatal(err)
		}
		unknown := request("t")
		unknown.Image = "sha256:none"
		if _, err := w.node.Start(t.Context(), name, unknown); err == nil {
			t.Error("an unknown image starts")
		}
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"queue ", "start ", "bind ", "stop ", "queue "}; len(told) != 6 || !slices.Equal(told[:5], want) || told[5] == "start " {
			t.Errorf("told %q", told)
		}
	})
}

func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{})
		defer w.close()
		w.run()
		if l, err := w.node.Load(); err != nil || l.HostState != w.host.state || l.Waiting != 0 {
			t.Errorf("%+v, %v", l, err)
		}
		w.engine.Hooks.Start = func(ctx context.Context, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		}
		var starts sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for range 5 { // two of them have a slot
			starts.Go(func() { _, _ = w.node.Start(ctx, name, request("t")) })
		}
		synctest.Wait()
		if l, err := w.node.Load(); err != nil || l.Waiting != 3 {
			t.Errorf("%+v, %v", l, err)
		}
		cancel()
		starts.Wait()
	})
}
