package netstack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
)

const (
	dnsPort = 53
	// Queries per second of a guest, UDP and TCP together; excess ones are dropped.
	queriesPerSecond, queriesBurst = 50, 100
	// maxQueries bounds the concurrent queries of one link.
	maxQueries = 32
	// maxQuery bounds a query in bytes: it is one name, and EDNS options.
	maxQuery = 1232
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 4096
	// Rates of forwarded queries and of answers, in bytes: both can carry data past any
	// rule.
	queryBytesPerSecond, queryBytesBurst   = 2 << 10, 16 << 10
	answerBytesPerSecond, answerBytesBurst = 32 << 10, 256 << 10
	// dnsIdle ends an idle TCP connection.
	dnsIdle = 10 * time.Second
)

// nameServer answers the guest's queries on port 53 of the gateway through the host's
// resolver, if the policy allows the name. It records the resolved addresses and does not
// check them: each connection is checked by address, so a name that points to a private
// address, now or later, gives no access.
type nameServer struct {
	link   *Link
	socket *gonet.UDPConn
	limit  *rate.Limiter
	asked  *rate.Limiter // bytes of forwarded queries
	bytes  *rate.Limiter // bytes of answers
	slots  chan struct{}
	ctx    context.Context // ends with the link; not a request's
	cancel context.CancelFunc
}

