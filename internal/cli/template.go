package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Templates are the templates that commands work on: of the identity at a server, or
// of this machine's data folder.
type Templates interface {
	// Templates lists them by name. TemplateVersions lists the versions of the template
	// that a name means, newest first. RemoveTemplate returns the removed ones.
	Templates(ctx context.Context) ([]v1.Template, error)
	TemplateVersions(ctx context.Context, name string) ([]v1.Template, error)
	RemoveTemplate(ctx context.Context, name string) (v1.RemovedTemplates, error)
	// BuildTemplate builds a template and reports each step. A stage is one word for
	// several steps; empty: the line stands for itself.
	BuildTemplate(ctx context.Context, t TemplateBuild, tell func(stage, line string)) (BuiltTemplate, error)
}

// TemplateBuild is a request to build a Template.
type TemplateBuild struct {
	v1.TemplateRequest
	Private bool // hidden from tenants; a Tenant's own template always is
	Put     []PutFile
	// DockerfileAt is the path of a Dockerfile; empty: no Dockerfile. Context is the
	// folder that it copies from; empty: the folder of the Dockerfile.
	DockerfileAt, Context string
}

// BuiltTemplate is the result of a build.
type BuiltTemplate struct {
	Template  string `json:"template"`
	Version   string `json:"version"`
	Source    string `json:"source"`
	SizeBytes int64  `json:"size_bytes"`
	Cached    bool   `json:"cached"` // it existed already
}

const buildHelp = `Build a template, if it is not built already.

It is built from its --source:

  oci:REF        an image of a registry, of a Debian-like system
  debian:SUITE   the packages of a suite, for example bookworm
  tar:FILE       a root filesystem in an archive, or an image that "docker save"
                 wrote; plain, gzip or zstd
  dir:FOLDER     a root filesystem in a folder
  base:REF       the image REF, or Debian packages if its registry does not answer;
                 only in the data folder

Suites get the tools of base (Python, Node.js, git, curl and others), and so do
images in the data folder; through a server an image stays unchanged. --package adds
packages to suites and images, unless --bare is given: through a server by apt-get in
a sandbox. Archives and folders stay unchanged.

Or it is built from a --dockerfile, through a server, in a sandbox. The Dockerfile has
one stage, and begins with an image or a template (FROM base). It copies files of its
--context, without files that .dockerignore names. Its last USER and WORKDIR apply to
commands in sandboxes of the template. CMD and ENTRYPOINT are the start command,
unless --start names one.

The template "base" is built from base:$SANDBOX_IMAGE (python:3.11-slim).
The template "code-interpreter-v1" is by default built from packages of Debian 13,
with numpy, pandas, matplotlib, Pillow, scipy, scikit-learn and requests; until it is
built, base replaces it. "claude" and "codex" are base with the newest Claude Code and
Codex of npm, and "desktop" is a desktop of Debian 13 for E2B's desktop SDK.

With --start a shell command runs in the background of every sandbox of the template
from its start. With --ready a sandbox is handed out only once that command succeeds;
it is tried for up to a minute.

Every build makes a version, named by the hash of its content. NAME means the
tag "latest". Through a server the template belongs to the caller's tenant, and
Ctrl-C cancels the build. In the data folder it is for all tenants, unless it is
--private.`

// TemplateCommand returns the command template. local calls use with the
// Templates of this machine's data folder.
func TemplateCommand(getenv func(string) string, local func(cmd *cobra.Command, use func(Templates) error) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "Build, list and remove the root filesystems that sandboxes start from",
		Long:  "Build, list and remove the root filesystems that sandboxes start from.\n\n" + fmt.Sprintf(reachHelp, "--data"),
		Example: `  cloud-sandbox template build web --source oci:python:3.12-slim --package ffmpeg
  cloud-sandbox template ls
  sudo cloud-sandbox template build base`,
	}
	t := templateCommands{app: &app{getenv: getenv}, local: local}
	clientFlags(cmd)
	cmd.AddCommand(t.build(), t.list(), t.remove())
	return cmd
}

type templateCommands struct {
	*app
	local func(cmd *cobra.Command, use func(Templates) error) error
}

