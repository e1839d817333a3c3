package sandboxbuild

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// layers returns the name of the state after each step; the first is of the Template
// from, with its user and folder. States have equal names if the same steps were applied
// to the same image. The last name covers the files added at the end.
func (r *Recipe) layers(from sandbox.Template) []string {
	user, cwd := r.placeOf(from)
	names := []string{nameOf("", from.Version, user, cwd)}
	for _, s := range r.Steps {
		names = append(names, nameOf(names[len(names)-1], s.Type, s.parts()...))
	}
	if added := r.added(); len(added) > 0 {
		names[len(names)-1] = nameOf(names[len(names)-1], "added", added...)
	}
	return names
}

// added returns the hashes of the files added at the end.
func (r *Recipe) added() (parts []string) {
	for _, f := range r.Files {
		sum := sha256.Sum256(f.Content)
		parts = append(parts, f.Path, hex.EncodeToString(sum[:]), fmt.Sprint(f.Mode, f.User))
	}
	if r.Upload != nil {
		parts = append(parts, "upload", r.Upload.hash)
	}
	return parts
}

func nameOf(before, kind string, parts ...string) string {
	body, _ := json.Marshal([]any{before, kind, parts}) // strings cannot fail to encode
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// reusable returns how many steps may be skipped if their result exists.
func (r *Recipe) reusable() int {
	if r.Force {
		return 0
	}
	if i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.Force }); i >= 0 {
		return i
	}
	return len(r.Steps)
}

// least returns the smallest number of steps whose result may be looked up. It is 0 only
// without steps and without Force.
func (r *Recipe) least() int {
	if len(r.Steps) == 0 && !r.Force {
		return 0
	}
	return 1
}

// takeUp finds the existing result of the most steps, and makes r continue from it: a
// version of a Template of the Tenant, or else a layer.
func (r *run) takeUp(ctx context.Context) error {
	r.layers = r.recipe.layers(r.origin)
	known, err := r.known(ctx)
	if err != nil {
		return err
	}
	r.sweep(ctx, known)
	kept, err := r.keptLayers(ctx)
	if err != nil {
		return err
	}
	for n := r.recipe.reusable(); n >= r.recipe.least(); n-- {
		if r.goOnFrom(n, known) {
			return nil
		}
		i := slices.IndexFunc(kept, func(s sandbox.Snapshot) bool { return s.Layer == r.layers[n] })
		if i < 0 {
			continue
		}
		if there, err := r.takeUpLayer(ctx, kept[i], n); err != nil || there {
			return err
		}
	}
	return nil
}

// takeUpLayer makes r continue from the layer of the first n steps. It returns false when
// the layer's Template version is missing or has another start command.
func (r *run) takeUpLayer(ctx context.Context, s sandbox.Snapshot, n int) (bool, error) {
	name, _, _ := strings.Cut(s.Template, "@")
	name, _, _ = strings.Cut(name, ":")
	under, err := r.cfg.Templates.Find(ctx, r.b.record.Tenant, name+"@"+s.Image)
	switch {
	case sandbox.NoSuchTemplate(err):
		return false, nil
	case err != nil:
		return false, err
	case under.Start != r.origin.Start:
		return false, nil
	}
	for _, step := range r.recipe.Steps[:n] {
		if err := r.settle(step); err != nil {
			return false, err
		}
	}
	r.base, r.layer, r.skip = under, s, n
	return true, nil
}

// cached logs the skipped steps.
func (r *run) cached() {
	for i, s := range r.recipe.Steps[:r.skip] {
		r.say(fmt.Sprintf("CACHED [builder %d/%d] %s", i+1, len(r.recipe.Steps), s))
	}
}

// keptLayers returns the Tenant's layers that the Sandbox of r can start from, newest
// first.
func (r *run) keptLayers(ctx context.Context) (all []sandbox.Snapshot, err error) {
	wanted := r.shape()
	for query := (sandbox.SnapshotQuery{Layers: true, Kept: true}); ; {
		page, err := r.cfg.Sandboxes.ListSnapshots(ctx, r.b.record.Tenant, query)
		if err != nil {
			return nil, err
		}
		for _, s := range page.Snapshots {
			if s.Shape == wanted && !slices.Contains(r.broken, s.ID) {
				all = append(all, s)
			}
		}
		if query.Cursor = page.Next; page.Next == "" {
			return all, nil
		}
	}
}

