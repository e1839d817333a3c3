//go:build linux

package main

import (
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

const (
	// busyPercent keeps the heap of a sentry small while its Sandbox is used.
	busyPercent = 40
	// workPercent nearly switches the collector off while a state is saved or loaded:
	// that allocates two to four times the previous heap.
	workPercent = 800
	// restAfter is the time from the start of a sentry, or the end of its work, to the
	// collection that returns its memory.
	restAfter = 1200 * time.Millisecond
	// quietAfter is the time without a collection after which a sentry is idle.
	quietAfter = 10 * time.Second
	// An idle sentry counts as used when its memory grows by idleSlack bytes, or by
	// 1/idleShare if that is more. The runtime keeps 1 MiB away from a limit.
	idleSlack, idleShare = 2 << 20, 4
)

// tuneHeap holds the collector off while a sentry boots, saves or loads a state, and
// keeps the heap small otherwise. runsc wipes a sentry's environment, so GOGC cannot be
// set from outside.
func tuneHeap() {
	told := make(chan os.Signal, 4)
	signal.Notify(told, sentryhost.SignalWork, sentryhost.SignalRest)
	debug.SetGCPercent(-1)
	go new(heap).keep(told, collections())
}

// heap controls the collector of a sentry. An idle sentry does not collect: the runtime
// would every two minutes, and for a thousand sentries that costs a good part of a core.
type heap struct {
	idle   bool
	cycles uint64 // collections when it became idle
}

// keep adapts the collector to the sentry's work until the channel of signals is
// closed. When the sentry becomes idle it returns free memory to the host once.
func (h *heap) keep(told <-chan os.Signal, collected <-chan struct{}) {
	rest := time.NewTimer(restAfter)
	working, owing := false, true // owing: the memory of a boot, save or load is still to be returned
	for {
		select {
		case s, ok := <-told:
			if !ok {
				return
			}
			if working = s == sentryhost.SignalWork; working {
				rest.Stop()
				h.use(workPercent)
			} else {
				rest.Reset(restAfter)
			}
			owing = !working
		case <-rest.C:
			owing = false
			h.rest()
		case <-collected:
			if working || owing || h.idle && cycles() == h.cycles {
				continue
			}
			h.use(busyPercent)
			rest.Reset(quietAfter)
		}
	}
}

// use makes the collector run whenever the heap has grown by percent.
func (h *heap) use(percent int) {
	h.idle = false
	debug.SetMemoryLimit(math.MaxInt64)
	debug.SetGCPercent(percent)
}

// rest returns free memory, and lets the collector run only when the heap has grown much.
func (h *heap) rest() {
	debug.SetGCPercent(-1)
	debug.FreeOSMemory()
	now := held()
	debug.SetMemoryLimit(now + max(idleSlack, now/idleShare))
	h.idle, h.cycles = true, cycles()
}

// held is the host memory that the runtime holds, in bytes.
func held() int64 {
	const all, released = "/memory/classes/total:bytes", "/memory/classes/heap/released:bytes"
	s := []metrics.Sample{{Name: all}, {Name: released}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

// cycles counts finished collections.
func cycles() uint64 {
	s := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// collections returns a channel that gets a value after each collection.
func collections() <-chan struct{} {
	over := make(chan struct{}, 1)
	type canary struct{ _ *byte } // has a pointer: the runtime collects it by itself
	var again func(*canary)
	again = func(c *canary) {
		select {
		case over <- struct{}{}:
		default:
		}
		runtime.SetFinalizer(c, again)
	}
	runtime.SetFinalizer(new(canary), again)
	return over
}
