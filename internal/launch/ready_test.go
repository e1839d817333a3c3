package launch

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// A role without a launcher notifies systemd itself. Without systemd it does
// nothing.
func TestReadyWithoutALauncher(t *testing.T) {
	if err := (Inherited{}).Ready(); err != nil {
		t.Error(err)
	}
	at := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", at)
	if err := (Inherited{}).Ready(); err != nil {
		t.Fatal(err)
	}
	_ = socket.SetReadDeadline(time.Now().Add(10 * time.Second))
	message := make([]byte, 100)
	if n, err := socket.Read(message); err != nil || string(message[:n]) != "READY=1" {
		t.Errorf("%q, %v", message[:n], err)
	}
}
