//go:build linux

// Command precompile prints gVisor's file of precompiled seccomp filters with the filters
// of our sentries added. The module has none, so a sentry would compile its filter at
// each start. gVisor's own build replaces that file the same way. scripts/gvisor.sh
// installs the output; the argument is the original file:
//
//	go run ./cmd/sentry/precompile filter_precompiled.go
package main

import (
	"fmt"
	"os"
	"strings"

	"gvisor.dev/gvisor/runsc/boot/filter/config"
)

// ours lists the options in the key of the filter that our sentries install: see
// sentryConfig of internal/engine/gvisor/sentryhost/server.
var ours = []string{
	`Platform="systrap`, "HostNetwork=false", "HostFilesystem=false", "ProfileEnable=false", "NVProxy=false", "TPUProxy=false", "RDMAProxy=false",
}

// The place in the original file where programs are registered.
const (
	empty      = "programs := make(map[string]precompiledseccomp.Program)\n"
	registered = empty + "\tregisterOurs(programs)\n"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "precompile:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want the path of gVisor's filter_precompiled.go")
	}
	original, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	if strings.Count(string(original), empty) != 1 {
		return fmt.Errorf("%s does not register programs as it did: look at gVisor's build of it", args[0])
	}
	programs, err := config.PrecompiledPrograms()
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, p := range programs {
		if isOurs(p.Name) {
			list.WriteString(p.Registration("\t", "precompiledseccomp", "programs"))
		}
	}
	if list.Len() == 0 {
		return fmt.Errorf("gVisor precompiles no filter whose key has %q", ours)
	}
	_, err = fmt.Printf("%s\n// registerOurs registers the filters of our sentries.\nfunc registerOurs(programs map[string]precompiledseccomp.Program) {\n%s}\n",
		strings.Replace(string(original), empty, registered, 1), list.String())
	return err
}

func isOurs(key string) bool {
	for _, part := range ours {
		if !strings.Contains(key, part) {
			return false
		}
	}
	return true
}
