package sandbox_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

func TestNewCPUFeatures(t *testing.T) {
	for _, tt := range []struct {
		names []string
		want  sandbox.CPUFeatures
	}{
		{nil, ""},
		{[]string{"sse"}, "sse"},
		{[]string{"sse2", "avx", "sse2", "sse"}, "avx sse sse2"},
	} {
		if got := sandbox.NewCPUFeatures(tt.names...); got != tt.want {
			t.Errorf("of %q: %q, want %q", tt.names, got, tt.want)
		}
	}
}

func TestCPUFeaturesCheck(t *testing.T) {
	for _, good := range []sandbox.CPUFeatures{"", "avx", "3dnow avx512_vnni cache-line-64 sse4_1"} {
		if err := good.Check(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	long := sandbox.CPUFeatures(strings.Repeat("a", 41))
	var many []string
	for i := range 2000 {
		many = append(many, fmt.Sprintf("f%04d", i))
	}
	for _, bad := range []sandbox.CPUFeatures{
		"AVX", "avx\n", "avx  sse", " avx", "sse avx", "avx avx", "avx,sse", "-avx", long, sandbox.NewCPUFeatures(many...),
	} {
		if err := bad.Check(); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%.50q: %v, want invalid", bad, err)
		}
	}
}

func TestCPUFeaturesLacks(t *testing.T) {
	for _, tt := range []struct {
		has, needs sandbox.CPUFeatures
		want       []string
	}{
		{"", "", nil},
		{"avx", "", nil},
		{"", "avx", nil}, // a host that does not report its features
		{"avx sse", "avx", nil},
		{"avx sse", "avx sse", nil},
		{"avx sse", "avx2 sse", []string{"avx2"}}, // no prefix counts
		{"avx512f", "avx avx512bw avx512f", []string{"avx", "avx512bw"}},
	} {
		if got := tt.has.Lacks(tt.needs); !slices.Equal(got, tt.want) {
			t.Errorf("%q for %q lacks %q, want %q", tt.has, tt.needs, got, tt.want)
		}
	}
}

func TestCPUFeaturesAdmit(t *testing.T) {
	if err := sandbox.CPUFeatures("avx sse").Admit("sse", "node-2"); err != nil {
		t.Error(err)
	}
	err := sandbox.CPUFeatures("sse").Admit("avx512bw avx512f sse", "node-2")
	if !errors.Is(err, sandbox.Conflict) || !errors.Is(err, sandbox.ErrCPU) {
		t.Errorf("%v, want a conflict about the CPU", err)
	}
	var e *sandbox.Error
	if want := "this state needs CPU features that node-2 lacks: avx512bw, avx512f"; !errors.As(err, &e) || e.Detail != want {
		t.Errorf("%v, want %q", err, want)
	}
	var many []string
	for i := range 44 {
		many = append(many, fmt.Sprintf("f%02d", i))
	}
	err = sandbox.CPUFeatures("sse").Admit(sandbox.NewCPUFeatures(many...), "node-2")
	if text := err.Error(); !strings.Contains(text, "f00, f01") || !strings.Contains(text, "f11 and 32 more") || strings.Contains(text, "f12") {
		t.Error(text)
	}
}

func TestCPULimit(t *testing.T) {
	const (
		host  = sandbox.CPUFeatures("apic avx avx2 avx512f cache-line-64 clflush cmov cx16 cx8 de fpu fxsr lahf_lm lm mca mce mmx msr mtrr nx pae pat pge pni popcnt pse pse36 sep sse sse2 sse4_1 sse4_2 ssse3 syscall tsc")
		known = sandbox.CPUFeatures("abm apic avx avx2 avx512f bmi1 bmi2 clflush cmov cx16 cx8 de f16c fma fpu fxsr lahf_lm lm mca mce mmx movbe msr mtrr nx osxsave pae pat pge pni popcnt pse pse36 sep sse sse2 sse4_1 sse4_2 ssse3 syscall tsc xsave")
		v2    = "apic cache-line-64 clflush cmov cx16 cx8 de fpu fxsr lahf_lm lm mca mce mmx msr mtrr nx pae pat pge pni popcnt pse pse36 sep sse sse2 sse4_1 sse4_2 ssse3 syscall tsc"
	)
	for _, tt := range []struct {
		text string
		want sandbox.CPUFeatures
		err  string
	}{
		{"x86-64-v2", v2, ""},
		{"x86-64-v2, avx", sandbox.NewCPUFeatures(append(sandbox.CPUFeatures(v2).Names(), "avx")...), ""},
		{"sse,sse2,-sse2", "cache-line-64 sse", ""},
		{"-avx512f", sandbox.CPUFeatures(strings.Replace(string(host), " avx512f", "", 1)), ""},
		{"-x86-64-v2", "avx avx2 avx512f cache-line-64", ""},
		{"x86-64-v3", "", "this host lacks the CPU features abm, bmi1, bmi2"},
		{"avx,-avx512ff", "", "does not know the CPU features avx512ff"},
		{"avx,ffma", "", "does not know the CPU features ffma"},
		{"cache-line-64", "", "does not know the CPU features cache-line-64"},
		{"x86-64-v5", "", "no level"},
		{"x86-64", "", "no level"},
		{"avx,", "", "no CPU feature"},
		{"--avx", "", "no CPU feature"},
		{"AVX", "", "no CPU feature"},
		{"avx sse", "", "no CPU feature"},
	} {
		limit, err := sandbox.ParseCPULimit(tt.text)
		var got sandbox.CPUFeatures
		if err == nil {
			got, err = limit.Of(host, known)
		}
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q: %q, %v, want %q, %q", tt.text, got, err, tt.want, tt.err)
		}
	}
	if got, err := (sandbox.CPULimit{}).Of(host, known); err != nil || got != host {
		t.Errorf("no limit: %q, %v", got, err)
	}
}
