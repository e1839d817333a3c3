package server

import (
	"strings"

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
