package server

import (
	"bytes"
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
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// adopt adopts the Boots and shards of an earlier sentry host, and removes the remains of
// dead ones.
func (h *Host) adopt() {
	entries, err := os.ReadDir(filepath.Join(h.cfg.Dir, "boots"))
	if err != nil {
		h.log.Error("listing the boots of an earlier sentry host failed", telemetry.KeyError, err)
	}
	names := map[string]bool{}
	for _, e := range entries {
		if name := e.Name(); sandbox.ValidBootID(name) {
			names[name] = h.adoptBoot(name)
		}
	}
	h.removeStrayGroups(names)
	h.adoptShards()
}

// adoptBoot adopts the Boot in a sentry. If the sentry has no running Boot, it removes
// the sentry's folder and returns false.
func (h *Host) adoptBoot(name string) bool {
	b := &boot{gone: make(chan struct{}), group: h.groups.Open(name)}
	b.record.Name = name
	if err := h.takeUp(b); err != nil {
		h.log.Warn("a boot cannot be adopted", telemetry.KeyBoot, b.record.ID, "sentry", name, telemetry.KeyError, err)
		if b.pidfd != nil {
			h.kill(b)
		}
		b.group = nil // removed by removeStrayGroups
		if err := h.free(b); err != nil {
			h.log.Error("cleaning up a dead boot failed", telemetry.KeyBoot, b.record.ID, "sentry", name, telemetry.KeyError, err)
		}
		return false
	}
	unsure := b.record.Unsure
	if unsure { // in the background: its sentry may end a save first, and others want to be served
		b.pausing.Lock()
	}
	h.mu.Lock()
	h.boots[b.record.ID] = b
	b.running = true
	h.mu.Unlock()
	if unsure {
		h.wg.Go(func() { h.recoverBoot(b) })
	}
	select {
	case <-b.gone:
		h.sentryGone(b) // the sentry died before it was marked running
	default:
	}
	h.noteRead(b)
	h.log.Info("adopted a boot", telemetry.KeyBoot, b.record.ID, "pid", b.record.Pid)
	return true
}

// takeUp reads the record of a Boot and watches its sentry, if the recorded process still
// runs.
func (h *Host) takeUp(b *boot) error {
	name := b.record.name()
	raw, err := os.ReadFile(filepath.Join(h.bootDir(name), sentryhost.RecordName))
	if errors.Is(err, os.ErrNotExist) {
		return sandbox.Errorf(sandbox.NotFound, "no boot was in it yet")
	}
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	ticks, err := startTicks(r.Pid)
	if err != nil {
		return err
	}
	if ticks != r.StartTicks || r.name() != name || !sandbox.ValidBootID(r.ID) {
		return sandbox.Errorf(sandbox.NotFound, "the process %d is another one", r.Pid)
	}
	if r.Limits == (sandbox.Limits{}) { // written by an older sentry host
		r.Limits = r.Shape.Limits()
	}
	b.record = r
	b.memory.Store(r.Limits.MemoryBytes)
	if err := h.watchSentry(b); err != nil {
		return err
	}
	if r.Arriving {
		return sandbox.Errorf(sandbox.Unavailable, "the rest of its memory was still to arrive when the sentry host ended")
	}
	if err := h.startGuestWait(b); err != nil { // the sentry may be about to end; otherwise only its cause would be wrong
		h.log.Warn("watching an adopted boot failed; the cause of its end will be unknown", telemetry.KeyBoot, b.record.ID, telemetry.KeyError, err)
	}
	b.upper = b.heldFile(h.cfg.UpperDir + "/")
	b.stderr = b.heldFile("/memfd:" + stderrName)
	// The earlier host may have lifted the CPU limit for a save or a load.
	if err := b.group.SetLimits(cpuLimit(r.Limits)); err != nil {
		h.log.Error("restoring the CPU limit of an adopted boot failed", telemetry.KeyBoot, r.ID, telemetry.KeyError, err)
	}
	if u, err := b.group.Usage(); err == nil && heapWanted(u.AnonymousBytes) > 0 { // the allowance from the earlier host
		b.heap.Store(heapWanted(u.AnonymousBytes))
		h.wg.Go(func() { h.watchHeap(b) })
	}
	// The earlier host may have raised the limit while memory was freed.
	if over, err := b.group.OverMark(b.memoryMark()); err == nil && over <= 0 {
		_ = b.group.SetMemory(b.memoryMark() + memoryReserve)
	}
	return h.watchMemory(b)
}

// heldFile opens a deleted file with the path prefix that the sentry holds open: the
// writable layer's, or the sentry's stderr; nil when it cannot be found.
func (b *boot) heldFile(prefix string) *os.File {
	held, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", b.record.Pid))
	for _, path := range held {
		if got, err := os.Readlink(path); err == nil && strings.HasPrefix(got, prefix) && strings.HasSuffix(got, " (deleted)") {
			if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
				return f
			}
		}
	}
	return nil
}

// strayTime is how long the remains of an interrupted start are searched for: a child of
// a killed sentry host may take a moment to appear.
const strayTime = 2 * time.Second

// removeStrayGroups kills the remains of Boots that did not survive or have no record: a
// start was interrupted between making its group and writing its record. It works in the
// background: the kernel may hold on to a group for seconds after the last process, and
// nothing should wait for that. A group is removed last, so that the next sentry host
// finds unfinished remains.
func (h *Host) removeStrayGroups(adopted map[string]bool) {
	names, err := h.groups.Names()
	if err != nil {
		h.log.Error("listing the cgroups of boots failed", telemetry.KeyError, err)
	}
	for _, name := range names {
		if !sandbox.ValidBootID(name) || adopted[name] {
			continue
		}
		g := h.groups.Open(name)
		g.Kill()
		h.strays.Go(func() {
			for end := time.Now().Add(strayTime); time.Now().Before(end); time.Sleep(strayTime / 20) {
				killNamed(name)
			}
			if err := g.Remove(removeWait); err != nil {
				h.log.Warn("removing a stray cgroup failed; the next start tries again", telemetry.KeyBoot, name, telemetry.KeyError, err)
			}
			sockets, _ := filepath.Glob(filepath.Join(h.cfg.Dir, "sentries", "*"+name+"*"))
			for _, s := range sockets {
				os.Remove(s)
			}
		})
	}
}

// killNamed ends the sentries whose last argument is name, with all descendants. On
// cgroup v1 a sentry runs for a moment before it is in its group.
func killNamed(name string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || !named(pid, name) {
			continue
		}
		for _, p := range withDescendants(pid) {
			_ = unix.Kill(p, unix.SIGKILL)
		}
	}
}

// named reports whether the last argument of a process is name, as a sentry's is.
func named(pid int, name string) bool {
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && isNamed(args, name)
}

// isNamed reports whether the last argument of a command line is name.
func isNamed(args []byte, name string) bool { return bytes.HasSuffix(args, []byte("\x00"+name+"\x00")) }
