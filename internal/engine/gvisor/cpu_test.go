package gvisor

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// limited opens the engine of a stage with a limit of CPU features; nil: this host cannot
// hide any.
func limited(t *testing.T, s *stage, limit string) *Engine {
	t.Helper()
	l, err := sandbox.ParseCPULimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(t.Context(), Config{Socket: s.socket, CPU: l, Spares: 2, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil && strings.Contains(err.Error(), "cpuid_fault") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endAll(t, e) })
	return e
}

// Programs see only the features of a limit: in /proc/cpuinfo, and by the instruction CPUID,
// which the dynamic linker asks. A state needs only these, and keeps them through a restore
// by an engine without a limit.
func TestCPULimit(t *testing.T) {
	s := newStage(t)
	all := s.open(t)
	f, err := all.Probe(t.Context())
	if err := errors.Join(err, all.Close()); err != nil {
		t.Fatal(err)
	}
	if missing := f.CPU.Lacks("avx2 sse4_2"); len(missing) > 0 {
		t.Skipf("this host lacks %v", missing)
	}
	e := limited(t, s, "x86-64-v2")
	now, err := e.Probe(t.Context())
	if err != nil || now.CPU != f.CPU || !slices.Contains(now.GuestCPU.Names(), "sse4_2") || slices.Contains(now.GuestCPU.Names(), "avx2") {
		t.Fatalf("Probe = %+v, %v", now, err)
	}
	looks := func(e *Engine, id string) {
		t.Helper()
		const look = `/lib64/ld-linux-x86-64.so.2 --help | grep -o "x86-64-v[23] (supported"; grep -om1 avx2 /proc/cpuinfo; true`
		if got := strings.TrimSpace(sh(t, e, id, look)); got != "x86-64-v2 (supported" {
			t.Errorf("programs see %q", got)
		}
	}
	spec := sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}
	for range 2 { // the second may be in a spare
		id := sandbox.NewBootID()
		if err := e.Start(t.Context(), id, spec); err != nil {
			t.Fatal(err)
		}
		bind(t, e, id)
		looks(e, id)
		from := sandbox.NewSnapshotID()
		saved, err := e.Save(t.Context(), id, from, true)
		if err != nil || saved.CPU != now.GuestCPU {
			t.Fatalf("saved as %+v, %v, want %q", saved, err, now.GuestCPU)
		}
		if err := e.Stop(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		whole := s.open(t)
		restored := sandbox.NewBootID()
		if err := whole.Start(t.Context(), restored, sandbox.BootSpec{Image: s.image, Shape: spec.Shape, From: from}); err != nil {
			t.Fatal(err)
		}
		bind(t, whole, restored)
		if err := whole.Thaw(t.Context(), restored); err != nil {
			t.Fatal(err)
		}
		looks(whole, restored)
		if again, err := whole.Save(t.Context(), restored, sandbox.NewSnapshotID(), true); err != nil || again.CPU != now.GuestCPU {
			t.Errorf("saved again as %+v, %v", again, err)
		}
		if err := whole.Stop(t.Context(), restored, 0); err != nil {
			t.Error(err)
		}
		if err := whole.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := Open(t.Context(), Config{Socket: s.socket, CPU: sandbox.CPULimit{Only: "imaginary"}}); err == nil || !strings.Contains(err.Error(), "does not know the CPU features imaginary") {
		t.Errorf("Open with an unknown feature = %v", err)
	}
}
