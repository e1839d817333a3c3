package traffic

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// rememberFor is how long after its last request a Sandbox is remembered.
	rememberFor = 15 * time.Minute
	// readEvery is the time between two reads of the records that are remembered.
	readEvery = 2 * time.Second
	// staleAfter is the greatest age that a record may have had when the Store last
	// answered. A change by an owner may be missing if it was made in the last staleAfter
	// before the Store became unavailable.
	staleAfter = 3 * readEvery
	// longestOutage is how long records serve without the Store. A gateway that alone is
	// cut off from the Store misses at most the changes of this time.
	longestOutage = 10 * time.Minute
	// maxRemembered bounds the records, and one read of them.
	maxRemembered = 4096
	// readTime bounds a read of the Store for a request that a remembered record serves as
	// well.
	readTime = time.Second
)

// errAway reports that the records of Sandboxes cannot be read.
var errAway = errors.New("the records of sandboxes cannot be read")

// memory keeps the records of running Sandboxes with recent requests, so that their ports
// can be reached while the Store is away.
type memory struct {
	mu       sync.Mutex
	byID     map[string]remembered
	answered time.Time // when the Store last did
}

type remembered struct {
	sandbox    sandbox.Sandbox
	read, used time.Time // read: when the Store was asked
}

// know remembers a record that the Store has given for a request, which asked for it at a
// time.
func (m *memory) know(sb sandbox.Sandbox, asked time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard(asked)
	if _, known := m.byID[sb.ID]; known || len(m.byID) < maxRemembered {
		m.replace(sb.ID, remembered{sb, asked, asked})
	}
}

// replace replaces a record, unless a later read was faster. Only running Sandboxes are
// remembered. The caller holds m.mu.
func (m *memory) replace(id string, by remembered) {
	switch {
	case m.byID[id].read.After(by.read):
	case by.sandbox.State != sandbox.Running:
		delete(m.byID, id)
	default:
		m.byID[id] = by
	}
}

// forget is called when the Store, asked at a time, has no such Sandbox.
func (m *memory) forget(id string, asked time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard(asked)
	delete(m.byID, id)
}

// heard records that the Store has answered a read that began at a time. The caller
// holds m.mu.
func (m *memory) heard(asked time.Time) {
	if asked.After(m.answered) {
		m.answered = asked
	}
}

// recall returns a record that was as the Store had it when it last answered.
func (m *memory) recall(id string, now time.Time) (sandbox.Sandbox, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.byID[id]
	if !ok || m.answered.Sub(r.read) > staleAfter || now.Sub(r.read) > longestOutage {
		return sandbox.Sandbox{}, false
	}
	r.used = now
	m.byID[id] = r
	return r.sandbox, true
}

// due are the Sandboxes whose records are to be read again. It forgets Sandboxes that
// had no request for rememberFor.
func (m *memory) due(now time.Time) (ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, r := range m.byID {
		switch {
		case now.Sub(r.used) > rememberFor:
			delete(m.byID, id)
		case now.Sub(r.read) >= readEvery/2:
			ids = append(ids, id)
		}
	}
	return ids
}

// renew replaces the records of ids with the records that the Store returned for a read
// at a time. IDs without a record are forgotten.
func (m *memory) renew(ids []string, records []sandbox.Sandbox, asked time.Time) {
	given := map[string]sandbox.Sandbox{}
	for _, sb := range records {
		given[sb.ID] = sb
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard(asked)
	for _, id := range ids {
		if r, known := m.byID[id]; known {
			m.replace(id, remembered{given[id], asked, r.used})
		}
	}
}

// Run reads the remembered records again and again until ctx ends.
func (p *Proxy) Run(ctx context.Context) {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asked := time.Now()
		ids := p.memory.due(asked)
		if len(ids) == 0 {
			continue
		}
		reading, cancel := context.WithTimeout(ctx, staleAfter)
		if records, err := p.Records.SandboxesByID(reading, ids); err == nil {
			p.memory.renew(ids, records, asked)
		}
		cancel()
	}
}

// record returns a Sandbox that has not ended: its record, or while the Store is away the
// remembered one. Without either it returns errAway.
func (p *Proxy) record(ctx context.Context, id string) (sandbox.Sandbox, error) {
	if !sandbox.ValidSandboxID(id) {
		return sandbox.Sandbox{}, sandbox.NotFound
	}
	asked := time.Now()
	known, ok := p.memory.recall(id, asked)
	reading := ctx
	if ok {
		limited, cancel := context.WithTimeout(ctx, readTime)
		defer cancel()
		reading = limited
	}
	sb, err := p.Records.SandboxByID(reading, id)
	switch {
	case err == nil && !sb.Live(), errors.Is(err, sandbox.NotFound):
		p.memory.forget(id, asked)
		return sandbox.Sandbox{}, sandbox.NotFound
	case err == nil:
		p.memory.know(sb, asked)
	case ctx.Err() != nil || !errors.Is(err, sandbox.Unavailable) && !errors.Is(err, context.DeadlineExceeded):
	case ok:
		return known, nil
	default:
		err = errors.Join(errAway, err)
	}
	return sb, err
}
