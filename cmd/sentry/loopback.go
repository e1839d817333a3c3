//go:build linux

package main

import (
	"net"

	"gvisor.dev/gvisor/runsc/boot"
)

// freeLoopback has the network namespaces that programs make, each with a loopback
// interface of its own, begin without 127.0.0.1. bubblewrap and its like add that
// address, and fail where it is there: in Linux the interface of a new namespace has
// none. gVisor starts the interface with all addresses, and does not add 127.0.0.1
// when a program sets the interface up, as Linux does. So it gets another address of
// 127.0.0.0/8, whereby all of them answer (RFC 1122, 3.2.1.3), 127.0.0.1 included.
func freeLoopback() {
	boot.DefaultLoopbackLink.Addresses[0].Address = net.IPv4(127, 255, 255, 254).To4()
}
