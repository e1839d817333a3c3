package gateway

import (
	"context"
	"errors"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// asked notes what the session manager is asked for.
type asked struct {
	sandbox.Lifecycle
	user, cwd string
}

func (a *asked) Create(_ context.Context, _ sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, error) {
	a.user, a.cwd = req.User, req.Cwd
	return sandbox.Sandbox{}, nil
}

func (a *asked) Ensure(ctx context.Context, tenant sandbox.TenantID, req sandbox.CreateRequest) (sandbox.Sandbox, bool, error) {
	sb, err := a.Create(ctx, tenant, req)
	return sb, true, err
}

// oneTemplate has the Template "web", with a user and a folder.
type oneTemplate struct{ sandbox.TemplateCatalog }

func (oneTemplate) Find(_ context.Context, _ sandbox.TenantID, name string) (sandbox.Template, error) {
	switch name {
	case "web":
	case "away":
		return sandbox.Template{}, sandbox.Errorf(sandbox.Unavailable, "no answer")
	default:
		return sandbox.Template{}, sandbox.NotFound
	}
	return sandbox.Template{Name: name, Defaults: sandbox.TemplateDefaults{User: "app", Cwd: "/srv"}}, nil
}

// A Sandbox has the user and the folder of its Template however it is created.
func TestPlaced(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		req       sandbox.CreateRequest
		user, cwd string
	}{
		"as its template says":    {sandbox.CreateRequest{Template: "web"}, "app", "/srv"},
		"with another user":       {sandbox.CreateRequest{Template: "web", User: "root"}, "root", "/srv"},
		"with another folder":     {sandbox.CreateRequest{Template: "web", Cwd: "/tmp"}, "app", "/tmp"},
		"with both":               {sandbox.CreateRequest{Template: "web", User: "root", Cwd: "/"}, "root", "/"},
		"from a snapshot":         {sandbox.CreateRequest{Template: "web", Snapshot: "s1"}, "", ""},
		"of a template not there": {sandbox.CreateRequest{Template: "none"}, "", ""},
		"of the template of all":  {sandbox.CreateRequest{}, "", ""},
	} {
		var create, ensure asked
		_, err := placed{&create, oneTemplate{}}.Create(t.Context(), "t", tt.req)
		_, _, again := placed{&ensure, oneTemplate{}}.Ensure(t.Context(), "t", tt.req)
		if err := errors.Join(err, again); err != nil {
			t.Fatal(err)
		}
		for how, got := range map[string]asked{"created": create, "ensured": ensure} {
			if got.user != tt.user || got.cwd != tt.cwd {
				t.Errorf("%s, %s: %q in %q, want %q in %q", name, how, got.user, got.cwd, tt.user, tt.cwd)
			}
		}
	}
}

// Templates that do not answer fail a create, which would have another user otherwise.
func TestPlacedWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	p := placed{nil, oneTemplate{}} // nothing is created
	req := sandbox.CreateRequest{Template: "away"}
	_, err := p.Create(t.Context(), "t", req)
	_, _, again := p.Ensure(t.Context(), "t", req)
	if sandbox.CodeOf(err) != sandbox.Unavailable || sandbox.CodeOf(again) != sandbox.Unavailable {
		t.Errorf("%v, %v", err, again)
	}
}
