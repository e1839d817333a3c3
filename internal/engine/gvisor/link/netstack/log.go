package netstack

import (
	"sync"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// nearby is how many of the last decisions are searched for an equal one, to count it
// there.
const nearby = 16

// decisions is the log of one link. The zero value is ready; methods are safe
// for concurrent use.
type decisions struct {
	mu               sync.Mutex
	kept             []sandbox.NetworkDecision // a ring from next on, once full
	next             int
	seq              int64
	allowed, refused int64
}

// add logs a decision, whose Seq, First, Last and Count it sets.
func (l *decisions) add(d sandbox.NetworkDecision) {
	now := time.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	if d.Allowed {
		l.allowed++
	} else {
		l.refused++
	}
	for back := 1; back <= min(nearby, len(l.kept)); back++ {
		have := &l.kept[(l.next-back+len(l.kept))%len(l.kept)]
		if have.Protocol == d.Protocol && have.Name == d.Name && have.Addr == d.Addr && have.Port == d.Port &&
			have.Allowed == d.Allowed && have.Reason == d.Reason {
			have.Count++
			have.Last = now
			return
		}
	}
	l.seq++
	d.Seq, d.First, d.Last, d.Count = l.seq, now, now, 1
	if len(l.kept) < sandbox.MaxNetworkLog {
		l.kept = append(l.kept, d)
		l.next = len(l.kept) % sandbox.MaxNetworkLog
		return
	}
	l.kept[l.next] = d
	l.next = (l.next + 1) % len(l.kept)
}

// refusals returns the number of refusals.
func (l *decisions) refusals() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// read returns the kept decisions, oldest first.
func (l *decisions) read() sandbox.NetworkLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := sandbox.NetworkLog{Allowed: l.allowed, Refused: l.refused}
	start := 0
	if len(l.kept) == sandbox.MaxNetworkLog {
		start = l.next
	}
	out.Decisions = append(append(out.Decisions, l.kept[start:]...), l.kept[:start]...)
	return out
}
