package builder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/frames"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// Client implements sandbox.Templates: it sends changes to the Service at a socket, and
// reads the Store directly. Methods are safe for concurrent use.
type Client struct {
	store  *template.Store
	quotas Quotas
	http   *http.Client
}

// Quotas returns a Tenant's Quota.
type Quotas interface {
	TenantQuota(ctx context.Context, tenant sandbox.TenantID) (sandbox.Quota, error)
}

var (
	_ sandbox.Templates      = (*Client)(nil)
	_ sandbox.TemplateImages = (*Client)(nil)
)

// NewClient returns a Client of the Service at socket, which need not listen yet.
func NewClient(store *template.Store, quotas Quotas, socket string) *Client {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	return &Client{store: store, quotas: quotas, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}}}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// do sends a request; the caller closes the response's body.
func (c *Client) do(ctx context.Context, method, path string, tenant sandbox.TenantID, query url.Values, body io.Reader) (*http.Response, error) {
	if query == nil {
		query = url.Values{}
	}
	query.Set("tenant", string(tenant))
	req, err := http.NewRequestWithContext(ctx, method, "http://builder"+path+"?"+query.Encode(), body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return nil, sandbox.Errorf(sandbox.Unavailable, "templates cannot be built at the moment").WithCause(err)
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusOK:
		return resp, nil
	}
	defer resp.Body.Close()
	var f failure
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxRecord)).Decode(&f); err != nil || f.Code == "" {
		return nil, fmt.Errorf("the builder answers %s: %w", resp.Status, err)
	}
	return nil, f.err()
}

// call sends a request and decodes one value.
func (c *Client) call(ctx context.Context, method, path string, tenant sandbox.TenantID, query url.Values, body io.Reader, v any) error {
	resp, err := c.do(ctx, method, path, tenant, query, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return fmt.Errorf("read the builder's answer: %w", err)
	}
	return nil
}

// Build implements sandbox.Templates.
func (c *Client) Build(ctx context.Context, tenant sandbox.TenantID, req sandbox.TemplateRequest, archive io.Reader) (b sandbox.TemplateBuild, err error) {
	quota, err := c.admit(ctx, tenant, "")
	if err != nil {
		return b, err
	}
	head, err := json.Marshal(req)
	if err != nil {
		return b, err
	}
	var body io.Reader = bytes.NewReader(append(head, '\n'))
	query := quotaQuery(quota)
	if req.Upload != nil {
		query.Set("files", "true")
		body = io.MultiReader(body, frames.Encode(req.Upload))
	}
	if archive != nil {
		query.Set("archive", "true")
		body = io.MultiReader(body, archive)
	}
	err = c.call(ctx, http.MethodPost, pathBuilds, tenant, query, body, &b)
	return b, err
}

// Builds implements sandbox.Templates.
func (c *Client) Builds(ctx context.Context, tenant sandbox.TenantID) (all []sandbox.TemplateBuild, err error) {
	err = c.call(ctx, http.MethodGet, pathBuilds, tenant, nil, nil, &all)
	return all, err
}

// Ended returns every Tenant's builds that ended at since or later, in no particular
// order.
func (c *Client) Ended(ctx context.Context, since time.Time) (all []sandbox.TemplateBuild, err error) {
	err = c.call(ctx, http.MethodGet, pathEnded, "", url.Values{"since": {since.Format(time.RFC3339Nano)}}, nil, &all)
	return all, err
}

// buildPath returns the path of a build; NotFound for an invalid ID.
func buildPath(id string) (string, error) {
	if !sandbox.ValidBuildID(id) {
		return "", sandbox.Errorf(sandbox.NotFound, "no build %.40q", id)
	}
	return pathBuilds + "/" + id, nil
}

// BuildByID implements sandbox.Templates.
func (c *Client) BuildByID(ctx context.Context, tenant sandbox.TenantID, id string) (b sandbox.TemplateBuild, err error) {
	path, err := buildPath(id)
	if err != nil {
		return b, err
	}
	err = c.call(ctx, http.MethodGet, path, tenant, nil, nil, &b)
	return b, err
}

