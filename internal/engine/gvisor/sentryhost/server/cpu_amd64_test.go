package server

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/cpuid"
)

// A host has each area that is large enough for all the vector registers that it saves.
func TestXSaveAreas(t *testing.T) {
	for _, tt := range []struct {
		what  string
		xsave bool
		mask  uint32
		want  []string
	}{
		{"no XSAVE", false, 0, []string{"cache-line-64", "xsave-area-576", "xsave-area-832", "xsave-area-2688"}},
		{"SSE", true, 0x3, []string{"cache-line-64", "xsave-area-576", "xsave-area-832", "xsave-area-2688"}},
		{"AVX", true, 0x7, []string{"cache-line-64", "xsave-area-832", "xsave-area-2688"}},
		{"AVX and protection keys", true, 0x207, []string{"cache-line-64", "xsave-area-832", "xsave-area-2688"}},
		{"AVX-512", true, 0xe7, []string{"cache-line-64", "xsave-area-2688"}},
		{"AMX", true, 0x602e7, []string{"cache-line-64", "xsave-area-2688"}},
	} {
		s := cpuid.Static{{Eax: 1}: {Ebx: 8 << 8}, {Eax: 0xd}: {Eax: tt.mask}}
		if tt.xsave {
			s.Add(cpuid.X86FeatureXSAVE)
		}
		if got := archCPU(s.ToFeatureSet()); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
}
