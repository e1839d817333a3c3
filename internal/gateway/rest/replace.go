package rest

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

type replaceBody struct {
	target
	selectionFields
	Pattern       string  `json:"pattern"`
	Replacement   *string `json:"replacement"`
	Regex         bool    `json:"regex"`
	IgnoreCase    bool    `json:"ignore_case"`
	ExpectedCount *int64  `json:"expected_count"`
	DryRun        bool    `json:"dry_run"`
	User          string  `json:"user"`
}

func (b *replaceBody) request() (execution.ReplaceRequest, error) {
	req := execution.ReplaceRequest{
		User: b.User, Files: b.selection(),
		Pattern: b.Pattern, Regex: b.Regex, IgnoreCase: b.IgnoreCase, Expected: b.ExpectedCount, DryRun: b.DryRun,
	}
	return req, req.Complete(b.Replacement)
}

// ReplaceInFiles answers POST /api/v1/files/replace with what was replaced.
func (a *API) ReplaceInFiles(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body replaceBody
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := body.request()
	if err != nil {
		return err
	}
	guest, err := a.guest(r, who, body.target)
	if err != nil {
		return err
	}
	done, err := guest.Replace(r.Context(), req)
	if err != nil {
		return err
	}
	reply := v1.ReplacedFiles{
		Count: done.Count, Files: make([]v1.Replaced, len(done.Files)), FilesTooLarge: done.TooLarge, DryRun: req.DryRun,
	}
	for i, f := range done.Files {
		reply.Files[i] = v1.Replaced{Path: text(f.Path), Count: f.Count, Lines: append([]int64{}, f.Lines...)}
	}
	return Reply(w, http.StatusOK, reply)
}
