package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// maxTemplateBody bounds the JSON of a new template in bytes: its files in base64, and
// the rest.
const maxTemplateBody = 16 << 20

func templateViewsOf(all []sandbox.Template) []v1.Template {
	views := make([]v1.Template, 0, len(all))
	for _, t := range all {
		views = append(views, v1.TemplateOf(t))
	}
	return views
}

// TemplateRequest converts b.
func TemplateRequest(b *v1.TemplateRequest) (sandbox.TemplateRequest, error) {
	req := sandbox.TemplateRequest{
		Template: b.Template, Source: b.Source, Packages: b.Packages, Env: b.Env, Start: b.Start, Ready: b.Ready, Bare: b.Bare, Force: b.Force,
		Dockerfile: b.Dockerfile, BuildArgs: b.BuildArgs,
	}
	switch {
	case b.Template == "":
		return req, sandbox.Errorf(sandbox.Invalid, "template, its name, is missing")
	case b.Source == "" && b.Dockerfile == "":
		return req, errNoSource
	}
	for _, f := range b.Files {
		file, err := fileOf(f)
		if err != nil {
			return req, err
		}
		req.Files = append(req.Files, file)
	}
	return req, nil
}

func fileOf(f v1.TemplateFile) (sandbox.TemplateFile, error) {
	file := sandbox.TemplateFile{Path: f.Path, Content: f.Base64}
	switch {
	case f.Content != nil && f.Base64 != nil:
		return file, sandbox.Errorf(sandbox.Invalid, "the file %.80q has both content and content_base64", f.Path)
	case f.Content != nil:
		file.Content = []byte(*f.Content)
	}
	if f.Mode != "" {
		mode, err := strconv.ParseUint(f.Mode, 8, 32)
		if err != nil {
			return file, sandbox.Errorf(sandbox.Invalid, `the mode of %.80q must be octal, for example "0755"`, f.Path)
		}
		file.Mode = uint32(mode)
	}
	switch f.Owner {
	case "", "root":
	case "user":
		file.User = true
	default:
		return file, sandbox.Errorf(sandbox.Invalid, "the owner of %.80q must be root or user", f.Path)
	}
	return file, nil
}

// errNoSource refuses a Template without a source.
var errNoSource = sandbox.Errorf(sandbox.Invalid, `source is missing: oci:REF, debian:SUITE, or "tar:" with an archive; or send a dockerfile`)

// CreateTemplate answers POST /api/v1/templates: it queues a build. The body is JSON,
// or a form of that JSON, files and an archive.
func (a *API) CreateTemplate(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.TemplateRequest
	var form *templateForm
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // a malformed one is JSON that is not JSON
	var err error
	if kind == "multipart/form-data" {
		form, err = openTemplateForm(r, &body)
	} else {
		err = decodeFrom(&atMost{r.Body, maxTemplateBody}, &body)
	}
	if err != nil {
		return err
	}
	req, err := TemplateRequest(&body)
	if err != nil {
		return err
	}
	req.Upload = form.files()
	wanted := req.Source == sandbox.ArchiveSource
	archive := form.archive(wanted)
	if form != nil && wanted && archive == nil {
		return errTemplateForm
	}
	b, err := a.TemplateBuilds.Build(r.Context(), who.Tenant, req, archive)
	if err != nil {
		return form.errorOr(err)
	}
	Made(r.Context(), b.ID)
	w.Header().Set("Location", "/api/v1/builds/"+b.ID)
	return Reply(w, http.StatusAccepted, v1.BuildOf(b))
}

// templateForm is a form: the description of a Template, then its files, then the
// archive. The files or the archive may be missing.
type templateForm struct {
	parts *multipart.Reader
	next  *multipart.Part // the part to read; nil: after the last part
	err   error           // the error that cut the form short
}

// openTemplateForm reads the first part of a form.
func openTemplateForm(r *http.Request, body *v1.TemplateRequest) (*templateForm, error) {
	parts, err := formOf(r)
	if err != nil {
		return nil, err
	}
	f := &templateForm{parts: parts}
	if err := f.advance("template"); err != nil {
		return nil, err
	}
	if f.next == nil {
		return nil, errTemplateForm
	}
	if err := decodeFrom(&atMost{f.next, maxTemplateBody}, body); err != nil {
		return nil, err
	}
	return f, f.advance("files", "archive")
}

var errTemplateForm = sandbox.Errorf(sandbox.Invalid, "the form must have the part template, as JSON, then the optional parts files and archive, in this order")

// advance opens the next part, which must have one of the names.
func (f *templateForm) advance(names ...string) (err error) {
	f.next, err = f.parts.NextPart()
	switch {
	case errors.Is(err, io.EOF):
		f.next = nil
		return nil
	case err != nil:
		f.err = err
		return formError(err)
	case !slices.Contains(names, f.next.FormName()):
		return errTemplateForm
	}
	return nil
}

// files is the part "files"; nil if it is missing.
func (f *templateForm) files() io.Reader {
	if f == nil || f.next == nil || f.next.FormName() != "files" {
		return nil
	}
	return formPart{f, f.next}
}

// archive is the part "archive"; nil if it is missing. With wanted, it must follow the
// files, and is opened once these have been read to their end.
func (f *templateForm) archive(wanted bool) io.Reader {
	switch {
	case f == nil || f.next == nil:
		return nil
	case f.next.FormName() == "archive":
		return formPart{f, f.next}
	case wanted:
		return &formArchive{form: f}
	}
	return nil
}

// formPart is a part that stores its read error in the form.
type formPart struct {
	form *templateForm
	part *multipart.Part
}

