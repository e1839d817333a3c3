package disk

import (
	"sync"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// maxLarge is how many large buffers all Boots of one Tenant have at a time: 8 MiB. A
// Boot that asks for much and reads no answer keeps eight for half a minute.
const maxLarge = 32

// budgets bounds the memory that each Tenant's Boots take here, so that one that floods
// is in its own way alone. The zero value is ready.
type budgets struct {
	mu sync.Mutex
	of map[sandbox.TenantID]*budget
}

type budget struct {
	boots int
	large chan struct{}
}

// use returns a Tenant's budget for another Boot, until leave.
func (b *budgets) use(tenant sandbox.TenantID) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[sandbox.TenantID]*budget{}
	}
	its := b.of[tenant]
	if its == nil {
		its = &budget{large: make(chan struct{}, maxLarge)}
		b.of[tenant] = its
	}
	its.boots++
	return its.large
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
