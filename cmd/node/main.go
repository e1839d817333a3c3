//go:build linux

// Command node runs sandboxes on its machine: one role of "cloud-sandbox serve" as a
// process of its own.
package main

import (
	"os"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(serve.Main(config.RoleNode, version)) }
