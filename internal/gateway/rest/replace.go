package rest

import (
	"context"

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

// ReplaceInFiles replaces text and returns the replacements that it made.
func (a *API) ReplaceInFiles(ctx context.Context, c Call, in *v1.ReplaceRequest) (v1.ReplacedFiles, error) {
	req, err := replaceRequest(in)
	if err != nil {
		return v1.ReplacedFiles{}, err
	}
	guest, err := a.guest(ctx, c.Who, in.Target)
	if err != nil {
		return v1.ReplacedFiles{}, err
	}
	done, err := guest.Replace(ctx, req)
	replaced := v1.ReplacedFiles{
		Count: done.Count, Files: make([]v1.Replaced, len(done.Files)), FilesTooLarge: done.TooLarge, DryRun: req.DryRun,
	}
	for i, f := range done.Files {
		replaced.Files[i] = v1.Replaced{Path: text(f.Path), Count: f.Count, Lines: append([]int64{}, f.Lines...)}
	}
	return replaced, err
}
