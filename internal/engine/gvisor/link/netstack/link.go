// Package netstack is the network of one Boot: a TCP/IP stack of our own at the host's
// end of its link. Each connection of the guest is checked against the policy and dialled
// on the host; the host dials the guest through the stack; the host's resolver answers
// DNS queries.
//
// The guest is hostile: it may send anything, read nothing, and keep as much open as it
// can. The resources of a Link are bounded (see maxConnections and bufferShare), and one
// Link never waits for another.
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
	// maxHandshakes bounds the guest's dials that are not answered yet; a SYN beyond it
	// is ignored, and the guest retransmits it.
	maxHandshakes = 256
)

var (
	gatewayAddr = tcpip.AddrFrom4(link.GatewayAddress.As4())
	guestAddr   = tcpip.AddrFrom4(link.GuestAddress.As4())
)

// Config is the configuration that Links share. The zero value works.
type Config struct {
	// Refuse reports addresses that no policy may allow; nil: policy.HostAddresses.
	Refuse func(netip.Addr) bool
	// Resolver answers DNS queries; nil: the host's, of /etc/resolv.conf.
	Resolver *Resolver
	// Shared is common to all Links of a process; nil: this Link has its own.
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
	refit chan struct{} // holds one when size has changed
	done  chan struct{} // closed by Close

	answers answers
	log     decisions
	wire    wire

	mu      sync.Mutex
	policy  sandbox.NetworkPolicy
	rules   *policy.Rules // compiled from policy
	secrets *secrets      // nil: none
	flows   map[*flow]struct{}
	share   int64 // of linkBuffers, for each buffer
	size    int64 // of each buffer: the smaller of share and Shared's cap
	closed  bool
	gone    bool // the guest's end is gone
	wg      sync.WaitGroup
}

// flow is one connection, from before its dial until it is fully closed. cancel cuts it
// at any time.
type flow struct {
	target policy.Target // the destination for the policy; zero for a dial from the host
	asked  bool          // its first bytes must be inspected
	cancel context.CancelFunc
	guest  *guestConn    // guarded by Link.mu: nil until established
	shown  *policy.Shown // guarded by Link.mu: the last Shown that was allowed
	// opened is its destination if its requests get secrets: set once, guarded by Link.mu
	// for all but its carrier.
	opened origin
}

// addr is the flow's destination.
func (f *flow) addr() netip.AddrPort { return netip.AddrPortFrom(f.target.Addr, f.target.Port) }

// Open plugs in the host's end of a link. It takes ownership of file, also on error.
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

// serve handles the guest's connections and DNS queries.
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

// newStack makes a stack with one interface on ep, whose only neighbour is the other end.
func newStack(ep stack.LinkEndpoint, local, remote netip.Addr, remoteMAC [6]byte) (*stack.Stack, error) {
	// A packet to 127.0.0.1 is checked like any other, and so refused at once.
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

// setOptions tunes TCP for a link.
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

// acceptable reports whether a guest may send a frame that begins like this: ARP, and
// IPv4 from its own address. ICMP may go to the gateway only: the stack would answer a
// ping to any address.
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

// Close cuts every connection and returns when the link's resources are released.
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
		l.stack.Close() // resets open connections, so that the guest knows
		l.wg.Wait()
		// The reader may need the stack's lock, which Destroy holds while it waits for
		// the reader: it has to end before.
		l.ep.Close()
		l.ep.Wait()
		l.stack.Destroy()
		l.cfg.Shared.leave(l)
	}
}

// loseGuest ends every connection, as the guest's end is gone.
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

// Usage is the connections and traffic of a Link.
type Usage struct {
	Connections       int
	BytesIn, BytesOut int64 // to the guest, from the guest; whole frames
	// Sent and Received are the bytes that the guest's own connections carried to the
	// outside and back.
	Sent, Received int64
	// Refused is how many connections and DNS queries were refused.
	Refused int64
}

// Usage reports the open connections and the traffic so far.
func (l *Link) Usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Usage{
		Connections: len(l.flows), BytesIn: l.ep.bytesIn.Load(), BytesOut: l.ep.bytesOut.Load(),
		Sent: l.wire.out.passed.Load(), Received: l.wire.in.passed.Load(), Refused: l.log.refusals(),
	}
}

