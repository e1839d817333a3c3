package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// descriptorFlag is a flag that names descriptors given to a sentry.
var descriptorFlag = regexp.MustCompile(`^--?[a-z-]+-fds?=(\d{1,7}(?:,\d{1,7})*)$`)

// lastGiven is the highest descriptor that args name; 2 when they name none.
func lastGiven(args []string) int {
	last := 2
	for _, a := range args {
		m := descriptorFlag.FindStringSubmatch(a)
		if m == nil {
			continue
		}
		for n := range strings.SplitSeq(m[1], ",") {
			if fd, err := strconv.Atoi(n); err == nil {
				last = max(last, fd)
			}
		}
	}
	return last
}

// closeStray closes the sockets that came along by mistake. runsc makes the
// control socket of a sentry without close-on-exec, so a sentry is born with a
// second copy of its own, and with those of all that are being started beside it:
// a compromised one could pose as another. Where the number of a copy is one that
// the sentry wants for itself, it cannot start at all.
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
