// Package mcp offers sandboxes to agents as the tools of an MCP server: over stdio by
// `cloud-sandbox mcp`, and over Streamable HTTP at /mcp of a server. Tools only call
// the public REST API, so its permissions, limits, audit log and errors apply to
// them.
package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Set is a set of tools.
type Set string

// The sets of tools.
const (
	Full   Set = "full"   // names of our own, everything that a Sandbox can do
	Claude Set = "claude" // names and inputs as of Claude Code's own tools
)

// Sets lists the sets of tools, the default first.
func Sets() []Set { return []Set{Full, Claude} }

// ParseSet reads the name of a set; empty: the default.
func ParseSet(name string) (Set, error) {
	if name == "" {
		return Full, nil
	}
	if !slices.Contains(Sets(), Set(name)) {
		return "", sandbox.Errorf(sandbox.Invalid, "no set of tools %q: it is one of %q", name, Sets())
	}
	return Set(name), nil
}

// toolsOf are the tools of a set.
func toolsOf(set Set) []tool {
	if set == Claude {
		return claudeTools()
	}
	return slices.Concat(runTools(), processTools(), fileTools(), sandboxTools())
}

// sessionOf returns the Session that a call belongs to, and the context that the call
// runs in. The context ends with ctx, and when no client waits for the answer any
// more.
type sessionOf func(ctx context.Context, req *sdk.CallToolRequest) (context.Context, *Session, context.CancelFunc, error)

// newServer returns an MCP server with a set of tools. It serves any number of
// sessions, and tells them its version.
func newServer(version string, set Set, of sessionOf) *sdk.Server {
	version = cmp.Or(strings.TrimPrefix(version, "v"), "unknown")
	s := sdk.NewServer(&sdk.Implementation{Name: "cloud-sandbox", Title: "Cloud Sandbox", Version: version}, &sdk.ServerOptions{
		Instructions: instructions(set),
		// The server offers only tools, and they do not change during a session.
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
	})
	var names []string
	for _, t := range toolsOf(set) {
		t.add(s, of)
		names = append(names, t.name)
	}
	s.AddReceivingMiddleware(knownTools(version, names))
	return s
}

// knownTools refuses calls of tools that this version does not have, for example by a
// client that remembers the tools of another version.
func knownTools(version string, names []string) sdk.Middleware {
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if call, ok := req.(*sdk.CallToolRequest); ok && !slices.Contains(names, call.Params.Name) {
				return nil, &jsonrpc.Error{
					Code:    jsonrpc.CodeInvalidParams,
					Message: fmt.Sprintf("unknown tool %.64q; the server has version %s, whose tools are %s", call.Params.Name, version, strings.Join(names, ", ")),
				}
			}
			return next(ctx, method, req)
		}
	}
}

func instructions(set Set) string {
	var b strings.Builder
	b.WriteString("These tools work in a Linux sandbox on a server, not on the user's machine: programs and files there are separate from the local ones. ")
	b.WriteString("The first call that needs a sandbox creates it, and later calls use the same one. It pauses when this session ends, with its files and running programs, and continues when a session with the same name begins. ")
	b.WriteString("The working directory is /workspace.")
	if set == Full {
		b.WriteString(" Tools with a sandbox_id use another sandbox when it is given.")
	}
	return b.String()
}

// maxCalls is the most concurrent calls of one Session.
const maxCalls = 16

var errTooManyCalls = sandbox.Errorf(sandbox.Exhausted, "this session has %d calls running already: wait until one has ended", maxCalls)

// failure returns err as a result for a model.
func failure(err error) *sdk.CallToolResult {
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: sentence(err)}}}
}

// sentence returns an error in words: its code, its cause, and when to retry.
func sentence(err error) string {
	var coded *sandbox.Error
	switch {
	case errors.Is(err, context.Canceled):
		return "the call was cancelled, and its program is ended"
	case !errors.As(err, &coded):
		return err.Error()
	}
	text := string(coded.Code) + ": " + coded.Detail
	if coded.RetryAfter > 0 {
		text += fmt.Sprintf("; try again in %v", coded.RetryAfter)
	}
	return text
}
