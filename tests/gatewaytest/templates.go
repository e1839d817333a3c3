package gatewaytest

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// templates is sandbox.Templates in memory. Every build fails at once and has a log of
// two lines.
type templates struct {
	sync.Mutex
	builds   []sandbox.TemplateBuild // the newest first
	own      []ownTemplate
	Requests []sandbox.TemplateRequest
	Archives []string
	Uploads  []string
	Stored   int64         // bytes of each Tenant in addition to its own Templates
	Quota    sandbox.Quota // of each Tenant
	// FailReuse is the error of Reuse; nil: it succeeds.
	FailReuse error
}

// ownTemplate is a tag or, without one, a version of a Template of a Tenant.
type ownTemplate struct {
	tenant sandbox.TenantID
	sandbox.Template
}

// BaseVersion is the version of the Template "base".
var BaseVersion = strings.Repeat("0b", 32)

func (f *templates) Build(ctx context.Context, tenant sandbox.TenantID, req sandbox.TemplateRequest, archive io.Reader) (sandbox.TemplateBuild, error) {
	if err := f.Admit(ctx, tenant, ""); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	ref, err := template.ParseRef(tenant, req.Template)
	if err != nil {
		return sandbox.TemplateBuild{}, err
	}
	kind, rest, _ := strings.Cut(req.Source, ":")
	switch {
	case kind == "dir" || kind == "tar" && rest != "":
		return sandbox.TemplateBuild{}, sandbox.Errorf(sandbox.Denied, "only the server's operator builds from a path")
	case req.Dockerfile == "" && kind != "tar" && kind != "debian" && kind != "oci":
		return sandbox.TemplateBuild{}, sandbox.Errorf(sandbox.Invalid, "an unknown source %q", req.Source)
	case ref.Digest != "" || kind == "tar" && archive == nil:
		return sandbox.TemplateBuild{}, sandbox.Errorf(sandbox.Invalid, "a version has a name, and tar: an archive")
	case ref.Name == "base":
		return sandbox.TemplateBuild{}, sandbox.Errorf(sandbox.Denied, "the template base is the server's own")
	}
	sent, uploaded := "", ""
	if req.Upload != nil {
		all, err := io.ReadAll(req.Upload)
		if err != nil {
			return sandbox.TemplateBuild{}, err
		}
		uploaded = string(all)
	}
	if archive != nil {
		all, err := io.ReadAll(archive)
		if err != nil {
			return sandbox.TemplateBuild{}, err
		}
		sent = string(all)
	}
	f.Lock()
	defer f.Unlock()
	b := sandbox.TemplateBuild{
		ID: sandbox.NewBuildID(), Tenant: tenant, Template: req.Template, Source: req.Source, State: sandbox.BuildFailed, Progress: "unpack: files",
		CreatedAt: time.Now(), StartedAt: time.Now(), EndedAt: time.Now(), Failure: &sandbox.Failure{Code: sandbox.Invalid, Message: "no /bin/sh"},
	}
	f.builds = append([]sandbox.TemplateBuild{b}, f.builds...)
	f.Requests, f.Archives = append(f.Requests, req), append(f.Archives, sent)
	f.Uploads = append(f.Uploads, uploaded)
	return b, nil
}

func (f *templates) Builds(_ context.Context, tenant sandbox.TenantID) ([]sandbox.TemplateBuild, error) {
	f.Lock()
	defer f.Unlock()
	var own []sandbox.TemplateBuild
	for _, b := range f.builds {
		if b.Tenant == tenant {
			own = append(own, b)
		}
	}
	return own, nil
}

func (f *templates) BuildByID(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.TemplateBuild, error) {
	own, _ := f.Builds(ctx, tenant)
	for _, b := range own {
		if b.ID == id {
			return b, nil
		}
	}
	return sandbox.TemplateBuild{}, sandbox.Errorf(sandbox.NotFound, "there is no such build")
}

