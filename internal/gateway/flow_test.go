package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

// pipe serves one handler over a connection in memory, so that a test can have
// time pass. It returns the client's end.
func pipe(t *testing.T, handler http.HandlerFunc) net.Conn {
	client, server := net.Pipe()
	ln := &oneConn{conn: server, done: make(chan struct{})}
	ln.close = sync.OnceFunc(func() { close(ln.done) })
	srv := &http.Server{Handler: handler}
	go srv.Serve(ln)
	t.Cleanup(func() {
		client.Close()
		srv.Close()
		time.Sleep(time.Minute) // of the bubble: whoever sleeps wakes and ends
	})
	return client
}

type oneConn struct {
	conn  net.Conn
	done  chan struct{}
	close func()
}

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { l.close(); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// readBody reads the bounded body of a request and reports how that ended.
func readBody(result chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out := &writer{ResponseWriter: w, flow: http.NewResponseController(w)}
		b, err := newBody(out, r, catalogue.Streamed)
		if err == nil {
			_, err = io.Copy(io.Discard, b)
		}
		result <- err
	}
}

func TestSilentBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		conn := pipe(t, readBody(result))
		start := time.Now()
		go io.Copy(io.Discard, conn)
		io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nsome")
		if err := <-result; !errors.Is(err, sandbox.Invalid) || time.Since(start) != stalledTime {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
}

// Bodies that are held in memory count against the share of their Tenant, so that one that
// sends all of its bodies but their ends does not fill the memory of the server.
func TestBodiesInMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := spool.NewMemory(2*bodyCopies<<20, bodyCopies<<20)
		over := make(chan struct{})
		defer close(over)
		send := func(tenant, head string, n int) (net.Conn, <-chan error) {
			result := make(chan error, 1)
			conn := pipe(t, func(w http.ResponseWriter, r *http.Request) {
				ctx, release := memory.With(r.Context(), tenant)
				defer release()
				out := &writer{ResponseWriter: w, flow: http.NewResponseController(w)}
				r = r.WithContext(ctx)
				b, err := newBody(out, r, 1<<20)
				if err == nil {
					out.body.gather(r, 1<<20)
					_, err = io.ReadAll(b)
				}
				result <- err
				<-over // it counts only while it arrives
			})
			go io.Copy(io.Discard, conn)
			go io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\n"+head+string(make([]byte, n)))
			return conn, result
		}
		const sized, most = "Content-Length: 1048576\r\n\r\n", 1<<20 - 1
		conn, held := send("a", sized, most)
		synctest.Wait()
		for name, tt := range map[string]struct {
			tenant, head string
			n            int
			want         sandbox.Code
		}{
			"the next one":              {"a", sized, 1 << 20, sandbox.Exhausted},
			"one of unknown length":     {"a", "Transfer-Encoding: chunked\r\n\r\n80000\r\n", 0x80000, sandbox.Exhausted},
			"a small one":               {"a", "Content-Length: 1000\r\n\r\n", 1000, ""},
			"one of another tenant":     {"b", sized, 1 << 20, ""},
			"another one of that, next": {"b", sized, 1 << 20, ""},
		} {
			_, result := send(tt.tenant, tt.head, tt.n)
			if err := <-result; sandbox.CodeOf(err) != tt.want {
				t.Errorf("%s: %v, want %q", name, err, tt.want)
			}
		}
		io.WriteString(conn, "x")
		if err := <-held; err != nil {
			t.Error(err)
		}
		_, result := send("a", sized, 1<<20)
		if err := <-result; err != nil {
			t.Errorf("after its end: %v", err)
		}
	})
}

func TestDrippingBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		conn := pipe(t, readBody(result))
		start := time.Now()
		go io.Copy(io.Discard, conn)
		io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
		go func() {
			for {
				if _, err := conn.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(10 * time.Second)
			}
		}()
		if err := <-result; !errors.Is(err, sandbox.Invalid) || time.Since(start) > stalledTime+time.Second {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
}

func TestSteadyBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		conn := pipe(t, readBody(result))
		go io.Copy(io.Discard, conn)
		io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n")
		for range 300 { // 5 minutes, 2000 bytes a second
			conn.Write(make([]byte, 2000))
			time.Sleep(time.Second)
		}
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

// The time that the reader takes between reads does not count against the sender.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		conn := pipe(t, func(w http.ResponseWriter, r *http.Request) {
			out := &writer{ResponseWriter: w, flow: http.NewResponseController(w)}
			b, _ := newBody(out, r, catalogue.Streamed)
			var err error
			for err == nil {
				_, err = b.Read(make([]byte, 10))
				time.Sleep(20 * time.Second)
			}
			result <- err
		})
		go io.Copy(io.Discard, conn)
		go io.WriteString(conn, "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"+string(make([]byte, 100)))
		if err := <-result; !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// After its body a request may take as long as it likes, and still learns that
// its client left.
func TestLongRequestAfterItsBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		read, left := make(chan struct{}), make(chan error, 1)
		conn := pipe(t, func(w http.ResponseWriter, r *http.Request) {
			out := &writer{ResponseWriter: w, flow: http.NewResponseController(w)}
			b, _ := newBody(out, r, catalogue.JSON)
			io.ReadAll(b)
			close(read)
			<-r.Context().Done()
			left <- context.Cause(r.Context())
		})
		go io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
		<-read
		time.Sleep(time.Hour)
		select {
		case err := <-left:
			t.Fatalf("ended by itself: %v", err)
		default:
		}
		conn.Close()
		<-left
	})
}

// A client that reads slowly is served to the end, however large a write is.
func TestLargeWriteToASlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 40 * maxPiece
		result := make(chan error, 1)
		conn := pipe(t, func(w http.ResponseWriter, r *http.Request) {
			out := &writer{ResponseWriter: w, flow: http.NewResponseController(w)}
			n, err := out.Write(make([]byte, size))
			if n != size {
				t.Errorf("%d bytes were written", n)
			}
			result <- err
		})
		start := time.Now()
		go io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		go func() {
			for buffer := make([]byte, maxPiece/2); ; time.Sleep(stalledTime / 3) {
				if _, err := io.ReadFull(conn, buffer); err != nil {
					return
				}
			}
		}()
		if err := <-result; err != nil || time.Since(start) < 10*stalledTime {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
}

// A client that takes nothing is let go.
func TestStalledReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		result := make(chan error, 1)
		conn := pipe(t, func(w http.ResponseWriter, r *http.Request) {
			out := &writer{ResponseWriter: w, flow: http.NewResponseController(w)}
			var err error
			for err == nil {
				_, err = out.Write(make([]byte, 64<<10))
			}
			if !out.gone {
				t.Error("nobody noticed")
			}
			result <- err
		})
		start := time.Now()
		go io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if err := <-result; err == nil || time.Since(start) != stalledTime {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
}
