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
	// workPercent all but switches the collector off while a state is saved or loaded:
	// what that allocates is two to four times the heap of before.
	workPercent = 800
	// restAfter is the time from the start of a sentry, or the end of its work, to the
	// collection that gives back what it used.
	restAfter = 1200 * time.Millisecond
	// quietAfter is the time without a collection after which a sentry is idle.
	quietAfter = 10 * time.Second
	// An idle sentry counts as used when it holds idleSlack bytes more, or idleShare of
	// what it holds where that is more. The runtime keeps 1 MiB away from a limit.
	idleSlack, idleShare = 2 << 20, 4
)

// tuneHeap keeps the collector away while a sentry boots, saves or loads a state,
// and makes it keep the heap small otherwise. runsc wipes the environment of a
// sentry, so GOGC cannot be set from outside.
func tuneHeap() {
	told := make(chan os.Signal, 4)
	signal.Notify(told, sentryhost.SignalWork, sentryhost.SignalRest)
	debug.SetGCPercent(-1)
	go new(heap).keep(told, collections())
}

// heap is the memory of a sentry. An idle one collects nothing: the runtime would do
// so every two minutes otherwise, which of a thousand sentries takes a good part of a
// processor.
type heap struct {
	idle   bool
	cycles uint64 // collections that there were when it became idle
}

// keep has the collector do what suits what the sentry does, until told is closed. It
// gives back what is free when the sentry becomes idle, and does not wake it up again.
func (h *heap) keep(told <-chan os.Signal, collected <-chan struct{}) {
	rest := time.NewTimer(restAfter)
	working, owing := false, true // owing: what a boot, a save or a load needed is to be given back
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

// use has the collector run whenever the heap has grown by percent.
func (h *heap) use(percent int) {
	h.idle = false
	debug.SetMemoryLimit(math.MaxInt64)
	debug.SetGCPercent(percent)
}

// rest gives back what is free, and has the collector run when there is much more.
func (h *heap) rest() {
	debug.SetGCPercent(-1)
	debug.FreeOSMemory()
	now := held()
	debug.SetMemoryLimit(now + max(idleSlack, now/idleShare))
	h.idle, h.cycles = true, cycles()
}

// held is the memory that the runtime has of the host, in bytes.
func held() int64 {
	const all, released = "/memory/classes/total:bytes", "/memory/classes/heap/released:bytes"
	s := []metrics.Sample{{Name: all}, {Name: released}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

// cycles counts the collections that are over.
func cycles() uint64 {
	s := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// collections returns what gets a value after collections.
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
