package gvisor

import (
	"cmp"
	"context"
	"errors"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

var _ sandbox.Pauser = (*Engine)(nil)

// pausing returns the connection to a sentry host, which must support saves.
func (e *Engine) pausing(ctx context.Context, h *host) (*sentryhost.Client, error) {
	c, err := h.connected(ctx)
	if err == nil && c.Info.Version < sentryhost.PauseVersion {
		err = sandbox.Errorf(sandbox.Unsupported, "the build of Cloud Sandbox that the sandbox runs with cannot pause it")
	}
	return c, err
}

// admitCPU returns Conflict if this host lacks CPU features that a saved state needs.
func (e *Engine) admitCPU(own *sentryhost.Client, needs sandbox.CPUFeatures) error {
	return own.Info.CPU.Admit(needs, cmp.Or(e.cfg.Host, "this host"))
}

// Freeze stops a Boot.
func (e *Engine) Freeze(ctx context.Context, id string) error {
	return e.setFrozen(ctx, id, true, (*sentryhost.Client).Freeze)
}

// Thaw continues a frozen Boot.
func (e *Engine) Thaw(ctx context.Context, id string) error {
	return e.setFrozen(ctx, id, false, (*sentryhost.Client).Thaw)
}

// setFrozen calls Freeze or Thaw of a Boot's sentry host.
func (e *Engine) setFrozen(ctx context.Context, id string, frozen bool, do func(*sentryhost.Client, context.Context, string) error) error {
	b, err := e.find(id)
	if err != nil {
		return err
	}
	host, err := e.pausing(ctx, b.host)
	if err != nil {
		return err
	}
	if err := do(host, ctx, id); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	b.frozen = frozen
	return nil
}

// Save saves a Boot. The sentry host always finishes a save: if ctx ends before the
// result arrives, the state is deleted.
func (e *Engine) Save(ctx context.Context, id, name string, memory bool) (sandbox.Saved, error) {
	b, err := e.find(id)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if !sandbox.ValidSnapshotID(name) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", name)
	}
	host, err := e.pausing(ctx, b.host)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if err := ctx.Err(); err != nil {
		return sandbox.Saved{}, err
	}
	saved, err := host.Save(ctx, sentryhost.SaveRequest{ID: id, Name: name, Memory: memory})
	if err == nil && b.host != e.own {
		saved, err = e.importSaved(ctx, b.host, name)
	}
	if ctx.Err() != nil && err != nil {
		e.forget(ctx, name)
	}
	return saved, err
}

// importSaved has our sentry host take a state that an earlier build's saved.
func (e *Engine) importSaved(ctx context.Context, h *host, name string) (sandbox.Saved, error) {
	own, err := e.own.connected(ctx)
	if err != nil {
		return sandbox.Saved{}, err
	}
	return own.ImportFromEarlier(ctx, sentryhost.EarlierRequest{Name: name, Build: h.build})
}

// DeleteSaved removes a saved state, first on earlier builds' hosts, where one may exist
// that was not imported.
func (e *Engine) DeleteSaved(ctx context.Context, name string) error {
	var first error
	for _, h := range append(e.hosts(), e.own) { // an unreachable one does not block the others
		c, err := e.pausing(ctx, h)
		switch {
		case err == nil:
			err = c.DeleteSaved(ctx, name)
		case h != e.own && errors.Is(err, sandbox.Unsupported): // nothing was ever saved there
			err = nil
		}
		first = cmp.Or(first, err)
	}
	return first
}

// ListSaved returns the names of saved states.
func (e *Engine) ListSaved(ctx context.Context) ([]string, error) {
	host, err := e.pausing(ctx, e.own)
	if err != nil {
		return nil, err
	}
	return host.ListSaved(ctx)
}
