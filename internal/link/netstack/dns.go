package netstack

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

const (
	dnsPort = 53
	// A guest may ask this often, UDP and TCP together; more is dropped.
	queriesPerSecond, queriesBurst = 50, 100
	// maxQueries of one link wait for an answer at a time.
	maxQueries = 32
	// maxQuery bounds a question: it is one name, and EDNS options.
	maxQuery = 1232
	// maxAnswer bounds an answer.
	maxAnswer = 4096
	// dnsIdle ends a TCP connection on which nothing is asked.
	dnsIdle = 10 * time.Second
)

// nameServer answers the guest's questions on port 53 of the gateway by asking
// the host's resolver. What a name resolves to is not judged here: the
// connection is, by address, so a name that points to a private address, now or
// later, gets nobody anywhere.
type nameServer struct {
	link   *Link
	socket *gonet.UDPConn
	limit  *rate.Limiter
	slots  chan struct{}
	ctx    context.Context // ends with the link; not a request's
	cancel context.CancelFunc
}

func newNameServer(l *Link) (*nameServer, error) {
	socket, err := l.listenUDP(dnsPort)
	if err != nil {
		return nil, err
	}
	s := &nameServer{link: l, socket: socket, limit: rate.NewLimiter(queriesPerSecond, queriesBurst), slots: make(chan struct{}, maxQueries)}
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

// mayAsk takes a slot, which free gives back; false when the guest asks too
// much.
func (s *nameServer) mayAsk() bool {
	if !s.limit.Allow() {
		return false
	}
	select {
	case s.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *nameServer) free() { <-s.slots }

// acceptTCP answers questions over a connection of the guest, one at a time,
// each with its length before it (RFC 1035, section 4.2.2).
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

// headerLen is the length of a DNS header; the codes are of its fields
// (RFC 1035, section 4.1.1).
const (
	headerLen          = 12
	flagResponse       = 0x80 // in byte 2
	opcodeMask         = 0x78 // in byte 2
	flagAvailable      = 0x80 // in byte 3: recursion
	rcodeServerFailure = 2
	rcodeRefused       = 5
)

// answer returns what to say to a question; nil is silence.
func (s *nameServer) answer(ctx context.Context, network string, query []byte) []byte {
	if len(query) < headerLen || query[2]&flagResponse != 0 {
		return nil
	}
	if s.link.Policy() != sandbox.NetworkPublic || query[2]&opcodeMask != 0 {
		return failure(query, rcodeRefused)
	}
	a, err := s.link.cfg.Resolver.Ask(ctx, network, query)
	if err != nil {
		return failure(query, rcodeServerFailure)
	}
	return a
}

// failure is the header of the question, with an error and without records.
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
