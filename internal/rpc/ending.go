package rpc

import (
	"math"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lastRequests is how long requests on open connections are still accepted after a
// shutdown begins. A request that is sent while the server closes an idle connection
// fails, and the client cannot know whether it has begun. So a connection in use ends by
// the answer to a request.
const lastRequests = 250 * time.Millisecond

// acceptLimit bounds the wait for a server that does not come to accept connections.
const acceptLimit = time.Second

// EndConnection has the answer to a request end its connection, if draining is closed. A
// handler calls it before it answers.
func EndConnection(w http.ResponseWriter, draining <-chan struct{}) {
	select {
	case <-draining:
		w.Header().Set("Connection", "close")
	default:
	}
}

// LetConnectionsEnd begins the shutdown of an http.Server, which must still accept: it
// makes the listeners refuse new connections, closes draining, gives the connections in
// use a quarter of a second to end by an answer, and lets the server accept the connections
// that clients had made. http.Server.Shutdown closes the listeners and all other connections.
// No other process may have the sockets of the listeners.
func LetConnectionsEnd(draining chan struct{}, listeners []net.Listener) {
	for _, ln := range listeners {
		if !refuseNew(ln) {
			_ = ln.Close() // the server closes it again, and returns that error
		}
	}
	// Not before: a client whose connection ends makes a new one.
	close(draining)
	began := time.Now()
	time.Sleep(lastRequests)
	for anyWaits(listeners) && time.Since(began) < acceptLimit {
		time.Sleep(10 * time.Millisecond)
	}
}

// noInterface is the number of a network interface that does not exist.
const noInterface = math.MaxInt32

// refuseNew has a socket that listens refuse new connections, and reports whether it can.
// The connections that clients had made can still be accepted; closing the socket would
// reset them.
func refuseNew(ln net.Listener) bool {
	_, local := ln.Addr().(*net.UnixAddr)
	refuses := false
	onSocket(ln, func(fd int) {
		if local {
			refuses = unix.Shutdown(fd, unix.SHUT_RD) == nil
			return
		}
		// A socket of another interface takes no packet that begins a connection. The
		// packets of connections find these without it. SHUT_RD would reset them.
		refuses = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, noInterface) == nil
	})
	return refuses
}

// anyWaits reports whether connections of TCP wait to be accepted. Of a Unix socket that
// refuses new ones the kernel does not say it.
func anyWaits(listeners []net.Listener) bool {
	waits := false
	for _, ln := range listeners {
		onSocket(ln, func(fd int) {
			// For a socket that listens the kernel counts the connections here.
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			waits = waits || err == nil && info.Unacked > 0
		})
	}
	return waits
}

// onSocket calls do with the socket of a listener, unless that is closed or has none.
func onSocket(ln net.Listener, do func(fd int)) {
	of, ok := ln.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := of.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { do(int(fd)) }) // it fails once the listener is closed
}
