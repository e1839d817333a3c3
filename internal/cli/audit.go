package cli

import (
	"fmt"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// AuditList is the command that lists a Tenant's audit entries. The other audit
// commands work on a server's own log.
func AuditList(getenv func(string) string) *cobra.Command {
	return (&app{getenv: getenv}).listAuditCommand()
}

func (a *app) listAuditCommand() *cobra.Command {
	words := map[string]*string{"since": nil, "until": nil, "actor": nil, "operation": nil, "target": nil, "outcome": nil}
	var limit int
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List who did what in your tenant, newest first, here or on another machine",
		Long: `List who did what in your tenant, newest first: every call that may change
something, and every permission that was denied. It asks a server, for an admin,
or for an API key with the scope "audit".`,
		Example: `  cloud-sandbox audit ls --outcome denied
  cloud-sandbox audit ls --since 24h --target my-sandbox
  cloud-sandbox audit ls --limit 1000 --json | jq -r '.[].user' | sort | uniq -c`,
		Args: Args(0, 0, "no arguments"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			query, err := auditQuery(words, time.Now())
			if err != nil {
				return err
			}
			if limit < 1 {
				return usagef("--limit must be at least 1")
			}
			entries, err := c.Audit(cmd.Context(), query, limit)
			if err != nil {
				return err
			}
			return printAudit(cmd, entries)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	for name, usage := range map[string]string{
		"since":     "oldest entry: a time such as 2026-01-02T15:04:05Z, or an age such as 24h",
		"until":     "only entries before this time or age",
		"actor":     "only calls of this user, or of the API key with this ID",
		"operation": "only this operation, such as createSession",
		"target":    "only calls on this object, or on the sandbox with this ID",
		"outcome":   "only this outcome: ok, denied or failed",
	} {
		words[name] = f.String(name, "", usage)
	}
	f.IntVar(&limit, "limit", 100, "at most this many entries")
	_ = cmd.RegisterFlagCompletionFunc("outcome", cobra.FixedCompletions([]string{"ok", "denied", "failed"}, cobra.ShellCompDirectiveNoFileComp))
	clientFlags(cmd)
	return cmd
}

// auditQuery returns the query parameters, under the API's names, for the flags.
func auditQuery(words map[string]*string, now time.Time) (url.Values, error) {
	query := url.Values{}
	for name, value := range words {
		text := *value
		if text == "" {
			continue
		}
		if ago, err := time.ParseDuration(text); err == nil && (name == "since" || name == "until") {
			if ago < 0 {
				return nil, usagef("--%s must be a time, or an age of more than 0", name)
			}
			text = now.Add(-ago).UTC().Format(time.RFC3339Nano)
		}
		query.Set(name, text)
	}
	return query, nil
}

func printAudit(cmd *cobra.Command, entries []v1.AuditEntry) error {
	if wantsJSON(cmd) {
		return printAll(cmd, entries)
	}
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "AT\tUSER\tOPERATION\tTARGET\tOUTCOME\tFROM\tDETAIL")
	for _, e := range entries {
		outcome := e.Outcome
		if e.Code != "" {
			outcome += " (" + e.Code + ")"
		}
		fmt.Fprintln(t, row(e.At.UTC().Format(time.DateTime), e.User, e.Operation, e.Target, outcome, e.Remote, e.Detail))
	}
	return t.Flush()
}
