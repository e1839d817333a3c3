// Package failpoint kills this process at a step that a test chooses, to test recovery
// after a crash. Steps are durable writes: the records of Sandboxes, Snapshots and
// Volumes, and requests to the Engine. It is for dev mode alone.
package failpoint

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

// Points counts steps once a file with a word and a number exists, and kills the process
// before the step of that number, from 1, if it can remove the file. Without the file
// nothing happens; another word restarts the count.
type Points struct {
	file string
	die  func()

	mu   sync.Mutex
	word string
	made int
}

// New returns the Points of a file. They call die, which must not return; nil: the
// process is killed.
func New(file string, die func()) *Points {
	if die == nil {
		die = func() {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it takes effect
		}
	}
	return &Points{file: file, die: die}
}

// step runs before each step.
func (p *Points) step() {
	raw, err := os.ReadFile(p.file)
	if err != nil {
		return
	}
	var word string
	var at int
	if _, err := fmt.Sscan(string(raw), &word, &at); err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if word != p.word {
		p.word, p.made = word, 0
	}
	if p.made++; p.made == at && os.Rename(p.file, p.file+".taken") == nil {
		p.die()
	}
}

// after counts a step and then runs do.
func after[T any](p *Points, do func() (T, error)) (T, error) {
	p.step()
	return do()
}

// Store returns a Store whose writes of Sandboxes, Snapshots and Volumes are steps.
func (p *Points) Store(s sandbox.Store) sandbox.Store { return &store{s, p} }

type store struct {
	sandbox.Store
	p *Points
}

func (s *store) InsertSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	return after(s.p, func() (sandbox.Sandbox, error) { return s.Store.InsertSandbox(ctx, sb) })
}

func (s *store) UpdateSandbox(ctx context.Context, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	return after(s.p, func() (sandbox.Sandbox, error) { return s.Store.UpdateSandbox(ctx, sb) })
}

func (s *store) InsertSnapshot(ctx context.Context, snap sandbox.Snapshot) (sandbox.Snapshot, error) {
	return after(s.p, func() (sandbox.Snapshot, error) { return s.Store.InsertSnapshot(ctx, snap) })
}

func (s *store) UpdateSnapshot(ctx context.Context, snap sandbox.Snapshot) (sandbox.Snapshot, error) {
	return after(s.p, func() (sandbox.Snapshot, error) { return s.Store.UpdateSnapshot(ctx, snap) })
}

func (s *store) RetireSnapshot(ctx context.Context, id string, loose bool) error {
	s.p.step()
	return s.Store.RetireSnapshot(ctx, id, loose)
}

func (s *store) DropSnapshot(ctx context.Context, id string) error {
	s.p.step()
	return s.Store.DropSnapshot(ctx, id)
}

func (s *store) LeaveSnapshot(ctx context.Context, id string) error {
	s.p.step()
	return s.Store.LeaveSnapshot(ctx, id)
}

func (s *store) BeginSnapshotMove(ctx context.Context, snap sandbox.Snapshot, to string) error {
	s.p.step()
	return s.Store.BeginSnapshotMove(ctx, snap, to)
}

func (s *store) MoveSnapshot(ctx context.Context, snap sandbox.Snapshot, from string) error {
	s.p.step()
	return s.Store.MoveSnapshot(ctx, snap, from)
}

func (s *store) InsertVolume(ctx context.Context, v sandbox.Volume) (sandbox.Volume, error) {
	return after(s.p, func() (sandbox.Volume, error) { return s.Store.InsertVolume(ctx, v) })
}

func (s *store) MoveVolume(ctx context.Context, id string, from, to sandbox.VolumeState) error {
	s.p.step()
	return s.Store.MoveVolume(ctx, id, from, to)
}

func (s *store) RehomeVolume(ctx context.Context, id string, from, to sandbox.VolumePlace) error {
	s.p.step()
	return s.Store.RehomeVolume(ctx, id, from, to)
}

func (s *store) DropVolume(ctx context.Context, id string) error {
	s.p.step()
	return s.Store.DropVolume(ctx, id)
}

// Saver is an Engine that saves Boots.
type Saver interface {
	sandbox.Engine
	sandbox.Pauser
	sandbox.Porter
	sandbox.Deduplicator
	sandbox.Arriver
}

// Engine returns an Engine whose changes of Boots and saved states are steps.
func (p *Points) Engine(e Saver) Saver { return &engine{e, p} }

type engine struct {
	Saver
	p *Points
}

func (e *engine) Start(ctx context.Context, id string, spec sandbox.BootSpec) error {
	e.p.step()
	return e.Saver.Start(ctx, id, spec)
}

func (e *engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	e.p.step()
	return e.Saver.Stop(ctx, id, grace)
}

func (e *engine) Freeze(ctx context.Context, id string) error {
	e.p.step()
	return e.Saver.Freeze(ctx, id)
}

func (e *engine) Thaw(ctx context.Context, id string) error {
	e.p.step()
	return e.Saver.Thaw(ctx, id)
}

func (e *engine) Save(ctx context.Context, id, name string, memory bool) (sandbox.Saved, error) {
	return after(e.p, func() (sandbox.Saved, error) { return e.Saver.Save(ctx, id, name, memory) })
}

func (e *engine) ArriveSaved(ctx context.Context, name string, content sandbox.Arrival, arrived func(error)) (sandbox.Saved, error) {
	return after(e.p, func() (sandbox.Saved, error) { return e.Saver.ArriveSaved(ctx, name, content, arrived) })
}

func (e *engine) DeleteSaved(ctx context.Context, name string) error {
	e.p.step()
	return e.Saver.DeleteSaved(ctx, name)
}
