package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// largeTime is the timeout of one step, in seconds.
const largeTime = 3000

// A Sandbox of the default shape with a million files, or with 50,000 descriptors, is
// paused and resumed whole. `make test-large` runs it and prints how long each step took.
func TestLarge(t *testing.T) {
	if os.Getenv("LARGE_E2E") == "" {
		t.Skip("it takes many minutes: make test-large")
	}
	s := rig.Own(t, rig.Options{Pool: 1})
	c := s.Client(t, "large")
	c.HTTP.Timeout = largeTime * time.Second
	for _, tt := range []struct {
		name, make, count, want string
	}{
		{
			"a million files", `
import os
for i in range(1_000_000):
    if i % 1000 == 0:
        os.makedirs(f"/workspace/many/{i // 1000}")
    os.mknod(f"/workspace/many/{i // 1000}/{i}", 0o644)`,
			"find /workspace/many -type f | wc -l", "1000000\n",
		},
		{
			"50,000 descriptors", `
import os, socket, time
for _ in range(20):
    if os.fork() == 0:
        kept = [socket.socket() for _ in range(2500)]
        os.setsid()
        open(f"/tmp/ready.{os.getpid()}", "w").close()
        while True:
            time.sleep(1000)
while len([f for f in os.listdir("/tmp") if f.startswith("ready.")]) < 20:
    time.sleep(0.1)`,
			"sudo sh -c 'for p in /proc/[0-9]*; do ls $p/fd 2>/dev/null | wc -l; done' | awk '$1 >= 2500' | wc -l", "20\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id := create(t, c, rig.Body{"timeout_seconds": 6 * largeTime}).ID
			limit := rig.Body{"timeout_seconds": largeTime}
			step := func(what string, do func()) {
				t.Helper()
				began := time.Now()
				do()
				fmt.Printf("%s: %s took %.1f s\n", tt.name, what, time.Since(began).Seconds())
			}
			count := func() {
				t.Helper()
				if r := c.Run(t, id, "bash", tt.count, limit); r.Stdout != tt.want {
					t.Errorf("counting says %v, not %q", r, tt.want)
				}
			}
			step("making them", func() {
				if r := c.Run(t, id, "python", tt.make, limit); r.Status != "ok" {
					t.Fatal(r)
				}
			})
			step("counting them", count)
			step("a pause", func() { act(t, c, id, "pause", rig.Body{}) })
			step("a resume", func() { act(t, c, id, "resume", rig.Body{}) })
			step("counting them again", count)
		})
	}
}
