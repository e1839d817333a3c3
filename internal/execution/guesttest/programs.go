package guesttest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// said collects the output of a program.
type said struct {
	stdout, stderr strings.Builder
	started        bool
}

func (s *said) take(e execution.RunEvent) error {
	s.started = s.started || e.Started
	s.stdout.Write(e.Stdout)
	s.stderr.Write(e.Stderr)
	return nil
}

func bash(script string) []string { return []string{"bash", "-c", script} }

func run(w *world) {
	var s said
	end, err := w.Run(w.t.Context(), execution.RunRequest{
		Args: bash(`read line; echo "$line $WORD"; pwd; echo problem >&2; exit 3`), Env: map[string]string{"WORD": "env"}, Stdin: []byte("input\n"),
	}, s.take)
	if err != nil || end.Status != execution.StatusOK || end.ExitCode != 3 || !s.started {
		w.t.Errorf("Run = %+v, %v, started %v", end, err, s.started)
	}
	if s.stdout.String() != "input env\n"+w.Dir+"\n" || s.stderr.String() != "problem\n" {
		w.t.Errorf("it wrote %q and %q", s.stdout.String(), s.stderr.String())
	}
	var bounded said
	end, err = w.Run(w.t.Context(), execution.RunRequest{Args: bash("printf 0123456789"), MaxOutput: 4}, bounded.take)
	if err != nil || bounded.stdout.String() != "0123" || end.StdoutDropped != 6 {
		w.t.Errorf("bounded it wrote %q: %+v, %v", bounded.stdout.String(), end, err)
	}
}

func failures(w *world) {
	ctx := w.t.Context()
	ignore := func(execution.RunEvent) error { return nil }
	for what, req := range map[string]execution.RunRequest{
		"an unknown program": {Args: []string{"no-such-program"}},
		"an unknown user":    {Args: bash("true"), User: "nobody-here"},
		"an unknown folder":  {Args: bash("true"), Cwd: w.at("none")},
	} {
		end, err := w.Run(ctx, req, ignore)
		if sandbox.CodeOf(err) != sandbox.Invalid && (err != nil || end.Status != execution.StatusError) {
			w.t.Errorf("%s: %+v, %v", what, end, err)
		}
	}
	if end, err := w.Run(ctx, execution.RunRequest{Args: bash("kill -TERM $$")}, ignore); err != nil || end.Status != execution.StatusKilled || end.Signal != int(unix.SIGTERM) {
		w.t.Errorf("killed by a signal: %+v, %v", end, err)
	}
	if end, err := w.Run(ctx, execution.RunRequest{Args: bash("sleep 60"), Timeout: 100 * time.Millisecond}, ignore); err != nil || end.Status != execution.StatusTimeout {
		w.t.Errorf("beyond its time: %+v, %v", end, err)
	}
}

// The end of a call, and an error of its event handler, end the program.
func endWithCall(w *world) {
	enough := sandbox.Errorf(sandbox.Unsupported, "enough")
	_, err := w.Run(w.t.Context(), execution.RunRequest{Args: bash("echo x; sleep 60")}, func(e execution.RunEvent) error {
		if len(e.Stdout) > 0 {
			return enough
		}
		return nil
	})
	codetest.Want(w.t, "Run with a handler that fails", err, sandbox.Unsupported)
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	began := time.Now()
	_, err = w.Run(ctx, execution.RunRequest{Args: bash("echo x; sleep 60")}, func(e execution.RunEvent) error {
		if len(e.Stdout) > 0 {
			cancel()
		}
		return nil
	})
	if err == nil || time.Since(began) > 30*time.Second {
		w.t.Errorf("Run after the end of its context = %v, after %v", err, time.Since(began))
	}
}

// processID returns an ID for a Process, the nth of a case.
func processID(n int) string { return fmt.Sprintf("#%016d", n) }

func (w *world) startProcess(n int, req execution.ProcessStart) execution.ProcessStarted {
	w.t.Helper()
	req.ID = processID(n)
	p, err := w.StartProcess(w.t.Context(), req)
	codetest.OK(w.t, "StartProcess", err)
	return p
}

