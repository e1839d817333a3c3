package perf

import (
	"bytes"
	"debug/elf"
	"debug/gosym"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// symbols finds the names of functions of our programs, which are built without the
// tables that perf reads. Go's own table is always there.
type symbols struct {
	programs map[string]*program // by perf's name of the file; nil: no Go program
}

func newSymbols() *symbols { return &symbols{programs: map[string]*program{}} }

// program is a Go program, perhaps within an image of a file system.
type program struct {
	table *gosym.Table
	// shift is added to an offset in the file to make it an address.
	shift uint64
}

// resolve returns the names of a stack's calls, the innermost first.
func (s *symbols) resolve(stack []frame) []string {
	var calls []string
	for _, f := range stack {
		name := s.name(f)
		if name == "" || name == "runtime.goexit.abi0" || name == "runtime.goexit" {
			continue
		}
		if len(calls) == 0 || calls[len(calls)-1] != name {
			calls = append(calls, name)
		}
	}
	return calls
}

func (s *symbols) name(f frame) string {
	if f.symbol != "" {
		if f.file == "[kernel.kallsyms]" || strings.HasPrefix(f.file, "[") {
			return f.symbol + " [kernel]"
		}
		return shorten(f.symbol)
	}
	if !strings.HasPrefix(f.file, "/") {
		return "" // stacks of programs without frame pointers end in such frames
	}
	if strings.HasPrefix(f.file, "/memfd:") {
		return "memory of the sandbox"
	}
	p, ok := s.programs[f.file]
	if !ok {
		p, _ = openProgram(f.file) // nil: not a Go program
		s.programs[f.file] = p
	}
	if p != nil {
		if fn := p.table.PCToFunc(f.address + p.shift); fn != nil {
			return shorten(fn.Name)
		}
	}
	if strings.HasSuffix(f.file, ".erofs") {
		return "programs of the template"
	}
	return filepath.Base(f.file)
}

// shorten reduces a name to its package and function.
func shorten(name string) string {
	name = strings.ReplaceAll(name, ";", ",")
	generic := ""
	if i := strings.IndexByte(name, '['); i >= 0 { // type arguments have slashes too
		name, generic = name[:i], "[…]"+name[strings.LastIndexByte(name, ']')+1:]
	}
	return name[strings.LastIndexByte(name, '/')+1:] + generic
}

// openProgram reads the symbol table of a Go program: a file, or the only program in
// an uncompressed file system image.
func openProgram(file string) (*program, error) {
	if filepath.Ext(file) == ".erofs" && filepath.Base(file) != "guest.erofs" {
		return nil, fmt.Errorf("%s has many programs", file)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	const page = 4096
	for at := 0; at < len(content); at += page {
		if !bytes.HasPrefix(content[at:], []byte(elf.ELFMAG)) {
			continue
		}
		if p, err := readProgram(bytes.NewReader(content[at:]), uint64(at)); err == nil {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%s has no program of Go", file)
}

func readProgram(r io.ReaderAt, at uint64) (*program, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, err
	}
	table, text := f.Section(".gopclntab"), f.Section(".text")
	if table == nil || text == nil {
		return nil, errors.New("not of Go")
	}
	data, err := table.Data()
	if err != nil {
		return nil, err
	}
	names, err := gosym.NewTable(nil, gosym.NewLineTable(data, text.Addr))
	if err != nil {
		return nil, err
	}
	return &program{table: names, shift: text.Addr - text.Offset - at}, nil
}