func (f *templates) CancelBuild(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.TemplateBuild, error) {
	if _, err := f.BuildByID(ctx, tenant, id); err != nil {
		return sandbox.TemplateBuild{}, err
	}
	return sandbox.TemplateBuild{}, sandbox.Errorf(sandbox.Conflict, "the build has ended")
}

func (f *templates) BuildLog(ctx context.Context, tenant sandbox.TenantID, id string, from int64, _ bool, each func(sandbox.BuildLine) error) error {
	if _, err := f.BuildByID(ctx, tenant, id); err != nil {
		return err
	}
	lines := []string{"unpack: files", "failed: no /bin/sh"}
	if from < 0 || from > int64(len(lines)) {
		return sandbox.Errorf(sandbox.Invalid, "from is beyond the end")
	}
	for i := from; i < int64(len(lines)); i++ {
		if err := each(sandbox.BuildLine{At: time.Now(), Text: lines[i], Next: i + 1}); err != nil {
			return err
		}
	}
	return nil
}

func (f *templates) base() sandbox.Template {
	return sandbox.Template{Name: "base", Tag: "latest", Version: BaseVersion, Shared: true, Source: "debian:bookworm", SizeBytes: 5000, StoredBytes: 8192, CreatedAt: time.Now()}
}

// Put gives a Tenant a Template and returns its version.
func (f *templates) Put(tenant sandbox.TenantID, name string) (version string) {
	t := f.base()
	t.Name, t.Shared = name, false
	f.Lock()
	defer f.Unlock()
	f.put(tenant, t)
	return t.Version
}

// put adds the tag and the version of t.
func (f *templates) put(tenant sandbox.TenantID, t sandbox.Template) {
	version := t
	version.Tag = ""
	for _, t := range []sandbox.Template{t, version} {
		f.own = slices.DeleteFunc(f.own, func(o ownTemplate) bool {
			return o.tenant == tenant && o.Name == t.Name && o.Tag == t.Tag && (t.Tag != "" || o.Version == t.Version)
		})
		f.own = append(f.own, ownTemplate{tenant, t})
	}
}

func (f *templates) List(_ context.Context, tenant sandbox.TenantID) ([]sandbox.Template, error) {
	f.Lock()
	defer f.Unlock()
	var all []sandbox.Template
	for _, o := range f.own {
		if o.tenant == tenant {
			all = append(all, o.Template)
		}
	}
	return append(all, f.base()), nil
}

// find returns the Template that text names, of the Tenant or of the operator.
func (f *templates) find(tenant sandbox.TenantID, text string) (sandbox.Template, error) {
	ref, err := template.ParseRef(tenant, text)
	if err != nil {
		return sandbox.Template{}, err
	}
	is := func(t sandbox.Template) bool {
		return t.Name == ref.Name && t.Tag == ref.Tag && (ref.Digest == "" || t.Version == ref.Digest)
	}
	for _, o := range f.own {
		if o.tenant == tenant && is(o.Template) {
			return o.Template, nil
		}
	}
	base := f.base()
	if ref.Digest != "" {
		base.Tag = ""
	}
	if !is(base) {
		return sandbox.Template{}, sandbox.Errorf(sandbox.NotFound, "there is no template %.80q", text)
	}
	return base, nil
}

func (f *templates) Find(_ context.Context, tenant sandbox.TenantID, text string) (sandbox.Template, error) {
	f.Lock()
	defer f.Unlock()
	return f.find(tenant, text)
}

func (f *templates) Tag(_ context.Context, tenant sandbox.TenantID, text string, tags []string) (sandbox.Template, error) {
	f.Lock()
	defer f.Unlock()
	found, err := f.find(tenant, text)
	if err == nil && found.Shared {
		err = sandbox.Errorf(sandbox.NotFound, "there is no template %.80q", text)
	}
	for _, tag := range tags {
		if err == nil {
			_, err = template.ParseRef(tenant, found.Name+":"+tag)
		}
	}
	if err != nil {
		return sandbox.Template{}, err
	}
	for _, tag := range tags {
		tagged := found
		tagged.Tag = tag
		f.put(tenant, tagged)
	}
	return found, nil
}

