package sandbox

import "time"

const (
	// MinCheckpointEvery and MaxCheckpointEvery bound Sandbox.CheckpointEvery.
	MinCheckpointEvery = 10 * time.Second
	MaxCheckpointEvery = 24 * time.Hour
	// MaxRestores is the number of consecutive restores of the same Snapshot after which
	// use no longer wakes a Sandbox, because each use would lose a Boot.
	MaxRestores = 3
)

// Restored describes how a Sandbox survived the loss of its Boot.
type Restored struct {
	From  string        // the restored Snapshot; empty: no Boot was lost
	Lost  time.Duration // run time since that Snapshot, which was lost
	Times int64         // consecutive restores of that Snapshot
}

// Survives reports whether s returns to its Snapshot, instead of ending, when its Boot is
// lost for cause. It requires CheckpointEvery.
func (s *Sandbox) Survives(cause Cause) bool {
	switch cause {
	case CauseEngineLost, CauseNodeLost, CauseOOM:
		return s.CheckpointEvery > 0 && s.Snapshot != "" && (s.State == Running || s.State == Pausing)
	}
	return false
}

// Restore moves s, whose Boot was lost at at, to Paused in its Snapshot and to the next
// Timeline. If OnTimeout ends s, its Deadline stays unchanged, unless s was just being
// paused: then its Deadline bounded the pause, and s gets a new one.
func (s *Sandbox) Restore(at, now time.Time) error {
	pausing := s.State == Pausing
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
	switch pauses, _ := s.OnTimeout.Pauses(); {
	case pauses:
		s.Deadline = now.Add(PausedLife)
	case pausing:
		s.Deadline = s.Bounded(now.Add(s.Timeout))
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
