package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	for _, tt := range []struct {
		name, mount, groups string // %[1]s: the mount point
		files               map[string]string
		want                int64
	}{
		{"no cgroup", "", "0::/\n", nil, 0},
		{
			"v2, own limit", "30 1 0:2 / %[1]s rw - cgroup2 cgroup rw\n", "0::/a/b\n",
			map[string]string{"cgroup.controllers": "cpu memory\n", "a/b/memory.max": "1000\n", "a/memory.max": "max\n"},
			1000,
		},
		{
			"v2, lower limit of a parent", "30 1 0:2 / %[1]s rw - cgroup2 cgroup rw\n", "0::/a/b\n",
			map[string]string{"cgroup.controllers": "memory\n", "a/b/memory.max": "1000\n", "a/memory.max": "700\n"},
			700,
		},
		{
			"v2, in a container", "30 1 0:2 / %[1]s rw - cgroup2 cgroup rw\n", "0::/on/the/host\n",
			map[string]string{"cgroup.controllers": "memory\n", "memory.max": "500\n"},
			500,
		},
		{
			"v2, no limit", "30 1 0:2 / %[1]s rw - cgroup2 cgroup rw\n", "0::/a\n",
			map[string]string{"cgroup.controllers": "memory\n", "a/memory.max": "max\n"},
			0,
		},
		{
			"v1", "30 1 0:2 / %[1]s rw - cgroup cgroup rw,memory\n", "5:cpu:/x\n4:memory:/a/b\n0::/\n",
			map[string]string{"x/memory.limit_in_bytes": "1\n", "a/b/memory.limit_in_bytes": "9223372036854771712\n", "a/memory.limit_in_bytes": "4096\n"},
			4096,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			mount := filepath.Join(dir, "cgroup")
			for name, text := range tt.files {
				file := filepath.Join(mount, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			mountinfo, groups := filepath.Join(dir, "mountinfo"), filepath.Join(dir, "groups")
			if tt.mount != "" {
				tt.mount = fmt.Sprintf(tt.mount, mount)
			}
			if err := os.WriteFile(mountinfo, []byte(tt.mount), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(groups, []byte(tt.groups), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := memoryLimit(mountinfo, groups); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}
