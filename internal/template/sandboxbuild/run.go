package sandboxbuild

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/dockerfile"
)

// The Sandbox of a build.
const (
	minMemory   = 1 << 30 // bytes
	minDisk     = 8 << 30
	idleTime    = 2 * time.Minute // after which an unused Sandbox ends: its build died
	endTime     = 30 * time.Second
	defaultUser = "user"
	defaultCwd  = "/home/user"
	// buildKey is the metadata key that identifies a build's Sandbox.
	buildKey = "template-build"
)

// machine is the part of a Guest that a build needs.
type machine interface {
	execution.Runner
	// Of execution.Files.
	ReadFile(ctx context.Context, path string, opts execution.ReadOptions) (*execution.FileBody, error)
	WriteFile(ctx context.Context, path string, body io.Reader, size int64) (execution.Entry, error)
}

// run is a running build.
type run struct {
	*Service
	b      *build
	recipe Recipe
	origin sandbox.Template // base of the recipe
	base   sandbox.Template // base of the Sandbox: after some of the steps
	from   string           // reference of base
	layers []string         // see layers
	skip   int              // steps done before the Sandbox starts
	layer  sandbox.Snapshot // start of the Sandbox; without an ID: base
	broken []string         // IDs of layers that no Sandbox can start from
	box    sandbox.Sandbox
	guest  machine

	user, cwd string                   // of the next step
	explicit  sandbox.TemplateDefaults // the user and folder that a step or Template set explicitly
	env       map[string]string        // set by steps
	at        string                   // the current step, as in a Failure
	prefix    string                   // of the current step's log lines

	pulled string // version of the pulled base image; empty: none was pulled

	copies map[string]*dockerfile.Files // of a Dockerfile's COPYs, by hash

	keepsNone bool // stop saving layers
	keptAt    time.Time
	keepTook  time.Duration
}

// run carries out a build. It returns when everything of the build has ended.
func (s *Service) run(ctx context.Context, b *build, recipe Recipe) {
	defer recipe.close()
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Limit, errTooSlow)
	defer cancel()
	r := &run{Service: s, b: b, recipe: recipe, at: AtBase, prefix: "[base]", env: map[string]string{}, copies: map[string]*dockerfile.Files{}}
	stopSharing := s.keepSharing(b)
	err := r.whole(ctx)
	stopSharing()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		s.finish(b, nil)
		return
	}
	f := &Failure{Message: r.reason(err), Step: r.at, Code: sandbox.CodeOf(err), Cancelled: errors.Is(err, errCancelled)}
	b.print(Error, r.at, f.Message)
	s.finish(b, f)
}

// reason returns the public text of an error.
func (r *run) reason(err error) string {
	var told *sandbox.Error
	if errors.As(err, &told) && told.Code != sandbox.Internal {
		return told.Detail
	}
	r.cfg.Log.Error("building a template by steps failed", telemetry.KeyBuild, r.b.record.ID, telemetry.KeyTenant, string(r.b.record.Tenant), telemetry.KeyError, err)
	return "the server could not build it; its log says why"
}

func (r *run) say(text string) { r.b.print(Info, r.at, r.prefix+" "+text) }

func (r *run) whole(ctx context.Context) error {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	defer r.untagPulled(ctx)
	if err := r.begin(ctx); err != nil {
		return err
	}
	if r.done() {
		return r.reuse(ctx)
	}
	built, err := r.inSandbox(ctx)
	if err != nil {
		return err
	}
	return r.publish(ctx, built)
}

// begin resolves the base.
func (r *run) begin(ctx context.Context) (err error) {
	r.say("FROM " + r.recipe.Asked)
	if r.recipe.Image != "" {
		if err := r.pull(ctx); err != nil {
			return err
		}
	}
	if r.origin, err = r.cfg.Templates.Find(ctx, r.b.record.Tenant, r.recipe.From); err != nil {
		return err
	}
	if r.recipe.From != r.recipe.Asked && r.pulled == "" {
		r.say(fmt.Sprintf("the template %s replaces it, which is made of %s", r.recipe.From, r.origin.Source))
	}
	if r.recipe.Dockerfile != nil {
		if err := r.plan(ctx); err != nil {
			return err
		}
	}
	return r.settleOn(ctx)
}

