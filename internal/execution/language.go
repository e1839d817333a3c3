package execution

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// A language is a way to run code.
type language struct {
	name    string
	aliases []string
	command []string // runs code given as its last argument
	// loader is a program in the language that joins its arguments and runs
	// them, for code that is too long for one argument; command runs it.
	loader string
	// afterCode stands between code and the loader's arguments.
	afterCode []string
}

// languages are all there are, in the order in which a client is told of them.
var languages = []language{
	{
		name: "python", aliases: []string{"py", "python3"},
		// Unbuffered, so that a stream flows and a timeout keeps what was printed.
		command: []string{"python3", "-u", "-c"},
		loader:  `exec(compile("".join([__import__("sys").argv.pop(1) for _ in __import__("sys").argv[1:]]), "<string>", "exec"))`,
	},
	{
		name: "javascript", aliases: []string{"js", "node"},
		command:   []string{"node", "-e"},
		loader:    `(0, eval)(process.argv.splice(1).join(""))`,
		afterCode: []string{"--"},
	},
	{
		name: "bash", aliases: []string{"sh", "shell"},
		command:   []string{"bash", "-c", "--"},
		loader:    `__code="$(printf %s "$@")"; set --; eval -- "$__code"`,
		afterCode: []string{"bash"},
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
