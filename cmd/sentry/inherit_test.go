//go:build linux

package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestLastGiven(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want int
	}{
		{nil, 2},
		{[]string{"sentry", "--debug=false", "boot", "id"}, 2},
		{[]string{"boot", "--io-fds=4", "--io-fds=5", "--dev-io-fd=-1", "--start-sync-fd=7", "--stdio-fds=10", "--stdio-fds=12"}, 12},
		{[]string{"boot", "--io-fds=4,19,6"}, 19},
		{[]string{"umount", "--sync-fd=3", "/proc"}, 3},
		{[]string{"boot", "--controller-fd=99999999999"}, 2},
	} {
		if got := lastGiven(tt.args); got != tt.want {
			t.Errorf("lastGiven(%q) = %d, want %d", tt.args, got, tt.want)
		}
	}
}

func TestCloseStray(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	const given, stray = 700, 701
	for i, to := range []int{given, stray} {
		if err := unix.Dup2(pair[i], to); err != nil {
			t.Fatal(err)
		}
		unix.Close(pair[i])
	}
	if err := closeStray([]string{"boot", "--controller-fd=700"}); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(given, unix.F_GETFD, 0); err != nil {
		t.Errorf("the given socket: %v", err)
	}
	if _, err := unix.FcntlInt(stray, unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the stray socket: %v", err)
	}
	unix.Close(given)
}