// settleOn selects the start of the Sandbox, and the number of steps done there.
func (r *run) settleOn(ctx context.Context) error {
	r.base, r.from, r.layer, r.skip = r.origin, r.recipe.From, sandbox.Snapshot{}, 0
	r.settleAt(r.base)
	clear(r.env)
	return r.takeUp(ctx)
}

// settleAt resets the user and folder for the first step after a Template.
func (r *run) settleAt(t sandbox.Template) {
	r.user, r.cwd = r.recipe.placeOf(t)
	r.explicit = sandbox.TemplateDefaults{User: t.Defaults.User, Cwd: t.Defaults.Cwd}
}

// placeOf returns the user and folder of the first step after a Template.
func (r *Recipe) placeOf(t sandbox.Template) (user, cwd string) {
	user, cwd = defaultUser, defaultCwd
	if r.Own {
		user, cwd = "root", "/"
	}
	return cmp.Or(t.Defaults.User, user), cmp.Or(t.Defaults.Cwd, cwd)
}

// inSandbox does all work that needs the Sandbox, ends the Sandbox, and returns the build
// of the image.
func (r *run) inSandbox(ctx context.Context) (sandbox.TemplateBuild, error) {
	if err := r.open(ctx); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	defer r.endSandbox(ctx)
	if err := r.suits(ctx); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	r.cached()
	r.keptAt = time.Now()
	for i, step := range r.recipe.Steps {
		if i < r.skip {
			continue
		}
		r.at, r.prefix = strconv.Itoa(i+1), fmt.Sprintf("[builder %d/%d]", i+1, len(r.recipe.Steps))
		r.say(step.String())
		if err := r.step(ctx, step); err != nil {
			return sandbox.TemplateBuild{}, step.locate(err)
		}
		r.keepLayer(ctx, i+1)
	}
	r.at, r.prefix = AtEnd, "[finalize]"
	if err := r.awaitReady(ctx); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	return r.export(ctx)
}

// shape returns the Sandbox's Shape.
func (r *run) shape() sandbox.Shape {
	s := r.b.record.Defaults.Shape()
	s.MemoryBytes, s.DiskBytes = max(s.MemoryBytes, minMemory), max(s.DiskBytes, minDisk)
	return s
}

// open starts the Sandbox.
func (r *run) open(ctx context.Context) (err error) {
	tenant := r.b.record.Tenant
	for {
		req := sandbox.CreateRequest{
			Template: r.from, Shape: r.shape(), Timeout: r.cfg.Limit + endTime, IdleTimeout: idleTime,
			Metadata: map[string]string{buildKey: r.b.record.ID}, Cwd: "/",
		}
		if r.layer.ID != "" {
			req.Template, req.Shape, req.Snapshot = "", sandbox.Shape{}, r.layer.ID
		}
		r.box, err = r.cfg.Sandboxes.Create(ctx, tenant, req)
		if err == nil {
			break
		}
		lost := errors.Is(err, sandbox.Conflict) || errors.Is(err, sandbox.NotFound) // the layer, or its base
		if r.layer.ID == "" || !lost {
			return err
		}
		if err := r.forgo(ctx); err != nil {
			return err
		}
	}
	if r.box, r.guest, err = r.cfg.Guests.Open(ctx, tenant, r.box.ID); err != nil {
		r.endSandbox(ctx)
	}
	return err
}

// endSandbox ends the Sandbox, even after ctx has ended.
func (r *run) endSandbox(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if _, err := r.cfg.Sandboxes.End(ctx, r.box.Tenant, r.box.ID, sandbox.CauseReleased); err != nil && !errors.Is(err, sandbox.NotFound) {
		r.cfg.Log.Warn("ending the sandbox of a build failed; its deadline ends it", telemetry.KeySandbox, r.box.ID, telemetry.KeyError, err)
	}
}

// A Sandbox's files are packed into an archive in its own folder, because reading a file
// is much faster than reading a program's output.
const (
	packFolder  = "/var/tmp/.template"
	packArchive = packFolder + "/archive"
)

