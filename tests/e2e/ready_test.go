package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A server whose database cannot be written is not ready, and is again once it can.
func TestNotReadyWithAFullDisk(t *testing.T) {
	t.Parallel()
	rig.Need(t)
	s, err := rig.New(rig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(s.Data, "server")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=48m,mode=0700,uid=61740,gid=61740"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := s.Close() // may fail to remove the mount point
		if busy := syscall.Unmount(folder, 0); busy != nil {
			t.Error(busy)
		}
		if err != nil && !strings.Contains(err.Error(), "device or resource busy") {
			t.Error(err)
		}
		_ = os.RemoveAll(s.Data)
	})
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	rig.Within(t, rig.Patience, "readiness", func() bool { status, _ := ready(t, s); return status == http.StatusOK })
	filler := filepath.Join(folder, "filler")
	out, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, zeros{}); err == nil {
		t.Fatal("the disk has no end")
	}
	out.Close()
	var status int
	var why string
	rig.Within(t, rig.Patience, "the end of readiness", func() bool { status, why = ready(t, s); return status == http.StatusServiceUnavailable })
	if !strings.Contains(why, "the database cannot be written") || !strings.Contains(why, "full") {
		t.Errorf("it says %q", why)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	rig.Within(t, rig.Patience, "readiness again", func() bool { status, _ := ready(t, s); return status == http.StatusOK })
}

// ready asks the server whether it is ready, and why not.
func ready(t *testing.T, s *rig.Server) (status int, reasons string) {
	t.Helper()
	resp, err := http.Get(s.URL + "/ready")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	var said struct{ Reasons []string }
	if err := json.Unmarshal(raw, &said); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return resp.StatusCode, strings.Join(said.Reasons, "; ")
}

// A read-only database makes the server not ready. Existing sandboxes are not lost.
func TestNotReadyWithAReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	c := s.Client(t, "reader")
	made := create(t, c, rig.Body{})
	database := filepath.Join(s.Data, "server", "cloud-sandbox.db")
	for _, path := range []string{database, database + "-wal"} {
		freeze(t, path)
	}
	var status int
	var why string
	rig.Within(t, rig.Patience, "the end of readiness", func() bool { status, why = ready(t, s); return status == http.StatusServiceUnavailable })
	if !strings.Contains(why, "the database cannot be written") || !strings.Contains(why, "read-only") {
		t.Errorf("it says %q", why)
	}
	if status, raw, err := c.Do("POST", "/api/v1/sessions", rig.Body{}); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("a create answers %d %s, %v", status, raw, err)
	}
	if got := c.Get(t, made.ID); got.State != "running" {
		t.Errorf("what was made before is %s", got.State)
	}
	for _, path := range []string{database, database + "-wal"} {
		if err := setImmutable(path, false); err != nil {
			t.Fatal(err)
		}
	}
	rig.Within(t, rig.Patience, "readiness again", func() bool { status, _ := ready(t, s); return status == http.StatusOK })
	if r := c.Run(t, made.ID, "bash", "echo there", nil); r.Stdout != "there\n" {
		t.Errorf("afterwards it says %v", r)
	}
	create(t, c, rig.Body{})
}

// freeze makes a file immutable until the test's end, also for processes that have it
// open. It skips the test if the file system does not support that.
func freeze(t *testing.T, path string) {
	t.Helper()
	probe, err := os.OpenFile(path+".probe", os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(probe.Name())
	defer probe.Close()
	err = setImmutable(probe.Name(), true)
	_, writeErr := probe.WriteString("x")
	_ = setImmutable(probe.Name(), false)
	if err != nil || writeErr == nil {
		t.Skipf("the file system of %s keeps no files from being written: %v", path, err)
	}
	t.Cleanup(func() { _ = setImmutable(path, false) })
	if err := setImmutable(path, true); err != nil {
		t.Fatal(err)
	}
}

// setImmutable sets or clears the immutable flag of a file, as chattr does with i.
func setImmutable(path string, on bool) error {
	const immutable = 0x10 // FS_IMMUTABLE_FL
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	if flags &^= immutable; on {
		flags |= immutable
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

// zeros is an endless reader of zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
