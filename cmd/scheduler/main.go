//go:build linux

// Command scheduler chooses the nodes that sandboxes start on: one role of "cloud-sandbox
// serve" as a process of its own.
package main

import (
	"os"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
)

// version is set by the build.
var version = "dev"

func main() { os.Exit(serve.Main(config.RoleScheduler, version)) }
