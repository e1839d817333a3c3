package server

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// The heap of a sentry holds kernel objects: inodes, directory entries, descriptors,
// sockets. It is charged to the Boot's group like the memory of the guest, but no process
// can be killed to free it. Beyond sentryMemory it therefore gets an allowance of its
// own: one that grows with the guest's objects, and one for a save or a load while that
// runs. Both are bounded for a Boot and for the host.
const (
	// heapStep is the step by which the allowance for a heap grows and shrinks. A Boot's
	// own memory may exceed its limit by as much.
	heapStep = 32 << 20
	// maxHeap bounds the allowance of one Boot: two million files take some 3 GiB.
	maxHeap = 4 << 30
	// heapShare is the divisor of the host's memory that bounds the allowances of all
	// Boots.
	heapShare = 4
	// heapLook is how often an allowance is checked, to shrink it.
	heapLook = time.Second

	// A save allocates up to saveFactor bytes per byte of the heap that it saves: three
	// were measured for files.
	saveFactor, saveBase = 4, 64 << 20
	// A load allocates up to loadFactor bytes per byte of the state without its pages: 16
	// were measured for files.
	loadFactor, loadBase = 20, 64 << 20
	// stateShare is the divisor of the heap that bounds its description in a state on the
	// disk: an eighth was measured for files. The headers of an archive of the writable
	// layer take up to tarShare times the heap: two thirds were measured for short names.
	stateShare, tarShare = 4, 2
	// workMargin of the host's memory stays free beside the memory set aside for work.
	workMargin = 256 << 20
	// workWait bounds the wait for memory that other work holds, and workLook is how
	// often it is checked.
	workWait, workLook = 2 * time.Minute, 100 * time.Millisecond
	// restTime bounds the time in which a sentry returns unneeded memory after its work.
	restTime = 10 * time.Second
)

// heapWanted is the allowance that the heap of a sentry needs beyond sentryMemory, in
// bytes, rounded up to steps. anonymous is the group's anonymous memory, in bytes.
func heapWanted(anonymous int64) int64 {
	over := max(anonymous-sentryMemory, 0)
	return (over + heapStep - 1) / heapStep * heapStep
}

// growHeap raises the allowance of a sentry's heap to its need. False: the allowance
// suffices or cannot be raised, so the memory of the guest has to shrink.
func (h *Host) growHeap(b *boot) bool {
	u, err := b.group.Usage()
	if err != nil {
		return false
	}
	want := min(heapWanted(u.AnonymousBytes), maxHeap)
	h.mu.Lock()
	if b.working { // it allocates more than was estimated
		want = heapWanted(u.AnonymousBytes)
	}
	has := b.heap.Load()
	refused := want <= has || !b.working && h.heaps()+want-has > h.memoryTotal/heapShare
	watch := has == 0 && !b.working
	h.mu.Unlock()
	if refused {
		return false
	}
	if err := h.setHeap(b, want); err != nil {
		h.log.Warn("raising the memory limit of a sentry's heap failed", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
		return false
	}
	if watch {
		h.wg.Go(func() { h.watchHeap(b) })
	}
	return true
}

// heaps is the sum of the allowances of all Boots' heaps. The caller holds h.mu.
func (h *Host) heaps() (sum int64) {
	for _, b := range h.boots {
		if !b.working {
			sum += b.heap.Load()
		}
	}
	return sum
}

// isWorking reports whether a state of the Boot is being saved, or loaded.
func (h *Host) isWorking(b *boot) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return b.working
}

// setHeap sets the allowance of a sentry's heap beyond sentryMemory, in bytes.
func (h *Host) setHeap(b *boot, bytes int64) error {
	b.limiting.Lock()
	defer b.limiting.Unlock()
	before := b.heap.Swap(bytes)
	if before == bytes {
		return nil
	}
	if err := b.group.SetMemory(b.hardMemory()); err != nil {
		b.heap.Store(before)
		return err
	}
	return h.armMemory(b)
}

// watchHeap shrinks the allowance of a sentry's heap until it is zero or the Boot is
// gone.
func (h *Host) watchHeap(b *boot) {
	look := time.NewTicker(heapLook)
	defer look.Stop()
	for {
		select {
		case <-b.gone:
			return
		case <-look.C:
		}
		if done := h.shrinkHeap(b); done {
			return
		}
	}
}

// shrinkHeap takes back the unneeded allowance. It reports whether the allowance is zero
// or the group is gone.
func (h *Host) shrinkHeap(b *boot) (done bool) {
	u, err := b.group.Usage()
	if err != nil {
		return true
	}
	working := h.isWorking(b)
	if want := heapWanted(u.AnonymousBytes); !working && want < b.heap.Load() {
		if err := h.setHeap(b, want); err != nil {
			return false // use is above it for now
		}
	}
	return !working && b.heap.Load() == 0
}

// saveNeed bounds the bytes that a save of the Boot's memory may allocate now.
func (b *boot) saveNeed() (int64, error) {
	u, err := b.group.Usage()
	return saveFactor*u.AnonymousBytes + saveBase, err
}

// layerNeed bounds the bytes that a save of its writable layer may allocate now.
func (b *boot) layerNeed() (int64, error) {
	u, err := b.group.Usage()
	return u.AnonymousBytes + saveBase, err
}

// loadNeed bounds the bytes that a load of a state may allocate.
func loadNeed(m *sentryhost.Manifest) int64 {
	if !m.Memory {
		return 0 // it is read file by file
	}
	return loadFactor*m.Files[0].Bytes + loadBase
}

