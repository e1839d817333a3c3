package disk

import (
	"maps"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const (
	// leaseTime is how long a change waits for a lease: longer than the Boot's own count,
	// which begins earlier.
	leaseTime = volume.LeaseTime + 2*time.Millisecond
	// shunTime is how long a file gets no lease after a change had to wait for one to
	// expire.
	shunTime = 50 * time.Millisecond
	// maxLeases is how many files of a Volume have leases at a time.
	maxLeases = 1024
)

// leases are promises to Boots that no other Boot changes the bytes of a file for
// leaseTime. They expire, so that a change does not wait long for a Boot that is
// hostile, stopped or gone. The zero value is ready.
type leases struct {
	mu       sync.Mutex
	held     map[uint64]lease // by file
	changing map[uint64]int   // running or waiting changes of a file
	last     int64            // number of the newest lease
}

type lease struct {
	id    int64  // of the newest lease; releasing an earlier one has no effect
	by    *mount // nil: several holders
	until time.Time
	ended chan struct{} // closed on release
	shun  time.Time     // no new lease until then: a change had to wait for expiry
}

// grant gives a Boot a lease of a file and returns its number; zero: a change is running
// or waiting, or the file is shunned.
func (l *leases) grant(node uint64, m *mount) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if len(l.held) >= maxLeases {
		maps.DeleteFunc(l.held, func(_ uint64, is lease) bool { return now.After(is.until) })
	}
	if l.changing[node] > 0 || len(l.held) >= maxLeases {
		return 0
	}
	is, ok := l.held[node]
	switch {
	case ok && now.Before(is.shun):
		return 0
	case !ok || now.After(is.until):
		is = lease{by: m, ended: make(chan struct{})}
	case is.by != m:
		is.by = nil
	}
	l.last++
	is.id, is.until = l.last, now.Add(leaseTime)
	if l.held == nil {
		l.held = map[uint64]lease{}
	}
	l.held[node] = is
	return is.id
}

// end releases a Boot's lease.
func (l *leases) end(node uint64, id int64, m *mount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if is, ok := l.held[node]; ok && is.id == id && is.by == m {
		delete(l.held, node)
		close(is.ended)
	}
}

// shun denies leases of a file for a while. Otherwise a Boot that keeps asking for them
// would delay every change.
func (l *leases) shun(node uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if is, ok := l.held[node]; ok {
		is.shun = time.Now().Add(shunTime)
		l.held[node] = is
	}
}

// change begins a Boot's change of a file's bytes, after it waited for others' leases;
// done ends it.
func (l *leases) change(node uint64, m *mount) (done func()) {
	l.mu.Lock()
	if l.changing == nil {
		l.changing = map[uint64]int{}
	}
	l.changing[node]++
	is, ok := l.held[node]
	l.mu.Unlock()
	if wait := time.Until(is.until); ok && is.by != m && wait > 0 {
		late := time.NewTimer(wait)
		select {
		case <-late.C:
			l.shun(node)
		case <-is.ended:
			late.Stop()
		}
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.changing[node]--; l.changing[node] == 0 {
			delete(l.changing, node)
		}
	}
}
