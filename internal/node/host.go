package node

import (
	"bufio"
	"bytes"
	"context"
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

	"github.com/cloud-sandbox/cloud-sandbox"
)

// neededMemory is how much memory of a host must be free for a new Boot, in bytes.
func neededMemory(s sandbox.HostState) int64 {
	return max(minMemory, int64(minMemoryShare*float64(s.MemoryTotal)))
}

const (
	// newDiskShare of the disk must be free for a Boot of a new Sandbox, and
	// againDiskShare for one that resumes: its owner must not lose it because others
	// fill the disk. On a large disk newDiskFree and againDiskFree suffice, in bytes.
	newDiskShare, againDiskShare = 0.15, 0.05
	newDiskFree, againDiskFree   = 10 << 30, 4 << 30
	// minMemoryShare and minMemory of the memory must be free for a new Boot, whichever
	// is more: the host's own reserve.
	minMemoryShare = 0.03
	minMemory      = 256 << 20
	// gaugeAge is how old a reading of the host may be.
	gaugeAge = 100 * time.Millisecond
)

// hostGauge reads the state of the host and caches it for gaugeAge.
type hostGauge struct {
	read func() (sandbox.HostState, error)

	stale atomic.Bool // resources were freed since the last reading

	mu    sync.Mutex
	state sandbox.HostState
	err   error
	at    time.Time
}

// now returns a reading that is at most gaugeAge old.
func (h *hostGauge) now() (sandbox.HostState, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.stale.Swap(false) || h.at.IsZero() || now.Sub(h.at) > gaugeAge {
		h.state, h.err = h.read()
		h.at = now
	}
	if h.err != nil {
		return sandbox.HostState{}, fmt.Errorf("read the state of the host: %w", h.err)
	}
	return h.state, nil
}

// Load is the host's state and its queue.
type Load struct {
	sandbox.HostState
	Waiting int // requests for a start or restore
}

// Load returns the present Load. After an error only Waiting is known.
func (n *Node) Load() (Load, error) {
	state, err := n.host.now()
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	return Load{state, n.queue.waiters}, err
}

// leavePatience is how long a start waits on a full host for Boots that are being
// stopped, which mostly takes 0.1 s. Other starts wait behind it, and another Node may
// have room.
const leavePatience = 500 * time.Millisecond

// room returns Exhausted when no Boot should start, as admit does. While Boots are being
// stopped it waits for their memory and disk: a pause, for one, returns before its Boot
// is gone.
func (n *Node) room(ctx context.Context, again bool) error {
	patience := time.NewTimer(leavePatience)
	defer patience.Stop()
	for {
		gone, going := n.going() // before the reading, so that a Boot stopped meanwhile is waited for
		err := n.host.admit(again)
		if !errors.Is(err, sandbox.Exhausted) || !going {
			return err
		}
		select {
		case <-gone:
		case <-patience.C:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// going reports whether any Boot is about to free its memory and disk: it is being
// stopped, or was saved for a pause. gone is closed when the next Boot is gone.
func (n *Node) going() (gone <-chan struct{}, some bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.boots {
		if b.state == stopping || b.paused {
			return n.gone, true
		}
	}
	return n.gone, false
}

// admit returns Exhausted, with the resource that is short, when no Boot should start;
// again: its Sandbox existed before.
func (h *hostGauge) admit(again bool) error {
	s, err := h.now()
	if err != nil {
		return err
	}
	who, need := "new sandboxes need", neededDisk(s.DiskTotal, newDiskShare, newDiskFree)
	if again {
		who, need = "one that resumes needs", neededDisk(s.DiskTotal, againDiskShare, againDiskFree)
	}
	if s.DiskFree < need {
		return exhausted("the host's disk is nearly full: %d MiB free, and %s %d MiB", s.DiskFree>>20, who, need>>20)
	}
	if need = neededMemory(s); s.MemoryFree < need {
		return exhausted("the host's memory is nearly full: %d MiB free, and %s %d MiB", s.MemoryFree>>20, who, need>>20)
	}
	return nil
}

// neededDisk is how much of a disk must be free: a share of total, at most most bytes.
func neededDisk(total int64, share float64, most int64) int64 {
	return min(int64(share*float64(total)), most)
}

func exhausted(format string, args ...any) *sandbox.Error {
	err := sandbox.Errorf(sandbox.Exhausted, format, args...)
	err.RetryAfter = retryAfter
	return err
}

// cgroupRoot is where control groups are mounted. In a container it shows the container's
// group.
const cgroupRoot = "/sys/fs/cgroup"

// hostStateOf reads the disk of dir and the memory of this machine, or of this
// container if that has less.
func hostStateOf(dir string) func() (sandbox.HostState, error) {
	return func() (sandbox.HostState, error) {
		var disk unix.Statfs_t
		if err := unix.Statfs(dir, &disk); err != nil {
			return sandbox.HostState{}, err
		}
		meminfo, err := os.ReadFile("/proc/meminfo")
		if err != nil {
			return sandbox.HostState{}, err
		}
		s := sandbox.HostState{
			DiskFree:    int64(disk.Bavail) * disk.Bsize,
			DiskTotal:   int64(disk.Blocks) * disk.Bsize,
			MemoryFree:  numberIn(meminfo, "MemAvailable:") << 10,
			MemoryTotal: numberIn(meminfo, "MemTotal:") << 10,
		}
		if limit, free, ok := cgroupMemory(cgroupRoot); ok && limit < s.MemoryTotal {
			s.MemoryTotal, s.MemoryFree = limit, min(s.MemoryFree, free)
		}
		return s, nil
	}
}

// cgroupMemory returns the limit of the control group at root, v2 or v1, and its free
// memory including the inactive page cache, in bytes; ok is false without a limit.
func cgroupMemory(root string) (limit, free int64, ok bool) {
	for _, names := range [][4]string{
		{"memory.max", "memory.current", "memory.stat", "inactive_file"},
		{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"},
	} {
		limit, err := readNumber(filepath.Join(root, names[0]))
		if err != nil {
			continue // no limit, "max", or no such file
		}
		used, err := readNumber(filepath.Join(root, names[1]))
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(root, names[2]))
		if err != nil {
			continue
		}
		cache := min(numberIn(stat, names[3]), used)
		return limit, max(0, limit-used+cache), true
	}
	return 0, 0, false
}

func readNumber(file string) (int64, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

// numberIn returns the number after name at the start of a line; 0 if absent.
func numberIn(text []byte, name string) int64 {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) >= 2 && string(fields[0]) == name {
			n, _ := strconv.ParseInt(string(fields[1]), 10, 64)
			return n
		}
	}
	return 0
}
