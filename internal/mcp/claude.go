package mcp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
)

const (
	defaultBash = 120_000 // milliseconds
	maxBash     = 600_000
	maxHead     = 250 // lines of grep
)

type bashInput struct {
	Command     string   `json:"command" jsonschema:"the command to run"`
	Timeout     *float64 `json:"timeout,omitempty" jsonschema:"timeout in milliseconds, 120000 by default and 600000 at most"`
	Description string   `json:"description,omitempty" jsonschema:"purpose of the command, in a few words"`
	Background  bool     `json:"run_in_background,omitempty" jsonschema:"whether to return at once while the command keeps running; task_output shows its output"`
}

type taskInput struct {
	TaskID string `json:"task_id" jsonschema:"the task_id from bash with run_in_background"`
}

type taskOutputInput struct {
	taskInput
	Offset *int64   `json:"offset,omitempty" jsonschema:"next_offset of the last look: only output after it is returned"`
	Wait   *float64 `json:"wait_seconds,omitempty" jsonschema:"how long to wait for output, 2 by default and 60 at most"`
}

type readInput struct {
	FilePath string `json:"file_path" jsonschema:"the file to read"`
	Offset   int    `json:"offset,omitempty" jsonschema:"the number of the first line to show"`
	Limit    int    `json:"limit,omitempty" jsonschema:"how many lines to show, 2000 by default"`
}

type writeInput struct {
	FilePath string `json:"file_path" jsonschema:"the file to write"`
	Content  string `json:"content" jsonschema:"the whole content of the file"`
}

type editInput struct {
	FilePath   string `json:"file_path" jsonschema:"the file to change"`
	OldString  string `json:"old_string" jsonschema:"the text to replace"`
	NewString  string `json:"new_string" jsonschema:"the text that replaces it"`
	ReplaceAll bool   `json:"replace_all,omitempty" jsonschema:"whether to replace every occurrence of old_string"`
}

type claudeGlobInput struct {
	Pattern string `json:"pattern" jsonschema:"the pattern to match files against, such as **/*.js"`
	Path    string `json:"path,omitempty" jsonschema:"the folder to search, /workspace by default"`
}

type claudeGrepInput struct {
	Pattern    string `json:"pattern" jsonschema:"a regular expression (RE2)"`
	Path       string `json:"path,omitempty" jsonschema:"the file or folder to search, /workspace by default"`
	Glob       string `json:"glob,omitempty" jsonschema:"only files such as *.js"`
	Type       string `json:"type,omitempty" jsonschema:"only files of this type, such as js, py, rust, go"`
	OutputMode string `json:"output_mode,omitempty" jsonschema:"content shows lines, files_with_matches (the default) shows paths, count shows how many lines match in each file"`
	Before     int    `json:"-B,omitempty" jsonschema:"lines to show before each match"`
	After      int    `json:"-A,omitempty" jsonschema:"lines to show after each match"`
	Around     int    `json:"-C,omitempty" jsonschema:"lines to show before and after each match"`
	Context    int    `json:"context,omitempty" jsonschema:"the same as -C"`
	Numbers    *bool  `json:"-n,omitempty" jsonschema:"whether to show line numbers, true by default"`
	IgnoreCase bool   `json:"-i,omitempty" jsonschema:"whether case does not matter"`
	Only       bool   `json:"-o,omitempty" jsonschema:"whether to show only the part of each line that matches"`
	HeadLimit  *int   `json:"head_limit,omitempty" jsonschema:"how many results to show: 250 by default, 0 for all, 10000 at most"`
	Offset     int    `json:"offset,omitempty" jsonschema:"how many results to skip first"`
}