func (f *templates) Reuse(_ context.Context, tenant sandbox.TenantID, text string, as sandbox.Template) (sandbox.Template, error) {
	f.Lock()
	defer f.Unlock()
	found, err := f.find(tenant, text)
	switch {
	case f.FailReuse != nil:
		return sandbox.Template{}, f.FailReuse
	case as.Name == "base":
		return sandbox.Template{}, sandbox.Errorf(sandbox.Denied, "the template base is the server's own")
	case err != nil:
		return sandbox.Template{}, err
	case found.Version != as.Version:
		return sandbox.Template{}, sandbox.Errorf(sandbox.Conflict, "the template %s was built anew meanwhile", text)
	}
	found.Name, found.Tag, found.Shared = as.Name, as.Tag, false
	found.Defaults, found.Build, found.Layer = as.Defaults, as.Build, as.Layer
	f.put(tenant, found)
	return found, nil
}

func (f *templates) Versions(_ context.Context, tenant sandbox.TenantID, text string) (sandbox.Template, []sandbox.Template, error) {
	f.Lock()
	defer f.Unlock()
	found, err := f.find(tenant, text)
	if err != nil {
		return sandbox.Template{}, nil, err
	}
	if found.Shared {
		version := found
		version.Tag = ""
		return found, []sandbox.Template{version}, nil
	}
	var versions []sandbox.Template
	for _, o := range slices.Backward(f.own) {
		if o.tenant == tenant && o.Name == found.Name && o.Tag == "" {
			versions = append(versions, o.Template)
		}
	}
	return found, versions, nil
}

func (f *templates) Remove(_ context.Context, tenant sandbox.TenantID, text string) (gone sandbox.RemovedTemplates, err error) {
	f.Lock()
	defer f.Unlock()
	ref, err := template.ParseRef(tenant, text)
	if err != nil {
		return gone, err
	}
	whole := !strings.ContainsAny(text, ":@")
	stored := f.stored(tenant)
	f.own = slices.DeleteFunc(f.own, func(o ownTemplate) bool {
		if o.tenant != tenant || o.Name != ref.Name || !whole && (o.Tag != ref.Tag || ref.Digest != "" && o.Version != ref.Digest) {
			return false
		}
		named := template.Ref{Name: o.Name, Tag: o.Tag}
		if o.Tag == "" {
			named.Digest = o.Version
		}
		gone.Names = append(gone.Names, named.String())
		return true
	})
	if len(gone.Names) > 0 {
		gone.FreedBytes = stored - f.stored(tenant)
		return gone, nil
	}
	if _, err := f.find(tenant, text); err != nil {
		return gone, err
	}
	return gone, sandbox.Errorf(sandbox.Denied, "the template %s is the server's own", text)
}

// stored returns the bytes of the images that a Tenant's Templates name.
func (f *templates) stored(tenant sandbox.TenantID) (bytes int64) {
	seen := map[string]bool{}
	for _, o := range f.own {
		if o.tenant == tenant && !seen[o.Version] {
			seen[o.Version] = true
			bytes += o.StoredBytes
		}
	}
	return bytes
}

func (f *templates) StoredBytes(_ context.Context, tenant sandbox.TenantID) (int64, error) {
	f.Lock()
	defer f.Unlock()
	return f.Stored + f.stored(tenant), nil
}

func (f *templates) Admit(_ context.Context, tenant sandbox.TenantID, version string) error {
	f.Lock()
	defer f.Unlock()
	if version != "" && slices.ContainsFunc(f.own, func(o ownTemplate) bool { return o.tenant == tenant && o.Version == version }) {
		return nil
	}
	return f.Quota.AdmitTemplate(f.Stored+f.stored(tenant), 0)
}
