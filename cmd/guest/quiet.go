package main

import (
	"math"
	"net"
	"net/http"
	"runtime/debug"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// forcegcperiod is how long Go's runtime waits between collections that nothing else
// asks for, in nanoseconds. Its monitor wakes up after half of that, a minute, even when
// all of the Guest sleeps, and the sentry wakes up three times more for that: its clocks
// and its watchdog run on for a while. Of a thousand Sandboxes that do nothing that was
// most of the processor time.
//
//go:linkname forcegcperiod runtime.forcegcperiod
var forcegcperiod int64

// quietAfter is the time without a request after which the Guest gives back memory.
const quietAfter = 2 * time.Minute

// watch has the Guest sleep when nobody asks for anything. It returns what takes note of
// connections: memory that requests needed is given back once, quietAfter the last of
// them, where the runtime would go on to look every two minutes.
func watch(g *server.Guest) func(net.Conn, http.ConnState) {
	forcegcperiod = math.MaxInt64
	quiet := time.AfterFunc(quietAfter, debug.FreeOSMemory)
	return func(c net.Conn, s http.ConnState) {
		quiet.Reset(quietAfter)
		g.Watch(c, s)
	}
}