// with returns the RunE of a command that uses Templates. localFlags are valid only
// for the data folder.
func (t *templateCommands) with(localFlags []string, work func(cmd *cobra.Command, templates Templates, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return t.through(cmd, append(localFlags, "data"), func() error {
			return t.local(cmd, func(templates Templates) error { return work(cmd, templates, args) })
		}, func(c *client.Client) error { return work(cmd, remoteTemplates{c}, args) })
	}
}

func (t *templateCommands) build() *cobra.Command {
	var asked TemplateBuild
	var files []string
	var verbose bool
	env, buildArgs := pairs{getenv: t.getenv}, pairs{getenv: t.getenv}
	cmd := &cobra.Command{
		Use:   "build [NAME[:TAG]]",
		Short: "Build a template, if it is not built already",
		Long:  buildHelp,
		Example: `  cloud-sandbox template build web:1.2 --source oci:python:3.12-slim --package postgresql-client \
      --file ./app.py:/srv/app.py --env PORT=8000 \
      --start 'python3 /srv/app.py' --ready 'curl -sf localhost:8000'
  cloud-sandbox template build app --dockerfile ./Dockerfile --build-arg VERSION=3
  cloud-sandbox template build tiny --source tar:/tmp/rootfs.tar.gz
  sudo cloud-sandbox template build base --source debian:bookworm --force
  sudo cloud-sandbox template build claude`,
		Args: Args(0, 1, "one NAME at most"),
		RunE: t.with([]string{"private"}, func(cmd *cobra.Command, templates Templates, args []string) error {
			if len(args) > 0 {
				asked.Template = args[0]
			}
			var err error
			asked.Env, asked.BuildArgs = env.values, buildArgs.values
			if asked.Put, err = putFiles(files); err != nil {
				return err
			}
			if err := asked.checkDockerfile(); err != nil {
				return err
			}
			return buildTemplate(cmd, templates, asked, verbose)
		}),
		ValidArgsFunction: t.complete,
	}
	f := cmd.Flags()
	f.StringVar(&asked.Source, "source", "", "source of the template, see above (in the data folder default base:$SANDBOX_IMAGE)")
	f.StringVar(&asked.DockerfileAt, "dockerfile", "", "a Dockerfile to build it from, in place of --source; through a server")
	f.StringVar(&asked.Context, "context", "", "the folder that the Dockerfile copies from (default the Dockerfile's folder)")
	f.Var(&buildArgs, "build-arg", "set an ARG of the Dockerfile; KEY alone copies the local variable; may be repeated")
	f.StringArrayVar(&asked.Packages, "package", nil, "a package of the distribution to add; may be repeated")
	f.StringArrayVar(&files, "file", nil, "a file to put in, HERE:THERE or HERE:THERE:MODE, for example app.py:/srv/app.py:0755; may be repeated")
	f.Var(&env, "env", "set an environment variable of its processes; KEY alone copies the local variable; may be repeated")
	f.StringVar(&asked.Start, "start", "", "shell command that runs in every sandbox of it")
	f.StringVar(&asked.Ready, "ready", "", "shell command that succeeds once --start has come up")
	f.BoolVar(&asked.Bare, "bare", false, "leave an image unchanged, without the tools of base")
	f.BoolVar(&asked.Private, "private", false, "hide it from tenants, in the data folder")
	f.BoolVar(&asked.Force, "force", false, "build it even if it exists")
	f.BoolVar(&verbose, "verbose", false, "show every line of the build (default some ten, and the last lines of a build that fails)")
	return cmd
}

func buildTemplate(cmd *cobra.Command, templates Templates, asked TemplateBuild, verbose bool) error {
	began := time.Now()
	shown := &stages{out: cmd.ErrOrStderr(), began: began, terminal: telemetry.IsTerminal(cmd.ErrOrStderr()), verbose: verbose}
	built, err := templates.BuildTemplate(cmd.Context(), asked, shown.print)
	if err != nil {
		shown.fail()
		return err
	}
	shown.end()
	if wantsJSON(cmd) {
		return printJSON(cmd, built)
	}
	name, version := clean(built.Template), clean(short(built.Version))
	if built.Cached {
		fmt.Fprintf(cmd.ErrOrStderr(), "template %s exists: %s, %d MiB\n", name, version, built.SizeBytes>>20)
		return nil
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "template %s built in %v: %s, %d MiB, from %s\n",
		name, time.Since(began).Round(time.Second), version, built.SizeBytes>>20, clean(built.Source))
	return nil
}

