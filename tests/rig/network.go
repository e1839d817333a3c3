package rig

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Network connects network namespaces, each with an address of its own, and this host.
type Network struct {
	Host net.IP // this host's address in the network

	bridge *netlink.Bridge
	hosts  int
}

// bridgePrefix is the prefix of bridge names; the ID of the process that made the bridge
// follows.
const bridgePrefix = "csb"

// NewNetwork makes a network until the test's end. It skips the test if that is not
// possible.
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Fatalf("nothing cuts a machine off the network: %v: scripts/install.sh cluster installs it", err)
	}
	removeStaleBridges()
	pid := os.Getpid()
	n := &Network{Host: net.IPv4(10, byte(100+pid/200%100), byte(pid%200), 1).To4(), hosts: 1}
	n.bridge = &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	n.bridge.Name = fmt.Sprintf("%s%d", bridgePrefix, pid)
	if err := netlink.LinkAdd(n.bridge); err != nil {
		t.Skipf("this machine makes no bridge: %v", err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(n.bridge); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(netlink.AddrAdd(n.bridge, n.address(n.Host)), netlink.LinkSetUp(n.bridge)); err != nil {
		t.Fatalf("the bridge %s: %v", n.bridge.Name, err)
	}
	return n
}

// removeStaleBridges removes the bridges of test processes that were killed.
func removeStaleBridges() {
	links, err := netlink.LinkList()
	if err != nil {
		return
	}
	for _, link := range links {
		var pid int
		if _, err := fmt.Sscanf(link.Attrs().Name, bridgePrefix+"%d", &pid); err != nil || link.Type() != "bridge" {
			continue
		}
		if unix.Kill(pid, 0) != nil {
			_ = netlink.LinkDel(link)
		}
	}
}

func (n *Network) address(ip net.IP) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}}
}

// Namespace is one machine's network.
type Namespace struct {
	IP net.IP

	handle netns.NsHandle
	cable  netlink.Link // its end on this host
}

// Add makes a namespace with the next address and a default route. It lasts until the
// test's end or the end of its last process, whichever is later.
func (n *Network) Add(t testing.TB) *Namespace {
	t.Helper()
	n.hosts++
	s := &Namespace{IP: net.IPv4(n.Host[0], n.Host[1], n.Host[2], byte(n.hosts)).To4()}
	err := elsewhere(func() (err error) {
		s.handle, err = netns.New()
		return err
	})
	if err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() { s.handle.Close() })
	near := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(int(s.handle))}
	near.Name = fmt.Sprintf("%s.%d", n.bridge.Name, n.hosts)
	near.MasterIndex = n.bridge.Index
	if err := errors.Join(netlink.LinkAdd(near), netlink.LinkSetUp(near)); err != nil {
		t.Fatalf("the cable %s: %v", near.Name, err)
	}
	s.cable = near
	inside, err := netlink.NewHandleAt(s.handle)
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	for _, name := range []string{"lo", "eth0"} {
		link, err := inside.LinkByName(name)
		if err != nil {
			t.Fatalf("%s in the namespace: %v", name, err)
		}
		if name == "eth0" {
			err = inside.AddrAdd(link, n.address(s.IP))
		}
		if err := errors.Join(err, inside.LinkSetUp(link)); err != nil {
			t.Fatalf("%s in the namespace: %v", name, err)
		}
	}
	if err := inside.RouteAdd(&netlink.Route{Gw: n.Host}); err != nil {
		t.Fatalf("the route of the namespace: %v", err)
	}
	return s
}

// start starts a command in the namespace; nil: this host's.
func (s *Namespace) start(cmd *exec.Cmd) error {
	if s == nil {
		return cmd.Start()
	}
	return elsewhere(func() error {
		if err := netns.Set(s.handle); err != nil {
			return err
		}
		return cmd.Start()
	})
}

// elsewhere calls f on a thread whose network namespace f may change, and then restores
// the namespace. The thread is kept, because its end would kill the children that it has
// started.
func elsewhere(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer here.Close()
	err = f()
	if back := netns.Set(here); back != nil {
		panic(fmt.Sprintf("a thread of the test stays in another network namespace: %v", back))
	}
	return err
}

// Cut silently drops all packets from and to the namespace, until Mend or the test's
// end.
func (s *Namespace) Cut(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { s.Mend(t) })
	s.filter(t, `table inet cut {
		chain input { type filter hook input priority 0; policy drop; iif lo accept; }
		chain output { type filter hook output priority 0; policy drop; oif lo accept; }
	}`)
}

