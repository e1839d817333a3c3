package dockerfile

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// planner converts instructions to Steps, in order.
type planner struct {
	file   *File
	env    map[string]string // of the image and of ENV
	args   map[string]string // of ARG
	run    map[string]string // of RUNs, see runArgs; nil: not computed
	size   int               // total bytes of the set values
	shell  []string
	plan   Plan
	copies int // sources of all COPYs

	cmd, entrypoint *instructions.ShellDependantCmdLine
}

// Plan returns the steps of the Dockerfile for an image with the environment env.
func (f *File) Plan(env map[string]string) (Plan, error) {
	p := &planner{file: f, env: map[string]string{}, args: map[string]string{}, shell: []string{"/bin/sh", "-c"}}
	maps.Copy(p.env, env)
	for _, c := range f.commands {
		if err := p.add(c); err != nil {
			return Plan{}, err
		}
	}
	p.plan.Start = p.start()
	return p.plan, nil
}

// add processes one instruction.
func (p *planner) add(c instructions.Command) error {
	s := Step{Line: lineOf(c.Location()), Text: oneLine(c)}
	switch c := c.(type) {
	case *instructions.RunCommand:
		s.Kind, s.Argv, s.Args = Run, p.argv(c.ShellDependantCmdLine), p.runArgs()
		p.plan.Steps = append(p.plan.Steps, s)
	case *instructions.CopyCommand:
		return p.copy(s, c.SourcesAndDest, c.Chown, c.Chmod)
	case *instructions.AddCommand:
		return p.copy(s, c.SourcesAndDest, c.Chown, c.Chmod)
	case *instructions.EnvCommand:
		return p.setEnv(s, c)
	case *instructions.ArgCommand:
		return p.setArgs(s.Line, c)
	case *instructions.UserCommand:
		return p.user(s, c)
	case *instructions.WorkdirCommand:
		return p.workdir(s, c)
	case *instructions.ShellCommand:
		p.shell = c.Shell
	case *instructions.CmdCommand:
		p.cmd = &c.ShellDependantCmdLine
	case *instructions.EntrypointCommand:
		p.entrypoint = &c.ShellDependantCmdLine
	default:
		if why := ignored[strings.ToLower(c.Name())]; why != "" {
			p.plan.Notes = append(p.plan.Notes, strings.ToUpper(c.Name())+" has no effect: "+why)
		}
	}
	return nil
}

// oneLine returns an instruction as written, for a log.
func oneLine(c instructions.Command) string {
	text := c.Name()
	if c, ok := c.(interface{ String() string }); ok {
		text = c.String()
	}
	const most = 300
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = text[:most] + " ..."
	}
	return text
}

// known returns the variables for expansion: ENV overrides ARG.
func (p *planner) known() map[string]string {
	all := maps.Clone(p.args)
	maps.Copy(all, p.env)
	return all
}

// runArgs returns the build arguments in a RUN's environment.
func (p *planner) runArgs() map[string]string {
	if p.run == nil {
		p.run = maps.Clone(p.args)
		maps.DeleteFunc(p.run, func(name, _ string) bool { _, hidden := p.env[name]; return hidden })
	}
	return p.run
}

// set sets a variable in variables, which is env or args.
func (p *planner) set(line int, variables map[string]string, name, value string) error {
	variables[name] = value
	p.run = nil
	if p.size += len(value); p.size > maxVariableSize || len(p.env)+len(p.args) > maxVariables {
		return sandbox.Errorf(sandbox.TooLarge, "Dockerfile line %d: all variables together may be %d, of %d KiB", line, maxVariables, maxVariableSize>>10)
	}
	return nil
}

// argv returns the program and arguments of a command.
func (p *planner) argv(c instructions.ShellDependantCmdLine) []string {
	if !c.PrependShell {
		return slices.Clone(c.CmdLine)
	}
	script := strings.Join(c.CmdLine, " ")
	if len(c.Files) == 1 && soleHeredoc.MatchString(script) {
		if script = c.Files[0].Data; c.Files[0].Chomp {
			script = parser.ChompHeredocContent(script)
		}
	} else {
		for _, f := range c.Files { // heredocs are read by the shell
			script += "\n" + f.Data + f.Name
		}
	}
	return append(slices.Clone(p.shell), script)
}

// start returns the combined command of ENTRYPOINT and CMD.
func (p *planner) start() []string {
	if p.entrypoint == nil || len(p.entrypoint.CmdLine) == 0 {
		if p.cmd == nil || len(p.cmd.CmdLine) == 0 {
			return nil
		}
		return p.argv(*p.cmd)
	}
	argv := p.argv(*p.entrypoint)
	if p.cmd != nil && !p.entrypoint.PrependShell {
		argv = append(argv, p.argv(*p.cmd)...)
	}
	return argv
}

