package rest

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

func selectionOf(f v1.FileSelection) execution.FileSelection {
	return execution.FileSelection{Path: f.Path, Globs: f.Globs, Hidden: f.Hidden, NoIgnore: f.NoIgnore}
}

// searchRequest converts b.
func searchRequest(b *v1.SearchRequest) (execution.SearchRequest, error) {
	req := execution.SearchRequest{
		User: b.User, Files: selectionOf(b.FileSelection),
		Pattern: b.Pattern, Literal: b.Literal, IgnoreCase: b.IgnoreCase, Word: b.Word, FilesOnly: b.FilesOnly,
		MaxResults: execution.DefaultSearchResults, Context: b.ContextLines,
	}
	if b.MaxResults != nil {
		req.MaxResults = *b.MaxResults
	}
	return req, req.Complete()
}

func matchViewOf(m execution.Match) v1.Match {
	v := v1.Match{Path: text(m.Path), Line: m.Line, Cut: m.Cut, Before: m.Before, After: m.After}
	if m.Line > 0 {
		v.Text = &m.Text
	}
	for _, s := range m.Spans {
		v.Spans = append(v.Spans, v1.Span(s))
	}
	return v
}

// SearchFiles answers POST /api/v1/files/search with the lines, or the files,
// that match.
func (a *API) SearchFiles(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.SearchRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := searchRequest(&body)
	if err != nil {
		return err
	}
	guest, err := a.guest(r, who, body.Target)
	if err != nil {
		return err
	}
	found, err := guest.Search(r.Context(), req)
	if err != nil {
		return err
	}
	reply := v1.Matches{Matches: make([]v1.Match, len(found.Matches)), FilesSearched: found.Files, Truncated: found.Truncated}
	for i, m := range found.Matches {
		reply.Matches[i] = matchViewOf(m)
	}
	return Reply(w, http.StatusOK, reply)
}
