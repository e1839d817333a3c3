package server

import (
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

const (
	// restoredHook is a program of the user's that runs as root after every restore
	// of the Sandbox, before anything else in it continues.
	restoredHook = "/etc/cloud-sandbox/restored"
	// hookTime bounds it.
	hookTime = 2 * time.Second
	// restoredSignal notifies every process that it was restored, perhaps as one of
	// many copies. A process that does not handle the signal ignores it.
	restoredSignal = unix.SIGURG
)

// Watch tracks idle connections; it is an http.Server's ConnState.
func (g *Guest) Watch(c net.Conn, s http.ConnState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s == http.StateIdle {
		g.idle[c] = struct{}{}
	} else {
		delete(g.idle, c)
	}
}

// savedAt reads the time of the save from the hostname, which holds it from the
// restore to Bind.
func savedAt() (time.Time, bool) {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return time.Time{}, false
	}
	return guest.SavedAt(unix.ByteSliceToString(u.Nodename[:]))
}

// SetSavedAt sets the time of the save, if the Boot was just restored and does not know
// it. A zero time is ignored.
func (g *Guest) SetSavedAt(savedAt time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at, restored := g.savedAt(); restored && at.IsZero() && !savedAt.IsZero() {
		g.reportedSavedAt = savedAt
	}
}

// forget closes the idle connections of the time before the restore, whose other
// ends no longer exist, and records how long the Boot was away. The caller holds
// g.mu.
func (g *Guest) forget(clock int64) {
	for c := range g.idle {
		_ = c.Close()
	}
	clear(g.idle)
	at, restored := g.savedAt()
	if !restored {
		return
	}
	now := time.Now()
	if clock > 0 {
		now = time.Unix(0, clock)
	}
	if at.IsZero() {
		at, g.reportedSavedAt = g.reportedSavedAt, time.Time{}
	}
	if at.IsZero() { // the time is unknown: its limits run on as if it had not been away
		at = now
	}
	g.away += max(now.Sub(at), 0)
	_ = unix.Sethostname([]byte(g.host))
	if g.rebound != nil {
		close(g.rebound)
		g.rebound = nil
	}
}

// tellRestored notifies all processes that they were restored, and runs the user's
// hook. They are stopped until the hook has ended, and handle the signal first. The
// caller holds g.mu.
func (g *Guest) tellRestored() {
	if os.Getpid() == 1 {
		for _, t := range tasks() {
			_ = unix.Kill(t.pid, restoredSignal)
		}
	}
	g.runHook()
}

// runHook runs the user's hook if it exists. Its output is dropped, and its exit
// status is ignored.
func (g *Guest) runHook() {
	info, err := os.Stat(restoredHook)
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer null.Close()
	fd := int(null.Fd())
	root := User{Name: "root", Home: "/root", Shell: "/bin/sh"}
	c := Command{Path: restoredHook, Args: []string{restoredHook}, User: root, Env: environment(g.template.Env, g.owner, root, nil), Cwd: "/"}
	child, err := g.Start(c, []int{fd, fd, fd}, false)
	if err != nil {
		return
	}
	late := time.NewTimer(hookTime)
	defer late.Stop()
	select {
	case <-child.Exited:
	case <-late.C:
		_ = unix.Kill(-child.PID, syscall.SIGKILL)
		<-child.Exited
	}
}
