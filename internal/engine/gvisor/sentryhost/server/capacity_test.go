package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

func TestRoomForTasks(t *testing.T) {
	for _, tt := range []struct {
		name, loadavg, pidMax, threadsMax string
		refused                           string // part of the sentence; empty: there is room
		broken                            bool
	}{
		{name: "room", loadavg: "5.52 6.45 6.48 2/1381 13686\n", pidMax: "32768\n", threadsMax: "190000\n"},
		{name: "pids", loadavg: "0 0 0 1/32700 9\n", pidMax: "32768\n", threadsMax: "190000\n", refused: "it runs 32700 tasks, and kernel.pid_max is 32768"},
		{name: "threads", loadavg: "0 0 0 1/7900 9\n", pidMax: "4194304\n", threadsMax: "8000\n", refused: "kernel.threads-max is 8000"},
		{name: "short", loadavg: "0 0\n", pidMax: "1\n", threadsMax: "1\n", broken: true},
		{name: "no number", loadavg: "0 0 0 1/x 9\n", pidMax: "1\n", threadsMax: "1\n", broken: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			must(t, os.MkdirAll(filepath.Join(root, "sys/kernel"), 0o755))
			for file, content := range map[string]string{"loadavg": tt.loadavg, "sys/kernel/pid_max": tt.pidMax, "sys/kernel/threads-max": tt.threadsMax} {
				must(t, os.WriteFile(filepath.Join(root, file), []byte(content), 0o644))
			}
			n, err := countTasks(root)
			if (err != nil) != tt.broken {
				t.Fatalf("countTasks = %+v, %v", n, err)
			}
			if tt.broken {
				return
			}
			err = n.checkCapacity()
			if (err == nil) != (tt.refused == "") || err != nil && (sandbox.CodeOf(err) != sandbox.Exhausted || !strings.Contains(err.Error(), tt.refused)) {
				t.Errorf("room = %v", err)
			}
		})
	}
}
