// Package bridge serves Volumes across Nodes: a Boot on one Node mounts Volumes whose
// files another Node stores.
//
// The Node of the Boot runs a Server, which passes each request to the Node that stores
// the Volume, over a Route. That Node serves it with Homes, which admits only the latest
// Boot of a Sandbox.
package bridge

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const (
	// helloTime is how long the other end may take to send its hello, or to answer one.
	helloTime = 10 * time.Second
	// frameTime is how long the other end may take to send the rest of a frame, or to read
	// one.
	frameTime = 30 * time.Second
	// connectTime bounds connecting to the Node of a Route. Requests to Volumes on other
	// Nodes wait for it.
	connectTime = 2 * time.Second
	// Bounds of the backoff before connecting again to a Node that does not answer.
	firstRedial = 100 * time.Millisecond
	lastRedial  = 2 * time.Second
	// readBytes is the size of the buffer of a connection: a record of TLS. Larger frames
	// pass through it in parts.
	readBytes = 16 << 10
	// maxAsked bounds the requests of a Boot without an answer: more than the volume server
	// inside sends.
	maxAsked = 4096
	// lengthBytes is the size of the length prefix of a frame, and maxAnswer the maximum size
	// of an answer's frame without it.
	lengthBytes = 4
	maxAnswer   = volume.AnswerBytes - lengthBytes + volume.MaxData
)

var order = binary.LittleEndian

// A Route leads to the server of some Volumes of a Boot.
type Route struct {
	Volumes []string // their IDs
	// Connect connects to that server, which has the rights of the Boot.
	Connect func(context.Context) (net.Conn, error)
	// Close closes a server of this host; nil: the server is elsewhere.
	Close func()
}

// Server is the volume.Server of a Boot that mounts Volumes of several servers. It passes
// each request on as it is. If one of the servers is away, requests for its Volumes get no
// answer, and the others are served.
//
// A Boot repeats requests without an answer over its next connection, and a server answers
// a repeat as before. So when a server comes back or breaks, the Server ends the connection
// to the Boot, and the Node makes another one.
type Server struct {
	routes []Route
}

// New returns a Server for these Routes.
func New(routes ...Route) *Server { return &Server{routes} }

// Local is the Route to a server on this host.
func Local(server volume.Server, volumes []string) Route {
	return Route{
		Volumes: volumes,
		Connect: func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _ = server.Serve(context.Background(), theirs) }() // until ours is closed
			return ours, nil
		},
		Close: server.Close,
	}
}

// Close implements volume.Server.
func (s *Server) Close() {
	for _, r := range s.routes {
		if r.Close != nil {
			r.Close()
		}
	}
}

// Serve implements volume.Server.
func (s *Server) Serve(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b := &session{routes: s.routes, boot: conn, r: bufio.NewReaderSize(conn, readBytes), end: cancel, asked: map[uint64]int{}}
	stop := context.AfterFunc(ctx, b.close)
	defer stop()
	err := b.hello(ctx)
	if err == nil {
		err = b.pass()
	}
	cancel(err)
	b.close()
	b.working.Wait()
	return context.Cause(ctx)
}

// session is one connection to a Boot.
type session struct {
	routes []Route
	boot   net.Conn
	r      *bufio.Reader
	end    func(error)

	mounts  []int // the Route of each Volume, in the order of the hello; -1: none
	working sync.WaitGroup
	writing sync.Mutex // to boot

	mu     sync.Mutex
	closed bool
	conns  []net.Conn // by Route; nil: it is away
	// asked has the Route of each request without an answer, by its tag: a server may only
	// answer its own.
	asked map[uint64]int
}

func (b *session) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.boot.Close()
	for _, c := range b.conns {
		if c != nil {
			c.Close()
		}
	}
}

// hello reads the Boot's hello, repeats it to all servers, and answers it.
func (b *session) hello(ctx context.Context) error {
	if err := b.boot.SetReadDeadline(time.Now().Add(helloTime)); err != nil {
		return err
	}
	frame, err := volume.ReadFrame(b.r, make([]byte, readBytes))
	if err != nil {
		return err
	}
	r, err := volume.DecodeRequest(frame)
	if err != nil {
		return err
	}
	ids := strings.Fields(string(r.Data))
	if r.Op != volume.OpHello || len(ids) > sandbox.MaxVolumeMounts {
		return errors.New("the volume server of the boot sent no valid hello")
	}
	if err := b.boot.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	for _, id := range ids {
		b.mounts = append(b.mounts, slices.IndexFunc(b.routes, func(r Route) bool { return slices.Contains(r.Volumes, id) }))
	}
	if err := b.connectAll(ctx, volume.AppendRequest(nil, &r)); err != nil {
		return err
	}
	return b.answer(&volume.Answer{Tag: r.Tag})
}

// connectAll connects to all servers. It returns an error if none can be reached. It
// watches the servers that are away.
func (b *session) connectAll(ctx context.Context, hello []byte) error {
	conns, readers, errs := make([]net.Conn, len(b.routes)), make([]*bufio.Reader, len(b.routes)), make([]error, len(b.routes))
	var connecting sync.WaitGroup
	for i, r := range b.routes {
		connecting.Go(func() { conns[i], readers[i], errs[i] = connect(ctx, r, hello) })
	}
	connecting.Wait()
	b.mu.Lock()
	b.conns = conns
	closed := b.closed
	b.mu.Unlock()
	if closed {
		b.close()
		return context.Cause(ctx)
	}
	away := 0
	for i, c := range conns {
		if c != nil {
			b.working.Go(func() { b.end(b.carry(i, c, readers[i])) })
			continue
		}
		away++
		b.working.Go(func() { b.await(ctx, b.routes[i], hello) })
	}
	if away == len(conns) {
		return errors.Join(errs...)
	}
	return nil
}

