package e2b

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/status"
)

// Pause answers POST /sandboxes/{id}/pause once the state is safe on disk.
func (a *API) Pause(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Memory              *bool `json:"memory"`
		RequireHealthyGuest bool  `json:"requireHealthyGuest"` // a Guest that does not answer is never saved
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	sb, err := a.live(r, who)
	switch {
	case err != nil:
		return err
	case sb.State == sandbox.Paused:
		return errNotRunning(sb)
	}
	if _, err := a.Lifecycle.Pause(r.Context(), who.Tenant, sb.ID, body.Memory != nil && !*body.Memory); err != nil {
		return absent(noRoom(err), sb.ID)
	}
	a.Guests.Forget(sb.ID)
	return noContent(w)
}

// Resume answers POST /sandboxes/{id}/resume for a paused Sandbox.
func (a *API) Resume(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		connectBody
		AutoPause *bool `json:"autoPause"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	timeout, err := body.timeout(timeoutV1)
	if err != nil {
		return err
	}
	sb, err := a.live(r, who)
	switch {
	case err != nil:
		return err
	case sb.State == sandbox.Running:
		return sandbox.Errorf(sandbox.Conflict, "sandbox %q is running", sb.ID)
	}
	if body.AutoPause != nil {
		action := onTimeout(*body.AutoPause, nil)
		if _, err := a.Updates.Update(r.Context(), who.Tenant, sb.ID, sandbox.Change{OnTimeout: &action}); err != nil {
			return absent(err, sb.ID)
		}
	}
	if sb, err = a.wake(r.Context(), who, sb, body.connectBody, timeout); err != nil {
		return absent(err, sb.ID)
	}
	return rest.Reply(w, http.StatusCreated, a.viewOf(r, sb))
}

func (b *connectBody) timeout(otherwise time.Duration) (time.Duration, error) {
	return seconds(b.Timeout, otherwise)
}

// maxWakes bounds how often one request resumes a Sandbox that other requests pause
// again before its timeout is set.
const maxWakes = 5

// wake resumes a paused Sandbox, from its files alone if b says so. Its deadline is
// then timeout from now.
func (a *API) wake(ctx context.Context, who sandbox.Identity, sb sandbox.Sandbox, b connectBody, timeout time.Duration) (sandbox.Sandbox, error) {
	resume := a.Lifecycle.Resume
	if b.Memory != nil && !*b.Memory {
		resume = a.Lifecycle.Reboot
	}
	id := sb.ID
	for range maxWakes {
		running, err := resume(ctx, who.Tenant, id)
		if err != nil {
			return sb, noRoom(err)
		}
		a.Guests.Warm(ctx, running)
		if sb, err = a.Updates.RunFor(ctx, who.Tenant, id, timeout); err != nil {
			return running, err
		}
		if sb.State == sandbox.Running {
			return sb, nil
		}
	}
	return sb, sandbox.Errorf(sandbox.Conflict, "sandbox %q was paused again by others each of the %d times that it was resumed: try again", id, maxWakes)
}

// onTimeout is the action at a Sandbox's deadline. memory says whether a pause keeps
// the memory; nil: it does.
func onTimeout(pause bool, memory *bool) sandbox.OnTimeout {
	switch {
	case !pause:
		return sandbox.OnTimeoutEnd
	case memory != nil && !*memory:
		return sandbox.OnTimeoutPauseFiles
	}
	return sandbox.OnTimeoutPause
}

// forkView is a running copy, or its error.
type forkView struct {
	Sandbox *sandboxView `json:"sandbox,omitempty"`
	Error   *failure     `json:"error,omitempty"`
}

// Fork answers POST /sandboxes/{id}/fork with the result of each copy of a running
// Sandbox.
func (a *API) Fork(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Timeout *int64 `json:"timeout"`
		Count   *int   `json:"count"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	req := sandbox.ForkRequest{ID: rest.Resource(r.Context()), Count: 1, KeepSecrets: true}
	if body.Count != nil {
		req.Count = *body.Count
	}
	if req.Count < 1 || req.Count > sandbox.MaxForks {
		return sandbox.Errorf(sandbox.Invalid, "count must be between 1 and %d", sandbox.MaxForks)
	}
	var err error
	if req.Timeout, err = seconds(body.Timeout, timeoutV1); err != nil {
		return err
	}
	if err := req.Check(); err != nil {
		return err
	}
	sb, err := a.running(r, who)
	if err != nil {
		return err
	}
	forks, err := a.Snapshots.Fork(r.Context(), who.Tenant, sb.ID, req)
	if err != nil {
		return absent(noRoom(err), sb.ID)
	}
	views := make([]forkView, 0, len(forks))
	for _, f := range forks {
		if f.Err != nil {
			views = append(views, forkView{Error: failureOf(status.Of(noRoom(f.Err)))})
			continue
		}
		view := a.viewOf(r, f.Sandbox)
		views = append(views, forkView{Sandbox: &view})
	}
	return rest.Reply(w, http.StatusCreated, views)
}

