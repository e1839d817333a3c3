// Package api holds the contract that clients program against, as files that
// the gateway serves.
package api

import (
	_ "embed"
	"strings"
)

// OpenAPI is the contract of the native REST API, OpenAPI 3.1 in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte

// Operations returns the operationId of every operation of OpenAPI, by method
// and path, as "GET /health". It reads lines and knows how the file is laid out,
// which a test holds it to.
func Operations() map[string]string {
	all := map[string]string{}
	var path, method string
	for line := range strings.Lines(string(OpenAPI)) {
		text := strings.TrimLeft(line, " ")
		depth := len(line) - len(text)
		text = strings.TrimSpace(text)
		switch {
		case depth == 2 && strings.HasPrefix(text, "/"):
			path = strings.TrimSuffix(text, ":")
		case depth == 2 && text != "":
			path = ""
		case depth == 4:
			method = strings.ToUpper(strings.TrimSuffix(text, ":"))
		case depth == 6 && path != "":
			if id, ok := strings.CutPrefix(text, "operationId: "); ok {
				all[method+" "+path] = id
			}
		}
	}
	return all
}
