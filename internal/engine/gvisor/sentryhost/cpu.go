package sentryhost

import (
	"slices"
	"strings"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// XSaveArea begins the names of features that say how much the instruction XSAVE writes: a
// host with xsave-area-832 writes at most 832 bytes, for the vector registers that
// compilers use. A dynamic linker saves these registers in memory on the stack, with the
// size that the CPU reported when the program started. Restored on a CPU with more
// registers, it would overwrite the stack.
const XSaveArea = "xsave-area-"

// NeededCPU returns the features that a saved state needs whose processes saw these of
// their host. Processes with XSAVEC use it instead of XSAVE: it writes only registers in
// use, and programs use none that their first CPU lacked.
func NeededCPU(seen sandbox.CPUFeatures) sandbox.CPUFeatures {
	names := seen.Names()
	if slices.Contains(names, "xsave") && !slices.Contains(names, "xsavec") {
		return seen
	}
	return sandbox.NewCPUFeatures(slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, XSaveArea) })...)
}
