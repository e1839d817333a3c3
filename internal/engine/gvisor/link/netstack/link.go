// Package netstack is the network of one Boot: a TCP/IP stack of our own at the
// host's end of its link. What the guest dials is matched against the policy and
// dialled on the host one by one; the host dials the guest through it; names are
// answered by the host's resolver.
//
// The guest is hostile: it may send anything, read nothing, and keep as much
// open as it can. What it can make a Link hold is bounded (see maxConnections
// and bufferShare), and nothing of one Link waits for another.
package netstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
)

const (
	nic = 1
	// maxHandshakes bounds what the guest has begun to dial and the host has
	// not answered; a SYN beyond it is ignored, and comes again.
	maxHandshakes = 256
)

var (
	gatewayAddr = tcpip.AddrFrom4(link.GatewayAddress.As4())
	guestAddr   = tcpip.AddrFrom4(link.GuestAddress.As4())
)

// Config is what Links have in common. The zero value works.
type Config struct {
	// Refuse reports addresses that no policy allows; nil: policy.HostAddresses.
	Refuse func(netip.Addr) bool
	// Resolver answers names; nil: the host's, of /etc/resolv.conf.
	Resolver *Resolver
	// Shared is the same for all Links of a process; nil: this one is alone.
	Shared *Shared
}

func (c Config) withDefaults() Config {
	if c.Refuse == nil {
		c.Refuse = new(policy.HostAddresses).Refuse
	}
	if c.Resolver == nil {
		c.Resolver = NewResolver("/etc/resolv.conf")
	}
	if c.Shared == nil {
		c.Shared = new(Shared)
	}
	return c
}

// Link is the host's end of one link. Methods are safe for concurrent use.
type Link struct {
	cfg   Config
	ep    *Endpoint
	stack *stack.Stack
	names *nameServer
	lost  chan struct{}
	refit chan struct{} // has room for one: size has changed
	done  chan struct{} // closed by Close

	answers answers
	log     decisions
	wire    wire

	mu      sync.Mutex
	policy  sandbox.NetworkPolicy
	rules   *policy.Rules // what policy says
	secrets *secrets      // nil: none
	flows   map[*flow]struct{}
	share   int64 // of linkBuffers, for each buffer
	size    int64 // of each buffer: the smaller of share and what Shared allows
	closed  bool
	gone    bool // the guest's end is
	wg      sync.WaitGroup
}

// A flow is one connection, from before it is dialled until nothing of it is
// left. cancel cuts it at any time.
type flow struct {
	target policy.Target // what the policy is about; zero for a dial from the host
	asked  bool          // it has to show what it is
	cancel context.CancelFunc
	guest  *guestConn    // guarded by Link.mu: set once there is one with buffers
	shown  *policy.Shown // guarded by Link.mu: what it showed last that was allowed
	// opened is where it goes if its requests get secrets: set once, guarded by
	// Link.mu for all but its carrier.
	opened origin
}

// addr is where the flow goes to.
func (f *flow) addr() netip.AddrPort { return netip.AddrPortFrom(f.target.Addr, f.target.Port) }

// Open plugs in the host's end of a link, which it takes over, also when it
// fails.
func Open(file *os.File, pol sandbox.NetworkPolicy, cfg Config) (*Link, error) {
	rules, err := policy.Compile(pol)
	if err != nil {
		file.Close()
		return nil, err
	}
	ep, err := NewEndpoint(file, link.GatewayMAC, link.GuestMAC)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("use the link's socket: %w", err)
	}
	l := &Link{
		cfg: cfg.withDefaults(), ep: ep, policy: pol, rules: rules, flows: map[*flow]struct{}{}, share: maxBuffer, size: maxBuffer,
		lost: make(chan struct{}), refit: make(chan struct{}, 1), done: make(chan struct{}),
	}
	ep.accept = acceptable
	ep.lost = l.loseGuest
	l.stack, err = newStack(ep, link.GatewayAddress, link.GuestAddress, link.GuestMAC)
	if err != nil {
		ep.Close()
		return nil, err
	}
	if err := l.serve(); err != nil {
		l.stack.Destroy()
		return nil, err
	}
	l.cfg.Shared.join(l)
	l.wg.Go(l.resize)
	ep.Start()
	return l, nil
}

// serve takes what the guest sends to the world.
func (l *Link) serve() error {
	if err := l.stack.SetPromiscuousMode(nic, true); err != nil {
		return errors.New(err.String())
	}
	if err := l.stack.SetSpoofing(nic, true); err != nil {
		return errors.New(err.String())
	}
	l.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(l.stack, maxBuffer, maxHandshakes, l.acceptTCP).HandlePacket)
	l.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(l.stack, l.acceptUDP).HandlePacket)
	var err error
	l.names, err = newNameServer(l)
	return err
}

