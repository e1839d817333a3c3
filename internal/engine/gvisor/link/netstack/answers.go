package netstack

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// An address is held for a name for the answer's TTL, but not for less than minHold,
	// since programs use addresses longer than they should, and not for more than
	// maxHold.
	minHold, maxHold = 5 * time.Minute, 24 * time.Hour
	// maxHeld bounds the addresses that a link holds, and maxNames the names of each.
	maxHeld, maxNames = 4096, 16
)

// answers records the names for which our resolver returned an address. The zero value is
// ready; methods are safe for concurrent use.
type answers struct {
	mu     sync.Mutex
	byAddr map[netip.Addr][]held
}

type held struct {
	name  string
	until time.Time
}

// hold remembers an answer. Beyond the bounds older ones are forgotten.
func (a *answers) hold(name string, addr netip.Addr, ttl time.Duration, now time.Time) {
	until := now.Add(min(max(ttl, minHold), maxHold))
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byAddr == nil {
		a.byAddr = map[netip.Addr][]held{}
	}
	names := a.byAddr[addr]
	i := slices.IndexFunc(names, func(h held) bool { return h.name == name })
	switch {
	case i >= 0:
		if until.After(names[i].until) {
			names[i].until = until
		}
		return
	case len(names) >= maxNames:
		names = slices.Delete(names, 0, 1)
	case len(names) == 0 && len(a.byAddr) >= maxHeld:
		for other := range a.byAddr { // any
			delete(a.byAddr, other)
			break
		}
	}
	a.byAddr[addr] = append(names, held{name, until})
}

// names returns the names for which addr is held now.
func (a *answers) names(addr netip.Addr, now time.Time) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, h := range a.byAddr[addr] {
		if h.until.After(now) {
			out = append(out, h.name)
		}
	}
	return out
}
