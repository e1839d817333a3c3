package e2e

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// systemd learns from the process that it has started, and from no other, when the server
// answers requests: then the start of the unit ends, and commands on the data folder
// work.
func TestSystemdLearnsOfReadiness(t *testing.T) {
	rig.Need(t)
	t.Parallel()
	at := filepath.Join(openFolder(t), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	raw, err := socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) }); err != nil {
		t.Fatal(err)
	}
	s := rig.Own(t, rig.Options{Env: []string{"NOTIFY_SOCKET=" + at}})
	_ = socket.SetReadDeadline(time.Now().Add(rig.Patience))
	message, control := make([]byte, 100), make([]byte, 100)
	n, size, _, _, err := socket.ReadMsgUnix(message, control)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(message[:n]); got != "READY=1" {
		t.Errorf("systemd is notified of %q", got)
	}
	parsed, err := unix.ParseSocketControlMessage(control[:size])
	if err != nil || len(parsed) != 1 {
		t.Fatalf("%v, %v", parsed, err)
	}
	if sender, err := unix.ParseUnixCredentials(&parsed[0]); err != nil || int(sender.Pid) != s.PID() {
		t.Errorf("process %v has notified systemd, which has started process %d: %v", sender, s.PID(), err)
	}
	// At once, without waiting.
	cmd := rig.Command(s.Bin, "key", "create", "--tenant", "me", "--name", "first", "--data", s.Data)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
