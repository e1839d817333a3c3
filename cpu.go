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

// cpuLevels are the levels of the psABI of x86-64, each with the features that it adds to
// the level before. The first has in addition the features that every 64-bit CPU has.
var cpuLevels = []struct {
	name string
	adds CPUFeatures
}{
	{"x86-64-v1", "apic clflush cmov cx8 de fpu fxsr lm mca mce mmx msr mtrr nx pae pat pge pse pse36 sep sse sse2 syscall tsc"},
	{"x86-64-v2", "cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3"},
	{"x86-64-v3", "abm avx avx2 bmi1 bmi2 f16c fma movbe osxsave xsave"},
	{"x86-64-v4", "avx512bw avx512cd avx512dq avx512f avx512vl"},
}

// CPULimit limits the CPU features that new Boots see, so that their states fit other
// hosts. The zero value shows all.
type CPULimit struct {
	Only    CPUFeatures // empty: all of the host
	Without CPUFeatures
}

// ParseCPULimit reads a limit: names of features and of levels, separated by commas. A
// minus before a name excludes it.
func ParseCPULimit(text string) (CPULimit, error) {
	var only, without []string
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		name, excluded := strings.CutPrefix(item, "-")
		if name == "" || CPUFeatures(name).Check() != nil || strings.Contains(name, " ") {
			return CPULimit{}, fmt.Errorf("%.80q is no CPU feature: name features as in /proc/cpuinfo, or a level such as x86-64-v3, with commas between", item)
		}
		names, err := cpuLevel(name)
		switch {
		case err != nil:
			return CPULimit{}, err
		case excluded:
			without = append(without, names...)
		default:
			only = append(only, names...)
		}
	}
	return CPULimit{NewCPUFeatures(only...), NewCPUFeatures(without...)}, nil
}

// cpuLevel returns the features of a level, or name itself if it is a feature.
func cpuLevel(name string) (names []string, _ error) {
	if !strings.HasPrefix(name, "x86-64") {
		return []string{name}, nil
	}
	for _, level := range cpuLevels {
		names = append(names, level.adds.Names()...)
		if level.name == name {
			return names, nil
		}
	}
	return nil, fmt.Errorf("%.80q is no level: they are x86-64-v1 to x86-64-v%d", name, len(cpuLevels))
}

// Of returns the features that Boots see on a host that has the features host. known are
// the features that the Engine can hide; others stay. It returns an error for a name that
// is not known, and for a wanted feature that the host lacks.
func (l CPULimit) Of(host, known CPUFeatures) (CPUFeatures, error) {
	wanted := NewCPUFeatures(slices.DeleteFunc(l.Only.Names(), func(name string) bool { return has(l.Without, name) })...)
	for _, of := range []CPUFeatures{l.Only, l.Without} {
		if unknown := known.Lacks(of); len(unknown) > 0 {
			return "", fmt.Errorf("the engine does not know the CPU features %s", ListCPUFeatures(unknown))
		}
	}
	if missing := host.Lacks(wanted); len(missing) > 0 {
		return "", fmt.Errorf("this host lacks the CPU features %s: exclude them on all nodes", ListCPUFeatures(missing))
	}
	return NewCPUFeatures(slices.DeleteFunc(host.Names(), func(name string) bool {
		return has(known, name) && (has(l.Without, name) || l.Only != "" && !has(wanted, name))
	})...), nil
}

func has(f CPUFeatures, name string) bool { return slices.Contains(f.Names(), name) }
