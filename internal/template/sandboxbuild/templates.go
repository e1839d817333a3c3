package sandboxbuild

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/dockerfile"
)

// Builds is a sandbox.TemplateBuilds that can also run programs: a Dockerfile, and
// packages added to an image, are built step by step in a Sandbox of the Tenant. The
// embedded port handles all other builds.
type Builds struct {
	sandbox.TemplateBuilds
	Service *Service
}

var _ sandbox.TemplateBuilds = Builds{}

// imageSource is the prefix of an image's source.
const imageSource = "oci:"

// Build implements sandbox.TemplateBuilds.
func (t Builds) Build(ctx context.Context, tenant sandbox.TenantID, req sandbox.TemplateRequest, archive io.Reader) (sandbox.TemplateBuild, error) {
	image, isImage := strings.CutPrefix(req.Source, imageSource)
	switch {
	case req.Dockerfile != "" || len(req.BuildArgs) > 0:
		return t.Service.buildDockerfile(ctx, tenant, req, archive)
	case isImage && !req.Bare && len(req.Packages) > 0 && archive == nil:
		return t.Service.buildPackages(ctx, tenant, req, image)
	case isImage:
		req.Bare = len(req.Packages) == 0 || req.Bare // nothing is added to it
	}
	return t.TemplateBuilds.Build(ctx, tenant, req, archive)
}

// buildDockerfile starts a build of a Dockerfile. archive, which may be nil, is its
// context.
func (s *Service) buildDockerfile(ctx context.Context, tenant sandbox.TenantID, req sandbox.TemplateRequest, archive io.Reader) (sandbox.TemplateBuild, error) {
	if err := checkDockerfile(req); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	file, err := dockerfile.Parse(req.Dockerfile, req.BuildArgs)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	if req.Ready != "" && req.Start == "" && !file.Starts() {
		return sandbox.TemplateBuild{}, errNothingStarts
	}
	r := Recipe{Own: true, Asked: file.From, Start: req.Start, Ready: req.Ready, Force: req.Force, Dockerfile: file}
	if r.Image, r.From, err = s.from(ctx, tenant, file.From); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	draft, err := s.draftOf(ctx, tenant, req.Template)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	if archive != nil {
		if r.Context, err = s.takeContext(ctx, tenant, archive); err != nil {
			return sandbox.TemplateBuild{}, err
		}
	}
	return s.launch(ctx, tenant, draft, r)
}

var errNothingStarts = sandbox.Errorf(sandbox.Invalid, "a ready command needs a start command: name one by start, or by CMD in the Dockerfile")

// checkDockerfile rejects request fields that conflict with a Dockerfile.
func checkDockerfile(req sandbox.TemplateRequest) error {
	for _, both := range []struct {
		given bool
		what  string
	}{
		{req.Dockerfile == "", "build arguments need a Dockerfile: leave them out, or send one"},
		{req.Source != "", "a Dockerfile names its base image by FROM: leave out the source"},
		{len(req.Packages) > 0, "a Dockerfile installs packages by RUN, for example RUN apt-get update && apt-get install -y ffmpeg: leave out the packages"},
		{len(req.Files) > 0 || req.Upload != nil, "a Dockerfile brings in files by COPY: leave out the files"},
		{len(req.Env) > 0, "a Dockerfile sets variables by ENV: leave out env"},
		{req.Bare, "nothing is added to the image of a Dockerfile: leave out bare"},
	} {
		if both.given {
			return sandbox.Errorf(sandbox.Invalid, "%s", both.what)
		}
	}
	return nil
}

// from returns the image or Template that FROM names. As with Docker, an existing one
// goes first: the Template.
func (s *Service) from(ctx context.Context, tenant sandbox.TenantID, asked string) (image, template string, err error) {
	_, err = s.cfg.Templates.Find(ctx, tenant, asked)
	switch {
	case err == nil:
		return "", asked, nil
	case sandbox.NoSuchTemplate(err), errors.Is(err, sandbox.Invalid):
		return s.Image(asked)
	}
	return "", "", err
}

