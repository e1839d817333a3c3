package enginetest

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// fence checks sandbox.Fencer, with a connection that is open when the fence closes.
func fence(t *testing.T, s *suite) {
	f, ok := s.engine.(sandbox.Fencer)
	if !ok {
		t.Skip("the engine has no fence")
	}
	fenceAt := func(at time.Duration) {
		t.Helper()
		if err := f.FenceAt(t.Context(), at); err != nil {
			t.Fatalf("FenceAt: %v", err)
		}
	}
	id := s.start(t)
	fenceAt(f.FenceClock() + time.Hour)
	s.answers(t, id)
	conn, err := s.engine.Dial(t.Context(), id, sandbox.GuestPort)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	fenceAt(f.FenceClock())
	if conn, err := s.engine.Dial(t.Context(), id, sandbox.GuestPort); !errors.Is(err, sandbox.Unavailable) {
		if err == nil {
			conn.Close()
		}
		t.Errorf("Dial behind the fence: %v, want Unavailable", err)
	}
	if n, err := s.converse(t, conn); err == nil {
		t.Errorf("a connection that was open read %d bytes behind the fence", n)
	}

	fenceAt(f.FenceClock() + time.Hour) // it is lifted
	s.answers(t, id)
	again := s.start(t)
	s.answers(t, again)

	at := f.FenceClock() + 500*time.Millisecond // it closes without a further call
	fenceAt(at)
	time.Sleep(at - f.FenceClock())
	if conn, err := s.engine.Dial(t.Context(), again, sandbox.GuestPort); err == nil {
		conn.Close()
		t.Error("Dial succeeds after the time of the fence")
	}
	fenceAt(f.FenceClock() + time.Hour)
	s.answers(t, again)
}

// converse sends a request to the Guest's control service, and returns how much it answers
// with and the error of the connection.
func (s *suite) converse(t *testing.T, conn net.Conn) (int, error) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(s.Wait)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: guest\r\n\r\n")); err != nil {
		return 0, err
	}
	return conn.Read(make([]byte, 1))
}
