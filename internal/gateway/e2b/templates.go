package e2b

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// templateView is a Template in a list.
type templateView struct {
	TemplateID    string   `json:"templateID"`
	BuildID       string   `json:"buildID"`
	CPUCount      int      `json:"cpuCount"`
	MemoryMB      int64    `json:"memoryMB"`
	DiskSizeMB    int64    `json:"diskSizeMB"`
	Public        bool     `json:"public"`
	Aliases       []string `json:"aliases"`
	Names         []string `json:"names"`
	CreatedAt     string   `json:"createdAt"`
	UpdatedAt     string   `json:"updatedAt"`
	CreatedBy     *string  `json:"createdBy"`     // never known
	LastSpawnedAt *string  `json:"lastSpawnedAt"` // never known
	SpawnCount    int      `json:"spawnCount"`
	BuildCount    int      `json:"buildCount"`
	EnvdVersion   string   `json:"envdVersion"`
	BuildStatus   string   `json:"buildStatus"`
}

// buildView is a version of a Template.
type buildView struct {
	BuildID     string `json:"buildID"`
	Status      string `json:"status"`
	CreatedAt   string `json:"createdAt"`
	UpdatedAt   string `json:"updatedAt"`
	FinishedAt  string `json:"finishedAt"`
	CPUCount    int    `json:"cpuCount"`
	MemoryMB    int64  `json:"memoryMB"`
	DiskSizeMB  int64  `json:"diskSizeMB"`
	EnvdVersion string `json:"envdVersion"`
}

// tagView is a tag of a Template.
type tagView struct {
	Tag       string `json:"tag"`
	BuildID   string `json:"buildID"`
	CreatedAt string `json:"createdAt"`
}

const (
	buildReady = "ready"
	defaultTag = "default"
	latest     = "latest"
)

// swapTag translates a client's tag to ours and back: E2B's "default" is our "latest".
// A client's own "latest" is our "default" in turn, so that the two do not collide.
func swapTag(tag string) string {
	switch tag {
	case defaultTag:
		return latest
	case latest:
		return defaultTag
	}
	return tag
}

// swapReference is swapTag for NAME:TAG; a name without a tag stays.
func swapReference(reference string) string {
	name, tag, tagged := strings.Cut(reference, ":")
	if !tagged {
		return reference
	}
	return name + ":" + swapTag(tag)
}

// buildID is the ID of the build that made a version, or else the version in the form
// of a UUID, which clients require.
func buildID(t sandbox.Template) string {
	const uuid = 32 // digits
	version := t.Version
	if t.Build != "" {
		return t.Build
	}
	if len(version) < uuid {
		return version
	}
	return strings.Join([]string{version[:8], version[8:12], version[12:16], version[16:20], version[20:uuid]}, "-")
}

// tagged is a Template's tag in E2B's names.
func tagged(t sandbox.Template) string {
	if t.Tag == "" {
		return defaultTag
	}
	return swapTag(t.Tag)
}

// grouped are the Templates in order, with the tags of one name together.
func grouped(all []sandbox.Template) [][]sandbox.Template {
	byName := map[string][]sandbox.Template{}
	var names []string
	for _, t := range all {
		if byName[t.Name] == nil {
			names = append(names, t.Name)
		}
		byName[t.Name] = append(byName[t.Name], t)
	}
	slices.Sort(names)
	out := make([][]sandbox.Template, 0, len(names))
	for _, name := range names {
		out = append(out, byName[name])
	}
	return out
}

// templateViewOf shows the tags of one Template together.
func templateViewOf(tags []sandbox.Template) templateView {
	newest, first := tags[0], tags[0].CreatedAt
	v := templateView{TemplateID: newest.Name, Aliases: []string{newest.Name}, Names: []string{}, EnvdVersion: Version, BuildStatus: buildReady}
	versions := map[string]bool{}
	for _, t := range tags {
		if t.CreatedAt.After(newest.CreatedAt) {
			newest = t
		}
		if t.CreatedAt.Before(first) {
			first = t.CreatedAt
		}
		versions[t.Version] = true
		v.Names = append(v.Names, t.Name+":"+tagged(t))
	}
	shape := newest.Defaults.Shape()
	v.CPUCount, v.MemoryMB, v.DiskSizeMB = shape.VisibleCPUs(), shape.MemoryBytes>>20, shape.DiskBytes>>20
	v.BuildID, v.Public, v.BuildCount = buildID(newest), newest.Shared, len(versions)
	v.CreatedAt, v.UpdatedAt = timestamp(first), timestamp(newest.CreatedAt)
	return v
}

// ListTemplates answers GET /templates with all that the caller may use.
func (a *API) ListTemplates(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, "teamID")
	if err != nil {
		return err
	}
	if err := checkTeam(who, values.Get("teamID")); err != nil {
		return err
	}
	views, err := a.templates(r.Context(), who)
	if err != nil {
		return err
	}
	return rest.Reply(w, http.StatusOK, views)
}

