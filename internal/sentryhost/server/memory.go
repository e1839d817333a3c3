package server

import (
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/sentryhost"
)

// watchMemory arms the Boot's group to tell when its memory is used up, and
// follows it until the group is removed.
func (h *Host) watchMemory(b *boot) error {
	p, err := b.group.WatchMemory(b.memoryLimit())
	if err != nil {
		return err
	}
	b.pressure = p
	h.wg.Go(func() {
		for p.Wait() == nil {
			if !h.makeRoom(b) {
				return
			}
		}
	})
	return nil
}

func (b *boot) memoryLimit() int64 { return b.record.Shape.MemoryBytes + sentryMemory }

// makeRoom lends the reserve, asks for room and takes the reserve back. While
// the Boot uses up what it was lent faster than room is made, it is lent more,
// up to maxReserve: the sentry cannot run, and so the Guest cannot kill, while
// it waits for a page. If no room was made in sandbox.OOMGrace, or a second after
// all was lent, the Boot ends; false says so.
func (h *Host) makeRoom(b *boot) bool {
	lent := int64(memoryReserve)
	if !h.lend(b, lent) {
		return false
	}
	h.log.Info("memory is used up", "boot", b.record.ID)
	h.tell(sentryhost.EventBoot, sandbox.BootEvent{ID: b.record.ID, Kind: sandbox.BootMemoryFull})
	deadline := time.NewTimer(sandbox.OOMGrace)
	var stuck time.Time // since when it waits with nothing left to lend
	defer deadline.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-b.gone:
			return false
		case <-again.C:
			if h.reclaim(b) {
				return true
			}
			if !b.group.Stuck() {
				stuck = time.Time{}
			} else if lent < maxReserve {
				lent += memoryReserve
				h.lend(b, lent)
			} else if stuck.IsZero() {
				stuck = time.Now()
			} else if time.Since(stuck) > stuckGrace {
				deadline.Reset(0)
			}
		case <-deadline.C:
			if h.reclaim(b) {
				return true
			}
			h.log.Warn("no room was made in time", "boot", b.record.ID)
			h.mu.Lock()
			b.oom = true
			h.mu.Unlock()
			h.kill(b)
			return false
		}
	}
}

// stuckGrace is how long a Boot may wait for memory once all is lent.
const stuckGrace = time.Second

// lend raises the hard limit; false means that the group is gone. On v2 the
// reserve is there from the start, above the mark.
func (h *Host) lend(b *boot, bytes int64) bool {
	return h.groups.V2() || b.group.SetMemory(b.memoryLimit()+bytes) == nil
}

// reclaim takes the reserve back if use has fallen below the limit.
func (h *Host) reclaim(b *boot) bool {
	u, err := b.group.Usage()
	if err != nil || u.MemoryBytes > b.memoryLimit()-memoryReserve/2 || b.group.Stuck() {
		return false
	}
	if h.groups.V2() {
		return true
	}
	return b.group.SetMemory(b.memoryLimit()) == nil
}
