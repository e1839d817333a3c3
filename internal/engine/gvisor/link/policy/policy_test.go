package policy

import (
	"net"
	"net/netip"
	"testing"
)

func TestPublic(t *testing.T) {
	for _, tt := range []struct {
		addr string
		want bool
	}{
		{"1.1.1.1", true},
		{"8.8.8.8", true},
		{"9.255.255.255", true},
		{"11.0.0.0", true},
		{"100.63.255.255", true},
		{"100.128.0.0", true},
		{"172.15.255.255", true},
		{"172.32.0.0", true},
		{"192.0.1.0", true},
		{"198.17.255.255", true},
		{"198.20.0.0", true},
		{"223.255.255.255", true},
		{"2606:4700:4700::1111", true},
		{"2a00:1450::1", true},

		{"0.0.0.0", false},
		{"0.1.2.3", false},
		{"10.0.0.1", false},
		{"10.255.255.255", false},
		{"100.64.0.0", false},
		{"100.127.255.255", false},
		{"127.0.0.1", false},
		{"127.255.255.254", false},
		{"169.254.169.254", false},
		{"172.16.0.1", false},
		{"172.31.255.255", false},
		{"192.0.0.170", false},
		{"192.0.2.1", false},
		{"192.88.99.1", false},
		{"192.168.1.1", false},
		{"198.18.0.1", false},
		{"198.19.255.255", false},
		{"198.51.100.7", false},
		{"203.0.113.7", false},
		{"224.0.0.1", false},
		{"239.255.255.255", false},
		{"240.0.0.1", false},
		{"255.255.255.255", false},
		{"::", false},
		{"::1", false},
		{"::ffff:1.1.1.1", false}, // IPv4-mapped, also with a public address
		{"::ffff:127.0.0.1", false},
		{"::7f00:1", false}, // IPv4-compatible
		{"64:ff9b::a9fe:a9fe", false},
		{"64:ff9b:1::1", false},
		{"100::1", false},
		{"2001::1", false}, // Teredo
		{"2001:db8::1", false},
		{"2002:7f00:1::", false},
		{"3fff::1", false},
		{"4000::1", false},
		{"fc00::1", false},
		{"fd12:3456::1", false},
		{"fe80::1", false},
		{"fec0::1", false},
		{"ff02::1", false},
		{"2606:4700::1%eth0", false},
	} {
		if got := Public(netip.MustParseAddr(tt.addr)); got != tt.want {
			t.Errorf("Public(%s) = %v, want %v", tt.addr, got, tt.want)
		}
	}
	if Public(netip.Addr{}) {
		t.Error("the zero address is public")
	}
}

func TestHostAddressesRefusesTheHostsOwn(t *testing.T) {
	var h HostAddresses
	if h.Refuse(netip.MustParseAddr("1.1.1.1")) {
		t.Error("a public address that is not ours is refused")
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		ip, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if !h.Refuse(ip.Unmap()) {
			t.Errorf("the host's address %s is not refused", ip)
		}
	}
	public := netip.MustParseAddr("8.8.4.4")
	h.current()[public] = struct{}{} // as if an interface had it
	if !h.Refuse(public) {
		t.Error("the host's own public address is not refused")
	}
}
