package server

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

// forwardTime bounds the connect to a port of this machine's own.
const forwardTime = 5 * time.Second

// Forward connects the host to services that listen on loopback alone, which the
// link does not reach. A request upgrades to a stream to the port that it names;
// 502 says that nothing listens there.
func Forward(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || r.Header.Get("Upgrade") != guest.ForwardProtocol {
		http.Error(w, "a port and the upgrade are wanted", http.StatusBadRequest)
		return
	}
	inside, err := dialLoopback(strconv.FormatUint(port, 10))
	if err != nil {
		http.Error(w, "no listener", http.StatusBadGateway)
		return
	}
	defer inside.Close()
	outside, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer outside.Close()
	const head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + guest.ForwardProtocol + "\r\n\r\n"
	if _, err := io.WriteString(outside, head); err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { passOn(inside, buffered, outside) })
	both.Go(func() { passOn(outside, inside, inside) })
	both.Wait()
}

func dialLoopback(port string) (net.Conn, error) {
	d := net.Dialer{Timeout: forwardTime}
	conn, err := d.Dial("tcp4", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return d.Dial("tcp6", net.JoinHostPort("::1", port))
	}
	return conn, nil
}

// passOn copies until from ends, and then closes that direction. When to accepts no
// more data, source is no longer read.
func passOn(to net.Conn, from io.Reader, source net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	if err != nil {
		to.Close()
		source.Close()
	}
}