// claudeTools have the names and inputs of Claude Code's own tools, which models know.
func claudeTools() []tool {
	return []tool{
		define(tool{
			name: "bash", title: "Bash",
			description: "Runs a bash command in the sandbox and returns its output. The working directory is kept from one command to the next; variables are not.",
			calls:       []*catalogue.Operation{catalogue.Execute, catalogue.StartProcess}, destroys: true, outside: true,
		}, bash),
		define(tool{
			name: "task_output", title: "Task output",
			description: "Shows the output of a command that runs in the background, and whether it still runs.",
			calls:       []*catalogue.Operation{catalogue.ReadProcessOutput, catalogue.GetProcess},
		}, func(ctx context.Context, c *call, in taskOutputInput) (*sdk.CallToolResult, error) {
			id, err := c.sandbox(ctx, "")
			if err != nil {
				return nil, err
			}
			return c.look(ctx, id, in.TaskID, in.Offset, in.Wait)
		}),
		define(tool{
			name: "task_stop", title: "Stop a task",
			description: "Ends a command that runs in the background.",
			calls:       []*catalogue.Operation{catalogue.EndProcess}, destroys: true, repeats: true,
		}, func(ctx context.Context, c *call, in taskInput) (*sdk.CallToolResult, error) {
			id, err := c.sandbox(ctx, "")
			if err != nil {
				return nil, err
			}
			if _, err := c.client.EndProcess(ctx, id, in.TaskID); err != nil {
				return nil, err
			}
			return text("The task has ended."), nil
		}),
		define(tool{
			name: "read", title: "Read",
			description: "Reads a file of the sandbox: text with line numbers, or an image.",
			calls:       []*catalogue.Operation{catalogue.ReadFile},
		}, func(ctx context.Context, c *call, in readInput) (*sdk.CallToolResult, error) {
			return c.readFile(ctx, readFileInput{Path: in.FilePath, Offset: in.Offset, Limit: in.Limit})
		}),
		define(tool{
			name: "write", title: "Write",
			description: "Writes a file of the sandbox, and replaces an existing one.",
			calls:       []*catalogue.Operation{catalogue.WriteFile}, destroys: true, repeats: true,
		}, func(ctx context.Context, c *call, in writeInput) (*sdk.CallToolResult, error) {
			return c.writeFile(ctx, writeFileInput{Path: in.FilePath, Content: in.Content})
		}),
		define(tool{
			name: "edit", title: "Edit",
			description: "Replaces exact text in a file of the sandbox.",
			calls:       []*catalogue.Operation{catalogue.ReplaceInFiles, catalogue.StatFile}, destroys: true,
		}, func(ctx context.Context, c *call, in editInput) (*sdk.CallToolResult, error) {
			return c.editFile(ctx, editFileInput{Path: in.FilePath, OldString: in.OldString, NewString: in.NewString, ReplaceAll: in.ReplaceAll})
		}),
		define(tool{
			name: "glob", title: "Glob",
			description: "Finds files of the sandbox by a pattern for their names.",
			calls:       []*catalogue.Operation{catalogue.SearchFiles},
		}, func(ctx context.Context, c *call, in claudeGlobInput) (*sdk.CallToolResult, error) {
			found, err := c.search(ctx, "", v1.SearchRequest{FileSelection: v1.FileSelection{Path: in.Path, Globs: []string{in.Pattern}}, FilesOnly: true})
			if err != nil {
				return nil, err
			}
			return text(filesOf(found)), nil
		}),
		define(tool{
			name: "grep", title: "Grep",
			description: "Searches the files of the sandbox for a regular expression.",
			calls:       []*catalogue.Operation{catalogue.SearchFiles},
		}, claudeGrep),
	}
}

// keepFolder starts a command in the folder where the previous one ended. It is on a
// line of its own, so that it also works before a command that bash cannot parse.
const keepFolder = `cd "$(cat /tmp/.mcp-cwd 2>/dev/null || pwd)" 2>/dev/null; trap 'pwd >/tmp/.mcp-cwd' EXIT` + "\n"

func bash(ctx context.Context, c *call, in bashInput) (*sdk.CallToolResult, error) {
	if in.Background {
		p, err := c.start(ctx, "", v1.StartProcessRequest{Command: keepFolder + in.Command}, false)
		if err != nil {
			return nil, err
		}
		return text(fmt.Sprintf("The command runs in the background; task_id %s. Look at it with task_output, end it with task_stop.", p.ID)), nil
	}
	ms := float64(defaultBash)
	if in.Timeout != nil {
		if ms = *in.Timeout; ms < 1 || ms > maxBash {
			return nil, sandbox.Errorf(sandbox.Invalid, "timeout must be at least 1 and at most %d milliseconds; run_in_background is for a command that takes longer", maxBash)
		}
	}
	return c.executeFor(ctx, "", new(ms/1000), v1.ExecuteRequest{Code: keepFolder + in.Command, Language: "bash"})
}