// packAll packs everything. A file that changes meanwhile is no error.
const packAll = `cd / && umask 022 && rm -rf -- "$1" && mkdir -- "$1" || exit
tar --one-file-system --numeric-owner "--exclude=.$1" -cf "$1/archive" . || [ $? = 1 ]`

// packChanges packs a list of all paths, and the files changed since the image was
// made. It finds them by their newer change time, which programs inside cannot forge.
// Nothing in an image is newer than the file "$3", unless that was changed inside; then
// "$2" is used, a time when the image existed. Files with special permissions are
// always packed, because unpacking the image drops these.
const packChanges = `cd / && umask 022 && rm -rf -- "$1" && mkdir -- "$1" || exit
made=$(stat -c %Y "$3" 2>/dev/null) && [ "$made" -le "$2" ] && set -- "$1" "$made"
find . -xdev -path ".$1" -prune -o -print0 > "$1/paths" || exit
find . -xdev -path ".$1" -prune -o '(' -newerct "@$2" -o -perm /7000 ')' -print0 > "$1/changed" || exit
tar --numeric-owner --no-recursion -cf "$1/archive" ".$1/paths" --null --files-from="$1/changed" || [ $? = 1 ]`

// knowsChanges succeeds if packChanges works.
const knowsChanges = `find / -maxdepth 0 -newerct @0 -perm /7777 >/dev/null 2>&1 && tar --version 2>/dev/null | grep -q GNU`

// pack packs the Sandbox's files. It returns the Template version that they are changes
// of; empty: they are complete.
func (r *run) pack(ctx context.Context) (base string, err error) {
	able, err := r.guest.Run(ctx, execution.RunRequest{Args: []string{"/bin/sh", "-c", knowsChanges}, User: "root", Cwd: "/"},
		func(execution.RunEvent) error { return nil })
	if err != nil {
		return "", err
	}
	script := packAll
	image := r.base.Name + "@" + r.box.Image // not the current meaning of the name
	if _, err := r.cfg.Templates.Find(ctx, r.box.Tenant, image); err == nil && able.Status == execution.StatusOK && able.ExitCode == 0 {
		base, script = image, packChanges
	}
	made := r.base.MadeAt
	if made.IsZero() {
		made = r.base.CreatedAt
	}
	since := strconv.FormatInt(made.Unix(), 10)
	return base, r.exec(ctx, "packing the files", "root", "/", []string{"/bin/sh", "-c", script, "sh", packFolder, since, guest.TemplateFile})
}

// export queues the build of an image from the Sandbox's content.
func (r *run) export(ctx context.Context) (built sandbox.TemplateBuild, err error) {
	r.say("packing files")
	base, err := r.pack(ctx)
	if err != nil {
		return built, err
	}
	file, err := r.guest.ReadFile(ctx, packArchive, execution.ReadOptions{})
	if err != nil {
		return built, err
	}
	defer file.Body.Close()
	d := r.b.record.Draft
	env := map[string]string{}
	maps.Copy(env, r.base.Env)
	maps.Copy(env, r.env)
	start, ready := r.commands()
	var more io.Reader // not a nil *io.SectionReader
	if u := r.recipe.Upload; u != nil {
		more = io.NewSectionReader(u.file, 0, u.size)
	}
	return r.cfg.TemplateBuilds.Build(ctx, r.b.record.Tenant, sandbox.TemplateRequest{
		Template: d.Name + ":" + r.firstTag(r.recipe.Start != ""), Source: sandbox.ArchiveSource, Whole: true, Base: base, Env: env, Defaults: r.defaults(),
		Build: r.b.record.ID, Layer: r.layers[len(r.layers)-1], Start: start, Ready: ready, Files: r.recipe.Files, Upload: more,
	}, file.Body)
}

// defaults returns the Defaults of the version.
func (r *run) defaults() sandbox.TemplateDefaults {
	d := r.b.record.Defaults
	d.User, d.Cwd = r.user, r.cwd
	if r.recipe.Own {
		d.User, d.Cwd = r.explicit.User, r.explicit.Cwd
	}
	return d
}

// firstTag returns the first tag of a version: a staging tag while it is on trial, so
// that the build's tags do not name it yet.
func (r *run) firstTag(onTrial bool) string {
	if onTrial {
		return r.staging()
	}
	return r.b.record.Tags[0]
}

