package server

import (
	"strconv"

	"gvisor.dev/gvisor/pkg/cpuid"
)

// cacheLine begins the name of a feature that stands for the size of a cache line, in
// bytes. gVisor restores memory only on a host with the same size.
const cacheLine = "cache-line-"

// archCPU returns the properties that gVisor compares in addition to features.
func archCPU(host cpuid.FeatureSet) []string {
	return []string{cacheLine + strconv.Itoa(int(host.CacheLine()))}
}
