package server

import (
	"encoding/json"
	"os"
	"path/filepath"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// adopt takes up the Boots and shards that an earlier sentry host left, and
// removes what is left of dead ones.
func (h *Host) adopt() {
	entries, err := os.ReadDir(filepath.Join(h.cfg.Dir, "boots"))
	if err != nil {
		h.log.Error("the boots of an earlier sentry host cannot be listed", "error", err)
	}
	for _, e := range entries {
		if id := e.Name(); sandbox.ValidBootID(id) {
			h.adoptBoot(id)
		}
	}
	h.removeStrayGroups()
	h.adoptShards()
}

func (h *Host) adoptBoot(id string) {
	b := &boot{gone: make(chan struct{}), group: h.groups.Open(id)}
	b.record.ID = id
	h.boots[id] = b
	if err := h.takeUp(b); err != nil {
		h.log.Warn("a boot did not survive the sentry host", "boot", id, "error", err)
		if b.pidfd != nil {
			h.kill(b)
		}
		if err := h.free(b); err != nil {
			h.log.Error("a dead boot left something behind", "boot", id, "error", err)
		}
		return
	}
	h.mu.Lock()
	b.running = true
	h.mu.Unlock()
	select {
	case <-b.gone:
		h.sentryGone(b) // it died before it was marked running
	default:
	}
	h.log.Info("took up a boot", "boot", id, "pid", b.record.Pid)
}

// takeUp reads the record of a Boot and watches its sentry, if that is the
// process it was.
func (h *Host) takeUp(b *boot) error {
	raw, err := os.ReadFile(filepath.Join(h.bootDir(b.record.ID), "boot.json"))
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
	if ticks != r.StartTicks || r.ID != b.record.ID {
		return sandbox.Errorf(sandbox.NotFound, "the process %d is another one", r.Pid)
	}
	b.record = r
	if err := h.watchSentry(b); err != nil {
		return err
	}
	return h.watchMemory(b)
}

// removeStrayGroups deletes groups of Boots that no record names: a start was
// cut off between making its group and writing its record. Their processes are
// killed.
func (h *Host) removeStrayGroups() {
	names, err := h.groups.Names()
	if err != nil {
		h.log.Error("cgroups cannot be listed", "error", err)
	}
	for _, name := range names {
		if !sandbox.ValidBootID(name) || h.boots[name] != nil {
			continue
		}
		g := h.groups.Open(name)
		g.Kill()
		if err := g.Remove(removeWait); err != nil {
			h.log.Error("a stray cgroup cannot be removed", "boot", name, "error", err)
		}
	}
}
