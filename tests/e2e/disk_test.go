package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// On a nearly full disk new sessions are refused while paused ones still resume. If
// there is no room to resume a session, it stays paused.
func TestDiskNearlyFull(t *testing.T) {
	// The node checks the disk that holds its folder.
	s, fill := onSmallDisk(t, "server/node")
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	c := s.Client(t, "disk")
	one := create(t, c, rig.Body{})
	output(t, c, one.ID, "python", "x = 1")
	act(t, c, one.ID, "pause", rig.Body{})

	// refused waits until a create that misses the Pool is refused. The node's view of
	// the disk may lag.
	refused := func() {
		t.Helper()
		rig.Within(t, rig.Patience, "a new session is refused", func() bool {
			status, raw, err := c.Do("POST", "/api/v1/sessions", rig.Body{"resources": rig.Body{"disk_mb": 3000}})
			return err == nil && status == http.StatusTooManyRequests && strings.Contains(string(raw), "new sandboxes need 15 MiB")
		})
	}
	fill(3)
	refused()
	status, raw, err := c.Do("POST", "/api/v1/sessions/"+one.ID+"/resume", nil)
	if err != nil || status != http.StatusTooManyRequests || !strings.Contains(string(raw), "one that resumes needs 5 MiB") {
		t.Errorf("a resume: %d %s, %v", status, raw, err)
	}
	var now session
	c.Must(t, "GET", "/api/v1/sessions/"+one.ID, nil, &now)
	if now.State != "paused" {
		t.Errorf("it is %s", now.State)
	}
	fill(10)
	rig.Within(t, rig.Patience, "it resumes", func() bool {
		return c.Try("POST", "/api/v1/sessions/"+one.ID+"/resume", nil, &now) == nil
	})
	refused()
	if got := output(t, c, one.ID, "python", "print(x + 1)"); got != "2\n" {
		t.Errorf("it says %q", got)
	}
}

// onSmallDisk prepares a server with a folder of its data folder on a tmpfs. fill leaves
// free percent of that disk free.
func onSmallDisk(t *testing.T, folder string) (s *rig.Server, fill func(free int64)) {
	t.Helper()
	rig.OneMachine(t)
	s, err := rig.New(rig.Options{Pool: 1})
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(s.Data, folder)
	if err := os.MkdirAll(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	const size = 100 << 20
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=100m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Log())
		}
		_ = s.Stop()
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	return s, func(free int64) {
		t.Helper()
		f, err := os.Create(filepath.Join(disk, "filler"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() // os.Create has truncated the previous filler
		if err := unix.Fallocate(int(f.Fd()), 0, 0, size*(100-free)/100); err != nil {
			t.Fatal(err)
		}
	}
}
