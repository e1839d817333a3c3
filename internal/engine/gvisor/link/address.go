// Package link is the network of every Boot as the rest of the node sees it: one Ethernet
// link, whose host end is in a link shard (cmd/link). It has the addresses, the
// socketpair, and the shards' protocol and client; the shard itself, which links gVisor's
// network stack, is in link/shard, link/netstack and link/policy.
//
// The host dials the guest through the link. Each connection of the guest is checked
// against its policy, and the shard dials the destination.
package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Every link has the same addresses. GatewayAddress is the host's end, and the guest's
// resolver.
var (
	GatewayAddress = netip.MustParseAddr("10.0.0.1")
	GuestAddress   = netip.MustParseAddr("10.0.0.2")
	// EventsAddress is unassigned on every network (TEST-NET-1): the guest finds E2B's
	// events address there.
	EventsAddress = netip.MustParseAddr("192.0.2.1")
	GatewayMAC    = [6]byte{0x02, 0, 0, 0, 0, 0x01}
	GuestMAC      = [6]byte{0x02, 0, 0, 0, 0, 0x02}
)

const (
	// PrefixBits is the length of the subnet of both addresses.
	PrefixBits = 24
	// MTU of the link, in bytes, the same at both ends.
	MTU = 65535
	// socketBuffer holds some tens of the longest frames each way, so that a
	// sender rarely finds it full and drops one.
	socketBuffer = 4 << 20
)

// Pair makes a link: two ends of a sequenced-packet socketpair, one frame a
// packet, that do not block. Both are the caller's to close.
func Pair() (host, guest *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socketpair: %w", err)
	}
	for _, fd := range fds {
		widen(fd)
	}
	return os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link"), nil
}

// Kept returns f's socket as a file outside the runtime's poller, for a link's end that
// is only kept: the poller would wake this process for every frame. It closes f, also on
// error.
func Kept(f *os.File) (*os.File, error) {
	defer f.Close()
	// The runtime checks the kind of a file when it is made, so the socket replaces a
	// file that the runtime does not poll.
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("keep a link: %w", err)
	}
	kept := os.NewFile(uintptr(fd), f.Name())
	raw, err := f.SyscallConn()
	if err == nil {
		var failed error
		err = raw.Control(func(n uintptr) { failed = unix.Dup3(int(n), fd, unix.O_CLOEXEC) })
		err = errors.Join(err, failed)
	}
	if err != nil {
		kept.Close()
		return nil, fmt.Errorf("keep a link: %w", err)
	}
	return kept, nil
}

// widen enlarges a socket's buffers: beyond the system's bound with CAP_NET_ADMIN, up to
// it without.
func widen(fd int) {
	for _, o := range [][2]int{{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}, {unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], socketBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], socketBuffer)
		}
	}
}

// Widen enlarges the buffers of a link's end that another process made. With
// CAP_NET_ADMIN it goes beyond the system's bound.
func Widen(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { widen(int(fd)) })
}
