//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd/sandboxsetup"
	"gvisor.dev/gvisor/runsc/specutils"
)

// gVisor still starts what unmounts /proc as package early knows it, and the
// kernel of gVisor is not made ready for it.
func TestUnmountComesEarly(t *testing.T) {
	before := specutils.ExePath
	specutils.ExePath = "/bin/true"
	defer func() { specutils.ExePath = before }()
	asked, w := sandboxsetup.ExecProcUmounter()
	w.Close()
	_ = asked.Wait()
	want := []string{"umount", "--sync-fd=3", "/proc"}
	if got := asked.Args[1:]; !slices.Equal(got, want) {
		t.Fatalf("gVisor asks for %q, want %q", got, want)
	}

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "umount", "--sync-fd=3", dir)
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	cmd.ExtraFiles = []*os.File{r}
	var trace bytes.Buffer
	cmd.Stderr = &trace
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close() // whoever asked is gone
	if err := cmd.Wait(); err == nil {
		t.Error("it succeeds when nobody told it to unmount")
	}
	for line := range strings.Lines(trace.String()) {
		if strings.Contains(line, "gvisor.dev/gvisor/pkg/sentry/") || strings.Contains(line, "google.golang.org/") {
			t.Errorf("before it: %s", line)
		}
	}
	if !strings.Contains(trace.String(), "init ") {
		t.Errorf("no trace: %q", trace.String())
	}
}

// It waits until it is told, then unmounts, and holds no other descriptor meanwhile.
func TestUnmountWaits(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("this machine lets nobody mount: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	mounted := func() bool {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		return fs.Type == unix.TMPFS_MAGIC && fs.Blocks*uint64(fs.Bsize) == 64<<10
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stray, strayEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "umount", "--sync-fd=3", dir)
	cmd.ExtraFiles = []*os.File{r, strayEnd}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	strayEnd.Close()
	var b [1]byte
	if n, err := stray.Read(b[:]); n != 0 || err == nil { // its end, once it has closed its copy
		t.Errorf("read %d bytes, %v", n, err)
	}
	if err := syscall.Kill(cmd.Process.Pid, 0); err != nil || !mounted() {
		t.Errorf("it did not wait: %v", err)
	}
	if _, err := w.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || mounted() {
		t.Errorf("%v, and mounted is %t", err, mounted())
	}
	w.Close()
	stray.Close()
}