// CancelBuild implements sandbox.Templates.
func (c *Client) CancelBuild(ctx context.Context, tenant sandbox.TenantID, id string) (b sandbox.TemplateBuild, err error) {
	path, err := buildPath(id)
	if err != nil {
		return b, err
	}
	err = c.call(ctx, http.MethodDelete, path, tenant, nil, nil, &b)
	return b, err
}

// BuildLog implements sandbox.Templates.
func (c *Client) BuildLog(ctx context.Context, tenant sandbox.TenantID, id string, from int64, follow bool, each func(sandbox.BuildLine) error) error {
	path, err := buildPath(id)
	if err != nil {
		return err
	}
	query := url.Values{"from": {strconv.FormatInt(from, 10)}, "follow": {strconv.FormatBool(follow)}}
	resp, err := c.do(ctx, http.MethodGet, path+"/log", tenant, query, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for in := json.NewDecoder(resp.Body); ; {
		var m logMessage
		switch err := in.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return sandbox.Errorf(sandbox.Unavailable, "the log of the build broke off").WithCause(err)
		case m.Failure != nil:
			return m.Failure.err()
		case m.Line == nil:
			continue
		}
		if err := each(*m.Line); err != nil {
			return err
		}
	}
}

// Remove implements sandbox.Templates.
func (c *Client) Remove(ctx context.Context, tenant sandbox.TenantID, text string) (gone sandbox.RemovedTemplates, err error) {
	if _, err := template.ParseRef(tenant, text); err != nil {
		return gone, err
	}
	err = c.call(ctx, http.MethodDelete, pathTemplates, tenant, url.Values{"template": {text}}, nil, &gone)
	return gone, err
}

// Tag implements sandbox.Templates.
func (c *Client) Tag(ctx context.Context, tenant sandbox.TenantID, text string, tags []string) (t sandbox.Template, err error) {
	err = c.call(ctx, http.MethodPost, pathTags, tenant, url.Values{"template": {text}, "tag": tags}, nil, &t)
	return t, err
}

// Reuse implements sandbox.Templates.
func (c *Client) Reuse(ctx context.Context, tenant sandbox.TenantID, text string, as sandbox.Template) (t sandbox.Template, err error) {
	body, err := json.Marshal(as)
	if err != nil {
		return t, err
	}
	err = c.call(ctx, http.MethodPost, pathReuses, tenant, url.Values{"template": {text}}, bytes.NewReader(body), &t)
	return t, err
}

// List implements sandbox.Templates.
func (c *Client) List(_ context.Context, tenant sandbox.TenantID) ([]sandbox.Template, error) {
	own, err := c.store.List(tenant)
	if err != nil {
		return nil, err
	}
	shared, err := c.store.List("")
	if err != nil {
		return nil, err
	}
	all, hidden := []sandbox.Template{}, map[string]bool{}
	for _, l := range own {
		hidden[l.Ref.String()] = true
		all = append(all, templateOf(l))
	}
	for _, l := range shared {
		if !l.Private && !hidden[l.Ref.String()] {
			all = append(all, templateOf(l))
		}
	}
	return all, nil
}

// Keep records an image that came with a Tenant's Snapshot as a version of its Template.
// It returns the errors of Admit; deleting the Snapshot then drops the image too.
func (c *Client) Keep(ctx context.Context, tenant sandbox.TenantID, template, version string) error {
	quota, err := c.quotas.TenantQuota(ctx, tenant)
	if err != nil {
		return err
	}
	query := quotaQuery(quota)
	query.Set("template", template)
	query.Set("version", version)
	return c.call(ctx, http.MethodPost, pathImages, tenant, query, nil, &struct{}{})
}

// Drop removes an image without references that is not in use; otherwise the image stays.
func (c *Client) Drop(ctx context.Context, version string) error {
	return c.call(ctx, http.MethodDelete, pathImages, "", url.Values{"version": {version}}, nil, &struct{}{})
}

