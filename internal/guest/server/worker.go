package server

import (
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Worker is a program that stays and does one piece of work after the other. Its
// methods are safe for concurrent use.
type Worker struct {
	guest *Guest
	run   *run
	user  User
	child *Child
}

// StartWorker starts a command that stays, with these files as its descriptors
// from 0 on. The caller waits for Exited, then calls Release.
func (g *Guest) StartWorker(c Command, files []*os.File) (*Worker, error) {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd()) // also makes it blocking, as a program expects
	}
	job, err := g.StartJob(c, fds, false)
	if err != nil {
		return nil, err
	}
	return &Worker{guest: g, user: c.User, child: job.child, run: job.run}, nil
}

// Exited yields the exit status of the program, once.
func (w *Worker) Exited() <-chan syscall.WaitStatus { return w.child.Exited }

// Release records that the program has ended.
func (w *Worker) Release() { w.guest.untrack(w.run) }

// OutOfMemory reports whether an end by this status was for lack of memory.
func (w *Worker) OutOfMemory(status syscall.WaitStatus) bool {
	w.run.mu.Lock()
	defer w.run.mu.Unlock()
	return w.run.oom || status.Signaled() && status.Signal() == syscall.SIGKILL && w.guest.Reaper.LackedMemory()
}

// Signal sends a signal to the program itself.
func (w *Worker) Signal(s syscall.Signal) { _ = unix.Kill(w.run.leader, s) }

// Kill ends the program and everything it started. A process that wiped all traces is
// ended only if it started since m.
func (w *Worker) Kill(m Moment) { killFamily(w.since(m), map[int]bool{}) }

// since returns the run with m as its start: processes that hide are attributed to
// it from m on.
func (w *Worker) since(m Moment) *run {
	return &run{leader: w.run.leader, mark: w.run.mark, start: int64(m)}
}

// Moment is a point in time, in the clock of processes' start times.
type Moment int64

// Ago returns the Moment d ago, or slightly before it. If the clock cannot be read
// it is in the far future: nothing has started since.
func Ago(d time.Duration) Moment {
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return math.MaxInt64
	}
	first, _, _ := strings.Cut(string(b), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return math.MaxInt64
	}
	const ticks = 100 // a second, in /proc on every Linux and in gVisor
	return Moment((seconds-d.Seconds())*ticks) - 1
}

// EndSince ends for good the processes that the program started at a Moment or
// later, and leaves the program and its older processes.
func (w *Worker) EndSince(m Moment) {
	const rounds = 100
	known := map[int]bool{}
	for range rounds {
		var young []int
		for _, pid := range family(w.since(m), known) {
			if t, ok := readTask(pid); ok && pid != w.run.leader && t.start >= int64(m) {
				young = append(young, pid)
			}
		}
		if onlyDead(young) {
			return
		}
		for _, pid := range young {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		for _, pid := range young {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// Shortage returns the resource that the Sandbox has run out of, for the program's
// user: StatusPids, StatusDiskFull or StatusOK.
func (w *Worker) Shortage(cwd string) Status {
	if crowded(w.user.UID, w.guest.pidsLimit()) {
		return StatusPids
	}
	for _, path := range []string{cwd, "/", "/tmp"} {
		if Full(path) {
			return StatusDiskFull
		}
	}
	return StatusOK
}
