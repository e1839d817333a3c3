package cgroup

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// MemoryLimit returns the smallest memory limit of this process's control groups, v1 or
// v2, in bytes; 0 when no limit is set.
func MemoryLimit() int64 { return memoryLimit("/proc/self/mountinfo", "/proc/self/cgroup") }

func memoryLimit(mountinfo, membership string) int64 {
	mounts, err := cgroupMounts("/", mountinfo)
	if err != nil {
		return 0
	}
	groups, err := os.ReadFile(membership)
	if err != nil {
		return 0
	}
	var smallest int64
	// look reads the limits of a group and its ancestors. In a container the group may
	// have its name on the host, and then only the mount point can be read.
	look := func(mount, group, file string) {
		for group = filepath.Clean("/" + group); ; group = filepath.Dir(group) {
			limit, err := readInt(filepath.Join(mount, group, file))
			if err == nil && limit > 0 && (smallest == 0 || limit < smallest) {
				smallest = limit
			}
			if group == "/" {
				return
			}
		}
	}
	for s := bufio.NewScanner(bytes.NewReader(groups)); s.Scan(); {
		parts := strings.SplitN(s.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		controllers := strings.Split(parts[1], ",")
		switch mount := mounts.v1["memory"]; {
		case parts[1] == "" && mounts.v2 != "":
			look(mounts.v2, parts[2], "memory.max")
		case mount != "" && slices.Contains(controllers, "memory"):
			look(mount, parts[2], "memory.limit_in_bytes")
		}
	}
	return smallest
}
