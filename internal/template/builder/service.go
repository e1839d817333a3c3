package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/uploadlimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

const (
	maxWaiting    = 32               // queued builds of all Tenants
	maxTenant     = 4                // queued and running builds of one Tenant
	maxBuild      = 64               // bytes of a Build or Layer name
	maxTags       = 32               // per request
	maxNames      = 100              // names and tags of a Tenant
	keptBuilds    = 50               // finished builds of one Tenant
	maxArchive    = 4 << 30          // bytes of an uploaded archive
	minFree       = 4 << 30          // bytes of disk that an archive must leave free
	retryAfter    = 30 * time.Second // when too many builds wait
	defaultLimit  = 30 * time.Minute // for one build
	defaultAtOnce = 2
)

// Config of a Service. Store and Log are required.
type Config struct {
	Store       *template.Store
	Registries  []string        // see template.Guard
	NPMRegistry string          // see template.Builder
	Proxy       *upstream.Proxy // see template.Guard
	Limit       time.Duration   // for one build; zero: 30 min
	AtOnce      int             // concurrent builds; zero: 2
	Log         *slog.Logger
}

// Service queues and runs builds. Its methods are safe for concurrent use.
type Service struct {
	cfg   Config
	dir   string
	slots chan struct{} // one for each running build
	// run carries out a build; tests replace it.
	run func(ctx context.Context, b *template.Builder, ref template.Ref, r template.Recipe, content io.Reader, say func(template.Progress)) (template.Image, error)

	mu     sync.Mutex
	builds map[string]*build
	closed bool
	going  sync.WaitGroup
}

// Open loads the builds of an earlier process; unfinished ones have failed. Close must be
// called.
func Open(cfg Config) (*Service, error) {
	cfg.Limit = cmp.Or(cfg.Limit, defaultLimit)
	cfg.AtOnce = cmp.Or(cfg.AtOnce, defaultAtOnce)
	s := &Service{cfg: cfg, dir: cfg.Store.Builds(), slots: make(chan struct{}, cfg.AtOnce), builds: map[string]*build{}}
	s.run = func(ctx context.Context, b *template.Builder, ref template.Ref, r template.Recipe, content io.Reader, say func(template.Progress)) (template.Image, error) {
		return b.Make(ctx, ref, r, content, say)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of builds: %w", err)
	}
	if err := os.Chmod(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of builds: %w", err)
	}
	return s, s.load()
}

// load reads the records, and removes files without a record.
func (s *Service) load() error {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("read the builds: %w", err)
	}
	for _, f := range files {
		id, isRecord := strings.CutSuffix(f.Name(), recordSuffix)
		if !isRecord || !sandbox.ValidBuildID(id) {
			continue
		}
		b, err := s.loadBuild(id)
		if err != nil {
			s.cfg.Log.Warn("reading the record of a build failed; it is removed", telemetry.KeyBuild, id, telemetry.KeyError, err)
			continue
		}
		s.builds[id] = b
	}
	for _, f := range files {
		id, suffix, _ := strings.Cut(f.Name(), ".")
		if s.builds[id] != nil && ("."+suffix == recordSuffix || "."+suffix == logSuffix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.dir, f.Name())); err != nil {
			return fmt.Errorf("remove the remains of a build: %w", err)
		}
	}
	return nil
}

func (s *Service) loadBuild(id string) (*build, error) {
	record, err := readRecord(filepath.Join(s.dir, id+recordSuffix))
	if err != nil {
		return nil, err
	}
	b := &build{
		record: record, changed: make(chan struct{}), done: make(chan struct{}), path: filepath.Join(s.dir, id),
		stop: func(error) {}, // the build no longer runs
	}
	if info, err := os.Stat(b.path + logSuffix); err == nil {
		b.logged = info.Size()
	}
	close(b.done)
	if record.State.Final() {
		return b, nil
	}
	b.end(sandbox.BuildFailed, func(r *sandbox.TemplateBuild) {
		r.Failure = &sandbox.Failure{Code: sandbox.Unavailable, Message: "the server stopped during the build: build it again"}
	})
	return b, b.write()
}

