package server

import (
	"errors"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// Changed limits apply at once, and a later sentry host keeps them.
func limitsChange(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	shape := withMemory(256)
	shape.MemoryBytes = 512 << 20
	c := r.start(id, shape)
	set := func(mib int64) error {
		l := shape.Limits()
		l.MemoryBytes = mib << 20
		return r.host.limit(sentryhost.LimitRequest{ID: id, Limits: l})
	}
	stop := freeMemoryFor(t, r, id, c)
	must(t, set(160))
	if got := get(t, c, "/bomb?mb=300&wait=1"); got != "signal: killed" {
		t.Errorf("300 MiB within 160 ended with %q", got)
	}
	must(t, set(512))
	stop()
	get(t, c, "/bomb?mb=300")
	b := r.host.boots[id]
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if u, err := b.group.Usage(); err == nil && u.MemoryBytes > 300<<20 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("300 MiB within 512 were not used")
		}
	}
	if err := set(200); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("memory in use taken away = %v, want conflict", err)
	}
	if err := set(1024); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("more than the shape = %v, want conflict", err)
	}
	must(t, set(400))
	again := record{}
	again.ID = id
	next := &boot{record: again, group: b.group, gone: make(chan struct{})}
	must(t, r.host.takeUp(next))
	if next.record.Limits.MemoryBytes != 400<<20 || next.memoryMark() != 400<<20+sentryMemory {
		t.Errorf("a later sentry host takes up %+v", next.record.Limits)
	}
	must(t, r.host.stop(t.Context(), id))
	<-next.gone
	r.host.mu.Lock()
	next.pressure.Close()
	r.host.mu.Unlock()
	next.pidfd.Close()
}
