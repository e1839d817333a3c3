package rest_test

import (
	"context"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// attempts has the Sandboxes of earlier attempts, by ID.
type attempts struct {
	sandbox.SandboxReader
	made map[string]sandbox.Sandbox
}

func (a attempts) Get(_ context.Context, _ sandbox.TenantID, id string) (sandbox.Sandbox, error) {
	sb, there := a.made[id]
	if !there {
		return sb, sandbox.Errorf(sandbox.NotFound, "no such sandbox")
	}
	return sb, nil
}

// Each attempt of a request finds what the one before has made, however many have failed.
func TestEarlierAttempts(t *testing.T) {
	first := sandbox.NewSandboxID()
	ctx := rest.WithResource(t.Context(), first, true)
	all := attempts{made: map[string]sandbox.Sandbox{}}
	failed := sandbox.Sandbox{State: sandbox.Ended, Ended: &sandbox.TerminationRecord{Cause: sandbox.CauseEngineLost}}
	seen := map[string]bool{}
	for n := range 3 {
		made, next, err := rest.Earlier(ctx, all, "t", first)
		if err != nil || made.ID != "" || !sandbox.ValidSandboxID(next) || seen[next] || n == 0 && next != first {
			t.Fatalf("attempt %d: %+v, %q, %v", n, made, next, err)
		}
		seen[next] = true
		failed.ID = next
		all.made[next] = failed
	}
	_, next, err := rest.Earlier(ctx, all, "t", first)
	if err != nil {
		t.Fatal(err)
	}
	for want, sb := range map[string]sandbox.Sandbox{
		"made":     {State: sandbox.Running, StartedAt: time.Now()},
		"underway": {State: sandbox.Starting},
		"ended":    {State: sandbox.Ended, StartedAt: time.Now(), Ended: failed.Ended},
	} {
		sb.ID = next
		all.made[next] = sb
		made, _, err := rest.Earlier(ctx, all, "t", first)
		switch code := sandbox.CodeOf(err); want {
		case "made":
			if err != nil || made.ID != next {
				t.Errorf("%s: %+v, %v", want, made, err)
			}
		default:
			if code != sandbox.Conflict {
				t.Errorf("%s: %+v, %v", want, made, err)
			}
		}
	}
	failed.ID = next
	all.made[next] = failed
	for range 30 {
		_, next, err = rest.Earlier(ctx, all, "t", first)
		if err != nil {
			break
		}
		failed.ID = next
		all.made[next] = failed
	}
	if sandbox.CodeOf(err) != sandbox.Conflict {
		t.Errorf("after many failures: %v", err)
	}
}