// Close cancels queued and running builds and waits for their end.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	for _, b := range s.builds {
		b.stop(errClosing) // no effect on finished builds
	}
	s.mu.Unlock()
	s.going.Wait()
}

// Build implements sandbox.Templates. quota is the Tenant's; later changes do not affect
// this build.
func (s *Service) Build(ctx context.Context, tenant sandbox.TenantID, quota sandbox.Quota, req sandbox.TemplateRequest, archive io.Reader) (sandbox.TemplateBuild, error) {
	ref, recipe, err := recipeOf(tenant, req, archive != nil)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	if req.Base != "" {
		base, err := s.cfg.Store.Find(ctx, tenant, req.Base)
		if err != nil {
			return sandbox.TemplateBuild{}, err
		}
		recipe.Base = base.Image.Digest
	}
	guard := &template.Guard{Registries: s.cfg.Registries, Proxy: s.cfg.Proxy}
	if err := guard.Check(recipe, archive != nil); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	if err := s.checkNames(ref); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	b, err := s.queue(tenant, ref, req)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	if err := s.takeUpload(ctx, b, req.Upload, &recipe); err != nil {
		s.drop(b)
		return sandbox.TemplateBuild{}, err
	}
	var content *os.File
	if archive != nil {
		if content, err = s.spool(ctx, b, archive); err != nil {
			closeAll(recipe.Upload)
			s.drop(b)
			return sandbox.TemplateBuild{}, err
		}
	}
	builder := &template.Builder{
		Store: s.cfg.Store, Log: s.cfg.Log, NPMRegistry: s.cfg.NPMRegistry, Force: req.Force, Output: b.output(), Guard: guard, Quota: quota,
	}
	if err := s.start(b, builder, ref, recipe, content); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	return b.snapshot(), nil
}

// recipeOf converts a request to a Ref and a Recipe.
func recipeOf(tenant sandbox.TenantID, req sandbox.TemplateRequest, archive bool) (template.Ref, template.Recipe, error) {
	r := template.Recipe{
		Packages: req.Packages, Env: req.Env, Start: req.Start, Ready: req.Ready, Bare: req.Bare,
		Whole: req.Whole, Defaults: req.Defaults, Build: req.Build, Layer: req.Layer,
	}
	ref, err := template.ParseRef(tenant, req.Template)
	if err == nil {
		err = checkMade(tenant, ref, req.Build, req.Layer)
	}
	switch {
	case err != nil:
		return ref, r, err
	case ref.Digest != "":
		return ref, r, sandbox.Errorf(sandbox.Invalid, "a build makes a new version: name a tag")
	case (req.Whole || req.Base != "") && !archive, req.Base != "" && !req.Whole:
		return ref, r, sandbox.Errorf(sandbox.Invalid, "only an archive can hold a whole sandbox, or the changes to another one")
	case (req.Source == sandbox.ArchiveSource) != archive:
		return ref, r, sandbox.Errorf(sandbox.Invalid, "the source %q and an archive go together", sandbox.ArchiveSource)
	}
	if archive {
		r.Source = template.Tar("/archive") // the name is not used
	} else if r.Source, err = template.ParseSource(req.Source); err != nil {
		return ref, r, err
	}
	for _, f := range req.Files {
		if f.Mode > uint32(fs.ModePerm) {
			return ref, r, sandbox.Errorf(sandbox.Invalid, "the mode of a file may only say who may read, write and execute")
		}
		r.Files = append(r.Files, template.File{Path: f.Path, Content: f.Content, Mode: fs.FileMode(f.Mode), User: f.User})
	}
	return ref, r, r.Check()
}

// checkMade reports whether a Tenant may build a Template of this name.
func checkMade(tenant sandbox.TenantID, ref template.Ref, build, layer string) error {
	switch {
	case tenant == "":
		return sandbox.Errorf(sandbox.Invalid, "a tenant is missing")
	case ref.Name == "base":
		return sandbox.Errorf(sandbox.Denied, "the template base is the server's own: choose another name")
	case len(build) > maxBuild || len(layer) > maxBuild:
		return sandbox.Errorf(sandbox.Invalid, "the names of a build and its steps may have at most %d bytes", maxBuild)
	}
	return nil
}