// text joins the output of pieces.
func text(pieces []execution.OutputPiece) string {
	var all strings.Builder
	for _, p := range pieces {
		all.Write(p.Data)
	}
	return all.String()
}

func oneProcess(w *world) {
	t, ctx := w.t, w.t.Context()
	done := w.startProcess(1, execution.ProcessStart{Command: "echo hello; exit 4", Wait: time.Minute, MaxOutput: 100})
	if done.End == nil || done.End.ExitCode != 4 || text(done.Output) != "hello\n" || done.Repeated || done.ID != processID(1) || done.EndedAt.IsZero() || done.OutputEnd != 6 {
		t.Errorf("StartProcess = %+v", done)
	}
	long := w.startProcess(2, execution.ProcessStart{Args: []string{"sleep", "60"}, Name: "long", Cwd: "/", User: "root"})
	if long.End != nil || long.PID == 0 || long.Name != "long" || long.Cwd != "/" || long.User != "root" {
		t.Errorf("StartProcess = %+v", long)
	}
	for _, key := range []string{long.ID, "long"} {
		if got, err := w.GetProcess(ctx, key); err != nil || got.ID != long.ID || got.End != nil {
			t.Errorf("GetProcess(%s) = %+v, %v", key, got, err)
		}
	}
	codetest.Want(w.t, "a name in use", codetest.ErrOf(w.StartProcess(ctx, execution.ProcessStart{ID: processID(3), Command: "true", Name: "long"})), sandbox.Conflict)
	all, err := w.ListProcesses(ctx)
	if err != nil || len(all) != 2 || all[0].ID != done.ID || all[1].ID != long.ID {
		t.Errorf("ListProcesses = %+v, %v", all, err)
	}
	if ended, err := w.EndProcess(ctx, "long"); err != nil || ended.End == nil || ended.End.Status != execution.StatusKilled {
		t.Errorf("EndProcess = %+v, %v", ended, err)
	}
	if again, err := w.EndProcess(ctx, long.ID); err != nil || again.End == nil {
		t.Errorf("EndProcess again = %+v, %v", again, err)
	}
}

// A repeat with the same key returns the Process of the first request.
func keyed(w *world) {
	t, ctx := w.t, w.t.Context()
	req := execution.ProcessStart{Command: "sleep 60", Key: "k", Fingerprint: []byte("1")}
	first := w.startProcess(1, req)
	again := w.startProcess(2, req)
	if first.Repeated || !again.Repeated || again.ID != first.ID {
		t.Errorf("first %+v, again %+v", first, again)
	}
	other := req
	other.ID, other.Fingerprint = processID(3), []byte("2")
	codetest.Want(w.t, "another request with the key", codetest.ErrOf(w.StartProcess(ctx, other)), sandbox.Conflict)
	if ended, err := w.EndProcessOf(ctx, "k"); err != nil || ended.ID != first.ID || ended.End == nil {
		t.Errorf("EndProcessOf = %+v, %v", ended, err)
	}
	codetest.Want(w.t, "EndProcessOf of an unknown key", codetest.ErrOf(w.EndProcessOf(ctx, "none")), sandbox.NotFound)
}

func output(w *world) {
	t, ctx := w.t, w.t.Context()
	p := w.startProcess(1, execution.ProcessStart{Command: "echo one; echo two >&2; echo three", Wait: time.Minute})
	for from, want := range map[int64]string{0: "one\ntwo\nthree\n", 4: "two\nthree\n", -6: "three\n", 14: ""} {
		var got []execution.OutputPiece
		var last *execution.ProcessInfo
		err := w.ReadOutput(ctx, p.ID, from, true, func(o execution.Output) error {
			got = append(got, o.Pieces...)
			if o.Process != nil {
				last = o.Process
			}
			return nil
		})
		// The streams are read separately, so their order may differ.
		if err != nil || len(text(got)) != len(want) || from == 0 && (!strings.Contains(text(got), "one\n") || !strings.Contains(text(got), "two\n")) {
			t.Errorf("from %d on: %q, want %q, %v", from, text(got), want, err)
		}
		if last == nil || last.End == nil || last.OutputEnd != 14 {
			t.Errorf("at the end it is %+v", last)
		}
	}
	enough := sandbox.Errorf(sandbox.Unsupported, "enough")
	codetest.Want(w.t, "a handler that fails", w.ReadOutput(ctx, p.ID, 0, false, func(execution.Output) error { return enough }), sandbox.Unsupported)
}

