//go:build linux

// Command sentry is the sentry of every gVisor sandbox and, as "sentry host",
// the process that starts and watches them. It is the only binary that links
// runsc, and it is small because every sentry maps it.
package main

import (
	"fmt"
	"os"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/gvisorbinaries"

	_ "github.com/cloud-sandbox/cloud-sandbox/cmd/sentry/early"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "host" {
		os.Exit(host(os.Args[2:]))
	}
	if err := closeStray(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "sentry:", err)
		os.Exit(1)
	}
	tuneHeap()
	freeLoopback()
	cli.Run(&gvisorbinaries.GvisorSentry, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "internal",
		new(sentrycmd.Umount): "internal", // if package early did not do it
	}, nil)
}
