package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/sandboxbuild"
)

// Limits of a template.
const (
	maxBuildCPUs   = 8
	maxBuildMemory = 8192 // MB
	minBuildMemory = 128
	maxBuildDisk   = 25_000
	maxNameBytes   = 128
	maxTagCount    = 32
)

// draftBody requests a build.
type draftBody struct {
	Name          string   `json:"name"`
	Alias         string   `json:"alias"` // the former name of name
	Tags          []string `json:"tags"`
	CPUCount      *int     `json:"cpuCount"`
	MemoryMB      *int64   `json:"memoryMB"`
	MinFreeDiskMB *int64   `json:"minFreeDiskMb"`
	TeamID        string   `json:"teamID"`
}

// draft converts b.
func (b *draftBody) draft(who sandbox.Identity) (sandboxbuild.Draft, error) {
	var d sandboxbuild.Draft
	if err := checkTeam(who, b.TeamID); err != nil {
		return d, err
	}
	if b.Name == "" {
		b.Name = b.Alias
	}
	if b.Name == "" || len(b.Name) > maxNameBytes {
		return d, sandbox.Errorf(sandbox.Invalid, "name must have 1 to %d bytes", maxNameBytes)
	}
	name, tag, tagged := strings.Cut(withoutNamespace(who, strings.ToLower(strings.TrimSpace(b.Name))), ":")
	if err := checkOwnName(name); err != nil {
		return d, err
	}
	d.Name = name
	asked := b.Tags
	if tagged {
		asked = append([]string{tag}, asked...)
	}
	if len(asked) == 0 {
		asked = []string{defaultTag}
	}
	var err error
	if d.Tags, err = ownTags(asked); err != nil {
		return d, err
	}
	d.Defaults, err = b.defaults()
	return d, err
}

// checkOwnName refuses names that no Template of ours may have.
func checkOwnName(name string) error {
	switch {
	case strings.Contains(name, "/"):
		return sandbox.Errorf(sandbox.Denied, "the namespace is not yours: leave out the namespace and the slash")
	case !ownNamePattern.MatchString(name):
		return sandbox.Errorf(sandbox.Invalid, "the name of a template is 1 to 63 of a-z, 0-9, '_' and '-', and begins and ends with a letter or digit")
	}
	return nil
}

var (
	ownNamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$`)
	tagPattern     = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`)
	uuidPattern    = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// ownTags translates clients' tags to our names, without duplicates.
func ownTags(tags []string) ([]string, error) {
	var own []string
	for _, tag := range tags {
		tag = strings.ToLower(strings.TrimSpace(tag))
		if !tagPattern.MatchString(tag) || uuidPattern.MatchString(tag) {
			return nil, sandbox.Errorf(sandbox.Invalid, "a tag is 1 to 64 of a-z, 0-9, '.', '_' and '-', begins and ends with a letter or digit, and is not a UUID: %.80q is not a tag", tag)
		}
		tag = swapTag(tag)
		if !slices.Contains(own, tag) {
			own = append(own, tag)
		}
	}
	if len(own) > maxTagCount {
		return nil, sandbox.Errorf(sandbox.Invalid, "a build may have at most %d tags", maxTagCount)
	}
	return own, nil
}

// clientTags is the inverse of ownTags.
func clientTags(own []string) []string {
	tags := make([]string, len(own))
	for i, tag := range own {
		tags[i] = swapTag(tag)
	}
	return tags
}

// defaults are the defaults of the Template's Sandboxes.
func (b *draftBody) defaults() (sandbox.TemplateDefaults, error) {
	var d sandbox.TemplateDefaults
	if n := b.CPUCount; n != nil {
		if *n < 1 || *n > maxBuildCPUs || *n > 1 && *n%2 != 0 {
			return d, sandbox.Errorf(sandbox.Invalid, "cpuCount must be 1, or an even number up to %d", maxBuildCPUs)
		}
		d.CPUs = float64(*n)
	}
	if n := b.MemoryMB; n != nil {
		if *n < minBuildMemory || *n > maxBuildMemory || *n%2 != 0 {
			return d, sandbox.Errorf(sandbox.Invalid, "memoryMB must be an even number from %d to %d", minBuildMemory, maxBuildMemory)
		}
		d.MemoryBytes = *n << 20
	}
	if n := b.MinFreeDiskMB; n != nil {
		if *n < 0 || *n > maxBuildDisk {
			return d, sandbox.Errorf(sandbox.Invalid, "minFreeDiskMb must be from 0 to %d", maxBuildDisk)
		}
		if bytes := *n << 20; bytes > sandbox.DefaultShape().DiskBytes { // which all Sandboxes have free
			d.DiskBytes = bytes
		}
	}
	return d, nil
}

