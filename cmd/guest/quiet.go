//go:build linux

package main

import (
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// quietAfter is the time without a request after which the Guest frees unused
// memory.
const quietAfter = 2 * time.Minute

// watch lets the Guest sleep when it is idle. It returns the server's ConnState hook,
// which frees unused memory once, quietAfter after the last event. The runtime's own
// checks, every two minutes, would wake an idle Guest, so they are off.
func watch(g *server.Guest) func(net.Conn, http.ConnState) {
	neverForceCollections()
	quiet := time.AfterFunc(quietAfter, debug.FreeOSMemory)
	return func(c net.Conn, s http.ConnState) {
		quiet.Reset(quietAfter)
		g.Watch(c, s)
	}
}
