package sandboxbuild

import (
	"cmp"
	"context"
	"errors"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	readyLimit = 10 * time.Minute // without a start command
	readyPause = 2 * time.Second
	// pause is the default wait for a start command without a ready command.
	pause = "sleep 20"
	// ownPause replaces pause for Recipes with Own, which can have a ready command: it
	// only gives time for first output in the log.
	ownPause = "sleep 2"
)

// pausePattern matches a ready command that only sleeps. It must not delay every new
// Sandbox.
var pausePattern = regexp.MustCompile(`^\s*sleep\s+[0-9.]+\s*$`)

// quoted quotes text as one word of a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// asStep returns a command with the environment of a step.
func (r *run) asStep(command string) string {
	return "cd " + quoted(r.cwd) + " && exec /bin/bash -l -c " + quoted(command)
}

// commands returns the start and ready commands of every Sandbox.
func (r *run) commands() (start, ready string) {
	switch {
	case r.recipe.Start == "":
		return r.origin.Start, r.origin.Ready
	case r.recipe.Own:
		return r.recipe.Start, r.recipe.Ready
	}
	if r.recipe.Ready != "" && !pausePattern.MatchString(r.recipe.Ready) {
		ready = r.asStep(r.recipe.Ready)
	}
	return r.asStep(r.recipe.Start), ready
}

// awaitReady tests the ready command of a Recipe without a start command.
func (r *run) awaitReady(ctx context.Context) error {
	if r.recipe.Start != "" || r.recipe.Ready == "" {
		return nil
	}
	r.say("waiting: " + r.recipe.Ready)
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, sandbox.Errorf(sandbox.Timeout, "the ready command did not succeed in time"))
	defer cancel()
	for {
		end, err := r.guest.Run(ctx, execution.RunRequest{
			Args: []string{"/bin/bash", "-l", "-c", r.recipe.Ready}, User: r.user, Cwd: r.cwd, Env: r.env,
		}, func(execution.RunEvent) error { return nil })
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case end.Status == execution.StatusOK && end.ExitCode == 0:
			return nil
		}
		select {
		case <-time.After(readyPause):
		case <-ctx.Done():
		}
	}
}

const stagingPrefix = "building-"

// staging returns the tag of a version on trial.
func (r *run) staging() string { return stagingPrefix + r.b.record.ID }

// sweep removes the temporary tags that dead builds of the same Template left.
func (r *run) sweep(ctx context.Context, all []sandbox.Template) {
	for _, t := range all {
		id, left := strings.CutPrefix(t.Tag, stagingPrefix)
		if !left {
			id, left = strings.CutPrefix(t.Tag, pulledPrefix)
		}
		if !left || t.Name != r.b.record.Name {
			continue
		}
		// The tags of running builds stay, also of other gateways, and the tags of
		// builds whose state cannot be read at the moment.
		if v, _, err := r.view(ctx, r.b.record.Tenant, id); err == nil && v.record.State == Building || err != nil && !errors.Is(err, sandbox.NotFound) {
			continue
		}
		r.unstage(ctx, t.Tag)
	}
}

// try starts a Sandbox of a version, with its start command, and returns once it has come
// up.
func (r *run) try(ctx context.Context, version string) error {
	r.say("starting: " + r.recipe.Start)
	d, place := r.b.record.Draft, r.defaults()
	sb, err := r.cfg.Sandboxes.Create(ctx, r.b.record.Tenant, sandbox.CreateRequest{
		Template: d.Name + "@" + version, Shape: d.Defaults.Shape(), User: place.User, Cwd: place.Cwd, Timeout: r.cfg.Limit + endTime,
		IdleTimeout: idleTime, Metadata: map[string]string{buildKey: r.b.record.ID},
	})
	if err != nil {
		return err
	}
	r.box = sb
	defer r.endSandbox(ctx)
	if r.box, r.guest, err = r.cfg.Guests.Open(ctx, sb.Tenant, sb.ID); err != nil {
		return err
	}
	defer r.tellStart(ctx)
	if _, ready := r.commands(); ready != "" { // Create waited for it
		return nil
	}
	wait := cmp.Or(r.recipe.Ready, pause)
	if r.recipe.Own {
		wait = ownPause
	}
	return r.exec(ctx, "the ready command", r.user, "/", []string{"/bin/sh", "-c", wait})
}

// maxStartLog bounds the logged output of a start command, in bytes.
const maxStartLog = 64 << 10

// tellStart logs the start command's output so far, in E2B's form. One file holds its
// stdout and stderr.
func (r *run) tellStart(ctx context.Context) {
	file, err := r.guest.ReadFile(ctx, guest.StartLog, execution.ReadOptions{})
	if err != nil {
		r.say("the output of the start command cannot be read")
		return
	}
	defer file.Body.Close()
	said := &stream{level: Info, print: func(level Level, text string) { r.b.print(level, r.at, "[start] [stdout]: "+text) }}
	text, _ := io.ReadAll(io.LimitReader(file.Body, maxStartLog)) // logs a partial read too
	said.take(text)
	said.flush()
}

// unstage removes a temporary tag, even after ctx has ended.
func (r *run) unstage(ctx context.Context, tag string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if _, err := r.cfg.Templates.Remove(ctx, r.b.record.Tenant, r.b.record.Name+":"+tag); err != nil {
		r.cfg.Log.Warn("removing the temporary tag of a build failed", telemetry.KeyBuild, r.b.record.ID, telemetry.KeyError, err)
	}
}
