package netstack

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// datagramBuffers are taken only while a datagram is moved.
var datagramBuffers = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// relay moves datagrams both ways until none has passed for udpIdle, or ctx ends; then it
// closes both sides. Datagrams that find no room are lost. Once the fence is closed, the
// next datagram of the guest ends the flow.
func relay(ctx context.Context, g guestConn, host *net.UDPConn, w *wire, fence *fence) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, in := w.sides()
	var passed atomic.Int64 // datagrams
	var other sync.WaitGroup
	other.Go(func() {
		defer cancel()
		datagramsToGuest(ctx, g, host, &passed, in, fence)
	})
	stop := context.AfterFunc(ctx, func() { host.Close() })
	datagramsToHost(ctx, g, host, &passed, out, fence)
	cancel()
	stop()
	host.Close()
	other.Wait()
	g.close()
}

// datagramsToHost moves the guest's datagrams, and watches for idleness.
func datagramsToHost(ctx context.Context, g guestConn, host *net.UDPConn, passed *atomic.Int64, t *throttle, fence *fence) {
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	g.wq.EventRegister(&entry)
	defer g.wq.EventUnregister(&entry)
	idle := time.NewTicker(udpIdle)
	defer idle.Stop()
	last := int64(-1)
	for {
		n, err := sendDatagram(g, host, fence)
		switch {
		case err == nil:
			passed.Add(1)
			if !t.pass(ctx.Done(), n) {
				return
			}
			continue
		case !errors.Is(err, errNoDatagram):
			return
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return
		case <-idle.C:
			if now := passed.Load(); now == last {
				return
			} else {
				last = now
			}
		}
	}
}

var errNoDatagram = errors.New("no datagram waits")

func sendDatagram(g guestConn, host *net.UDPConn, fence *fence) (int, error) {
	buf := datagramBuffers.Get().(*[maxDatagram]byte)
	defer datagramBuffers.Put(buf)
	w := tcpip.SliceWriter(buf[:])
	res, err := g.ep.Read(&w, tcpip.ReadOptions{})
	switch err.(type) {
	case nil:
	case *tcpip.ErrWouldBlock:
		return 0, errNoDatagram
	default:
		return 0, errors.New(err.String())
	}
	if err := fence.check(); err != nil {
		return 0, err
	}
	_, writeErr := host.Write(buf[:res.Count])
	if writeErr != nil && errors.Is(writeErr, net.ErrClosed) {
		return 0, writeErr
	}
	return res.Count, nil // an unreachable port or a full buffer loses one datagram
}

// datagramsToGuest moves the host side's datagrams.
func datagramsToGuest(ctx context.Context, g guestConn, host *net.UDPConn, passed *atomic.Int64, t *throttle, fence *fence) {
	raw, err := host.SyscallConn()
	if err != nil {
		return
	}
	for {
		var n int
		var readErr error
		err := raw.Read(func(fd uintptr) bool {
			if readErr = fence.check(); readErr != nil {
				return true
			}
			n, readErr = receiveDatagram(g, int(fd))
			return readErr != unix.EAGAIN
		})
		if err != nil {
			return
		}
		switch readErr {
		case nil:
			passed.Add(1)
			if !t.pass(ctx.Done(), n) {
				return
			}
		case unix.EINTR, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH: // caused by an earlier datagram
		default:
			return
		}
	}
}

func receiveDatagram(g guestConn, fd int) (int, error) {
	buf := datagramBuffers.Get().(*[maxDatagram]byte)
	defer datagramBuffers.Put(buf)
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return 0, err
	}
	var r bytes.Reader
	r.Reset(buf[:n])
	_, _ = g.ep.Write(&r, tcpip.WriteOptions{}) // lost if the buffer is full
	return n, nil
}
