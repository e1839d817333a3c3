package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// changed prints the sandbox that a command has changed: its record, or its ID.
func changed(cmd *cobra.Command, s v1.Sandbox, err error) error {
	if err != nil {
		return err
	}
	return printMade(cmd, s, s.ID)
}

// each changes one sandbox after the other, and reports all failures. It stops when
// the server is unreachable.
func each(cmd *cobra.Command, ids []string, change func(ctx context.Context, id string) (v1.Sandbox, error)) error {
	var failed []error
	for _, id := range ids {
		s, err := change(cmd.Context(), id)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", id, err))
			if errors.Is(err, sandbox.Unavailable) || cmd.Context().Err() != nil {
				break // the others would fail alike
			}
			continue
		}
		if err := changed(cmd, s, nil); err != nil {
			return err
		}
	}
	return printAllButLast(cmd, failed)
}

func (a *app) pauseCommand() *cobra.Command {
	var filesOnly bool
	cmd := &cobra.Command{
		Use:   "pause SANDBOX...",
		Short: "Save sandboxes and free their memory and processors",
		Long: `Save sandboxes to disk, with memory, programs, terminals and files, and free their
memory and processors. Any use resumes them, and so does resume. Connections to the
outside are not kept. A sandbox that cannot be saved keeps running.`,
		Example: `  cloud-sandbox pause my-agent
  cloud-sandbox pause --files-only my-agent
  cloud-sandbox ls -q --state running | xargs -r cloud-sandbox pause`,
		Args: Args(1, -1, "one SANDBOX or more"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return each(cmd, args, func(ctx context.Context, id string) (v1.Sandbox, error) { return c.Pause(ctx, id, filesOnly) })
		}),
		ValidArgsFunction: a.sandboxes,
	}
	cmd.Flags().BoolVar(&filesOnly, "files-only", false, "leave memory and programs out; it boots when it resumes")
	clientFlags(cmd)
	return cmd
}

func (a *app) resumeCommand() *cobra.Command {
	var filesOnly bool
	cmd := &cobra.Command{
		Use:   "resume SANDBOX...",
		Short: "Continue paused sandboxes",
		Long: `Continue paused sandboxes where they stopped, and wait until they run. A running
sandbox stays as it is.`,
		Example: `  cloud-sandbox resume my-agent
  cloud-sandbox resume --files-only my-agent
  cloud-sandbox ls -q --state paused | xargs -r cloud-sandbox resume`,
		Args: Args(1, -1, "one SANDBOX or more"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return each(cmd, args, func(ctx context.Context, id string) (v1.Sandbox, error) { return c.Resume(ctx, id, filesOnly) })
		}),
		ValidArgsFunction: a.sandboxes,
	}
	cmd.Flags().BoolVar(&filesOnly, "files-only", false, "boot from the saved files, without memory and programs")
	clientFlags(cmd)
	return cmd
}

func (a *app) forkCommand() *cobra.Command {
	r := v1.ForkRequest{}
	var count int
	var timeout seconds
	var metadata pairs
	cmd := &cobra.Command{
		Use:   "fork SANDBOX",
		Short: "Start copies of a sandbox as it is now",
		Long: `Start copies of a running or paused sandbox as it is now, with its memory,
programs and files, and print their IDs. The original does not change. Each copy has
an ID, tokens and randomness of its own.`,
		Example: `  cloud-sandbox fork my-agent
  cloud-sandbox fork my-agent --count 5 --name try
  cloud-sandbox fork my-agent --count 3 --metadata role=experiment --timeout 10m`,
		Args: Args(1, 1, "one SANDBOX"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			r.Count, r.TimeoutSeconds = &count, v1.SecondsOf(timeout.duration())
			if len(metadata.values) > 0 {
				r.Metadata = map[string]*string{}
			}
			for k, v := range metadata.values {
				r.Metadata[k] = &v
			}
			return fork(cmd, c, args[0], r)
		}),
		ValidArgsFunction: a.firstSandbox,
	}
	f := cmd.Flags()
	f.IntVarP(&count, "count", "n", 1, "how many")
	f.StringVar(&r.Name, "name", "", "name of the copy; several copies get numbers")
	f.Var(&timeout, "timeout", "time limit of the copies (default as the original)")
	f.Var(&metadata, "metadata", "labels of the copies, besides the original's")
	clientFlags(cmd)
	return cmd
}

// fork prints the copies that run, and reports each that does not.
func fork(cmd *cobra.Command, c *client.Client, id string, r v1.ForkRequest) error {
	forks, err := c.Fork(cmd.Context(), id, r)
	if err != nil {
		return err
	}
	var failed []error
	for i, f := range forks {
		if f.Error != nil {
			failed = append(failed, fmt.Errorf("copy %d: %s", i+1, f.Error.Message))
			continue
		}
		if !wantsJSON(cmd) {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), clean(f.ID)); err != nil {
				return err
			}
		}
	}
	if wantsJSON(cmd) {
		if err := printAll(cmd, forks); err != nil {
			return err
		}
		if len(failed) > 0 { // the record of each has its error
			failed = []error{fmt.Errorf("%d of %d copies failed to start", len(failed), len(forks))}
		}
	}
	return printAllButLast(cmd, failed)
}