// snapshotView is a Snapshot as a Template for new Sandboxes.
type snapshotView struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

// snapshotViewOf shows a Snapshot by its name if it is the newest with that name, and
// else by its ID.
func snapshotViewOf(s sandbox.Snapshot, newest bool) snapshotView {
	if s.Name == "" || !newest {
		return snapshotView{SnapshotID: s.ID + ":" + defaultTag, Names: []string{}}
	}
	name, tag := snapshotTag(s)
	full := namespace(s.Tenant) + "/" + name + ":" + tag
	return snapshotView{SnapshotID: full, Names: []string{full}}
}

// snapshotViews are the views of Snapshots that are sorted newest first.
func (a *API) snapshotViews(ctx context.Context, who sandbox.Identity, all []sandbox.Snapshot) ([]snapshotView, error) {
	views := make([]snapshotView, 0, len(all))
	newest := map[string]string{} // ID by name
	for _, s := range all {
		if _, known := newest[s.Name]; s.Name != "" && !known {
			id, err := a.snapshotNamed(ctx, who, s.Name, false)
			if err != nil {
				return nil, err
			}
			newest[s.Name] = id
		}
		views = append(views, snapshotViewOf(s, newest[s.Name] == s.ID))
	}
	return views, nil
}

// snapshotTag is a Snapshot's name and tag in E2B's names.
func snapshotTag(s sandbox.Snapshot) (name, tag string) {
	name, tag, tagged := strings.Cut(s.Name, ":")
	if !tagged {
		tag = latest
	}
	return name, swapTag(tag)
}

// snapshotName converts a client's name or ID of a Snapshot to ours; tagged: it had a
// tag.
func snapshotName(who sandbox.Identity, asked string) (name string, tagged bool) {
	name = withoutNamespace(who, strings.ToLower(strings.TrimSpace(asked)))
	return strings.TrimSuffix(swapReference(name), ":"+latest), strings.Contains(name, ":")
}

