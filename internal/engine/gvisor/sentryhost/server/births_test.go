package server

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestBirths(t *testing.T) {
	const name = "b-of-this-test"
	sleep := func(name string) *exec.Cmd {
		t.Helper()
		cmd := exec.Command("sh", "-c", "read line", name)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
		return cmd
	}
	sleep(name) // started before newBirths, so not found
	born := newBirths()
	if pid := born.named(name); pid != 0 {
		t.Errorf("before anything is born: %d", pid)
	}
	sleep("another")
	if pid := born.named(name); pid != 0 {
		t.Errorf("another one: %d", pid)
	}
	want := sleep(name).Process.Pid
	found := 0
	for late := time.Now().Add(10 * time.Second); found == 0 && time.Now().Before(late); {
		found = born.named(name)
	}
	if found != want {
		t.Errorf("it is %d, want %d", found, want)
	}
	if len(born.young) > maxBirths {
		t.Errorf("%d are looked at again", len(born.young))
	}
}

// A process between fork and exec still has its parent's command line. It is checked again
// until it has its own.
func TestBirthsBeforeExec(t *testing.T) {
	own, err := os.ReadFile("/proc/self/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	b := &births{own: own, last: lastPid(), young: []int{os.Getpid()}}
	b.named("b-of-this-test")
	if len(b.young) == 0 || b.young[0] != os.Getpid() {
		t.Errorf("looked at again: %v", b.young)
	}
	b.own = nil
	b.named("b-of-this-test")
	if len(b.young) > 0 && b.young[0] == os.Getpid() {
		t.Error("a program of its own is looked at again")
	}
}

// PIDs wrap around after the highest one.
func TestBirthsBeginAnew(t *testing.T) {
	last := lastPid()
	if last <= 0 {
		t.Fatalf("the last PID is %d", last)
	}
	b := &births{last: last + 1<<22}
	b.named("b-of-this-test")
	if b.last > last+1<<20 {
		t.Errorf("it looks above %d", b.last)
	}
}
