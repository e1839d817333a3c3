package sandbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Shape holds the resources that are fixed when a Boot starts. A Pool has one Template
// and one Shape.
type Shape struct {
	CPUs        float64 // share of cores, 1 is one core's time; > 0
	MemoryBytes int64   // for Processes and the Guest together
	DiskBytes   int64   // quota of the writable layer
	Pids        int64   // Processes and threads of the user
}

// Limits bounds the resources of a running Boot. It can change at run time, within the
// Shape.
type Limits struct {
	CPUs        float64 // share of cores; at most the CPUs that the guest sees
	MemoryBytes int64   // at most the Shape's
	Pids        int64   // Processes and threads of the user
	// Bandwidth bounds the traffic of all connections that it opens to the outside, in
	// bytes per second for each direction; zero: no limit.
	Bandwidth int64 `json:",omitempty"`
}

// Limits returns the default Limits of a Boot of s: the whole Shape.
func (s Shape) Limits() Limits {
	return Limits{CPUs: s.CPUs, MemoryBytes: s.MemoryBytes, Pids: s.Pids}
}

// CheckLimits returns Invalid for limits that no Boot can have, and a Conflict that says
// why for limits that a running Boot of Shape s cannot have.
func (s Shape) CheckLimits(l Limits) error {
	if err := CheckBandwidth(l.Bandwidth); err != nil {
		return err
	}
	asked := Shape{CPUs: l.CPUs, MemoryBytes: l.MemoryBytes, DiskBytes: s.DiskBytes, Pids: l.Pids}
	if err := asked.Check(); err != nil {
		return err
	}
	if n := s.VisibleCPUs(); l.CPUs > float64(n) {
		return Errorf(Conflict, "cpus may be at most %d while the sandbox runs: it sees that many since it started; a larger one must be created", n)
	}
	if l.MemoryBytes > s.MemoryBytes {
		return Errorf(Conflict, "memory_mb may be at most %d while the sandbox runs: its shape was fixed when it started; a larger one must be created", s.MemoryBytes>>20)
	}
	return nil
}

// Megabit is a megabit in bytes. Users give Limits.Bandwidth in Mbit/s.
const Megabit = 1_000_000 / 8

// Bounds of Limits.Bandwidth.
const minBandwidth, maxBandwidth = Megabit, 100_000 * Megabit

// CheckBandwidth returns Invalid when n cannot be a Limits.Bandwidth.
func CheckBandwidth(n int64) error {
	if n != 0 && (n < minBandwidth || n > maxBandwidth) {
		return Errorf(Invalid, "bandwidth_mbps must be between %d and %d, or 0 for no limit", minBandwidth/Megabit, maxBandwidth/Megabit)
	}
	return nil
}

// Covers reports whether a Boot of Shape s can serve a request for want just by setting
// Limits: disk and visible CPUs must be equal, and memory sufficient.
func (s Shape) Covers(want Shape) bool {
	return s.DiskBytes == want.DiskBytes && s.VisibleCPUs() == want.VisibleCPUs() && s.MemoryBytes >= want.MemoryBytes
}

// VisibleCPUs returns the number of CPUs that the guest sees. It is at least two, because
// programs that see one CPU switch off locking that they still need.
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

// InstanceTypes maps the names of instance types to their Shapes.
func InstanceTypes() map[string]Shape {
	shape := func(cpus float64, memoryMB, diskMB int64) Shape {
		return Shape{CPUs: cpus, MemoryBytes: memoryMB << 20, DiskBytes: diskMB << 20, Pids: DefaultShape().Pids}
	}
	return map[string]Shape{
		"lite":       shape(minCPUs, 256, 2000),
		"basic":      shape(0.25, 1024, 4000),
		"standard-1": shape(0.5, 4096, 8000),
		"standard-2": shape(1, 6144, 12000),
		"standard-3": shape(2, 8192, 16000),
		"standard-4": shape(4, 12288, 20000),
	}
}

// ShapeOfType returns the Shape of an instance type; Invalid for an unknown name.
func ShapeOfType(name string) (Shape, error) {
	types := InstanceTypes()
	s, ok := types[name]
	if !ok {
		return s, Errorf(Invalid, "no instance type %.32q: choose one of %s", name, strings.Join(slices.Sorted(maps.Keys(types)), ", "))
	}
	return s, nil
}

// Bounds of a Shape. The lower ones are the minimum for the Guest and an interpreter to
// start.
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