// beginWork readies a Boot for a save or a load that may allocate need bytes; end undoes
// that. It waits while other work has the host's memory. It returns Exhausted when
// waiting does not help: then nothing has changed.
func (h *Host) beginWork(b *boot, need func() (int64, error)) (end func(), err error) {
	giveBack, err := h.borrow(b, need)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	b.working = true
	h.mu.Unlock()
	h.signal(b, sentryhost.SignalWork)
	return func() {
		if err := b.group.SetLimits(cpuLimit(h.limitsOf(b))); err != nil && !errors.Is(err, fs.ErrNotExist) { // the Boot is gone
			h.log.Error("restoring the CPU limit of a boot after a save or load failed", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
		}
		h.signal(b, sentryhost.SignalRest)
		h.mu.Lock()
		b.working, b.rests = false, time.Now().Add(restTime)
		h.mu.Unlock()
		giveBack()
	}, nil
}

// liftCPU lifts the CPU limit of a Boot with a stopped guest until its work ends: the CPU
// time is then spent on our work, not on the guest's.
func (h *Host) liftCPU(b *boot) {
	if err := b.group.UnlimitCPU(); err != nil {
		h.log.Warn("lifting the CPU limit of a boot for a save or load failed", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
	}
}

// roomToRead raises the memory limit of a Boot with a stopped guest, so that its group
// has page cache for the unread part of its layer, if the host has memory free. After end
// the limit shrinks again. At the limit each page would be read only after another one
// left.
func (h *Host) roomToRead(b *boot) (end func()) {
	h.mu.Lock()
	room := min(b.unread(b.record), h.memoryFree()-workMargin-h.borrowed)
	h.mu.Unlock()
	if room <= 0 {
		return func() {}
	}
	if err := h.setHeap(b, b.heap.Load()+room); err != nil {
		h.log.Warn("a layer is read within the memory limit of its boot", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
		return func() {}
	}
	return func() { h.wg.Go(func() { h.watchHeap(b) }) }
}

// borrow sets aside need bytes of the host's memory for the work of a Boot and raises the
// limit of its group by them, unless the group has enough already.
func (h *Host) borrow(b *boot, need func() (int64, error)) (giveBack func(), err error) {
	bytes, over, err := h.lackFor(b, need)
	if err != nil || over+bytes <= 0 {
		return func() {}, err
	}
	for late := time.Now().Add(workWait); ; {
		h.mu.Lock()
		free := h.memoryFree() - workMargin
		if free-h.borrowed >= bytes {
			h.borrowed += bytes
			h.mu.Unlock()
			break
		}
		hope := h.borrowed > 0 || time.Now().Before(b.rests)
		h.mu.Unlock()
		if !hope || time.Now().After(late) {
			return nil, noMemory(bytes, free)
		}
		select {
		case <-b.gone:
		case <-time.After(workLook):
		}
		if bytes, over, err = h.lackFor(b, need); err != nil {
			return nil, err
		}
	}
	back := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.borrowed -= bytes
	}
	if err := h.setHeap(b, b.heap.Load()+bytes+max(over, 0)); err != nil {
		back()
		return nil, fmt.Errorf("raise the memory limit of %s: %w", b.record.ID, err)
	}
	return func() {
		back()
		h.wg.Go(func() { h.watchHeap(b) })
	}, nil
}

// lackFor returns how many bytes the work needs, and by how many the Boot is above its
// mark before the work begins.
func (h *Host) lackFor(b *boot, need func() (int64, error)) (bytes, over int64, err error) {
	if bytes, err = need(); err == nil {
		over, err = b.group.OverMark(b.memoryMark())
	}
	if err != nil {
		return 0, 0, sandbox.Errorf(sandbox.Unavailable, "the memory usage of %s cannot be read", b.record.ID).WithCause(err)
	}
	return bytes, over, nil
}

// checkSave returns Exhausted when the memory of the host cannot suffice to save a Boot,
// even after all other saves and loads have ended.
func (h *Host) checkSave(b *boot) error {
	need, over, err := h.lackFor(b, b.saveNeed)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	free := h.memoryFree() - workMargin
	if over+need > 0 && free+h.borrowed < need && time.Now().After(b.rests) {
		return noMemory(need, free)
	}
	return nil
}

func noMemory(need, free int64) error {
	e := sandbox.Errorf(sandbox.Exhausted, "the host's memory has no room to save or load this sandbox: that may need %d MiB for its files and descriptors, and %d MiB are free", need>>20, max(free, 0)>>20)
	e.RetryAfter = 10 * time.Second
	return e
}

// signal sends a signal to a sentry that handles it. The sentry of an earlier build may
// not: the signal would end it.
func (h *Host) signal(b *boot, s unix.Signal) {
	if b.pidfd == nil || !catches(b.record.Pid, s) {
		return
	}
	raw, err := b.pidfd.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), s, nil, 0) })
}

// catches reports whether a process has a handler for a signal (proc_pid_status(5)).
func catches(pid int, s unix.Signal) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, after, found := bytes.Cut(status, []byte("\nSigCgt:\t"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	mask, err := strconv.ParseUint(string(line), 16, 64)
	return found && err == nil && mask&(1<<(s-1)) != 0
}

// meminfo reads a value of /proc/meminfo, in bytes (proc_meminfo(5)); 0 when it is
// missing.
func meminfo(name string) int64 {
	all, _ := os.ReadFile("/proc/meminfo")
	for line := range bytes.Lines(all) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			kib, _ := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
			return kib << 10
		}
	}
	return 0
}
