package launch

import (
	"bytes"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A role without a launcher notifies systemd itself. Without systemd it does
// nothing.
func TestReadyWithoutALauncher(t *testing.T) {
	var log bytes.Buffer
	ready := func() { Inherited{}.Ready(slog.New(slog.NewTextHandler(&log, nil))) }
	ready()
	at := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", at)
	ready()
	_ = socket.SetReadDeadline(time.Now().Add(10 * time.Second))
	message := make([]byte, 100)
	if n, err := socket.Read(message); err != nil || string(message[:n]) != "READY=1" {
		t.Errorf("%q, %v", message[:n], err)
	}
	if log.Len() > 0 {
		t.Errorf("it logs %s", &log)
	}
	// A failure is logged.
	t.Setenv("NOTIFY_SOCKET", at+"-gone")
	if ready(); !strings.Contains(log.String(), "notifying systemd of readiness failed") {
		t.Errorf("it logs %q", &log)
	}
}