// draftView answers the request of a build.
type draftView struct {
	TemplateID string   `json:"templateID"`
	BuildID    string   `json:"buildID"`
	Public     bool     `json:"public"`
	Names      []string `json:"names"`
	Tags       []string `json:"tags"`
	Aliases    []string `json:"aliases"`
}

// NoDockerfile answers the oldest clients' request of a build, which has no steps: it
// is for an image that was pushed to E2B's registry.
func (a *API) NoDockerfile(http.ResponseWriter, *http.Request, sandbox.Identity) error {
	return sandbox.Errorf(sandbox.Unsupported,
		"templates are not built from a pushed image here: build them with Template of an SDK, which reads a Dockerfile by fromDockerfile")
}

// RequestBuild answers POST /v3/templates, and POST /v2/templates whose names have no
// tags, with 202 and a build that waits for its steps.
func (a *API) RequestBuild(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body draftBody
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	d, err := body.draft(who)
	if err != nil {
		return err
	}
	b, err := a.Builds.Announce(r.Context(), who.Tenant, d)
	if err != nil {
		return err
	}
	rest.Made(r.Context(), b.ID)
	return rest.Reply(w, http.StatusAccepted, draftView{
		TemplateID: d.Name, BuildID: b.ID, Names: []string{d.Name}, Tags: clientTags(d.Tags), Aliases: []string{d.Name},
	})
}

// recipeBody has the steps of a build.
type recipeBody struct {
	FromImage    string          `json:"fromImage"`
	FromTemplate string          `json:"fromTemplate"`
	Registry     json.RawMessage `json:"fromImageRegistry"`
	Force        bool            `json:"force"`
	Steps        []stepBody      `json:"steps"`
	StartCmd     string          `json:"startCmd"`
	ReadyCmd     string          `json:"readyCmd"`
}

type stepBody struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash"`
	Force     bool     `json:"force"`
	// ForceUpload and ResolveSymlinks are implemented by clients.
	ForceUpload     *bool `json:"forceUpload"`
	ResolveSymlinks *bool `json:"resolveSymlinks"`
}

// recipe converts b.
func (a *API) recipe(who sandbox.Identity, b *recipeBody) (sandboxbuild.Recipe, error) {
	r := sandboxbuild.Recipe{Start: b.StartCmd, Ready: b.ReadyCmd, Force: b.Force}
	var err error
	switch {
	case len(b.Registry) > 0 && string(b.Registry) != "null":
		return r, unsupported("fromImageRegistry")
	case (b.FromImage == "") == (b.FromTemplate == ""):
		return r, sandbox.Errorf(sandbox.Invalid, "name either fromImage or fromTemplate")
	case b.FromImage != "":
		r.Asked = b.FromImage
		r.Image, r.From, err = a.Builds.Image(b.FromImage)
	default:
		r.Asked = b.FromTemplate
		r.From, err = templateName(who, b.FromTemplate)
	}
	for _, s := range b.Steps {
		r.Steps = append(r.Steps, sandboxbuild.Step{Type: s.Type, Args: s.Args, Files: s.FilesHash, Force: s.Force})
	}
	return r, err
}

