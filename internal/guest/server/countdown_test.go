package server

import (
	"testing"
	"testing/synctest"
	"time"
)

// What was limited to an hour, and was saved after ten minutes and restored after
// two hours, has fifty minutes left.
func TestCountdownCountsRunningTime(t *testing.T) {
	t.Run("it knows", func(t *testing.T) { countsRunningTime(t, false) })
	t.Run("it is told", func(t *testing.T) { countsRunningTime(t, true) })
}

func countsRunningTime(t *testing.T, told bool) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Accounts{}, nil)
		saved := time.Now().Add(10 * time.Minute)
		restored := false
		g.savedAt = func() (time.Time, bool) {
			if told {
				return time.Time{}, restored
			}
			return saved, restored
		}
		g.SetSavedAt(saved.Add(-time.Hour)) // it was not restored
		expired, stop := g.Countdown(time.Hour)
		defer stop()
		never, cancel := g.Countdown(time.Hour)
		time.Sleep(10 * time.Minute)
		g.mu.Lock()
		restored = true
		g.mu.Unlock()
		time.Sleep(110 * time.Minute) // which passes for the clocks
		if over(expired) {
			t.Fatal("it was over before the boot was bound")
		}
		g.SetSavedAt(saved)
		g.mu.Lock()
		g.forget(0)
		restored = false
		g.mu.Unlock()
		cancel()
		time.Sleep(49 * time.Minute)
		if over(expired) {
			t.Fatal("it was over early")
		}
		time.Sleep(2 * time.Minute)
		if !over(expired) {
			t.Error("it is not over")
		}
		if over(never) {
			t.Error("what was stopped expired")
		}
	})
}

func over(c <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}
