package rpc

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/cloud-sandbox/cloud-sandbox"
	rpcv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/rpc/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/cluster"
)

// Nodes.Dial requests its stream as an upgrade of an HTTP/1.1 connection. By TCP, also
// with TLS, the connection then carries the stream's bytes and nothing else. By a Unix socket, the
// answer carries the file descriptor of the stream itself, and the connection ends: the
// Node no longer forwards anything.
const (
	dialPath      = "/cloudsandbox.node.v1.NodeService.Dial"
	upgradeBytes  = "cloud-sandbox-stream"
	upgradeHandle = "cloud-sandbox-stream-fd"
	// dialLimit bounds a dial without a deadline.
	dialLimit = 30 * time.Second
	// maxHead bounds the head of the answer to a dial, in bytes.
	maxHead = 16 << 10
	// maxFailure bounds the body of a refusal, in bytes.
	maxFailure = 64 << 10
)

// dialGuest connects to a port of a Boot on the Node p.
func (p *peer) dialGuest(ctx context.Context, node string, to sandbox.BootRef, port uint16) (net.Conn, error) {
	query := url.Values{
		"node": {node}, "boot": {to.BootID}, "sandbox": {to.SandboxID},
		"number": {strconv.FormatInt(to.Number, 10)}, "port": {strconv.Itoa(int(port))},
	}
	if deadline, ok := ctx.Deadline(); ok {
		query.Set("timeout_ms", strconv.FormatInt(max(time.Until(deadline).Milliseconds(), 1), 10))
	}
	return p.stream(ctx, streamRequest{path: dialPath, query: query, tenant: to.Tenant, handle: true})
}

// streamRequest asks for a stream.
type streamRequest struct {
	path   string
	query  url.Values
	tenant sandbox.TenantID // the call is for; empty: none
	handle bool             // by a Unix socket, the stream's descriptor may come instead
}

// stream requests a stream from the Node p.
func (p *peer) stream(ctx context.Context, r streamRequest) (net.Conn, error) {
	pair, err := p.pair()
	if err != nil {
		return nil, err
	}
	conn, err := p.connect(ctx, pair)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, p.away(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	stream, err := p.upgrade(ctx, conn, pair, r)
	if !stop() && err == nil { // ctx ended, and set a deadline in the past
		stream.Close()
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		var told *sandbox.Error
		switch {
		case errors.As(err, &told):
			return nil, told
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		return nil, p.away(err)
	}
	return stream, nil
}

// upgrade requests the stream on conn. It closes conn if the stream does not use it.
func (p *peer) upgrade(ctx context.Context, conn net.Conn, pair *cluster.Pair, r streamRequest) (net.Conn, error) {
	req, err := http.NewRequest(http.MethodGet, p.base+r.path+"?"+r.query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	local, isUnix := conn.(*net.UnixConn)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", upgradeBytes)
	if isUnix && r.handle {
		req.Header.Set("Upgrade", upgradeHandle)
	}
	if err := p.signWith(ctx, pair, req.Header, r.tenant); err != nil {
		return nil, err
	}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	if isUnix && r.handle {
		return takeStream(req, local)
	}
	head := bufio.NewReaderSize(conn, maxHead)
	res, err := http.ReadResponse(head, req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		return nil, refused(refusal(res))
	}
	return &stream{Conn: conn, head: head}, nil
}

// takeStream reads the answer on a Unix socket: the stream of the descriptor if the
// Node sends one, or else conn, which carries the stream's bytes.
func takeStream(req *http.Request, conn *net.UnixConn) (net.Conn, error) {
	head := make([]byte, maxHead)
	rights := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(head, rights)
	if err != nil {
		return nil, err
	}
	handle, err := handleIn(rights[:oobn])
	if err != nil {
		return nil, err
	}
	if handle != nil {
		defer handle.Close() // FileConn duplicates it
	}
	// The buffer is large enough for all that was read: the stream continues after it.
	r := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(head[:n]), conn), maxHead)
	res, err := http.ReadResponse(r, req)
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode != http.StatusSwitchingProtocols:
		return nil, refused(refusal(res))
	case handle == nil:
		return &stream{Conn: conn, head: r}, nil
	}
	conn.Close()
	return net.FileConn(handle)
}

// handleIn returns the descriptor in a control message, or nil.
func handleIn(rights []byte) (*os.File, error) {
	if len(rights) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil || len(fds) == 0 {
			continue
		}
		unix.CloseOnExec(fds[0])
		return os.NewFile(uintptr(fds[0]), "stream"), nil
	}
	return nil, nil
}

// refusal is the error in an answer that is not an upgrade.
func refusal(res *http.Response) error {
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxFailure))
	told := &rpcv1.Failure{}
	if err != nil || protojson.Unmarshal(raw, told) != nil || told.Code == "" {
		return errors.Join(fmt.Errorf("a dial is answered with %s", res.Status), err)
	}
	return errorOf(told)
}

// A stream is a connection whose first bytes may be buffered.
type stream struct {
	net.Conn
	head io.Reader // the buffered rest of the answer, then Conn
}

func (s *stream) Read(p []byte) (int, error) {
	if r, ok := s.head.(*bufio.Reader); ok {
		if r.Buffered() > 0 {
			return r.Read(p[:min(len(p), r.Buffered())])
		}
		s.head = s.Conn
	}
	return s.Conn.Read(p)
}

