//go:build linux && linkname

package main

import (
	"math"
	_ "unsafe" // for go:linkname
)

// forcegcperiod is how long Go's runtime waits between collections that nothing else
// asks for, in nanoseconds. Its monitor wakes up after half of that, a minute, even when
// all of the Guest sleeps, and the sentry wakes up three times more for that: its clocks
// and its watchdog run on for a while. Of a thousand Sandboxes that do nothing that was
// most of the processor time.
//
//go:linkname forcegcperiod runtime.forcegcperiod
var forcegcperiod int64

// neverForceCollections has the runtime collect only when memory was allocated.
func neverForceCollections() { forcegcperiod = math.MaxInt64 }