// checkNames keeps a Tenant from filling the disk with names.
func (s *Service) checkNames(refs ...template.Ref) error {
	listed, err := s.cfg.Store.List(refs[0].Owner)
	if err != nil {
		return err
	}
	fresh := slices.DeleteFunc(refs, func(ref template.Ref) bool {
		return slices.ContainsFunc(listed, func(l template.Listed) bool { return l.Ref == ref })
	})
	if len(fresh) > 0 && len(listed)+len(fresh) > maxNames {
		return sandbox.Errorf(sandbox.Exhausted, "the tenant has %d templates and tags already: remove some", maxNames)
	}
	return nil
}

// queue creates the record of a new build.
func (s *Service) queue(tenant sandbox.TenantID, ref template.Ref, req sandbox.TemplateRequest) (*build, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting, own := 0, 0
	for _, b := range s.builds {
		if b.snapshot().State.Final() {
			continue
		}
		waiting++
		if b.record.Tenant == tenant {
			own++
		}
	}
	full := sandbox.Errorf(sandbox.Exhausted, "too many templates are being built: wait, or cancel one")
	full.RetryAfter = retryAfter
	switch {
	case s.closed:
		return nil, errClosing
	case own >= maxTenant || waiting >= maxWaiting+s.cfg.AtOnce:
		return nil, full
	}
	id := sandbox.NewBuildID()
	b := &build{
		record: sandbox.TemplateBuild{
			ID: id, Tenant: tenant, Template: ref.String(), Source: req.Source, State: sandbox.BuildQueued, CreatedAt: time.Now().UTC(),
			Build: req.Build,
		},
		path: filepath.Join(s.dir, id), changed: make(chan struct{}), done: make(chan struct{}),
	}
	b.ctx, b.stop = context.WithCancelCause(context.Background())
	if err := b.write(); err != nil {
		return nil, err
	}
	s.builds[id] = b
	return b, nil
}

// takeUpload adds a build's uploaded files to its recipe.
func (s *Service) takeUpload(ctx context.Context, b *build, upload io.Reader, recipe *template.Recipe) (err error) {
	if upload == nil {
		return nil
	}
	if recipe.Upload, err = s.spool(ctx, b, upload); err != nil {
		return err
	}
	if recipe.UploadHash, err = template.CheckUpload(ctx, recipe.Upload); err != nil {
		closeAll(recipe.Upload)
	}
	return err
}

// closeAll closes the files that are not nil.
func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// spool writes an archive to disk, so that its sender need not wait for the build.
func (s *Service) spool(ctx context.Context, b *build, archive io.Reader) (*os.File, error) {
	f, err := os.OpenFile(b.path+archiveSuffix, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep the archive: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil { // the file exists only as a descriptor
		f.Close()
		return nil, fmt.Errorf("keep the archive: %w", err)
	}
	err = uploadlimit.Bounds{Subject: "an archive", Most: maxArchive, Leave: minFree}.Receive(ctx, f, archive)
	if err == nil && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// drop removes a build that did not start.
func (s *Service) drop(b *build) {
	b.stop(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.builds, b.record.ID)
	s.remove(b)
	close(b.done)
}

func (s *Service) remove(b *build) {
	for _, suffix := range []string{recordSuffix, logSuffix} {
		if err := os.Remove(b.path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("removing the files of a build failed", telemetry.KeyError, err)
		}
	}
}

// start queues b and builds it.
func (s *Service) start(b *build, builder *template.Builder, ref template.Ref, recipe template.Recipe, content *os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		closeAll(content, recipe.Upload)
		return errClosing
	}
	s.going.Go(func() {
		defer close(b.done)
		defer closeAll(content, recipe.Upload)
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-b.ctx.Done():
		}
		image, err := template.Image{}, context.Cause(b.ctx)
		if err == nil {
			image, err = s.make(b, builder, ref, recipe, content)
		}
		s.finish(b, image, err)
	})
	return nil
}

