package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/launch"
	"github.com/cloud-sandbox/cloud-sandbox/internal/serve"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

const (
	// base is the Template that every installation has.
	base = "base"
	// codeInterpreter is the Template that E2B's code interpreter asks for.
	codeInterpreter = "code-interpreter-v1"
)

// dataPackages are what code-interpreter-v1 has beyond base.
var dataPackages = []string{
	"fonts-dejavu-core", "python3-matplotlib", "python3-numpy", "python3-pandas", "python3-requests", "python3-scipy", "python3-sklearn",
}

func templateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "template", Short: "Build and find the root filesystems that sandboxes start from"}
	cmd.AddCommand(templateBuildCommand(), templateListCommand(), templateRemoveCommand(), templatePathCommand())
	return cmd
}

// templates opens the Template store of the data folder.
func templates(cmd *cobra.Command) (*template.Store, error) {
	data, err := config.DataFolder(given(cmd), os.Getenv)
	if err != nil {
		return nil, err
	}
	return serve.OpenTemplates(launch.Layout{Root: data})
}

func templateBuildCommand() *cobra.Command {
	var asked templateFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "build [NAME[:TAG]]",
		Short: "Build a template, if it is not built already",
		Long: `Build a template, if it is not built already.

What it is made of is its --source:

  oci:REF        an image of a registry, of a Debian-like system
  debian:SUITE   the packages of a suite, for example bookworm
  tar:FILE       a root filesystem in an archive, plain, gzip or zstd
  dir:FOLDER     a root filesystem in a folder
  base:REF       REF where its registry answers, Debian packages where none does

Images and suites get the tools of base (Python, Node.js, git, curl and others)
and what --package names; archives, folders and images with --bare stay as they
are. The template "base" is made of base:$SANDBOX_IMAGE (python:3.11-slim).
The template "code-interpreter-v1" is made of Debian packages, if nothing else is
said, with numpy, pandas, matplotlib, scipy, scikit-learn and requests; until it
is built, base stands in for it.

With --start a shell command runs in the background of every sandbox of the
template, from its first moment on; with --ready a sandbox is handed out only
once that command succeeds, tried for up to a minute.

Every build makes a version, named by the hash of its content. NAME means the
tag "latest". All tenants may use the template, unless it is --private. Needs
root.`,
		Example: `  sudo cloud-sandbox template build base
  sudo cloud-sandbox template build code-interpreter-v1
  sudo cloud-sandbox template build base --source debian:bookworm --force
  sudo cloud-sandbox template build web:1.2 --source oci:python:3.12-slim --package postgresql-client \
      --file ./app.py:/srv/app.py --env PORT=8000 \
      --start 'python3 /srv/app.py' --ready 'curl -sf localhost:8000'
  sudo cloud-sandbox template build tiny --source tar:/tmp/rootfs.tar.gz`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := base
			if len(args) > 0 {
				name = args[0]
			}
			ref, err := template.ParseRef("", name)
			if err != nil {
				return err
			}
			if name == codeInterpreter && asked.source == "" {
				// The libraries of a distribution are for its own Python.
				asked.source = template.Debian("").String()
				asked.packages = append(asked.packages, dataPackages...)
			}
			recipe, err := asked.recipe()
			if err != nil {
				return err
			}
			store, err := templates(cmd)
			if err != nil {
				return err
			}
			return buildTemplate(cmd, &template.Builder{Store: store, Force: force, NPMRegistry: config.NPMRegistry(os.Getenv)}, ref, recipe)
		},
	}
	asked.add(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "build it although it is there")
	return cmd
}

