//go:build linux && linkname

package main

import (
	"math"
	_ "unsafe" // for go:linkname
)

// forcegcperiod is the time between forced collections of Go's runtime, in
// nanoseconds. Its monitor wakes up every half period, a minute, even when all of
// the Guest sleeps. The sentry then wakes up three times more, because its clocks
// and its watchdog run on for a while. In a thousand idle Sandboxes that was most
// of the processor time.
//
//go:linkname forcegcperiod runtime.forcegcperiod
var forcegcperiod int64

// neverForceCollections has the runtime collect only when memory was allocated.
func neverForceCollections() { forcegcperiod = math.MaxInt64 }
