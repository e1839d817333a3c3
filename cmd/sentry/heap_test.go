//go:build linux

package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

func TestHeapOfASentry(t *testing.T) {
	t.Cleanup(func() { new(heap).use(100) })
	synctest.Test(t, func(t *testing.T) {
		told, collected := make(chan os.Signal), make(chan struct{})
		defer close(told)
		debug.SetGCPercent(-1)
		debug.SetMemoryLimit(math.MaxInt64)
		go new(heap).keep(told, collected)
		is := func(when string, percent int, limited bool) {
			t.Helper()
			synctest.Wait()
			got := debug.SetGCPercent(-1)
			debug.SetGCPercent(got)
			if limit := debug.SetMemoryLimit(-1); got != percent || limited != (limit < math.MaxInt64) {
				t.Errorf("%s: the collector runs at %d percent, limit %d", when, got, limit)
			}
		}
		is("while it boots", -1, false)
		time.Sleep(restAfter + 1)
		is("idle", -1, true)
		collected <- struct{}{}
		is("idle, after the collection that made it so", -1, true)
		runtime.GC()
		collected <- struct{}{}
		is("used", busyPercent, false)
		time.Sleep(quietAfter - time.Second)
		collected <- struct{}{}
		time.Sleep(quietAfter - time.Second)
		is("still used", busyPercent, false)
		time.Sleep(time.Second + 1)
		is("idle again", -1, true)

		told <- sentryhost.SignalWork
		is("at work", workPercent, false)
		collected <- struct{}{}
		time.Sleep(time.Minute)
		is("long at work", workPercent, false)
		told <- sentryhost.SignalRest
		time.Sleep(restAfter + 1)
		is("idle after work", -1, true)
	})
}

var kept []byte // what the test below allocates last

// What an idle sentry allocates has an end: it is collected without being told to.
func TestIdleHeapHasALimit(t *testing.T) {
	t.Cleanup(func() { new(heap).use(100); kept = nil })
	new(heap).rest()
	before := cycles()
	for range 64 {
		kept = make([]byte, idleSlack/8)
	}
	if cycles() == before {
		t.Errorf("%d bytes were dropped, and nothing was collected", 8*idleSlack)
	}
	if now := debug.SetMemoryLimit(-1); held() > now+2*idleSlack {
		t.Errorf("%d bytes are held, and the limit is %d", held(), now)
	}
}

func TestCollections(t *testing.T) {
	over := collections()
	for range 3 {
		runtime.GC()
		select {
		case <-over:
		case <-time.After(10 * time.Second):
			t.Fatal("nothing is told of a collection")
		}
	}
}
