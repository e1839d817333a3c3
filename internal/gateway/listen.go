package gateway

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"syscall"
)

// Listen listens on addr, host:port. The host "localhost" means both loopback
// addresses, where the machine has both, because some clients try only one.
// Port 0 chooses one; it is the same on both.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if host != "localhost" {
		return lc.Listen(ctx, "tcp", addr)
	}
	four, err := lc.Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return nil, err
	}
	port = strconv.Itoa(four.Addr().(*net.TCPAddr).Port)
	six, err := lc.Listen(ctx, "tcp6", net.JoinHostPort("::1", port))
	switch {
	case err == nil:
		return newBoth(four, six), nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, errors.Join(err, four.Close())
	}
	return four, nil // a machine without IPv6
}

// both accepts from two listeners.
type both struct {
	net.Listener // gives the address
	accepted     chan accepted
	closed       chan struct{}
	close        func() error
	acceptors    sync.WaitGroup
}

type accepted struct {
	conn net.Conn
	err  error
}

func newBoth(one, other net.Listener) *both {
	b := &both{Listener: one, accepted: make(chan accepted), closed: make(chan struct{})}
	b.close = sync.OnceValue(func() error {
		close(b.closed)
		err := errors.Join(one.Close(), other.Close())
		b.acceptors.Wait()
		return err
	})
	for _, ln := range []net.Listener{one, other} {
		b.acceptors.Go(func() { b.accept(ln) })
	}
	return b
}

// accept passes on what ln gives, also errors: the server knows which of them
// pass.
func (b *both) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		select {
		case b.accepted <- accepted{conn, err}:
		case <-b.closed:
			if conn != nil {
				conn.Close()
			}
			return
		}
	}
}

func (b *both) Accept() (net.Conn, error) {
	select {
	case a := <-b.accepted:
		return a.conn, a.err
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

func (b *both) Close() error { return b.close() }