// newStack makes a stack with one interface on ep, whose only neighbour is the
// other end.
func newStack(ep stack.LinkEndpoint, local, remote netip.Addr, remoteMAC [6]byte) (*stack.Stack, error) {
	// A packet to 127.0.0.1 is judged, and so refused at once, as any other.
	ip := ipv4.NewProtocolWithOptions(ipv4.Options{AllowExternalLoopbackTraffic: true})
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ip, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := setOptions(s); err != nil {
		return nil, err
	}
	if err := s.CreateNIC(nic, ep); err != nil {
		return nil, fmt.Errorf("create the interface: %s", err)
	}
	addr := tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4(local.As4()), PrefixLen: link.PrefixBits},
	}
	if err := s.AddProtocolAddress(nic, addr, stack.AddressProperties{}); err != nil {
		return nil, fmt.Errorf("set the address: %s", err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}})
	if err := s.AddStaticNeighbor(nic, ipv4.ProtocolNumber, tcpip.AddrFrom4(remote.As4()), tcpip.LinkAddress(remoteMAC[:])); err != nil {
		return nil, fmt.Errorf("set the neighbour: %s", err)
	}
	return s, nil
}

// setOptions fits TCP to a link.
func setOptions(s *stack.Stack) error {
	sack := tcpip.TCPSACKEnabled(true)
	moderate := tcpip.TCPModerateReceiveBufferOption(false) // Link sizes buffers itself
	timeWait := tcpip.TCPTimeWaitTimeoutOption(timeWaitTimeout)
	linger := tcpip.TCPLingerTimeoutOption(drainTimeout)
	for _, o := range []tcpip.SettableTransportProtocolOption{
		&sack, &moderate, &timeWait, &linger,
		&tcpip.TCPReceiveBufferSizeRangeOption{Min: minBuffer, Default: maxBuffer, Max: maxBuffer},
		&tcpip.TCPSendBufferSizeRangeOption{Min: minBuffer, Default: maxBuffer, Max: maxBuffer},
	} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("set TCP options: %s", err)
		}
	}
	return nil
}

// acceptable says whether a guest may send a frame that begins so: ARP, and
// IPv4 from its own address. ICMP is for the gateway alone: the stack would
// answer a ping to any address, as if the whole world were near.
func acceptable(frame []byte) bool {
	packet := frame[header.EthernetMinimumSize:]
	switch header.Ethernet(frame).Type() {
	case header.ARPProtocolNumber:
		return true
	case header.IPv4ProtocolNumber:
		ip := header.IPv4(packet)
		if len(packet) < header.IPv4MinimumSize || ip.SourceAddress() != guestAddr {
			return false
		}
		return ip.TransportProtocol() != header.ICMPv4ProtocolNumber || ip.DestinationAddress() == gatewayAddr
	}
	return false
}

// Close cuts every connection and returns when nothing of the link is left.
func (l *Link) Close() {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	for f := range l.flows {
		f.cancel()
	}
	l.mu.Unlock()
	if first {
		close(l.done)
		l.names.close()
		l.stack.Close() // resets what is open, so that the guest knows
		l.wg.Wait()
		// The reader may need the stack's lock, which Destroy holds while it
		// waits for the reader: it has to be gone before.
		l.ep.Close()
		l.ep.Wait()
		l.stack.Destroy()
		l.cfg.Shared.leave(l)
	}
}

// loseGuest ends every connection: nobody answers any more.
func (l *Link) loseGuest() {
	close(l.lost)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
	for f := range l.flows {
		f.cancel()
	}
}

// Lost is closed when the other end of the link is gone.
func (l *Link) Lost() <-chan struct{} { return l.lost }

// Usage is what went through a Link.
type Usage struct {
	Connections       int
	BytesIn, BytesOut int64 // to the guest, from the guest; whole frames
	// Sent and Received are what the connections that the guest opened carried to
	// the outside and back, in bytes.
	Sent, Received int64
	// Refused is how many connections and names the policy refused.
	Refused int64
}

// Usage reports what goes and went through the link.
func (l *Link) Usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Usage{
		Connections: len(l.flows), BytesIn: l.ep.bytesIn.Load(), BytesOut: l.ep.bytesOut.Load(),
		Sent: l.wire.out.passed.Load(), Received: l.wire.in.passed.Load(), Refused: l.log.refusals(),
	}
}

// Policy returns where the guest may connect to.
func (l *Link) Policy() sandbox.NetworkPolicy {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.policy
}

