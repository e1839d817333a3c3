package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cgroup"
	"github.com/cloud-sandbox/cloud-sandbox/internal/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/sentryhost"
)

const (
	// sentryMemory is added to a Shape's memory for the sentry itself.
	sentryMemory = 32 << 20
	// memoryReserve is lent when memory is used up, so that somebody can make
	// room.
	memoryReserve = 32 << 20
	maxReserve    = 8 * memoryReserve
	// hostTasks is how many host tasks a Boot may have for each of the user's
	// pids: an address space, its threads, and threads of the sentry; a fork
	// bomb was seen to need four. Too few end the sentry, so this is the outer
	// fence; the Guest counts pids.
	hostTasks, hostTasksBase = 12, 1024
	// removeWait bounds the wait for killed tasks to leave their group.
	removeWait = 5 * time.Second
)

// boot is one sentry and what it holds. Its fields but running and ended are
// set before it is published.
type boot struct {
	record record
	group  *cgroup.Group
	link   *os.File // copy of the host's end; nil after a restart
	upper  *os.File // copy of the upper layer's file, to measure it; nil after a restart
	pidfd  *os.File
	gone   chan struct{} // closed when the sentry's process is gone

	pressure *cgroup.Pressure
	running  bool // guarded by Host.mu: the Guest was started and Stop was not called
	stopping bool // guarded by Host.mu
	oom      bool // guarded by Host.mu: it was ended because memory ran out
}

// record is what a later sentry host needs to take a Boot up again.
type record struct {
	sentryhost.Boot
	StartTicks uint64 `json:"start_ticks"` // of the pid: tells it from a later process
	Socket     string `json:"socket"`      // control socket
}

func (h *Host) bootDir(id string) string { return filepath.Join(h.cfg.Dir, "boots", id) }

// start boots an image. On error nothing is left.
func (h *Host) start(ctx context.Context, r sentryhost.StartRequest, files *fdrpc.Request) (err error) {
	if !sandbox.ValidBootID(r.ID) {
		return sandbox.Errorf(sandbox.Invalid, "%q is not a boot ID", r.ID)
	}
	if err := r.Shape.Check(); err != nil {
		return err
	}
	guestEnd, err := files.TakeFile(0)
	if err != nil {
		return err
	}
	defer guestEnd.Close()
	hostEnd, err := files.TakeFile(1)
	if err != nil {
		return err
	}
	image, err := h.openImage(r.Image)
	if err != nil {
		hostEnd.Close()
		return err
	}
	b := &boot{link: hostEnd, gone: make(chan struct{})}
	b.record.Boot = sentryhost.Boot{ID: r.ID, Image: r.Image, Shape: r.Shape}
	if err := h.reserve(b); err != nil {
		image.Close()
		hostEnd.Close()
		return err
	}
	if err := h.boot(ctx, b, image, guestEnd); err != nil {
		h.undo(b)
		return startError(err)
	}
	h.mu.Lock()
	b.running = true
	h.mu.Unlock()
	return nil
}

// startError gives a failed start its Code.
func startError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN) {
		return sandbox.Errorf(sandbox.Exhausted, "this host has no room for another sandbox").WithCause(err)
	}
	return err
}

// openImage opens a Template image by digest. sandbox.New closes the file.
func (h *Host) openImage(digest string) (*os.File, error) {
	if digest == "" || strings.ContainsAny(digest, "/\x00") || strings.HasPrefix(digest, ".") {
		return nil, sandbox.Errorf(sandbox.NotFound, "there is no image %.80q", digest)
	}
	f, err := os.Open(filepath.Join(h.cfg.Images, strings.TrimPrefix(digest, "sha256:")+".erofs"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, sandbox.Errorf(sandbox.NotFound, "there is no image %s", digest)
	}
	return f, err
}

// reserve publishes the Boot's ID, so that a second start is a Conflict.
func (h *Host) reserve(b *boot) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := b.record.ID
	if h.boots[id] != nil {
		return sandbox.Errorf(sandbox.Conflict, "the boot %s runs already", id)
	}
	h.boots[id] = b
	return nil
}

func (h *Host) boot(ctx context.Context, b *boot, image, guestEnd *os.File) error {
	id, shape := b.record.ID, b.record.Shape
	imageUsed := false
	defer func() {
		if !imageUsed {
			image.Close()
		}
	}()
	if err := os.Mkdir(h.bootDir(id), 0o700); err != nil {
		return fmt.Errorf("make the boot's folder: %w", err)
	}
	limits := cgroup.Limits{CPUs: shape.CPUs, MemoryBytes: shape.MemoryBytes + sentryMemory, Pids: shape.Pids*hostTasks + hostTasksBase}
	group, err := h.groups.Create(id, h.hardLimits(limits))
	if err != nil {
		return err
	}
	b.group = group
	dir, err := group.Handle()
	if err != nil {
		return fmt.Errorf("open the cgroup: %w", err)
	}
	if dir != nil {
		defer dir.Close()
	}
	imageUsed = true
	s, upper, err := h.newSentry(id, shape, image, dir)
	if err != nil {
		return err
	}
	b.upper = upper
	b.record.Pid = s.Getpid()
	b.record.Socket = s.GetControlSocketPath()
	if err := h.watchSentry(b); err != nil {
		return err
	}
	if dir == nil {
		// v1 cannot be born into a group. Nothing of the guest runs yet, but
		// the process that all later ones are forked from does: move it too.
		if err := group.Add(withDescendants(b.record.Pid)...); err != nil {
			return err
		}
	}
	if err := h.watchMemory(b); err != nil {
		return err
	}
	if err := startRoot(s, id, guestEnd); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return h.writeRecord(b)
}

