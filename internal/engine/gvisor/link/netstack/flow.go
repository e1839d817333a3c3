package netstack

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// drainTimeout bounds how long a connection that both sides have ended may take to
// deliver its last bytes to the guest.
const drainTimeout = 10 * time.Second

// hostConn is the host's side of a connection: *net.TCPConn or *net.UnixConn.
type hostConn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// guestConn is the guest's side of a connection: an endpoint of the stack. Its owner
// calls close, once and last; anyone may call abort.
type guestConn struct {
	ep tcpip.Endpoint
	wq *waiter.Queue
}

// abort resets the connection and wakes its waiters.
func (g guestConn) abort() {
	if a, ok := g.ep.(interface{ Abort() }); ok {
		a.Abort()
	}
	g.wq.Notify(waiter.EventHUp | waiter.EventErr | waiter.ReadableEvents | waiter.WritableEvents)
}

func (g guestConn) close() { g.ep.Close() }

// setBuffers bounds the buffer of each direction, in bytes.
func (g guestConn) setBuffers(size int64) {
	o := g.ep.SocketOptions()
	if o.GetReceiveBufferSize() != size {
		o.SetReceiveBufferSize(size, true)
	}
	if o.GetSendBufferSize() != size {
		o.SetSendBufferSize(size, true)
	}
}

// splice carries bytes both ways until both sides have ended, one of them breaks, or ctx
// ends; then both are closed. It has no buffer of its own: bytes go from the stack's
// buffers into the host's socket and back, so a connection holds only the endpoint's two
// buffers here. w limits the rate.
// Once the fence is closed, the next byte ends the connection.
func splice(ctx context.Context, g guestConn, h hostConn, w *wire, fence *fence) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	severed := make(chan struct{})
	disarm := context.AfterFunc(ctx, func() {
		defer close(severed)
		if t, ok := h.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // the other side sees a reset, not an orderly end
		}
		h.Close()
		g.abort()
	})
	out, in := w.sides()
	var other sync.WaitGroup
	other.Go(func() {
		if hostToGuest(ctx, g, h, in, fence) != nil {
			cancel()
		}
	})
	if guestToHost(ctx, g, h, out, fence) != nil {
		cancel()
	}
	other.Wait()
	if disarm() {
		h.Close()
		drain(ctx, g)
	} else {
		<-severed
	}
	g.close()
}

// guestToHost moves the guest's bytes until its end, which it passes on.
func guestToHost(ctx context.Context, g guestConn, h hostConn, t *throttle, fence *fence) error {
	raw, err := h.SyscallConn()
	if err != nil {
		return err
	}
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	g.wq.EventRegister(&entry)
	defer g.wq.EventUnregister(&entry)
	for {
		var w socketWriter
		var readErr tcpip.Error
		turn := t.turn()
		left := turn
		err := raw.Write(func(fd uintptr) bool {
			w = socketWriter{fd: int(fd), left: left, fence: fence}
			_, readErr = g.ep.Read(&w, tcpip.ReadOptions{})
			left = w.left
			return !w.full
		})
		switch {
		case err != nil:
			return err
		case w.err != nil:
			return w.err
		case !t.pass(ctx.Done(), turn-left):
			return ctx.Err()
		}
		switch readErr.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			select {
			case <-ready:
			case <-ctx.Done():
				return ctx.Err()
			}
		case *tcpip.ErrClosedForReceive:
			return h.CloseWrite()
		default:
			return errors.New(readErr.String())
		}
	}
}

// socketWriter writes to a non-blocking socket straight from the stack's buffers. Bytes
// that do not fit stay there.
type socketWriter struct {
	fd    int
	left  int // bytes that may be written
	fence *fence
	full  bool
	err   error
}

func (w *socketWriter) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		if w.left == 0 {
			return done, io.ErrShortWrite
		}
		if w.err = w.fence.check(); w.err != nil {
			return done, w.err
		}
		n, err := unix.Write(w.fd, b[done:done+min(len(b)-done, w.left)])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			w.full = true
			return done, io.ErrShortWrite
		case err != nil:
			w.err = err
			return done, err
		default:
			done += n
			w.left -= n
		}
	}
	return done, nil
}

// hostToGuest moves the host side's bytes until its end, which it passes on.
func hostToGuest(ctx context.Context, g guestConn, h hostConn, t *throttle, fence *fence) error {
	raw, err := h.SyscallConn()
	if err != nil {
		return err
	}
	entry, room := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	g.wq.EventRegister(&entry)
	defer g.wq.EventUnregister(&entry)
	for {
		var r socketReader
		var waiting, moved int
		var waitErr error
		var writeErr tcpip.Error
		err := raw.Read(func(fd uintptr) bool {
			waiting, waitErr = readable(int(fd))
			if waitErr == unix.EAGAIN {
				return false
			}
			if waitErr == nil && waiting > 0 {
				waitErr = fence.check()
			}
			if waitErr == nil && waiting > 0 {
				asked := min(waiting, t.turn())
				r = socketReader{fd: int(fd), left: asked}
				_, writeErr = g.ep.Write(&r, tcpip.WriteOptions{})
				moved = asked - r.left
			}
			return true
		})
		switch {
		case err != nil:
			return err
		case waitErr != nil:
			return waitErr
		case r.err != nil:
			return r.err
		case waiting == 0:
			g.ep.Shutdown(tcpip.ShutdownWrite)
			return nil
		}
		if !t.pass(ctx.Done(), moved) {
			return ctx.Err()
		}
		switch writeErr.(type) {
		case nil:
		case *tcpip.ErrWouldBlock:
			select {
			case <-room:
			case <-ctx.Done():
				return ctx.Err()
			}
		default:
			return errors.New(writeErr.String())
		}
	}
}

// readable returns how many bytes can be read now: zero at the end of the stream, EAGAIN
// when none are available yet.
func readable(fd int) (int, error) {
	var probe [1]byte
	iovecs := [1]unix.Iovec{{Base: &probe[0], Len: 1}}
	for {
		n, err := recvmsg(uintptr(fd), iovecs[:], unix.MSG_PEEK)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return 0, err
		}
		break
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0, err
	}
	return max(n, 1), nil // at an urgent mark the count is zero, though a byte follows
}

// socketReader is a payload of exactly the bytes that wait in a socket, so that the stack
// reads them straight into its buffers.
type socketReader struct {
	fd   int
	left int
	err  error
}

func (r *socketReader) Len() int { return r.left }

func (r *socketReader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		n, err := unix.Read(r.fd, b[:min(len(b), r.left)])
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && n == 0:
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			r.err = err
			return 0, err
		}
		r.left -= n
		return n, nil
	}
}

// drain waits until the guest has taken the last bytes and the end.
func drain(ctx context.Context, g guestConn) {
	entry, changed := waiter.NewChannelEntry(waiter.EventHUp | waiter.EventErr | waiter.WritableEvents | waiter.ReadableEvents)
	g.wq.EventRegister(&entry)
	defer g.wq.EventUnregister(&entry)
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	for {
		switch tcp.EndpointState(g.ep.State()) {
		case tcp.StateClose, tcp.StateError, tcp.StateTimeWait:
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			g.abort()
			return
		case <-timeout.C:
			g.abort()
			return
		}
	}
}
