package server

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"gvisor.dev/gvisor/pkg/cpuid"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// cacheLine begins the name of a feature that stands for the size of a cache line, in
// bytes. gVisor restores memory only on a host with the same size.
const cacheLine = "cache-line-"

// archCPU returns names for two properties that are no features of the CPU: the size of a
// cache line, which gVisor compares, and the areas of XSAVE that are large enough.
func archCPU(host cpuid.FeatureSet) []string {
	names := []string{cacheLine + strconv.Itoa(int(host.CacheLine()))}
	for _, area := range xsaveAreas {
		if host.ValidXCR0Mask()&area.larger == 0 {
			names = append(names, sentryhost.XSaveArea+strconv.Itoa(area.bytes))
		}
	}
	return names
}

// xsaveAreas are the sizes of the area in which XSAVE saves the vector registers that
// compilers use: of SSE, AVX and AVX-512. larger are the parts of the state that need more.
var xsaveAreas = []struct {
	bytes  int
	larger uint64
}{
	{576, avx | avx512},
	{832, avx512},
	{2688, 0},
}

const (
	avx    = cpuid.XSAVEFeatureAVX
	avx512 = cpuid.XSAVEFeatureAVX512op | cpuid.XSAVEFeatureAVX512zmm0 | cpuid.XSAVEFeatureAVX512zmm16
)

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
