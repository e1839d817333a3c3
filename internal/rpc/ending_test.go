package rpc

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A connection that a client had made before a shutdown began is answered, however late
// the server comes to accept it; later ones are refused.
func TestLastConnections(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp4", "tcp6", "unix"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			address := map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0", "unix": filepath.Join(t.TempDir(), "s")}[network]
			ln, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			var early []net.Conn
			for range 20 {
				conn, err := net.Dial(network, ln.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
					t.Fatal(err)
				}
				early = append(early, conn)
			}
			draining, ended := make(chan struct{}), make(chan struct{})
			began := time.Now()
			go func() {
				defer close(ended)
				LetConnectionsEnd(draining, []net.Listener{ln})
			}()
			<-draining
			time.Sleep(2 * lastRequests) // the server is busy
			select {
			case <-ended: // of a Unix socket the kernel does not say who waits
				if network != "unix" && time.Since(began) < acceptLimit {
					t.Error("the shutdown did not wait for the server")
				}
			default:
			}
			served := make(chan error, 1)
			srv := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { EndConnection(w, draining) })}
			go func() { served <- srv.Serve(ln) }()
			for i, conn := range early {
				_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatalf("connection %d: %v", i, err)
				}
				resp.Body.Close()
			}
			if conn, err := net.DialTimeout(network, ln.Addr().String(), time.Minute); !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT) {
				t.Errorf("a connection after the shutdown began: %v, %v", conn, err)
			}
			<-ended
			srv.Close()
			<-served
		})
	}
}

// A listener for other roles shows its socket to LetConnectionsEnd.
func TestSecuredSocket(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	got := false
	onSocket(Secured(ln, newPKI(t).identity(t, Node, "n")), func(int) { got = true })
	if !got {
		t.Error("no socket")
	}
	if _, err := (securedListener{}).SyscallConn(); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}