func buildTemplate(cmd *cobra.Command, builder *template.Builder, ref template.Ref, recipe template.Recipe) error {
	out, began := cmd.ErrOrStderr(), time.Now()
	image, err := builder.Make(cmd.Context(), ref, recipe, nil, printProgress(out, began))
	if err != nil {
		return err
	}
	if image.Cached {
		fmt.Fprintf(out, "template %s is there: %s, %d MiB\n", ref, image.Digest[:12], image.Size>>20)
		return nil
	}
	fmt.Fprintf(out, "template %s built in %v: %s, %d MiB, from %s\n", ref, time.Since(began).Round(time.Second), image.Digest[:12], image.Size>>20, image.Source)
	return nil
}

// templateFlags are what a template is asked to be made of.
type templateFlags struct {
	source        string
	packages      []string
	files, env    []string
	start, ready  string
	bare, private bool
}

func (f *templateFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.source, "source", "", "what it is made of, see above (default base:$SANDBOX_IMAGE)")
	flags.StringArrayVar(&f.packages, "package", nil, "a package of the distribution to add; may be repeated")
	flags.StringArrayVar(&f.files, "file", nil, "a file to put in, HERE:THERE or HERE:THERE:MODE, for example app.py:/srv/app.py:0755; may be repeated")
	flags.StringArrayVar(&f.env, "env", nil, "an environment variable of its processes, NAME=VALUE; may be repeated")
	flags.StringVar(&f.start, "start", "", "shell command that runs in every sandbox of it")
	flags.StringVar(&f.ready, "ready", "", "shell command that succeeds once --start has come up")
	flags.BoolVar(&f.bare, "bare", false, "leave an image as it is, without the tools of base")
	flags.BoolVar(&f.private, "private", false, "hide it from tenants")
}

func (f *templateFlags) recipe() (template.Recipe, error) {
	r := template.Recipe{
		Packages: f.packages, Env: map[string]string{}, Start: f.start, Ready: f.ready, Bare: f.bare, Private: f.private,
	}
	source := f.source
	if source == "" {
		image, err := config.SandboxImage(os.Getenv)
		if err != nil {
			return r, err
		}
		source = template.Base(image).String()
	}
	var err error
	if r.Source, err = template.ParseSource(localSource(source)); err != nil {
		return r, err
	}
	for _, pair := range f.env {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return r, fmt.Errorf("--env %q is not NAME=VALUE", pair)
		}
		r.Env[name] = value
	}
	for _, text := range f.files {
		file, err := readTemplateFile(text)
		if err != nil {
			return r, err
		}
		r.Files = append(r.Files, file)
	}
	return r, r.Check()
}

// localSource makes the path of a tar: or dir: source absolute.
func localSource(source string) string {
	kind, path, ok := strings.Cut(source, ":")
	if !ok || kind != "tar" && kind != "dir" {
		return source
	}
	if abs, err := filepath.Abs(path); err == nil && path != "" {
		return kind + ":" + abs
	}
	return source
}

// readTemplateFile reads what --file names: HERE:THERE or HERE:THERE:MODE.
func readTemplateFile(text string) (template.File, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 2 && len(parts) != 3 {
		return template.File{}, fmt.Errorf("--file %q is not HERE:THERE or HERE:THERE:MODE", text)
	}
	info, err := os.Stat(parts[0])
	if err != nil {
		return template.File{}, fmt.Errorf("--file %q: %w", text, err)
	}
	file := template.File{Path: parts[1], Mode: info.Mode().Perm()}
	if file.Content, err = os.ReadFile(parts[0]); err != nil {
		return template.File{}, fmt.Errorf("--file %q: %w", text, err)
	}
	if len(parts) == 3 {
		mode, err := strconv.ParseUint(parts[2], 8, 32)
		if err != nil {
			return template.File{}, fmt.Errorf("--file %q: the mode is an octal number, for example 0755", text)
		}
		file.Mode = fs.FileMode(mode)
	}
	return file, nil
}

