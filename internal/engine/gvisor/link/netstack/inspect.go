package netstack

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/sniff"
)

// firstTimeout bounds how long a connection whose first bytes must be inspected may stay
// silent.
const firstTimeout = time.Minute

// carry moves the bytes of a connection between its two sides, after the policy has seen
// the first bytes if it needs them. It closes both sides.
func (l *Link) carry(life context.Context, f *flow, g guestConn, host *net.TCPConn) {
	if !f.asked && !l.mayOpen(f) {
		splice(life, g, host, &l.wire, &l.cfg.Shared.fence)
		return
	}
	ctx, cancel := context.WithTimeout(life, firstTimeout)
	shown, err := l.firstWords(ctx, f, g, host)
	cancel()
	switch {
	case err != nil && f.asked:
		l.note(f.target, "", policy.Decision{Verdict: policy.Refused, Reason: "it ended before it showed its protocol"})
		cut(g, host)
	case err != nil:
		splice(life, g, host, &l.wire, &l.cfg.Shared.fence)
	case shown.Kind == policy.KindHTTP && f.asked:
		l.carryWeb(life, f, g, host)
	case f.asked && !l.show(f, shown):
		cut(g, host)
	default:
		l.carryShown(life, f, g, host, shown)
	}
}

// carryShown moves the bytes of a connection that the policy allows, and terminates its
// TLS if its requests get secrets.
func (l *Link) carryShown(life context.Context, f *flow, g guestConn, host *net.TCPConn, shown policy.Shown) {
	leaf, err := l.open(f, shown)
	switch {
	case err != nil:
		l.note(f.target, shown.Name, policy.Decision{Verdict: policy.Refused, Reason: err.Error()})
		cut(g, host)
	case leaf == nil:
		splice(life, g, host, &l.wire, &l.cfg.Shared.fence)
	default:
		l.carrySecrets(life, f, g, host, leaf)
	}
}

// cut resets a connection.
func cut(g guestConn, host *net.TCPConn) {
	_ = host.SetLinger(0)
	host.Close()
	g.abort()
	g.close()
}

// firstWords waits until the guest's first bytes identify the connection, and leaves them
// unread. If the policy allows a connection without a name, the other side may speak
// first.
func (l *Link) firstWords(ctx context.Context, f *flow, g guestConn, host *net.TCPConn) (policy.Shown, error) {
	silent := policy.Shown{Kind: policy.KindOther}
	if !l.wouldAllow(f.target, silent) {
		return peekFirst(ctx, g)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	spoke := make(chan bool, 1)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if speaks(ctx, host) {
			spoke <- true
			cancel()
		}
	})
	shown, err := peekFirst(ctx, g)
	cancel()
	waiting.Wait()
	select {
	case <-spoke:
		if err != nil {
			return silent, nil
		}
	default:
	}
	return shown, err
}

// speaks waits until host has bytes to read, and leaves them unread; false when ctx ends
// first.
func speaks(ctx context.Context, host *net.TCPConn) bool {
	raw, err := host.SyscallConn()
	if err != nil {
		return false
	}
	woken := make(chan struct{})
	disarm := context.AfterFunc(ctx, func() {
		defer close(woken)
		_ = host.SetReadDeadline(time.Unix(1, 0))
	})
	err = raw.Read(func(fd uintptr) bool {
		_, err := readable(int(fd))
		return err != unix.EAGAIN
	})
	if !disarm() {
		<-woken
	}
	_ = host.SetReadDeadline(time.Time{})
	return err == nil
}

// peekFirst reads the guest's first bytes, without consuming them, until they identify
// the connection.
func peekFirst(ctx context.Context, g guestConn) (policy.Shown, error) {
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	g.wq.EventRegister(&entry)
	defer g.wq.EventUnregister(&entry)
	var buf []byte
	for have := 0; ; {
		buf = grown(buf, have)
		w := tcpip.SliceWriter(buf)
		res, terr := g.ep.Read(&w, tcpip.ReadOptions{Peek: true})
		switch terr.(type) {
		case nil:
			shown, more := sniff.First(buf[:res.Count])
			if !more {
				return shown, nil
			}
			if res.Count == len(buf) && len(buf) < sniff.MaxFirst {
				have = len(buf)
				continue
			}
		case *tcpip.ErrWouldBlock:
		default:
			return policy.Shown{}, errors.New(terr.String())
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return policy.Shown{}, ctx.Err()
		}
	}
}

// grown returns a buffer for more than have bytes; a usual hello fits the first one.
func grown(buf []byte, have int) []byte {
	const first = 2 << 10
	if len(buf) > have {
		return buf
	}
	return make([]byte, min(max(first, 4*have), sniff.MaxFirst))
}