// CloseWrite closes the stream for writing.
func (s *stream) CloseWrite() error {
	c, ok := s.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return c.CloseWrite()
}

// dials serves the dials of gateways.
type dials struct {
	nodes  sandbox.BootDialer
	caller func(ctx context.Context, procedure string, h http.Header) (Caller, error)

	mu      sync.Mutex
	ended   bool
	open    map[net.Conn]*x509.Certificate // streams that this process forwards, and their callers' certificates
	serving sync.WaitGroup
}

func (d *dials) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	guest, err := d.dial(r)
	if err != nil {
		refuse(w, err)
		return
	}
	defer guest.Close()
	handle := r.Header.Get("Upgrade") == upgradeHandle
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, sandbox.Errorf(sandbox.Invalid, "a dial needs an HTTP/1.1 connection").WithCause(err))
		return
	}
	defer conn.Close()
	if conn.SetDeadline(time.Time{}) != nil {
		return
	}
	if handle && giveStream(conn, guest) {
		return
	}
	if _, err := conn.Write(switching(upgradeBytes)); err != nil || !d.begin(callerCertificate(r), conn, guest) {
		return
	}
	defer d.finish(conn, guest)
	carry(&stream{Conn: conn, head: buffered.Reader}, guest)
}

// dial authenticates the caller and dials.
func (d *dials) dial(r *http.Request) (net.Conn, error) {
	c, err := d.caller(r.Context(), dialPath, r.Header)
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	number, err := strconv.ParseInt(q.Get("number"), 10, 64)
	port, portErr := strconv.ParseUint(q.Get("port"), 10, 16)
	if err := errors.Join(err, portErr); err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the dial names no port of a boot").WithCause(err)
	}
	limit := dialLimit
	if ms, err := strconv.ParseInt(q.Get("timeout_ms"), 10, 64); err == nil && ms > 0 && ms < dialLimit.Milliseconds() {
		limit = time.Duration(ms) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(forRequest(r.Context(), r.Header), limit)
	defer cancel()
	to := sandbox.BootRef{BootID: q.Get("boot"), SandboxID: q.Get("sandbox"), Number: number, Tenant: c.Tenant}
	return d.nodes.Dial(ctx, q.Get("node"), to, uint16(port))
}

func refuse(w http.ResponseWriter, err error) {
	told := failure(err, true)
	body := &rpcv1.Failure{Code: string(sandbox.Unavailable), Message: told.Message()}
	for _, detail := range told.Details() {
		if value, err := detail.Value(); err == nil {
			if f, ok := value.(*rpcv1.Failure); ok {
				body = f
			}
		}
	}
	raw, err := protojson.Marshal(body)
	if err != nil {
		raw = nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusConflict) // the body has the error
	_, _ = w.Write(raw)                // an error means that the gateway is gone
}

func switching(to string) []byte {
	return []byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + to + "\r\n\r\n")
}

// passer is a connection that can carry descriptors, as *net.UnixConn does.
type passer interface {
	WriteMsgUnix(b, oob []byte, addr *net.UnixAddr) (n, oobn int, err error)
}

// giveStream answers with the descriptor of guest. It returns false only if it has sent
// nothing, because one of the two has no descriptor or the kernel did not take it. After
// any byte of the answer a second answer would be read as bytes of the stream.
func giveStream(conn, guest net.Conn) bool {
	to, ok := conn.(passer)
	if !ok {
		return false
	}
	from, ok := guest.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := from.SyscallConn()
	if err != nil {
		return false
	}
	sent := 0
	// An error of Control means that guest is closed, and nothing was sent.
	_ = raw.Control(func(fd uintptr) {
		// An error after some bytes ends the connection, which the gateway notices.
		sent, _, _ = to.WriteMsgUnix(switching(upgradeHandle), unix.UnixRights(int(fd)), nil)
	})
	return sent > 0
}

// callerCertificate is the certificate of a request's caller; nil: it has none.
func callerCertificate(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// begin registers a stream; false after refuseNew or close.
func (d *dials) begin(by *x509.Certificate, conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return false
	}
	for _, c := range conns {
		d.open[c] = by
	}
	d.serving.Add(1)
	return true
}

func (d *dials) finish(conns ...net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		delete(d.open, c)
	}
	d.serving.Done()
}

// cutEvery is the interval of ending streams of revoked callers.
const cutEvery = 5 * time.Second

// cut ends the streams of callers whose certificate is revoked, until ctx ends. It looks
// at every stream each time: one that was accepted before its caller was revoked may be
// registered afterwards. Other calls are checked when they begin.
func (d *dials) cut(ctx context.Context, identity *cluster.Identity) {
	tick := time.NewTicker(cutEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		pair := identity.Current()
		d.mu.Lock()
		for c, by := range d.open {
			if by != nil && pair.Revoked(by) {
				c.Close()
			}
		}
		d.mu.Unlock()
	}
}

// close ends the forwarded streams and waits for them.
func (d *dials) close() {
	d.mu.Lock()
	d.ended = true
	for c := range d.open {
		c.Close()
	}
	d.mu.Unlock()
	d.serving.Wait()
}

// refuseNew refuses new streams; existing ones continue.
func (d *dials) refuseNew() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
}
