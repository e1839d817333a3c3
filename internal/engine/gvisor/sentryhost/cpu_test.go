package sentryhost

import (
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Only processes that save registers with XSAVE need a CPU on which it writes no more.
func TestNeededCPU(t *testing.T) {
	for _, tt := range []struct{ seen, want sandbox.CPUFeatures }{
		{"", ""},
		{"avx cache-line-64 xsave xsave-area-2688 xsave-area-832", "avx cache-line-64 xsave xsave-area-2688 xsave-area-832"},
		{"avx cache-line-64 xsave xsave-area-2688 xsave-area-832 xsavec", "avx cache-line-64 xsave xsavec"},
		{"cache-line-64 sse xsave-area-2688 xsave-area-576 xsave-area-832", "cache-line-64 sse"}, // FXSAVE
	} {
		if got := NeededCPU(tt.seen); got != tt.want {
			t.Errorf("of %q: %q, want %q", tt.seen, got, tt.want)
		}
	}
}
