package dockerfile

import (
	"errors"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// MaxBytes bounds the text of a Dockerfile.
const MaxBytes = 512 << 10

// Other bounds of a Dockerfile.
const (
	maxInstructions = 1000
	maxVariables    = 1000
	maxVariableSize = 1 << 20 // bytes of all values
)

// File is a supported Dockerfile of one stage. It is immutable.
type File struct {
	// From names the image or Template in FROM.
	From string

	commands []instructions.Command
	lex      rune              // the escape character
	asked    map[string]string // build arguments of the client
	global   map[string]string // arguments before FROM
	starts   bool
}

// Kind is the instruction of a Step.
type Kind string

// The kinds of Steps.
const (
	Run     Kind = "RUN"
	Copy    Kind = "COPY"
	Env     Kind = "ENV"
	User    Kind = "USER"
	Workdir Kind = "WORKDIR"
)

// Step is one instruction, with all variables expanded.
type Step struct {
	Kind Kind
	Line int
	Text string // the instruction as written, in one line

	Argv []string          // of a RUN: the program and its arguments
	Args map[string]string // of a RUN: build arguments, in this RUN's environment only

	Sources []string // of a COPY: paths and patterns in the Context
	Inline  []Inline // of a COPY: files in the Dockerfile itself
	Dest    string
	Owner   string // USER or USER:GROUP
	Mode    string // octal; empty: as in the Context

	Pairs []string // of an ENV: names and values
	Value string   // of a USER or WORKDIR
}

// Inline is a file in a Dockerfile (heredoc).
type Inline struct{ Name, Content string }

// Plan is the result of a Dockerfile.
type Plan struct {
	Steps []Step
	Start []string // program and arguments of CMD and ENTRYPOINT; empty: no program
	Notes []string // about instructions that have no effect here
}

// errAt returns an Invalid error about a line.
func errAt(line int, format string, args ...any) error {
	return sandbox.Errorf(sandbox.Invalid, "Dockerfile line %d: %s", line, sandbox.Errorf(sandbox.Invalid, format, args...).Detail)
}

// notHere returns an Unsupported error about a line.
func notHere(line int, format string, args ...any) error {
	return sandbox.Errorf(sandbox.Unsupported, "Dockerfile line %d: %s", line, sandbox.Errorf(sandbox.Unsupported, format, args...).Detail)
}

// Parse parses a Dockerfile. args are the client's build arguments. It returns Invalid
// for a mistake and Unsupported for an unsupported feature, both with the line and a
// remedy, and TooLarge.
func Parse(text string, args map[string]string) (*File, error) {
	switch {
	case len(text) > MaxBytes:
		return nil, sandbox.Errorf(sandbox.TooLarge, "a Dockerfile may have at most %d KiB", MaxBytes>>10)
	case strings.ContainsRune(text, 0):
		return nil, sandbox.Errorf(sandbox.Invalid, "the Dockerfile holds a zero byte: it must be text")
	}
	tree, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return nil, located(err)
	}
	stages, before, err := instructions.Parse(tree.AST, nil)
	if err != nil {
		return nil, located(err)
	}
	switch {
	case len(stages) == 0:
		return nil, sandbox.Errorf(sandbox.Invalid, "the Dockerfile has no FROM: begin with one, for example FROM base")
	case len(stages) > 1:
		return nil, notHere(lineOf(stages[1].Location), "a second FROM: builds have one stage here. Build the image with docker, save it by docker save, and name it as the source tar:FILE")
	}
	if len(stages[0].Commands)+len(before) > maxInstructions {
		return nil, sandbox.Errorf(sandbox.TooLarge, "a Dockerfile may have at most %d instructions", maxInstructions)
	}
	f := &File{commands: stages[0].Commands, lex: tree.EscapeToken, asked: args, global: map[string]string{}}
	if err := f.readFrom(stages[0], before); err != nil {
		return nil, err
	}
	if err := f.checkArgs(before); err != nil {
		return nil, err
	}
	for _, c := range f.commands {
		if err := check(c); err != nil {
			return nil, err
		}
		switch c.(type) {
		case *instructions.CmdCommand, *instructions.EntrypointCommand:
			f.starts = true
		}
	}
	_, err = f.Plan(nil) // reports most mistakes early
	return f, err
}