func templateListCommand() *cobra.Command {
	var asJSON, versions bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the templates that are built",
		Example: `  cloud-sandbox template ls
  cloud-sandbox template ls --versions --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := templates(cmd)
			if err != nil {
				return err
			}
			listed, err := store.List("")
			if err != nil {
				return err
			}
			if versions {
				listed, err = allVersions(store, listed)
				if err != nil {
					return err
				}
			}
			if asJSON {
				return printTemplatesJSON(cmd.OutOrStdout(), listed)
			}
			return printTemplates(cmd.OutOrStdout(), listed)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&versions, "versions", false, "list every version and not only what tags mean")
	return cmd
}

// allVersions replaces tags by all versions of their templates.
func allVersions(store *template.Store, tags []template.Listed) (all []template.Listed, err error) {
	seen := map[string]bool{}
	for _, l := range tags {
		if seen[l.Name] {
			continue
		}
		seen[l.Name] = true
		found, err := store.Versions("", l.Name)
		if errors.Is(err, sandbox.NotFound) { // it was built before there were versions
			found, err = []template.Listed{l}, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func printTemplates(w io.Writer, listed []template.Listed) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TEMPLATE\tVERSION\tSIZE\tBUILT\tSOURCE")
	for _, l := range listed {
		name := l.Ref.String()
		if l.Digest() != "" {
			name = l.Name
		}
		fmt.Fprintf(table, "%s\t%s\t%d MiB\t%s\t%s\n", name, l.Image.Digest[:12], l.Size>>20, l.CreatedAt.Format(time.DateTime), l.Source)
	}
	return table.Flush()
}

func printTemplatesJSON(w io.Writer, listed []template.Listed) error {
	out := json.NewEncoder(w)
	for _, l := range listed {
		err := out.Encode(struct {
			Template string `json:"template"`
			template.Image
		}{l.Ref.String(), l.Image})
		if err != nil {
			return err
		}
	}
	return nil
}

func templateRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME[:TAG|@VERSION]...",
		Short: "Remove templates, tags or versions",
		Long: `Remove templates, tags or versions.

A bare name removes the template with all its tags and versions. A version that
sandboxes run from is not removed, nor one that paused sessions or snapshots, of
whatever tenant, need: end or delete them first. Needs root.`,
		Example: `  sudo cloud-sandbox template rm web
  sudo cloud-sandbox template rm web:1.2`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if os.Geteuid() != 0 {
				return errors.New("removing a template needs root: run it as root")
			}
			store, err := templates(cmd)
			if err != nil {
				return err
			}
			for _, name := range args {
				gone, err := store.Remove("", name)
				if err != nil {
					return err
				}
				for _, r := range gone {
					fmt.Fprintln(cmd.OutOrStdout(), "removed", r)
				}
			}
			return nil
		},
	}
}

// printProgress shows one line that changes on a terminal, and elsewhere a line
// a stage and every few seconds.
func printProgress(w io.Writer, began time.Time) func(template.Progress) {
	const every = 5 * time.Second
	terminal := telemetry.IsTerminal(w)
	var stage string
	var shown time.Time
	return func(p template.Progress) {
		line := fmt.Sprintf("template: %4.0fs  %s", time.Since(began).Seconds(), p)
		switch {
		case terminal && p.Stage == stage:
			fmt.Fprintf(w, "\r\x1b[K%s", strings.TrimRight(line, "\n"))
		case terminal && stage != "":
			fmt.Fprintf(w, "\n%s", line)
		case terminal:
			fmt.Fprint(w, line)
		case p.Stage != stage || time.Since(shown) >= every:
			fmt.Fprintln(w, line)
		default:
			return
		}
		stage, shown = p.Stage, time.Now()
	}
}

func templatePathCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "path NAME[:TAG|@VERSION]",
		Short:   "Print the path of a template's root filesystem image",
		Example: "  cloud-sandbox template path base",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := templates(cmd)
			if err != nil {
				return err
			}
			digest, err := store.Resolve(cmd.Context(), "", args[0])
			if err != nil {
				return err
			}
			path, err := store.Path(digest)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), path)
			return nil
		},
	}
}
