package server

import (
	"gvisor.dev/gvisor/pkg/cpuid"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// hostCPU returns all CPU features of this host that gVisor compares when it restores
// memory. Some are of use only to a kernel.
func hostCPU() sandbox.CPUFeatures {
	cpuid.Initialize()
	host := cpuid.HostFeatureSet()
	names := archCPU(host)
	for _, f := range cpuid.AllFeatures() {
		if host.HasFeature(f) {
			names = append(names, f.String())
		}
	}
	return sandbox.NewCPUFeatures(names...)
}
