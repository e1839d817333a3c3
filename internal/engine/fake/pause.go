package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// build is the build of saved states; see Age for others.
const build = "1"

// saved is a copy of a Boot's state.
type saved struct {
	sandbox.Saved
	group   string // empty: not shared
	boot    string
	state   state
	damaged bool
}

// Freeze implements sandbox.Pauser.
func (e *Engine) Freeze(ctx context.Context, id string) error {
	b, err := e.host.find(id)
	if err != nil {
		return err
	}
	if e.Hooks.Freeze != nil {
		if err := e.Hooks.Freeze(ctx, id); err != nil {
			return err
		}
	}
	b.guest.freeze()
	return ctx.Err()
}

// Thaw implements sandbox.Pauser.
func (e *Engine) Thaw(ctx context.Context, id string) error {
	b, err := e.host.find(id)
	if err != nil {
		return err
	}
	if e.Hooks.Thaw != nil {
		if err := e.Hooks.Thaw(ctx, id); err != nil {
			return err
		}
	}
	b.mu.Lock()
	b.held = false
	b.mu.Unlock()
	b.guest.thaw()
	return ctx.Err()
}

// Save implements sandbox.Pauser.
func (e *Engine) Save(ctx context.Context, id, name string, memory bool) (sandbox.Saved, error) {
	b, err := e.host.find(id)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if !sandbox.ValidSnapshotID(name) {
		return sandbox.Saved{}, badName()
	}
	if e.Hooks.Save != nil {
		if err := e.Hooks.Save(ctx, id, name); err != nil {
			return sandbox.Saved{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return sandbox.Saved{}, err
	}
	s := saved{boot: id, state: b.guest.copyState(memory)}
	s.Saved = sandbox.Saved{Bytes: 1 << 20, Memory: memory, Build: build, Image: b.spec.Image, Shape: b.spec.Shape, Digest: "sha256:" + name}
	if memory {
		s.CPU = b.cpu
	}
	return e.host.keep(name, s)
}

func badName() error { return sandbox.Errorf(sandbox.Invalid, "that is not a snapshot ID") }

// keep stores a state; an existing one of the same Boot stays.
func (h *host) keep(name string, s saved) (sandbox.Saved, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch there, ok := h.saved[name]; {
	case !ok:
		h.saved[name] = s
	case there.boot != s.boot:
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "another boot was saved as %s", name)
	}
	return h.saved[name].Saved, nil
}

// load returns the state that a Boot starts from; zero for a cold start.
func (h *host) load(spec sandbox.BootSpec) (saved, error) {
	if spec.From == "" {
		return saved{}, nil
	}
	if !sandbox.ValidSnapshotID(spec.From) {
		return saved{}, badName()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.saved[spec.From]
	if a := h.arriving[spec.From]; a != nil && !a.unwanted {
		s, ok = a.saved, true
	}
	switch {
	case !ok:
		return saved{}, sandbox.Errorf(sandbox.NotFound, "no saved state %s", spec.From)
	case s.damaged:
		return saved{}, damaged(spec.From)
	case s.Build != build:
		return saved{}, sandbox.Errorf(sandbox.Conflict, "the saved state %s needs build %s of the engine, which is not here", spec.From, s.Build)
	case s.Image != spec.Image || !s.Shape.Covers(spec.Shape):
		return saved{}, sandbox.Errorf(sandbox.Conflict, "the saved state %s is of another image or shape", spec.From)
	}
	return s, nil
}

func damaged(name string) error {
	return sandbox.Errorf(sandbox.Conflict, "the saved state %s is damaged", name).WithCause(sandbox.ErrDamaged)
}

// DeleteSaved implements sandbox.Pauser.
func (e *Engine) DeleteSaved(ctx context.Context, name string) error {
	if !sandbox.ValidSnapshotID(name) {
		return badName()
	}
	if e.Hooks.DeleteSaved != nil {
		if err := e.Hooks.DeleteSaved(ctx, name); err != nil {
			return err
		}
	}
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	delete(e.host.saved, name)
	e.host.unwant(name)
	return ctx.Err()
}

// ListSaved implements sandbox.Pauser.
func (e *Engine) ListSaved(ctx context.Context) ([]string, error) {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	return slices.Sorted(maps.Keys(e.host.saved)), ctx.Err()
}

func (e *Engine) admitCPU(needs sandbox.CPUFeatures) error { return e.CPU.Admit(needs, "this host") }

// Need makes a saved state need one more CPU feature.
func (e *Engine) Need(name, feature string) {
	e.change(name, func(s *saved) { s.CPU = sandbox.NewCPUFeatures(append(s.CPU.Names(), feature)...) })
}

// Damage marks a saved state as damaged.
func (e *Engine) Damage(name string) { e.change(name, func(s *saved) { s.damaged = true }) }

// Age marks a saved state as made by another build of the engine.
func (e *Engine) Age(name string) { e.change(name, func(s *saved) { s.Build = "0" }) }

func (e *Engine) change(name string, change func(*saved)) {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	s, ok := e.host.saved[name]
	if !ok {
		panic(fmt.Sprintf("no saved state %s", name))
	}
	change(&s)
	e.host.saved[name] = s
}

// Held reports whether a Boot that started from memory waits for Thaw.
func (e *Engine) Held(id string) bool {
	b, err := e.host.find(id)
	if err != nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}
