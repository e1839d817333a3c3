package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	runscboot "gvisor.dev/gvisor/runsc/boot"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// fsCat has the sentry read files as the guest's root would.
const fsCat = "Fs.Cat"

const (
	// startingLimit bounds how long a Boot may run on for programs of its Guest between fork
	// and exec: another Guest than ours may have one there forever. It does not count the
	// looks in between, which take long on a busy host; startingMost bounds all together.
	startingLimit = time.Second
	startingMost  = 15 * time.Second
	// A Boot runs for startingWait before it is paused again, and for twice as long each
	// further time, up to startingWaitMax.
	startingWait, startingWaitMax = time.Millisecond, 8 * time.Millisecond
	// lookLimit bounds how long a sentry may take to report the states of processes: the
	// Guest's root can put files over /proc that never answer.
	lookLimit = 30 * time.Second
	// recoverLimit is the same bound for a Boot of an earlier sentry host: its sentry may
	// first have to end a save.
	recoverLimit = 5 * time.Minute
)

// sentry is a connection to the control socket of a Boot's sentry.
type sentry struct {
	*urpc.Client
	socket string
	limit  time.Duration // for calls whose answer the Guest can hold up
}

func connect(socket string, limit time.Duration) (*sentry, error) {
	rpc, err := client.ConnectTo(socket)
	if err != nil {
		return nil, err
	}
	return &sentry{rpc, socket, limit}, nil
}

// saveSlots is how many Boots are saved at a time. Each keeps a core busy. The caller, a
// Node, saves fewer at a time, in an order that is fair between Tenants, which this
// package does not know. The other slots are for saves that outlast their callers.
func saveSlots() int { return 2 * max(runtime.NumCPU(), 2) }

// freeze stops everything in a Boot, so that it can be saved. It returns Exhausted, and
// stops nothing, when the Boot could not be saved. It is idempotent.
func (h *Host) freeze(id string) error {
	b, err := h.find(id)
	if err != nil {
		return err
	}
	if err := h.isWhole(b); err != nil {
		return err
	}
	b.pausing.Lock()
	defer b.pausing.Unlock()
	if h.recordOf(b).Frozen {
		return nil
	}
	if err := h.checkSave(b); err != nil {
		return err
	}
	return h.stand(b, func(rpc *sentry) error {
		if _, err := pauseWhole(rpc, b.record.name()); err != nil {
			return err
		}
		h.change(b, func(r *record) { r.Frozen, r.FrozenAt = true, time.Now().UTC() })
		return nil
	})
}

// pauseWhole stops everything in a Boot at a moment when its Guest starts no program,
// and returns the processes. A child between fork and exec (vfork) blocks the thread of
// the Guest that made it, and the Guest runs on one processor. If the Boot were saved
// at that moment, the child would be held after a restore, and the Guest could not
// answer. So pauseWhole lets the Boot continue until the child has called exec, up to
// startingLimit. After an error the Boot continues.
func pauseWhole(rpc *sentry, id string) ([]process, error) {
	began, given := time.Now(), time.Duration(0)
	for wait := startingWait; ; wait = min(2*wait, startingWaitMax) {
		if err := pause(rpc); err != nil {
			return nil, err
		}
		all, err := processes(rpc, id)
		if err == nil && (!starts(all) || given >= startingLimit || time.Since(began) > startingMost) {
			return all, nil
		}
		if err := errors.Join(err, resume(rpc)); err != nil {
			return nil, err
		}
		time.Sleep(wait)
		given += wait
	}
}

