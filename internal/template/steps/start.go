package steps

import (
	"cmp"
	"context"
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
	readyLimit = 10 * time.Minute // for what has no start command
	readyPause = 2 * time.Second
	// pause is what is waited for when nothing else says that a start command
	// has come up.
	pause = "sleep 20"
	// ownPause is the same where a ready command would say it: time for a first word
	// in the log.
	ownPause = "sleep 2"
)

// pausePattern is a ready command that knows nothing of what it waits for: it is
// no reason to keep every new Sandbox waiting.
var pausePattern = regexp.MustCompile(`^\s*sleep\s+[0-9.]+\s*$`)

// quoted is text as one word of a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// asStep is a command that runs as steps do, wherever it is started.
func (r *run) asStep(command string) string {
	return "cd " + quoted(r.cwd) + " && exec /bin/bash -l -c " + quoted(command)
}

// commands are what every Sandbox starts, and what it is then waited for.
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

// awaitReady tries the ready command of a Recipe that starts nothing.
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

// staging is the tag of a version that nobody knows yet to come up.
func (r *run) staging() string { return stagingPrefix + r.b.record.ID }

// sweep takes back the tags that builds of the same Template left when they died.
func (r *run) sweep(ctx context.Context, all []sandbox.Template) {
	for _, t := range all {
		id, left := strings.CutPrefix(t.Tag, stagingPrefix)
		if !left {
			id, left = strings.CutPrefix(t.Tag, pulledPrefix)
		}
		if !left || t.Name != r.b.record.Name {
			continue
		}
		if b, err := r.find(r.b.record.Tenant, t.Name, id); err == nil && b.snapshot().State == Building {
			continue
		}
		r.unstage(ctx, t.Tag)
	}
}

// try starts a Sandbox of a version, with what it starts, and returns once that
// has come up.
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
	if _, ready := r.commands(); ready != "" { // it was waited for
		return nil
	}
	wait := cmp.Or(r.recipe.Ready, pause)
	if r.recipe.Own {
		wait = ownPause
	}
	return r.exec(ctx, "the ready command", r.user, "/", []string{"/bin/sh", "-c", wait})
}

// maxStartLog bounds how much of what a start command said is told.
const maxStartLog = 64 << 10

// tellStart tells what the start command has said so far, in E2B's form. One file has
// its output and its errors.
func (r *run) tellStart(ctx context.Context) {
	file, err := r.guest.ReadFile(ctx, guest.StartLog, execution.ReadOptions{})
	if err != nil {
		r.say("what the start command said cannot be read")
		return
	}
	defer file.Body.Close()
	said := &stream{level: Info, print: func(level Level, text string) { r.b.print(level, r.at, "[start] [stdout]: "+text) }}
	text, _ := io.ReadAll(io.LimitReader(file.Body, maxStartLog)) // as far as it comes
	said.take(text)
	said.flush()
}

// unstage takes the tag of a trial back, whatever became of ctx.
func (r *run) unstage(ctx context.Context, tag string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if _, err := r.cfg.Templates.Remove(ctx, r.b.record.Tenant, r.b.record.Name+":"+tag); err != nil {
		r.cfg.Log.Warn("removing the temporary tag of a build failed", telemetry.KeyBuild, r.b.record.ID, telemetry.KeyError, err)
	}
}
