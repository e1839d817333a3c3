//go:build linux

package main

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter"
	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

// A sentry installs the seccomp filter that was compiled with it. It must be, word for
// word, what the sentry would compile itself.
func TestFilterIsPrecompiled(t *testing.T) {
	if len(filter.ListPrecompiled()) == 0 {
		t.Skip("built without the edits of gVisor: run it with $(scripts/gvisor.sh)")
	}
	systrap, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range systrap.PrecompiledSeccompInfo() {
		opt := filter.Options{Platform: info, ControllerFD: 7}
		precompiled, ok := filter.GetPrecompiled(opt.ConfigKey())
		if !ok {
			t.Errorf("no filter for %s", opt.ConfigKey())
			continue
		}
		got, err := precompiled.RenderInstructions(opt.Vars())
		if err != nil {
			t.Fatal(err)
		}
		allowed, denied := config.Rules(opt)
		program := &seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: denied}, {Rules: allowed, Action: seccomp.Allow}},
			Options:  config.SeccompOptions(opt),
		}
		want, _, err := program.Build()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the filter for %s is not what a sentry would compile", opt.ConfigKey())
		}
	}
}
