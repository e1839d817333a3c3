// Command cloud-sandbox turns a Linux machine into a private code-execution
// cloud. It is server and command line in one program.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := launch.Signals(context.Background())
	err := root().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	if !errors.Is(err, launch.ErrServer) { // it has told its error itself
		fmt.Fprintln(os.Stderr, "cloud-sandbox:", err)
	}
	os.Exit(1)
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "cloud-sandbox",
		Short:         "Run code that nobody should trust, strongly isolated, in milliseconds",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.PersistentFlags().String("data", "", "folder that keeps everything (default /var/lib/cloud-sandbox; environment CLOUD_SANDBOX_DATA)")
	cmd.AddCommand(serveCommand(), downCommand(), tokenCommand(), templateCommand())
	return cmd
}

// given returns the flags that were set on the command line, by name.
func given(cmd *cobra.Command) map[string]string {
	flags := map[string]string{}
	for _, name := range []string{"addr", "data", "dev", "log-level"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			flags[name] = f.Value.String()
		}
	}
	return flags
}
