package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/cgroup"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/images"
)

const (
	// sentryMemory is added to a Shape's memory for the sentry itself.
	sentryMemory = 32 << 20
	// memoryReserve lies between the mark at which memory counts as used up and the hard
	// limit. At the hard limit the kernel refuses a sentry the mappings it cannot live
	// without, so memory is freed before.
	memoryReserve = 256 << 20
	// hostTasks is how many host tasks a Boot may have for each of the user's pids: an
	// address space, its threads, and threads of the sentry; a fork bomb was seen to need
	// four. Too few end the sentry, so this is only the outer limit; the Guest counts
	// pids.
	hostTasks, hostTasksBase = 12, 1024
	// removeWait bounds the wait for killed tasks to leave their group.
	removeWait = 5 * time.Second
)

// boot is one sentry and its resources. A field without a comment on locking is set
// before the boot is published.
type boot struct {
	record    record
	group     *cgroup.Group
	link      *os.File // copy of the host's end; nil after a restart
	upper     *os.File // the upper layer's file, to measure it; nil if a restart did not find it
	stderr    *os.File // the sentry's stderr; nil if a restart did not find it
	pidfd     *os.File
	gone      chan struct{}             // closed when the sentry's process is gone
	guestWait atomic.Pointer[guestWait] // nil until a Guest is in the sentry, or if the sentry could not be asked
	spare     *spare                    // set while it waits, or has waited, for a Boot; nil: it never waited

	pressure *cgroup.Pressure // guarded by Host.mu once it is published

	pausing   sync.Mutex // held while it is stopped, continued or saved; taken before Host.mu
	recording sync.Mutex // held while the record is written; taken before Host.mu

	limiting sync.Mutex   // held while limits change; taken before Host.mu
	raised   int64        // guarded by limiting: bytes that the hard limit is raised by while memory is freed
	memory   atomic.Int64 // limit in bytes
	heap     atomic.Int64 // bytes that the sentry may hold beyond sentryMemory; changed by setHeap

	working   bool                    // guarded by Host.mu: a state is saved or loaded
	rests     time.Time               // guarded by Host.mu: until then its sentry returns the memory of a save or load
	running   bool                    // guarded by Host.mu: the Guest was started and Stop was not called
	stopping  bool                    // guarded by Host.mu
	unfit     bool                    // guarded by Host.mu: the rest of its memory does not arrive
	freed     bool                    // guarded by Host.mu: its resources are released
	full      bool                    // guarded by Host.mu: it is out of memory, so its end now has that cause
	fullUntil time.Time               // guarded by Host.mu: an end before this time has that cause too
	arrives   atomic.Pointer[arrival] // the state that it started from, until all of it is verified and read; nil: it is
	ended     sandbox.Cause           // why it ended by itself; set before it is freed
	how       string                  // how its process ended; set before gone is closed
}

// record holds the facts that a later sentry host needs to adopt a Boot.
type record struct {
	sentryhost.Boot
	// Name of the sentry, its folder and its group, if it is not the Boot's ID because
	// the sentry was made before the Boot.
	Name       string `json:"name,omitempty"`
	StartTicks uint64 `json:"start_ticks"` // of the pid: distinguishes the process from a later one
	Socket     string `json:"socket"`      // control socket
	// GuestBuild names the build of the Guest inside; empty: the build of the sentry host
	// that started it.
	GuestBuild string `json:"guest_build,omitempty"`
	// CPU are the features that a state of it needs; empty: not known.
	CPU sandbox.CPUFeatures `json:"cpu,omitempty"`

	FrozenAt time.Time `json:"frozen_at,omitzero"` // when it was frozen
	Restored bool      `json:"restored,omitempty"` // from a saved state with memory
	Layer    int64     `json:"layer,omitempty"`    // bytes of the layer in place of this state, until the sentry has read it
	Given    *given    `json:"given,omitempty"`    // the saved state that owns its writable layer; nil: the Boot does
	Held     []int32   `json:"held,omitempty"`     // processes to continue, as it was restored
	Arriving bool      `json:"arriving,omitempty"` // not all of the state that it was restored from is in its memory, or in a file
	Stopped  []int32   `json:"stopped,omitempty"`  // processes that get SIGSTOP for a save
	Unsure   bool      `json:"unsure,omitempty"`   // it was being stopped or continued
}

// name is the name of the sentry, its folder and its group.
func (r *record) name() string { return cmp.Or(r.Name, r.ID) }

// guestBuild names the build of the Guest inside.
func (r record) guestBuild(h *Host) string {
	if r.GuestBuild != "" {
		return r.GuestBuild
	}
	return h.cfg.Build
}

