package server

import (
	"os"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// A restored Boot keeps its features, and on a host that cannot hide any it gets those of
// the host too: programs that start there use them.
func TestGuestCPU(t *testing.T) {
	saved := func(cpu sandbox.CPUFeatures) *origin {
		return &origin{Manifest: sentryhost.Manifest{Memory: true, CPU: cpu}, files: make([]*os.File, 1)}
	}
	filesAlone := &origin{files: make([]*os.File, 1)}
	for _, tt := range []struct {
		what           string
		from           *origin
		hideable, want sandbox.CPUFeatures
	}{
		{"no state", &origin{}, "avx avx2 sse", "avx2 sse"},
		{"files", filesAlone, "", "avx2 sse"},
		{"memory, on a host that can hide features", saved("avx sse"), "avx avx2 sse", "avx sse"},
		{"memory, on one that cannot", saved("avx sse"), "", "avx avx2 sse"},
		{"memory of unknown needs", saved(""), "", ""},
	} {
		h := &Host{hideable: tt.hideable}
		if got := h.guestCPU(tt.from, "avx2 sse"); got != tt.want {
			t.Errorf("from %s: %q, want %q", tt.what, got, tt.want)
		}
	}
}
