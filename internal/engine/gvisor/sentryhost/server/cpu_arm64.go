package server

import "gvisor.dev/gvisor/pkg/cpuid"

// archCPU returns the properties that gVisor compares in addition to features.
func archCPU(cpuid.FeatureSet) []string { return nil }

// trapsCPUID is false: gVisor hides no features on arm64.
func trapsCPUID() bool { return false }