func pause(rpc *sentry) error {
	if err := rpc.Call(runscboot.ContMgrPause, nil, nil); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

func resume(rpc *sentry) error {
	if err := rpc.Call(runscboot.ContMgrResume, nil, nil); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	return nil
}

// thaw continues a Boot that is frozen or held. It is idempotent.
func (h *Host) thaw(id string) error {
	b, err := h.find(id)
	if err != nil {
		return err
	}
	defer h.lockStand(b)()
	if r := h.recordOf(b); !r.Frozen && len(r.Held) == 0 {
		return nil
	}
	if err := h.takeLayer(b); err != nil {
		return err
	}
	return h.goOn(b, func(rpc *sentry) error {
		// All at once: when a process ends while another of its group is stopped,
		// the sentry sends the whole group SIGHUP.
		if r := h.recordOf(b); !r.Frozen {
			if err := pause(rpc); err != nil {
				return err
			}
		}
		h.continueAll(rpc, b, h.recordOf(b).Held)
		h.change(b, func(r *record) { r.Held = nil })
		if err := resume(rpc); err != nil {
			return err
		}
		h.change(b, func(r *record) { r.Frozen = false })
		return nil
	})
}

// lockStand locks b.pausing, and before it, in the order of a save, the name of the state
// that owns the layer of b. unlock unlocks both.
func (h *Host) lockStand(b *boot) (unlock func()) {
	for {
		g, unlockName := h.recordOf(b).Given, func() {}
		if g != nil {
			unlockName = h.lockName(g.To)
		}
		b.pausing.Lock()
		unlock := func() {
			b.pausing.Unlock()
			unlockName()
		}
		if now := h.recordOf(b).Given; now == nil || g != nil && now.To == g.To {
			return unlock
		}
		unlock() // the layer was given away meanwhile
	}
}

// stand calls do to stop or continue a Boot. If the sentry host ends meanwhile, the
// record makes a later one check whether the Boot is stopped. The caller holds b.pausing.
func (h *Host) stand(b *boot, do func(*sentry) error) error { return h.recorded(b, do, false) }

// goOn is stand for a change that may continue a Boot: a disk that others have filled must not
// keep it stopped. A record that cannot be written is logged.
func (h *Host) goOn(b *boot, do func(*sentry) error) error { return h.recorded(b, do, true) }

// recorded is stand, or goOn with anyway.
func (h *Host) recorded(b *boot, do func(*sentry) error, anyway bool) error {
	rpc, err := connect(b.record.Socket, h.lookLimit)
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the sentry of %s does not answer", b.record.ID).WithCause(err)
	}
	defer rpc.Close()
	h.change(b, func(r *record) { r.Unsure = true })
	unwritten := h.writeRecord(b)
	if unwritten != nil && (!anyway || errors.Is(unwritten, sandbox.NotFound)) {
		return unwritten
	}
	err = do(rpc)
	h.change(b, func(r *record) { r.Unsure = err != nil })
	unwritten = errors.Join(unwritten, h.writeRecord(b))
	if !anyway {
		return errors.Join(err, unwritten)
	}
	if unwritten != nil {
		h.log.Error("recording whether a boot is stopped failed; will retry", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, unwritten)
		h.writeLater(b)
	}
	return err
}

// writeAgain is the time between two tries to write a record.
const writeAgain = 5 * time.Second

// writeLater writes the record of a Boot as soon as that succeeds, unless the Boot has ended. A
// later sentry host must not take a running Boot for a frozen one.
func (h *Host) writeLater(b *boot) {
	time.AfterFunc(writeAgain, func() {
		if err := h.writeRecord(b); err != nil && !errors.Is(err, sandbox.NotFound) && !errors.Is(err, fs.ErrNotExist) {
			h.writeLater(b)
		}
	})
}