// OpenImage implements sandbox.TemplateImages. The Service reads the image, because it may
// have to be expanded first.
func (c *Client) OpenImage(ctx context.Context, version string) (io.ReadCloser, int64, error) {
	return c.openImage(ctx, url.Values{keyVersion: {version}})
}

// OpenToCopy is OpenImage for a reader that may take hours: the image can be removed
// meanwhile, and is still read to its end.
func (c *Client) OpenToCopy(ctx context.Context, version string) (io.ReadCloser, int64, error) {
	return c.openImage(ctx, url.Values{keyVersion: {version}, keyCopy: {"true"}})
}

func (c *Client) openImage(ctx context.Context, query url.Values) (io.ReadCloser, int64, error) {
	resp, err := c.do(ctx, http.MethodGet, pathImage, "", query, nil)
	if err != nil {
		return nil, 0, err
	}
	if resp.ContentLength < 0 {
		resp.Body.Close()
		return nil, 0, errors.New("the builder does not say how large the image is")
	}
	return resp.Body, resp.ContentLength, nil
}

// StoreImage implements sandbox.TemplateImages. The Service writes the image, because the
// folder of images is root's.
func (c *Client) StoreImage(ctx context.Context, version string, bytes int64, image io.Reader) error {
	if c.store.HasImage(version) {
		return nil
	}
	query := url.Values{keyVersion: {version}, keyBytes: {strconv.FormatInt(bytes, 10)}}
	return c.call(ctx, http.MethodPut, pathImage, "", query, image, &struct{}{})
}

// MissingImages implements sandbox.TemplateImages.
func (c *Client) MissingImages(_ context.Context, versions []string) (missing []string, err error) {
	for _, v := range versions {
		if !template.ValidDigest(v) {
			return nil, sandbox.Errorf(sandbox.Invalid, "%.80q is no version of a template", v)
		}
		if !c.store.HasImage(v) {
			missing = append(missing, v)
		}
	}
	return missing, nil
}

// ListImages returns the versions of all images, named or not.
func (c *Client) ListImages() ([]string, error) { return c.store.Images() }

// StoredBytes implements sandbox.Templates.
func (c *Client) StoredBytes(_ context.Context, tenant sandbox.TenantID) (int64, error) {
	return c.store.StoredBytes(tenant)
}

// Admit implements sandbox.Templates.
func (c *Client) Admit(ctx context.Context, tenant sandbox.TenantID, version string) error {
	_, err := c.admit(ctx, tenant, version)
	return err
}

// admit is Admit, and returns the Quota that it applied.
func (c *Client) admit(ctx context.Context, tenant sandbox.TenantID, version string) (sandbox.Quota, error) {
	quota, err := c.quotas.TenantQuota(ctx, tenant)
	if err != nil {
		return quota, err
	}
	return quota, c.store.Admit(quota, tenant, version)
}

// Find implements sandbox.Templates.
func (c *Client) Find(ctx context.Context, tenant sandbox.TenantID, text string) (sandbox.Template, error) {
	found, err := c.store.Find(ctx, tenant, text)
	return templateOf(found), err
}

// Versions implements sandbox.Templates.
func (c *Client) Versions(ctx context.Context, tenant sandbox.TenantID, text string) (sandbox.Template, []sandbox.Template, error) {
	found, err := c.store.Find(ctx, tenant, text)
	if err != nil {
		return sandbox.Template{}, nil, err
	}
	all := []sandbox.Template{}
	versions, err := c.store.VersionsOf(found)
	for _, l := range versions {
		if found.Owner == tenant || !l.Private {
			all = append(all, templateOf(l))
		}
	}
	return templateOf(found), all, err
}

func templateOf(l template.Listed) sandbox.Template {
	return sandbox.Template{
		Name: l.Name, Tag: l.Tag, Version: l.Image.Digest, Shared: l.Owner == "", Source: l.Source, Packages: l.Packages, Env: l.Env,
		Start: l.Start, Ready: l.Ready, SizeBytes: l.Size, StoredBytes: l.Stored, CreatedAt: l.CreatedAt, MadeAt: l.MadeAt,
		Defaults: l.Defaults, Build: l.Build, Layer: l.Layer,
	}
}
