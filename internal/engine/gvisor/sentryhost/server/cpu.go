package server

import (
	"strings"

	"gvisor.dev/gvisor/pkg/cpuid"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// hostCPU returns all CPU features of this host that gVisor compares when it restores
// memory, and the names of archCPU. Some features are of use only to a kernel.
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

// hideableCPU returns the features that a sentry can hide from its processes; none if they
// can ask the CPU itself.
func hideableCPU() sandbox.CPUFeatures {
	if !trapsCPUID() {
		return ""
	}
	var names []string
	for _, f := range cpuid.AllFeatures() {
		names = append(names, f.String())
	}
	return sandbox.NewCPUFeatures(names...)
}

// guestCPU returns the CPU features that a state of a Boot will need, where a Boot without
// saved memory would need fresh. Restored processes keep the features with which they
// began. So do the programs that they start, if the sentry answers CPUID; otherwise these
// use the features of this host too.
func (h *Host) guestCPU(from *origin, fresh sandbox.CPUFeatures) sandbox.CPUFeatures {
	switch {
	case !from.memory():
		return fresh
	case from.CPU == "" || h.hideable != "":
		return from.CPU
	}
	return sandbox.NewCPUFeatures(append(from.CPU.Names(), fresh.Names()...)...)
}

// annotationOf returns features in the form of gVisor's annotation.
func annotationOf(features sandbox.CPUFeatures) string {
	var names []string
	for _, name := range features.Names() {
		if _, known := cpuid.FeatureFromString(name); known {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}
