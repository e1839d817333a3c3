// Package netstacktest simulates the guest's end of a link, for tests. It uses the link
// endpoint that sentries use, so that ours is tested against it.
package netstacktest

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
)

// Guest runs a stack on the guest's end of a link, like a sentry, and takes ownership of
// end. The stack is destroyed with the test. Its interface is number 1. It reads with
// readv: with recvmmsg, which sentries use, gVisor's endpoint reads the end of the other
// side forever and cannot be stopped.
func Guest(t testing.TB, end *os.File) *stack.Stack {
	t.Helper()
	s, err := Stack(end, fdbased.Readv, link.GuestMAC, link.GuestAddress, link.GatewayMAC, link.GatewayAddress)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Destroy()
		end.Close()
	})
	return s
}

// Stack runs a stack on gVisor's own endpoint at either end of a link. end must
// stay open until the stack is destroyed; with recvmmsg the other end too.
func Stack(end *os.File, mode fdbased.PacketDispatchMode, mac [6]byte, addr netip.Addr, otherMAC [6]byte, other netip.Addr) (*stack.Stack, error) {
	ep, err := fdbased.New(&fdbased.Options{
		FDs: []int{descriptor(end)}, MTU: link.MTU, EthernetHeader: true,
		Address: tcpip.LinkAddress(mac[:]), PacketDispatchMode: mode,
		RXChecksumOffload: true, TXChecksumOffload: true,
	})
	if err != nil {
		return nil, err
	}
	s := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			ipv4.NewProtocolWithOptions(ipv4.Options{AllowExternalLoopbackTraffic: true}), arp.NewProtocol,
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	sack := tcpip.TCPSACKEnabled(true) // like a sentry
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	if err := s.CreateNIC(1, ep); err != nil {
		return nil, errors.New(err.String())
	}
	ip := func(a netip.Addr) tcpip.Address { return tcpip.AddrFrom4(a.As4()) }
	own := tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: ip(addr), PrefixLen: link.PrefixBits},
	}
	if err := s.AddProtocolAddress(1, own, stack.AddressProperties{}); err != nil {
		return nil, errors.New(err.String())
	}
	if err := s.AddStaticNeighbor(1, ipv4.ProtocolNumber, ip(other), tcpip.LinkAddress(otherMAC[:])); err != nil {
		return nil, errors.New(err.String())
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, Gateway: ip(other), NIC: 1}})
	return s, nil
}

// descriptor returns f's number without making it blocking.
func descriptor(f *os.File) (fd int) {
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(n uintptr) { fd = int(n) })
	}
	if err != nil {
		return -1
	}
	return fd
}
