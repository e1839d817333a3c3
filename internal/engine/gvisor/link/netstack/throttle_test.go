package netstack

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var th throttle
		begun := time.Now()
		if !th.pass(nil, 1<<30) || time.Since(begun) != 0 || th.turn() < 1<<30 {
			t.Error("without a rate it holds up")
		}
		th.setRate(1000)
		for range 10 { // as much at a time as may be
			th.pass(nil, 500)
		}
		if got, want := time.Since(begun), 5*time.Second-burst; got != want {
			t.Errorf("5000 bytes at 1000 a second took %v, want %v", got, want)
		}
		time.Sleep(time.Hour) // unused rate is not saved up
		begun = time.Now()
		th.pass(nil, 1000)
		if got, want := time.Since(begun), time.Second-burst; got != want {
			t.Errorf("after an hour 1000 bytes took %v, want %v", got, want)
		}
	})
}

// A waiting transfer is released by a new rate, and by the end of its connection.
func TestThrottleLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var th throttle
		th.setRate(1)
		done := make(chan struct{})
		passed := make(chan bool)
		go func() { passed <- th.pass(done, 1<<20) }()
		synctest.Wait()
		th.setRate(0)
		if !<-passed {
			t.Error("another rate cuts the connection")
		}
		th.setRate(1)
		go func() { passed <- th.pass(done, 1<<20) }()
		synctest.Wait()
		close(done)
		if <-passed {
			t.Error("a connection that ended goes on")
		}
	})
}

func TestThrottleTurns(t *testing.T) {
	var th throttle
	for rate, want := range map[int64]int{1: int(leastTurn), 1 << 20: (1 << 20) / turns, 1 << 40: int(mostTurn)} {
		if th.setRate(rate); th.turn() != want {
			t.Errorf("at %d bytes a second %d are moved at a time, want %d", rate, th.turn(), want)
		}
	}
}

// A bandwidth limit delays data in both directions and does not change it.
func TestBandwidth(t *testing.T) {
	const rate, size = 2 << 20, 1 << 20
	l, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll})
	l.SetBandwidth(rate)
	received := make(chan []byte, 1)
	data := pattern(size)
	addr := server(t, func(c *net.TCPConn) {
		b, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		received <- b
		_, _ = c.Write(data)
	})
	c, err := g.dial(testContext(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begun := time.Now()
	go func() {
		_, _ = c.Write(data)
		_ = c.CloseWrite()
	}()
	if got := <-received; !bytes.Equal(got, data) {
		t.Errorf("%d bytes came out", len(got))
	}
	const least = size * int64(time.Second) / rate / 2 // a turn and the burst pass sooner
	if took := time.Since(begun); took < time.Duration(least) {
		t.Errorf("%d bytes went out in %v", size, took)
	}
	begun = time.Now()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes came in, %v", len(got), err)
	}
	if took := time.Since(begun); took < time.Duration(least) {
		t.Errorf("%d bytes came in in %v", size, took)
	}
	for deadline := time.Now().Add(time.Minute); ; { // the count may lag behind the arrival
		u := l.Usage()
		if u.Sent == size && u.Received == size {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes out and %d in are counted, of %d", u.Sent, u.Received, size)
		}
		time.Sleep(time.Millisecond)
	}
}

// A throttled upload ends at once when the policy cuts it.
func TestBandwidthOfWhatIsCut(t *testing.T) {
	l, g := pair(t, sandbox.NetworkPublic, Config{Refuse: allowAll})
	l.SetBandwidth(1)
	addr := server(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	c, err := g.dial(testContext(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	writing := make(chan struct{})
	go func() {
		defer close(writing)
		_, _ = c.Write(pattern(32 << 20))
	}()
	waitConnections(t, l, 1)
	if err := l.SetPolicy(sandbox.NetworkNone); err != nil {
		t.Fatal(err)
	}
	<-writing
	waitConnections(t, l, 0)
}
