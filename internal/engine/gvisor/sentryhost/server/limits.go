package server

import (
	"errors"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/cgroup"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// limit changes the limits of a running Boot. On error the old limits stay.
func (h *Host) limit(r sentryhost.LimitRequest) error {
	b, err := h.find(r.ID)
	if err != nil {
		return err
	}
	if err := b.record.Shape.CheckLimits(r.Limits); err != nil {
		return err
	}
	b.limiting.Lock()
	defer b.limiting.Unlock()
	before := h.limitsOf(b)
	if err := checkRoom(b, r.Limits, before); err != nil {
		return err
	}
	if err := h.applyLimits(b, r.Limits); err != nil {
		return errors.Join(limitError(err), h.applyLimits(b, before))
	}
	h.mu.Lock()
	b.record.Limits = r.Limits
	h.mu.Unlock()
	return h.writeRecord(b)
}

// limitsOf returns the limits in force.
func (h *Host) limitsOf(b *boot) sandbox.Limits {
	h.mu.Lock()
	defer h.mu.Unlock()
	return b.record.Limits
}

// checkRoom refuses to take away memory that is in use: Processes would be killed for it.
// The sentry's own memory does not count as the guest's.
func checkRoom(b *boot, want, before sandbox.Limits) error {
	if want.MemoryBytes >= before.MemoryBytes {
		return nil
	}
	u, err := b.group.Usage()
	heap := max(b.heap.Load(), heapWanted(u.AnonymousBytes))
	over := int64(0)
	if err == nil {
		over, err = b.group.OverMark(want.MemoryBytes + sentryMemory + heap)
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the usage of %s cannot be read", b.record.ID).WithCause(err)
	}
	if over >= 0 {
		return sandbox.Errorf(sandbox.Conflict, "memory_mb cannot be %d: the sandbox uses %d MiB more than that now", want.MemoryBytes>>20, over>>20+1)
	}
	return nil
}

// limitError gives the kernel's refusal of a limit its Code.
func limitError(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return sandbox.Errorf(sandbox.Conflict, "the sandbox uses more memory than it would be left with").WithCause(err)
	}
	return err
}

// applyLimits puts limits in force. The caller holds b.limiting.
func (h *Host) applyLimits(b *boot, l sandbox.Limits) error {
	before := b.memory.Swap(l.MemoryBytes)
	hard := hardLimits(l)
	hard.MemoryBytes = b.hardMemory()
	if err := b.group.SetLimits(hard); err != nil || l.MemoryBytes == before {
		return err
	}
	return h.armMemory(b)
}

// cpuLimit is the CPU part of limits.
func cpuLimit(l sandbox.Limits) cgroup.Limits { return cgroup.Limits{CPUs: l.CPUs} }

// hardLimits are the limits of a Boot's group, with the reserve, while its sentry needs
// no more than sentryMemory.
func hardLimits(l sandbox.Limits) cgroup.Limits {
	return cgroup.Limits{
		CPUs:        l.CPUs,
		MemoryBytes: l.MemoryBytes + sentryMemory + memoryReserve,
		Pids:        l.Pids*hostTasks + hostTasksBase,
	}
}
