package server

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// startTasks is how many tasks the host must still have room for when a Boot starts: an
// idle one has some twenty, and the rest is a margin. A sentry that is refused a thread
// dies without a message.
const startTasks = 128

// tasks is the number of the host's processes and threads, and its limit.
type tasks struct {
	running, limit int
	setting        string // the kernel's setting that sets the limit
}

// countTasks reads /proc at root: the fourth field of loadavg (proc(5)), and the
// lower of two settings.
func countTasks(root string) (tasks, error) {
	load, err := os.ReadFile(root + "/loadavg")
	if err != nil {
		return tasks{}, err
	}
	fields := strings.Fields(string(load))
	if len(fields) < 4 {
		return tasks{}, fmt.Errorf("%s/loadavg is too short", root)
	}
	_, all, _ := strings.Cut(fields[3], "/")
	t := tasks{}
	if t.running, err = strconv.Atoi(all); err != nil {
		return tasks{}, fmt.Errorf("%s/loadavg: %w", root, err)
	}
	for _, setting := range []string{"pid_max", "threads-max"} {
		raw, err := os.ReadFile(root + "/sys/kernel/" + setting)
		if err != nil {
			return tasks{}, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err != nil {
			return tasks{}, fmt.Errorf("kernel.%s: %w", setting, err)
		}
		if t.setting == "" || n < t.limit {
			t.limit, t.setting = n, "kernel."+setting
		}
	}
	return t, nil
}

// checkCapacity returns Exhausted when the tasks of another Boot would not fit.
func (t tasks) checkCapacity() error {
	if t.limit-t.running >= startTasks {
		return nil
	}
	return sandbox.Errorf(sandbox.Exhausted, "this host has no room for another sandbox: it runs %d tasks, and %s is %d", t.running, t.setting, t.limit)
}
