package shard

import (
	"io"
	"net"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
)

// BenchmarkDial measures a DialGuest and a round trip of four bytes, as on a node: the
// call, the handshake through the link, and the return of the stream.
func BenchmarkDial(b *testing.B) {
	c, _ := start(b)
	host, _ := newLink(b)
	id := sandbox.NewBootID()
	if err := c.Add(b.Context(), id, host, sandbox.NetworkNone); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		conn, err := c.DialGuest(b.Context(), id, 7)
		if err != nil {
			b.Fatal(err)
		}
		roundTrip(b, conn)
		conn.Close()
	}
}

// BenchmarkRoundTrip measures a round trip of four bytes on an open stream.
func BenchmarkRoundTrip(b *testing.B) {
	c, _ := start(b)
	host, _ := newLink(b)
	id := sandbox.NewBootID()
	if err := c.Add(b.Context(), id, host, sandbox.NetworkNone); err != nil {
		b.Fatal(err)
	}
	conn, err := c.DialGuest(b.Context(), id, 7)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	for b.Loop() {
		roundTrip(b, conn)
	}
}

// BenchmarkDialledThroughput moves bytes over one stream of DialGuest.
func BenchmarkDialledThroughput(b *testing.B) {
	for _, way := range []string{"to-guest", "from-guest"} {
		b.Run(way, func(b *testing.B) { benchDialled(b, way == "from-guest") })
	}
}

func benchDialled(b *testing.B, fromGuest bool) {
	const chunk = 1 << 20
	c, _ := start(b)
	host, guest := newLink(b)
	id := sandbox.NewBootID()
	if err := c.Add(b.Context(), id, host, sandbox.NetworkNone); err != nil {
		b.Fatal(err)
	}
	ln, err := gonet.ListenTCP(guest, tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(link.GuestAddress.As4()), Port: 9}, ipv4.ProtocolNumber)
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	outside, err := c.DialGuest(b.Context(), id, 9)
	if err != nil {
		b.Fatal(err)
	}
	defer outside.Close()
	inside, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer inside.Close()
	from, to := net.Conn(outside), inside
	if fromGuest {
		from, to = to, from
	}
	b.SetBytes(chunk)
	b.ResetTimer()
	sent := make(chan error, 1)
	go func() {
		data := make([]byte, chunk)
		var err error
		for i := 0; i < b.N && err == nil; i++ {
			_, err = from.Write(data)
		}
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, struct{ io.Reader }{to}, int64(b.N)*chunk); err != nil {
		b.Fatal(err)
	}
	if err := <-sent; err != nil {
		b.Fatal(err)
	}
}
