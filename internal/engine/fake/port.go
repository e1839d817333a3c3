package fake

import (
	"context"
	"encoding/json"
	"io"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
)

var (
	_ sandbox.Porter       = (*Engine)(nil)
	_ sandbox.Deduplicator = (*Engine)(nil)
	_ sandbox.Replicator   = (*Engine)(nil)
)

// exported is the export format of a saved state.
type exported struct {
	Boot   string
	Saved  sandbox.Saved
	Memory map[string]string
	Files  map[string]string
	Image  bool // the image is included
}

// ExportSaved implements sandbox.Porter.
func (e *Engine) ExportSaved(ctx context.Context, name string, image bool, w io.Writer) error {
	if !sandbox.ValidSnapshotID(name) {
		return badName()
	}
	e.host.mu.Lock()
	s, ok := e.host.saved[name]
	e.host.mu.Unlock()
	switch {
	case !ok:
		return sandbox.Errorf(sandbox.NotFound, "no saved state %s", name)
	case s.damaged:
		return damaged(name)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(exported{s.boot, s.Saved, s.state.memory, s.state.files, image})
}

// ImportSaved implements sandbox.Porter.
func (e *Engine) ImportSaved(ctx context.Context, name string, r io.Reader) (sandbox.Saved, error) {
	if !sandbox.ValidSnapshotID(name) {
		return sandbox.Saved{}, badName()
	}
	s, image, err := e.admit(name, r)
	if err != nil {
		return sandbox.Saved{}, err
	}
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if err := e.host.free(name); err != nil {
		return sandbox.Saved{}, err
	}
	if image && !slices.Contains(e.images, s.Image) {
		e.host.brought = append(e.host.brought, s.Image)
	}
	e.host.saved[name] = s
	return s.Saved, ctx.Err()
}

// admit returns the state of an export under a name, and whether its image comes with it.
// Conflict if no Boot could start from it here.
func (e *Engine) admit(name string, r io.Reader) (_ saved, image bool, _ error) {
	raw, err := io.ReadAll(r)
	if err != nil {
		return saved{}, false, err
	}
	var x exported
	if err := json.Unmarshal(raw, &x); err != nil {
		return saved{}, false, sandbox.Errorf(sandbox.Invalid, "the content differs from the exported snapshot").WithCause(err)
	}
	if !x.Image && !e.hasImage(x.Saved.Image) || x.Saved.Build != build {
		return saved{}, false, sandbox.Errorf(sandbox.Conflict, "the snapshot needs an image or build that is not here")
	}
	if err := e.admitCPU(x.Saved.CPU); err != nil {
		return saved{}, false, err
	}
	x.Saved.Digest = "sha256:" + name
	return saved{boot: x.Boot, Saved: x.Saved, state: state{memory: x.Memory, files: x.Files}}, x.Image, nil
}

// free returns Conflict if a state has a name. The caller holds mu.
func (h *host) free(name string) error {
	if _, taken := h.saved[name]; taken {
		return sandbox.Errorf(sandbox.Conflict, "another state was saved as %s", name)
	}
	return nil
}

// FetchSaved implements sandbox.Replicator. A saved state with a group has a replica at
// once, which stays when the state is deleted.
func (e *Engine) FetchSaved(ctx context.Context, name, from, group string) (sandbox.Saved, error) {
	if !sandbox.ValidSnapshotID(name) {
		return sandbox.Saved{}, badName()
	}
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	s, ok := e.host.replicas[from]
	if !ok || s.group != group {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.NotFound, "the saved state %s has no copy", from)
	}
	if err := e.admitCPU(s.CPU); err != nil {
		return sandbox.Saved{}, err
	}
	if _, taken := e.host.saved[name]; taken {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "another state was saved as %s", name)
	}
	s.group, s.damaged = "", false
	e.host.saved[name] = s
	return s.Saved, ctx.Err()
}

// ShareSaved implements sandbox.Deduplicator; it records the group, and the replica.
func (e *Engine) ShareSaved(ctx context.Context, name, group string) error {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	s, ok := e.host.saved[name]
	switch {
	case !ok:
		return sandbox.Errorf(sandbox.NotFound, "no saved state %s", name)
	case s.group != "" && s.group != group:
		return sandbox.Errorf(sandbox.Conflict, "the saved state %s shares with others", name)
	}
	s.group = group
	e.host.saved[name], e.host.replicas[name] = s, s
	return ctx.Err()
}

// GroupOf returns the group of a saved state; empty: none.
func (e *Engine) GroupOf(name string) string {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	return e.host.saved[name].group
}
