package disk

import (
	"slices"
	"sync"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// maxLarge is how many large buffers all Boots of one Tenant hold at a time: 8 MiB. A
	// Boot that requests much and reads no answers holds eight for half a minute.
	maxLarge = 32
	// maxLargeAll is the same for all Tenants together: 64 MiB.
	maxLargeAll = 256
	// largeShare: a Tenant that holds some gets another one only while it holds fewer
	// than 1/largeShare of the free ones.
	largeShare = 4
)

// budgets bounds the buffer memory of Boots, per Tenant and in all. The more Tenants
// compete, the less each gets, and some buffers stay free for new ones: of n Tenants that
// constantly release and retake, each holds 1/(n+largeShare) of all. The zero value is
// ready.
type budgets struct {
	mu   sync.Mutex
	of   map[sandbox.TenantID]*budget
	held int       // large buffers, by all Tenants
	line []*budget // waiting Tenants, in the order of their turns
}

// budget is a Tenant's use. It is guarded by budgets.mu.
type budget struct {
	boots   int
	held    int             // large buffers
	waiting []chan struct{} // closed when its waiter has a buffer
}

// use returns a Tenant's budget for one more Boot, until leave.
func (b *budgets) use(tenant sandbox.TenantID) *budget {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[sandbox.TenantID]*budget{}
	}
	its := b.of[tenant]
	if its == nil {
		its = &budget{}
		b.of[tenant] = its
	}
	its.boots++
	return its
}

func (b *budgets) leave(tenant sandbox.TenantID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if its := b.of[tenant]; its.boots == 1 {
		delete(b.of, tenant)
	} else {
		its.boots--
	}
}

// take waits until a Tenant may hold another large buffer, until giveBack.
func (b *budgets) take(its *budget) {
	b.mu.Lock()
	if len(its.waiting) == 0 && b.open(its) {
		b.give(its)
		b.mu.Unlock()
		return
	}
	if len(its.waiting) == 0 {
		b.line = append(b.line, its)
	}
	turn := make(chan struct{})
	its.waiting = append(its.waiting, turn)
	b.mu.Unlock()
	<-turn
}

// open reports whether a Tenant may take another buffer now. b.mu is held.
func (b *budgets) open(its *budget) bool {
	free := maxLargeAll - b.held
	return free > 0 && its.held < min(maxLarge, max(1, free/largeShare))
}

// give counts another buffer of a Tenant. b.mu is held.
func (b *budgets) give(its *budget) {
	its.held++
	b.held++
}

// giveBack returns a Tenant's buffer and serves the waiting Tenants.
func (b *budgets) giveBack(its *budget) {
	b.mu.Lock()
	defer b.mu.Unlock()
	its.held--
	b.held--
	for {
		next := slices.IndexFunc(b.line, b.open)
		if next < 0 {
			return
		}
		its := b.line[next]
		b.line = slices.Delete(b.line, next, next+1)
		b.give(its)
		close(its.waiting[0])
		if its.waiting = its.waiting[1:]; len(its.waiting) > 0 {
			b.line = append(b.line, its)
		}
	}
}
