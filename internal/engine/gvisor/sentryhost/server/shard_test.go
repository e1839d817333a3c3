package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/cgroup"
)

// A shard that could not be recorded leaves neither a process nor a cgroup.
func TestShardNotRecorded(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("shards are started by root only")
	}
	dir, err := os.MkdirTemp("", "shard") // outside t.TempDir, which other users cannot enter
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	fifo, program := filepath.Join(dir, "fifo"), filepath.Join(dir, "test-link")
	must(t, unix.Mkfifo(fifo, 0o644))
	must(t, os.WriteFile(program, []byte("#!/bin/sh\nread line < "+fifo+"\n"), 0o755)) // until it is killed
	must(t, os.MkdirAll(filepath.Join(dir, "shards", "3.json"), 0o755))                // where the record would be
	groups, err := cgroup.Detect(fmt.Sprintf("cloud-sandbox-shard-%d", os.Getpid()))
	must(t, err)
	t.Cleanup(func() {
		if err := groups.Remove(); err != nil {
			t.Error(err)
		}
	})
	h := &Host{
		cfg:    Config{Dir: dir, LinkBinary: program, LinkUID: 65534},
		groups: groups, shards: map[int]*shard{}, log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if _, err := h.shard(3); err == nil {
		t.Fatal("a shard without a record was started")
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	must(t, err)
	for _, path := range stats {
		if raw, err := os.ReadFile(path); err == nil && strings.Contains(string(raw), "(test-link)") {
			t.Errorf("a process is left: %s", raw)
		}
	}
	if left, err := groups.Names(); err != nil || len(left) > 0 {
		t.Errorf("left cgroups: %v, %v", left, err)
	}
}

// A shard that ends while it is adopted is not listed any more.
func TestShardEndsWhileAdopted(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "shards"), 0o755))
	for i := range 100 {
		program := exec.Command("sleep", "60")
		must(t, program.Start())
		ticks, err := startTicks(program.Process.Pid)
		must(t, err)
		record, err := json.Marshal(shard{Number: 1, Pid: program.Process.Pid, StartTicks: ticks})
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "shards", "1.json"), record, 0o600))
		h := &Host{cfg: Config{Dir: dir}, shards: map[int]*shard{}, log: slog.New(slog.DiscardHandler)}
		killed := make(chan error)
		go func() {
			time.Sleep(time.Duration(i) * 2 * time.Microsecond)
			killed <- program.Process.Kill()
		}()
		h.adoptShards()
		must(t, <-killed)
		h.wg.Wait()
		if left := h.listShards(); len(left) > 0 {
			t.Fatalf("after %d microseconds: %+v are listed", 2*i, left)
		}
	}
}