func (h *Host) recordOf(b *boot) record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return b.record
}

func (h *Host) change(b *boot, change func(*record)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&b.record)
}

func (h *Host) bootDir(name string) string { return filepath.Join(h.cfg.Dir, "boots", name) }

// start boots an image. On error everything is undone.
func (h *Host) start(ctx context.Context, r sentryhost.StartRequest, files *fdrpc.Request) (reply sentryhost.StartReply, err error) {
	if !sandbox.ValidBootID(r.ID) {
		return reply, sandbox.Errorf(sandbox.Invalid, "%q is not a boot ID", r.ID)
	}
	if err := r.Shape.Check(); err != nil {
		return reply, err
	}
	if missing := h.cpu.Lacks(r.CPU); r.CPU.Check() != nil || len(missing) > 0 {
		return reply, sandbox.Errorf(sandbox.Invalid, "this host cannot show the CPU features %.80q", string(r.CPU))
	}
	n, err := countTasks("/proc")
	if err != nil {
		return reply, err
	}
	if err := n.checkCapacity(); err != nil {
		return reply, err
	}
	h.starts(+1)
	defer h.starts(-1)
	guestEnd, hostEnd, err := takeLink(files)
	if err != nil {
		return reply, err
	}
	defer guestEnd.Close()
	from, err := h.openFrom(r)
	if err != nil {
		hostEnd.Close()
		return reply, err
	}
	defer from.close()
	if r.From != "" { // it began as a Boot for more, from a Pool
		r.Shape, reply.Shape = from.Shape, from.Shape
	}
	image, err := h.openImage(ctx, r.Image)
	if err != nil {
		hostEnd.Close()
		return reply, err
	}
	b := h.sentryFor(r, from, image)
	b.link = hostEnd
	b.record.Boot = sentryhost.Boot{ID: r.ID, Image: r.Image, Shape: r.Shape, Limits: r.Shape.Limits(), Pid: b.record.Pid, From: r.From}
	b.record.Restored, b.record.Layer, b.record.Held, b.record.GuestBuild = from.memory(), from.inPlace(), from.Held, from.guestBuild(h)
	b.record.Arriving = from.arrives != nil
	b.arrives.Store(from.arrives)
	b.record.CPU = h.guestCPU(from, sentryhost.NeededCPU(cmp.Or(r.CPU, h.cpu)))
	b.memory.Store(r.Shape.MemoryBytes)
	if err := h.reserve(b); err != nil {
		image.Close()
		h.giveUp(b)
		return reply, err
	}
	err = h.boot(ctx, b, from, image, guestEnd)
	if from.arrives != nil && from.arrives.over() {
		err = from.arrives.notArrived().WithCause(err) // the sentry's error is a consequence
	}
	if err != nil {
		h.undo(b)
		return reply, startError(err)
	}
	if b.spare != nil && from.memory() {
		reply.SavedAt = from.SavedAt
	}
	reply.Arrives = from.arrives != nil
	h.mu.Lock()
	b.running = true
	h.mu.Unlock()
	h.noteRead(b)
	h.noteArrived(b, from.arrives)
	h.rememberStart(r, from)
	return reply, nil
}

// takeLink returns the two ends of the link that comes with a start.
func takeLink(files *fdrpc.Request) (guestEnd, hostEnd *os.File, err error) {
	if guestEnd, err = files.TakeFile(0); err != nil {
		return nil, nil, err
	}
	if hostEnd, err = files.TakeFile(1); err != nil {
		guestEnd.Close()
		return nil, nil, err
	}
	for _, end := range []*os.File{guestEnd, hostEnd} {
		if err := link.Widen(end); err != nil { // the server has no right to do this
			guestEnd.Close()
			hostEnd.Close()
			return nil, nil, fmt.Errorf("widen the link: %w", err)
		}
	}
	if hostEnd, err = link.Kept(hostEnd); err != nil {
		guestEnd.Close()
		return nil, nil, err
	}
	return guestEnd, hostEnd, nil
}

// startError gives a failed start its Code.
func startError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN) {
		return sandbox.Errorf(sandbox.Exhausted, "this host has no room for another sandbox").WithCause(err)
	}
	return err
}

// origin is the saved state that a Boot starts from; for a cold start it has no files.
type origin struct {
	sentryhost.Manifest
	files    []*os.File
	verified func() error // waits until the files are verified
	done     func()       // releases the names of the files: they may be removed
	arrives  *arrival     // its pages are still on their way; nil: they are here
}

