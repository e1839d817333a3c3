package rest

import (
	"net/http"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// NetworkLog answers GET /api/v1/sessions/{id}/network/log with the kept decisions of a
// running Sandbox's network policies, oldest first.
func (a *API) NetworkLog(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := query(r, "verdict")
	if err != nil {
		return err
	}
	verdict := values.Get("verdict")
	if verdict != "" && verdict != verdictAllowed && verdict != verdictRefused {
		return sandbox.Errorf(sandbox.Invalid, "verdict must be %q or %q", verdictAllowed, verdictRefused)
	}
	sb, err := a.Sandboxes.Settled(r.Context(), who.Tenant, r.PathValue("id"))
	if err != nil {
		return execution.Absent(r.PathValue("id"), err)
	}
	if sb.State != sandbox.Running {
		return sandbox.Errorf(sandbox.Conflict, "the sandbox is %s: only one that runs has a network log", sb.State)
	}
	of := sandbox.BootRef{BootID: sb.Boot.ID, SandboxID: sb.ID, Number: sb.Boot.Number, Tenant: sb.Tenant}
	log, err := a.Reports.NetworkLog(r.Context(), sb.Boot.Node, of)
	if err != nil {
		return err
	}
	view := v1.NetworkLog{Decisions: []v1.NetworkDecision{}, Allowed: log.Allowed, Refused: log.Refused}
	for _, d := range log.Decisions {
		if v := decisionViewOf(d); verdict == "" || v.Verdict == verdict {
			view.Decisions = append(view.Decisions, v)
		}
	}
	return Reply(w, http.StatusOK, view)
}

const (
	verdictAllowed = "allowed"
	verdictRefused = "refused"
)

// decisionViewOf shows a decision. The guest chooses the names, which may be no valid
// text.
func decisionViewOf(d sandbox.NetworkDecision) v1.NetworkDecision {
	v := v1.NetworkDecision{
		Seq: d.Seq, FirstAt: v1.Time(d.First), LastAt: v1.Time(d.Last), Count: d.Count, Protocol: d.Protocol,
		Name: strings.ToValidUTF8(d.Name, "\uFFFD"), Port: d.Port, Verdict: verdictRefused, Reason: d.Reason,
	}
	if d.Allowed {
		v.Verdict = verdictAllowed
	}
	if d.Addr.IsValid() {
		v.Address = d.Addr.String()
	}
	return v
}
