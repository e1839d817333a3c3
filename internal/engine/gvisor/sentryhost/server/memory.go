package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	runscboot "gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/boot/procfs"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/cgroup"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// guestTime is how long the Guest alone may free memory, unless half of the reserve
	// is used up before.
	guestTime = time.Second
	// freeMemoryEvery is how often usage is checked while memory is freed.
	freeMemoryEvery = 5 * time.Millisecond
	// killPause is how long killed Processes may free less than killStep before more of
	// them are killed.
	killPause = time.Second
	// killStep is how much memory must be freed within killPause, in bytes.
	killStep = 4 << 20
	// raiseStep is the step by which the hard limit is raised while memory is freed, and
	// how far the limit stays ahead of usage. maxRaise bounds the raise for one Boot. Its
	// first ownRaise bytes are each Boot's own; the excess of all Boots together is at
	// most maxRaiseAll.
	raiseStep, ownRaise, maxRaise, maxRaiseAll = memoryReserve / 2, memoryReserve, 3 * memoryReserve, 8 * memoryReserve
	// fullFor is how long a Boot counts as out of memory after memory was freed: a dead
	// sentry's memory is freed before its end is seen.
	fullFor = time.Second
)

// watchMemory arms the Boot's group to report that its memory is used up, and follows it
// until the group is removed.
func (h *Host) watchMemory(b *boot) error {
	b.limiting.Lock()
	err := h.armMemory(b)
	b.limiting.Unlock()
	if err != nil {
		return err
	}
	h.wg.Go(func() {
		for {
			p := h.pressureOf(b)
			err := p.Wait()
			if err != nil && p == h.pressureOf(b) {
				return
			}
			if err == nil && !h.freeMemory(b) {
				return
			}
		}
	})
	return nil
}

// armMemory has the Boot's group report at its present mark, and no longer at an earlier
// one. The caller holds b.limiting.
func (h *Host) armMemory(b *boot) error {
	p, err := b.group.WatchMemory(b.memoryMark())
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.freed {
		p.Close()
		return nil
	}
	if b.pressure != nil {
		b.pressure.Close()
		err = p.Look()
	}
	b.pressure = p
	return err
}

func (h *Host) pressureOf(b *boot) *cgroup.Pressure {
	h.mu.Lock()
	defer h.mu.Unlock()
	return b.pressure
}

// memoryMark is the usage in bytes at which memory counts as used up: the limit plus the
// sentry's own memory.
func (b *boot) memoryMark() int64 { return b.memory.Load() + sentryMemory + b.heap.Load() }

// hardMemory is the hard limit of the Boot's group in bytes. The caller holds b.limiting.
func (b *boot) hardMemory() int64 { return b.memoryMark() + memoryReserve + b.raised }

// freeMemory sends the event that memory is used up, so that the Guest is asked to kill the
// biggest Process. A Guest that is starved by many processes, or was replaced by the
// user, cannot: when half of the reserve or guestTime is used up, the sentry host kills
// Processes, more of them each time. If that does not help within sandbox.OOMGrace it
// ends the Boot and returns false.
func (h *Host) freeMemory(b *boot) bool {
	if h.growHeap(b) {
		return true
	}
	h.log.Info("a boot used up its memory", telemetry.KeyBoot, b.record.ID)
	h.tell(sentryhost.EventBoot, sandbox.BootEvent{ID: b.record.ID, Kind: sandbox.BootMemoryFull})
	h.setFull(b, true)
	k := killer{host: h, boot: b, next: time.Now().Add(guestTime)}
	defer k.settle()
	deadline := time.Now().Add(sandbox.OOMGrace)
	again := time.NewTicker(freeMemoryEvery)
	defer again.Stop()
	for {
		select {
		case <-b.gone:
			return false
		case <-again.C:
		}
		over, err := b.group.OverMark(b.memoryMark())
		switch {
		case err != nil:
			return false // the group is gone
		case over <= 0:
			h.setFull(b, false)
			return true
		case h.growHeap(b):
			continue
		case h.isWorking(b): // everything is stopped until the work is over: nothing can free memory
			deadline = time.Now().Add(sandbox.OOMGrace)
			k.raiseLimit(over)
			continue
		case time.Now().After(deadline):
			h.log.Warn("the guest freed no memory in time", telemetry.KeyBoot, b.record.ID)
			h.kill(b)
			return false
		}
		k.raiseLimit(over)
		k.act(over)
	}
}

// setFull records whether a Boot is out of memory, or was until now.
func (h *Host) setFull(b *boot, full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b.full = full
	if !full {
		b.fullUntil = time.Now().Add(fullFor)
	}
}

// killer frees memory in a Boot by killing Processes from outside.
type killer struct {
	host *Host
	boot *boot

	busy   atomic.Bool
	rounds int
	next   time.Time // when the next round is due
	over   int64     // bytes above the mark when next was set; -1: a round is in progress, or ended since the last check
}

