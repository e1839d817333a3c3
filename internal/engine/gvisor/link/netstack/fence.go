package netstack

import (
	"errors"
	"sync"
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
type fence struct {
	at atomic.Int64 // nanoseconds of CLOCK_BOOTTIME; zero: never

	mu    sync.Mutex
	timer *time.Timer // cuts the connections then; nil: none
}

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

// CloseAt has all links carry nothing from a time since the machine started on; zero:
// never. A later call replaces the time. With keep, a time that is set already stays.
// Connections are cut at that time, so that the kernel does not deliver the bytes later that
// it could not deliver before.
func (s *Shared) CloseAt(at time.Duration, keep bool) {
	f := &s.fence
	f.mu.Lock()
	defer f.mu.Unlock()
	if keep && f.at.Load() != 0 {
		return
	}
	f.at.Store(int64(at))
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	if at != 0 {
		f.timer = time.AfterFunc(at-link.SinceBoot(), func() {
			if f.closed() {
				s.cut()
			}
		})
	}
}

// cut ends the connections of all links.
func (s *Shared) cut() {
	for _, l := range s.joined() {
		l.mu.Lock()
		for f := range l.flows {
			f.cancel()
		}
		l.mu.Unlock()
	}
}