// publish waits for the image and adds its other tags.
func (r *run) publish(ctx context.Context, built sandbox.TemplateBuild) error {
	built, err := r.made(ctx, built)
	if err != nil {
		return err
	}
	if err := r.conclude(ctx, built.Version, r.recipe.Start != ""); err != nil {
		return err
	}
	r.b.made(built.Version, built.SizeBytes, false)
	return nil
}

// made waits for a queued image.
func (r *run) made(ctx context.Context, built sandbox.TemplateBuild) (sandbox.TemplateBuild, error) {
	tenant := r.b.record.Tenant
	err := r.cfg.TemplateBuilds.BuildLog(ctx, tenant, built.ID, 0, true, func(l sandbox.BuildLine) error {
		r.say(l.Text)
		return nil
	})
	if ctx.Err() != nil {
		r.abandon(ctx, built.ID)
	}
	if err != nil {
		return built, err
	}
	if built, err = r.cfg.TemplateBuilds.BuildByID(ctx, tenant, built.ID); err != nil {
		return built, err
	}
	if built.State != sandbox.BuildReady {
		code, why := sandbox.Conflict, "the build was cancelled"
		if built.Failure != nil {
			code, why = built.Failure.Code, built.Failure.Message
		}
		return built, sandbox.Errorf(code, "%s", why)
	}
	return built, nil
}

// reuse tags the existing result. It tests only commands that may be untested: a start
// command, and a ready command without a start command, which no version records.
func (r *run) reuse(ctx context.Context) error {
	r.cached()
	r.at, r.prefix = AtEnd, "[finalize]"
	if r.recipe.Start == "" && r.recipe.Ready != "" {
		if err := r.readyInSandbox(ctx); err != nil {
			return err
		}
	}
	r.say("nothing to build: it is " + r.base.Name + "@" + r.base.Version)
	d, onTrial := r.b.record.Draft, r.recipe.Start != "" && !r.cameUp()
	_, err := r.cfg.Templates.Reuse(ctx, r.b.record.Tenant, r.from, sandbox.Template{
		Name: d.Name, Tag: r.firstTag(onTrial), Version: r.base.Version, Defaults: r.defaults(), Build: r.b.record.ID, Layer: r.layers[len(r.layers)-1],
	})
	if err != nil {
		return err
	}
	if err := r.conclude(ctx, r.base.Version, onTrial); err != nil {
		return err
	}
	r.b.made(r.base.Version, r.base.SizeBytes, true)
	return nil
}

// cameUp reports whether the base version of r is known to come up with the same
// Defaults: then it has a tag.
func (r *run) cameUp() bool {
	return r.base.Tag != "" && !strings.HasPrefix(r.base.Tag, stagingPrefix) && r.base.Defaults == r.defaults()
}

func (r *run) readyInSandbox(ctx context.Context) error {
	if err := r.open(ctx); err != nil {
		return err
	}
	defer r.endSandbox(ctx)
	return r.awaitReady(ctx)
}

// conclude adds the missing tags to a version. If it is on trial, it must come up first.
func (r *run) conclude(ctx context.Context, version string, onTrial bool) error {
	tags := r.b.record.Tags[1:]
	if onTrial {
		tags = r.b.record.Tags
		defer r.unstage(ctx, r.staging())
		if err := r.try(ctx, version); err != nil {
			return err
		}
	}
	return r.tag(ctx, r.firstTag(onTrial), tags)
}

// tag adds tags to the image that one of this build's tags names. It does not use the
// version: its size and user may be another build's by now.
func (r *run) tag(ctx context.Context, from string, tags []string) error {
	if len(tags) > 0 {
		if _, err := r.cfg.Templates.Tag(ctx, r.b.record.Tenant, r.b.record.Name+":"+from, tags); err != nil {
			return err
		}
	}
	r.say("the template is ready")
	return nil
}

// abandon cancels the build of an image.
func (r *run) abandon(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if _, err := r.cfg.TemplateBuilds.CancelBuild(ctx, r.b.record.Tenant, id); err != nil && !errors.Is(err, sandbox.Conflict) {
		r.cfg.Log.Warn("cancelling the packing of an image failed", telemetry.KeyBuild, id, telemetry.KeyError, err)
	}
}
