package rest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// networkBody is a network policy in JSON: "public", "none", or an object of
// mode, allow and deny. It is empty for null.
type networkBody sandbox.NetworkPolicy

func (b *networkBody) UnmarshalJSON(raw []byte) error {
	if raw = bytes.TrimSpace(raw); string(raw) == "null" {
		*b = ""
		return nil
	}
	text := string(raw)
	if len(raw) > 0 && raw[0] != '{' {
		var simple string
		if err := json.Unmarshal(raw, &simple); err != nil || simple == "" || simple[0] == '{' {
			text = "" // is told as any other that is none
		} else {
			text = simple
		}
	}
	p, err := sandbox.ParseNetworkPolicy(text)
	*b = networkBody(p)
	return err
}

// networkView is a policy as clients see it, in the form of networkBody.
func networkView(p sandbox.NetworkPolicy) json.RawMessage {
	if len(p) > 0 && p[0] == '{' {
		return json.RawMessage(p)
	}
	text, err := json.Marshal(string(p))
	if err != nil {
		return json.RawMessage(`""`) // a string is never refused
	}
	return text
}

// NetworkLog answers GET /api/v1/sessions/{id}/network/log with what the network
// policies of a running Sandbox decided, as far as it is kept, oldest first.
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
	log, err := a.Nodes.NetworkLog(r.Context(), sb.Boot.Node, of)
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

// decisionViewOf shows a decision; names are a guest's word and may be no text.
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
