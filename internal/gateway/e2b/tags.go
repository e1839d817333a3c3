package e2b

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// reference returns our name of a template and, if the client gave one, its tag or the
// ID of one of its builds.
func reference(who sandbox.Identity, asked string) (name, tag string, err error) {
	if name, err = templateName(who, asked); err != nil {
		return "", "", err
	}
	name, tag, tagged := strings.Cut(name, ":")
	if tagged && !uuidPattern.MatchString(tag) {
		if _, err := ownTags([]string{tag}); err != nil {
			return "", "", err
		}
	}
	return name, tag, checkOwnName(name)
}

// versionOf is the version of a Template that a build made, as NAME:TAG or
// NAME@VERSION.
func (a *API) versionOf(ctx context.Context, who sandbox.Identity, name, build string) (string, error) {
	tags, err := a.own(ctx, who, name)
	if err != nil {
		return "", err
	}
	_, versions, err := a.Catalog.Versions(ctx, who.Tenant, name+":"+cmp.Or(tags[0].Tag, latest)) // any tag: it returns all versions
	if err != nil {
		return "", err
	}
	for _, t := range tags { // two builds may have made the same version
		if buildID(t) == build {
			return name + ":" + cmp.Or(t.Tag, latest), nil
		}
	}
	for _, t := range versions {
		if buildID(t) == build {
			return name + "@" + t.Version, nil
		}
	}
	return "", errNoTemplate(name + ":" + build)
}

// AssignTags answers POST /templates/tags with 201: tags refer to the target's version
// from now on.
func (a *API) AssignTags(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	if len(body.Tags) == 0 {
		return sandbox.Errorf(sandbox.Invalid, "tags are missing")
	}
	name, tag, err := reference(who, body.Target)
	if err != nil {
		return err
	}
	tags, err := ownTags(body.Tags)
	if err != nil {
		return err
	}
	target := name + ":" + cmp.Or(tag, latest)
	if uuidPattern.MatchString(tag) {
		if target, err = a.versionOf(r.Context(), who, name, tag); err != nil {
			return err
		}
	}
	if err := a.mayChange(r, who, target); err != nil {
		return err
	}
	t, err := a.Catalog.Tag(r.Context(), who.Tenant, target, tags)
	if err != nil {
		return err
	}
	return rest.Reply(w, http.StatusCreated, map[string]any{"tags": clientTags(tags), "buildID": buildID(t)})
}

// mayChange refuses a missing template, and the operator's templates.
func (a *API) mayChange(r *http.Request, who sandbox.Identity, template string) error {
	t, err := a.Catalog.Find(r.Context(), who.Tenant, template)
	switch {
	case sandbox.CodeOf(err) == sandbox.NotFound: // a template that is being built has another Code
		switch tags, err := a.snapshotTags(r.Context(), who, template); {
		case err != nil:
			return err
		case len(tags) > 0:
			return sandbox.Errorf(sandbox.Unsupported, "a snapshot has the tag that it was made with: make another as NAME:TAG, or delete it")
		}
		return errNoTemplate(swapReference(template))
	case err != nil:
		return err
	case t.Shared:
		return sandbox.Errorf(sandbox.Denied, "the template %q is the server's own", t.Name)
	}
	return nil
}

// RemoveTags answers DELETE /templates/tags. It removes all named tags, or none.
func (a *API) RemoveTags(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	name, tag, err := reference(who, body.Name)
	if err != nil {
		return err
	}
	tags, err := ownTags(body.Tags)
	switch {
	case err != nil:
		return err
	case len(tags) == 0:
		return sandbox.Errorf(sandbox.Invalid, "tags are missing")
	case tag != "" || strings.Contains(body.Name, ":"):
		return sandbox.Errorf(sandbox.Invalid, "name must be the name of a template, without a tag")
	case slices.Contains(tags, latest):
		return sandbox.Errorf(sandbox.Invalid, "the tag %q cannot be removed", defaultTag)
	}
	for _, tag := range tags {
		if err := a.mayChange(r, who, name+":"+tag); err != nil {
			return err
		}
	}
	for _, tag := range tags {
		if _, err := a.Catalog.Remove(r.Context(), who.Tenant, name+":"+tag); err != nil && !errors.Is(err, sandbox.NotFound) {
			return err
		}
	}
	return noContent(w)
}

