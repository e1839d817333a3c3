//go:build linux && !client

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
)

// build is the output for one build.
type build struct {
	launch.Build
	Snapshots int `json:"snapshots"`
}

func buildsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "builds",
		Short: "List the builds of Cloud Sandbox that sandboxes here need, on the server",
		Long: `List the builds of Cloud Sandbox that sandboxes here need, on the server.

Saved memory can only be restored by the gVisor that saved it. So after an upgrade
the earlier build stays as long as a snapshot with memory or a paused session needs
it. Its sentry host runs as long as one of its sandboxes.

In a cluster with a key of builds, a build that the key has not signed is not
trusted, and is not started: see "cloud-sandbox cluster sign-build". --json has the
reason.`,
		Example: `  sudo cloud-sandbox builds`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("only root may read the programs of earlier builds: run this as root")
			}
			data, err := onFolder(cmd)
			if err != nil {
				return err
			}
			layout := launch.Layout{Root: data}
			here, err := layout.Builds(cmd.Context())
			if err != nil {
				return err
			}
			all := make([]build, len(here))
			if err := serve.WithNodeRecords(cmd.Context(), layout, func(records sandbox.NodeRecords) error {
				for i, b := range here {
					n, err := records.SnapshotsOfBuild(cmd.Context(), b.Name)
					if err != nil {
						return err
					}
					all[i] = build{b, n}
				}
				return nil
			}); err != nil {
				return err
			}
			var text bytes.Buffer
			t := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
			fmt.Fprintln(t, "BUILD\tGVISOR\tRUNNING\tBOOTS\tSNAPSHOTS")
			for _, b := range all {
				fmt.Fprintf(t, "%s\t%s\t%t\t%d\t%d\n", b.Name, cmp.Or(b.GVisor, "not trusted"), b.Host, b.Boots, b.Snapshots)
			}
			if err := t.Flush(); err != nil {
				return err
			}
			return cli.Print(cmd, all, string(bytes.TrimSpace(text.Bytes())))
		},
	}
	cli.JSONFlag(cmd)
	return cmd
}