// StartBuild answers POST /v2/templates/{template}/builds/{build} with 202: it starts a
// build that was requested before.
func (a *API) StartBuild(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body recipeBody
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	recipe, err := a.recipe(who, &body)
	if err != nil {
		return err
	}
	if recipe.From != "" {
		if recipe.From, err = a.mapped(r.Context(), who, recipe.From); err != nil {
			return err
		}
	}
	name, id, err := buildOf(r, who)
	if err != nil {
		return err
	}
	if err := a.Builds.Start(r.Context(), who.Tenant, name, id, recipe); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// mapped is the Template for a name: the one with that name, or else its replacement.
func (a *API) mapped(ctx context.Context, who sandbox.Identity, name string) (string, error) {
	_, err := a.Catalog.Find(ctx, who.Tenant, name)
	if ours, ok := notTagged(name); ok && sandbox.NoSuchTemplate(err) {
		if _, err := a.Catalog.Find(ctx, who.Tenant, ours); err == nil {
			return ours, nil
		}
	}
	if meant, ok := a.Templates[swapReference(name)]; ok && sandbox.NoSuchTemplate(err) {
		return meant, nil
	}
	return name, err
}

// buildOf returns the template and build in the path.
func buildOf(r *http.Request, who sandbox.Identity) (template, id string, err error) {
	if template, err = templateName(who, r.PathValue("template")); err != nil {
		return "", "", err
	}
	if id = r.PathValue("build"); !uuidPattern.MatchString(id) {
		return "", "", sandbox.Errorf(sandbox.Invalid, "Invalid build ID")
	}
	return template, id, nil
}

// buildLine is a line of a build's log.
type buildLine struct {
	Timestamp string             `json:"timestamp"`
	Message   string             `json:"message"`
	Level     sandboxbuild.Level `json:"level"`
	Step      string             `json:"step,omitempty"`
}

func buildLinesOf(lines []sandboxbuild.Line) []buildLine {
	views := make([]buildLine, 0, len(lines))
	for _, l := range lines {
		views = append(views, buildLine{timestamp(l.At), l.Text, l.Level, l.Step})
	}
	return views
}

type buildReason struct {
	Message string      `json:"message"`
	Step    string      `json:"step,omitempty"`
	Entries []buildLine `json:"logEntries"`
}

type buildStatus struct {
	TemplateID string             `json:"templateID"`
	BuildID    string             `json:"buildID"`
	Status     sandboxbuild.State `json:"status"`
	Logs       []string           `json:"logs"`
	Entries    []buildLine        `json:"logEntries"`
	Reason     *buildReason       `json:"reason,omitempty"`
}

const maxBuildLines = 100

// BuildStatus answers GET /templates/{template}/builds/{build}/status with the state of
// a build, and lines of its log from an offset on.
func (a *API) BuildStatus(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, "logsOffset", "limit", "level")
	if err != nil {
		return err
	}
	offset, err := count(values.Get("logsOffset"), "logsOffset", 0, 1<<30)
	if err != nil {
		return err
	}
	limit, err := count(values.Get("limit"), "limit", maxBuildLines, maxBuildLines)
	if err != nil {
		return err
	}
	b, lines, err := a.build(r, who, values.Get("level"))
	if err != nil {
		return err
	}
	page := buildLinesOf(lines[min(offset, len(lines)):min(offset+limit, len(lines))])
	view := buildStatus{TemplateID: b.Name, BuildID: b.ID, Status: b.State, Entries: page, Logs: []string{}}
	for _, l := range page {
		view.Logs = append(view.Logs, l.Message)
	}
	if f := b.Failure; f != nil {
		of := slices.DeleteFunc(slices.Clone(lines), func(l sandboxbuild.Line) bool { return l.Step != f.Step })
		view.Reason = &buildReason{Message: f.Message, Step: f.Step, Entries: buildLinesOf(of[max(0, len(of)-maxBuildLines):])}
	}
	return rest.Reply(w, http.StatusOK, view)
}

// build is the build in the path, with the lines of its log at a level or above. A
// missing build is Invalid, as clients of E2B expect.
func (a *API) build(r *http.Request, who sandbox.Identity, level string) (sandboxbuild.Build, []sandboxbuild.Line, error) {
	if err := checkLevel(level); err != nil {
		return sandboxbuild.Build{}, nil, err
	}
	name, id, err := buildOf(r, who)
	if err != nil {
		return sandboxbuild.Build{}, nil, err
	}
	b, lines, err := a.Builds.Build(r.Context(), who.Tenant, name, id)
	if errors.Is(err, sandbox.NotFound) {
		b, err = a.madeBy(r.Context(), who, name, id)
	}
	least := slices.Index(levels, level)
	lines = slices.DeleteFunc(slices.Clone(lines), func(l sandboxbuild.Line) bool { return slices.Index(levels, string(l.Level)) < least })
	return b, lines, err
}

