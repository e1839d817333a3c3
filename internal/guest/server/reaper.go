package server

import (
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Reaper starts children and waits for them and for every orphan that PID 1
// inherits. It is the only caller of wait in the process, so that no other code can
// take a child's exit status.
type Reaper struct {
	memory chan os.Signal // signals of the host: it is about to kill for lack of memory
	lacked atomic.Int64   // time of the last signal, in Unix nanoseconds; 0: never

	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

// memoryWord is how long after the host's signal a death by SIGKILL is attributed to
// lack of memory.
const memoryWord = 2 * time.Second

// Child is a process that was started.
type Child struct {
	PID    int
	Exited <-chan syscall.WaitStatus // one value, then closed
}

// NewReaper starts waiting. It runs until the process ends.
func NewReaper() *Reaper {
	r := &Reaper{waiting: map[int]chan syscall.WaitStatus{}, memory: make(chan os.Signal, 1)}
	signals := make(chan os.Signal, 1)
	signal.Notify(r.memory, sandbox.GuestMemorySignal)
	signal.Notify(signals, unix.SIGCHLD)
	go func() {
		for {
			select {
			case <-r.memory:
				r.lacked.Store(time.Now().UnixNano())
			case <-signals:
				r.reap()
			}
		}
	}()
	return r
}

// LackedMemory reports whether the host has just killed Processes because memory
// was used up.
func (r *Reaper) LackedMemory() bool {
	at := r.lacked.Load()
	return at != 0 && time.Since(time.Unix(0, at)) < memoryWord
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
		select { // the host's signal precedes the deaths that it explains
		case <-r.memory:
			r.lacked.Store(time.Now().UnixNano())
		default:
		}
		r.mu.Lock() // a start in progress registers first
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
