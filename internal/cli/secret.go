package cli

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

func (a *app) secretCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secret",
		Short: "Keep values that code in sandboxes can use but not see",
		Long: `Keep values that code in sandboxes can use but not see: the server adds the value of
a secret (create --secret) to a header of the sandbox's HTTPS requests to a host,
outside of the sandbox. No call returns the value of a secret.`,
		Example: `  cloud-sandbox secret set PAYMENTS_KEY <key.txt
  cloud-sandbox secret ls
  cloud-sandbox secret rm PAYMENTS_KEY`,
	}
	cmd.AddCommand(a.setSecretCommand(), a.listSecretsCommand(), a.deleteSecretsCommand())
	clientFlags(cmd)
	return cmd
}

func (a *app) setSecretCommand() *cobra.Command {
	var description, variable string
	var only []string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Make a secret, or give it another value",
		Long: `Make a secret, or give an existing secret another value, at once also for sandboxes
that use it. The value is read from standard input, without the line break at its
end, or from an environment variable: on the command line other users of this machine
could see it.`,
		Example: `  cloud-sandbox secret set PAYMENTS_KEY <key.txt
  cloud-sandbox secret set PAYMENTS_KEY --from-env PAYMENTS_KEY --description "test account"
  cloud-sandbox secret set PAYMENTS_KEY --host api.example.com <key.txt`,
		Args: Args(1, 1, "one NAME"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			value, err := a.secretValue(cmd, variable)
			if err != nil {
				return err
			}
			var told *string
			if cmd.Flags().Changed("description") {
				told = &description
			}
			var hosts *[]string
			if cmd.Flags().Changed("host") {
				hosts = &only
			}
			s, err := c.SetSecret(cmd.Context(), args[0], value, told, hosts)
			if err != nil {
				return err
			}
			return printMade(cmd, s, s.Name)
		}),
		ValidArgsFunction: a.firstSecret,
	}
	cmd.Flags().StringVar(&description, "description", "", "description of its purpose")
	cmd.Flags().StringSliceVar(&only, "host", nil, "the only host that it may be sent to, such as api.example.com or *.example.com; may be repeated (default any host, or unchanged)")
	cmd.Flags().StringVar(&variable, "from-env", "", "the environment variable that has the value")
	return cmd
}

// secretValue reads a value without showing it.
func (a *app) secretValue(cmd *cobra.Command, variable string) (string, error) {
	if variable != "" {
		value := a.getenv(variable)
		if value == "" {
			return "", usagef("the environment variable %s is not set", variable)
		}
		return value, nil
	}
	if f, ok := cmd.InOrStdin().(*os.File); ok && telemetry.IsTerminal(f) {
		return "", usagef("the value is shown when it is typed here: give it from a file (<FILE) or with --from-env")
	}
	raw, err := readText(cmd.InOrStdin(), "the value")
	if err != nil {
		return "", err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(raw, "\n"), "\r")
	if value == "" {
		return "", usagef("standard input is empty: give the value there, or with --from-env")
	}
	return value, nil
}

func (a *app) listSecretsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List secrets, without their values",
		Example: `  cloud-sandbox secret ls`,
		Args:    Args(0, 0, "no arguments"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			list, err := c.Secrets(cmd.Context())
			if err != nil {
				return err
			}
			return printSecrets(cmd, list)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	return cmd
}

func printSecrets(cmd *cobra.Command, list []v1.Secret) error {
	if wantsJSON(cmd) {
		return printAll(cmd, list)
	}
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "SECRET\tCHANGED\tHOSTS\tDESCRIPTION")
	for _, s := range list {
		fmt.Fprintln(t, row(s.Name, brief(time.Since(s.UpdatedAt))+" ago", hostsOf(s), s.Description))
	}
	return t.Flush()
}

// hostsOf returns the hosts that a Secret may be sent to, for a table.
func hostsOf(s v1.Secret) string {
	if len(s.Hosts) == 0 {
		return "any"
	}
	return strings.Join(s.Hosts, ",")
}

func (a *app) deleteSecretsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"delete"},
		Short:   "Delete secrets; sandboxes can no longer use them",
		Example: `  cloud-sandbox secret rm PAYMENTS_KEY`,
		Args:    Args(1, -1, "one NAME or more"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return removeEach(cmd, args, func(name string) ([]string, error) {
				return []string{name}, c.DeleteSecret(cmd.Context(), name)
			})
		}),
		ValidArgsFunction: a.secrets,
	}
	return cmd
}
