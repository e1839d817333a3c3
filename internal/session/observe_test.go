package session_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

// Config.Created and Config.Ended are called once for each create and each end.
func TestCreatesAndEndsAreTold(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var told []string
		say := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf(format, args...))
		}
		m := session.New(w.store, w.nodes, placed{[]string{local}, w.nodes}, images{}, session.Config{
			Created: func(pooled bool, err error, _ time.Duration) { say("created %v %s", pooled, sandbox.CodeOf(err)) },
			Ended:   func(_ context.Context, sb sandbox.Sandbox) { say("ended %s", sb.Ended.Cause) },
		})
		create := func(req sandbox.CreateRequest) sandbox.Sandbox {
			sb, _ := m.Create(t.Context(), "t", req)
			return sb
		}
		w.nodes.pool = true
		sb := create(sandbox.CreateRequest{})
		if _, err := m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased); err != nil {
			t.Fatal(err)
		}
		_, _ = m.End(t.Context(), "t", sb.ID, sandbox.CauseReleased) // it has ended
		w.nodes.pool = false
		sb = create(sandbox.CreateRequest{})
		if err := m.BootEnded(t.Context(), sandbox.BootEnd{
			BootRef: sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: 1, Tenant: "t"}, Node: local, Cause: sandbox.CauseOOM,
		}); err != nil {
			t.Fatal(err)
		}
		create(sandbox.CreateRequest{Template: "none"})
		w.nodes.fail(func(f *faults) {
			f.onStart = func(context.Context, string, sandbox.StartRequest) error {
				return sandbox.Errorf(sandbox.Exhausted, "no room")
			}
		})
		create(sandbox.CreateRequest{})
		want := []string{
			"created true ", "ended released", "created false ", "ended oom", "created false not_found",
			"ended engine_lost", "created false exhausted",
		}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}
