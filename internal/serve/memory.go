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
	// memoryShare is the part of the memory of this machine, or of what its control
	// group may have, beyond which the garbage collector works harder: the rest is for
	// Sandboxes.
	memoryShare = 4
	// leastMemory is the least of it, in bytes.
	leastMemory = 256 << 20
	// returnEvery is how often memory that is free is given back by a process that
	// holds more than idleMemory, in bytes: the collection that this needs costs next to
	// nothing beside what made it so large.
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

// memoryBound is the soft limit where control groups allow limit bytes; 0: as many as
// there are.
func memoryBound(limit int64) int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		if total := int64(info.Totalram) * int64(info.Unit); limit == 0 || total < limit {
			limit = total
		}
	}
	return max(limit/memoryShare, leastMemory)
}

// returnMemory gives back to the machine what many large answers took, soon after
// they are over, until ctx ends: by itself an idle process does so after minutes.
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

// heldMemory is how many bytes the runtime has taken from the machine and not given
// back.
func heldMemory() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}
