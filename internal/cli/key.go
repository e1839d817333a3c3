package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// Keys are the API keys of one Tenant that commands work on: of a *client.Client, or
// of this machine's data folder. Methods are as the Client's.
type Keys interface {
	CreateKey(ctx context.Context, k v1.KeyRequest) (v1.Key, error)
	Keys(ctx context.Context) ([]v1.Key, error)
	RotateKey(ctx context.Context, id string, overlap time.Duration) (v1.Key, error)
	RevokeKey(ctx context.Context, id string) error
}

// KeyCommand returns the command key. local calls use with the Keys of this
// machine's data folder, of the Tenant that the flag "tenant" names.
func KeyCommand(getenv func(string) string, local func(cmd *cobra.Command, tenant string, use func(Keys) error) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Make, list, rotate and revoke API keys",
		Long:  "Make, list, rotate and revoke API keys.\n\n" + fmt.Sprintf(reachHelp, "--tenant or --data"),
		Example: `  cloud-sandbox key create --name ci --scope read,write
  cloud-sandbox key ls
  sudo cloud-sandbox key create --tenant ops --role operator`,
	}
	k := keyCommands{app: &app{getenv: getenv}, local: local}
	clientFlags(cmd)
	cmd.PersistentFlags().StringVar(&k.tenant, "tenant", "default", "tenant of the keys, in the data folder of this machine")
	cmd.AddCommand(k.create(), k.list(), k.rotate(), k.revoke())
	return cmd
}

type keyCommands struct {
	*app
	local  func(cmd *cobra.Command, tenant string, use func(Keys) error) error
	tenant string
}

// with is the RunE of a command that uses Keys.
func (k *keyCommands) with(work func(cmd *cobra.Command, keys Keys, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return k.through(cmd, []string{"tenant", "data"}, func() error {
			return k.local(cmd, k.tenant, func(keys Keys) error { return work(cmd, keys, args) })
		}, func(c *client.Client) error { return work(cmd, c, args) })
	}
}

func (k *keyCommands) create() *cobra.Command {
	var key v1.KeyRequest
	var life time.Duration
	var scopes []string
	var admin bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an API key and print it, once",
		Example: `  cloud-sandbox key create --name ci --scope read,write --expires-in 720h
  sudo cloud-sandbox key create --admin
  sudo cloud-sandbox key create --tenant ops --role operator`,
		Args: Args(0, 0, "no arguments"),
		RunE: k.with(func(cmd *cobra.Command, keys Keys, _ []string) error {
			if admin {
				key.Role = string(sandbox.RoleAdmin)
			}
			if life < 0 || life > 0 && life < time.Second {
				return usagef("--expires-in must be at least 1s")
			}
			key.ExpiresInSeconds = v1.SecondsOf(life)
			for _, s := range scopes {
				key.Scopes = append(key.Scopes, sandbox.Scope(s))
			}
			made, err := keys.CreateKey(cmd.Context(), key)
			if err != nil {
				return err
			}
			return printNewKey(cmd, made)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&key.Name, "name", "command line", "label that says its purpose")
	f.BoolVar(&admin, "admin", false, "for an admin, who may also mint tokens")
	f.StringVar(&key.Role, "role", "", "viewer, user, admin, owner or operator, which manages all tenants (default user, and through a server the caller's)")
	f.StringSliceVar(&scopes, "scope", nil, fmt.Sprintf("its scopes, of %q (default all scopes of its role)", sandbox.Scopes()))
	f.DurationVar(&life, "expires-in", 0, "how long it is valid (default for ever)")
	cmd.MarkFlagsMutuallyExclusive("admin", "role")
	return cmd
}

// printNewKey prints only the secret to the output, so that a script can read it.
func printNewKey(cmd *cobra.Command, k v1.Key) error {
	if wantsJSON(cmd) {
		return printJSON(cmd, k)
	}
	if p := k.Previous; p != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "the secret that ends in %s is valid until %s\n", clean(p.Hint), p.ValidUntil.Local().Format(time.DateTime))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "key %s, role %s, scopes %s; it is not shown again:\n", clean(k.ID), clean(k.Role), clean(fmt.Sprint(k.Scopes)))
	_, err := fmt.Fprintln(cmd.OutOrStdout(), clean(k.Secret))
	return err
}