// SetPolicy changes where the guest may connect to; connections that are no
// longer allowed are cut, and so are those that would have had to show a name
// and never did. Invalid changes nothing.
func (l *Link) SetPolicy(p sandbox.NetworkPolicy) error {
	rules, err := policy.Compile(p)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.policy, l.rules = p, rules
	for f := range l.flows {
		if d := l.again(f); d.Verdict == policy.Refused {
			f.cancel()
			d.Reason = "cut: " + d.Reason
			l.note(f.target, "", d)
		}
	}
	return nil
}

// SetBandwidth bounds what the guest's connections carry, together, each way, to
// so many bytes a second, at once; zero: not at all.
func (l *Link) SetBandwidth(bytesPerSecond int64) { l.wire.setRate(bytesPerSecond) }

// again decides anew on a flow that is there. The caller holds l.mu.
func (l *Link) again(f *flow) policy.Decision {
	if !f.target.Addr.IsValid() {
		return policy.Decision{Verdict: policy.Allowed}
	}
	d := l.decide(f.target)
	switch {
	case d.Verdict != policy.Asked:
		return d
	case f.shown != nil:
		return l.rules.Show(f.target, *f.shown)
	case f.asked:
		return d // it will show what it is, and be judged then
	}
	return policy.Decision{Verdict: policy.Refused, Reason: "it never showed a name, and rules are about names"}
}

// decide decides on a connection before it is made. The caller holds l.mu.
func (l *Link) decide(t policy.Target) policy.Decision {
	if l.cfg.Refuse(t.Addr) && !l.cfg.Shared.opened(t) {
		return policy.Decision{Verdict: policy.Refused, Reason: "not a public address"}
	}
	d := l.rules.Connect(t)
	if t.UDP && d.Verdict != policy.Refused && l.cfg.Shared.proxyTo(t) != nil {
		return policy.Decision{Verdict: policy.Refused, Reason: "the server reaches the outside through an upstream proxy, which carries no UDP"}
	}
	return d
}

// show decides on a flow by what it showed.
func (l *Link) show(f *flow, shown policy.Shown) bool {
	l.mu.Lock()
	d := l.rules.Show(f.target, shown)
	if d.Verdict == policy.Allowed {
		f.shown = &shown
	}
	l.mu.Unlock()
	l.note(f.target, shown.Name, d)
	return d.Verdict == policy.Allowed
}

// wouldAllow is show without an effect.
func (l *Link) wouldAllow(t policy.Target, shown policy.Shown) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rules.Show(t, shown).Verdict == policy.Allowed
}

// rulesNow returns the rules in force.
func (l *Link) rulesNow() *policy.Rules {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rules
}

// note writes a decision about a connection into the log.
func (l *Link) note(t policy.Target, name string, d policy.Decision) {
	protocol := "tcp"
	if t.UDP {
		protocol = "udp"
	}
	if name == "" && len(t.Names) > 0 {
		name = t.Names[0]
	}
	l.noteDecision(sandbox.NetworkDecision{Protocol: protocol, Name: name, Addr: t.Addr, Port: t.Port}, d)
}

func (l *Link) noteDecision(n sandbox.NetworkDecision, d policy.Decision) {
	n.Allowed, n.Reason = d.Verdict == policy.Allowed, d.Reason
	l.log.add(n)
	l.cfg.Shared.count(n.Allowed)
}

// Log returns what was decided, as far as it is kept.
func (l *Link) Log() sandbox.NetworkLog { return l.log.read() }

// Dial connects to a TCP port of the guest and hands the connection to host,
// which it closes in the end, also when it fails. It returns once the guest has
// answered. Nothing listening is Unavailable, no answer until ctx ends Timeout,
// too many connections Exhausted.
func (l *Link) Dial(ctx context.Context, port uint16, host hostConn) error {
	life, f, err := l.admitHost()
	if err != nil {
		host.Close()
		return err
	}
	dialCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	g, err := l.dialGuest(dialCtx, port)
	if err != nil {
		host.Close()
		l.release(f)
		return err
	}
	l.establish(f, g)
	go func() { // counted by admit; Close waits for it
		defer l.release(f)
		splice(life, g, host, nil) // what the host asks for is not bounded
	}()
	return nil
}

func (l *Link) dialGuest(ctx context.Context, port uint16) (guestConn, error) {
	g := guestConn{wq: new(waiter.Queue)}
	var terr tcpip.Error
	if g.ep, terr = l.stack.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, g.wq); terr != nil {
		return guestConn{}, errors.New(terr.String())
	}
	entry, changed := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	g.wq.EventRegister(&entry)
	defer g.wq.EventUnregister(&entry)
	terr = g.ep.Connect(tcpip.FullAddress{NIC: nic, Addr: guestAddr, Port: port})
	if _, ok := terr.(*tcpip.ErrConnectStarted); ok {
		select {
		case <-changed:
			terr = g.ep.LastError()
		case <-ctx.Done():
			g.close()
			return guestConn{}, dialError(ctx)
		}
	}
	if terr != nil {
		g.close()
		return guestConn{}, sandbox.Errorf(sandbox.Unavailable, "nothing answers on port %d of the sandbox", port).WithCause(errors.New(terr.String()))
	}
	return g, nil
}