// recoverBoot brings a Boot into the state of its record, after an earlier sentry host
// ended while it stopped or continued it. A Boot that cannot be inspected is ended: it
// can neither be paused nor continued. The caller locked b.pausing, which is unlocked
// here.
func (h *Host) recoverBoot(b *boot) {
	defer b.pausing.Unlock()
	err := h.recoverStand(b)
	h.mu.Lock()
	ends := b.stopping || !b.running // meanwhile
	h.mu.Unlock()
	if err != nil && !ends {
		h.log.Error("ending a boot of an earlier sentry host: finding out whether it is frozen failed", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
		h.kill(b)
	}
}

// recoverStand finds out whether such a Boot is stopped, and stops or continues it. If it
// was being saved, its processes are continued.
func (h *Host) recoverStand(b *boot) error {
	return h.goOn(b, func(rpc *sentry) error {
		r := h.recordOf(b)
		guest := []process{{pid: guestPid}}
		rpc.limit = h.recoverLimit
		if err := lookAt(rpc, guest); err != nil {
			return err
		}
		rpc.limit = h.lookLimit
		h.continueAll(rpc, b, r.Stopped)
		h.change(b, func(r *record) { r.Stopped = nil })
		var err error
		switch stands := guest[0].state == stoppedOutside; {
		case r.Frozen && !stands:
			_, err = pauseWhole(rpc, r.name())
		case !r.Frozen && stands:
			err = resume(rpc)
		}
		return err
	})
}

// save saves a Boot under a name. It continues when its caller is gone.
func (h *Host) save(r sentryhost.SaveRequest) (sandbox.Saved, error) {
	b, err := h.find(r.ID)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if err := h.isWhole(b); err != nil {
		return sandbox.Saved{}, err
	}
	if !sandbox.ValidSnapshotID(r.Name) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", r.Name)
	}
	defer h.lockName(r.Name)()
	switch m, raw, _, err := h.knownManifest(r.Name); {
	case err == nil && m.Boot == r.ID && m.Memory == r.Memory:
		return savedOf(m, raw), nil
	case !errors.Is(err, sandbox.NotFound):
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "another state was saved as %s", r.Name).WithCause(err)
	}
	// Before it takes a save slot: much may be unread, and the running Boot reads it
	// under its own CPU limit.
	if !h.recordOf(b).Frozen {
		if err := h.awaitLayer(b); err != nil {
			return sandbox.Saved{}, sandbox.Errorf(sandbox.Unavailable, "the sandbox could not be saved").WithCause(err)
		}
	}
	h.saving <- struct{}{}
	defer func() { <-h.saving }()
	d, err := h.writeDraft(b, r)
	if err != nil {
		return sandbox.Saved{}, err
	}
	saved, err := d.finish()
	if err != nil {
		d.discard()
	}
	return saved, err
}

// writeDraft has the sentry of a Boot write its state. The Boot runs, or stays frozen, as
// before when it returns. On error everything is undone.
func (h *Host) writeDraft(b *boot, r sentryhost.SaveRequest) (*draft, error) {
	b.pausing.Lock()
	defer b.pausing.Unlock()
	if g := h.recordOf(b).Given; g != nil {
		return nil, sandbox.Errorf(sandbox.Conflict, "the files of %s belong to the saved state %s: it must continue before it can be saved again", r.ID, g.To)
	}
	need := b.saveNeed
	if !r.Memory {
		need = b.layerNeed
	}
	end, err := h.beginWork(b, need)
	if err != nil {
		return nil, err
	}
	defer end()
	d, err := h.draftOf(b, r)
	if err != nil {
		return nil, err
	}
	if err := h.write(b, d); err != nil {
		d.discard()
		err = noRoom(err) // the disk may be full
		if known := new(sandbox.Error); errors.As(err, &known) {
			return nil, err
		}
		return nil, sandbox.Errorf(sandbox.Unavailable, "the sandbox could not be saved").WithCause(err)
	}
	return d, nil
}

// stateRoom bounds the part of a saved state that is neither memory nor files, in bytes.
const stateRoom = 32 << 20

