package cli

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// reachHelp explains how a command chooses its server or data folder; see through.
const reachHelp = `They call a server if --url, --api-key or --user-id is given, or CLOUD_SANDBOX_URL
or CLOUD_SANDBOX_API_KEY is set. Otherwise, or with %s, they work on the data folder
of this machine, as root, whether a server runs or not. To name a server and use
that flag is an error.`

// serverVariable names a server in the environment.
const serverVariable = "CLOUD_SANDBOX_URL"

// through calls remote for a command that goes through a server, and local for one
// that works on this machine's data folder. localFlags are valid only for the data
// folder. Naming both is an error. If neither is named, the data folder is used, and
// the standard error says so.
func (a *app) through(cmd *cobra.Command, localFlags []string, local func() error, remote func(*client.Client) error) error {
	asked, here := firstSet(cmd, config.FlagURL, config.FlagAPIKey, config.FlagUserID), firstSet(cmd, localFlags...)
	switch {
	case asked != "" && here != "":
		return usagef("--%s is for a server, and --%s for the data folder of this machine: give one", asked, here)
	case here != "" && a.getenv(serverVariable) != "":
		return usagef("--%s is for the data folder of this machine, and %s names a server: leave out the flag, or unset the variable", here, serverVariable)
	case firstSet(cmd, config.FlagData) != "":
		return local()
	case here != "":
		if err := a.printFolder(cmd, ""); err != nil {
			return err
		}
		return local()
	case asked == "" && a.getenv(serverVariable) == "" && a.getenv("CLOUD_SANDBOX_API_KEY") == "":
		if err := a.printFolder(cmd, "; --url names a server instead"); err != nil {
			return err
		}
		return local()
	}
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	return remote(c)
}

// firstSet returns the first of the flags that was set; empty: none.
func firstSet(cmd *cobra.Command, names ...string) (first string) {
	for _, name := range names {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			first = cmp.Or(first, name)
		}
	}
	return first
}

// printFolder prints the data folder that a command chose by default.
func (a *app) printFolder(cmd *cobra.Command, more string) error {
	data, err := config.DataFolder(nil, a.getenv)
	if err == nil {
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "on the data folder %s of this machine%s\n", data, more)
	}
	return err
}

// OnFolder is for a command that works only on a data folder. Without a named folder
// it refuses to run if the environment names a server, since that may belong to
// another installation, or else prints the default folder to the standard error.
func OnFolder(cmd *cobra.Command, getenv func(string) string) error {
	switch {
	case firstSet(cmd, config.FlagData) != "":
		return nil
	case getenv(serverVariable) != "" && getenv("CLOUD_SANDBOX_DATA") == "":
		return usagef("`%s` works on a data folder of this machine, and %s names a server: say which folder with --data", cmd.CommandPath(), serverVariable)
	}
	return (&app{getenv: getenv}).printFolder(cmd, "")
}
