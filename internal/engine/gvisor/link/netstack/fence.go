package netstack

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link"
)

// errFenced ends the connections of a guest whose shard's fence is closed.
var errFenced = errors.New("the node has lost its lease")

// A fence ends all traffic of the links of a shard at a time, unless the time is moved
// before. The zero value never does. It is read before each write, by a clock that also
// counts while the machine is suspended: so a shard that was stopped sends nothing when it
// continues.
type fence struct{ at atomic.Int64 } // nanoseconds of CLOCK_BOOTTIME; zero: never

// closed reports whether the time has come.
func (f *fence) closed() bool {
	at := f.at.Load()
	return at != 0 && int64(link.SinceBoot()) >= at
}

// check returns errFenced once the time has come.
func (f *fence) check() error {
	if f.closed() {
		return errFenced
	}
	return nil
}

// CloseAt has all links carry nothing from a time since the machine started on; a later
// call replaces the time. With keep, a time that is set already stays.
func (s *Shared) CloseAt(at time.Duration, keep bool) {
	if keep {
		s.fence.at.CompareAndSwap(0, int64(at))
		return
	}
	s.fence.at.Store(int64(at))
}

// NeverClose undoes CloseAt.
func (s *Shared) NeverClose() { s.fence.at.Store(0) }
