package sandbox

import "fmt"

// Shape is what is fixed when a Boot starts. A Pool is of one Template and one
// Shape.
type Shape struct {
	CPUs        float64 // share of cores, 1 is one core's time; > 0
	MemoryBytes int64   // what Processes and the Guest may use together
	DiskBytes   int64   // quota of the writable layer
	Pids        int64   // Processes and threads of the user
}

// VisibleCPUs is how many CPUs the guest sees: at least two, because programs
// that see one switch off locking that they then need.
func (s Shape) VisibleCPUs() int {
	n := int(s.CPUs)
	if float64(n) < s.CPUs {
		n++
	}
	return max(n, 2)
}

// DefaultShape is 1 CPU, 512 MiB of memory, 4 GiB of disk and 512 pids.
func DefaultShape() Shape {
	return Shape{CPUs: 1, MemoryBytes: 512 << 20, DiskBytes: 4 << 30, Pids: 512}
}

// Bounds of a Shape. The lower ones are what the Guest and an interpreter need
// to start at all.
const (
	minCPUs, maxCPUs     = 0.1, 64
	minMemory, maxMemory = 128 << 20, 256 << 30
	minDisk, maxDisk     = 64 << 20, 1 << 40
	minPids, maxPids     = 32, 32768
)

// Check returns Invalid, naming the field and its bounds, when s is not a Shape
// that an Engine can start.
func (s Shape) Check() error {
	switch {
	case !(s.CPUs >= minCPUs && s.CPUs <= maxCPUs):
		return Errorf(Invalid, "cpus must be between %g and %g, not %g", float64(minCPUs), float64(maxCPUs), s.CPUs)
	case s.MemoryBytes < minMemory || s.MemoryBytes > maxMemory:
		return Errorf(Invalid, "memory_mb must be between %d and %d, not %d", minMemory>>20, maxMemory>>20, s.MemoryBytes>>20)
	case s.DiskBytes < minDisk || s.DiskBytes > maxDisk:
		return Errorf(Invalid, "disk_mb must be between %d and %d, not %d", minDisk>>20, int64(maxDisk)>>20, s.DiskBytes>>20)
	case s.Pids < minPids || s.Pids > maxPids:
		return Errorf(Invalid, "pids must be between %d and %d, not %d", minPids, maxPids, s.Pids)
	}
	return nil
}

func (s Shape) String() string {
	return fmt.Sprintf("%gcpu-%dm-%dm-%dp", s.CPUs, s.MemoryBytes>>20, s.DiskBytes>>20, s.Pids)
}
