package netstack

import (
	"cmp"
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// burst is how long bytes may pass faster than the rate.
	burst = 100 * time.Millisecond
	// turns is how often per second a throttled connection may move bytes; leastTurn and
	// mostTurn bound the bytes that it moves each time.
	turns           = 20
	leastTurn int64 = 2 << 10
	mostTurn  int64 = 64 << 10
)

// wire is the bandwidth limit that a guest's connections share, per direction. nil is
// unlimited.
type wire struct{ out, in throttle }

// sides are the directions from the guest and to it.
func (w *wire) sides() (out, in *throttle) {
	if w == nil {
		return nil, nil
	}
	return &w.out, &w.in
}

// setRate bounds each direction, in bytes per second; zero: unlimited.
func (w *wire) setRate(rate int64) {
	w.out.setRate(rate)
	w.in.setRate(rate)
}

// throttle counts bytes and limits their rate, first come, first served. The zero value
// and nil let everything pass. Methods are safe for concurrent use.
type throttle struct {
	passed atomic.Int64 // bytes
	rate   atomic.Int64 // bytes per second; zero: unlimited

	mu      sync.Mutex
	paid    time.Time     // when the bytes so far are paid for at the rate
	changed chan struct{} // closed when the rate changes; nil: no waiter
}

func (t *throttle) setRate(rate int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rate.Store(rate)
	t.paid = time.Time{}
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// turn is how many bytes may be moved at a time.
func (t *throttle) turn() int {
	if t == nil {
		return math.MaxInt
	}
	rate := t.rate.Load()
	if rate == 0 {
		return math.MaxInt
	}
	return int(min(max(rate/turns, leastTurn), mostTurn))
}

// pass accounts for n moved bytes and waits until the next ones may move; false when done
// is closed before.
func (t *throttle) pass(done <-chan struct{}, n int) bool {
	if t == nil || n == 0 {
		return true
	}
	t.passed.Add(int64(n))
	if t.rate.Load() == 0 {
		return true
	}
	wait, changed := t.take(n, time.Now())
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-done:
		return false
	}
	return true
}

// take charges n bytes. It returns how long the caller must wait, and a channel that ends
// the wait early.
func (t *throttle) take(n int, now time.Time) (wait time.Duration, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rate := t.rate.Load()
	if rate == 0 {
		return 0, nil
	}
	if t.paid.Before(now) {
		t.paid = now
	}
	t.paid = t.paid.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.paid.Sub(now) - burst, t.changed
}

// wired is the host's side of a connection on a wire, for callers that do not splice. Its
// reads and writes fail if done is closed while they wait, and writes once the fence is
// closed.
type wired struct {
	*net.TCPConn
	wire  *wire
	fence *fence
	done  <-chan struct{}
}

var errCut = errors.New("the connection was cut")

func (c *wired) Read(p []byte) (int, error) {
	_, in := c.wire.sides()
	n, err := c.TCPConn.Read(p[:min(len(p), in.turn())])
	if err == nil {
		err = c.fence.check()
	}
	if !in.pass(c.done, n) && err == nil {
		err = errCut
	}
	return n, err
}

func (c *wired) Write(p []byte) (done int, err error) {
	out, _ := c.wire.sides()
	for done < len(p) && err == nil {
		var n int
		n, err = c.writeSome(p[done:min(len(p), done+min(out.turn(), len(p)))])
		done += n
		if !out.pass(c.done, n) && err == nil {
			err = errCut
		}
	}
	return done, err
}

// writeSome waits until bytes can be written, and writes as many as the socket takes. The
// fence is read before each of them: net.Conn would write all of p after one look.
func (c *wired) writeSome(p []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	w := socketWriter{left: len(p), fence: c.fence}
	err = raw.Write(func(fd uintptr) bool {
		w.fd, w.full = int(fd), false
		n, _ = w.Write(p)
		return n > 0 || !w.full
	})
	return n, cmp.Or(err, w.err)
}