func newNameServer(l *Link) (*nameServer, error) {
	socket, err := l.listenUDP(dnsPort)
	if err != nil {
		return nil, err
	}
	s := &nameServer{
		link: l, socket: socket, limit: rate.NewLimiter(queriesPerSecond, queriesBurst), slots: make(chan struct{}, maxQueries),
		asked: rate.NewLimiter(queryBytesPerSecond, queryBytesBurst), bytes: rate.NewLimiter(answerBytesPerSecond, answerBytesBurst),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	l.wg.Go(s.serveUDP)
	return s, nil
}

// close ends the name server; the link waits for its goroutines.
func (s *nameServer) close() {
	s.cancel()
	_ = s.socket.SetReadDeadline(time.Unix(1, 0))
}

func (s *nameServer) serveUDP() {
	defer s.socket.Close()
	buf := make([]byte, maxQuery)
	for s.ctx.Err() == nil {
		n, from, err := s.socket.ReadFrom(buf)
		if err != nil {
			continue // closed, or an error of one datagram
		}
		if !s.mayAsk() {
			continue
		}
		query := append([]byte(nil), buf[:n]...)
		s.link.wg.Go(func() {
			defer s.free()
			if a := s.answer(s.ctx, "udp", query); a != nil {
				_, _ = s.socket.WriteTo(a, from)
			}
		})
	}
}

// mayAsk takes a slot, which free returns; false when the guest exceeds a limit.
func (s *nameServer) mayAsk() bool {
	if !s.limit.Allow() {
		s.hold(tooMany)
		return false
	}
	select {
	case s.slots <- struct{}{}:
		return true
	default:
		s.hold(tooManyAtOnce)
		return false
	}
}

// Reasons against queries whose names the policy allows.
var (
	tooMany            = fmt.Sprintf("more than %d DNS queries a second", queriesPerSecond)
	tooManyAtOnce      = fmt.Sprintf("more than %d DNS queries at once", maxQueries)
	tooManyQueryBytes  = fmt.Sprintf("DNS queries have more than %d bytes a second", queryBytesPerSecond)
	tooManyAnswerBytes = fmt.Sprintf("DNS answers have more than %d bytes a second", answerBytesPerSecond)
)

// hold logs a refusal for a limit, without the name: a tunnel's names are all different,
// and would displace everything else from the log.
func (s *nameServer) hold(reason string) {
	s.link.noteDecision(sandbox.NetworkDecision{Protocol: "dns", Port: dnsPort}, policy.Decision{Verdict: policy.Refused, Reason: reason})
	s.link.cfg.Shared.limited.Add(1)
}

func (s *nameServer) free() { <-s.slots }

// acceptTCP answers queries over a connection of the guest, one at a time, each after its
// length (RFC 1035, section 4.2.2).
func (s *nameServer) acceptTCP(r *tcp.ForwarderRequest) {
	life, f, err := s.link.admitHost()
	if err != nil {
		r.Complete(true)
		return
	}
	defer s.link.release(f)
	g, ok := s.link.complete(life, r)
	if !ok {
		return
	}
	s.link.establish(f, g)
	disarm := context.AfterFunc(life, g.abort)
	defer disarm()
	defer g.close()
	conn := gonet.NewTCPConn(g.wq, g.ep)
	buf := make([]byte, maxQuery)
	for {
		_ = conn.SetDeadline(time.Now().Add(dnsIdle))
		n, err := readPrefixed(conn, buf)
		if err != nil || !s.mayAsk() {
			return
		}
		a := s.answer(life, "tcp", buf[:n])
		s.free()
		if a == nil || writePrefixed(conn, a) != nil {
			return
		}
	}
}

// headerLen is the length of a DNS header in bytes; the other constants are values of its
// fields (RFC 1035, section 4.1.1).
const (
	headerLen          = 12
	flagResponse       = 0x80 // in byte 2
	opcodeMask         = 0x78 // in byte 2
	flagAvailable      = 0x80 // in byte 3: recursion
	rcodeNone          = 0
	rcodeServerFailure = 2
	rcodeRefused       = 5
)

// answer returns the response to a query; nil: none.
func (s *nameServer) answer(ctx context.Context, network string, query []byte) []byte {
	if len(query) < headerLen || query[2]&flagResponse != 0 {
		return nil
	}
	q, err := readQuestion(query)
	if query[2]&opcodeMask != 0 || err != nil {
		return failure(query, rcodeRefused)
	}
	rules := s.link.rulesNow()
	d := rules.Name(q.name)
	if d.Verdict == policy.Allowed && rules.MatchNames() {
		d = q.judge(d)
	}
	s.link.noteDecision(sandbox.NetworkDecision{Protocol: "dns", Name: q.name, Port: dnsPort}, d)
	switch {
	case d.Verdict == policy.Refused && q.hides():
		return failure(query, rcodeNone) // no such record: the guest then asks for addresses
	case d.Verdict == policy.Refused:
		return failure(query, rcodeRefused)
	case rules.MatchNames():
		query = q.rebuilt()
	}
	if !s.asked.AllowN(time.Now(), len(query)) {
		s.hold(tooManyQueryBytes)
		return nil
	}
	if s.link.cfg.Shared.fence.closed() {
		return nil
	}
	a, err := s.link.cfg.Resolver.Ask(ctx, network, query)
	if err != nil {
		return failure(query, rcodeServerFailure)
	}
	if !s.bytes.AllowN(time.Now(), len(a)) {
		s.hold(tooManyAnswerBytes)
		return failure(query, rcodeServerFailure)
	}
	if err := s.remember(q, a); err != nil && rules.MatchNames() {
		return failure(query, rcodeServerFailure)
	}
	return a
}

// remember holds the addresses of an answer for the name of the query. It fails on an
// answer that does not parse, which rules about names cannot use.
func (s *nameServer) remember(q dnsQuestion, a []byte) error {
	now := time.Now()
	return readAddresses(a, q, func(addr netip.Addr, ttl time.Duration) {
		s.link.answers.hold(q.name, addr, ttl, now)
	})
}

// failure is the query's header with an error code and without records.
func failure(query []byte, rcode byte) []byte {
	a := make([]byte, headerLen)
	copy(a, query[:4])
	a[2] |= flagResponse
	a[3] = flagAvailable | rcode
	return a
}

var errTooLong = errors.New("the message is too long")

func readPrefixed(r io.Reader, into []byte) (int, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return 0, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > len(into) {
		return 0, errTooLong
	}
	return io.ReadFull(r, into[:n])
}

func writePrefixed(w io.Writer, msg []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...))
	return err
}
