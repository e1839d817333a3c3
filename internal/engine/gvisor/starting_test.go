package gvisor

import (
	"context"
	"errors"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// A Boot can be saved while its Guest starts programs, and Boots restored from it work: no
// process is saved between fork and exec.
func TestSavedWhileProgramsStart(t *testing.T) {
	s := newStage(t)
	e := s.open(t)
	defer endAll(t, e)
	spec := sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}
	origin := sandbox.NewBootID()
	if err := e.Start(t.Context(), origin, spec); err != nil {
		t.Fatal(err)
	}
	bind(t, e, origin)
	end := keepStarting(t, e, origin)
	defer end()
	for round := range 6 {
		name, id := sandbox.NewSnapshotID(), sandbox.NewBootID()
		if round%2 == 1 { // as for a pause
			if err := e.Freeze(t.Context(), origin); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := e.Save(t.Context(), origin, name, true); err != nil {
			t.Fatal(err)
		}
		if err := e.Thaw(t.Context(), origin); err != nil {
			t.Fatal(err)
		}
		from := spec
		from.From = name
		if err := e.Start(t.Context(), id, from); err != nil {
			t.Fatalf("Start %d: %v", round, err)
		}
		bind(t, e, id)
		if err := e.Thaw(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, e, id, "echo on"); got != "on" {
			t.Errorf("it goes on with %q", got)
		}
		if err := errors.Join(e.Stop(t.Context(), id, 0), e.DeleteSaved(t.Context(), name)); err != nil {
			t.Fatal(err)
		}
	}
}

// keepStarting has a Guest start programs without a break, until end is called.
func keepStarting(t *testing.T, e sandbox.Engine, id string) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	g := guestOf(e, id)
	done := make(chan int)
	go func() {
		started := 0
		for ctx.Err() == nil {
			if _, err := g.Run(ctx, execution.RunRequest{Args: []string{"/bin/true"}, Cwd: "/"}, func(execution.RunEvent) error { return nil }); err == nil {
				started++
			}
		}
		done <- started
	}()
	return func() {
		cancel()
		started := <-done
		t.Logf("%d programs were started", started)
		if started == 0 {
			t.Error("no program was started")
		}
		g.Close()
	}
}
