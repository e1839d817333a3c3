package netstack

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/sniff"
)

const (
	// maxWebHeader bounds the header of one request, in bytes.
	maxWebHeader = 64 << 10
	// webHeaderTimeout bounds the arrival of one header.
	webHeaderTimeout = time.Minute
)

// carryWeb serves a plain HTTP connection under rules about names: each request is
// checked by its Host, rewritten, and sent to the dialled address, so that no second
// request can hide in the first.
func (l *Link) carryWeb(life context.Context, f *flow, g guestConn, host *net.TCPConn) {
	first := make(chan net.Conn, 1)
	first <- l.wired(life, host)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case conn := <-first:
				return conn, nil
			default: // the other side ended the previous connection
				return l.dialWired(ctx, life, f)
			}
		},
		DisableCompression: true, MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1, MaxResponseHeaderBytes: maxWebHeader,
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", f.addr().String()
			r.Out.Host = r.In.Host
		},
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(w, "the server did not answer", http.StatusBadGateway)
		},
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !l.show(f, policy.Shown{Kind: policy.KindHTTP, Name: sniff.HostName(r.Host)}) {
				w.Header().Set("Connection", "close")
				http.Error(w, "the network policy of this sandbox does not allow "+r.Host, http.StatusForbidden)
				return
			}
			proxy.ServeHTTP(w, r)
		}),
		BaseContext:       func(net.Listener) context.Context { return life },
		MaxHeaderBytes:    maxWebHeader,
		ReadHeaderTimeout: webHeaderTimeout,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	conn := &webConn{TCPConn: gonet.NewTCPConn(g.wq, g.ep), g: g, closed: make(chan struct{})}
	serveOne(life, g, conn, conn, server, transport, first)
}

// serveOne has server serve one connection, which is raw or wraps it, and returns when
// the connection is closed. It closes transport and an unused connection in first. It
// ends with life at the latest.
func serveOne(life context.Context, g guestConn, raw *webConn, conn net.Conn, server *http.Server, transport *http.Transport, first chan net.Conn) {
	var serving sync.WaitGroup
	handler := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serving.Add(1)
		defer serving.Done()
		handler.ServeHTTP(w, r)
	})
	severed := make(chan struct{})
	disarm := context.AfterFunc(life, func() {
		defer close(severed)
		g.abort()
		_ = server.Close()
		_ = raw.Close() // the server does not track connections that became WebSockets
	})
	_ = server.Serve(&oneConn{conn: conn, closed: raw.closed})
	<-raw.closed
	serving.Wait()
	transport.CloseIdleConnections()
	select {
	case unused := <-first:
		unused.Close()
	default:
	}
	if disarm() {
		drain(life, g)
	} else {
		<-severed
	}
	g.close()
}

// webConn is the guest's connection for an HTTP server. Closing it ends both directions
// and leaves the endpoint to its owner.
type webConn struct {
	*gonet.TCPConn
	g      guestConn
	once   sync.Once
	closed chan struct{}
}

func (c *webConn) Close() error {
	c.once.Do(func() {
		_ = c.SetDeadline(time.Unix(1, 0)) // wakes readers and writers
		c.g.ep.Shutdown(tcpip.ShutdownRead | tcpip.ShutdownWrite)
		close(c.closed)
	})
	return nil
}

// oneConn is a listener that accepts one connection and ends with it.
type oneConn struct {
	conn   net.Conn
	closed chan struct{} // closed when conn is
	given  bool
}

func (o *oneConn) Accept() (net.Conn, error) {
	if o.given {
		<-o.closed
		return nil, errOver
	}
	o.given = true
	return o.conn, nil
}

var errOver = errors.New("there is one connection only")

func (o *oneConn) Close() error   { return nil }
func (o *oneConn) Addr() net.Addr { return o.conn.LocalAddr() }
