package fake

import (
	"context"
	"io"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var _ sandbox.Arriver = (*Engine)(nil)

// arrival is a saved state of which the last byte has not arrived.
type arrival struct {
	saved
	content  sandbox.Arrival
	unwanted bool
	done     chan struct{}
}

// ArriveSaved implements sandbox.Arriver. A Boot can start from a state without its last byte.
func (e *Engine) ArriveSaved(ctx context.Context, name string, content sandbox.Arrival, arrived func(error)) (sandbox.Saved, error) {
	if !sandbox.ValidSnapshotID(name) {
		return sandbox.Saved{}, badName()
	}
	defer context.AfterFunc(ctx, content.Cancel)()
	first := max(content.Bytes()-1, 0)
	s, _, err := e.admit(name, io.NewSectionReader(content, 0, first))
	if err != nil {
		return sandbox.Saved{}, err
	}
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if err := e.host.free(name); err != nil {
		return sandbox.Saved{}, err
	}
	a := &arrival{saved: s, content: content, done: make(chan struct{})}
	e.host.arriving[name] = a // also instead of one that an earlier process began
	go func() {
		_, err := io.ReadFull(io.NewSectionReader(content, first, content.Bytes()-first), make([]byte, content.Bytes()-first))
		e.host.endArrival(e, name, a, err)
		arrived(err)
	}()
	return s.Saved, nil
}

// AwaitArrival implements sandbox.Arriver.
func (e *Engine) AwaitArrival(ctx context.Context, id string) error {
	b, err := e.host.find(id)
	if err != nil {
		return err
	}
	e.host.mu.Lock()
	a := e.host.arriving[b.spec.From]
	e.host.mu.Unlock()
	if a == nil {
		return nil
	}
	select {
	case <-a.done:
		_, err := e.host.find(id)
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endArrival ends an arrival. Boots that need the rest of a failed one end.
func (h *host) endArrival(e *Engine, name string, a *arrival, err error) {
	h.mu.Lock()
	if h.arriving[name] == a {
		delete(h.arriving, name)
	}
	if err == nil && !a.unwanted {
		h.saved[name] = a.saved
	}
	var lost []string
	for id, b := range h.boots {
		if err != nil && b.spec.From == name {
			lost = append(lost, id)
		}
	}
	h.mu.Unlock()
	for _, id := range lost {
		e.Kill(id, sandbox.CauseEngineLost)
	}
	close(a.done)
}

// unwant notes that a state was deleted while it arrives. The caller holds mu.
func (h *host) unwant(name string) {
	a := h.arriving[name]
	if a == nil {
		return
	}
	a.unwanted = true
	for _, b := range h.boots {
		if b.spec.From == name {
			return // it needs the rest
		}
	}
	a.content.Cancel()
}
