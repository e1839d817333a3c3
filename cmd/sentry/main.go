package main

import (
	_ "gvisor.dev/gvisor/pkg/tcpip/stack"
	_ "gvisor.dev/gvisor/runsc/boot"
	_ "gvisor.dev/gvisor/runsc/cli"
	_ "gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	_ "gvisor.dev/gvisor/runsc/sandbox"
)

func main() {}