// make builds b within the time limit.
func (s *Service) make(b *build, builder *template.Builder, ref template.Ref, recipe template.Recipe, content *os.File) (template.Image, error) {
	ctx, cancel := context.WithTimeoutCause(b.ctx, s.cfg.Limit, errTooSlow)
	defer cancel()
	b.change(func(r *sandbox.TemplateBuild) { r.State, r.StartedAt = sandbox.BuildRunning, time.Now().UTC() })
	var in io.Reader // not a nil *os.File
	if content != nil {
		in = content
	}
	image, err := s.run(ctx, builder, ref, recipe, in, b.say)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return image, err
}

var (
	errClosing   = sandbox.Errorf(sandbox.Unavailable, "the server is stopping: build it again")
	errTooSlow   = sandbox.Errorf(sandbox.Timeout, "the build took too long")
	errCancelled = sandbox.Errorf(sandbox.Conflict, "the build was cancelled")
)

// finish records the end of a build.
func (s *Service) finish(b *build, image template.Image, err error) {
	switch {
	case err == nil:
		b.conclude("ready: version " + image.Digest)
		b.end(sandbox.BuildReady, func(r *sandbox.TemplateBuild) {
			r.Version, r.SizeBytes, r.Cached = image.Digest, image.Size, image.Cached
		})
	case errors.Is(err, errCancelled):
		b.conclude("cancelled")
		b.end(sandbox.BuildCancelled, func(*sandbox.TemplateBuild) {})
	default:
		f := failureOf(err)
		b.conclude("failed: " + f.Message)
		b.end(sandbox.BuildFailed, func(r *sandbox.TemplateBuild) { r.Failure = f })
		s.cfg.Log.Info("building a template failed", telemetry.KeyBuild, b.record.ID, telemetry.KeyTenant, string(b.record.Tenant), telemetry.KeyError, err)
	}
	b.closeLog()
	if err := b.write(); err != nil {
		s.cfg.Log.Error("writing the record of a build failed", telemetry.KeyError, err)
	}
	s.forgetOld(b.record.Tenant)
}

// failureOf returns the public form of an error. The last output of programs may be
// included, because the log has it anyway.
func failureOf(err error) *sandbox.Failure {
	var told *sandbox.Error
	if errors.As(err, &told) {
		return &sandbox.Failure{Code: told.Code, Message: told.Detail}
	}
	var ran *template.RunError
	if errors.As(err, &ran) {
		return &sandbox.Failure{Code: sandbox.Invalid, Message: ran.Error()}
	}
	return &sandbox.Failure{Code: sandbox.Internal, Message: "the server could not build it; its log says why"}
}

// forgetOld removes all but the latest builds of a Tenant.
func (s *Service) forgetOld(tenant sandbox.TenantID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	over := 0
	for _, b := range s.newest(tenant) {
		if !b.snapshot().State.Final() {
			continue
		}
		if over++; over > keptBuilds {
			delete(s.builds, b.record.ID)
			s.remove(b)
		}
	}
}

// newest returns a Tenant's builds, newest first. Service.mu is held.
func (s *Service) newest(tenant sandbox.TenantID) []*build {
	var own []*build
	for _, b := range s.builds {
		if b.record.Tenant == tenant {
			own = append(own, b)
		}
	}
	slices.SortFunc(own, func(a, b *build) int {
		return cmp.Or(b.record.CreatedAt.Compare(a.record.CreatedAt), strings.Compare(a.record.ID, b.record.ID))
	})
	return own
}

// Builds implements sandbox.Templates.
func (s *Service) Builds(_ context.Context, tenant sandbox.TenantID) ([]sandbox.TemplateBuild, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []sandbox.TemplateBuild{}
	for _, b := range s.newest(tenant) {
		all = append(all, b.snapshot())
	}
	return all, nil
}

// Ended returns every Tenant's builds that ended at since or later, for event delivery.
func (s *Service) Ended(since time.Time) []sandbox.TemplateBuild {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []sandbox.TemplateBuild{}
	for _, b := range s.builds {
		if r := b.snapshot(); r.State.Final() && !r.EndedAt.Before(since) {
			all = append(all, r)
		}
	}
	return all
}

