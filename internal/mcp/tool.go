package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
)

// tool is one tool: its description for clients, and its implementation.
type tool struct {
	name, title, description string
	// calls are the API operations that it uses, besides creating the Session's Sandbox.
	// It is read-only if they all are.
	calls []*catalogue.Operation
	// destroys: it may overwrite or remove objects. repeats: it is idempotent. outside:
	// it reaches beyond the Sandbox.
	destroys, repeats, outside bool

	schema *jsonschema.Schema
	run    func(ctx context.Context, c *call, arguments json.RawMessage) (*sdk.CallToolResult, error)
}

// call is one call of a tool.
type call struct {
	*Session
	request *sdk.CallToolRequest
}

// define completes t with its implementation for arguments of type In.
func define[In any](t tool, run func(ctx context.Context, c *call, in In) (*sdk.CallToolResult, error)) tool {
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		panic(fmt.Sprintf("mcp: the arguments of %s: %v", t.name, err)) // a bug
	}
	for _, p := range schema.Properties {
		single(p)
	}
	t.schema = schema
	t.run = func(ctx context.Context, c *call, arguments json.RawMessage) (*sdk.CallToolResult, error) {
		var in In
		if err := json.Unmarshal(arguments, &in); err != nil {
			return nil, t.misused(err)
		}
		return run(ctx, c, in)
	}
	return t
}

// single reduces a property that may be null, because it is a pointer, to its other
// type: some models' providers allow only one. Leaving the property out means null.
func single(p *jsonschema.Schema) {
	others := slices.DeleteFunc(slices.Clone(p.Types), func(s string) bool { return s == "null" })
	if len(others) == 1 {
		p.Type, p.Types = others[0], nil
	}
}

// readsOnly reports whether the tool changes nothing.
func (t *tool) readsOnly() bool {
	return !slices.ContainsFunc(t.calls, func(o *catalogue.Operation) bool { return o.Changes })
}

// mayBeCalled reports whether a caller with these rights may use the tool at all.
func (t *tool) mayBeCalled(may func(sandbox.Scope) bool) bool {
	return !slices.ContainsFunc(t.calls, func(o *catalogue.Operation) bool { return !may(o.Scope) })
}

// add adds the tool to a server.
func (t tool) add(s *sdk.Server, of sessionOf) {
	resolved, err := t.schema.Resolve(nil)
	if err != nil {
		panic(fmt.Sprintf("mcp: the arguments of %s: %v", t.name, err)) // a bug
	}
	reads := t.readsOnly()
	s.AddTool(&sdk.Tool{
		Name: t.name, Title: t.title, Description: t.description, InputSchema: t.schema,
		Annotations: &sdk.ToolAnnotations{
			Title: t.title, ReadOnlyHint: reads, DestructiveHint: new(t.destroys && !reads),
			IdempotentHint: t.repeats || reads, OpenWorldHint: new(t.outside),
		},
	}, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		result, err := t.call(ctx, req, resolved, of)
		if err != nil {
			return failure(err), nil
		}
		return result, nil
	})
}

// call checks the arguments of a call and carries it out.
func (t *tool) call(ctx context.Context, req *sdk.CallToolRequest, resolved *jsonschema.Resolved, of sessionOf) (*sdk.CallToolResult, error) {
	ctx, session, done, err := of(ctx, req)
	if err != nil {
		return nil, err
	}
	defer done()
	select {
	case session.calls <- struct{}{}:
		defer func() { <-session.calls }()
	default:
		return nil, errTooManyCalls
	}
	arguments := req.Params.Arguments
	if len(bytes.TrimSpace(arguments)) == 0 || string(arguments) == "null" {
		arguments = json.RawMessage("{}")
	}
	var fields map[string]any
	if err := json.Unmarshal(arguments, &fields); err != nil {
		return nil, t.misused(err)
	}
	if err := resolved.Validate(fields); err != nil {
		return nil, t.misused(err)
	}
	result, err := t.run(ctx, &call{session, req}, arguments)
	if named, _ := fields["sandbox_id"].(string); err != nil && named == "" {
		err = session.lost(ctx, err)
	}
	return result, err
}

// misused is the error of a call with wrong arguments, with the tool's usage.
func (t *tool) misused(err error) error {
	return sandbox.Errorf(sandbox.Invalid, "%s was called with wrong arguments: %s. %s", t.name, reason(err), t.usage())
}

// reason returns the part of a validation error that states the mistake.
func reason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "validating "); i >= 0 {
		if _, rest, ok := strings.Cut(text[i:], ": "); ok {
			return rest
		}
	}
	return text
}

// usage lists the arguments of a tool.
func (t *tool) usage() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Call %s with an object of:", t.name)
	for _, name := range t.schema.PropertyOrder {
		p := t.schema.Properties[name]
		kind := p.Type
		if slices.Contains(t.schema.Required, name) {
			kind += ", required"
		}
		fmt.Fprintf(&b, "\n- %s (%s): %s", name, kind, p.Description)
	}
	return b.String()
}

// text is a result of text.
func text(s string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: s}}}
}

// object is a result that shows v as JSON.
func object(v any) (*sdk.CallToolResult, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return text(shorten(strings.TrimSpace(b.String()), maxText)), nil
}
