package node

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// HostState is what is left on the host.
type HostState struct {
	DiskFree, DiskTotal     int64 // bytes, of the disk that Boots write to
	MemoryFree, MemoryTotal int64 // bytes; free counts what caches would give back
}

const (
	// minDiskShare of the disk must be free for a new Boot.
	minDiskShare = 0.15
	// minMemoryShare and minMemory of the memory must be free for a new Boot,
	// whichever is more: what the host itself needs to go on.
	minMemoryShare = 0.03
	minMemory      = 256 << 20
	// gaugeAge is how old a reading of the host may be.
	gaugeAge = 100 * time.Millisecond
)

// hostGauge reads the state of the host, not too often.
type hostGauge struct {
	read func() (HostState, error)

	mu    sync.Mutex
	state HostState
	err   error
	at    time.Time
}

// admit returns Exhausted, saying what is short, when no new Boot should start.
func (h *hostGauge) admit() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.at.IsZero() || now.Sub(h.at) > gaugeAge {
		h.state, h.err = h.read()
		h.at = now
	}
	if h.err != nil {
		return fmt.Errorf("read the state of the host: %w", h.err)
	}
	s := h.state
	if float64(s.DiskFree) < minDiskShare*float64(s.DiskTotal) {
		return exhausted("the host's disk is nearly full: %d %% free, and new sandboxes need %d %%",
			100*s.DiskFree/s.DiskTotal, int(100*minDiskShare))
	}
	if need := max(minMemory, int64(minMemoryShare*float64(s.MemoryTotal))); s.MemoryFree < need {
		return exhausted("the host's memory is nearly full: %d MiB free, and new sandboxes need %d MiB",
			s.MemoryFree>>20, need>>20)
	}
	return nil
}

func exhausted(format string, args ...any) *sandbox.Error {
	err := sandbox.Errorf(sandbox.Exhausted, format, args...)
	err.RetryAfter = retryAfter
	return err
}

// hostStateOf reads the disk of dir and the memory of this machine.
func hostStateOf(dir string) func() (HostState, error) {
	return func() (HostState, error) {
		var disk unix.Statfs_t
		if err := unix.Statfs(dir, &disk); err != nil {
			return HostState{}, err
		}
		meminfo, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			return HostState{}, err
		}
		return HostState{
			DiskFree:    int64(disk.Bavail) * disk.Bsize,
			DiskTotal:   int64(disk.Blocks) * disk.Bsize,
			MemoryFree:  meminfoBytes(meminfo, "MemAvailable:"),
			MemoryTotal: meminfoBytes(meminfo, "MemTotal:"),
		}, nil
	}
}

// meminfoBytes finds one line of /proc/meminfo, in bytes; 0 when it is absent.
func meminfoBytes(meminfo []byte, name string) int64 {
	lines := bufio.NewScanner(bytes.NewReader(meminfo))
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) >= 2 && string(fields[0]) == name {
			kib, _ := strconv.ParseInt(string(fields[1]), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// A queue lets a few cold starts run at a time. The Tenants that wait take
// turns, so that one with a thousand requests delays another's first by one
// start only; refills of Pools come after everybody.
type queue struct {
	maxWaiting int

	mu       sync.Mutex
	free     int // slots
	slots    int
	tenants  []sandbox.TenantID // that wait, in the order of their turns
	waiting  map[sandbox.TenantID][]chan struct{}
	waiters  int
	refills  []chan struct{}
	duration time.Duration // of a start, a moving average
}

func newQueue(slots, maxWaiting int) *queue {
	return &queue{
		maxWaiting: maxWaiting, free: slots, slots: slots,
		waiting: map[sandbox.TenantID][]chan struct{}{}, duration: 100 * time.Millisecond,
	}
}

// enter waits for a slot on behalf of tenant. The error is ctx's, or Exhausted
// when too many wait.
func (q *queue) enter(ctx context.Context, tenant sandbox.TenantID) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	if q.waiters >= q.maxWaiting {
		err := exhausted("%d sandboxes wait to be started", q.waiters)
		err.RetryAfter = max(retryAfter, (q.duration * time.Duration(q.waiters) / time.Duration(q.slots)).Round(time.Second))
		q.mu.Unlock()
		return err
	}
	turn := make(chan struct{})
	if len(q.waiting[tenant]) == 0 {
		q.tenants = append(q.tenants, tenant)
	}
	q.waiting[tenant] = append(q.waiting[tenant], turn)
	q.waiters++
	q.mu.Unlock()
	return q.await(ctx, turn)
}

// enterLast waits for a slot that nobody else wants.
func (q *queue) enterLast(ctx context.Context) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	q.refills = append(q.refills, turn)
	q.mu.Unlock()
	return q.await(ctx, turn)
}

// await waits until turn is closed, which hands over a slot.
func (q *queue) await(ctx context.Context, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-turn: // it came at the same time: pass it on
		q.pass()
	default:
		q.drop(turn)
	}
	return ctx.Err()
}

// leave gives the slot back; took is how long it was held.
func (q *queue) leave(took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.duration += (took - q.duration) / 8
	q.pass()
}

// pass hands a slot to whoever is next.
func (q *queue) pass() {
	switch {
	case len(q.tenants) > 0:
		tenant := q.tenants[0]
		turns := q.waiting[tenant]
		q.tenants = q.tenants[1:]
		if len(turns) > 1 {
			q.waiting[tenant] = turns[1:]
			q.tenants = append(q.tenants, tenant)
		} else {
			delete(q.waiting, tenant)
		}
		q.waiters--
		close(turns[0])
	case len(q.refills) > 0:
		turn := q.refills[0]
		q.refills = q.refills[1:]
		close(turn)
	default:
		q.free++
	}
}

// drop removes a turn that nobody waits for any more.
func (q *queue) drop(turn chan struct{}) {
	for i, r := range q.refills {
		if r == turn {
			q.refills = append(q.refills[:i:i], q.refills[i+1:]...)
			return
		}
	}
	for tenant, turns := range q.waiting {
		for i, r := range turns {
			if r != turn {
				continue
			}
			q.waiters--
			if len(turns) > 1 {
				q.waiting[tenant] = append(turns[:i:i], turns[i+1:]...)
				return
			}
			delete(q.waiting, tenant)
			for k, name := range q.tenants {
				if name == tenant {
					q.tenants = append(q.tenants[:k:k], q.tenants[k+1:]...)
					break
				}
			}
			return
		}
	}
}
