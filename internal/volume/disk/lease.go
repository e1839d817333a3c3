package disk

import (
	"maps"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const (
	// leaseTime is how long a change waits for what was promised: longer than a Boot
	// counts on it, which begins to count earlier.
	leaseTime = volume.LeaseTime + 2*time.Millisecond
	// shunTime is how long a file is not promised after a change waited for it in vain.
	shunTime = 50 * time.Millisecond
	// maxLeases is how many files of a Volume are promised at a time.
	maxLeases = 1024
)

// leases are the promises to Boots that nobody else changes the bytes of a file for a
// moment. They end by themselves, so that nobody waits long for a Boot that is hostile,
// stopped or gone. The zero value is ready.
type leases struct {
	mu       sync.Mutex
	held     map[uint64]lease // by file
	changing map[uint64]int   // changes of a file that are under way or wait
	last     int64            // the number of the last promise
}

type lease struct {
	id    int64  // of the last promise: who gives back an earlier one changes nothing
	by    *mount // nil: several
	until time.Time
	ended chan struct{} // closed when it is given back
	shun  time.Time     // until then it is not promised again: a change had to wait for it
}

// grant promises a file to a Boot and returns the number of the promise; zero while
// somebody changes the file, or waits to.
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

// end takes back what was promised to a Boot, which gave it up.
func (l *leases) end(node uint64, id int64, m *mount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if is, ok := l.held[node]; ok && is.id == id && is.by == m {
		delete(l.held, node)
		close(is.ended)
	}
}

// shun has a file not be promised for a while. A Boot that asks for it again and again
// would hold up every change otherwise.
func (l *leases) shun(node uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if is, ok := l.held[node]; ok {
		is.shun = time.Now().Add(shunTime)
		l.held[node] = is
	}
}

// change begins a change of a file's bytes, for a Boot, when no other counts on them;
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
