package steps

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// layers names the states after each of the steps that begin with an image: the
// first is that of the image itself. A state has the same name when the same was
// done to the same.
func layers(image string, steps []Step) []string {
	names := []string{nameOf("", image)}
	for _, s := range steps {
		names = append(names, nameOf(names[len(names)-1], s.Type, append([]string{s.Files}, s.Args...)...))
	}
	return names
}

func nameOf(before, kind string, parts ...string) string {
	body, _ := json.Marshal([]any{before, kind, parts}) // strings alone: it cannot fail
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// reusable is how many of the steps need not be carried out if what they make is
// there.
func (r *Recipe) reusable() int {
	if r.Force {
		return 0
	}
	if i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.Force }); i >= 0 {
		return i
	}
	return len(r.Steps)
}

// takeUp finds the version of a Template of the Tenant that most of the steps have
// made before, and lets r go on from there.
func (r *run) takeUp(ctx context.Context) error {
	r.layers = layers(r.base.Version, r.recipe.Steps)
	known, err := r.known(ctx)
	if err != nil {
		return err
	}
	r.sweep(ctx, known)
	for n := r.recipe.reusable(); n > 0; n-- {
		i := slices.IndexFunc(known, func(t sandbox.Template) bool { return t.Layer == r.layers[n] && r.mayTakeUp(t, n) })
		if i < 0 {
			continue
		}
		r.base, r.from, r.skip = known[i], known[i].Name+"@"+known[i].Version, n
		for i, s := range r.recipe.Steps[:n] {
			r.say(fmt.Sprintf("CACHED [builder %d/%d] %s", i+1, len(r.recipe.Steps), s))
		}
		return nil
	}
	return nil
}

// mayTakeUp reports whether r may go on from a version that the first n steps
// made: what that starts would run, and leave something, unless it is all that is
// wanted.
func (r *run) mayTakeUp(t sandbox.Template, n int) bool {
	return t.Start == r.origin.Start || n == len(r.recipe.Steps) && r.isResult(t)
}

// isResult reports whether a version that all steps made is what is asked for.
func (r *run) isResult(t sandbox.Template) bool {
	d := r.b.record.Draft
	at := *r // commands depend on where the steps led
	at.user, at.cwd = cmp.Or(t.Defaults.User, defaultUser), cmp.Or(t.Defaults.Cwd, defaultCwd)
	start, ready := at.commands()
	wanted := d.Defaults
	wanted.User, wanted.Cwd = at.user, at.cwd
	return t.Name == d.Name && t.Start == start && t.Ready == ready && t.Defaults == wanted
}

// known are the Tenant's own versions that a build may go on from: all that have
// a tag, and those of the same Template that have none any more.
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
	if errors.Is(err, sandbox.NotFound) { // it was removed just now
		err = nil
	}
	return append(versions, all...), err
}
