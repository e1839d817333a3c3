package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
)

const (
	// defaultWait and maxWait are the times that a look at a process waits for its
	// output, in seconds.
	defaultWait = 2
	maxWait     = 60
)

type startProcessInput struct {
	Command   string            `json:"command" jsonschema:"the command, for bash"`
	Name      string            `json:"name,omitempty" jsonschema:"a name to find the process by, of a-z, 0-9, dots, dashes and underscores"`
	Cwd       string            `json:"cwd,omitempty" jsonschema:"the working directory; /workspace by default"`
	Env       map[string]string `json:"env,omitempty" jsonschema:"environment variables for it"`
	Terminal  bool              `json:"terminal,omitempty" jsonschema:"whether it gets a terminal, for programs that need one"`
	SandboxID string            `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

type processInput struct {
	ProcessID string `json:"process_id" jsonschema:"the process_id from start_process, or the name of the process"`
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"ID or name of another sandbox than this session's own"`
}

type readProcessInput struct {
	processInput
	Offset *int64   `json:"offset,omitempty" jsonschema:"next_offset of the last look: only output after it is returned"`
	Wait   *float64 `json:"wait_seconds,omitempty" jsonschema:"how long to wait for the process to end or to print something, 2 by default and 60 at most"`
}

type writeStdinInput struct {
	processInput
	Input string `json:"input" jsonschema:"input for the process; end a line with a line break"`
	EOF   bool   `json:"eof,omitempty" jsonschema:"whether this is the end of its input"`
}

func processTools() []tool {
	return []tool{
		define(tool{
			name: "start_process", title: "Start a process",
			description: "Starts a program that keeps running, such as a server or a long build, and returns its process_id at once. Look at it with read_process, write to it with write_stdin, end it with kill_process.",
			calls:       []*catalogue.Operation{catalogue.StartProcess}, destroys: true, outside: true,
		}, func(ctx context.Context, c *call, in startProcessInput) (*sdk.CallToolResult, error) {
			p, err := c.start(ctx, in.SandboxID, v1.StartProcessRequest{Command: in.Command, Name: in.Name, Cwd: in.Cwd, Env: in.Env, KeepStdin: true}, in.Terminal)
			if err != nil {
				return nil, err
			}
			return object(map[string]any{"process_id": p.ID, "pid": p.PID, "state": p.State})
		}),
		define(tool{
			name: "read_process", title: "Read the output of a process",
			description: "Returns the output of a process since an offset, whether it still runs, and its exit code.",
			calls:       []*catalogue.Operation{catalogue.ReadProcessOutput, catalogue.GetProcess},
		}, func(ctx context.Context, c *call, in readProcessInput) (*sdk.CallToolResult, error) {
			id, err := c.sandbox(ctx, in.SandboxID)
			if err != nil {
				return nil, err
			}
			return c.look(ctx, id, in.ProcessID, in.Offset, in.Wait)
		}),
		define(tool{
			name: "write_stdin", title: "Write to a process",
			description: "Gives a process that start_process started input to read.",
			calls:       []*catalogue.Operation{catalogue.WriteProcessInput}, destroys: true, outside: true,
		}, func(ctx context.Context, c *call, in writeStdinInput) (*sdk.CallToolResult, error) {
			id, err := c.sandbox(ctx, in.SandboxID)
			if err != nil {
				return nil, err
			}
			if err := c.client.WriteInput(ctx, id, in.ProcessID, []byte(in.Input), in.EOF); err != nil {
				return nil, err
			}
			return text(fmt.Sprintf("The process has %d more bytes to read.", len(in.Input))), nil
		}),
		define(tool{
			name: "kill_process", title: "End a process",
			description: "Ends a process and everything that it started.",
			calls:       []*catalogue.Operation{catalogue.EndProcess}, destroys: true, repeats: true,
		}, func(ctx context.Context, c *call, in processInput) (*sdk.CallToolResult, error) {
			id, err := c.sandbox(ctx, in.SandboxID)
			if err != nil {
				return nil, err
			}
			p, err := c.client.EndProcess(ctx, id, in.ProcessID)
			if err != nil {
				return nil, err
			}
			return text(fmt.Sprintf("The process %s has ended: status %s, exit code %d.", p.ID, p.Status, p.Exit())), nil
		}),
	}
}

// start starts a process that outlives the call.
func (c *call) start(ctx context.Context, named string, r v1.StartProcessRequest, terminal bool) (v1.Process, error) {
	id, err := c.sandbox(ctx, named)
	if err != nil {
		return v1.Process{}, err
	}
	r.Target, r.Background = v1.Target{SandboxID: id}, true
	if terminal {
		r.PTY, r.KeepStdin = &v1.TerminalSize{Cols: 120, Rows: 40}, false
	}
	return c.client.Start(ctx, r)
}

// look returns a process's output from an offset on. It waits for output or for the
// end of the process, at most for the requested time.
func (c *call) look(ctx context.Context, id, process string, offset *int64, wait *float64) (*sdk.CallToolResult, error) {
	from, seconds := int64(0), float64(defaultWait)
	if offset != nil {
		from = *offset
	}
	if wait != nil {
		if seconds = *wait; seconds < 0 || seconds > maxWait {
			return nil, sandbox.Errorf(sandbox.Invalid, "wait_seconds must be from 0 to %d", maxWait)
		}
	}
	var out output
	next := from
	read := func(e v1.OutputEvent) error {
		next = max(next, e.Next)
		if e.Event == "dropped" {
			out.lost += e.Next - e.Offset
			return nil
		}
		out.text.write(e.Bytes())
		return nil
	}
	p, err := c.client.Output(ctx, id, process, from, false, "", read)
	if err != nil {
		return nil, err
	}
	if next == from && p.State == "running" && seconds > 0 {
		if p, err = c.await(ctx, id, process, from, seconds, p, read); err != nil {
			return nil, err
		}
	}
	var b strings.Builder
	b.WriteString(out.text.String())
	if out.lost > 0 {
		note(&b, "%d bytes of output are no longer kept", out.lost)
	}
	if b.Len() == 0 {
		b.WriteString("(no new output)")
	}
	if p.State == "running" {
		note(&b, "still running; next_offset %d", next)
	} else {
		note(&b, "ended: status %s, exit code %d; next_offset %d", p.Status, p.Exit(), next)
	}
	return text(b.String()), nil
}

// settle is the time for more output to arrive after the first, before it is
// returned.
const settle = 200 * time.Millisecond

// await reads output from an offset on until some has arrived, the process has ended
// or the time is over. It returns the latest state of the process.
func (c *call) await(ctx context.Context, id, process string, from int64, seconds float64, p v1.Process, read func(v1.OutputEvent) error) (v1.Process, error) {
	waiting, cancel := context.WithTimeout(ctx, time.Duration(seconds*float64(time.Second)))
	defer cancel()
	first := time.Time{}
	ended, err := c.client.Output(waiting, id, process, from, true, "", func(e v1.OutputEvent) error {
		if first.IsZero() {
			first = time.Now()
			time.AfterFunc(settle, cancel)
		}
		return read(e)
	})
	switch {
	case err == nil:
		return ended, nil
	case ctx.Err() != nil:
		return p, ctx.Err()
	case waiting.Err() != nil: // the process keeps running
		return p, nil
	}
	return p, err
}
