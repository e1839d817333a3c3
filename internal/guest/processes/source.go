package processes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// Source is code that a Process compiles or interprets. It is written to a folder of
// its own, which is removed when the Process has ended.
type Source struct {
	Folder  string   // absolute; it must not exist
	File    string   // name in Folder
	Code    []byte   // its content
	Compile []string // compiler command that makes the program; empty: none
	Env     map[string]string

	program []string // the Process's own program, which runs after Compile; empty: none
}

// steps writes the code, and returns the first step and the next ones.
func (s *Source) steps(p *Process, program step) (first step, next []step, err error) {
	err = server.As(p.Command.User, func() error {
		if err := os.Mkdir(s.Folder, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(s.Folder, s.File), s.Code, 0o600)
	})
	if err != nil || len(s.Compile) == 0 {
		return program, nil, err
	}
	program.command.Args = s.program
	return step{command: p.Command, compiles: true}, []step{program}, nil
}

// failed writes the error to the Process's output, and returns the Process's result.
func (s *Source) failed(p *Process, err error) server.RunResult {
	p.output.append(true, fmt.Appendf(nil, "the code could not be written: %v\n", err))
	result := server.RunResult{Status: server.StatusOK, ExitCode: 1}
	if slices.ContainsFunc([]string{"/", "/tmp"}, server.Full) {
		result.Status = server.StatusDiskFull
	}
	return result
}

// remove removes the folder. s may be nil.
func (s *Source) remove(p *Process) {
	if s == nil {
		return
	}
	_ = server.As(p.Command.User, func() error { return os.RemoveAll(s.Folder) }) // on error, files stay in the Sandbox until it ends
}