// draftOf allocates a draft for everything in a Boot.
func (h *Host) draftOf(b *boot, r sentryhost.SaveRequest) (*draft, error) {
	u, err := b.group.Usage()
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the usage of %s cannot be read", r.ID).WithCause(err)
	}
	record := h.recordOf(b)
	m := &sentryhost.Manifest{
		Name: r.Name, Boot: r.ID, Memory: r.Memory, Build: record.guestBuild(h), Engine: h.engineVersion(), Image: record.Image, Shape: record.Shape,
	}
	// The record was read first: if it does not know the layer's size, the layer has been
	// read.
	unread := b.unread(record)
	layer, memory, described := b.diskBytes()+unread, int64(0), u.AnonymousBytes*tarShare
	if r.Memory {
		m.CPU = record.CPU
		memory, described = u.MemoryBytes, u.AnonymousBytes/stateShare
	}
	inPlace := h.inPlace(b, r)
	if inPlace && record.Frozen {
		layer = unread // the rest is on the disk already
	}
	d, err := h.newDraft(m, layer+memory+stateRoom, described)
	if err == nil && inPlace {
		m.Engine += inPlaceSuffix
		d.inPlace, d.room = true, memory+stateRoom
	}
	return d, err
}

// write has the sentry write its state while everything is stopped. The caller holds
// b.pausing.
func (h *Host) write(b *boot, d *draft) error {
	return h.stand(b, func(rpc *sentry) (err error) {
		var all []process
		if r := h.recordOf(b); r.Frozen {
			d.m.SavedAt = r.FrozenAt
			if all, err = processes(rpc, r.name()); err != nil {
				return err
			}
		} else {
			if all, err = pauseWhole(rpc, b.record.name()); err != nil {
				return err
			}
			d.m.SavedAt = time.Now().UTC()
			defer func() { err = errors.Join(err, resume(rpc)) }()
		}
		h.liftCPU(b)
		defer h.roomToRead(b)()
		if d.inPlace {
			if err := h.placeLayer(b, d); err != nil {
				return err
			}
		}
		defer d.flush()() // ended before the Boot continues: a running Boot does not wait for the disk
		if !d.m.Memory {
			return writeLayer(rpc, d.files)
		}
		if err := h.writeMemory(rpc, b, d, all); err != nil || !d.inPlace {
			return err
		}
		return d.trim()
	})
}

// writeLayer saves the writable layer alone.
func writeLayer(rpc *sentry, files []*os.File) error {
	args := runscboot.FSSaveArgs{FilePayload: urpc.FilePayload{Files: files}}
	if err := rpc.Call(runscboot.ContMgrFSSave, &args, nil); err != nil {
		return fmt.Errorf("save files: %w", err)
	}
	return nil
}

