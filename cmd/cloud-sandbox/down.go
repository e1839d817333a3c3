//go:build linux && !client

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
)

func downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End every sandbox and helper process that a stopped server left running",
		Long: `End every sandbox and helper process that a stopped server left running.

Sandboxes outlive the server on purpose. After this nothing of Cloud Sandbox runs
on the machine; the data folder stays. Stop the server first.`,
		Example: "  sudo cloud-sandbox down",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("ending sandboxes needs root: run it as root")
			}
			data, err := config.DataFolder(setFlags(cmd), os.Getenv)
			if err != nil {
				return err
			}
			layout := launch.Layout{Root: data}
			if _, err := os.Stat(data); errors.Is(err, os.ErrNotExist) {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing runs:", data, "does not exist")
				return nil
			}
			lock, err := layout.Lock()
			if errors.Is(err, launch.ErrInUse) {
				return fmt.Errorf("the server at %s still runs: stop it first (Ctrl-C or SIGTERM), then run this again", data)
			}
			if err != nil {
				return err
			}
			defer lock.Close()
			began := time.Now()
			if err := layout.Down(cmd.Context()); err != nil {
				return err
			}
			ended, err := serve.RecordDown(cmd.Context(), layout)
			if errors.Is(err, serve.ErrManagersAway) {
				fmt.Fprintf(cmd.OutOrStdout(), "everything ended in %v\n", time.Since(began).Round(time.Millisecond))
				fmt.Fprintf(cmd.ErrOrStderr(), "the records of the sandboxes are not updated: %v. They are updated when this node has started again, or has been away for a day.\n", err)
				return nil
			}
			if err != nil {
				return fmt.Errorf("all sandboxes ended, but their records could not be updated: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "everything ended in %v; sandboxes ended: %d\n", time.Since(began).Round(time.Millisecond), ended)
			return nil
		},
	}
}