// forgo deletes a layer that no Sandbox can start from, and finds another start.
func (r *run) forgo(ctx context.Context) error {
	if _, err := r.cfg.Sandboxes.DeleteSnapshot(ctx, r.b.record.Tenant, r.layer.ID); err != nil && !errors.Is(err, sandbox.NotFound) && !errors.Is(err, sandbox.Conflict) {
		return err
	}
	r.broken = append(r.broken, r.layer.ID)
	return r.settleOn(ctx)
}

// costly is how long saving a layer may take regardless of the duration of the steps.
const costly = time.Second

// keepLayer saves the state after the first n steps, so that later builds can continue
// from it. It skips steps that only affect other steps, and steps that take less time
// than saving their result. A failure does not fail the build.
func (r *run) keepLayer(ctx context.Context, n int) {
	last := n == len(r.recipe.Steps)
	switch r.recipe.Steps[n-1].Type {
	case "RUN", "COPY", "ADD":
	default:
		return
	}
	switch began := time.Since(r.keptAt); {
	case r.keepsNone, last && r.recipe.Start == "": // the final version serves as well
		return
	case r.keepTook > costly && began < r.keepTook && !last && !r.recipe.Steps[n].Force:
		return
	}
	began := time.Now()
	_, err := r.cfg.Sandboxes.TakeSnapshot(ctx, r.b.record.Tenant, r.box.ID, sandbox.SnapshotRequest{Layer: r.layers[n], FilesOnly: true})
	if r.keepsNone = err != nil; err != nil && ctx.Err() == nil && !errors.Is(err, sandbox.Unsupported) {
		r.cfg.Log.Warn("saving a layer of a build failed", telemetry.KeyBuild, r.b.record.ID, telemetry.KeyTenant, string(r.b.record.Tenant), telemetry.KeyError, err)
	}
	r.keptAt = time.Now()
	r.keepTook = r.keptAt.Sub(began)
}

// goOnFrom makes r continue from a version that the first n steps made, if there is one:
// preferably the requested result, else one with the same start command. Another start
// command would run and leave changes.
func (r *run) goOnFrom(n int, known []sandbox.Template) bool {
	isResult := func(t sandbox.Template) bool {
		return t.Layer == r.layers[n] && n == len(r.recipe.Steps) && r.isResult(t)
	}
	mayGoOn := func(t sandbox.Template) bool { return t.Layer == r.layers[n] && t.Start == r.origin.Start }
	for _, suits := range []func(sandbox.Template) bool{isResult, mayGoOn} {
		if i := slices.IndexFunc(known, suits); i >= 0 {
			t := known[i]
			r.base, r.from, r.skip = t, t.Name+"@"+t.Version, n
			r.settleAt(t)
			return true
		}
	}
	return false
}

// isResult reports whether a version that all steps made has the requested start and
// ready commands. The version's name and Defaults are not part of the image.
func (r *run) isResult(t sandbox.Template) bool {
	at := *r // commands depend on the user and folder
	at.user, at.cwd = r.recipe.placeOf(t)
	start, ready := at.commands()
	return t.Start == start && t.Ready == ready
}

// done reports whether the base version of r is the requested result.
func (r *run) done() bool {
	return !r.recipe.Force && r.skip == len(r.recipe.Steps) && r.layer.ID == "" && r.isResult(r.base)
}

// known returns the Tenant's own versions that a build may continue from: all tagged
// ones, and untagged ones of the same Template.
func (r *run) known(ctx context.Context) ([]sandbox.Template, error) {
	tenant := r.b.record.Tenant
	all, err := r.cfg.Templates.List(ctx, tenant)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(t sandbox.Template) bool { return t.Shared })
	i := slices.IndexFunc(all, func(t sandbox.Template) bool { return t.Name == r.b.record.Name })
	if i < 0 {
		return all, nil
	}
	_, versions, err := r.cfg.Templates.Versions(ctx, tenant, all[i].Name+":"+all[i].Tag)
	if sandbox.NoSuchTemplate(err) { // it was just removed
		err = nil
	}
	return append(all, versions...), err // tagged versions come first: they are known to come up
}
