package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

func (a *app) volumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "Keep files that outlive sandboxes and are mounted into them",
		Long: `Keep files that outlive sandboxes: a volume is mounted into any number of them at
once (create --volume, run --volume), and all see the same files. It stays
until it is deleted.`,
		Example: `  cloud-sandbox volume create datasets --size-mb 2048
  cloud-sandbox run --volume datasets:/data -- sh -c 'date >> /data/log'
  cloud-sandbox volume ls
  cloud-sandbox volume rm datasets`,
	}
	cmd.AddCommand(a.createVolumeCommand(), a.listVolumesCommand(), a.showVolumeCommand(), a.deleteVolumesCommand())
	clientFlags(cmd)
	return cmd
}

func (a *app) createVolumeCommand() *cobra.Command {
	var size int64
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make an empty volume, and print its name",
		Example: `  cloud-sandbox volume create datasets
  cloud-sandbox volume create models --size-mb 20480 --json`,
		Args: Args(1, 1, "one NAME"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if cmd.Flags().Changed("size-mb") && size < 1 {
				return usagef("--size-mb must be 1 or more")
			}
			v, err := c.CreateVolume(cmd.Context(), args[0], size)
			if err != nil {
				return err
			}
			return printMade(cmd, v, v.Name)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().Int64Var(&size, "size-mb", 0, "size limit of all its files in MiB (default 1024)")
	return cmd
}

func (a *app) listVolumesCommand() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List volumes and their sizes",
		Example: `  cloud-sandbox volume ls
  cloud-sandbox volume ls --json | jq '.[].used_bytes'`,
		Args: Args(0, 0, "no arguments"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			list, err := c.Volumes(cmd.Context())
			if err != nil {
				return err
			}
			return printVolumes(cmd, list, quiet)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	return cmd
}

func printVolumes(cmd *cobra.Command, list []v1.Volume, quiet bool) error {
	if wantsJSON(cmd) {
		return printAll(cmd, list)
	}
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	if !quiet {
		fmt.Fprintln(t, "VOLUME\tID\tCREATED\tUSED\tOF\tFILES")
	}
	for _, v := range list {
		if quiet {
			fmt.Fprintln(t, row(v.Name))
			continue
		}
		fmt.Fprintln(t, row(v.Name, v.ID, brief(time.Since(v.CreatedAt))+" ago", used(v), fmt.Sprintf("%d MiB", v.SizeMB), files(v)))
	}
	return t.Flush()
}

// used returns a volume's usage; empty when it is unknown.
func used(v v1.Volume) string {
	if v.UsedBytes == nil {
		return ""
	}
	return mebibytes(*v.UsedBytes)
}

func files(v v1.Volume) string {
	if v.Files == nil {
		return ""
	}
	return fmt.Sprint(*v.Files)
}

func (a *app) showVolumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "info VOLUME",
		Short:   "Show one volume",
		Example: `  cloud-sandbox volume info datasets`,
		Args:    Args(1, 1, "one VOLUME"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			v, err := c.Volume(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if wantsJSON(cmd) {
				return printJSON(cmd, v)
			}
			return printVolumes(cmd, []v1.Volume{v}, false)
		}),
		ValidArgsFunction: a.volumes,
	}
}

func (a *app) deleteVolumesCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "rm VOLUME...",
		Aliases: []string{"delete"},
		Short:   "Delete volumes that no sandbox has mounted, with all that is in them",
		Example: `  cloud-sandbox volume rm datasets`,
		Args:    Args(1, -1, "one VOLUME or more"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return removeEach(cmd, args, func(name string) ([]string, error) {
				return []string{name}, c.DeleteVolume(cmd.Context(), name)
			})
		}),
		ValidArgsFunction: a.volumes,
	}
}

// volumes completes names of volumes that are not given yet.
func (a *app) volumes(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.suggest(cmd, args, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.Volumes(ctx)
		for _, v := range list {
			all = append(all, suggestion{v.Name, used(v)})
		}
		return all, err
	})
}

// mounted completes VOLUME: of a flag.
func (a *app) mounted(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return begins(a.volumes(cmd, nil, begun))(":")
}

// volumeMounts is a flag that may be given several times, VOLUME:PATH each.
type volumeMounts []v1.VolumeMount

func (m *volumeMounts) String() string { return "" }

func (m *volumeMounts) Type() string { return "mount" }

func (m *volumeMounts) Set(text string) error {
	name, path, _ := strings.Cut(text, ":")
	if name == "" || !strings.HasPrefix(path, "/") {
		return errors.New("write VOLUME:PATH, for example datasets:/data")
	}
	*m = append(*m, v1.VolumeMount{Volume: name, Path: path})
	return nil
}
