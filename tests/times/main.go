// Command times runs go test, prints a line for each package and the whole output
// of each test that fails, and notes how long packages and tests took. It prints
// these notes, and those of scripts/steps.sh, as tables.
//
//	times test ARGS...   runs go test -json ARGS
//	times table          prints what was noted
//
// The file of notes is named by TIMES; without it nothing is noted. A note is a
// line of JSON.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() {
	if err := run(os.Args[1:], os.Getenv("TIMES"), os.Stdout); err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) { // go test has said why
			os.Exit(failed.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "times:", err)
		os.Exit(2)
	}
}

func run(args []string, notes string, out io.Writer) error {
	switch {
	case len(args) > 0 && args[0] == "test":
		return test(args[1:], notes, out)
	case len(args) == 1 && args[0] == "table":
		all, err := read(notes)
		if err != nil {
			return err
		}
		return table(out, all)
	}
	return errors.New("usage: times test ARGS..., or times table")
}

// test runs go test with args. Its error is the one of go test.
func test(args []string, notes string, out io.Writer) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	w := bufio.NewWriter(out)
	taken, err := report(w, events)
	if err != nil {
		_ = cmd.Process.Kill()
	}
	err = errors.Join(cmd.Wait(), err)
	return errors.Join(err, note(notes, taken))
}

// A Note says how long one thing took.
type Note struct {
	Step    string  `json:",omitempty"` // of a script; nothing else is set but times
	Package string  `json:",omitempty"`
	Test    string  `json:",omitempty"` // a top-level test of Package
	Seconds float64 // by the clock
	CPU     float64 `json:",omitempty"` // seconds of the processors, of a step
	Share   float64 `json:",omitempty"` // seconds that the step may take; 0: not said
}

// note appends to the file of notes, in one write: steps may run side by side.
func note(path string, notes []Note) error {
	if path == "" || len(notes) == 0 {
		return nil
	}
	var lines []byte
	for _, n := range notes {
		line, err := json.Marshal(n)
		if err != nil {
			return err
		}
		lines = append(append(lines, line...), '\n')
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(lines)
	return errors.Join(err, f.Close())
}

func read(path string) ([]Note, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var notes []Note
	for d := json.NewDecoder(f); ; {
		var n Note
		if err := d.Decode(&n); errors.Is(err, io.EOF) {
			return notes, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		notes = append(notes, n)
	}
}
