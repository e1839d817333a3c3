package rest

import (
	"context"
	"io"
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// terminalSize is nil for nil.
func terminalSize(s *v1.TerminalSize) *execution.TerminalSize {
	if s == nil {
		return nil
	}
	return &execution.TerminalSize{Cols: s.Cols, Rows: s.Rows}
}

// startRequest returns the request in b and the headers of r.
func startRequest(b *v1.StartProcessRequest, r *http.Request) (execution.StartRequest, error) {
	req, err := StartRequest(b)
	if err == nil {
		req.Key, err = idempotencyKey(r)
	}
	return req, err
}

// StartRequest converts b.
func StartRequest(b *v1.StartProcessRequest) (execution.StartRequest, error) {
	req := execution.StartRequest{
		Command: b.Command, Args: b.Argv, Shell: b.Shell, Name: b.Name, User: b.User, Cwd: b.Cwd, Env: b.Env, PTY: terminalSize(b.PTY),
		KeepStdin: b.KeepStdin, Background: b.Background, Timeout: b.TimeoutSeconds.Duration(),
	}
	var err error
	if req.Stdin, err = b.Input(); err != nil {
		return req, err
	}
	if b.YieldMS != nil {
		if req.Yield, err = execution.YieldOf(*b.YieldMS); err != nil {
			return req, err
		}
	}
	if b.MaxOutputBytes != nil {
		if req.MaxOutput, err = execution.OutputBound(*b.MaxOutputBytes, execution.MaxProcessOutput); err != nil {
			return req, err
		}
	}
	req.Sandbox, err = b.Required()
	return req, err
}

const (
	stateRunning = "running"
	stateEnded   = "ended"
)

// ProcessViewOf is a Process without its output.
func ProcessViewOf(p execution.Process) v1.Process { return processOf[*string, []byte](p) }

// processOf is a Process whose output fields, of these types, are not set yet.
func processOf[Text, Bytes any](p execution.Process) v1.ProcessOf[Text, Bytes] {
	v := v1.ProcessOf[Text, Bytes]{
		ID: p.PublicID, SandboxID: p.SandboxID, SessionID: p.SandboxID, Timeline: p.Timeline, Name: p.Name, PID: p.PID,
		State: stateOf(p), Command: p.Command, Cwd: p.Cwd, User: p.User, Shell: p.Shell,
		StartedAt: v1.Time(execution.Plausible(p.StartedAt)), TimeoutSeconds: p.Timeout.Seconds(),
		OutputStart: p.OutputStart, OutputEnd: p.OutputEnd,
	}
	if p.PTY != nil {
		v.PTY = &v1.TerminalSize{Cols: p.PTY.Cols, Rows: p.PTY.Rows}
	}
	if p.End != nil {
		v.Status, v.ExitCode, v.EndedAt = string(p.Status), &p.ExitCode, v1.Time(execution.Plausible(p.EndedAt))
	}
	if p.Problem != nil {
		v.Error = &v1.Problem{Name: p.Problem.Name, Message: p.Problem.Message}
	}
	return v
}

func stateOf(p execution.Process) string {
	if p.End != nil {
		return stateEnded
	}
	return stateRunning
}

// StartProcess answers POST /api/v1/processes when the Process has ended, or with the
// output so far after a while: with 201, or 200 when an earlier request had started it.
func (a *API) StartProcess(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.StartProcessRequest
	if err := Decode(r, &body); err != nil {
		return err
	}
	req, err := startRequest(&body, r)
	if err != nil {
		return err
	}
	got, err := a.Executions.StartProcess(r.Context(), who.Tenant, req)
	if err != nil {
		return err
	}
	defer got.Close()
	v := processOf[*longText, *longText](got.Process)
	v.Stdout, v.Stderr, v.Offset = textIn(got.Stdout), textIn(got.Stderr), &got.Offset
	v.StdoutBase64, v.StderrBase64 = bytesIn(got.StdoutBytes), bytesIn(got.StderrBytes)
	if got.Repeated {
		return replyLong(w, http.StatusOK, v)
	}
	return replyLong(w, http.StatusCreated, v)
}

// processList asks for the Processes of a Sandbox in a state; empty: in any.
type processList struct {
	v1.Target
	State string `json:"state"`
}

func (in *processList) read(r *http.Request) error {
	values, err := query(r, append(targetParameters, "state")...)
	in.Target, in.State = targetIn(values), values.Get("state")
	return err
}

// ListProcesses returns the Processes of a Sandbox.
func (a *API) ListProcesses(ctx context.Context, c Call, in *processList) (v1.Processes, error) {
	list := v1.Processes{Processes: []v1.Process{}}
	id, err := in.Required()
	if err != nil {
		return list, err
	}
	if in.State != "" && in.State != stateRunning && in.State != stateEnded {
		return list, sandbox.Errorf(sandbox.Invalid, "state must be %s or %s", stateRunning, stateEnded)
	}
	all, err := a.Executions.ListProcesses(ctx, c.Who.Tenant, id)
	for _, p := range all {
		if in.State == "" || stateOf(p) == in.State {
			list.Processes = append(list.Processes, ProcessViewOf(p))
		}
	}
	return list, err
}

// processRef returns the Process in the path of r and the query parameters in known.
func processRef(r *http.Request, known ...string) (execution.ProcessRef, map[string]string, error) {
	ref := execution.ProcessRef{Process: r.PathValue("id")}
	values, err := query(r, append(known, targetParameters...)...)
	if err != nil {
		return ref, nil, err
	}
	more := map[string]string{}
	for _, name := range known {
		more[name] = values.Get(name)
	}
	ref.Sandbox, err = targetIn(values).Required()
	return ref, more, err
}

// refOf is the Process that a call is about.
func (c Call) refOf(t v1.Target) (ref execution.ProcessRef, err error) {
	ref.Process = c.ID
	ref.Sandbox, err = t.Required()
	return ref, err
}

// GetProcess returns a Process.
func (a *API) GetProcess(ctx context.Context, c Call, in *targetQuery) (v1.Process, error) {
	return a.withProcess(ctx, c, in.Target, a.Executions.GetProcess)
}

// EndProcess ends a Process and returns once it is over.
func (a *API) EndProcess(ctx context.Context, c Call, in *targetQuery) (v1.Process, error) {
	return a.withProcess(ctx, c, in.Target, a.Executions.EndProcess)
}

// withProcess calls do for the Process that a call is about.
func (a *API) withProcess(ctx context.Context, c Call, t v1.Target, do func(context.Context, sandbox.TenantID, execution.ProcessRef) (execution.Process, error)) (v1.Process, error) {
	ref, err := c.refOf(t)
	if err != nil {
		return v1.Process{}, err
	}
	p, err := do(ctx, c.Who.Tenant, ref)
	return ProcessViewOf(p), err
}

// processInput is input of a Process. REST has Data as the body.
type processInput struct {
	v1.Target
	Data []byte `json:"data"`
	EOF  bool   `json:"eof"` // the input ends after Data
}

func (in *processInput) read(r *http.Request) error {
	values, err := query(r, append(targetParameters, "eof")...)
	if err != nil {
		return err
	}
	in.Target = targetIn(values)
	if in.EOF, err = parseFlag("eof", values.Get("eof")); err != nil {
		return err
	}
	if in.Data, err = io.ReadAll(r.Body); err != nil {
		return bodyError(err)
	}
	return nil
}

// WriteProcessInput returns once a Process has received its input.
func (a *API) WriteProcessInput(ctx context.Context, c Call, in *processInput) (v1.Written, error) {
	ref, err := c.refOf(in.Target)
	if err != nil {
		return v1.Written{}, err
	}
	return v1.Written{Bytes: len(in.Data)}, a.Executions.WriteInput(ctx, c.Who.Tenant, ref, execution.Input{Data: in.Data, EOF: in.EOF})
}

// processSignal is a signal to a Process.
type processSignal struct {
	v1.Target
	v1.SignalRequest
}

func (in *processSignal) read(r *http.Request) error {
	return readBoth(r, &in.Target, &in.SignalRequest)
}

// readBoth reads the Sandbox from the query and the rest from the body.
func readBoth(r *http.Request, t *v1.Target, body any) error {
	var q targetQuery
	if err := q.read(r); err != nil {
		return err
	}
	*t = q.Target
	return Decode(r, body)
}

// SignalProcess sends a signal to a Process.
func (a *API) SignalProcess(ctx context.Context, c Call, in *processSignal) (v1.Process, error) {
	return a.withProcess(ctx, c, in.Target, func(ctx context.Context, tenant sandbox.TenantID, ref execution.ProcessRef) (execution.Process, error) {
		return a.Executions.Signal(ctx, tenant, ref, string(in.Signal))
	})
}

// processSize is a new size of a terminal.
type processSize struct {
	v1.Target
	v1.TerminalSize
}

func (in *processSize) read(r *http.Request) error { return readBoth(r, &in.Target, &in.TerminalSize) }

// ResizeProcess changes the size of a Process's terminal.
func (a *API) ResizeProcess(ctx context.Context, c Call, in *processSize) (v1.Process, error) {
	return a.withProcess(ctx, c, in.Target, func(ctx context.Context, tenant sandbox.TenantID, ref execution.ProcessRef) (execution.Process, error) {
		return a.Executions.Resize(ctx, tenant, ref, execution.TerminalSize(in.TerminalSize))
	})
}

// processWait is a wait for a state of a Process. A nil timeout is the default.
type processWait struct {
	v1.Target
	For            string      `json:"for"`
	TimeoutSeconds *v1.Seconds `json:"timeout_seconds"`
}

func (in *processWait) read(r *http.Request) error {
	values, err := query(r, append(targetParameters, "for", "timeout_seconds")...)
	if err != nil {
		return err
	}
	in.Target, in.For = targetIn(values), values.Get("for")
	if s := values.Get("timeout_seconds"); s != "" {
		timeout, ok := secondsOf(s)
		if !ok {
			return sandbox.NotSeconds("timeout_seconds", s)
		}
		in.TimeoutSeconds = new(v1.Seconds(timeout))
	}
	return nil
}

// WaitProcess returns when the awaited state is reached, or cannot be reached any more.
func (a *API) WaitProcess(ctx context.Context, c Call, in *processWait) (v1.Wait, error) {
	ref, err := c.refOf(in.Target)
	if err != nil {
		return v1.Wait{}, err
	}
	got, err := a.Executions.Wait(ctx, c.Who.Tenant, ref, in.For, in.TimeoutSeconds.Duration())
	v := v1.Wait{Met: got.Met, HTTPStatus: got.HTTPStatus, Process: ProcessViewOf(got.Process)}
	if got.Met && got.Offset > 0 {
		v.Line, v.Offset = &got.Line, &got.Offset
	}
	return v, err
}
