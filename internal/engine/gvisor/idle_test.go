package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// A Boot without requests sleeps. With a thousand Boots, each wake-up takes processor
// time from the busy ones. The Guest's runtime used to wake up once a minute, and each
// time its sentry woke up three times more.
func TestIdleBootSleeps(t *testing.T) {
	t.Parallel() // it only waits, for a minute
	s := newStage(t)
	e := s.open(t)
	defer endAll(t, e)
	id := sandbox.NewBootID()
	if err := e.Start(t.Context(), id, sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}); err != nil {
		t.Fatal(err)
	}
	// By then the sentry has freed what the start needed, and its watchdog has run once.
	const settled, watched, most = 48 * time.Second, 20 * time.Second, 12
	time.Sleep(settled)
	before := turnsOf(t, id)
	time.Sleep(watched)
	if n := turnsOf(t, id) - before; n > most {
		t.Errorf("the sentry ran %d times in %v", n, watched)
	}
}

// turnsOf counts how often the threads of a Boot's sentry were scheduled.
func turnsOf(t *testing.T, id string) (sum int) {
	t.Helper()
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", sentryOf(t, id)))
	for _, path := range stats {
		b, err := os.ReadFile(path)
		fields := strings.Fields(string(b))
		if err != nil || len(fields) != 3 {
			continue // that thread has ended
		}
		n, err := strconv.Atoi(fields[2])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if sum == 0 {
		t.Fatal("the kernel does not count how often the sentry ran")
	}
	return sum
}
