//go:build linux

package main

import (
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// quietAfter is the time without a request after which the Guest gives back memory.
const quietAfter = 2 * time.Minute

// watch has the Guest sleep when nobody asks for anything. It returns what takes note of
// connections: memory that requests needed is given back once, quietAfter the last of
// them, where the runtime would go on to look every two minutes.
func watch(g *server.Guest) func(net.Conn, http.ConnState) {
	neverForceCollections()
	quiet := time.AfterFunc(quietAfter, debug.FreeOSMemory)
	return func(c net.Conn, s http.ConnState) {
		quiet.Reset(quietAfter)
		g.Watch(c, s)
	}
}
