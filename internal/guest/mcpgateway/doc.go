// Package mcpgateway is the command mcp-gateway of a Sandbox, which E2B's SDKs
// start: it runs MCP servers that the Template has, as programs that speak over
// stdin and stdout, and offers what all of them have together at /mcp on Port, to
// whoever has the token. It answers each request with JSON and keeps no sessions,
// so what servers would ask clients for, or tell them unasked, does not pass.
package mcpgateway
