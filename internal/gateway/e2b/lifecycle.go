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
		RequireHealthyGuest bool  `json:"requireHealthyGuest"` // one that does not answer is never saved
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	sb, err := a.live(r, who)
	switch {
	case err != nil:
		return err
	case sb.State != sandbox.Running:
		return sandbox.Errorf(sandbox.Conflict, "sandbox %q is %s", sb.ID, sb.State)
	}
	if _, err := a.Sandboxes.Pause(r.Context(), who.Tenant, sb.ID, body.Memory != nil && !*body.Memory); err != nil {
		return absent(err, sb.ID)
	}
	a.Guests.Forget(sb.ID)
	return noContent(w)
}

// Resume answers POST /sandboxes/{id}/resume, of one that is paused.
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
	case stateOf(sb) != statePaused:
		return sandbox.Errorf(sandbox.Conflict, "sandbox %q is running", sb.ID)
	}
	if body.AutoPause != nil {
		action := onTimeout(*body.AutoPause, nil)
		if _, err := a.Sandboxes.Update(r.Context(), who.Tenant, sb.ID, sandbox.Change{OnTimeout: &action}); err != nil {
			return absent(err, sb.ID)
		}
	}
	if sb, err = a.wake(r.Context(), who, sb, body.connectBody, timeout); err != nil {
		return absent(err, sb.ID)
	}
	return rest.Reply(w, http.StatusCreated, a.viewOf(sb))
}

func (b *connectBody) timeout(otherwise time.Duration) (time.Duration, error) {
	return seconds(b.Timeout, otherwise)
}

// wake resumes a paused Sandbox, from its files alone if b says so. Its end is then
// timeout away.
func (a *API) wake(ctx context.Context, who sandbox.Identity, sb sandbox.Sandbox, b connectBody, timeout time.Duration) (sandbox.Sandbox, error) {
	resume := a.Sandboxes.Resume
	if b.Memory != nil && !*b.Memory {
		resume = a.Sandboxes.Reboot
	}
	if running, err := resume(ctx, who.Tenant, sb.ID); err != nil {
		return sb, err
	} else {
		sb = running
	}
	a.Guests.Warm(sb)
	return a.Sandboxes.SetTimeout(ctx, who.Tenant, sb.ID, timeout)
}

// onTimeout is what the end of its time does to a Sandbox; memory is nil for
// keeping it.
func onTimeout(pause bool, memory *bool) sandbox.OnTimeout {
	switch {
	case !pause:
		return sandbox.OnTimeoutEnd
	case memory != nil && !*memory:
		return sandbox.OnTimeoutPauseFiles
	}
	return sandbox.OnTimeoutPause
}

// maxForks is how many copies one request may ask for.
const maxForks = 100

// forkView is a copy that runs, or why there is none.
type forkView struct {
	Sandbox *sandboxView `json:"sandbox,omitempty"`
	Error   *failure     `json:"error,omitempty"`
}

