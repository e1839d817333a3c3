package link

import "net/netip"

// Every link looks the same: the guest at GuestAddress, the host's end at
// GatewayAddress, which is also the guest's resolver.
var (
	GatewayAddress = netip.MustParseAddr("10.0.0.1")
	GuestAddress   = netip.MustParseAddr("10.0.0.2")
	GatewayMAC     = [6]byte{0x02, 0, 0, 0, 0, 0x01}
	GuestMAC       = [6]byte{0x02, 0, 0, 0, 0, 0x02}
)

const (
	// PrefixBits is the length of the subnet of both addresses.
	PrefixBits = 24
	// MTU of the link, in bytes, the same at both ends.
	MTU = 65535
)
