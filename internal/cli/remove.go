package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

func (a *app) removeCommand() *cobra.Command {
	var missing bool
	cmd := &cobra.Command{
		Use:     "rm SANDBOX...",
		Aliases: []string{"end"},
		Short:   "End sandboxes",
		Long: `End sandboxes. Their programs, files and memory are gone; the record, which ls
--all shows, is kept for seven days. An ended sandbox stays as it is.

After a failure the remaining sandboxes are still ended.`,
		Example: `  cloud-sandbox rm my-agent
  cloud-sandbox ls -q --metadata team=blue | xargs -r cloud-sandbox rm`,
		Args: Args(1, -1, "one SANDBOX or more"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return remove(cmd, c, args, missing)
		}),
		ValidArgsFunction: a.sandboxes,
	}
	cmd.Flags().BoolVar(&missing, "ignore-missing", false, "succeed also if the sandbox does not exist")
	clientFlags(cmd)
	return cmd
}

func remove(cmd *cobra.Command, c *client.Client, ids []string, ignoreMissing bool) error {
	var ended []v1.Sandbox
	var failed []error
	for _, id := range ids {
		s, err := c.End(cmd.Context(), id)
		switch {
		case err == nil:
			ended = append(ended, s)
		case ignoreMissing && errors.Is(err, sandbox.NotFound):
			continue
		case errors.Is(err, sandbox.Unavailable), cmd.Context().Err() != nil:
			return err // the others would fail alike
		default:
			failed = append(failed, fmt.Errorf("%s: %w", id, err))
			continue
		}
		if !wantsJSON(cmd) {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), clean(s.ID)); err != nil {
				return err
			}
		}
	}
	if wantsJSON(cmd) {
		if err := printAll(cmd, ended); err != nil {
			return err
		}
	}
	return printAllButLast(cmd, failed)
}

// printAllButLast reports several failures: it prints all but the last, and returns the last
// for the command to end with.
func printAllButLast(cmd *cobra.Command, failed []error) error {
	for i, err := range failed {
		if i == len(failed)-1 {
			return err
		}
		printError(cmd, err)
	}
	return nil
}

// removeEach calls one for each name and prints the names that it returns as removed,
// in JSON one list of all. The first failure ends it.
func removeEach(cmd *cobra.Command, names []string, one func(name string) ([]string, error)) error {
	gone := []string{}
	var failed error
	for _, name := range names {
		removed, err := one(name)
		if err != nil {
			failed = fmt.Errorf("%s: %w", name, err)
			break
		}
		gone = append(gone, removed...)
		for _, r := range removed {
			if wantsJSON(cmd) {
				break
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), clean(r)); err != nil {
				return err
			}
		}
	}
	if wantsJSON(cmd) {
		if err := printJSON(cmd, gone); err != nil {
			return err
		}
	}
	return failed
}
