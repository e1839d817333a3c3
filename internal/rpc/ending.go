package rpc

import (
	"net"
	"net/http"
	"time"
)

// lastRequests is how long requests on open connections are still accepted after a
// shutdown begins. A request that is sent while the server closes an idle connection
// fails, and the client cannot know whether it has begun. So a connection in use ends by
// the answer to a request.
const lastRequests = 250 * time.Millisecond

// EndConnection has the answer to a request end its connection, if draining is closed. A
// handler calls it before it answers.
func EndConnection(w http.ResponseWriter, draining <-chan struct{}) {
	select {
	case <-draining:
		w.Header().Set("Connection", "close")
	default:
	}
}

// LetConnectionsEnd begins the shutdown of an http.Server: it closes the listeners, then
// draining, and gives the connections in use a quarter of a second to end by an answer. A
// client that connects from then on is refused, or waits for the next process if that has
// the same socket. http.Server.Shutdown closes the connections that are left.
func LetConnectionsEnd(draining chan struct{}, listeners []net.Listener) {
	for _, ln := range listeners {
		_ = ln.Close() // the server closes it again, and returns that error
	}
	// Not before: a client whose connection ends makes a new one.
	close(draining)
	time.Sleep(lastRequests)
}