// hardLimits adds the reserve on v2, where the mark below it is memory.high.
func (h *Host) hardLimits(l cgroup.Limits) cgroup.Limits {
	if h.groups.V2() {
		l.MemoryBytes += maxReserve
	}
	return l
}

func (h *Host) writeRecord(b *boot) error {
	raw, err := json.Marshal(b.record)
	if err != nil {
		return err
	}
	path := filepath.Join(h.bootDir(b.record.ID), "boot.json")
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return fmt.Errorf("record the boot: %w", err)
	}
	return os.Rename(path+".new", path)
}

// watchSentry notices the end of the sentry's process, whoever's child it is.
func (h *Host) watchSentry(b *boot) error {
	pid := b.record.Pid
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch the sentry: %w", err)
	}
	b.pidfd = os.NewFile(uintptr(fd), "pidfd")
	if b.record.StartTicks, err = startTicks(pid); err != nil {
		return fmt.Errorf("watch the sentry: %w", err)
	}
	h.wg.Go(func() {
		waitPidfd(b.pidfd)
		// Reap it if it is our child; after a restart it is not.
		var status unix.WaitStatus
		for {
			_, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
			if err != unix.EINTR {
				break
			}
		}
		close(b.gone)
		h.sentryGone(b)
	})
	return nil
}

// waitPidfd blocks, without a thread, until the process has ended.
func waitPidfd(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n > 0
	})
}

// sentryGone cleans up after a sentry that ended by itself and tells of it. One
// that is being stopped or undone is its stopper's work.
func (h *Host) sentryGone(b *boot) {
	h.mu.Lock()
	byItself := b.running && !b.stopping
	b.running = false
	if byItself {
		b.stopping = true
	}
	cause := sandbox.CauseEngineLost
	if b.oom {
		cause = sandbox.CauseOOM
	}
	h.mu.Unlock()
	if !byItself {
		return
	}
	h.log.Warn("a sentry ended by itself", "boot", b.record.ID, "cause", cause)
	if err := h.free(b); err != nil {
		h.log.Error("a boot left something behind", "boot", b.record.ID, "error", err)
	}
	h.tell(sentryhost.EventBoot, sandbox.BootEvent{ID: b.record.ID, Kind: sandbox.BootEnded, Cause: cause})
}

// stop ends a Boot; an unknown one is a success. A Boot that another call stops
// is waited for, and so is one that still starts: its start may yet succeed, and
// then it is stopped here.
func (h *Host) stop(ctx context.Context, id string) error {
	if !sandbox.ValidBootID(id) {
		return sandbox.Errorf(sandbox.Invalid, "%q is not a boot ID", id)
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		h.mu.Lock()
		b := h.boots[id]
		mine := b != nil && b.running && !b.stopping
		if mine {
			b.stopping = true
		}
		h.mu.Unlock()
		switch {
		case b == nil:
			return nil
		case mine:
			h.kill(b)
			return h.free(b)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// kill ends the sentry, and with it its PID namespace and everything inside.
func (h *Host) kill(b *boot) {
	if b.pidfd == nil {
		return
	}
	raw, err := b.pidfd.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
	})
	// Tasks that wait for memory in a full group are killed all the same.
	<-b.gone
}

// undo takes back a start that failed.
func (h *Host) undo(b *boot) {
	h.kill(b)
	if err := h.free(b); err != nil {
		h.log.Error("a failed start left something behind", "boot", b.record.ID, "error", err)
	}
}

// free releases what a dead Boot held and forgets it.
func (h *Host) free(b *boot) error {
	var errs []error
	if b.pressure != nil {
		b.pressure.Close()
	}
	if b.group != nil {
		b.group.Kill() // nothing should be left; make sure
		errs = append(errs, b.group.Remove(removeWait))
	}
	for _, f := range []*os.File{b.link, b.upper, b.pidfd} {
		if f != nil {
			f.Close()
		}
	}
	if b.record.Socket != "" {
		if err := os.Remove(b.record.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.RemoveAll(h.bootDir(b.record.ID)))
	h.mu.Lock()
	delete(h.boots, b.record.ID)
	h.mu.Unlock()
	return errors.Join(errs...)
}

// diskBytes is what the upper layer takes on the host's disk; 0 when this
// process does not hold its file.
func (b *boot) diskBytes() int64 {
	if b.upper == nil {
		return 0
	}
	return statBlocks(b.upper)
}

// statBlocks is the disk space that an open file takes, in bytes.
func statBlocks(f *os.File) int64 {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	var st unix.Stat_t
	_ = raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) })
	if err != nil {
		return 0
	}
	return st.Blocks * 512
}

// withDescendants lists a process and all below it, by /proc.
func withDescendants(pid int) []int {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[i]))
		for _, t := range tasks {
			b, _ := os.ReadFile(t)
			for f := range strings.FieldsSeq(string(b)) {
				if child, err := strconv.Atoi(f); err == nil {
					pids = append(pids, child)
				}
			}
		}
	}
	return pids
}

// startTicks is when a process started, in clock ticks since boot (proc(5),
// field 22): with the pid it names a process for good.
func startTicks(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The command name may hold anything, so count from its closing bracket.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	const startTime = 19 // field 22, counted from field 3
	if len(fields) <= startTime {
		return 0, fmt.Errorf("/proc/%d/stat is too short", pid)
	}
	return strconv.ParseUint(fields[startTime], 10, 64)
}
