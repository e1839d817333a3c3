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

// userRoles and userStates are the values of the flags of the same names.
var (
	userRoles  = []string{"viewer", "user", "admin", "owner", "operator", "credential"}
	userStates = []string{"active", "suspended"}
)

func (a *app) userCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "user",
		Short: "Manage the users of your tenant",
		Long: `Manage the users of your tenant, for its admins and owners, and for API keys with the
scope "users". The first token of a person makes that person a user. Changes apply at
once to the user's tokens and to the API keys that the user made. Operators name
another tenant with --tenant.`,
		Example: `  cloud-sandbox user ls
  cloud-sandbox user add corp:248289761001 --name "Jane Doe" --role admin
  cloud-sandbox user set corp:248289761001 --state suspended
  cloud-sandbox user rm corp:248289761001`,
	}
	u := userCommands{app: a}
	cmd.PersistentFlags().StringVar(&u.tenant, "tenant", "", "tenant of the users, for operators (default your own)")
	cmd.AddCommand(u.list(), u.add(), u.set(), u.remove())
	clientFlags(cmd)
	return cmd
}

type userCommands struct {
	*app
	tenant string
}

func (u *userCommands) list() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List users, by ID",
		Example: `  cloud-sandbox user ls
  cloud-sandbox user ls --state suspended --json | jq -r '.[].user_id'
  cloud-sandbox user ls --tenant acme`,
		Args: Args(0, 0, "no arguments"),
		RunE: u.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			all, err := c.Users(cmd.Context(), u.tenant, state)
			if err != nil {
				return err
			}
			if wantsJSON(cmd) {
				return printAll(cmd, all)
			}
			return printUsers(cmd, all...)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&state, "state", "", "only active, suspended or removed users (default all but the removed)")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(append([]string{"removed"}, userStates...), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func printUsers(cmd *cobra.Command, all ...v1.User) error {
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "USER\tNAME\tROLE\tGIVEN\tSTATE\tSOURCE\tSEEN")
	for _, one := range all {
		given, seen := "no", "never"
		if one.RoleGiven {
			given = "yes"
		}
		if !one.LastSeenAt.IsZero() {
			seen = brief(time.Since(one.LastSeenAt)) + " ago"
		}
		fmt.Fprintln(t, row(one.ID, one.Name, one.Role, given, one.State, one.Source, seen))
	}
	return t.Flush()
}

func (u *userCommands) add() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add USER",
		Short: "Invite a user, or readmit a removed one",
		Long: `Invite a user by the ID that their tokens will say: NAME:SUB for one of the identity
provider NAME. An invitation is optional: a user's first token makes the user. --role
admits a user whose provider gives no role here.`,
		Example: `  cloud-sandbox user add corp:248289761001 --name "Jane Doe" --email jane@example.com --role admin
  cloud-sandbox user add corp:248289761001 --role owner --tenant acme`,
		Args:              Args(1, 1, "one USER"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	fields := userFlags(cmd)
	cmd.RunE = u.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
		asked := v1.UserRequest{ID: args[0]}
		given := fields()
		for to, said := range map[*string]*string{&asked.Name: given.Name, &asked.Email: given.Email, &asked.Role: given.Role} {
			if said != nil {
				*to = *said
			}
		}
		made, err := c.AddUser(cmd.Context(), u.tenant, asked)
		if err != nil {
			return err
		}
		return printMade(cmd, made, made.ID)
	})
	return cmd
}

// userFlags adds the flags for the fields of a User. The function that it returns
// gives the changes of the flags that were set.
func userFlags(cmd *cobra.Command) func() v1.UserChange {
	f := cmd.Flags()
	name := f.String("name", "", "for people")
	email := f.String("email", "", "address for display; no mail is sent to it")
	role := f.String("role", "", `viewer, user, admin, owner or operator, not above your own, or "credential" for the role in their tokens`)
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(userRoles, cobra.ShellCompDirectiveNoFileComp))
	return func() (given v1.UserChange) {
		for flag, field := range map[string]struct {
			to   **string
			said *string
		}{
			"name": {&given.Name, name}, "email": {&given.Email, email}, "role": {&given.Role, role},
		} {
			if f.Changed(flag) {
				*field.to = field.said
			}
		}
		return given
	}
}

func (u *userCommands) set() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set USER",
		Short: "Change the role or name of a user, suspend or reactivate the user",
		Long: `Change the role or name of a user, suspend or reactivate the user, at once. Tokens of
a suspended user are refused, and so are API keys that the user made. A role set here
overrides the role from an identity provider; it also bounds the user's API keys.`,
		Example: `  cloud-sandbox user set corp:248289761001 --role viewer
  cloud-sandbox user set corp:248289761001 --state suspended
  cloud-sandbox user set corp:248289761001 --state active --role credential`,
		Args:              Args(1, 1, "one USER"),
		ValidArgsFunction: u.complete,
	}
	fields := userFlags(cmd)
	state := cmd.Flags().String("state", "", "active or suspended")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(userStates, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = u.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
		given := fields()
		if cmd.Flags().Changed("state") {
			given.State = new(sandbox.UserState(*state))
		}
		if given == (v1.UserChange{}) {
			return usagef("say what to change: --role, --state, --name or --email")
		}
		changed, err := c.ChangeUser(cmd.Context(), u.tenant, args[0], given)
		if err != nil {
			return err
		}
		if wantsJSON(cmd) {
			return printJSON(cmd, changed)
		}
		return printUsers(cmd, changed)
	})
	return cmd
}

func (u *userCommands) remove() *cobra.Command {
	return &cobra.Command{
		Use:     "rm USER...",
		Aliases: []string{"remove", "delete"},
		Short:   "Remove users and revoke the API keys that they made",
		Long: `Remove users from the tenant and revoke the API keys that they made, at once. Their
present and future tokens are refused until they are invited again.`,
		Example: `  cloud-sandbox user rm corp:248289761001`,
		Args:    Args(1, -1, "one USER or more"),
		RunE: u.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return removeEach(cmd, args, func(id string) ([]string, error) {
				return []string{id}, c.RemoveUser(cmd.Context(), u.tenant, id)
			})
		}),
		ValidArgsFunction: u.complete,
	}
}

// complete completes the ID of a user.
func (u *userCommands) complete(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return u.suggest(cmd, given, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.Users(ctx, u.tenant, "")
		for _, one := range list {
			all = append(all, suggestion{one.ID, one.Name + " " + one.Role})
		}
		return all, err
	})
}
