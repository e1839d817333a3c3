//go:build !rivals

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
)

// benchCommand returns the command bench, which measures a running server.
func benchCommand() *cobra.Command { return cli.BenchCommand(os.Getenv, nil) }
