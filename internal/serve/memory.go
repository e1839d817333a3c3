package serve

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/cgroup"
)

const (
	// 1/memoryShare of the memory of this machine, or of its control group's limit, is
	// the soft limit beyond which the garbage collector works harder: the rest is for
	// Sandboxes.
	memoryShare = 4
	// leastMemory is the lowest soft limit, in bytes.
	leastMemory = 256 << 20
	// returnEvery is how often a process that holds more than idleMemory, in bytes,
	// returns free memory: the collection costs little compared with the work that used
	// the memory.
	returnEvery = 15 * time.Second
	idleMemory  = 128 << 20
)

// boundMemory sets the soft limit of this process's memory, unless the operator has
// with GOMEMLIMIT.
func boundMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryBound(cgroup.MemoryLimit()))
	}
}

// memoryBound is the soft limit for a control group limit in bytes; 0: no limit.
func memoryBound(limit int64) int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		if total := int64(info.Totalram) * int64(info.Unit); limit == 0 || total < limit {
			limit = total
		}
	}
	return max(limit/memoryShare, leastMemory)
}

// returnMemory returns freed memory to the machine until ctx ends, soon after many large
// answers: the runtime alone takes minutes.
func returnMemory(ctx context.Context) error {
	tick := time.NewTicker(returnEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if heldMemory() > idleMemory {
			debug.FreeOSMemory()
		}
	}
}

// heldMemory is how many bytes the runtime holds of the machine's memory.
func heldMemory() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}
