package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
)

// place is one end of a copy: a local path, or one in a sandbox.
type place struct {
	sandbox string // empty: local
	path    string
}

func (p place) local() bool { return p.sandbox == "" }

// stream reports whether it is standard input or output.
func (p place) stream() bool { return p.local() && p.path == "-" }

func (p place) String() string {
	if p.local() {
		return p.path
	}
	return p.sandbox + ":" + p.path
}

// parsePlace reads PATH or SANDBOX:PATH. A text with a slash before its first colon,
// as ./a:b, is a local path, and so is C:\a on Windows. An empty path in a sandbox is
// the folder that relative paths are relative to.
func parsePlace(text string) (place, error) {
	name, in, remote := strings.Cut(text, ":")
	switch {
	case text == "":
		return place{}, usagef("a path is empty")
	case !remote || strings.ContainsAny(name, "/"+string(filepath.Separator)) || filepath.VolumeName(text) != "":
		return place{path: text}, nil
	case name == "":
		return place{}, usagef("%q has no sandbox before its colon: write SANDBOX:PATH, or ./%s for a file here", text, text)
	case in == "":
		in = "."
	}
	return place{name, in}, nil
}

// contents reports whether a directory's contents are meant, not itself.
func (p place) contents() bool {
	return p.path == "." || strings.HasSuffix(p.path, "/.")
}

// copied is the result of a copy.
type copied struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Files       int64  `json:"files"`
	Directories int64  `json:"directories"`
	Links       int64  `json:"links"`
	Skipped     int64  `json:"skipped"` // sockets, devices, and links that point outside
	Bytes       int64  `json:"bytes"`
}

func (d copied) String() string {
	text := fmt.Sprintf("copied %s to %s: %s, %s", d.Source, d.Destination, counted(d.Files, "file"), size(d.Bytes))
	if d.Skipped > 0 {
		text += fmt.Sprintf("; %d left out", d.Skipped)
	}
	return text
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

type copyOptions struct {
	quiet    bool
	allLinks bool
	maxGiB   float64
}

func (a *app) copyCommand() *cobra.Command {
	var o copyOptions
	cmd := &cobra.Command{
		Use:   "cp SOURCE... DESTINATION",
		Short: "Copy files and directories into a sandbox and out of it",
		Long: `Copy files and directories into a sandbox and out of it. One side is SANDBOX:PATH,
the other a path here; - is standard input or output. Relative paths in a sandbox
begin at /workspace.

A directory is copied whole, with permissions, times and symbolic links. If
DESTINATION is a directory, the copy gets the name of SOURCE in it; SOURCE/. means
the content of a directory. Files that exist are replaced. Sockets, pipes and
devices are left out.

Data from a sandbox is not trusted: nothing is written outside of the DESTINATION,
and symbolic links that lead out of it are left out, and counted. After Ctrl-C,
files that were copied stay; no file is left incomplete.`,
		Example: `  cloud-sandbox cp data.csv my-agent:
  cloud-sandbox cp src/ tests/ my-agent:/workspace/app
  cloud-sandbox cp my-agent:/workspace/app/. ./app
  cloud-sandbox cp my-agent:results.json - | jq .
  tar cz . | cloud-sandbox cp - my-agent:/tmp/all.tgz`,
		Args: Args(2, -1, "a SOURCE or more, and a DESTINATION"),
		RunE: a.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return o.all(cmd, c, args[:len(args)-1], args[len(args)-1])
		}),
		ValidArgsFunction: a.eitherPath,
	}
	f := cmd.Flags()
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress and no summary")
	f.BoolVar(&o.allLinks, "all-links", false, "also create links that lead out of the DESTINATION")
	f.Float64Var(&o.maxGiB, "max-gib", 16, "stop a copy from a sandbox after this size in GiB")
	clientFlags(cmd)
	return cmd
}

// all copies every source, up to the first failure.
func (o *copyOptions) all(cmd *cobra.Command, c *client.Client, sources []string, destination string) error {
	to, err := parsePlace(destination)
	if err != nil {
		return err
	}
	if !(o.maxGiB > 0 && o.maxGiB <= 1<<20) {
		return usagef("--max-gib must be more than 0")
	}
	from := make([]place, len(sources))
	for i, source := range sources {
		if from[i], err = parsePlace(source); err != nil {
			return err
		}
		if err := checkCopy(from[i], to); err != nil {
			return err
		}
	}
	t := &transfer{client: c, options: o, stdin: cmd.InOrStdin(), stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr()}
	t.many = len(from) > 1
	did := []copied{}
	for _, p := range from {
		done, err := t.one(cmd.Context(), p, to)
		if err != nil {
			return err
		}
		did = append(did, done)
		if !o.quiet && !wantsJSON(cmd) {
			fmt.Fprintln(cmd.ErrOrStderr(), clean(done.String()))
		}
	}
	if wantsJSON(cmd) && !to.stream() {
		return printJSON(cmd, did)
	}
	return nil
}

func checkCopy(from, to place) error {
	switch {
	case from.local() && to.local():
		return usagef("neither %s nor %s is in a sandbox: write SANDBOX:PATH for the path in a sandbox", from, to)
	case !from.local() && !to.local():
		return usagef("both %s and %s are in sandboxes: copy to a file here first", from, to)
	}
	return nil
}

// transfer is the copy of one command.
type transfer struct {
	client         *client.Client
	options        *copyOptions
	many           bool // sources: the destination is a directory
	stdin          io.Reader
	stdout, stderr io.Writer
}

func (t *transfer) one(ctx context.Context, from, to place) (copied, error) {
	done := copied{Source: from.String(), Destination: to.String()}
	var err error
	if from.local() {
		err = t.upload(ctx, from, to, &done)
	} else {
		err = t.download(ctx, from, to, &done)
	}
	return done, err
}

// within returns the destination of a copy called name: inside to if that is a
// directory, as isDir reports, or else to itself.
func (t *transfer) within(to place, name string, isDir bool) (string, error) {
	if t.many && !isDir {
		return "", usagef("more than one SOURCE, and %s is not a directory", to)
	}
	if !isDir && !strings.HasSuffix(to.path, "/") {
		return to.path, nil
	}
	if name == "" || name == "." || name == "/" || name == ".." {
		return "", usagef("the copy in %s needs a name: write it after the directory", to)
	}
	if to.local() {
		return filepath.Join(to.path, name), nil
	}
	return path.Join(to.path, name), nil
}

// remoteDir reports whether a path in a sandbox is a directory, or a link to one. A
// missing path is not.
func (t *transfer) remoteDir(ctx context.Context, p place) (bool, error) {
	e, err := t.client.Stat(ctx, p.sandbox, p.path)
	switch {
	case errors.Is(err, sandbox.NotFound):
		// The sandbox itself may be missing: that must be reported now.
		_, err := t.client.Get(ctx, p.sandbox)
		return false, err
	case err != nil:
		return false, err
	case e.Type != "symlink":
		return e.Type == "directory", nil
	}
	_, err = t.client.ListFiles(ctx, p.sandbox, p.path)
	switch sandbox.CodeOf(err) {
	case sandbox.Invalid, sandbox.NotFound, sandbox.Conflict:
		return false, nil
	}
	return err == nil, err
}

func localDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}
