package client

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

// Forward turns conn, a fresh connection to a Guest's control port, into a stream
// to a port of its loopback. On error conn is closed; Unavailable says that nothing
// listens there.
func Forward(ctx context.Context, conn net.Conn, port uint16) (net.Conn, error) {
	stream, err := forward(ctx, conn, port)
	if err != nil {
		conn.Close()
		return nil, fail(ctx, err)
	}
	return stream, nil
}

func forward(ctx context.Context, conn net.Conn, port uint16) (net.Conn, error) {
	_ = conn.SetDeadline(time.Now().Add(headTime)) // not all connections support this
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := fmt.Fprintf(conn, "GET %s?port=%d HTTP/1.1\r\nHost: guest:%s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n",
		guest.ForwardPath, port, strconv.Itoa(int(sandbox.GuestPort)), guest.ForwardProtocol)
	if err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: conn, N: maxForwardHead}
	head := bufio.NewReader(limited)
	resp, err := http.ReadResponse(head, nil)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, sandbox.Errorf(sandbox.Unavailable, "nothing answers on port %d of the sandbox", port)
	}
	if !stop() {
		return nil, ctx.Err()
	}
	limited.N = math.MaxInt64
	return &forwarded{conn, head}, conn.SetDeadline(time.Time{})
}

// maxForwardHead bounds the header of a Guest's answer, in bytes.
const maxForwardHead = 4 << 10

// forwarded is a connection with a read buffer.
type forwarded struct {
	net.Conn
	head *bufio.Reader
}

func (f *forwarded) Read(p []byte) (int, error) { return f.head.Read(p) }

// CloseWrite closes the direction to the Guest.
func (f *forwarded) CloseWrite() error {
	if half, ok := f.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return f.Conn.Close()
}
