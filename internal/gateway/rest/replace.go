package rest

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// replaceRequest converts b.
func replaceRequest(b *v1.ReplaceRequest) (execution.ReplaceRequest, error) {
	req := execution.ReplaceRequest{
		User: b.User, Files: selectionOf(b.FileSelection),
		Pattern: b.Pattern, Regex: b.Regex, IgnoreCase: b.IgnoreCase, Expected: b.ExpectedCount, DryRun: b.DryRun,
	}
	return req, req.Complete(b.Replacement)
}

// ReplaceInFiles answers POST /api/v1/files/replace with the replacements that it made.
func (a *API) ReplaceInFiles(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.ReplaceRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := replaceRequest(&body)
	if err != nil {
		return err
	}
	guest, err := a.guest(r, who, body.Target)
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
