//go:build rivals

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/tests/perf"
)

// benchCommand returns the command bench, which also measures servers that it starts
// itself, beside Docker and bare runsc.
func benchCommand() *cobra.Command { return cli.BenchCommand(os.Getenv, new(perf.Servers)) }
