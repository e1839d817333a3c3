package netstack

import (
	"context"
	"io"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
)

const (
	eventsPort = 80
	// eventsTime and maxEvents (bytes per direction) bound one connection to the events
	// address.
	eventsTime = 30 * time.Second
	maxEvents  = 1 << 20
)

// acceptEvents carries a connection to the events address back into the guest, to the
// agent's port for events: so nothing inside has to listen on a port that a program may
// want.
func (l *Link) acceptEvents(r *tcp.ForwarderRequest) {
	life, f, err := l.admitHost()
	if err != nil {
		r.Complete(true)
		return
	}
	defer l.release(f)
	life, cancel := context.WithTimeout(life, eventsTime)
	defer cancel()
	back, err := l.dialBack(life)
	if err != nil {
		r.Complete(true)
		return
	}
	defer l.release(back.flow)
	defer back.close()
	g, ok := l.complete(life, r)
	if !ok {
		return
	}
	l.establish(f, g)
	defer g.close()
	defer context.AfterFunc(life, func() { g.abort(); back.abort() })()
	carryBoth(gonet.NewTCPConn(g.wq, g.ep), gonet.NewTCPConn(back.wq, back.ep))
}

// backConn is a connection into the guest; it counts as any other.
type backConn struct {
	guestConn
	flow *flow
}

func (l *Link) dialBack(ctx context.Context) (backConn, error) {
	_, f, err := l.admitHost()
	if err != nil {
		return backConn{}, err
	}
	dialling, cancel := context.WithTimeout(ctx, link.DialTimeout)
	defer cancel()
	g, err := l.dialGuest(dialling, sandbox.EventsPort)
	if err != nil {
		l.release(f)
		return backConn{}, err
	}
	l.establish(f, g)
	return backConn{g, f}, nil
}

// carryBoth carries bytes both ways until both have ended, or one fails.
func carryBoth(a, b *gonet.TCPConn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pass(b, a)
	}()
	pass(a, b)
	<-done
}

func pass(to, from *gonet.TCPConn) {
	if _, err := io.Copy(to, io.LimitReader(from, maxEvents)); err != nil {
		_ = from.CloseRead()
	}
	_ = to.CloseWrite()
}
