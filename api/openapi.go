// Package api holds the contract that clients program against, as files that
// the gateway serves.
package api

import _ "embed"

// OpenAPI is the contract of the native REST API, OpenAPI 3.1 in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