// raiseLimit keeps the hard limit ahead of usage, which is over bytes above the mark: at the
// limit the kernel refuses memory to the sentry too, and the Go runtime then ends it.
func (k *killer) raiseLimit(over int64) {
	if over <= memoryReserve-raiseStep {
		return
	}
	b := k.boot
	b.limiting.Lock()
	defer b.limiting.Unlock()
	before := b.raised
	for b.raised < maxRaise && over > memoryReserve+b.raised-raiseStep {
		if b.raised >= ownRaise && k.host.raised.Add(raiseStep) > maxRaiseAll {
			k.host.raised.Add(-raiseStep)
			break
		}
		b.raised += raiseStep
	}
	if b.raised > before {
		_ = b.group.SetMemory(b.hardMemory())
	}
}

// act begins a round when one is due and none is in progress.
func (k *killer) act(over int64) {
	if k.busy.Load() {
		return
	}
	if k.over < 0 { // a round is over: from now on its memory is freed
		k.next, k.over = time.Now().Add(killPause), over
		return
	}
	if time.Now().Before(k.next) && (k.rounds > 0 || over < memoryReserve/2) {
		return
	}
	if k.rounds > 0 && over < k.over-killStep { // memory is being freed
		k.next, k.over = time.Now().Add(killPause), over
		return
	}
	k.rounds++
	k.busy.Store(true)
	round := k.rounds
	k.host.wg.Go(func() {
		if err := k.host.killBiggest(k.boot, round); err != nil {
			k.host.log.Warn("killing processes to free memory failed", telemetry.KeyBoot, k.boot.record.ID, telemetry.KeyError, err)
		}
		k.busy.Store(false)
	})
	k.over = -1
}

// settle takes the raise of the hard limit back.
func (k *killer) settle() {
	b := k.boot
	b.limiting.Lock()
	defer b.limiting.Unlock()
	if b.raised > 0 {
		k.host.raised.Add(-max(0, b.raised-ownRaise))
		b.raised = 0
		_ = b.group.SetMemory(b.hardMemory()) // usage is below it again, or the Boot is gone
	}
}

// killBiggest stops everything inside a Boot, kills the sessions that use most memory and
// continues the rest. It kills the holders of half of the memory, and with each further
// round half of the remainder: in a bomb whose every process has its own session, no
// session is big. The Guest is signalled first, so that it can report why they ended.
func (h *Host) killBiggest(b *boot, round int) error {
	rpc, err := client.ConnectTo(b.record.Socket)
	if err != nil {
		return fmt.Errorf("reach the sentry: %w", err)
	}
	defer rpc.Close()
	if err := rpc.Call(runscboot.ContMgrPause, nil, nil); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	err = killSessions(rpc, b.record.name(), round)
	if resumeErr := rpc.Call(runscboot.ContMgrResume, nil, nil); resumeErr != nil {
		return fmt.Errorf("resume: %w", resumeErr)
	}
	return err
}

func killSessions(rpc *urpc.Client, id string, round int) error {
	var dump []procfs.ProcessProcfsDump
	if err := rpc.Call(runscboot.ContMgrProcfsDump, nil, &dump); err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	signal := func(pid, signo int32) error {
		return rpc.Call(runscboot.ContMgrSignal, &runscboot.SignalArgs{CID: id, PID: pid, Signo: signo, Mode: runscboot.DeliverToProcess}, nil)
	}
	if err := signal(guestPid, int32(sandbox.GuestMemorySignal)); err != nil {
		return fmt.Errorf("tell the guest: %w", err)
	}
	for _, pid := range biggest(dump, round) {
		_ = signal(pid, int32(unix.SIGKILL)) // it may have ended by itself
	}
	return nil
}

// guestPid is the Guest's PID inside, and guestSession the session of its own programs.
const guestPid, guestSession = 1, 1

// biggest returns the processes of the sessions that hold most memory, biggest first:
// half of the memory in the first round, three quarters in the second, and so on. The
// Guest is never among them.
func biggest(dump []procfs.ProcessProcfsDump, round int) []int32 {
	type session struct {
		bytes uint64
		pids  []int32
	}
	sessions := map[int32]*session{}
	var total uint64
	for _, p := range dump {
		if p.Status.PID == guestPid {
			continue
		}
		id := p.Stat.SID
		if id == guestSession { // never began a session of its own
			id = -p.Status.PID
		}
		s := sessions[id]
		if s == nil {
			s = new(session)
			sessions[id] = s
		}
		s.bytes += p.Status.VMRSS
		s.pids = append(s.pids, p.Status.PID)
		total += p.Status.VMRSS
	}
	spared := total >> min(round, 63)
	var pids []int32
	for _, s := range slices.SortedFunc(maps.Values(sessions), func(a, b *session) int { return cmp.Compare(b.bytes, a.bytes) }) {
		if len(pids) > 0 && total <= spared {
			break
		}
		pids = append(pids, s.pids...)
		total -= s.bytes
	}
	return pids
}
