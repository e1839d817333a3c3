package execution

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A language is a way to run code: in a context that keeps its state, as the last
// argument of a command, or from a file, compiled or not.
type language struct {
	name    string
	aliases []string
	// programs are the interpreters or compilers that can run it, in order of preference.
	// One of them is enough.
	programs []string
	// kept reports whether contexts run it and keep its state, including the default
	// context.
	kept bool
	// asked reports the same for named contexts only.
	asked bool

	command []string // runs code given as its last argument
	// loader is a program in the language that joins its arguments and runs them. command
	// runs it for code that is too long for one argument.
	loader string
	// afterCode goes between the loader and its arguments.
	afterCode []string

	file string // name of the file for the code; empty: none
	// compile holds the arguments that compile the file to the program "main"; nil: the
	// program runs the file itself.
	compile []string
}

// languages lists all languages, in the order shown to clients.
var languages = []language{
	{name: "python", aliases: []string{"py", "python3"}, programs: []string{"python3"}, kept: true},
	{name: "javascript", aliases: []string{"js", "node"}, programs: []string{"node"}, kept: true},
	{name: "typescript", aliases: []string{"ts"}, programs: []string{"node"}, kept: true},
	{
		name: "bash", aliases: []string{"sh", "shell"}, programs: []string{"bash"},
		asked:     true,
		command:   []string{"bash", "-c", "--"},
		loader:    `__code="$(printf %s "$@")"; set --; eval -- "$__code"`,
		afterCode: []string{"bash"},
	},
	{
		name: "go", aliases: []string{"golang"}, programs: []string{"go"},
		file: "main.go", compile: []string{"build", "-o", "{out}", "{file}"},
	},
	{name: "ruby", aliases: []string{"rb"}, programs: []string{"ruby"}, file: "main.rb"},
	{name: "java", programs: []string{"java"}, asked: true, file: "Main.java"},
	{name: "r", aliases: []string{"R"}, programs: []string{"Rscript"}, asked: true, file: "main.R"},
	{
		name: "c", programs: []string{"cc", "gcc", "clang"},
		file: "main.c", compile: []string{"-O1", "-o", "{out}", "{file}", "-lm", "-pthread"},
	},
	{
		name: "cpp", aliases: []string{"c++"}, programs: []string{"c++", "g++", "clang++"},
		file: "main.cpp", compile: []string{"-O1", "-o", "{out}", "{file}", "-pthread"},
	},
	{
		name: "rust", aliases: []string{"rs"}, programs: []string{"rustc"},
		file: "main.rs", compile: []string{"--edition=2021", "-O", "-o", "{out}", "{file}"},
	},
}

// LanguageNames lists the names that a request may use, without aliases.
func LanguageNames() []string {
	names := make([]string, len(languages))
	for i, l := range languages {
		names[i] = l.name
	}
	return names
}

// keptNames lists the languages that contexts can run.
func keptNames() string {
	var names []string
	for _, l := range languages {
		if l.kept || l.asked {
			names = append(names, l.name)
		}
	}
	return strings.Join(names, ", ")
}

// languageNamed finds a language by name or alias; otherwise it returns Invalid with the
// list.
func languageNamed(name string) (language, error) {
	for _, l := range languages {
		if l.name == name || slices.Contains(l.aliases, name) {
			return l, nil
		}
	}
	names := strings.Join(LanguageNames(), ", ")
	if name == "" {
		return language{}, sandbox.Errorf(sandbox.Invalid, "language is missing; it must be one of %s", names)
	}
	return language{}, sandbox.Errorf(sandbox.Invalid, "%.32q is not a language that can be run; use one of %s", name, names)
}

// maxArg is less than the 128 KiB that Linux and gVisor allow for one argument.
const maxArg = 96 << 10

// args returns the command line that runs code. Code that looks like an option is passed
// like long code, which cannot be taken for one.
func (l language) args(code string) []string {
	args := slices.Clone(l.command)
	if len(code) <= maxArg && code[0] != '-' {
		return append(args, code)
	}
	args = append(append(args, l.loader), l.afterCode...)
	return append(args, split(code, maxArg)...)
}

// steps returns the command lines that compile the file in a folder (nil: no compilation)
// and run it.
func (l language) steps(program, folder string) (compile, run []string) {
	file := folder + "/" + l.file
	if l.compile == nil {
		return nil, []string{program, file}
	}
	out := folder + "/main"
	in := strings.NewReplacer("{out}", out, "{file}", file)
	compile = []string{program}
	for _, a := range l.compile {
		compile = append(compile, in.Replace(a))
	}
	return compile, []string{out}
}

// split cuts s into pieces of at most size bytes, never inside a character.
func split(s string, size int) []string {
	var pieces []string
	for len(s) > size {
		n := size
		for n > size-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		pieces, s = append(pieces, s[:n]), s[n:]
	}
	return append(pieces, s)
}