// Starts reports whether there is a CMD or an ENTRYPOINT.
func (f *File) Starts() bool { return f.starts }

// Copies reports whether files of a Context are copied.
func (f *File) Copies() bool {
	return slices.ContainsFunc(f.commands, func(c instructions.Command) bool {
		switch c := c.(type) {
		case *instructions.CopyCommand:
			return len(c.SourcePaths) > 0
		case *instructions.AddCommand:
			return len(c.SourcePaths) > 0
		}
		return false
	})
}

// located converts an error of the parser.
func located(err error) error {
	line := 0
	var at *parser.LocationError
	if errors.As(err, &at) && len(at.Locations) > 0 {
		line = lineOf(at.Locations[0])
	}
	var unknown *instructions.UnknownInstructionError
	if errors.As(err, &unknown) {
		line = unknown.Line
	}
	text := strings.TrimPrefix(err.Error(), "dockerfile parse error on ")
	if m := linePattern.FindStringSubmatch(text); m != nil { // the parser added the line
		return sandbox.Errorf(sandbox.Invalid, "Dockerfile line %s: %.500s", m[1], m[2]).WithCause(err)
	}
	if line == 0 {
		return sandbox.Errorf(sandbox.Invalid, "the Dockerfile cannot be read: %.500s", text).WithCause(err)
	}
	return errAt(line, "%.500s", text)
}

var linePattern = regexp.MustCompile(`(?s)^line (\d+): (.*)$`)

func lineOf(location []parser.Range) int {
	if len(location) == 0 {
		return 0
	}
	return location[0].Start.Line
}

// platformArgs are the predefined build arguments.
func platformArgs() map[string]string {
	platform := "linux/" + runtime.GOARCH
	return map[string]string{
		"TARGETPLATFORM": platform, "TARGETOS": "linux", "TARGETARCH": runtime.GOARCH, "TARGETVARIANT": "",
		"BUILDPLATFORM": platform, "BUILDOS": "linux", "BUILDARCH": runtime.GOARCH, "BUILDVARIANT": "",
	}
}

// readFrom reads FROM, and the ARGs before it.
func (f *File) readFrom(stage instructions.Stage, before []instructions.ArgCommand) error {
	known := platformArgs()
	for _, c := range before {
		line := lineOf(c.Location())
		for _, a := range c.Args {
			value, given, err := f.argument(line, a, known)
			if err != nil {
				return err
			}
			if given {
				f.global[a.Key], known[a.Key] = value, value
			}
		}
	}
	line := lineOf(stage.Location)
	var err error
	if f.From, err = f.expand(line, stage.BaseName, known); err != nil {
		return err
	}
	platform, err := f.expand(line, stage.Platform, known)
	switch {
	case err != nil:
		return err
	case f.From == "":
		return errAt(line, "FROM names nothing: the variables in %q are empty. Give them a value by ARG before FROM, or as a build argument", stage.BaseName)
	case f.From == "scratch":
		return notHere(line, "FROM scratch: a template needs a shell. Begin with an image that has one, or name a root filesystem as the source tar:FILE")
	case platform != "" && platform != "linux/"+runtime.GOARCH:
		return notHere(line, "the platform %.40q: this server runs linux/%s. Leave out --platform", platform, runtime.GOARCH)
	}
	return nil
}

