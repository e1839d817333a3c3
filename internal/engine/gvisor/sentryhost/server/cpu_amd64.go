package server

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"gvisor.dev/gvisor/pkg/cpuid"
)

// cacheLine begins the name of a feature that stands for the size of a cache line, in
// bytes. gVisor restores memory only on a host with the same size.
const cacheLine = "cache-line-"

// archCPU returns the properties that gVisor compares in addition to features.
func archCPU(host cpuid.FeatureSet) []string {
	return []string{cacheLine + strconv.Itoa(int(host.CacheLine()))}
}

// trapsCPUID reports whether the kernel can make the instruction CPUID fault, so that the
// sentry answers it. Intel's CPUs do since Ivy Bridge; a hypervisor may not pass that on.
func trapsCPUID() bool {
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		if flags, is := strings.CutPrefix(line, "flags"); is {
			return slices.Contains(strings.Fields(flags), "cpuid_fault")
		}
	}
	return false
}
