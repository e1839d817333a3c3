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
	// programs are those that run it, the best one first: it can be run where
	// one of them is.
	programs []string
	// kept says that contexts run it, and their state is kept: the default one
	// too, where no other is named.
	kept bool
	// asked says the same of contexts that are named, and of no other.
	asked bool

	command []string // runs code given as its last argument
	// loader is a program in the language that joins its arguments and runs
	// them, for code that is too long for one argument; command runs it.
	loader string
	// afterCode stands between code and the loader's arguments.
	afterCode []string

	file string // the name of the file that code is written to; empty: none
	// compile stands after the program to make the program "main" of the file;
	// nil: the program runs the file itself.
	compile []string
}

// languages are all there are, in the order in which a client is told of them.
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

// LanguageNames lists the names that a request may use, aliases left out.
func LanguageNames() []string {
	names := make([]string, len(languages))
	for i, l := range languages {
		names[i] = l.name
	}
	return names
}

// keptNames lists the languages whose state contexts keep.
func keptNames() string {
	var names []string
	for _, l := range languages {
		if l.kept || l.asked {
			names = append(names, l.name)
		}
	}
	return strings.Join(names, ", ")
}

// languageNamed finds a language by name or alias. Invalid, with the list, when
// there is none.
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

// args is the command line that runs code. Code that could be taken for an
// option goes the way of long code, where it cannot.
func (l language) args(code string) []string {
	args := slices.Clone(l.command)
	if len(code) <= maxArg && code[0] != '-' {
		return append(args, code)
	}
	args = append(append(args, l.loader), l.afterCode...)
	return append(args, split(code, maxArg)...)
}

// steps are the command lines that make the file in a folder into something that
// can be run, nil when nothing has to be done, and that run it.
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