// madeBy is a build that is known only by the Template that it made.
func (a *API) madeBy(ctx context.Context, who sandbox.Identity, name, id string) (sandboxbuild.Build, error) {
	own, err := a.own(ctx, who, name)
	if err != nil && !errors.Is(err, sandbox.NotFound) {
		return sandboxbuild.Build{}, err
	}
	if slices.ContainsFunc(own, func(t sandbox.Template) bool { return t.Build == id }) {
		return sandboxbuild.Build{ID: id, Draft: sandboxbuild.Draft{Name: name}, State: sandboxbuild.Ready}, nil
	}
	return sandboxbuild.Build{}, sandbox.Errorf(sandbox.Invalid, "no build %.40q of the template %.80q", id, name)
}

// checkLevel allows every level, and no level.
func checkLevel(level string) error {
	if level != "" && !slices.Contains(levels, level) {
		return sandbox.Errorf(sandbox.Invalid, "level must be one of %s", strings.Join(levels, ", "))
	}
	return nil
}

// count parses a number of a query; otherwise is the default.
func count(s, name string, otherwise, most int) (int, error) {
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > most {
		return 0, sandbox.Errorf(sandbox.Invalid, "%s must be a whole number from 0 to %d", name, most)
	}
	return n, nil
}

// uploadTime is the lifetime of a signed upload URL.
const uploadTime = time.Hour

// UploadGrant is the grant of a signed URL that uploads files of a hash.
func UploadGrant(hash string, expires time.Time) signing.URLGrant {
	return signing.URLGrant{Method: http.MethodPut, SandboxID: "templates", Path: "/" + hash, Expires: expires}
}

// uploadView has the upload URL, or says that the files are present.
type uploadView struct {
	Present bool   `json:"present"`
	URL     string `json:"url"` // also for present files: a client may upload again
}

// mayUpload returns NotFound for a Template that has neither a version nor a build.
func (a *API) mayUpload(ctx context.Context, who sandbox.Identity, name string) error {
	known, err := a.Builds.Known(ctx, who.Tenant, name)
	if err == nil && !known {
		_, err = a.own(ctx, who, name)
	}
	return err
}

// AskUpload answers GET /templates/{template}/files/{hash} with 201.
func (a *API) AskUpload(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := parameters(r); err != nil {
		return err
	}
	name, err := templateName(who, r.PathValue("template"))
	if err != nil {
		return err
	}
	hash := r.PathValue("hash")
	present, err := a.Uploads.HasUpload(r.Context(), who.Tenant, hash)
	if err == nil {
		err = a.mayUpload(r.Context(), who, name)
	}
	if err != nil {
		return err
	}
	query, _, err := a.URLs.Sign(r.Context(), who.Tenant, UploadGrant(hash, time.Time{}), uploadTime)
	if err != nil {
		return err
	}
	path := "/templates/" + url.PathEscape(name) + "/files/" + hash
	return rest.Reply(w, http.StatusCreated, uploadView{present, rest.OwnURL(r, path, query)})
}

// own returns the tags of a Template that the caller's Tenant made; NotFound without
// any.
func (a *API) own(ctx context.Context, who sandbox.Identity, name string) ([]sandbox.Template, error) {
	all, err := a.Catalog.List(ctx, who.Tenant)
	if err != nil {
		return nil, err
	}
	tags := slices.DeleteFunc(all, func(t sandbox.Template) bool { return t.Name != name || t.Shared })
	if len(tags) == 0 {
		return nil, errNoTemplate(name)
	}
	return tags, nil
}

// Upload answers PUT of a template's files.
func (a *API) Upload(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if err := a.Uploads.StoreUpload(r.Context(), who.Tenant, r.PathValue("hash"), r.Body); err != nil {
		return err
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
	return nil
}
