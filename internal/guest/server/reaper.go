package server

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
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
	starts  chan start
	limit   *pidsGroup // nil: none
}

type start struct {
	path  string
	argv  []string
	attr  *syscall.ProcAttr
	reply chan started
}

type started struct {
	child *Child
	err   error
}

// Child is a process that was started.
type Child struct {
	PID    int
	Exited <-chan syscall.WaitStatus // one value, then closed
}

// NewReaper starts waiting. It runs until the process ends.
func NewReaper() *Reaper {
	r := &Reaper{waiting: map[int]chan syscall.WaitStatus{}, starts: make(chan start)}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	go func() {
		for range signals {
			r.reap()
		}
	}()
	go r.spawn()
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

// spawn forks from one locked thread: what that thread is (its control group)
// its children are.
func (r *Reaper) spawn() {
	runtime.LockOSThread()
	if g, err := newPidsGroup(); err == nil {
		r.mu.Lock()
		r.limit = g
		r.mu.Unlock()
	}
	for s := range r.starts {
		r.mu.Lock()
		pid, err := syscall.ForkExec(s.path, s.argv, s.attr)
		var c *Child
		if err == nil {
			ch := make(chan syscall.WaitStatus, 1)
			r.waiting[pid] = ch
			c = &Child{PID: pid, Exited: ch}
		}
		r.mu.Unlock()
		s.reply <- started{c, err}
	}
}

// Start runs a program as a child.
func (r *Reaper) Start(path string, argv []string, attr *syscall.ProcAttr) (*Child, error) {
	s := start{path, argv, attr, make(chan started, 1)}
	r.starts <- s
	got := <-s.reply
	runtime.KeepAlive(attr)
	return got.child, got.err
}

// SetPidsLimit bounds the user's processes and threads; 0 means no limit.
func (r *Reaper) SetPidsLimit(n int64) error {
	r.mu.Lock()
	g := r.limit
	r.mu.Unlock()
	if g == nil {
		return errors.New("there is no pids controller here")
	}
	return g.setMax(n)
}

// PidsFull reports whether the limit on processes is reached now.
func (r *Reaper) PidsFull() bool {
	r.mu.Lock()
	g := r.limit
	r.mu.Unlock()
	return g != nil && g.full()
}

// pidsGroup is the control group of everything that the user runs. gVisor has
// no RLIMIT_NPROC, but its pids controller refuses a fork with EAGAIN.
type pidsGroup struct{ dir string }

const pidsRoot = "/sys/fs/cgroup/pids"

// newPidsGroup makes the group and moves the calling thread into it.
func newPidsGroup() (*pidsGroup, error) {
	g := &pidsGroup{filepath.Join(pidsRoot, "user")}
	if err := os.Mkdir(g.dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return g, g.write("tasks", strconv.Itoa(unix.Gettid()))
}

func (g *pidsGroup) write(file, value string) error {
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(value), 0); err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	return nil
}

func (g *pidsGroup) setMax(n int64) error {
	if n <= 0 {
		return g.write("pids.max", "max")
	}
	return g.write("pids.max", strconv.FormatInt(n+1, 10)) // our own thread is in it
}

func (g *pidsGroup) full() bool {
	current, err1 := os.ReadFile(filepath.Join(g.dir, "pids.current"))
	limit, err2 := os.ReadFile(filepath.Join(g.dir, "pids.max"))
	if err1 != nil || err2 != nil {
		return false
	}
	n, err1 := strconv.Atoi(string(trim(current)))
	m, err2 := strconv.Atoi(string(trim(limit)))
	return err1 == nil && err2 == nil && n*10 >= m*9
}

func trim(b []byte) []byte {
	for len(b) > 0 && (b[len(b)-1] == '\n' || b[len(b)-1] == ' ') {
		b = b[:len(b)-1]
	}
	return b
}