// short returns the beginning of a version, enough for people.
func short(version string) string { return version[:min(len(version), 12)] }

// stages shows the progress of a build: on a terminal one line that changes,
// elsewhere lines at growing intervals. Verbose, it shows every line that is not the
// progress of the previous stage.
type stages struct {
	out      io.Writer
	terminal bool
	verbose  bool
	began    time.Time

	stage string // of the latest line
	shown time.Time
	open  bool     // the last line has no newline yet
	last  []string // lines, for a failure
}

// lastLines is the number of log lines that a failure shows.
const lastLines = 30

func (s *stages) print(stage, line string) {
	line = clean(fmt.Sprintf("template: %4.0fs  %s", time.Since(s.began).Seconds(), strings.TrimRight(line, "\n")))
	if same := stage != "" && stage == s.stage; same && len(s.last) > 0 {
		s.last[len(s.last)-1] = line
	} else {
		s.last = append(s.last, line)
		s.last = s.last[max(0, len(s.last)-lastLines):]
		if s.verbose {
			s.end()
			s.shown = time.Time{} // show it at once
		}
	}
	s.stage = stage
	switch {
	case s.terminal:
		fmt.Fprintf(s.out, "\r\x1b[K%s", line)
		s.open = true
	case time.Since(s.shown) >= s.pause():
		fmt.Fprintln(s.out, line)
	default:
		return
	}
	s.shown = time.Now()
}

// pause is the minimum time between two lines. It grows with the time of the build,
// so that some ten lines are enough for a build of any length.
func (s *stages) pause() time.Duration {
	const least = time.Second
	return max(least, s.shown.Sub(s.began)/2)
}

func (s *stages) end() {
	if s.open {
		fmt.Fprintln(s.out)
	}
	s.open = false
}

// fail shows the last lines, unless all were shown.
func (s *stages) fail() {
	s.end()
	if s.verbose || len(s.last) == 0 {
		return
	}
	fmt.Fprintln(s.out, "template: the last lines of the build (--verbose shows all):")
	for _, line := range s.last {
		fmt.Fprintln(s.out, line)
	}
}

func (t *templateCommands) list() *cobra.Command {
	var versions bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the templates that are built",
		Example: `  cloud-sandbox template ls
  cloud-sandbox template ls --versions --json`,
		Args: Args(0, 0, "no arguments"),
		RunE: t.with(nil, func(cmd *cobra.Command, templates Templates, _ []string) error {
			all, err := templates.Templates(cmd.Context())
			if err != nil {
				return err
			}
			if versions {
				if all, err = allVersions(cmd.Context(), templates, all); err != nil {
					return err
				}
			}
			if wantsJSON(cmd) {
				return printJSON(cmd, append([]v1.Template{}, all...))
			}
			return printTemplates(cmd, all)
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&versions, "versions", false, "list every version, not only tagged ones")
	return cmd
}

// allVersions replaces tags by all versions of their templates.
func allVersions(ctx context.Context, templates Templates, tags []v1.Template) (all []v1.Template, err error) {
	seen := map[string]bool{}
	for _, t := range tags {
		if seen[t.Name] {
			continue
		}
		seen[t.Name] = true
		found, err := templates.TemplateVersions(ctx, t.Template)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func printTemplates(cmd *cobra.Command, all []v1.Template) error {
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "TEMPLATE\tVERSION\tWHOSE\tSIZE\tSTORED\tBUILT\tSOURCE")
	for _, l := range all {
		name, whose := l.Template, "tenant"
		if l.Tag == "" { // the version has a column of its own
			name = l.Name
		}
		if l.Shared {
			whose = "all"
		}
		fmt.Fprintln(t, row(name, short(l.Version), whose, size(l.SizeBytes), size(l.StoredBytes), l.CreatedAt.Local().Format(time.DateTime), l.Source))
	}
	return t.Flush()
}

func (t *templateCommands) remove() *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME[:TAG|@VERSION]...",
		Aliases: []string{"delete"},
		Short:   "Remove templates, tags or versions",
		Long: `Remove templates, tags or versions.

A bare name removes the template with all its tags and versions. A version is not
removed while sandboxes run from it, or while paused sessions or snapshots of any
tenant need it: end or delete these first.`,
		Example: `  cloud-sandbox template rm web
  sudo cloud-sandbox template rm web:1.2`,
		Args: Args(1, -1, "one NAME or more"),
		RunE: t.with(nil, func(cmd *cobra.Command, templates Templates, args []string) error {
			freed := int64(0)
			err := removeEach(cmd, args, func(name string) ([]string, error) {
				gone, err := templates.RemoveTemplate(cmd.Context(), name)
				freed += gone.FreedBytes
				return gone.Removed, err
			})
			if err == nil && !wantsJSON(cmd) {
				fmt.Fprintln(cmd.ErrOrStderr(), "freed", size(freed))
			}
			return err
		}),
		ValidArgsFunction: t.complete,
	}
}

