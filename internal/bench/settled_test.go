package bench

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// settled waits for a disk to become idle. It returns the last value if the disk stays
// busy.
func TestSettled(t *testing.T) {
	for _, tt := range []struct {
		name     string
		used     func(since time.Duration) int64
		want     int64
		changing bool
		within   time.Duration
	}{
		{"at rest", func(time.Duration) int64 { return 7 }, 7, false, restTime},
		{"empty", func(time.Duration) int64 { return 0 }, 0, false, restTime},
		{"comes to rest", func(d time.Duration) int64 { return int64(max(0, 20-d/time.Second)) }, 0, false, 20*time.Second + restTime + settlePace},
		{"never at rest", func(d time.Duration) int64 { return int64(d) }, int64(settleTime), true, settleTime},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			got, changing, err := settled(t.Context(), func() (int64, error) { return tt.used(time.Since(began)), nil })
			if err != nil || got != tt.want || changing != tt.changing || time.Since(began) > tt.within {
				t.Errorf("%s: %d, still changing: %v, %v, after %v", tt.name, got, changing, err, time.Since(began))
			}
		})
	}
	broken, stop := errors.New("no such disk"), errors.New("stop")
	if _, _, err := settled(t.Context(), func() (int64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("of a disk that cannot be read: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, _, err := settled(ctx, func() (int64, error) { return 1, nil }); !errors.Is(err, stop) {
		t.Errorf("after its context ended: %v", err)
	}
}
