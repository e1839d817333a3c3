// Package mcptest helps tests of MCP clients and servers.
package mcptest

import (
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Call calls a tool. It returns the text of the result, and whether the result is an
// error; an error of the protocol fails the test.
func Call(t testing.TB, session *sdk.ClientSession, name string, arguments any) (text string, failed bool) {
	t.Helper()
	r, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, part := range r.Content {
		if s, ok := part.(*sdk.TextContent); ok {
			b.WriteString(s.Text)
		}
	}
	return b.String(), r.IsError
}