// complete completes the name of one of the caller's templates at a server.
func (t *templateCommands) complete(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return t.suggest(cmd, given, begun, func(ctx context.Context, c *client.Client) (all []suggestion, err error) {
		list, err := c.Templates(ctx)
		for _, l := range list {
			if !l.Shared {
				all = append(all, suggestion{l.Template, l.Source})
			}
		}
		return all, err
	})
}

// remoteTemplates are the caller's templates at a server.
type remoteTemplates struct{ *client.Client }

func (r remoteTemplates) BuildTemplate(ctx context.Context, t TemplateBuild, tell func(stage, line string)) (made BuiltTemplate, err error) {
	switch {
	case t.Template == "":
		return made, usagef("the NAME of the template is missing")
	case t.Source == "" && t.DockerfileAt == "":
		return made, usagef("--source is missing: oci:REF, debian:SUITE, tar:FILE or dir:FOLDER; or --dockerfile FILE")
	}
	var archive io.Reader
	if t.DockerfileAt != "" {
		from, err := t.openDockerfile(ctx)
		if err != nil {
			return made, err
		}
		if from != nil {
			defer from.Close()
			archive = from
			tell("upload", "sending the files of "+t.Context)
		}
	}
	kind, path, _ := strings.Cut(t.Source, ":")
	switch kind {
	case "tar", "dir":
		from, err := openArchive(ctx, kind, path)
		if err != nil {
			return made, fmt.Errorf("--source %s: %w", t.Source, err)
		}
		defer from.Close()
		archive, t.Source = from, sandbox.ArchiveSource
		tell("upload", "sending "+path)
	}
	var files io.Reader
	if len(t.Put) > 0 {
		read, write := io.Pipe()
		defer read.Close()
		go func() { write.CloseWithError(PackFiles(ctx, write, t.Put)) }()
		files = read
	}
	b, err := r.StartBuild(ctx, t.TemplateRequest, files, archive)
	if err != nil {
		return made, err
	}
	if b, err = r.FollowBuild(ctx, b.ID, func(line string) error { tell("", line); return nil }); err != nil {
		return made, errors.Join(err, r.giveUp(ctx, b.ID))
	}
	return BuiltTemplate{b.Template, b.Version, b.Source, b.SizeBytes, b.Cached}, b.Err()
}

// giveUp cancels a build whose command was interrupted.
func (r remoteTemplates) giveUp(ctx context.Context, id string) error {
	if ctx.Err() == nil {
		return nil // the build continues; the connection broke
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	if _, err := r.CancelBuild(ctx, id); err != nil && !errors.Is(err, sandbox.NotFound) && !errors.Is(err, sandbox.Conflict) {
		return fmt.Errorf("the build %s continues on the server: %w", id, err)
	}
	return nil
}

// openArchive reads an archive, or packs a folder with root as the owner of all
// files.
func openArchive(ctx context.Context, kind, path string) (io.ReadCloser, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case kind == "tar":
		return os.Open(path)
	case !info.IsDir():
		return nil, &fs.PathError{Op: "dir", Path: path, Err: errors.New("it is not a folder")}
	}
	read, write := io.Pipe()
	go func() {
		write.CloseWithError(pack(ctx, write, path, &progress{}, &copied{}))
	}()
	return read, nil
}