// CutFrom silently drops all packets between the namespace and an address, until Mend or
// the test's end. port is one that the address listens at; 0: all of its packets.
func (s *Namespace) CutFrom(t testing.TB, ip net.IP, port int) {
	t.Helper()
	t.Cleanup(func() { s.Mend(t) })
	from, to := "ip saddr "+ip.String(), "ip daddr "+ip.String()
	if port != 0 {
		from, to = fmt.Sprintf("%s tcp sport %d", from, port), fmt.Sprintf("%s tcp dport %d", to, port)
	}
	s.filter(t, fmt.Sprintf(`table inet cut {
		chain input { type filter hook input priority 0; policy accept; %s drop; }
		chain output { type filter hook output priority 0; policy accept; %s drop; }
	}`, from, to))
}

// Slow bounds what the namespace receives, in bytes a second, until the test's end.
func (s *Namespace) Slow(t testing.TB, rate uint64) {
	t.Helper()
	link, err := netlink.LinkByName(s.cable.Attrs().Name)
	if err != nil {
		t.Fatal(err)
	}
	const burst, waiting = 64 << 10, 512 << 10
	bucket := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate, Buffer: netlink.Xmittime(rate, burst), Limit: waiting,
	}
	if err := netlink.QdiscAdd(bucket); err != nil {
		t.Skipf("this machine slows no network down: %v", err)
	}
	t.Cleanup(func() {
		if err := netlink.QdiscDel(bucket); err != nil {
			t.Error(err)
		}
	})
}

// Mend ends a Cut, and a CutFrom.
func (s *Namespace) Mend(t testing.TB) {
	t.Helper()
	s.filter(t, "table inet cut {}\ndelete table inet cut")
}

// filter applies rules of nft in the namespace.
func (s *Namespace) filter(t testing.TB, rules string) {
	t.Helper()
	cmd := Command("nft", "-f", "-")
	var said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(rules), &said, &said
	err := s.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("nft: %v: %s", err, said.Bytes())
	}
}

// Capture records the TCP payload on a Network from and to the ports at which roles call
// each other.
type Capture struct {
	fd      int
	stop    func()
	stopped chan struct{} // closed by stop
	ended   chan struct{}
	bytes   []byte // in packet order; complete once ended
	missed  uint32 // packets, once ended
}

// Capture begins a capture. Passed ends it.
func (n *Network) Capture(t testing.TB) *Capture {
	t.Helper()
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err != nil {
		t.Fatalf("a packet socket: %v", err)
	}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: n.bridge.Index}),
		unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &unix.PacketMreq{Ifindex: int32(n.bridge.Index), Type: unix.PACKET_MR_PROMISC}),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
	)
	if err != nil {
		unix.Close(fd)
		t.Fatalf("a capture of %s: %v", n.bridge.Name, err)
	}
	stop := make(chan struct{})
	c := &Capture{fd: fd, stopped: stop, stop: sync.OnceFunc(func() { close(stop) }), ended: make(chan struct{})}
	t.Cleanup(c.stop)
	go c.run()
	return c
}

// run reads packets until stop is closed and no more come.
func (c *Capture) run() {
	defer close(c.ended)
	defer unix.Close(c.fd)
	packet := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(c.fd, packet, 0)
		switch {
		case err == nil:
			c.bytes = append(c.bytes, betweenRoles(packet[:n])...)
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return
		default:
			select {
			case <-c.stopped:
				if seen, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
					c.missed = seen.Drops
				}
				return
			default:
			}
		}
	}
}

// Passed ends the capture, and returns all bytes that passed. It fails the test when
// packets were missed.
func (c *Capture) Passed(t testing.TB) []byte {
	t.Helper()
	c.stop()
	<-c.ended
	if c.missed > 0 {
		t.Errorf("the capture missed %d packets", c.missed)
	}
	return c.bytes
}

// betweenRoles returns the TCP payload of an Ethernet frame between a role and its
// caller; nil for other frames.
func betweenRoles(frame []byte) []byte {
	const ethernet, tcp = 14, 6
	if len(frame) < ethernet+20 || frame[12] != 8 || frame[13] != 0 || frame[ethernet+9] != tcp {
		return nil
	}
	packet := frame[ethernet:]
	if total := int(packet[2])<<8 | int(packet[3]); total > 0 && total < len(packet) { // without padding
		packet = packet[:total]
	}
	head := int(packet[0]&15) * 4
	if len(packet) < head+20 {
		return nil
	}
	segment := packet[head:]
	from, to := int(segment[0])<<8|int(segment[1]), int(segment[2])<<8|int(segment[3])
	if start := int(segment[12]>>4) * 4; start <= len(segment) && (isRole(from) || isRole(to)) {
		return segment[start:]
	}
	return nil
}

func isRole(port int) bool {
	for role, of := range rolePorts {
		if port == of && role != "gateway" {
			return true
		}
	}
	return false
}