// close waits until the files are verified and closes them.
func (o *origin) close() {
	_ = o.verified()
	closeAll(o.files)
	o.done()
}

// memory reports whether the state has processes to continue.
func (o *origin) memory() bool { return len(o.files) > 0 && o.Memory }

// layer reports whether the Boot begins with the state's writable layer alone.
func (o *origin) layer() bool { return len(o.files) > 0 && !o.Memory }

// inPlace returns how many bytes of the pages are a writable layer in place.
func (o *origin) inPlace() int64 {
	if !o.memory() {
		return 0
	}
	return o.Files[len(o.Files)-1].Layer
}

// guestBuild returns the build of the Guest that belongs to the state.
func (o *origin) guestBuild(h *Host) string {
	if o.memory() {
		return o.Build
	}
	return h.cfg.Build
}

func (h *Host) openFrom(r sentryhost.StartRequest) (*origin, error) {
	if r.From == "" {
		return &origin{verified: func() error { return nil }, done: func() {}}, nil
	}
	m, _, arrives, err := h.knownManifest(r.From)
	if err != nil {
		return nil, err
	}
	if err := h.fits(m, r); err != nil {
		return nil, err
	}
	// The state's files are written again for the Boot. The Manifest does not say how
	// much of the state is memory.
	if err := roomFor(h.cfg.UpperDir, "starting from the saved state", bytesOf(m)); err != nil {
		return nil, err
	}
	if arrives != nil {
		if from, err := h.originOf(arrives); from != nil || err != nil {
			return from, err
		}
		if m, _, err = h.readManifest(r.From); err != nil { // it did not arrive
			return nil, err
		}
	}
	files, done, err := h.openReady(m)
	if err != nil {
		return nil, err
	}
	return &origin{Manifest: *m, files: files, verified: h.whole(m, files), done: done}, nil // verified while the sentry starts
}

// openImage opens a Template image by digest and locks it. The sentry that gets the file
// holds its shared lock as long as it lives, so a removal of the image sees that it is in
// use.
func (h *Host) openImage(ctx context.Context, digest string) (*os.File, error) {
	digest, err := imageName(digest)
	if err != nil {
		return nil, err
	}
	return images.Folder(h.cfg.Images).Open(ctx, digest)
}

func lockImage(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) }

// imageName checks the digest of a Template image.
func imageName(digest string) (string, error) {
	if digest == "" || strings.ContainsAny(digest, "/\x00") || strings.HasPrefix(digest, ".") {
		return "", sandbox.Errorf(sandbox.NotFound, "no image %.80q", digest)
	}
	return strings.TrimPrefix(digest, "sha256:"), nil
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

// boot runs a Boot in its sentry, which it creates unless the Boot has a spare. It closes
// image.
func (h *Host) boot(ctx context.Context, b *boot, from *origin, image, guestEnd *os.File) error {
	if b.spare != nil {
		image.Close() // the spare has its own
	} else if err := h.makeGroup(b); err != nil {
		image.Close()
		return err
	}
	armed := make(chan error, 1) // concurrently: v1 waits for all processors
	go func() { armed <- h.watchMemory(b) }()
	err := func() error {
		if b.spare == nil {
			if err := h.newSentry(b, h.planOf(b, from), image); err != nil {
				return err
			}
		}
		return h.fill(ctx, b, from, guestEnd)
	}()
	return cmp.Or(err, <-armed)
}

// makeGroup makes the folder and the group of a sentry. A starting sentry runs no guest
// code, so its CPU limit is set only after the start.
func (h *Host) makeGroup(b *boot) error {
	name := b.record.name()
	if err := os.Mkdir(h.bootDir(name), 0o700); err != nil {
		return fmt.Errorf("make the boot's folder: %w", err)
	}
	limits := hardLimits(b.record.Shape.Limits())
	limits.CPUs = 0
	group, err := h.groups.Create(name, limits)
	b.group = group
	return err
}

// fill starts or restores the Guest in a sentry, and records the Boot.
func (h *Host) fill(ctx context.Context, b *boot, from *origin, guestEnd *os.File) error {
	var err error
	if from.memory() {
		// Restored processes are stopped, so the files are verified concurrently.
		err = h.load(ctx, b, from, guestEnd)
		err = cmp.Or(from.verified(), err)
	} else if err = from.verified(); err == nil {
		err = startRoot(b.record.Socket, b.record.name(), guestEnd)
	}
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := h.startGuestWait(b); err != nil {
		return err
	}
	if err := b.group.SetLimits(cpuLimit(b.record.Limits)); err != nil {
		return err
	}
	return h.writeRecord(b)
}

func (h *Host) writeRecord(b *boot) error {
	b.recording.Lock()
	defer b.recording.Unlock()
	h.mu.Lock()
	record, freed := b.record, b.freed
	h.mu.Unlock()
	if freed { // its folder is removed or about to be
		return sandbox.Errorf(sandbox.NotFound, "no boot %s runs here", record.ID)
	}
	raw, err := json.Marshal(record)
	if err != nil {
		return err
	}
	path := filepath.Join(h.bootDir(b.record.name()), sentryhost.RecordName)
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return fmt.Errorf("record the boot: %w", err)
	}
	return os.Rename(path+".new", path)
}

