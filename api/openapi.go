// Package api holds the contract that clients program against, as files that
// the gateway serves.
package api

import _ "embed"

// OpenAPI is the contract of the native REST API, OpenAPI 3.1 in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte

// DocsHTML is the same for people: one page without scripts, made from
// OpenAPI by `go test ./api -update`.
//
//go:embed docs.html
var DocsHTML []byte