// TakeSnapshot answers POST /sandboxes/{id}/snapshots with 201; the Sandbox keeps
// running.
func (a *API) TakeSnapshot(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Name   string `json:"name"`
		Memory *bool  `json:"memory"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	sb, err := a.live(r, who)
	if err != nil {
		return err
	}
	name, _ := snapshotName(who, body.Name)
	req := sandbox.SnapshotRequest{
		Name: name, FilesOnly: body.Memory != nil && !*body.Memory, TakeName: true,
	}
	req.ID = rest.ResourceLike(r.Context(), "s")
	snap, err := a.Snapshots.TakeSnapshot(r.Context(), who.Tenant, sb.ID, req)
	if err != nil {
		return absent(err, sb.ID)
	}
	return rest.Reply(w, http.StatusCreated, snapshotViewOf(snap, true))
}

// ListSnapshots answers GET /snapshots with a page of explicit Snapshots. Snapshots of
// paused Sandboxes are not listed.
func (a *API) ListSnapshots(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, "sandboxID", "name", "limit", "nextToken")
	if err != nil {
		return err
	}
	name, tagged := snapshotName(who, values.Get("name"))
	q := sandbox.SnapshotQuery{
		SandboxID: values.Get("sandboxID"), Name: name, Tags: !tagged, Cursor: values.Get("nextToken"), Kept: true,
	}
	if sandbox.ValidSnapshotID(q.Name) {
		return a.listSnapshot(w, r, who, q.Name)
	}
	if len(q.Cursor) > maxToken {
		return sandbox.Errorf(sandbox.Invalid, "Invalid next token")
	}
	if q.Limit, err = limitOf(values); err != nil {
		return err
	}
	page, err := a.Snapshots.ListSnapshots(r.Context(), who.Tenant, q)
	if err != nil {
		return err
	}
	if page.Next != "" {
		w.Header().Set("X-Next-Token", page.Next)
	}
	views, err := a.snapshotViews(r.Context(), who, page.Snapshots)
	if err != nil {
		return err
	}
	return rest.Reply(w, http.StatusOK, views)
}

// listSnapshot answers with a list of the Snapshot with an ID, or an empty list.
func (a *API) listSnapshot(w http.ResponseWriter, r *http.Request, who sandbox.Identity, id string) error {
	var found []sandbox.Snapshot
	s, err := a.Snapshots.SnapshotByID(r.Context(), who.Tenant, id)
	switch {
	case err == nil && s.Kept:
		found = append(found, s)
	case err != nil && !errors.Is(err, sandbox.NotFound):
		return err
	}
	views, err := a.snapshotViews(r.Context(), who, found)
	if err != nil {
		return err
	}
	return rest.Reply(w, http.StatusOK, views)
}

// snapshotNamed returns the ID of the Tenant's newest Snapshot of a name, with any tag
// if tags is set; empty when no such Snapshot exists.
func (a *API) snapshotNamed(ctx context.Context, who sandbox.Identity, name string, tags bool) (string, error) {
	page, err := a.Snapshots.ListSnapshots(ctx, who.Tenant, sandbox.SnapshotQuery{Name: name, Tags: tags, Kept: true, Limit: 1})
	if err != nil || len(page.Snapshots) == 0 {
		return "", err
	}
	return page.Snapshots[0].ID, nil
}

// snapshotTags returns the newest Snapshot of each tag of a name, newest first. For an
// ID it returns that Snapshot alone.
func (a *API) snapshotTags(ctx context.Context, who sandbox.Identity, asked string) ([]sandbox.Snapshot, error) {
	name, _ := snapshotName(who, asked)
	name, _, _ = strings.Cut(name, ":")
	if sandbox.ValidSnapshotID(name) {
		s, err := a.Snapshots.SnapshotByID(ctx, who.Tenant, name)
		if err == nil && !s.Kept || errors.Is(err, sandbox.NotFound) {
			return nil, nil
		}
		return []sandbox.Snapshot{s}, err
	}
	var newest []sandbox.Snapshot
	seen := map[string]bool{}
	for q := (sandbox.SnapshotQuery{Name: name, Tags: true, Kept: true}); ; {
		page, err := a.Snapshots.ListSnapshots(ctx, who.Tenant, q)
		if err != nil {
			return nil, err
		}
		for _, s := range page.Snapshots {
			if !seen[s.Name] {
				seen[s.Name] = true
				newest = append(newest, s)
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return newest, nil
		}
	}
}

// DeleteTemplate answers DELETE /templates/{template} for a template or a Snapshot. A
// name of Snapshots deletes all of them, of every tag unless the name has one.
func (a *API) DeleteTemplate(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	asked := r.PathValue("template")
	if part := r.PathValue("part"); part != "" { // after a namespace
		asked += "/" + part
	}
	id, tagged := snapshotName(who, asked)
	if sandbox.ValidSnapshotID(id) {
		if _, err := a.Snapshots.DeleteSnapshot(r.Context(), who.Tenant, id); err != nil {
			if sandbox.CodeOf(err) == sandbox.NotFound {
				return errNoTemplate(id)
			}
			return err
		}
		return noContent(w)
	}
	last := ""
	for {
		named, err := a.snapshotNamed(r.Context(), who, id, !tagged)
		switch {
		case err != nil:
			return err
		case named == "" && last == "":
			return a.removeTemplate(w, r, who, asked)
		case named == "" || named == last:
			return noContent(w)
		}
		if _, err := a.Snapshots.DeleteSnapshot(r.Context(), who.Tenant, named); err != nil && sandbox.CodeOf(err) != sandbox.NotFound {
			return err
		}
		last = named
	}
}