// watchSentry notices the end of the sentry's process, even if it is not our child.
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
			reaped, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
			if err != unix.EINTR {
				b.how = howEnded(status, err == nil && reaped == pid)
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

// sentryGone cleans up after a sentry that ended by itself and sends an event. A sentry
// that is being stopped or undone is cleaned up by that call.
func (h *Host) sentryGone(b *boot) {
	h.mu.Lock()
	byItself := b.running && !b.stopping
	b.running = false
	if byItself {
		b.stopping = true
		h.untold[b.record.ID] = b
	}
	full := b.full || time.Now().Before(b.fullUntil)
	unfit := b.unfit
	h.mu.Unlock()
	if !byItself {
		return
	}
	guest, exited := b.guestEnded()
	cause := sandbox.CauseEngineLost
	switch {
	case unfit: // its sentry may have ended the Guest
	case full || b.group.OutOfMemory(): // the kernel may have been quicker than we
		cause = sandbox.CauseOOM
	case exited:
		cause = sandbox.CauseGuestExit
	}
	b.ended = cause
	if cause == sandbox.CauseGuestExit {
		h.log.Info("a guest ended", telemetry.KeyBoot, b.record.ID, "how", guest)
	} else {
		h.log.Warn("a sentry ended by itself", telemetry.KeyBoot, b.record.ID, "cause", cause, "how", b.how, "last_words", b.crashStderr())
	}
	if err := h.free(b); err != nil {
		h.log.Error("cleaning up a boot failed", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
	}
	h.tell(sentryhost.EventBoot, sandbox.BootEvent{ID: b.record.ID, Kind: sandbox.BootEnded, Cause: cause})
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.untold, b.record.ID)
}

// stop ends a Boot; an unknown one is a success. It waits for a concurrent stop of the
// Boot, and for a start: if the start succeeds, stop ends the Boot then.
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
	// Tasks that wait for memory in a full group are killed nevertheless.
	<-b.gone
}

// giveUp releases the resources of a start that may not begin. Nothing bears the Boot's
// name yet.
func (h *Host) giveUp(b *boot) {
	if b.spare != nil {
		h.undo(b)
		return
	}
	b.link.Close()
}

// undo cleans up after a failed start.
func (h *Host) undo(b *boot) {
	h.kill(b)
	if err := h.free(b); err != nil {
		h.log.Error("cleaning up a failed start of a boot failed", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
	}
}

// free releases the resources of a dead Boot and forgets it.
func (h *Host) free(b *boot) error {
	var errs []error
	h.mu.Lock()
	if b.pressure != nil {
		b.pressure.Close()
	}
	b.freed = true
	h.mu.Unlock()
	if b.group != nil {
		b.group.Kill() // nothing should be left; make sure
		errs = append(errs, b.group.Remove(removeWait))
	}
	closing := []*os.File{b.link, b.upper, b.stderr, b.pidfd}
	if b.spare != nil {
		closing = append(closing, b.spare.image)
	}
	for _, f := range closing {
		if f != nil {
			f.Close()
		}
	}
	if b.record.Socket != "" {
		if err := os.Remove(b.record.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	b.recording.Lock() // a concurrent write of the record would leave the folder behind
	errs = append(errs, os.RemoveAll(h.bootDir(b.record.name())))
	b.recording.Unlock()
	h.mu.Lock()
	if h.boots[b.record.ID] == b {
		delete(h.boots, b.record.ID)
	}
	h.mu.Unlock()
	return errors.Join(errs...)
}

// diskBytes is the upper layer's size on the host's disk; 0 when this process does not
// hold its file.
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

// withDescendants lists a process and all its descendants, from /proc.
func withDescendants(pid int) []int {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, childrenOf(pids[i])...)
	}
	return pids
}

func childrenOf(pid int) []int {
	var children []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(t)
		for f := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(f); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}

// startTicks is when a process started, in clock ticks since boot (proc(5), field 22):
// together with the pid it identifies a process for good.
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
