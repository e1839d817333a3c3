package sandbox

import "time"

const (
	// MinCheckpointEvery and MaxCheckpointEvery bound Sandbox.CheckpointEvery.
	MinCheckpointEvery = 10 * time.Second
	MaxCheckpointEvery = 24 * time.Hour
	// MaxRestores is how often in a row a Sandbox goes back to the same Snapshot
	// before its use no longer wakes it: each use would lose a Boot.
	MaxRestores = 3
)

// Restored says how a Sandbox outlived the loss of its Boot.
type Restored struct {
	From  string        // the Snapshot that it went back to; empty: it lost none
	Lost  time.Duration // how long it had run beyond that Snapshot
	Times int64         // how often in a row it went back to that one
}

// Survives reports whether s goes back to its Snapshot, and does not end, when
// its Boot is lost for cause. Its owner must have asked for checkpoints.
func (s *Sandbox) Survives(cause Cause) bool {
	switch cause {
	case CauseEngineLost, CauseNodeLost, CauseOOM:
		return s.CheckpointEvery > 0 && s.Snapshot != "" && (s.State == Running || s.State == Pausing)
	}
	return false
}

// Restore makes s, whose Boot was lost at a time, paused in its Snapshot, in the
// next Timeline. One that is to end at its deadline keeps it.
func (s *Sandbox) Restore(at, now time.Time) error {
	if err := s.To(Paused); err != nil {
		return err
	}
	times := int64(1)
	if s.Restored.From == s.Snapshot {
		times += s.Restored.Times
	}
	s.Restored = Restored{From: s.Snapshot, Lost: max(at.Sub(s.SnapshotAt), 0), Times: times}
	if times >= MaxRestores {
		s.StayPaused = true
	}
	s.Boot.ID = ""
	s.Timeline++
	if pauses, _ := s.OnTimeout.Pauses(); pauses {
		s.Deadline = now.Add(PausedLife)
	}
	return nil
}

func checkCheckpointEvery(d time.Duration) error {
	if d != 0 && (d < MinCheckpointEvery || d > MaxCheckpointEvery) {
		return Errorf(Invalid, "checkpoint_every_seconds must be between %d and %d, or 0 for none",
			int(MinCheckpointEvery.Seconds()), int(MaxCheckpointEvery.Seconds()))
	}
	return nil
}
