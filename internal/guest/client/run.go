package client

import (
	"context"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// Run runs one program to its end. See execution.Guest.
func (c *Client) Run(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	if req.As != nil {
		m := &guestv1.RunProcessRequest{StdoutLimit: req.MaxOutput, StderrLimit: req.MaxOutput}
		if !req.As.Attach {
			m.Start = &guestv1.StartProcessRequest{
				Args: req.Args, Env: req.Env, Cwd: req.Cwd, User: req.User, Stdin: req.Stdin, TimeoutMillis: millis(req.Timeout),
			}
		}
		end, known, err := c.asProcess(ctx, *req.As, m, handle)
		if known {
			return end, err
		}
		if s := req.As.Source; s != nil {
			req.Args = sourceScript(*s, req.Args)
		}
	}
	return c.runBound(ctx, req, handle)
}

// fromSource writes the code of a Source, compiles the program and runs it, for
// Guests that do not support this. Its arguments are the folder, the file, the
// number of arguments of the compiler, the compiler, the number of arguments of the
// program, the program, and the code in pieces.
const fromSource = `folder=$1 file=$2; shift 2
umask 077; mkdir -- "$folder" || exit
trap 'rm -rf -- "$folder"' EXIT
compiler=$1; shift; compile=("${@:1:compiler}"); shift "$compiler"
program=$1; shift; run=("${@:1:program}"); shift "$program"
printf %s "$@" > "$folder/$file" || exit
if ((compiler)); then "${compile[@]}" >&2 </dev/null || exit; fi
"${run[@]}"`

// maxArgument is below the maximum size of a program's argument, in bytes.
const maxArgument = 96 << 10

func sourceScript(s execution.Source, program []string) []string {
	args := append([]string{"bash", "-c", fromSource, "bash", s.Folder, s.File, strconv.Itoa(len(s.Compile))}, s.Compile...)
	args = append(append(args, strconv.Itoa(len(program))), program...)
	for piece := range slices.Chunk([]byte(s.Code), maxArgument) {
		args = append(args, string(piece))
	}
	return args
}

// runBound is Run for a program that ends with the call.
func (c *Client) runBound(ctx context.Context, req execution.RunRequest, handle func(execution.RunEvent) error) (execution.RunEnd, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the program if we leave early
	stream, err := c.control().Run(ctx, connect.NewRequest(&guestv1.RunRequest{
		Args: req.Args, Env: req.Env, Cwd: req.Cwd, User: req.User, Stdin: req.Stdin,
		TimeoutMillis: req.Timeout.Milliseconds(), StdoutLimit: req.MaxOutput, StderrLimit: req.MaxOutput,
	}))
	if err != nil {
		return execution.RunEnd{}, fail(ctx, err)
	}
	defer stream.Close()
	for stream.Receive() {
		switch e := stream.Msg().Event.(type) {
		case *guestv1.RunResponse_Started:
			err = handle(execution.RunEvent{Started: true, PID: e.Started.Pid})
		case *guestv1.RunResponse_Stdout:
			err = handle(execution.RunEvent{Stdout: e.Stdout})
		case *guestv1.RunResponse_Stderr:
			err = handle(execution.RunEvent{Stderr: e.Stderr})
		case *guestv1.RunResponse_Ended:
			finish(stream, cancel)
			return endOf(e.Ended)
		}
		if err != nil {
			return execution.RunEnd{}, err
		}
	}
	if err := stream.Err(); err != nil {
		return execution.RunEnd{}, fail(ctx, err)
	}
	return execution.RunEnd{}, sandbox.Errorf(sandbox.Unavailable, "the sandbox ended its answer early")
}

var statuses = map[guestv1.RunStatus]execution.Status{
	guestv1.RunStatus_RUN_STATUS_OK:        execution.StatusOK,
	guestv1.RunStatus_RUN_STATUS_ERROR:     execution.StatusError,
	guestv1.RunStatus_RUN_STATUS_TIMEOUT:   execution.StatusTimeout,
	guestv1.RunStatus_RUN_STATUS_OOM:       execution.StatusOOM,
	guestv1.RunStatus_RUN_STATUS_PIDS:      execution.StatusPids,
	guestv1.RunStatus_RUN_STATUS_DISK_FULL: execution.StatusDiskFull,
	guestv1.RunStatus_RUN_STATUS_KILLED:    execution.StatusKilled,
}

// endOf checks the result of a run from a Guest.
func endOf(m *guestv1.RunEnded) (execution.RunEnd, error) {
	status, ok := statuses[m.Status]
	if !ok || m.StdoutDropped < 0 || m.StderrDropped < 0 {
		return execution.RunEnd{}, sandbox.Errorf(sandbox.Unavailable, "the sandbox gives a wrong answer")
	}
	message := ""
	if m.Message != "" {
		message = tame(m.Message)
	}
	return execution.RunEnd{
		Status: status, ExitCode: int(m.ExitCode), Signal: int(m.Signal), Message: message,
		StdoutDropped: m.StdoutDropped, StderrDropped: m.StderrDropped,
	}, nil
}

var _ execution.Guest = (*Client)(nil)

// finishTime is how long an answer may take to end after its last message.
const finishTime = time.Second

// finish reads the end of an answer after its last message: only then can its
// connection be reused, and a new one costs more than most answers. If the Guest
// sends more, or does not end, the connection is closed.
func finish(answer interface{ Receive() bool }, cancel context.CancelFunc) {
	late := time.AfterFunc(finishTime, cancel)
	defer late.Stop()
	answer.Receive()
}

// headTimer ends a request if the header of its answer does not come within
// headTime. stop removes this limit for the rest of the answer.
func headTimer(ctx context.Context) (limited context.Context, stop func() bool, cancel context.CancelFunc) {
	limited, end := context.WithCancelCause(ctx)
	t := time.AfterFunc(headTime, func() { end(context.DeadlineExceeded) })
	return limited, t.Stop, func() { t.Stop(); end(nil) }
}
