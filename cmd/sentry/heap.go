package main

import (
	"os"
	"os/signal"
	"runtime/debug"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/sentryhost"
)

const (
	// restPercent keeps the heap of an idle sentry small: a thousand live side by side.
	restPercent = 40
	// workPercent all but switches the collector off while a state is saved or loaded:
	// what that allocates is two to four times the heap of before.
	workPercent = 800
	// restAfter is the time from the start of a sentry, or the end of its work, to the
	// collection that gives back what it used.
	restAfter = 1200 * time.Millisecond
)

// tuneHeap keeps the collector away while a sentry boots, saves or loads a state,
// and makes it keep the heap small otherwise. runsc wipes the environment of a
// sentry, so GOGC cannot be set from outside.
func tuneHeap() {
	told := make(chan os.Signal, 4)
	signal.Notify(told, sentryhost.SignalWork, sentryhost.SignalRest)
	debug.SetGCPercent(-1)
	go func() {
		rest := time.NewTimer(restAfter)
		for {
			select {
			case s := <-told:
				if s == sentryhost.SignalRest {
					rest.Reset(restAfter)
					continue
				}
				rest.Stop()
				debug.SetGCPercent(workPercent)
			case <-rest.C:
				debug.SetGCPercent(restPercent)
				debug.FreeOSMemory()
			}
		}
	}()
}
