//go:build linux && !client

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch/doctor"
)

func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find the faults of this machine that affect a server",
		Long: `Find the faults of this machine that affect a server, and say how to fix them:
kernel, rights, cgroups, namespaces, memory, limits, data folder, disk,
address, clock, and leftovers of a stopped server.

Each check is "ok", a "warning" or a "problem", which keeps a server or its
sandboxes from starting. With a problem the exit code is 1. It changes nothing.
Run it like the server: as root, with the same --data and --addr, and in the same
container or service.`,
		Example: `  sudo cloud-sandbox doctor
  sudo cloud-sandbox doctor --json | jq '.checks[] | select(.level != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			data, err := config.DataFolder(setFlags(cmd), os.Getenv)
			if err != nil {
				return err
			}
			addr, err := config.Address(setFlags(cmd), os.Getenv)
			if err != nil {
				return err
			}
			found := launch.Layout{Root: data}.Doctor(addr).Look()
			problems := 0
			var text bytes.Buffer
			for _, f := range found {
				fmt.Fprintf(&text, "%-8s %s: %s\n", f.Level, f.Check, f.Detail)
				if f.Fix != "" {
					fmt.Fprintf(&text, "%-8s %s\n", "", f.Fix)
				}
				if f.Level == doctor.Problem {
					problems++
				}
			}
			if err := cli.Print(cmd, map[string]any{"ok": problems == 0, "checks": found}, string(bytes.TrimSpace(text.Bytes()))); err != nil {
				return err
			}
			if problems > 0 {
				return errors.New("a server cannot run here yet: fix the problems above")
			}
			return nil
		},
	}
	cmd.Flags().String("addr", "", "address that the server will listen on (default localhost:8080)")
	cli.JSONFlag(cmd)
	return cmd
}