// removeTemplate removes a template of the caller's with all its versions, and ends its
// builds.
func (a *API) removeTemplate(w http.ResponseWriter, r *http.Request, who sandbox.Identity, asked string) error {
	name, tag, err := reference(who, asked)
	switch {
	case err != nil:
		return err
	case !who.May(sandbox.ScopeTemplates): // snapshots share the route, and need another scope
		return sandbox.Errorf(sandbox.Denied, "this API key does not have the scope %q", sandbox.ScopeTemplates)
	}
	known, err := a.Builds.Known(r.Context(), who.Tenant, name)
	if err != nil {
		return err
	}
	_, err = a.own(r.Context(), who, name)
	switch {
	case tag != "" && (err == nil || known):
		return sandbox.Errorf(sandbox.Invalid, "a template is removed as a whole: name no tag")
	case errors.Is(err, sandbox.NotFound) && known: // it has builds but no version
	case errors.Is(err, sandbox.NotFound):
		if tags, _ := a.named(r.Context(), who, name); len(tags) > 0 {
			return sandbox.Errorf(sandbox.Denied, "the template %q is the server's own", name)
		}
		return err
	case err != nil:
		return err
	}
	page, err := a.Sandboxes.List(r.Context(), who.Tenant, sandbox.ListQuery{Template: name, Limit: 1})
	if err != nil {
		return err
	}
	if len(page.Sandboxes) > 0 {
		return sandbox.Errorf(sandbox.Invalid, "sandboxes of the template %q run or are paused: end them first", name)
	}
	ended, err := a.Builds.Cancel(r.Context(), who.Tenant, name)
	if err != nil {
		return err
	}
	_, err = a.Catalog.Remove(r.Context(), who.Tenant, name)
	switch {
	case errors.Is(err, sandbox.NotFound) && ended > 0: // it had builds but no version
		err = nil
	case errors.Is(err, sandbox.NotFound):
		return errNoTemplate(name)
	case errors.Is(err, sandbox.Conflict):
		return sandbox.Errorf(sandbox.Invalid, "the template %q is in use", name).WithCause(err)
	}
	if err != nil {
		return err
	}
	return noContent(w)
}

// publish reads the name and the body of a template's change. It refuses to make a
// template public, which is not supported.
func (a *API) publish(r *http.Request, who sandbox.Identity) (name string, err error) {
	var body struct {
		Public *bool `json:"public"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return "", err
	}
	if name, _, err = reference(who, r.PathValue("template")); err != nil {
		return "", err
	}
	if _, err = a.own(r.Context(), who, name); err != nil {
		return "", err
	}
	if body.Public != nil && *body.Public {
		return "", unsupported("public")
	}
	return name, nil
}

// ChangeTemplate answers PATCH /templates/{template}.
func (a *API) ChangeTemplate(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	if _, err := a.publish(r, who); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// ChangeTemplateV2 answers PATCH /v2/templates/{template} with its names.
func (a *API) ChangeTemplateV2(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	name, err := a.publish(r, who)
	if err != nil {
		return err
	}
	tags, err := a.named(r.Context(), who, name)
	if err != nil {
		return err
	}
	return rest.Reply(w, http.StatusOK, map[string][]string{"names": templateViewOf(tags).Names})
}

// BuildLogs answers GET /templates/{template}/builds/{build}/logs with lines from a
// time on, or backwards from it.
func (a *API) BuildLogs(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, "cursor", "limit", "direction", "level", "source")
	if err != nil {
		return err
	}
	cursor, err := millis(values.Get("cursor"), "cursor")
	if err != nil {
		return err
	}
	limit, err := count(values.Get("limit"), "limit", maxBuildLines, maxBuildLines)
	if err != nil {
		return err
	}
	switch direction, source := values.Get("direction"), values.Get("source"); {
	case direction != "" && direction != "forward" && direction != "backward":
		return sandbox.Errorf(sandbox.Invalid, "direction must be forward or backward")
	case source != "" && source != "temporary" && source != "persistent":
		return sandbox.Errorf(sandbox.Invalid, "source must be temporary or persistent")
	}
	_, lines, err := a.build(r, who, values.Get("level"))
	if err != nil {
		return err
	}
	backward := values.Get("direction") == "backward"
	if backward {
		slices.Reverse(lines)
	}
	found := lines[:0]
	for _, l := range lines {
		at := l.At.Truncate(time.Millisecond) // the precision of the cursor
		if len(found) < limit && (cursor.IsZero() || backward && !at.After(cursor) || !backward && !at.Before(cursor)) {
			found = append(found, l)
		}
	}
	return rest.Reply(w, http.StatusOK, map[string]any{"logs": buildLinesOf(found)})
}