// install installs packages in an image of a Debian-like system.
const install = `command -v apt-get >/dev/null || { echo "the image has no apt-get: packages are added to images of Debian and Ubuntu" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
apt-get update -q -o APT::Update::Error-Mode=any && apt-get install -qy --no-install-recommends -- "$@" && apt-get clean && rm -rf /var/lib/apt/lists/*`

// buildPackages starts a build of an image with packages.
func (s *Service) buildPackages(ctx context.Context, tenant sandbox.TenantID, req sandbox.TemplateRequest, image string) (sandbox.TemplateBuild, error) {
	draft, err := s.draftOf(ctx, tenant, req.Template)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	if req.Ready != "" && req.Start == "" {
		return sandbox.TemplateBuild{}, errNothingStarts
	}
	r := Recipe{Own: true, Asked: image, Start: req.Start, Ready: req.Ready, Force: req.Force, Files: req.Files}
	if r.Image, r.From, err = s.Image(image); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	if err := checkPackages(req.Packages); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	r.Steps = append(r.Steps, Step{
		Type: "RUN", Text: "install " + strings.Join(req.Packages, " "),
		Argv: append([]string{"/bin/sh", "-c", install, "sh"}, req.Packages...), Args: []string{"install"},
	})
	if len(req.Env) > 0 {
		env := Step{Type: "ENV", Text: "set the environment", Argv: []string{}}
		for _, key := range slices.Sorted(maps.Keys(req.Env)) {
			env.Args = append(env.Args, key, req.Env[key])
		}
		r.Steps = append(r.Steps, env)
	}
	if req.Upload != nil {
		if r.Upload, err = s.takeUpload(ctx, tenant, req.Upload); err != nil {
			return sandbox.TemplateBuild{}, err
		}
	}
	return s.launch(ctx, tenant, draft, r)
}

func checkPackages(names []string) error {
	if len(names) > maxPackages {
		return sandbox.Errorf(sandbox.TooLarge, "a template may ask for at most %d packages", maxPackages)
	}
	for _, name := range names {
		if !packagePattern.MatchString(name) {
			return sandbox.Errorf(sandbox.Invalid, "%.80q is not the name of a package", name)
		}
	}
	return nil
}

// draftOf returns the Draft for NAME or NAME:TAG.
func (s *Service) draftOf(ctx context.Context, tenant sandbox.TenantID, template string) (Draft, error) {
	name, tag, tagged := strings.Cut(template, ":")
	if !tagged {
		tag = "latest"
	}
	if strings.Contains(template, "@") {
		return Draft{}, sandbox.Errorf(sandbox.Invalid, "a build makes a new version: name a tag")
	}
	d := Draft{Name: name, Tags: []string{tag}}
	return d, s.checkDraft(ctx, tenant, d)
}

// launch announces and starts a build. The Recipe is closed after the build, or if it
// does not start.
func (s *Service) launch(ctx context.Context, tenant sandbox.TenantID, d Draft, r Recipe) (sandbox.TemplateBuild, error) {
	b, err := s.Announce(ctx, tenant, d)
	if err == nil {
		err = s.Start(ctx, tenant, d.Name, b.ID, r)
	}
	if err != nil {
		r.close()
		return sandbox.TemplateBuild{}, err
	}
	return s.buildByID(ctx, tenant, b.ID)
}

// byID finds a build of this process.
func (s *Service) byID(tenant sandbox.TenantID, id string) (*build, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.builds[id]
	if b == nil || b.record.Tenant != tenant {
		return nil, errNoBuild(id)
	}
	return b, nil
}

func (s *Service) buildByID(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.TemplateBuild, error) {
	v, _, err := s.view(ctx, tenant, id)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	return v.asBuild(), nil
}

