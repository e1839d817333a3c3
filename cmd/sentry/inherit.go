//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxDescriptor is above every number that a descriptor can have here.
const maxDescriptor = 1 << 23

// lastGiven is the highest descriptor in args; 2 without any. Flags that name descriptors
// end in -fd or -fds.
func lastGiven(args []string) int {
	last := 2
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		if !strings.HasPrefix(name, "-") || !strings.HasSuffix(strings.TrimSuffix(name, "s"), "-fd") {
			continue
		}
		for n := range strings.SplitSeq(value, ",") {
			if fd, err := strconv.Atoi(n); err == nil && fd <= maxDescriptor {
				last = max(last, fd)
			}
		}
	}
	return last
}

// closeStray closes stray inherited sockets. runsc makes a sentry's control socket
// without close-on-exec. So a sentry inherits a second copy of its own socket, and
// copies of the sockets of all sentries that start at the same time. With them a
// compromised sentry could pose as another one. If a copy has a descriptor number that
// the sentry needs, the sentry cannot start.
func closeStray(args []string) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has replaced itself in its empty root, and did this before
	}
	if err != nil {
		return fmt.Errorf("list open descriptors: %w", err)
	}
	last := lastGiven(args)
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= last {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
			if err := unix.Close(fd); err != nil {
				return fmt.Errorf("close a descriptor that is not for us: %w", err)
			}
		}
	}
	return nil
}
