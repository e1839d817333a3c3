// Package mcpgateway is the command mcp-gateway of a Sandbox, which E2B's SDKs
// start. It runs the Template's MCP servers as programs that use stdin and stdout,
// and serves all of them together at /mcp on Port, to clients that have the token.
// It answers each request with JSON and keeps no sessions. So requests and
// notifications from servers to clients are not supported.
package mcpgateway