// Policy returns the link's policy.
func (l *Link) Policy() sandbox.NetworkPolicy {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.policy
}

// SetPolicy changes the link's policy. It cuts connections that the new policy refuses,
// and connections that would have needed to show a name and never did. On Invalid nothing
// changes.
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

// SetBandwidth bounds the traffic of all the guest's connections together, per direction,
// in bytes per second, at once; zero: unlimited.
func (l *Link) SetBandwidth(bytesPerSecond int64) { l.wire.setRate(bytesPerSecond) }

// again repeats the decision on an existing flow, with the current rules. The caller
// holds l.mu.
func (l *Link) again(f *flow) policy.Decision {
	if !f.target.Addr.IsValid() {
		return policy.Decision{Verdict: policy.Allowed}
	}
	d := l.decide(f.target)
	switch {
	case d.Verdict != policy.Undecided:
		return d
	case f.shown != nil:
		return l.rules.Show(f.target, *f.shown)
	case f.asked:
		return d // decided after its first bytes
	}
	return policy.Decision{Verdict: policy.Refused, Reason: "it sent no host name, and the rules match host names"}
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

// show decides on a flow by its first bytes.
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

// wouldAllow is show without recording.
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

// note logs a decision about a connection.
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

// Log returns the kept decisions.
func (l *Link) Log() sandbox.NetworkLog { return l.log.read() }

// Dial connects to a TCP port of the guest and carries the connection to host, which it
// closes in the end, also on error. It returns once the guest has answered. A refused
// connection is Unavailable, no answer until ctx ends is Timeout, too many connections
// are Exhausted.
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
		splice(life, g, host, nil, &l.cfg.Shared.fence) // the bandwidth limit does not cover dials from the host
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

// errRefused means that the policy refuses the guest's connection.
var errRefused = errors.New("refused by the policy")

// admit checks and registers a connection of the guest, and returns its life, which ends
// when it is cut. The caller releases the flow.
func (l *Link) admit(dst netip.AddrPort, datagrams bool) (context.Context, *flow, error) {
	t := policy.Target{UDP: datagrams, Addr: dst.Addr(), Port: dst.Port(), Names: l.answers.names(dst.Addr(), time.Now())}
	return l.join(t)
}

// admitHost registers a connection that the policy does not cover.
func (l *Link) admitHost() (context.Context, *flow, error) { return l.join(policy.Target{}) }

func (l *Link) join(t policy.Target) (context.Context, *flow, error) {
	life, f, resize, err := l.register(t)
	if resize {
		l.cfg.Shared.resize()
	}
	return life, f, err
}

// register checks and adds a flow. If resize is true, the caller calls Shared.resize.
func (l *Link) register(t policy.Target) (life context.Context, f *flow, resize bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, nil, false, sandbox.Errorf(sandbox.NotFound, "the link is gone")
	case l.gone:
		return nil, nil, false, sandbox.Errorf(sandbox.Unavailable, "the sandbox is gone")
	case l.cfg.Shared.fence.closed():
		return nil, nil, false, sandbox.Errorf(sandbox.Unavailable, "the node of the sandbox has lost its lease, and cut it off").WithCause(errFenced)
	}
	d := policy.Decision{Verdict: policy.Allowed}
	if t.Addr.IsValid() {
		d = l.decide(t)
		if d.Verdict != policy.Undecided {
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
	f = &flow{target: t, asked: d.Verdict == policy.Undecided, cancel: cancel}
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

// release forgets a closed connection.
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

// fit computes the new size of buffers, and has resize apply it. The caller holds l.mu.
func (l *Link) fit() {
	l.share = nextShare(l.share, linkBuffers, len(l.flows))
	size := min(l.share, l.cfg.Shared.cap())
	if size == l.size {
		return
	}
	l.size = size
	select {
	case l.refit <- struct{}{}:
	default: // resize has not yet handled the previous change
	}
}

// resize makes the buffers of open connections follow l.size. A guest that does not read
// may delay it, so nothing waits for it.
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
