package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// CPUFeatures is a set of CPU features: their names, sorted, with a space between. The
// Engine defines the names; gVisor uses the names in /proc/cpuinfo. Empty: the features
// are not known, or none is needed.
type CPUFeatures string

// maxCPUFeatures bounds the length of CPUFeatures, in bytes: gVisor knows some 150 names.
const maxCPUFeatures = 8 << 10

// ErrCPU is the Cause of a Conflict about a saved state that needs CPU features which a
// host lacks.
var ErrCPU = errors.New("CPU features are missing")

// NewCPUFeatures returns the set of names.
func NewCPUFeatures(names ...string) CPUFeatures {
	names = slices.Sorted(slices.Values(names))
	return CPUFeatures(strings.Join(slices.Compact(names), " "))
}

// Names returns the names, sorted.
func (f CPUFeatures) Names() []string { return strings.Fields(string(f)) }

var cpuFeaturesPattern = lazily(`^([a-z0-9][a-z0-9._-]{0,39}( [a-z0-9][a-z0-9._-]{0,39})*)?$`)

// Check returns Invalid for a set that no host has reported.
func (f CPUFeatures) Check() error {
	if len(f) > maxCPUFeatures || !cpuFeaturesPattern.MatchString(string(f)) || NewCPUFeatures(f.Names()...) != f {
		return Errorf(Invalid, "%.80q are not CPU features: names of [a-z0-9._-], sorted, with a space between, of at most %d bytes together", string(f), maxCPUFeatures)
	}
	return nil
}

// Lacks returns the features of needs that f does not have. If one of the two is not
// known, it returns none.
func (f CPUFeatures) Lacks(needs CPUFeatures) (missing []string) {
	if f == "" {
		return nil
	}
	has := f.Names()
	for _, name := range needs.Names() {
		if _, found := slices.BinarySearch(has, name); !found {
			missing = append(missing, name)
		}
	}
	return missing
}

// Admit returns Conflict with the Cause ErrCPU if a saved state with these needs cannot
// start on a host that has f. host is the host's name for the error.
func (f CPUFeatures) Admit(needs CPUFeatures, host string) error {
	missing := f.Lacks(needs)
	if len(missing) == 0 {
		return nil
	}
	return Errorf(Conflict, "this state needs CPU features that %s lacks: %s", host, ListCPUFeatures(missing)).WithCause(ErrCPU)
}

// shownCPUFeatures is how many features an error lists. Hosts of two kinds differ in dozens.
const shownCPUFeatures = 12

// ListCPUFeatures lists names for an error.
func ListCPUFeatures(names []string) string {
	if more := len(names) - shownCPUFeatures; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shownCPUFeatures], ", "), more)
	}
	return strings.Join(names, ", ")
}
