package sandbox_test

import (
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// A Sandbox that loses its Boot stays paused until its deadline. While it is being paused,
// its Deadline is that of the pause, and says nothing about it.
func TestRestoreDeadline(t *testing.T) {
	lost := time.Date(2026, 2, 28, 23, 0, 0, 0, time.UTC)
	own, move := lost.Add(20*time.Hour), lost.Add(5*time.Minute)
	for _, tt := range []struct {
		state     sandbox.State
		onTimeout sandbox.OnTimeout
		deadline  time.Time
		want      time.Time
	}{
		{sandbox.Running, sandbox.OnTimeoutEnd, own, own},
		{sandbox.Running, sandbox.OnTimeoutPause, own, lost.Add(sandbox.PausedLife)},
		{sandbox.Pausing, sandbox.OnTimeoutEnd, move, lost.Add(24 * time.Hour)},
		{sandbox.Pausing, sandbox.OnTimeoutPause, move, lost.Add(sandbox.PausedLife)},
	} {
		sb := sandbox.Sandbox{State: tt.state, OnTimeout: tt.onTimeout, Deadline: tt.deadline, Timeout: 24 * time.Hour, Snapshot: sandbox.NewSnapshotID()}
		if err := sb.Restore(lost, lost); err != nil || sb.State != sandbox.Paused || !sb.Deadline.Equal(tt.want) {
			t.Errorf("%s, %s: it is %s until %v, want %v, %v", tt.state, tt.onTimeout, sb.State, sb.Deadline, tt.want, err)
		}
	}
}
