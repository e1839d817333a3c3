package e2b

import (
	"context"
	"net/http"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// Get answers GET /sandboxes/{id}.
func (a *API) Get(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	sb, err := a.live(r, who)
	if err != nil {
		return err
	}
	view := a.detailOf(r, who.Sees(sb))
	if !who.May(sandbox.ScopeWrite) {
		view.EnvdAccessToken = "" // the token allows writing
	}
	if sb.State == sandbox.Paused {
		snap, err := a.Snapshots.SnapshotByID(r.Context(), who.Tenant, sb.Snapshot)
		switch {
		case err == nil && snap.Memory:
			view.PauseMode = "full"
		case err == nil:
			view.PauseMode = "filesystem"
		}
	}
	return rest.Reply(w, http.StatusOK, view)
}

// Kill answers DELETE /sandboxes/{id}.
func (a *API) Kill(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	id, err := sandboxID(r)
	if err != nil {
		return err
	}
	if _, err := a.Executions.End(r.Context(), who.Tenant, id); err != nil {
		return absent(err, id)
	}
	a.loads.unwatch(id)
	return noContent(w)
}

// SetTimeout answers POST /sandboxes/{id}/timeout: the deadline is timeout from now,
// also if it was later before. When traffic wakes the Sandbox later, it gets the
// timeout of its creation again.
func (a *API) SetTimeout(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Timeout *int64 `json:"timeout"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	if body.Timeout == nil {
		return sandbox.Errorf(sandbox.Invalid, "timeout is missing")
	}
	timeout := time.Millisecond // as good as none
	if *body.Timeout != 0 {
		var err error
		if timeout, err = seconds(body.Timeout, 0); err != nil {
			return err
		}
	}
	sb, err := a.running(r, who)
	if err != nil {
		return err
	}
	if _, err := a.Updates.RunFor(r.Context(), who.Tenant, sb.ID, timeout); err != nil {
		return absent(err, sb.ID)
	}
	return noContent(w)
}

// Bounds of a refresh.
const (
	leastRefresh = 15 * time.Second
	mostRefresh  = time.Hour
)

// Refresh answers POST /sandboxes/{id}/refreshes: the deadline is at least duration
// from now.
func (a *API) Refresh(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body struct {
		Duration int64 `json:"duration"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	if body.Duration < 0 || body.Duration > int64(mostRefresh/time.Second) {
		return sandbox.Errorf(sandbox.Invalid, "duration must be between 0 and %d seconds", int64(mostRefresh/time.Second))
	}
	sb, err := a.live(r, who)
	if err != nil {
		return err
	}
	if _, err := a.extend(r.Context(), who, sb, max(time.Duration(body.Duration)*time.Second, leastRefresh)); err != nil {
		return absent(err, sb.ID)
	}
	return noContent(w)
}

// extend moves the deadline of a Sandbox to at least d from now.
func (a *API) extend(ctx context.Context, who sandbox.Identity, sb sandbox.Sandbox, d time.Duration) (sandbox.Sandbox, error) {
	if !time.Now().Add(d).After(sb.Deadline) {
		return sb, nil
	}
	return a.Updates.RunFor(ctx, who.Tenant, sb.ID, d)
}

// connectBody requests a connection to a Sandbox.
type connectBody struct {
	Timeout *int64 `json:"timeout"`
	Memory  *bool  `json:"memory"`
}

// ConnectV2 answers POST /v2/sandboxes/{id}/connect.
func (a *API) ConnectV2(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body connectBody
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	return a.connect(w, r, who, body)
}

// ConnectV1 answers POST /sandboxes/{id}/connect.
func (a *API) ConnectV1(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body connectBody
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	if body.Timeout == nil {
		return sandbox.Errorf(sandbox.Invalid, "timeout is missing")
	}
	return a.connect(w, r, who, body)
}

func (a *API) connect(w http.ResponseWriter, r *http.Request, who sandbox.Identity, body connectBody) error {
	timeout, err := body.timeout(timeoutV2)
	if err != nil {
		return err
	}
	sb, err := a.live(r, who)
	if err != nil {
		return err
	}
	if sb.State == sandbox.Running {
		longer, err := a.extend(r.Context(), who, sb, timeout)
		if err != nil {
			return absent(err, sb.ID)
		}
		if longer.State == sandbox.Running {
			return rest.Reply(w, http.StatusOK, a.viewOf(r, longer))
		}
		sb = longer // it was paused meanwhile
	}
	if sb, err = a.wake(r.Context(), who, sb, body, timeout); err != nil {
		return absent(err, sb.ID)
	}
	return rest.Reply(w, http.StatusCreated, a.viewOf(r, sb))
}
