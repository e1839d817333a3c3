//go:build linux

package main

import (
	"net"
	"testing"

	"gvisor.dev/gvisor/runsc/boot"
)

// gVisor still gives new network namespaces 127.0.0.1 first, which freeLoopback
// replaces; where this fails, see whether freeLoopback is still needed.
func TestLoopbackOfNewNamespaces(t *testing.T) {
	before := boot.DefaultLoopbackLink.Addresses
	boot.DefaultLoopbackLink.Addresses = append([]boot.IPWithPrefix(nil), before...)
	t.Cleanup(func() { boot.DefaultLoopbackLink.Addresses = before })
	first := &boot.DefaultLoopbackLink.Addresses[0]
	if !first.Address.Equal(net.IPv4(127, 0, 0, 1)) || first.PrefixLen != 8 {
		t.Errorf("gVisor begins with %v/%d", first.Address, first.PrefixLen)
	}
	freeLoopback()
	if first.Address.Equal(net.IPv4(127, 0, 0, 1)) || !first.Address.IsLoopback() || len(first.Address) != net.IPv4len {
		t.Errorf("it is %v afterwards", first.Address)
	}
}