// Fork answers POST /sandboxes/{id}/fork with what became of each copy of a
// running Sandbox.
func (a *API) Fork(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Timeout *int64 `json:"timeout"`
		Count   *int   `json:"count"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	req := sandbox.ForkRequest{ID: rest.Resource(r.Context()), Count: 1}
	if body.Count != nil {
		req.Count = *body.Count
	}
	if req.Count < 1 || req.Count > maxForks {
		return sandbox.Errorf(sandbox.Invalid, "count must be between 1 and %d", maxForks)
	}
	var err error
	if req.Timeout, err = seconds(body.Timeout, timeoutV1); err != nil {
		return err
	}
	if err := req.Check(); err != nil {
		return err
	}
	sb, err := a.live(r, who)
	switch {
	case err != nil:
		return err
	case sb.State != sandbox.Running:
		return sandbox.Errorf(sandbox.Conflict, "sandbox %q is %s", sb.ID, sb.State)
	}
	forks, err := a.Sandboxes.Fork(r.Context(), who.Tenant, sb.ID, req)
	if err != nil {
		return absent(err, sb.ID)
	}
	views := make([]forkView, 0, len(forks))
	for _, f := range forks {
		if f.Err != nil {
			views = append(views, forkView{Error: failureOf(status.Of(f.Err))})
			continue
		}
		view := a.viewOf(f.Sandbox)
		views = append(views, forkView{Sandbox: &view})
	}
	return rest.Reply(w, http.StatusCreated, views)
}

// snapshotView is a Snapshot that Sandboxes start from, as a Template.
type snapshotView struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func snapshotViewOf(s sandbox.Snapshot) snapshotView {
	v := snapshotView{SnapshotID: s.ID, Names: []string{}}
	if s.Name != "" {
		v.Names = append(v.Names, s.Name)
	}
	return v
}

// TakeSnapshot answers POST /sandboxes/{id}/snapshots with 201; the Sandbox runs
// on.
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
	req := sandbox.SnapshotRequest{
		Name: strings.TrimSuffix(body.Name, ":default"), FilesOnly: body.Memory != nil && !*body.Memory, TakeName: true,
	}
	if id := rest.Resource(r.Context()); id != "" {
		req.ID = "s" + id[1:] // a Snapshot's IDs have another first letter
	}
	snap, err := a.Sandboxes.TakeSnapshot(r.Context(), who.Tenant, sb.ID, req)
	if err != nil {
		return absent(err, sb.ID)
	}
	return rest.Reply(w, http.StatusCreated, snapshotViewOf(snap))
}

// ListSnapshots answers GET /snapshots with a page of those that were asked for,
// not of those that Sandboxes are paused in.
func (a *API) ListSnapshots(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, "sandboxID", "name", "limit", "nextToken")
	if err != nil {
		return err
	}
	q := sandbox.SnapshotQuery{
		SandboxID: values.Get("sandboxID"), Name: strings.TrimSuffix(values.Get("name"), ":default"), Cursor: values.Get("nextToken"), Kept: true,
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
	page, err := a.Sandboxes.ListSnapshots(r.Context(), who.Tenant, q)
	if err != nil {
		return err
	}
	if page.Next != "" {
		w.Header().Set("X-Next-Token", page.Next)
	}
	views := []snapshotView{}
	for _, s := range page.Snapshots {
		views = append(views, snapshotViewOf(s))
	}
	return rest.Reply(w, http.StatusOK, views)
}

// listSnapshot answers as a list of the one with an ID, or of none.
func (a *API) listSnapshot(w http.ResponseWriter, r *http.Request, who sandbox.Identity, id string) error {
	views := []snapshotView{}
	s, err := a.Sandboxes.SnapshotByID(r.Context(), who.Tenant, id)
	switch {
	case err == nil && s.Kept:
		views = append(views, snapshotViewOf(s))
	case err != nil && !errors.Is(err, sandbox.NotFound):
		return err
	}
	return rest.Reply(w, http.StatusOK, views)
}

// snapshotNamed returns the ID of the Tenant's newest Snapshot of a name; empty
// when it has none.
func (a *API) snapshotNamed(ctx context.Context, who sandbox.Identity, name string) (string, error) {
	page, err := a.Sandboxes.ListSnapshots(ctx, who.Tenant, sandbox.SnapshotQuery{Name: name, Kept: true, Limit: 1})
	if err != nil || len(page.Snapshots) == 0 {
		return "", err
	}
	return page.Snapshots[0].ID, nil
}

// DeleteTemplate answers DELETE /templates/{template}, of a template or a
// Snapshot.
func (a *API) DeleteTemplate(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	id := strings.TrimSuffix(r.PathValue("template"), ":default")
	if !sandbox.ValidSnapshotID(id) {
		named, err := a.snapshotNamed(r.Context(), who, id)
		if err != nil {
			return err
		}
		if named == "" {
			return a.removeTemplate(w, r, who, id)
		}
		id = named
	}
	if _, err := a.Sandboxes.DeleteSnapshot(r.Context(), who.Tenant, id); err != nil {
		if sandbox.CodeOf(err) == sandbox.NotFound {
			return errNoTemplate(id)
		}
		return err
	}
	return noContent(w)
}
