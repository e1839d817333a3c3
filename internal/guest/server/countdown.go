package server

import (
	"sync"
	"time"
)

// Countdown returns a channel that is closed once the Boot has run for d. The time
// between a save and a restore does not count, although it passed on all of the
// kernel's clocks. stop releases the countdown.
func (g *Guest) Countdown(d time.Duration) (expired <-chan struct{}, stop func()) {
	c := &countdown{guest: g, expired: make(chan struct{})}
	g.mu.Lock()
	c.away = g.away
	g.mu.Unlock()
	c.deadline = time.Now().Add(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(d, c.look)
	return c.expired, c.stop
}

type countdown struct {
	guest   *Guest
	expired chan struct{}

	mu       sync.Mutex
	timer    *time.Timer
	deadline time.Time
	away     time.Duration // that deadline takes into account
	stopped  bool
}

// look extends the wait by the time that the Boot was away.
func (c *countdown) look() {
	away := c.guest.settledAway()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	c.deadline = c.deadline.Add(away - c.away)
	c.away = away
	if left := time.Until(c.deadline); left > 0 {
		c.timer.Reset(left)
		return
	}
	close(c.expired)
}

func (c *countdown) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.timer.Stop()
}

// settledAway returns how long the Boot was away in total. In a Boot that was just
// restored it waits until Bind has updated that time.
func (g *Guest) settledAway() time.Duration {
	for {
		g.mu.Lock()
		if _, restored := g.savedAt(); !restored {
			defer g.mu.Unlock()
			return g.away
		}
		if g.rebound == nil {
			g.rebound = make(chan struct{})
		}
		rebound := g.rebound
		g.mu.Unlock()
		<-rebound
	}
}