func (s *Service) find(tenant sandbox.TenantID, id string) (*build, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.builds[id]
	if b == nil || b.record.Tenant != tenant {
		return nil, sandbox.Errorf(sandbox.NotFound, "no build %.40q", id)
	}
	return b, nil
}

// BuildByID implements sandbox.Templates.
func (s *Service) BuildByID(_ context.Context, tenant sandbox.TenantID, id string) (sandbox.TemplateBuild, error) {
	b, err := s.find(tenant, id)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	return b.snapshot(), nil
}

// CancelBuild implements sandbox.Templates.
func (s *Service) CancelBuild(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.TemplateBuild, error) {
	b, err := s.find(tenant, id)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	if b.snapshot().State.Final() {
		return sandbox.TemplateBuild{}, sandbox.Errorf(sandbox.Conflict, "the build has ended")
	}
	b.stop(errCancelled)
	select {
	case <-b.done:
		return b.snapshot(), nil
	case <-ctx.Done():
		return sandbox.TemplateBuild{}, ctx.Err()
	}
}

// Tag implements sandbox.Templates.
func (s *Service) Tag(_ context.Context, tenant sandbox.TenantID, text string, tags []string) (sandbox.Template, error) {
	if tenant == "" || len(tags) == 0 || len(tags) > maxTags {
		return sandbox.Template{}, sandbox.Errorf(sandbox.Invalid, "name 1 to %d tags", maxTags)
	}
	from, err := template.ParseRef(tenant, text)
	if err != nil {
		return sandbox.Template{}, err
	}
	var refs []template.Ref
	for _, tag := range tags {
		ref, err := template.ParseRef(tenant, from.Name+":"+tag)
		if err != nil {
			return sandbox.Template{}, err
		}
		refs = append(refs, ref)
	}
	if err := s.checkNames(refs...); err != nil {
		return sandbox.Template{}, err
	}
	found, err := s.cfg.Store.Tag(tenant, text, tags)
	return templateOf(found), err
}

// Reuse implements sandbox.Templates.
func (s *Service) Reuse(ctx context.Context, tenant sandbox.TenantID, text string, as sandbox.Template) (sandbox.Template, error) {
	ref, err := template.ParseRef(tenant, as.Name+":"+as.Tag)
	if err == nil {
		err = checkMade(tenant, ref, as.Build, as.Layer)
	}
	if err == nil {
		err = as.Defaults.Check()
	}
	if err == nil {
		err = s.checkNames(ref)
	}
	if err != nil {
		return sandbox.Template{}, err
	}
	found, err := s.cfg.Store.Reuse(ctx, text, ref, template.Image{Digest: as.Version, Defaults: as.Defaults, Build: as.Build, Layer: as.Layer})
	return templateOf(found), err
}

// Keep records an image that came with a Tenant's Snapshot as a version of its Template,
// if the quota allows it.
func (s *Service) Keep(tenant sandbox.TenantID, quota sandbox.Quota, text, digest string) error {
	if tenant == "" {
		return sandbox.Errorf(sandbox.Invalid, "a tenant is missing")
	}
	ref, err := template.ParseRef(tenant, text)
	if err != nil {
		return err
	}
	if err := s.checkNames(ref); err != nil {
		return err
	}
	return s.cfg.Store.Keep(quota, tenant, text, digest)
}

// Remove implements sandbox.Templates.
func (s *Service) Remove(ctx context.Context, tenant sandbox.TenantID, text string) (sandbox.RemovedTemplates, error) {
	removed := sandbox.RemovedTemplates{Names: []string{}}
	if tenant == "" {
		return removed, sandbox.Errorf(sandbox.Invalid, "a tenant is missing")
	}
	gone, freed, err := s.cfg.Store.Remove(tenant, text)
	if errors.Is(err, sandbox.NotFound) {
		if _, found := s.cfg.Store.Find(ctx, tenant, text); found == nil {
			return removed, sandbox.Errorf(sandbox.Denied, "the template %s is the server's own: its operator removes it", text)
		}
	}
	if err != nil {
		return removed, err
	}
	for _, r := range gone {
		removed.Names = append(removed.Names, r.String())
	}
	removed.FreedBytes = freed
	return removed, nil
}
