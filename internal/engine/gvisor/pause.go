package gvisor

import (
	"context"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/sentryhost"
)

var _ sandbox.Pauser = (*Engine)(nil)

// pausing returns the sentry host, which must be one that saves.
func (e *Engine) pausing(ctx context.Context) (*sentryhost.Client, error) {
	host, err := e.sentryHost(ctx)
	if err == nil && host.Info.Version < sentryhost.PauseVersion {
		err = sandbox.Errorf(sandbox.Unsupported, "sandboxes of an earlier version run here, and while they do none can be paused")
	}
	return host, err
}

// Freeze stops a Boot.
func (e *Engine) Freeze(ctx context.Context, id string) error {
	b, err := e.find(id)
	if err != nil {
		return err
	}
	host, err := e.pausing(ctx)
	if err != nil {
		return err
	}
	if err := host.Freeze(ctx, id); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	b.frozen = true
	return nil
}

// Thaw lets a Boot go on.
func (e *Engine) Thaw(ctx context.Context, id string) error {
	b, err := e.find(id)
	if err != nil {
		return err
	}
	host, err := e.pausing(ctx)
	if err != nil {
		return err
	}
	if err := host.Thaw(ctx, id); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	b.frozen = false
	return nil
}

// Save saves a Boot. The sentry host does not stop half way: what it saves for
// nobody is deleted.
func (e *Engine) Save(ctx context.Context, id, name string, memory bool) (sandbox.Saved, error) {
	if _, err := e.find(id); err != nil {
		return sandbox.Saved{}, err
	}
	if !sandbox.ValidSnapshotID(name) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", name)
	}
	host, err := e.pausing(ctx)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if err := ctx.Err(); err != nil {
		return sandbox.Saved{}, err
	}
	saved, err := host.Save(ctx, sentryhost.SaveRequest{ID: id, Name: name, Memory: memory})
	if ctx.Err() != nil && err != nil {
		e.forget(ctx, host, name)
	}
	return saved, err
}

// DeleteSaved removes a saved state.
func (e *Engine) DeleteSaved(ctx context.Context, name string) error {
	host, err := e.pausing(ctx)
	if err != nil {
		return err
	}
	return host.DeleteSaved(ctx, name)
}

// ListSaved returns the names of saved states.
func (e *Engine) ListSaved(ctx context.Context) ([]string, error) {
	host, err := e.pausing(ctx)
	if err != nil {
		return nil, err
	}
	return host.ListSaved(ctx)
}