// connect connects to a server and greets it.
func connect(ctx context.Context, to Route, hello []byte) (net.Conn, *bufio.Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	conn, err := to.Connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	r := bufio.NewReaderSize(conn, readBytes)
	_, err = conn.Write(hello)
	var a volume.Answer
	if err == nil {
		a, err = volume.ReadAnswer(r, nil)
	}
	if err == nil && a.Err != 0 {
		err = a.Err
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, r, nil
}

// await ends the session once a server that was away answers.
func (b *session) await(ctx context.Context, to Route, hello []byte) {
	for wait := firstRedial; ; wait = min(2*wait, lastRedial) {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		conn, _, err := connect(ctx, to, hello)
		if err == nil {
			conn.Close()
			b.end(errors.New("a node that keeps volumes answers again"))
			return
		}
	}
}

// carry passes the answers of the server of a Route to the Boot.
func (b *session) carry(route int, from net.Conn, r *bufio.Reader) error {
	for {
		if _, err := r.Peek(1); err != nil {
			return err
		}
		if err := from.SetReadDeadline(time.Now().Add(frameTime)); err != nil {
			return err
		}
		head, err := r.Peek(lengthBytes + volume.TagBytes)
		if err != nil {
			return err
		}
		n := int64(order.Uint32(head))
		if n < volume.TagBytes || n > maxAnswer {
			return fmt.Errorf("a server of volumes sends a frame of %d bytes", n)
		}
		if err := b.answered(route, volume.TagOf(head[lengthBytes:])); err != nil {
			return err
		}
		if err := b.carryOne(r, lengthBytes+int(n)); err != nil {
			return err
		}
		if err := from.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
}

func (b *session) carryOne(r *bufio.Reader, n int) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	if err := b.boot.SetWriteDeadline(time.Now().Add(frameTime)); err != nil {
		return err
	}
	return copyBytes(b.boot, r, n)
}

// pass passes the requests of the Boot to the servers, which check them.
func (b *session) pass() error {
	for {
		if _, err := b.r.Peek(1); err != nil {
			return err
		}
		if err := b.boot.SetReadDeadline(time.Now().Add(frameTime)); err != nil {
			return err
		}
		if err := b.passOne(); err != nil {
			return err
		}
		if err := b.boot.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
}

// passOne passes one request on. A request to a server that is away is dropped: the Boot
// repeats it.
func (b *session) passOne() error {
	head, err := b.r.Peek(lengthBytes + volume.RouteBytes)
	if err != nil {
		return err
	}
	n := int64(order.Uint32(head))
	if n < volume.RouteBytes || n > volume.Longest {
		return fmt.Errorf("the volume server of the boot sends a frame of %d bytes", n)
	}
	tag, mount := volume.RouteOf(head[lengthBytes:])
	to, errno := io.Writer(io.Discard), unix.Errno(0)
	switch {
	case mount >= len(b.mounts):
		errno = unix.EINVAL
	case b.mounts[mount] < 0:
		errno = unix.ESTALE
	default:
		conn, err := b.ask(b.mounts[mount], tag)
		if err != nil {
			return err
		}
		if conn != nil {
			if err := conn.SetWriteDeadline(time.Now().Add(frameTime)); err != nil {
				return err
			}
			to = conn
		}
	}
	if err := copyBytes(to, b.r, lengthBytes+int(n)); err != nil || errno == 0 {
		return err
	}
	return b.answer(&volume.Answer{Tag: tag, Err: errno})
}

// ask returns the connection of a Route for a request with a tag; nil: its server is away.
func (b *session) ask(route int, tag uint64) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	to := b.conns[route]
	if to == nil {
		return nil, nil
	}
	if len(b.asked) >= maxAsked {
		return nil, fmt.Errorf("the volume server of the boot has %d requests without an answer", maxAsked)
	}
	b.asked[tag] = route
	return to, nil
}

// answered checks that the server of a Route was asked the request with a tag.
func (b *session) answered(route int, tag uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if to, asked := b.asked[tag]; !asked || to != route {
		return errors.New("a server of volumes answers a request that it was not asked")
	}
	delete(b.asked, tag)
	return nil
}

func (b *session) answer(a *volume.Answer) error { return b.send(volume.AppendAnswer(nil, a)) }

// send sends a frame to the Boot.
func (b *session) send(frame []byte) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	if err := b.boot.SetWriteDeadline(time.Now().Add(frameTime)); err != nil {
		return err
	}
	_, err := b.boot.Write(frame)
	return err
}

// copyBytes copies n bytes as they arrive, through the buffer of r alone.
func copyBytes(to io.Writer, r *bufio.Reader, n int) error {
	for n > 0 {
		if _, err := r.Peek(1); err != nil {
			return err
		}
		part, err := r.Peek(min(n, r.Buffered()))
		if err != nil {
			return err
		}
		if _, err := to.Write(part); err != nil {
			return err
		}
		if _, err := r.Discard(len(part)); err != nil {
			return err
		}
		n -= len(part)
	}
	return nil
}
