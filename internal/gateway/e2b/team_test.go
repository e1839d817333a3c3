package e2b

import (
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestTeamPoint(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	running := func(age time.Duration) sandbox.Sandbox {
		return sandbox.Sandbox{State: sandbox.Running, CreatedAt: at.Add(-age)}
	}
	ended := func(age, ago time.Duration) sandbox.Sandbox {
		sb := running(age)
		sb.State, sb.Ended = sandbox.Ended, &sandbox.TerminationRecord{At: at.Add(-ago)}
		return sb
	}
	paused := func(age, ago time.Duration) sandbox.Sandbox {
		sb := running(age)
		sb.State, sb.Deadline = sandbox.Paused, at.Add(sandbox.PausedLife-ago)
		return sb
	}
	for _, tt := range []struct {
		name       string
		all        []sandbox.Sandbox
		concurrent int
		rate       float64
	}{
		{"none", nil, 0, 0},
		{"that run", []sandbox.Sandbox{running(time.Hour), running(0), running(-time.Second)}, 2, 0.1},
		{"that ended", []sandbox.Sandbox{ended(time.Hour, time.Minute), ended(time.Hour, -time.Second), ended(2*time.Second, time.Second)}, 1, 0.1},
		{"that are paused", []sandbox.Sandbox{paused(time.Hour, time.Minute), paused(time.Hour, -time.Minute)}, 1, 0},
	} {
		if v := teamPoint(tt.all, at, 10*time.Second); v.Concurrent != tt.concurrent || v.StartRate != tt.rate || v.TimestampUnix != at.Unix() {
			t.Errorf("%s: %+v", tt.name, v)
		}
	}
}
