package node

import (
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// leastLead and mostLead bound the time over which a Pool counts requests.
	leastLead = 2 * time.Second
	mostLead  = 30 * time.Second
	// firstTook is the assumed duration of a refill until one was measured.
	firstTook = 150 * time.Millisecond
	// idleMemory is the host memory of an idle Boot, at most.
	idleMemory = 16 << 20
)

// A demand counts requests by the second.
type demand struct {
	seconds [mostLead/time.Second + 2]int
	newest  int64 // the last second counted
}

// at returns the count of a second.
func (d *demand) at(second int64) *int { return &d.seconds[second%int64(len(d.seconds))] }

// pass clears counts that are too old.
func (d *demand) pass(now time.Time) {
	second := now.Unix()
	for s := max(d.newest+1, second-int64(len(d.seconds))+1); s <= second; s++ {
		*d.at(s) = 0
	}
	d.newest = max(d.newest, second)
}

// add counts a request.
func (d *demand) add(now time.Time) {
	d.pass(now)
	*d.at(d.newest)++
}

// within counts the requests since window before now, in whole seconds. window
// is at most mostLead.
func (d *demand) within(now time.Time, window time.Duration) int {
	d.pass(now)
	n := 0
	for s := now.Add(-window).Unix(); s <= d.newest; s++ {
		n += *d.at(s)
	}
	return n
}

// ask counts a request that the Pool could serve, whether it has a Boot or not. The Pool
// grows at once if it would have been too small.
func (n *Node) ask(req sandbox.StartRequest) {
	p := n.poolOf(req)
	if p == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	p.demand.add(now)
	p.claimed = now // or a refill begins before the request has its Boot or its turn
	need := p.need(now)
	if 4*need >= 3*p.target {
		p.pressed = now
	}
	if need > p.target {
		p.target = min(need, p.cfg.Max)
		p.look()
	}
}

// need returns how many idle Boots recent demand needs: the requests during one refill of
// the Pool, plus a quarter. Node.mu is held.
func (p *pool) need(now time.Time) int {
	fill := patience + p.took*time.Duration(p.target)/time.Duration(p.node.queue.slots)
	n := p.demand.within(now, min(max(fill, leastLead), mostLead))
	return n + (n+3)/4
}

// shrink lowers the target of a Pool that has been larger than its need for a while.
// Node.mu is held.
func (p *pool) shrink() {
	now := time.Now()
	if p.target <= p.cfg.Min || now.Sub(p.pressed) < shrinkAfter || now.Sub(p.shrunk) < shrinkEvery {
		return
	}
	p.target = max(p.cfg.Min, p.target*3/4)
	p.shrunk = now
}

// measure computes how many idle Boots the host's memory bears. While less than twice a
// new Boot's memory is free, a Pool gives back the Boots beyond its minimum. Nearer to
// the limit it gives back the rest: idle Boots go before any request is refused.
func (p *pool) measure() {
	s, err := p.node.host.now()
	if err != nil {
		return // keep the last value
	}
	n := p.node
	n.mu.Lock()
	defer n.mu.Unlock()
	held := len(p.idle) + p.starting
	need := neededMemory(s)
	room := func(mark int64) int { return held + int(floorDiv(s.MemoryFree-mark, idleMemory)) }
	p.bearable = max(0, min(p.cfg.Max, max(room(2*need), min(p.cfg.Min, room(need+need/4)))))
}

func floorDiv(a, b int64) int64 {
	if q := a / b; a%b >= 0 {
		return q
	}
	return a/b - 1
}

// size is how many idle Boots the Pool should have. Node.mu is held.
func (p *pool) size() int { return min(p.target, p.bearable) }
