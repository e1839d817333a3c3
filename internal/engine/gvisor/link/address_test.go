package link_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
)

func TestKept(t *testing.T) {
	ours, theirs, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	kept, err := link.Kept(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	if err := ours.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closing what was given away = %v, want that it is closed", err)
	}
	if err := kept.SetDeadline(time.Now()); !errors.Is(err, os.ErrNoDeadline) {
		t.Errorf("a kept link is in the poller: SetDeadline = %v", err)
	}
	if _, err := theirs.Write([]byte("a frame")); err != nil {
		t.Fatal(err)
	}
	raw, err := kept.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	var n int
	if err := raw.Control(func(fd uintptr) { n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT) }); err != nil {
		t.Fatal(err)
	}
	if err != nil || string(buf[:n]) != "a frame" {
		t.Errorf("the kept link gives %q, %v", buf[:max(n, 0)], err)
	}
	if _, err := link.Kept(ours); err == nil {
		t.Error("a closed file was kept")
	}
}
