package cli

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
)

// reachHelp says which of two a command works on; see through.
const reachHelp = `They go through a server, as the identity that calls it, when --url, --api-key or
--user-id says which or the environment does (CLOUD_SANDBOX_URL,
CLOUD_SANDBOX_API_KEY). Otherwise, or with %s, they work on the data folder
of this machine, as root, while a server runs on it or not.`

// through calls remote for a command that is to go through a server, and local
// for one that works on this machine's data folder. A flag is stronger than the
// environment; localFlags are those that only the data folder understands.
func (a *app) through(cmd *cobra.Command, localFlags []string, local func() error, remote func(*client.Client) error) error {
	asked, here := "", ""
	for _, name := range []string{config.FlagURL, config.FlagAPIKey, config.FlagUserID} {
		if cmd.Flags().Changed(name) {
			asked = cmp.Or(asked, name)
		}
	}
	for _, name := range localFlags {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			here = cmp.Or(here, name)
		}
	}
	switch {
	case asked != "" && here != "":
		return usagef("--%s is for a server, and --%s for the data folder of this machine: give one", asked, here)
	case asked == "" && (here != "" || a.getenv("CLOUD_SANDBOX_URL") == "" && a.getenv("CLOUD_SANDBOX_API_KEY") == ""):
		return local()
	}
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	return remote(c)
}
