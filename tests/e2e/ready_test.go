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
		err := s.Close() // what is in the folder of a mount that ends is gone
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
	ready := func() (int, string) {
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
	rig.Within(t, rig.Patience, "readiness", func() bool { status, _ := ready(); return status == http.StatusOK })
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
	rig.Within(t, rig.Patience, "the end of readiness", func() bool { status, why = ready(); return status == http.StatusServiceUnavailable })
	if !strings.Contains(why, "the database cannot be written") || !strings.Contains(why, "full") {
		t.Errorf("it says %q", why)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	rig.Within(t, rig.Patience, "readiness again", func() bool { status, _ := ready(); return status == http.StatusOK })
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