func (p formPart) Read(buf []byte) (int, error) {
	n, err := p.part.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) {
		p.form.err = err
	}
	return n, err
}

// formArchive is the part after the current one.
type formArchive struct {
	form *templateForm
	part io.Reader // nil until it is read
}

func (a *formArchive) Read(p []byte) (int, error) {
	if a.part == nil {
		if err := a.form.advance("archive"); err != nil {
			return 0, err
		}
		if a.form.next == nil {
			return 0, errTemplateForm
		}
		a.part = formPart{a.form, a.form.next}
	}
	return a.part.Read(p)
}

// errorOr is the client's failure to send the form, or else err.
func (f *templateForm) errorOr(err error) error {
	if f != nil && f.err != nil {
		return formError(f.err)
	}
	return err
}

// atMost fails with TooLarge after left bytes.
type atMost struct {
	r    io.Reader
	left int64
}

func (a *atMost) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if a.left -= int64(n); a.left < 0 {
		return 0, sandbox.Errorf(sandbox.TooLarge, "the description of a template may have at most %d bytes", maxTemplateBody)
	}
	return n, err
}

// ListTemplates returns all Templates that the caller can use.
func (a *API) ListTemplates(ctx context.Context, c Call, _ *noQuery) (v1.Templates, error) {
	all, err := a.Templates.List(ctx, c.Who.Tenant)
	return v1.Templates{Templates: templateViewsOf(all)}, err
}

// GetTemplate returns the Template of a name, and every version of it.
func (a *API) GetTemplate(ctx context.Context, c Call, _ *noQuery) (v1.TemplateVersions, error) {
	found, versions, err := a.Templates.Versions(ctx, c.Who.Tenant, c.ID)
	return v1.TemplateVersions{Template: v1.TemplateOf(found), Versions: templateViewsOf(versions)}, err
}

// DeleteTemplate removes a Template.
func (a *API) DeleteTemplate(ctx context.Context, c Call, _ *noQuery) (v1.RemovedTemplates, error) {
	gone, err := a.Templates.Remove(ctx, c.Who.Tenant, c.ID)
	return v1.RemovedTemplates{Removed: gone.Names, FreedBytes: gone.FreedBytes}, err
}

// ListBuilds returns the builds of the Tenant.
func (a *API) ListBuilds(ctx context.Context, c Call, _ *noQuery) (v1.Builds, error) {
	all, err := a.TemplateBuilds.Builds(ctx, c.Who.Tenant)
	views := make([]v1.Build, len(all))
	for i, b := range all {
		views[i] = v1.BuildOf(b)
	}
	return v1.Builds{Builds: views}, err
}

// GetBuild returns a build.
func (a *API) GetBuild(ctx context.Context, c Call, _ *noQuery) (v1.Build, error) {
	b, err := a.TemplateBuilds.BuildByID(ctx, c.Who.Tenant, c.ID)
	return v1.BuildOf(b), err
}

// CancelBuild ends a build and returns it once it has ended.
func (a *API) CancelBuild(ctx context.Context, c Call, _ *noQuery) (v1.Build, error) {
	b, err := a.TemplateBuilds.CancelBuild(ctx, c.Who.Tenant, c.ID)
	return v1.BuildOf(b), err
}

// ReadBuildLog answers GET /api/v1/builds/{id}/log with text, or with
// server-sent events.
func (a *API) ReadBuildLog(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	q, err := query(r, "from", "follow")
	if err != nil {
		return err
	}
	follow, err := parseFlag("follow", q.Get("follow"))
	if err != nil {
		return err
	}
	text := q.Get("from")
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		text = last
	}
	from := int64(0)
	if text != "" {
		if from, err = strconv.ParseInt(text, 10, 64); err != nil || from < 0 {
			return sandbox.ErrLogOffset
		}
	}
	b, err := a.TemplateBuilds.BuildByID(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return err
	}
	if acceptsEvents(r) {
		return a.buildEvents(w, r, who, b, from, follow)
	}
	return a.buildText(w, r, who, b, from, follow)
}

// buildText answers with the lines alone.
func (a *API) buildText(w http.ResponseWriter, r *http.Request, who sandbox.Identity, b sandbox.TemplateBuild, from int64, follow bool) error {
	flow := http.NewResponseController(w)
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	return a.TemplateBuilds.BuildLog(r.Context(), who.Tenant, b.ID, from, follow, func(l sandbox.BuildLine) error {
		if _, err := fmt.Fprintln(w, strings.ReplaceAll(l.Text, "\n", " ")); err != nil || !follow {
			return err
		}
		return flow.Flush()
	})
}

// buildEvents answers with server-sent events: start, line, and end.
func (a *API) buildEvents(w http.ResponseWriter, r *http.Request, who sandbox.Identity, b sandbox.TemplateBuild, from int64, follow bool) error {
	events := newEvents(w)
	defer events.stop()
	if err := events.start(v1.BuildOf(b)); err != nil {
		return err
	}
	err := a.TemplateBuilds.BuildLog(r.Context(), who.Tenant, b.ID, from, follow, func(l sandbox.BuildLine) error {
		return events.sendID(strconv.FormatInt(l.Next, 10), "line", v1.BuildLine{At: l.At, Text: l.Text, Next: l.Next})
	})
	if err == nil {
		b, err = a.TemplateBuilds.BuildByID(r.Context(), who.Tenant, b.ID)
	}
	if err != nil {
		return events.fail(err)
	}
	return events.send("end", v1.BuildOf(b))
}