// asBuild converts a build for the port.
func (v view) asBuild() sandbox.TemplateBuild {
	r := v.record
	made := sandbox.TemplateBuild{
		ID: r.ID, Tenant: r.Tenant, Template: r.Name + ":" + r.Tags[0], Source: r.Source, State: sandbox.BuildRunning,
		CreatedAt: r.CreatedAt, StartedAt: r.CreatedAt, EndedAt: r.EndedAt,
	}
	if r.Tags[0] == "latest" {
		made.Template = r.Name
	}
	made.Progress = v.progress
	switch r.State {
	case Waiting:
		made.State, made.StartedAt = sandbox.BuildQueued, r.EndedAt
	case Ready:
		made.State, made.Version, made.SizeBytes, made.Cached = sandbox.BuildReady, r.Version, r.SizeBytes, r.Cached
	case Failed:
		made.State = sandbox.BuildFailed
		switch f := r.Failure; {
		case f.Cancelled:
			made.State = sandbox.BuildCancelled
		default:
			made.Failure = &sandbox.Failure{Code: cmp.Or(f.Code, sandbox.Internal), Message: f.Message}
		}
	}
	return made
}

// Builds implements sandbox.TemplateBuilds. It omits builds that were queued by a build
// by steps.
func (t Builds) Builds(ctx context.Context, tenant sandbox.TenantID) ([]sandbox.TemplateBuild, error) {
	all, err := t.TemplateBuilds.Builds(ctx, tenant)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(b sandbox.TemplateBuild) bool {
		_, tag, _ := strings.Cut(b.Template, ":")
		return b.Build != "" || strings.HasPrefix(tag, pulledPrefix)
	})
	views, err := t.Service.others(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for _, v := range append(views, t.Service.here(tenant)...) {
		if v.record.State != Waiting {
			all = append(all, v.asBuild())
		}
	}
	slices.SortStableFunc(all, func(a, b sandbox.TemplateBuild) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return all, nil
}

// here returns the builds of a Tenant that this process has.
func (s *Service) here(tenant sandbox.TenantID) (all []view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.builds {
		if b.record.Tenant == tenant {
			all = append(all, viewOf(b))
		}
	}
	return all
}

// BuildByID implements sandbox.TemplateBuilds.
func (t Builds) BuildByID(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.TemplateBuild, error) {
	if idPattern.MatchString(id) {
		return t.Service.buildByID(ctx, tenant, id)
	}
	return t.TemplateBuilds.BuildByID(ctx, tenant, id)
}

// CancelBuild implements sandbox.TemplateBuilds.
func (t Builds) CancelBuild(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.TemplateBuild, error) {
	if !idPattern.MatchString(id) {
		return t.TemplateBuilds.CancelBuild(ctx, tenant, id)
	}
	_, b, err := t.Service.view(ctx, tenant, id)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	if b == nil {
		v, err := t.Service.cancelElsewhere(ctx, tenant, id)
		if err != nil {
			return sandbox.TemplateBuild{}, err
		}
		return v.asBuild(), nil
	}
	if !b.cancel() {
		return sandbox.TemplateBuild{}, errHasEnded
	}
	select {
	case <-b.done:
		return viewOf(b).asBuild(), nil
	case <-ctx.Done():
		return sandbox.TemplateBuild{}, ctx.Err()
	}
}

// BuildLog implements sandbox.TemplateBuilds. Offsets count lines.
func (t Builds) BuildLog(ctx context.Context, tenant sandbox.TenantID, id string, from int64, follow bool, each func(sandbox.BuildLine) error) error {
	if !idPattern.MatchString(id) {
		return t.TemplateBuilds.BuildLog(ctx, tenant, id, from, follow, each)
	}
	v, b, err := t.Service.view(ctx, tenant, id)
	if err != nil {
		return err
	}
	if b == nil {
		return t.Service.logElsewhere(ctx, v, from, follow, each)
	}
	for first := true; ; first = false {
		b.mu.Lock()
		lines, changed, over := b.lines[:len(b.lines):len(b.lines)], b.changed, b.record.State != Building
		b.mu.Unlock()
		if first && (from < 0 || from > int64(len(lines))) {
			return errOffset
		}
		for ; from < int64(len(lines)); from++ {
			if err := each(lineOf(lines[from], from)); err != nil {
				return err
			}
		}
		if !follow || over {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
