package sandboxbuild

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/standin"
)

// pulledPrefix is the prefix of the tag that keeps an image during a build from it.
const pulledPrefix = "pulled-"

// pull makes the recipe's image a version of the Template, unmodified. If no registry
// answers, the stand-in Template is used.
func (r *run) pull(ctx context.Context) error {
	name, image := r.b.record.Name, r.recipe.Image
	queued, err := r.cfg.TemplateBuilds.Build(ctx, r.b.record.Tenant, sandbox.TemplateRequest{
		Template: name + ":" + pulledPrefix + r.b.record.ID, Source: "oci:" + image, Bare: true, Force: r.recipe.Force,
	}, nil)
	if err != nil {
		return err
	}
	built, err := r.made(ctx, queued)
	switch {
	case err == nil:
		r.pulled = built.Version
		r.recipe.From = name + "@" + built.Version
		return nil
	case ctx.Err() != nil:
		return err
	case errors.Is(err, sandbox.Unavailable), errors.Is(err, sandbox.Denied):
		return r.standIn(ctx, err)
	}
	return err
}

// standIn uses the stand-in Template of an image; missing is why the image is missing.
func (r *run) standIn(ctx context.Context, missing error) error {
	why := r.reason(missing)
	if r.recipe.From == "" {
		return sandbox.Errorf(sandbox.CodeOf(missing),
			"%s; and no template of this server stands for the image %.80q: begin with a template instead, or have the operator say which stands for it in CLOUD_SANDBOX_E2B_TEMPLATES", why, r.recipe.Image)
	}
	r.b.print(Warn, r.at, r.prefix+" "+why)
	if r.cfg.Inexact {
		return nil
	}
	system, err := r.system(ctx)
	if err != nil {
		return err
	}
	if difference := standin.Difference(r.recipe.Image, system); difference != "" {
		return sandbox.Errorf(sandbox.CodeOf(missing),
			"%s; and the template %s, which stands for %.80q, is %s: begin with a template instead, or have the operator allow the difference by CLOUD_SANDBOX_INEXACT_IMAGES, or name a template that fits in CLOUD_SANDBOX_E2B_TEMPLATES", why, r.recipe.From, r.recipe.Image, difference)
	}
	return nil
}

// system returns the System of the recipe's Template, from a Sandbox of it.
func (r *run) system(ctx context.Context) (s standin.System, err error) {
	if r.origin, err = r.cfg.Templates.Find(ctx, r.b.record.Tenant, r.recipe.From); err != nil {
		return s, err
	}
	r.from = r.recipe.From
	if err := r.open(ctx); err != nil {
		return s, err
	}
	defer r.endSandbox(ctx)
	said, end, err := r.output(ctx, standin.Script)
	if err == nil && end.Status != execution.StatusOK {
		err = fmt.Errorf("look into the template %s: %s", r.recipe.From, end.Status)
	}
	return standin.ParseReport(said), err
}

// needs is a script that fails, with the reason, in an image that cannot run steps.
const needs = `for program in /bin/bash tar find; do command -v "$program" >/dev/null 2>&1 || { echo "$program"; exit 1; }; done
tar --version 2>/dev/null | grep -q GNU || { echo "GNU tar"; exit 1; }`

// suits rejects an image without the programs that steps need.
func (r *run) suits(ctx context.Context) error {
	if r.pulled == "" || r.skip > 0 || len(r.recipe.Steps) == 0 {
		return nil
	}
	said, end, err := r.output(ctx, needs)
	if err != nil {
		return err
	}
	if end.Status != execution.StatusOK || end.ExitCode != 0 {
		return sandbox.Errorf(sandbox.Unsupported, "the image %.80q has no %s, which steps need: begin with an image of Debian, Ubuntu or another distribution that has it", r.recipe.Image, strings.TrimSpace(said))
	}
	return nil
}

// output runs a script in the Sandbox and returns its output.
func (r *run) output(ctx context.Context, script string) (string, execution.RunEnd, error) {
	var out strings.Builder
	end, err := r.guest.Run(ctx, execution.RunRequest{Args: []string{"/bin/sh", "-c", script}, User: "root", Cwd: "/"}, func(e execution.RunEvent) error {
		out.Write(e.Stdout)
		return nil
	})
	return out.String(), end, err
}

// untagPulled removes the tag of a pulled image. The image stays as a version of the Template
// for later builds. If the Template has no other tag, the version is removed too, because
// it would not be listed.
func (r *run) untagPulled(ctx context.Context) {
	if r.pulled == "" {
		return
	}
	r.unstage(ctx, pulledPrefix+r.b.record.ID)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	all, err := r.cfg.Templates.List(ctx, r.b.record.Tenant)
	for _, t := range all {
		if t.Name == r.b.record.Name && !t.Shared {
			return
		}
	}
	if err == nil {
		_, err = r.cfg.Templates.Remove(ctx, r.b.record.Tenant, r.b.record.Name+"@"+r.pulled)
	}
	if err != nil && !errors.Is(err, sandbox.Conflict) && !errors.Is(err, sandbox.NotFound) { // layers need it: the next build continues from them
		r.cfg.Log.Warn("removing the base image of a build failed", telemetry.KeyBuild, r.b.record.ID, telemetry.KeyError, err)
	}
}
