package gatewaytest

import (
	"context"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// templates is the port sandbox.Templates in memory: a build is over at once and
// has a log of two lines.
type templates struct {
	mu       sync.Mutex
	builds   []sandbox.TemplateBuild // the newest first
	Requests []sandbox.TemplateRequest
	Archives []string
	Uploads  []string
	Stored   int64         // that each Tenant has
	Quota    sandbox.Quota // of each Tenant
}

// BaseVersion is the version of the Template "base".
var BaseVersion = strings.Repeat("0b", 32)

func (f *templates) Build(ctx context.Context, tenant sandbox.TenantID, req sandbox.TemplateRequest, archive io.Reader) (sandbox.TemplateBuild, error) {
	if err := f.Admit(ctx, tenant, ""); err != nil {
		return sandbox.TemplateBuild{}, err
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
	if strings.HasPrefix(req.Source, "dir:") {
		return sandbox.TemplateBuild{}, sandbox.Errorf(sandbox.Denied, "only the server's operator builds from dir:")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
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
	f.mu.Lock()
	defer f.mu.Unlock()
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
	return sandbox.TemplateBuild{}, sandbox.Errorf(sandbox.Conflict, "the build is over")
}

func (f *templates) BuildLog(ctx context.Context, tenant sandbox.TenantID, id string, from int64, _ bool, each func(sandbox.BuildLine) error) error {
	if _, err := f.BuildByID(ctx, tenant, id); err != nil {
		return err
	}
	lines := []string{"unpack: files", "failed: no /bin/sh"}
	if from > int64(len(lines)) {
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

func (f *templates) List(context.Context, sandbox.TenantID) ([]sandbox.Template, error) {
	return []sandbox.Template{f.base()}, nil
}

func (f *templates) Find(ctx context.Context, tenant sandbox.TenantID, text string) (sandbox.Template, error) {
	found, _, err := f.Versions(ctx, tenant, text)
	return found, err
}

func (f *templates) Tag(_ context.Context, _ sandbox.TenantID, text string, _ []string) (sandbox.Template, error) {
	return sandbox.Template{}, sandbox.Errorf(sandbox.NotFound, "there is no template %.80q", text)
}

func (f *templates) Reuse(_ context.Context, _ sandbox.TenantID, text string, _ sandbox.Template) (sandbox.Template, error) {
	return sandbox.Template{}, sandbox.Errorf(sandbox.NotFound, "there is no template %.80q", text)
}

func (f *templates) Versions(_ context.Context, _ sandbox.TenantID, text string) (sandbox.Template, []sandbox.Template, error) {
	if text != "base" {
		return sandbox.Template{}, nil, sandbox.Errorf(sandbox.NotFound, "there is no template %.80q", text)
	}
	version := f.base()
	version.Tag = ""
	return f.base(), []sandbox.Template{version}, nil
}

func (f *templates) Remove(_ context.Context, _ sandbox.TenantID, text string) (gone sandbox.RemovedTemplates, err error) {
	switch text {
	case "base":
		return gone, sandbox.Errorf(sandbox.Denied, "the template base is the server's own")
	case "mine":
		return sandbox.RemovedTemplates{Names: []string{"mine", "mine@" + BaseVersion}, FreedBytes: 8192}, nil
	}
	return gone, sandbox.Errorf(sandbox.NotFound, "there is no template %.80q", text)
}

func (f *templates) StoredBytes(context.Context, sandbox.TenantID) (int64, error) {
	return f.Stored, nil
}

func (f *templates) Admit(context.Context, sandbox.TenantID, string) error {
	return f.Quota.AdmitTemplate(f.Stored, 0)
}