func dialError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return sandbox.Errorf(sandbox.Timeout, "the sandbox did not answer in time")
	}
	return sandbox.Errorf(sandbox.Unavailable, "the link was cut").WithCause(ctx.Err())
}

// errRefused is why the guest may not have a connection.
var errRefused = errors.New("refused by the policy")

// admit judges and registers a connection of the guest, and returns its life,
// which ends when it is cut. Whoever gets a flow calls release.
func (l *Link) admit(dst netip.AddrPort, datagrams bool) (context.Context, *flow, error) {
	t := policy.Target{UDP: datagrams, Addr: dst.Addr(), Port: dst.Port(), Names: l.answers.names(dst.Addr(), time.Now())}
	return l.join(t)
}

// admitHost registers a connection that the policy is not about.
func (l *Link) admitHost() (context.Context, *flow, error) { return l.join(policy.Target{}) }

func (l *Link) join(t policy.Target) (context.Context, *flow, error) {
	life, f, resize, err := l.register(t)
	if resize {
		l.cfg.Shared.resize()
	}
	return life, f, err
}

// register judges and adds a flow. resize asks for Shared.resize.
func (l *Link) register(t policy.Target) (life context.Context, f *flow, resize bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, nil, false, sandbox.Errorf(sandbox.NotFound, "the link is gone")
	case l.gone:
		return nil, nil, false, sandbox.Errorf(sandbox.Unavailable, "the sandbox is gone")
	}
	d := policy.Decision{Verdict: policy.Allowed}
	if t.Addr.IsValid() {
		d = l.decide(t)
		if d.Verdict != policy.Asked {
			l.note(t, "", d)
		}
	}
	switch {
	case d.Verdict == policy.Refused:
		return nil, nil, false, errRefused
	case len(l.flows) >= maxConnections:
		return nil, nil, false, sandbox.Errorf(sandbox.Exhausted, "the sandbox has %d connections", maxConnections)
	}
	ok, resize := l.cfg.Shared.take(len(l.flows))
	if !ok {
		return nil, nil, false, sandbox.Errorf(sandbox.Exhausted, "the sandboxes of this link shard have %d connections", maxShared)
	}
	life, cancel := context.WithCancel(context.Background())
	f = &flow{target: t, asked: d.Verdict == policy.Asked, cancel: cancel}
	l.flows[f] = struct{}{}
	l.wg.Add(1)
	l.fit()
	return life, f, resize, nil
}

// establish gives an admitted connection its buffers.
func (l *Link) establish(f *flow, g guestConn) {
	for size := int64(0); ; {
		l.mu.Lock()
		f.guest = &g
		same := size == l.size
		size = l.size
		l.mu.Unlock()
		if same {
			return
		}
		g.setBuffers(size)
	}
}

// release forgets a connection of which nothing is left.
func (l *Link) release(f *flow) {
	l.mu.Lock()
	f.cancel()
	delete(l.flows, f)
	l.fit()
	l.mu.Unlock()
	if l.cfg.Shared.give() {
		l.cfg.Shared.resize()
	}
	l.wg.Done()
}

// fit computes how big buffers may be now, and has resize make them so. The
// caller holds l.mu.
func (l *Link) fit() {
	l.share = nextShare(l.share, linkBuffers, len(l.flows))
	size := min(l.share, l.cfg.Shared.cap())
	if size == l.size {
		return
	}
	l.size = size
	select {
	case l.refit <- struct{}{}:
	default: // it has not begun with the change before
	}
}

// resize makes the buffers of open connections follow l.size. A guest that does
// not read may hold it up, so nobody waits for it.
func (l *Link) resize() {
	for {
		select {
		case <-l.refit:
		case <-l.done:
			return
		}
		l.mu.Lock()
		size := l.size
		guests := make([]guestConn, 0, len(l.flows))
		for f := range l.flows {
			if f.guest != nil {
				guests = append(guests, *f.guest)
			}
		}
		l.mu.Unlock()
		for _, g := range guests {
			g.setBuffers(size)
		}
	}
}

// listenUDP binds a UDP port of the gateway.
func (l *Link) listenUDP(port uint16) (*gonet.UDPConn, error) {
	return gonet.DialUDP(l.stack, &tcpip.FullAddress{NIC: nic, Addr: gatewayAddr, Port: port}, nil, ipv4.ProtocolNumber)
}

func netipAddr(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr
}