func terminal(w *world) {
	t, ctx := w.t, w.t.Context()
	p := w.startProcess(1, execution.ProcessStart{Command: "cat", KeepStdin: true, Stdin: []byte("first\n")})
	if n, err := w.WriteInput(ctx, p.ID, execution.Input{Data: []byte("second\n")}); err != nil || n != 7 {
		t.Errorf("WriteInput = %d, %v", n, err)
	}
	codetest.OK(w.t, "close the input", codetest.ErrOf(w.WriteInput(ctx, p.ID, execution.Input{EOF: true})))
	var got []execution.OutputPiece
	codetest.OK(w.t, "ReadOutput", w.ReadOutput(ctx, p.ID, 0, true, func(o execution.Output) error {
		got = append(got, o.Pieces...)
		return nil
	}))
	if text(got) != "first\nsecond\n" {
		t.Errorf("it wrote %q", text(got))
	}
	codetest.Want(w.t, "the size of what has no terminal", codetest.ErrOf(w.ResizeProcess(ctx, p.ID, execution.TerminalSize{Cols: 100, Rows: 30})), sandbox.Invalid)
	tty := w.startProcess(2, execution.ProcessStart{Args: []string{"sleep", "60"}, PTY: &execution.TerminalSize{Cols: 80, Rows: 24}})
	if got, err := w.ResizeProcess(ctx, tty.ID, execution.TerminalSize{Cols: 100, Rows: 30}); err != nil || got.PTY == nil || got.PTY.Cols != 100 || got.PTY.Rows != 30 {
		t.Errorf("ResizeProcess = %+v, %v", got, err)
	}
}

func waiting(w *world) {
	t, ctx := w.t, w.t.Context()
	p := w.startProcess(1, execution.ProcessStart{Command: "echo starting; echo ready on 8000; sleep 60"})
	got, err := w.WaitProcess(ctx, p.ID, execution.Condition{Log: "ready on [0-9]+"}, time.Minute)
	if err != nil || !got.Met || got.Line != "ready on 8000" || got.End != nil {
		t.Errorf("WaitProcess = %+v, %v", got, err)
	}
	got, err = w.WaitProcess(ctx, p.ID, execution.Condition{Log: "never"}, 50*time.Millisecond)
	if err != nil || got.Met || got.End != nil {
		t.Errorf("WaitProcess for what does not come = %+v, %v", got, err)
	}
	short := w.startProcess(2, execution.ProcessStart{Command: "exit 2"})
	got, err = w.WaitProcess(ctx, short.ID, execution.Condition{}, time.Minute)
	if err != nil || got.End == nil || got.End.ExitCode != 2 {
		t.Errorf("WaitProcess for the end = %+v, %v", got, err)
	}
}

func signals(w *world) {
	t, ctx := w.t, w.t.Context()
	p := w.startProcess(1, execution.ProcessStart{Command: "trap 'echo caught; exit 5' USR1; echo ready; while true; do sleep 0.05; done"})
	if got, err := w.WaitProcess(ctx, p.ID, execution.Condition{Log: "ready"}, time.Minute); err != nil || !got.Met {
		t.Fatalf("WaitProcess = %+v, %v", got, err)
	}
	codetest.OK(w.t, "SignalProcess", codetest.ErrOf(w.SignalProcess(ctx, p.ID, int(unix.SIGUSR1))))
	got, err := w.WaitProcess(ctx, p.ID, execution.Condition{}, time.Minute)
	if err != nil || got.End == nil || got.End.ExitCode != 5 {
		t.Errorf("WaitProcess = %+v, %v", got, err)
	}
	codetest.Want(w.t, "a signal to what has ended", codetest.ErrOf(w.SignalProcess(ctx, p.ID, int(unix.SIGUSR1))), sandbox.Conflict)
}

