package mcp

import (
	"context"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
)

// maxFound is the largest number of results of a search that the API allows.
const maxFound = 10_000

type globInput struct {
	Pattern    string `json:"pattern" jsonschema:"names such as *.py, or paths such as src/**/*.ts"`
	Path       string `json:"path,omitempty" jsonschema:"the folder to search, /workspace by default"`
	Hidden     bool   `json:"hidden,omitempty" jsonschema:"whether names that begin with a dot, and files that .gitignore excludes, count too"`
	MaxResults *int   `json:"max_results,omitempty" jsonschema:"how many files to return, 100 by default and 10000 at most"`
	SandboxID  string `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

type grepInput struct {
	Pattern    string `json:"pattern" jsonschema:"a regular expression (RE2), for one line"`
	Path       string `json:"path,omitempty" jsonschema:"the file or folder to search, /workspace by default"`
	Glob       string `json:"glob,omitempty" jsonschema:"search only files with such names or paths, for example *.py"`
	IgnoreCase bool   `json:"ignore_case,omitempty" jsonschema:"whether case does not matter"`
	Literal    bool   `json:"literal,omitempty" jsonschema:"whether the pattern is plain text"`
	Context    int    `json:"context_lines,omitempty" jsonschema:"how many lines to show before and after each match, 20 at most"`
	FilesOnly  bool   `json:"files_only,omitempty" jsonschema:"whether to return only the names of files"`
	Hidden     bool   `json:"hidden,omitempty" jsonschema:"whether names that begin with a dot, and files that .gitignore excludes, count too"`
	MaxResults *int   `json:"max_results,omitempty" jsonschema:"how many matches to return, 100 by default and 10000 at most"`
	SandboxID  string `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

func searchTools() []tool {
	calls := []*catalogue.Operation{catalogue.SearchFiles}
	return []tool{
		define(tool{
			name: "glob", title: "Find files by name",
			description: "Returns the paths of files whose names match a pattern.",
			calls:       calls,
		}, func(ctx context.Context, c *call, in globInput) (*sdk.CallToolResult, error) {
			found, err := c.search(ctx, in.SandboxID, v1.SearchRequest{
				FileSelection: v1.FileSelection{Path: in.Path, Globs: []string{in.Pattern}, Hidden: in.Hidden, NoIgnore: in.Hidden},
				FilesOnly:     true, MaxResults: in.MaxResults,
			})
			if err != nil {
				return nil, err
			}
			return text(filesOf(found)), nil
		}),
		define(tool{
			name: "grep", title: "Search in files",
			description: "Returns the lines of files that match a regular expression, or only the names of the files.",
			calls:       calls,
		}, func(ctx context.Context, c *call, in grepInput) (*sdk.CallToolResult, error) {
			r := v1.SearchRequest{
				FileSelection: v1.FileSelection{Path: in.Path, Hidden: in.Hidden, NoIgnore: in.Hidden},
				Pattern:       in.Pattern, Literal: in.Literal, IgnoreCase: in.IgnoreCase, FilesOnly: in.FilesOnly,
				MaxResults: in.MaxResults, ContextLines: in.Context,
			}
			if in.Glob != "" {
				r.Globs = []string{in.Glob}
			}
			found, err := c.search(ctx, in.SandboxID, r)
			if err != nil {
				return nil, err
			}
			if in.FilesOnly {
				return text(filesOf(found)), nil
			}
			return text(linesOf(found, true)), nil
		}),
	}
}

func (c *call) search(ctx context.Context, named string, r v1.SearchRequest) (v1.Matches, error) {
	id, err := c.sandbox(ctx, named)
	if err != nil {
		return v1.Matches{}, err
	}
	r.SandboxID = id
	return c.client.Search(ctx, r)
}

// filesOf lists the files of a search.
func filesOf(found v1.Matches) string {
	var b strings.Builder
	for _, m := range found.Matches {
		b.WriteString(m.Path + "\n")
	}
	return ended(&b, found)
}

// linesOf lists the lines of a search as grep does, with numbers if wanted.
func linesOf(found v1.Matches, numbers bool) string {
	var b strings.Builder
	show := func(path string, number int64, mark byte, line string) {
		if numbers {
			fmt.Fprintf(&b, "%s%c%d%c%s\n", path, mark, number, mark, clip(line, maxLine))
			return
		}
		fmt.Fprintf(&b, "%s%c%s\n", path, mark, clip(line, maxLine))
	}
	for i, m := range found.Matches {
		if i > 0 && (len(m.Before) > 0 || len(found.Matches[i-1].After) > 0) {
			b.WriteString("--\n")
		}
		for j, line := range m.Before {
			show(m.Path, m.Line-int64(len(m.Before)-j), '-', line)
		}
		show(m.Path, m.Line, ':', lineOf(m))
		for j, line := range m.After {
			show(m.Path, m.Line+int64(j)+1, '-', line)
		}
	}
	return ended(&b, found)
}

// lineOf is the line of a match.
func lineOf(m v1.Match) string {
	if m.Text == nil {
		return ""
	}
	return *m.Text
}

// ended adds a note if the list is incomplete, and cuts a text that is too long.
func ended(b *strings.Builder, found v1.Matches) string {
	if len(found.Matches) == 0 {
		b.WriteString("(no matches)")
	}
	s := shorten(strings.TrimSuffix(b.String(), "\n"), maxFileText)
	if found.Truncated {
		s += "\n[there may be more matches: narrow the search or raise max_results]"
	}
	return s
}
