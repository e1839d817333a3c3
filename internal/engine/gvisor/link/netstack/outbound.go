package netstack

import (
	"context"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
)

const (
	// crowd is the number of a link's connections above which the kernel's buffers of
	// each are bounded too; below it the kernel sizes them itself.
	crowd       = 64
	crowdBuffer = 64 << 10
	// udpIdle is the idle time after which a UDP flow ends.
	udpIdle = 60 * time.Second
	// maxDatagram is the longest UDP payload.
	maxDatagram = 65507
)

func localAddrPort(id stack.TransportEndpointID) netip.AddrPort {
	return netip.AddrPortFrom(netipAddr(id.LocalAddress), id.LocalPort)
}

// acceptTCP handles a SYN of the guest, in a goroutine of its own. It dials the host
// first, and accepts the guest's connection only if that succeeded. Otherwise, and when
// the connection is not allowed, the guest gets a reset.
func (l *Link) acceptTCP(r *tcp.ForwarderRequest) {
	dst := localAddrPort(r.ID())
	if dst.Addr() == link.GatewayAddress && dst.Port() == dnsPort {
		l.names.acceptTCP(r)
		return
	}
	if dst.Addr() == link.EventsAddress && dst.Port() == eventsPort {
		l.acceptEvents(r)
		return
	}
	life, f, err := l.admit(dst, false)
	if err != nil {
		r.Complete(true)
		return
	}
	defer l.release(f)
	host, err := l.dialHost(life, f)
	if err != nil {
		r.Complete(true)
		return
	}
	g, ok := l.complete(life, r)
	if !ok {
		host.Close()
		return
	}
	l.establish(f, g)
	l.carry(life, f, g, host)
}

func (l *Link) dialHost(ctx context.Context, f *flow) (*net.TCPConn, error) {
	host, err := l.reach(ctx, f)
	if err != nil {
		return nil, err
	}
	if l.Usage().Connections > crowd {
		_ = host.SetReadBuffer(crowdBuffer)
		_ = host.SetWriteBuffer(crowdBuffer)
	}
	return host, nil
}

// reach connects to the address that the policy decided on, directly or through the
// operator's proxy. The proxy gets the address only: if it resolved a name, it could be
// led to another address.
func (l *Link) reach(ctx context.Context, f *flow) (*net.TCPConn, error) {
	if proxy := l.cfg.Shared.proxyTo(f.target); proxy != nil {
		host, err := proxy.Dial(ctx, f.addr())
		if err != nil && ctx.Err() == nil { // not because the guest left
			l.note(f.target, "", policy.Decision{Verdict: policy.Refused, Reason: err.Error()})
		}
		return host, err
	}
	ctx, cancel := context.WithTimeout(ctx, link.DialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", f.addr().String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// dialWired is dialHost for callers that do not splice; the connection ends with life at
// the latest.
func (l *Link) dialWired(ctx, life context.Context, f *flow) (net.Conn, error) {
	host, err := l.dialHost(ctx, f)
	if err != nil {
		return nil, err
	}
	return l.wired(life, host), nil
}

func (l *Link) wired(life context.Context, host *net.TCPConn) net.Conn {
	return &wired{TCPConn: host, wire: &l.wire, fence: &l.cfg.Shared.fence, done: life.Done()}
}

// complete finishes the handshake with the guest, or gives up when ctx ends.
func (l *Link) complete(ctx context.Context, r *tcp.ForwarderRequest) (guestConn, bool) {
	wq := new(waiter.Queue)
	// The stack waits for the guest's answer on wq without a timeout.
	defer context.AfterFunc(ctx, func() { wq.Notify(waiter.WritableEvents) })()
	ep, err := r.CreateEndpoint(wq)
	if err != nil {
		r.Complete(true)
		return guestConn{}, false
	}
	r.Complete(false)
	return guestConn{ep: ep, wq: wq}, true
}

// acceptUDP handles the first datagram of a flow. It runs in the link's reader, so it
// never waits. An unhandled datagram is answered as unreachable.
func (l *Link) acceptUDP(r *udp.ForwarderRequest) bool {
	dst := localAddrPort(r.ID())
	life, f, err := l.admit(dst, true)
	if err != nil {
		return false
	}
	wq := new(waiter.Queue)
	ep, terr := r.CreateEndpoint(wq)
	if terr != nil {
		l.release(f)
		return false
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(dst)) // sends nothing
	if err != nil {
		ep.Close()
		l.release(f)
		return false
	}
	go func() { // counted by admit
		defer l.release(f)
		relay(life, guestConn{ep: ep, wq: wq}, conn, &l.wire, &l.cfg.Shared.fence)
	}()
	return true
}
