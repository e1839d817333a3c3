package recall

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// forgetLimit bounds how long a change waits until the names are forgotten.
const forgetLimit = 5 * time.Second

// Forgetting is a TemplateCatalog with its builds. Names forget each Template that it
// changes, or accepts a build of.
type Forgetting struct {
	sandbox.TemplateCatalog
	sandbox.TemplateBuilds
	Names *Names
}

// Build implements sandbox.TemplateBuilds.
func (f Forgetting) Build(ctx context.Context, tenant sandbox.TenantID, req sandbox.TemplateRequest, archive io.Reader) (sandbox.TemplateBuild, error) {
	b, err := f.TemplateBuilds.Build(ctx, tenant, req, archive)
	f.Names.forget(ctx, tenant, req.Template, err)
	return b, err
}

// Tag implements sandbox.TemplateCatalog.
func (f Forgetting) Tag(ctx context.Context, tenant sandbox.TenantID, template string, tags []string) (sandbox.Template, error) {
	t, err := f.TemplateCatalog.Tag(ctx, tenant, template, tags)
	f.Names.forget(ctx, tenant, template, err)
	return t, err
}

// Reuse implements sandbox.TemplateCatalog.
func (f Forgetting) Reuse(ctx context.Context, tenant sandbox.TenantID, template string, as sandbox.Template) (sandbox.Template, error) {
	t, err := f.TemplateCatalog.Reuse(ctx, tenant, template, as)
	f.Names.forget(ctx, tenant, as.Name, err)
	return t, err
}

// Remove implements sandbox.TemplateCatalog.
func (f Forgetting) Remove(ctx context.Context, tenant sandbox.TenantID, template string) (sandbox.RemovedTemplates, error) {
	gone, err := f.TemplateCatalog.Remove(ctx, tenant, template)
	f.Names.forget(ctx, tenant, template, err)
	return gone, err
}

// refusals are the Codes of a change that did not happen.
var refusals = []sandbox.Code{sandbox.Invalid, sandbox.Denied, sandbox.NotFound, sandbox.Conflict, sandbox.Exhausted, sandbox.TooLarge, sandbox.Unsupported}

// forget forgets the names of a Template after a change that ended with changed and may
// have happened.
func (n *Names) forget(ctx context.Context, tenant sandbox.TenantID, template string, changed error) {
	if slices.Contains(refusals, sandbox.CodeOf(changed)) || unsent(changed) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetLimit)
	defer cancel()
	if err := n.record.ForgetTemplate(ctx, tenant, template); err != nil {
		n.log.WarnContext(ctx, "forgetting the names of a changed template failed: while its node is away they keep their former meaning", telemetry.KeyTenant, tenant, telemetry.KeyError, err)
	}
	n.drop(func(q question) bool { return q.tenant == tenant })
}

// unsent reports whether a request that ended with err had no effect, because the home
// could not be reached.
func unsent(err error) bool {
	var e *sandbox.Error
	return errors.As(err, &e) && e.Code == sandbox.Unavailable && e.RetryAfter > 0
}