// writeMemory saves memory in which every process but the Guest has been sent SIGSTOP: as
// nothing runs, the signal is the first thing that each process meets when it is
// restored. In the running Boot the signal is taken back before it is met. Processes that
// were stopped before stay stopped, in the state and in the Boot.
func (h *Host) writeMemory(rpc *sentry, b *boot, d *draft, all []process) error {
	going := goingProcesses(all)
	d.m.Held = union(going, h.recordOf(b).Held)
	h.change(b, func(r *record) { r.Stopped = going })
	if err := h.writeRecord(b); err != nil {
		return err
	}
	defer func() {
		h.continueAll(rpc, b, going)
		h.change(b, func(r *record) { r.Stopped = nil })
	}()
	if missed := signalEach(rpc, b.record.name(), going, unix.SIGSTOP); missed != nil {
		return fmt.Errorf("stop processes: %w", missed)
	}
	opts := control.SaveOpts{
		Metadata:      statefile.CompressionLevelNone.ToMetadata(),
		HavePagesFile: true,
		FilePayload:   urpc.FilePayload{Files: d.files},
		// Without it the sentry ends, even if the save failed.
		Resume: true,
	}
	if err := rpc.Call(runscboot.ContMgrCheckpoint, &opts, nil); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// union is a, followed by the elements of b that a lacks.
func union(a, b []int32) []int32 {
	in := map[int32]bool{}
	for _, pid := range a {
		in[pid] = true
	}
	all := append([]int32{}, a...)
	for _, pid := range b {
		if !in[pid] {
			all = append(all, pid)
		}
	}
	return all
}

// continueAll sends SIGCONT to processes that were stopped for a save. It logs failures: the
// Boot continues without those processes.
func (h *Host) continueAll(rpc *sentry, b *boot, pids []int32) {
	if err := signalEach(rpc, b.record.name(), pids, unix.SIGCONT); err != nil {
		h.log.Warn("continuing a process that was stopped for a save failed", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
	}
}

// signalEach sends a signal to processes, in their order, and returns the first error.
func signalEach(rpc *sentry, id string, pids []int32, s unix.Signal) error {
	var first error
	for _, pid := range pids {
		args := runscboot.SignalArgs{CID: id, PID: pid, Signo: int32(s), Mode: runscboot.DeliverToProcess}
		if err := rpc.Call(runscboot.ContMgrSignal, &args, nil); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// States of processes in /proc.
const (
	stoppedOutside = 'D' // also while the whole Boot is stopped
	stoppedInside  = 'T'
	traced         = 't'
	zombie         = 'Z'
	dead           = 'X'
)

// process is a process of a Boot, as its sentry reports it.
type process struct {
	pid, parent int32
	state       byte
	// memory is its memory size, as text: equal for two processes that share their
	// memory, and hardly ever for others.
	memory string
}

// starts reports whether the Guest has a child between fork and exec, which shares the
// Guest's memory. Another program of equal size only delays its own Boot.
func starts(all []process) bool {
	guest := slices.IndexFunc(all, func(p process) bool { return p.pid == guestPid })
	return guest >= 0 && slices.ContainsFunc(all, func(p process) bool {
		return p.parent == guestPid && p.memory != "" && p.memory == all[guest].memory
	})
}

// goingProcesses returns all processes but the Guest that would run if the Boot did,
// children before their parents.
func goingProcesses(all []process) []int32 {
	parents, states := map[int32]int32{}, map[int32]byte{}
	for _, p := range all {
		parents[p.pid], states[p.pid] = p.parent, p.state
	}
	var going []int32
	for _, pid := range childrenFirst(parents) {
		switch states[pid] {
		case stoppedInside, traced, zombie, dead:
		default:
			if pid != guestPid {
				going = append(going, pid)
			}
		}
	}
	return going
}

// childrenFirst orders processes so that children come before their parents.
func childrenFirst(parents map[int32]int32) []int32 {
	children := map[int32][]int32{}
	for pid, parent := range parents {
		if _, known := parents[parent]; !known || parent == pid {
			parent = 0
		}
		children[parent] = append(children[parent], pid)
	}
	queue := append([]int32{}, children[0]...)
	for i := 0; i < len(queue); i++ {
		queue = append(queue, children[queue[i]]...)
	}
	for i, j := 0, len(queue)-1; i < j; i, j = i+1, j-1 {
		queue[i], queue[j] = queue[j], queue[i]
	}
	return queue
}

// processes asks the sentry for all processes of a Boot.
func processes(rpc *sentry, id string) ([]process, error) {
	var told []control.Process // no pointers: the answer of a sentry that a guest controls may hold null
	if err := rpc.Call(runscboot.ContMgrProcesses, &id, &told); err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	all := make([]process, len(told))
	for i, p := range told {
		all[i] = process{pid: int32(p.PID), parent: int32(p.PPID)}
	}
	return all, lookAt(rpc, all)
}

// lookAt asks for the states of processes and their memory. A process with a deceptive
// name gets wrong ones, which affects only its own Sandbox.
func lookAt(rpc *sentry, all []process) error {
	if len(all) == 0 {
		return nil
	}
	fd, err := unix.MemfdCreate("stat", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	out := os.NewFile(uintptr(fd), "stat")
	defer out.Close()
	opts := control.CatOpts{FilePayload: urpc.FilePayload{Files: []*os.File{out}}}
	at := map[int32]int{}
	for i, p := range all {
		opts.Files = append(opts.Files, fmt.Sprintf("/proc/%d/stat", p.pid))
		at[p.pid] = i
	}
	// On a connection of its own: after it is cut, the Boot can still be continued.
	own, err := connect(rpc.socket, rpc.limit)
	if err != nil {
		return fmt.Errorf("look at processes: %w", err)
	}
	defer own.Close()
	cut := time.AfterFunc(rpc.limit, func() { own.Socket.Close() })
	err = own.Call(fsCat, &opts, nil)
	if !cut.Stop() {
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox cannot be paused or saved: the mount over its /proc did not report the states of its processes within %v: unmount it, or delete the sandbox", rpc.limit).WithCause(err)
	}
	if err != nil {
		return fmt.Errorf("look at processes: %w", err)
	}
	const maxStat = 1 << 10 // of one process
	text, err := io.ReadAll(io.NewSectionReader(out, 0, int64(len(all))*maxStat))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		pid, state, memory := readStat(line)
		if i, known := at[pid]; known && state != 0 {
			all[i].state, all[i].memory = state, memory
		}
	}
	return nil
}

// readStat reads a line of /proc/PID/stat; state is 0 when the line is malformed.
func readStat(line string) (pid int32, state byte, memory string) {
	const vsize, rss = 20, 21 // indices of the fields after the name; the state is index 0
	end := strings.LastIndex(line, ") ")
	if _, err := fmt.Sscanf(line, "%d", &pid); err != nil || end < 0 {
		return 0, 0, ""
	}
	fields := strings.Fields(line[end+2:])
	if len(fields) == 0 {
		return 0, 0, ""
	}
	if len(fields) > rss && fields[vsize] != "0" { // the process ends: it has no memory
		memory = fields[vsize] + " " + fields[rss]
	}
	return pid, fields[0][0], memory
}

// load has a new sentry load saved memory.
func (h *Host) load(ctx context.Context, b *boot, from *origin, guestEnd *os.File) error {
	end, err := h.beginWork(b, func() (int64, error) { return loadNeed(&from.Manifest), nil })
	if err != nil {
		return err
	}
	defer end()
	h.liftCPU(b)
	return restore(ctx, b.record.Socket, from, guestEnd)
}

// restore gives a new sentry its link and has it load saved memory, whose files are verified
// meanwhile. It returns as soon as they turn out to be damaged or ctx ends, and the sentry is
// useless then: gVisor may wait forever if it loads damaged files.
func restore(ctx context.Context, socket string, from *origin, guestEnd *os.File) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rpc, err := client.ConnectTo(socket)
	if err != nil {
		return fmt.Errorf("reach the sentry: %w", err)
	}
	defer rpc.Close()
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	defer context.AfterFunc(ctx, func() { rpc.Socket.Close() })()
	go func() {
		if err := from.verified(); err != nil {
			cut(err)
		}
	}()
	err = askRestore(rpc, from, guestEnd)
	return cmp.Or(context.Cause(ctx), err)
}

// askRestore makes the requests of restore.
func askRestore(rpc *urpc.Client, from *origin, guestEnd *os.File) error {
	network := networkArgs(guestEnd)
	network.IsRestore = true
	if err := rpc.Call(runscboot.ContMgrSetNetworkArgs, network, nil); err != nil {
		return fmt.Errorf("give the sentry its link: %w", err)
	}
	// In the background: the pages that are needed first are read first.
	opts := runscboot.RestoreOpts{FilePayload: urpc.FilePayload{Files: from.files}, HavePagesFile: true, Background: true}
	err := rpc.Call(runscboot.ContMgrRestore, &opts, nil)
	var refused urpc.RemoteError
	switch {
	case errors.As(err, &refused):
		return sandbox.Errorf(sandbox.Conflict, "the saved state %s cannot be restored", from.Name).WithCause(err)
	case err != nil: // the sentry was ended, but the state may be intact
		return sandbox.Errorf(sandbox.Unavailable, "the sandbox ended while it was restored from the saved state %s: try again", from.Name).WithCause(err)
	}
	return nil
}