func (k *keyCommands) list() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List API keys, newest first, without their secrets",
		Example: `  cloud-sandbox key ls
  sudo cloud-sandbox key ls --tenant acme --json`,
		Args: Args(0, 0, "no arguments"),
		RunE: k.with(func(cmd *cobra.Command, keys Keys, _ []string) error {
			all, err := keys.Keys(cmd.Context())
			if err != nil {
				return err
			}
			if wantsJSON(cmd) {
				return printJSON(cmd, append([]v1.Key{}, all...))
			}
			return printKeys(cmd, all)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}

func printKeys(cmd *cobra.Command, all []v1.Key) error {
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "KEY\tNAME\tENDS IN\tROLE\tSCOPES\tBY\tCREATED\tEXPIRES\tUSED")
	day := func(at time.Time) string {
		if at.IsZero() {
			return "never"
		}
		return at.Local().Format(time.DateTime)
	}
	for _, k := range all {
		fmt.Fprintln(t, row(k.ID, k.Name, k.Hint, k.Role, fmt.Sprint(k.Scopes), k.CreatedBy, day(k.CreatedAt), day(k.ExpiresAt), day(k.LastUsedAt)))
	}
	return t.Flush()
}

func (k *keyCommands) rotate() *cobra.Command {
	var overlap time.Duration
	cmd := &cobra.Command{
		Use:   "rotate KEY",
		Short: "Give an API key another secret and print it, once",
		Long: `Give an API key, by its ID, another secret and print it, once. The old secret stays
valid for --overlap, so that its users can switch; with 0 it becomes invalid at once,
and a running server refuses it within a second.`,
		Example: `  cloud-sandbox key rotate kx0zqk3v9a1b2c3d4e5f6 --overlap 1h
  sudo cloud-sandbox key rotate kx0zqk3v9a1b2c3d4e5f6 --tenant acme`,
		Args: Args(1, 1, "one KEY"),
		RunE: k.with(func(cmd *cobra.Command, keys Keys, args []string) error {
			rotated, err := keys.RotateKey(cmd.Context(), args[0], overlap)
			if err != nil {
				return err
			}
			return printNewKey(cmd, rotated)
		}),
		ValidArgsFunction: k.complete,
	}
	cmd.Flags().DurationVar(&overlap, "overlap", sandbox.DefaultKeyOverlap, "how long the old secret stays valid")
	return cmd
}

func (k *keyCommands) revoke() *cobra.Command {
	return &cobra.Command{
		Use:     "rm KEY...",
		Aliases: []string{"revoke", "delete"},
		Short:   "Revoke API keys; a running server refuses them within a second",
		Example: `  cloud-sandbox key rm kx0zqk3v9a1b2c3d4e5f6
  sudo cloud-sandbox key rm kx0zqk3v9a1b2c3d4e5f6 --tenant acme`,
		Args: Args(1, -1, "one KEY or more"),
		RunE: k.with(func(cmd *cobra.Command, keys Keys, args []string) error {
			return removeEach(cmd, args, func(id string) ([]string, error) { return []string{id}, keys.RevokeKey(cmd.Context(), id) })
		}),
		ValidArgsFunction: k.complete,
	}
}

// complete completes the ID of one of the caller's keys at a server.
func (k *keyCommands) complete(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return k.suggest(cmd, given, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.Keys(ctx)
		for _, key := range list {
			all = append(all, suggestion{key.ID, key.Name + " " + key.Role})
		}
		return all, err
	})
}
