package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

func (a *app) exportCommand() *cobra.Command {
	var output string
	var quiet, withTemplate bool
	cmd := &cobra.Command{
		Use:   "export SNAPSHOT",
		Short: "Write a snapshot to a file that another server can import",
		Long: `Write a snapshot to one file, which this or another server imports: memory,
programs and files of the sandbox, compressed, with a checksum over all and the
server's signature. An export that fails leaves no file. The other server needs
the same image of the template; --with-template adds it to the file, some hundred
megabytes.

The file is not encrypted. It contains everything that was in the sandbox, also the
memory of its programs.`,
		Example: `  cloud-sandbox snapshot export s7d0f4w2kq9x1m5a8z3c6
  cloud-sandbox snapshot export s7d0f4w2kq9x1m5a8z3c6 -o monday.snapshot
  cloud-sandbox snapshot export s7d0f4w2kq9x1m5a8z3c6 --with-template
  cloud-sandbox snapshot export s7d0f4w2kq9x1m5a8z3c6 -o - | age -r age1... > monday.age`,
		Args: Args(1, 1, "one SNAPSHOT"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if output == "" {
				output = filepath.Base(args[0]) + ".snapshot"
			}
			return export(cmd, c, args[0], output, withTemplate, quiet)
		}),
		ValidArgsFunction: a.firstSnapshotID,
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write; - is standard output (default SNAPSHOT.snapshot)")
	cmd.Flags().BoolVar(&withTemplate, "with-template", false, "put the template's image into the file too")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress and no summary")
	return cmd
}

// exportMode is the mode of exported files, which hold a sandbox's memory.
const exportMode = 0o600

func export(cmd *cobra.Command, c *client.Client, id, output string, withTemplate, quiet bool) error {
	file, err := c.ExportSnapshot(cmd.Context(), id, withTemplate)
	if err != nil {
		return err
	}
	defer file.Close()
	t := &transfer{options: &copyOptions{quiet: quiet}, stderr: cmd.ErrOrStderr()}
	p := t.progress(id, -1)
	defer p.stop()
	if output == "-" {
		_, err := io.Copy(cmd.OutOrStdout(), p.reader(file))
		return err
	}
	n, err := replaceFile(output, exportMode, p.reader(file))
	if err != nil {
		return err
	}
	p.stop()
	if wantsJSON(cmd) {
		return printJSON(cmd, map[string]any{"snapshot_id": id, "file": output, "bytes": n})
	}
	if !quiet {
		fmt.Fprintln(cmd.ErrOrStderr(), clean(fmt.Sprintf("exported %s to %s: %s", id, output, size(n))))
	}
	return nil
}

func (a *app) importCommand() *cobra.Command {
	var name string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Import a snapshot from a file that export wrote, and print its ID",
		Long: `Import a snapshot from a file that export wrote, on this or another server, and print
the new snapshot's ID. Sandboxes start from it (create --snapshot).

The server refuses a file that was cut off or changed. It also refuses a file of a
server that it does not trust; its operator adds trust with "cloud-sandbox trust add".
The template's image must be on the server or in the file. A snapshot with memory needs
the same build of Cloud Sandbox.`,
		Example: `  cloud-sandbox snapshot import monday.snapshot
  cloud-sandbox snapshot import monday.snapshot --name monday
  cloud-sandbox create --snapshot "$(cloud-sandbox snapshot import monday.snapshot)"`,
		Args: Args(1, 1, "one FILE"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return importFile(cmd, c, args[0], name, quiet)
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "name it (default as it was named)")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return cmd
}

func importFile(cmd *cobra.Command, c *client.Client, path, name string, quiet bool) error {
	from, total := cmd.InOrStdin(), int64(-1)
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			total = info.Size()
		}
		from = f
	}
	t := &transfer{options: &copyOptions{quiet: quiet}, stderr: cmd.ErrOrStderr()}
	p := t.progress(path, total)
	defer p.stop()
	s, err := c.ImportSnapshot(cmd.Context(), name, p.reader(from), total)
	if err != nil {
		return err
	}
	p.stop()
	return printMade(cmd, s, s.ID)
}