func absentProcesses(w *world) {
	ctx, id := w.t.Context(), processID(9)
	for what, err := range map[string]error{
		"GetProcess":     codetest.ErrOf(w.GetProcess(ctx, id)),
		"EndProcess":     codetest.ErrOf(w.EndProcess(ctx, id)),
		"WaitProcess":    codetest.ErrOf(w.WaitProcess(ctx, id, execution.Condition{}, time.Second)),
		"AbandonProcess": w.AbandonProcess(ctx, id, time.Second),
		"ReadOutput":     w.ReadOutput(ctx, id, 0, false, func(execution.Output) error { return nil }),
		"WriteInput":     codetest.ErrOf(w.WriteInput(ctx, id, execution.Input{Data: []byte("x")})),
		"SignalProcess":  codetest.ErrOf(w.SignalProcess(ctx, id, 15)),
		"ResizeProcess":  codetest.ErrOf(w.ResizeProcess(ctx, id, execution.TerminalSize{Cols: 80, Rows: 24})),
	} {
		codetest.Want(w.t, what, err, sandbox.NotFound)
	}
	if all, err := w.ListProcesses(ctx); err != nil || len(all) != 0 {
		w.t.Errorf("ListProcesses = %+v, %v", all, err)
	}
}

func absentContexts(w *world) {
	ctx := w.t.Context()
	for what, err := range map[string]error{
		"RestartContext":   codetest.ErrOf(w.RestartContext(ctx, "none")),
		"InterruptContext": codetest.ErrOf(w.InterruptContext(ctx, "none")),
		"DeleteContext":    w.DeleteContext(ctx, "none"),
		"Execute": codetest.ErrOf(w.Execute(ctx, execution.CellRequest{Context: "none", Language: "python", Code: "1"}, func(execution.RunEvent) error {
			return nil
		})),
	} {
		codetest.Want(w.t, what, err, sandbox.NotFound)
	}
	if all, err := w.Contexts(ctx); err != nil || slices.ContainsFunc(all, func(c execution.Context) bool { return !c.Default }) {
		w.t.Errorf("Contexts = %+v, %v", all, err)
	}
	if there, err := w.Programs(ctx, []string{"no-such-program", "bash"}); err != nil || !slices.Equal(there, []string{"bash"}) {
		w.t.Errorf("Programs = %v, %v", there, err)
	}
}

func inspect(w *world) {
	t, ctx := w.t, w.t.Context()
	l, err := net.Listen("tcp4", "127.0.0.1:0") // a Guest on this machine sees this port
	codetest.OK(w.t, "listen", err)
	defer l.Close()
	if _, truncated, err := w.ListPorts(ctx); err != nil || truncated {
		t.Errorf("ListPorts: truncated %v, %v", truncated, err)
	}
	if load, err := w.Load(ctx); err != nil || load.CPUs < 1 || load.MemoryAll <= 0 || load.DiskAll <= 0 || time.Since(load.At) > time.Minute {
		t.Errorf("Load = %+v, %v", load, err)
	}
	if logs, err := w.Logs(ctx); err != nil || len(logs) != 0 {
		t.Errorf("Logs = %+v, %v", logs, err)
	}
}

func endedContext(w *world) {
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	for what, err := range map[string]error{
		"Stat":          codetest.ErrOf(w.Stat(ctx, w.Dir)),
		"ListProcesses": codetest.ErrOf(w.ListProcesses(ctx)),
		"Load":          codetest.ErrOf(w.Load(ctx)),
		"Run":           codetest.ErrOf(w.Run(ctx, execution.RunRequest{Args: bash("true")}, func(execution.RunEvent) error { return nil })),
	} {
		if err == nil {
			w.t.Errorf("%s succeeds", what)
		}
	}
}