func claudeGrep(ctx context.Context, c *call, in claudeGrepInput) (*sdk.CallToolResult, error) {
	skip := in.Offset
	head := min(maxHead, maxFound-skip)
	if in.HeadLimit != nil {
		if head = *in.HeadLimit; head == 0 {
			head = maxFound - skip
		}
	}
	if min(head, skip, in.Before, in.After, in.Around, in.Context) < 0 || head > maxFound-skip {
		return nil, sandbox.Errorf(sandbox.Invalid, "head_limit, offset, -A, -B, -C and context must not be negative, and head_limit and offset together at most %d", maxFound)
	}
	switch in.OutputMode {
	case "", "content", "count", "files_with_matches":
	default:
		return nil, sandbox.Errorf(sandbox.Invalid, "output_mode is content, files_with_matches or count, not %.32q", in.OutputMode)
	}
	before, after := max(in.Before, in.Around, in.Context), max(in.After, in.Around, in.Context)
	paths := in.OutputMode != "content" && in.OutputMode != "count"
	r := v1.SearchRequest{
		FileSelection: v1.FileSelection{Path: in.Path, Globs: globsOf(in.Glob, in.Type)},
		Pattern:       in.Pattern, IgnoreCase: in.IgnoreCase, FilesOnly: paths, MaxResults: new(head + skip), ContextLines: max(before, after),
	}
	if in.OutputMode == "count" {
		r.MaxResults, r.ContextLines = new(maxFound), 0
	}
	found, err := c.search(ctx, "", r)
	if err != nil {
		return nil, err
	}
	if in.OutputMode == "count" {
		return text(countsOf(found)), nil
	}
	found.Matches = found.Matches[min(skip, len(found.Matches)):]
	if paths {
		return text(filesOf(found)), nil
	}
	for i := range found.Matches {
		m := &found.Matches[i]
		m.Before = m.Before[max(0, len(m.Before)-before):]
		m.After = m.After[:min(len(m.After), after)]
		if in.Only {
			m.Text = new(spanned(*m))
		}
	}
	return text(linesOf(found, in.Numbers == nil || *in.Numbers)), nil
}

// spanned returns the first match within the line of a match.
func spanned(m v1.Match) string {
	line := lineOf(m)
	if len(m.Spans) == 0 {
		return line
	}
	s := m.Spans[0]
	start := min(max(s.Start, 0), len(line))
	return line[start:min(max(s.End, start), len(line))]
}

// countsOf returns the number of matching lines of each file.
func countsOf(found v1.Matches) string {
	var b strings.Builder
	for i := 0; i < len(found.Matches); {
		path, n := found.Matches[i].Path, 0
		for ; i < len(found.Matches) && found.Matches[i].Path == path; i++ {
			n++
		}
		fmt.Fprintf(&b, "%s:%d\n", path, n)
	}
	return ended(&b, found)
}

// extensions lists the file extensions of a type. A type that is absent here is its
// own extension.
var extensions = map[string][]string{
	"rust": {"rs"}, "python": {"py"}, "js": {"js", "jsx", "mjs", "cjs"}, "ts": {"ts", "tsx", "mts", "cts"}, "typescript": {"ts", "tsx"},
	"javascript": {"js", "jsx"}, "markdown": {"md"}, "ruby": {"rb"}, "cpp": {"cpp", "cc", "cxx", "h", "hpp"}, "c": {"c", "h"}, "yaml": {"yaml", "yml"},
	"html": {"html", "htm"}, "kotlin": {"kt", "kts"}, "sh": {"sh", "bash"},
}

// globsOf returns the globs that select files by a glob or a type.
func globsOf(glob, kind string) []string {
	if glob != "" {
		return []string{glob}
	}
	if kind == "" {
		return nil
	}
	ends := extensions[kind]
	if ends == nil {
		ends = []string{kind}
	}
	globs := make([]string, 0, len(ends))
	for _, end := range slices.Sorted(slices.Values(ends)) {
		globs = append(globs, "*."+end)
	}
	return globs
}