func (p *planner) setEnv(s Step, c *instructions.EnvCommand) error {
	s.Kind = Env
	known := p.known() // a line's words are expanded with the values before it
	for _, pair := range c.Env {
		key, err := p.file.expand(s.Line, pair.Key, known)
		if err != nil {
			return err
		}
		value, err := p.file.expand(s.Line, pair.Value, known)
		if err != nil {
			return err
		}
		if err := p.set(s.Line, p.env, key, value); err != nil {
			return err
		}
		s.Pairs = append(s.Pairs, key, value)
	}
	p.plan.Steps = append(p.plan.Steps, s)
	return nil
}

func (p *planner) setArgs(line int, c *instructions.ArgCommand) error {
	for _, a := range c.Args {
		value, given, err := p.file.argument(line, a, p.known())
		if err != nil {
			return err
		}
		if !given {
			continue
		}
		if err := p.set(line, p.args, a.Key, value); err != nil {
			return err
		}
	}
	return nil
}

var (
	userPattern  = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	ownerPattern = regexp.MustCompile(`^[a-z0-9_][a-z0-9_-]{0,31}(:[a-z0-9_][a-z0-9_-]{0,31})?$`)
	modePattern  = regexp.MustCompile(`^[0-7]{3,4}$`)
)

func (p *planner) user(s Step, c *instructions.UserCommand) (err error) {
	s.Kind = User
	if s.Value, err = p.file.expand(s.Line, c.User, p.known()); err != nil {
		return err
	}
	if !userPattern.MatchString(s.Value) {
		return notHere(s.Line, "USER %.80s: name the user alone, without a group or a number, for example USER app after RUN useradd -m app", s.Value)
	}
	p.plan.Steps = append(p.plan.Steps, s)
	return nil
}

func (p *planner) workdir(s Step, c *instructions.WorkdirCommand) (err error) {
	s.Kind = Workdir
	if s.Value, err = p.file.expand(s.Line, c.Path, p.known()); err != nil {
		return err
	}
	if s.Value == "" {
		return errAt(s.Line, "WORKDIR names no folder: the variables in %.80q are empty", c.Path)
	}
	p.plan.Steps = append(p.plan.Steps, s)
	return nil
}

func (p *planner) copy(s Step, c instructions.SourcesAndDest, owner, mode string) (err error) {
	s.Kind = Copy
	known := p.known()
	expand := func(word string) (text string) {
		if err == nil {
			text, err = p.file.expand(s.Line, word, known)
		}
		return text
	}
	for _, source := range c.SourcePaths {
		s.Sources = append(s.Sources, expand(source))
	}
	for _, content := range c.SourceContents {
		file := Inline{path.Base(content.Path), content.Data}
		if content.Expand {
			file.Content = expand(file.Content)
		}
		s.Inline = append(s.Inline, file)
	}
	s.Dest, s.Owner, s.Mode = expand(c.DestPath), expand(owner), expand(mode)
	if err != nil {
		return err
	}
	if s.Owner == "" {
		s.Owner = "root:root"
	}
	switch {
	case s.Dest == "":
		return errAt(s.Line, "COPY names no destination: the variables in %.80q are empty", c.DestPath)
	case len(s.Sources)+len(s.Inline) > 1 && !isFolder(s.Dest):
		return errAt(s.Line, "COPY of several files: the destination must be a folder and end with a slash: %.200s/", s.Dest)
	case !ownerPattern.MatchString(s.Owner):
		return errAt(s.Line, "--chown=%.80s: name USER or USER:GROUP", s.Owner)
	case s.Mode != "" && !modePattern.MatchString(s.Mode):
		return errAt(s.Line, "--chmod=%.80s: the mode is an octal number, for example 0755", s.Mode)
	}
	if p.copies += len(s.Sources) + len(s.Inline); p.copies > maxSources {
		return sandbox.Errorf(sandbox.TooLarge, "Dockerfile line %d: all COPYs together may name at most %d files: name folders, or patterns", s.Line, maxSources)
	}
	for _, source := range s.Sources {
		if _, err := inContext(s.Line, source); err != nil {
			return err
		}
	}
	p.plan.Steps = append(p.plan.Steps, s)
	return nil
}

// isFolder reports whether a destination must be a folder.
func isFolder(dest string) bool {
	return strings.HasSuffix(dest, "/") || dest == "." || dest == ".." || strings.HasSuffix(dest, "/.") || strings.HasSuffix(dest, "/..")
}
