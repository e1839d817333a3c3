package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestCgroupMemory(t *testing.T) {
	for _, tt := range []struct {
		name        string
		files       map[string]string
		limit, free int64
		ok          bool
	}{
		{"none", nil, 0, 0, false},
		{"v2", map[string]string{"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 400\ninactive_file 200\nactive_file 100\n"}, 1000, 500, true},
		{"v2 without a limit", map[string]string{"memory.max": "max\n", "memory.current": "700\n", "memory.stat": ""}, 0, 0, false},
		{"v2 at the root, which has no files", map[string]string{"cgroup.procs": ""}, 0, 0, false},
		{"v1", map[string]string{
			"memory/memory.limit_in_bytes": "1000\n", "memory/memory.usage_in_bytes": "900\n",
			"memory/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
		}, 1000, 200, true},
		{"more in use than the limit", map[string]string{"memory.max": "1000\n", "memory.current": "1100\n", "memory.stat": "inactive_file 50\n"}, 1000, 0, true},
		{"a count that lags", map[string]string{"memory.max": "1000\n", "memory.current": "100\n", "memory.stat": "inactive_file 300\n"}, 1000, 1000, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range tt.files {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			limit, free, ok := cgroupMemory(root)
			if limit != tt.limit || free != tt.free || ok != tt.ok {
				t.Errorf("cgroupMemory = %d, %d, %v, want %d, %d, %v", limit, free, ok, tt.limit, tt.free, tt.ok)
			}
		})
	}
}

// What must be free of the disk is a share of a small one, and bytes of a large one.
func TestAdmitByDisk(t *testing.T) {
	const gib = 1 << 30
	for _, tt := range []struct {
		name        string
		free, total int64
		again       bool
		want        string // in the error; empty: none
	}{
		{"a large disk", 38 * gib, 252 * gib, false, ""},
		{"as little as a new one needs", 10 * gib, 252 * gib, false, ""},
		{"less", 10*gib - 1, 252 * gib, false, "the host's disk is nearly full: 10239 MiB free, and new sandboxes need 10240 MiB"},
		{"a small disk", 3 * gib, 20 * gib, false, ""},
		{"too little of a small one", 2 * gib, 20 * gib, false, "2048 MiB free, and new sandboxes need 3072 MiB"},
		{"enough to resume", 2 * gib, 20 * gib, true, ""},
		{"a large disk, to resume", 4 * gib, 252 * gib, true, ""},
		{"too little to resume", 3 * gib, 252 * gib, true, "one that resumes needs 4096 MiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := hostGauge{read: func() (sandbox.HostState, error) {
				return sandbox.HostState{DiskFree: tt.free, DiskTotal: tt.total, MemoryFree: gib, MemoryTotal: gib}, nil
			}}
			err := h.admit(tt.again)
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, sandbox.Exhausted) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestDemand(t *testing.T) {
	var d demand
	at := func(s float64) time.Time { return time.Unix(1_000_000, 0).Add(time.Duration(s * float64(time.Second))) }
	for _, s := range []float64{0, 0.5, 1.5, 10, 10.1, 10.9, 40} {
		d.add(at(s))
	}
	for _, tt := range []struct {
		now    float64
		window time.Duration
		want   int
	}{
		{40, 2 * time.Second, 1},
		{40, 30 * time.Second, 4},
		{41, 29 * time.Second, 1},
		{69, 30 * time.Second, 1},
		{71, 30 * time.Second, 0},
		{7100, 30 * time.Second, 0},
	} {
		if got := d.within(at(tt.now), tt.window); got != tt.want {
			t.Errorf("within %v of %v: %d, want %d", tt.window, tt.now, got, tt.want)
		}
	}
}
