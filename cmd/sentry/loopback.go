//go:build linux

package main

import (
	"net"

	"gvisor.dev/gvisor/runsc/boot"
)

// freeLoopback makes new network namespaces inside a Sandbox start without 127.0.0.1 on
// their loopback interface, as in Linux. bubblewrap and similar tools add that address
// and fail if it exists. gVisor starts the interface with all addresses, and, unlike
// Linux, does not add 127.0.0.1 when a program sets the interface up. So it gets another
// address of 127.0.0.0/8, and all of them answer (RFC 1122, 3.2.1.3), 127.0.0.1 included.
func freeLoopback() {
	boot.DefaultLoopbackLink.Addresses[0].Address = net.IPv4(127, 255, 255, 254).To4()
}
