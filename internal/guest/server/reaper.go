package server

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reaper starts children and waits for them and for every orphan that PID 1
// inherits. It is the only caller of wait in the process: a child's exit cannot
// be taken by somebody else.
type Reaper struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

// Child is a process that was started.
type Child struct {
	PID    int
	Exited <-chan syscall.WaitStatus // one value, then closed
}

// NewReaper starts waiting. It runs until the process ends.
func NewReaper() *Reaper {
	r := &Reaper{waiting: map[int]chan syscall.WaitStatus{}}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	go func() {
		for range signals {
			r.reap()
		}
	}()
	return r
}

// reap waits for all that have ended. One signal may stand for many.
func (r *Reaper) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if !status.Exited() && !status.Signaled() {
			continue
		}
		r.mu.Lock() // a start that is under way registers first
		if ch := r.waiting[pid]; ch != nil {
			delete(r.waiting, pid)
			ch <- status
			close(ch)
		}
		r.mu.Unlock()
	}
}

// Start runs a program as a child.
func (r *Reaper) Start(path string, argv []string, attr *syscall.ProcAttr) (*Child, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	r.waiting[pid] = ch
	return &Child{PID: pid, Exited: ch}, nil
}