// checkArgs rejects build arguments without an ARG.
func (f *File) checkArgs(before []instructions.ArgCommand) error {
	declared := map[string]bool{}
	for _, c := range before {
		for _, a := range c.Args {
			declared[a.Key] = true
		}
	}
	for _, c := range f.commands {
		if c, ok := c.(*instructions.ArgCommand); ok {
			for _, a := range c.Args {
				declared[a.Key] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.asked)) {
		if !declared[name] {
			return sandbox.Errorf(sandbox.Invalid, "the build argument %.80q is not declared: add ARG %.80s to the Dockerfile, or leave it out", name, name)
		}
	}
	return nil
}

// argument returns the value of an ARG: the client's, or its default.
func (f *File) argument(line int, a instructions.KeyValuePairOptional, known map[string]string) (value string, given bool, err error) {
	if value, given = f.asked[a.Key]; given {
		return value, true, nil
	}
	if a.Value != nil {
		value, err = f.expand(line, *a.Value, known)
		return value, true, err
	}
	if value, given = f.global[a.Key]; given {
		return value, true, nil
	}
	value, given = platformArgs()[a.Key]
	return value, given, nil
}

// environment provides variables to the lexer.
type environment map[string]string

func (e environment) Get(name string) (string, bool) { v, ok := e[name]; return v, ok }
func (e environment) Keys() []string                 { return slices.Collect(maps.Keys(e)) }

// maxExpanded bounds one expanded word, because each ENV may double the one before.
const maxExpanded = 128 << 10

func (f *File) expand(line int, word string, known map[string]string) (string, error) {
	if size := strings.Count(word, "$") * longest(known); len(word)+size > 4<<20 {
		return "", errAt(line, "the variables are too long")
	}
	text, _, err := shell.NewLex(f.lex).ProcessWord(word, environment(known))
	switch {
	case err != nil:
		return "", errAt(line, "%.500s", err.Error())
	case len(text) > maxExpanded:
		return "", errAt(line, "a word has more than %d KiB once its variables are replaced", maxExpanded>>10)
	}
	return text, nil
}

func longest(known map[string]string) (most int) {
	for _, v := range known {
		most = max(most, len(v))
	}
	return most
}

// ignored lists instructions that are allowed and have no effect.
var ignored = map[string]string{
	"expose":     "every port of a sandbox can be reached without it",
	"label":      "templates have no labels",
	"maintainer": "templates have no labels",
	"volume":     "the folder is part of the sandbox; volumes are mounted when a sandbox is created",
	"stopsignal": "sandboxes end without a signal",
}

// check rejects unsupported instructions.
func check(c instructions.Command) error {
	line := lineOf(c.Location())
	switch c := c.(type) {
	case *instructions.RunCommand:
		if len(c.FlagsUsed) > 0 {
			return notHere(line, "RUN --%s: leave out the flag. Caches of packages are not kept, and files come in by COPY", c.FlagsUsed[0])
		}
		if len(c.Files) == 1 && soleHeredoc.MatchString(c.CmdLine[0]) && strings.HasPrefix(c.Files[0].Data, "#!") {
			return notHere(line, "a RUN whose text begins with #!: COPY it into a file, and RUN that")
		}
	case *instructions.CopyCommand:
		switch {
		case c.From != "":
			return notHere(line, "COPY --from: builds have one stage here. Copy from the build context, or fetch the files by RUN")
		case c.Parents, len(c.ExcludePatterns) > 0:
			return notHere(line, "COPY --parents and --exclude: copy the folders one by one, and name files to leave out in .dockerignore")
		}
	case *instructions.AddCommand:
		return checkAdd(line, c)
	case *instructions.HealthCheckCommand:
		if c.Health == nil || !slices.Equal(c.Health.Test, []string{"NONE"}) {
			return notHere(line, "HEALTHCHECK: remove it, and name a ready command for the template instead")
		}
	case *instructions.OnbuildCommand:
		return notHere(line, "ONBUILD: write the instruction into the Dockerfile that it is for")
	}
	return nil
}

var (
	soleHeredoc = regexp.MustCompile(`^\s*<<-?\s*['"]?[A-Za-z0-9_]+['"]?\s*$`)
	// remote matches sources that ADD downloads.
	remote = regexp.MustCompile(`^(?i)(https?|ftp|git|ssh)://|^git@`)
	// packed matches sources that ADD unpacks.
	packed = regexp.MustCompile(`\.(tar|tar\.(gz|bz2|xz|zst)|tgz|tbz2?|txz)$`)
)

func checkAdd(line int, c *instructions.AddCommand) error {
	switch {
	case len(c.ExcludePatterns) > 0, c.KeepGitDir != nil, c.Checksum != "", c.Unpack != nil:
		return notHere(line, "flags of ADD other than --chown and --chmod: use COPY, or RUN with a program that does it")
	}
	for _, source := range c.SourcePaths {
		switch {
		case remote.MatchString(source):
			return notHere(line, "ADD of an address: fetch it by RUN, for example RUN curl -fsSLO %.200s", source)
		case packed.MatchString(source):
			return notHere(line, "ADD of an archive: COPY it, and unpack it by RUN tar")
		}
	}
	return nil
}
