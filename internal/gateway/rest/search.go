package rest

import (
	"context"

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

// SearchFiles returns the lines, or the files, that match.
func (a *API) SearchFiles(ctx context.Context, c Call, in *v1.SearchRequest) (v1.Matches, error) {
	req, err := searchRequest(in)
	if err != nil {
		return v1.Matches{}, err
	}
	guest, err := a.guest(ctx, c.Who, in.Target)
	if err != nil {
		return v1.Matches{}, err
	}
	found, err := guest.Search(ctx, req)
	matches := v1.Matches{Matches: make([]v1.Match, len(found.Matches)), FilesSearched: found.Files, Truncated: found.Truncated}
	for i, m := range found.Matches {
		matches.Matches[i] = matchViewOf(m)
	}
	return matches, err
}