func (a *API) templates(ctx context.Context, who sandbox.Identity) ([]templateView, error) {
	all, err := a.Catalog.List(ctx, who.Tenant)
	if err != nil {
		return nil, err
	}
	views := []templateView{}
	for _, tags := range grouped(all) {
		views = append(views, templateViewOf(tags))
	}
	return views, nil
}

// PageTemplates answers GET /v2/templates with a page of them.
func (a *API) PageTemplates(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, append(pageParameters, "teamID")...)
	if err != nil {
		return err
	}
	if err := checkTeam(who, values.Get("teamID")); err != nil {
		return err
	}
	views, err := pageByName(w, values, func(v templateView) string { return v.TemplateID }, func() ([]templateView, error) {
		return a.templates(r.Context(), who)
	})
	if err != nil {
		return err
	}
	return rest.Reply(w, http.StatusOK, views)
}

// snapshotPart is TemplatePart for Snapshots. It returns absent when no Snapshot
// matches.
func (a *API) snapshotPart(w http.ResponseWriter, r *http.Request, who sandbox.Identity, asked string, alias bool, absent error) error {
	all, err := a.snapshotTags(r.Context(), who, asked)
	switch {
	case err != nil:
		return err
	case len(all) == 0:
		return absent
	case alias:
		return rest.Reply(w, http.StatusOK, map[string]any{"templateID": all[0].ID, "public": false})
	}
	views := []tagView{}
	for _, s := range all {
		_, tag := snapshotTag(s)
		views = append(views, tagView{tag, uuidOf("snapshot", s.ID), timestamp(s.CreatedAt)})
	}
	return rest.Reply(w, http.StatusOK, views)
}

// named returns the tags of the Template with a name.
func (a *API) named(ctx context.Context, who sandbox.Identity, asked string) ([]sandbox.Template, error) {
	name, err := templateName(who, asked)
	if err != nil {
		return nil, err
	}
	all, err := a.Catalog.List(ctx, who.Tenant)
	if err != nil {
		return nil, err
	}
	name, _, _ = strings.Cut(name, ":")
	meant := a.Templates[name]
	for _, try := range []string{name, meant} {
		if tags := slices.DeleteFunc(slices.Clone(all), func(t sandbox.Template) bool { return t.Name != try }); len(tags) > 0 {
			return tags, nil
		}
	}
	return nil, errNoTemplate(name)
}

// GetTemplate answers GET /templates/{template} with a page of its versions.
func (a *API) GetTemplate(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, pageParameters...)
	if err != nil {
		return err
	}
	tags, err := a.named(r.Context(), who, r.PathValue("template"))
	if err != nil {
		return err
	}
	view := templateViewOf(tags)
	reference := tags[0].Name // any tag: it returns all versions
	if tagged(tags[0]) != defaultTag {
		reference += ":" + tags[0].Tag
	}
	_, versions, err := a.Catalog.Versions(r.Context(), who.Tenant, reference)
	if err != nil {
		return err
	}
	if versions, err = pageOf(w, values, versions, func(t sandbox.Template) string { return t.Version }); err != nil {
		return err
	}
	builds := []buildView{}
	for _, t := range versions {
		at := timestamp(t.CreatedAt)
		builds = append(builds, buildView{
			BuildID: buildID(t), Status: buildReady, CreatedAt: at, UpdatedAt: at, FinishedAt: at,
			CPUCount: view.CPUCount, MemoryMB: view.MemoryMB, DiskSizeMB: view.DiskSizeMB, EnvdVersion: Version,
		})
	}
	return rest.Reply(w, http.StatusOK, struct {
		templateView
		Builds []buildView `json:"builds"`
	}{view, builds})
}

// TemplatePart answers GET /templates/aliases/{alias}, which asks whether a Template
// exists, and GET /templates/{template}/tags.
func (a *API) TemplatePart(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	name, part := r.PathValue("template"), r.PathValue("part")
	alias := name == "aliases"
	switch {
	case alias:
		name = part
	case part != "tags":
		return sandbox.Errorf(sandbox.NotFound, "no operation has this path")
	}
	tags, err := a.named(r.Context(), who, name)
	if errors.Is(err, sandbox.NotFound) {
		return a.snapshotPart(w, r, who, name, alias, err)
	}
	if err != nil {
		return err
	}
	if alias {
		return rest.Reply(w, http.StatusOK, map[string]any{"templateID": tags[0].Name, "public": tags[0].Shared})
	}
	views := []tagView{}
	for _, t := range tags {
		views = append(views, tagView{tagged(t), buildID(t), timestamp(t.CreatedAt)})
	}
	return rest.Reply(w, http.StatusOK, views)
}
