package rest

import (
	"io"
	"net/http"
	"time"

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
	req := execution.StartRequest{
		Command: b.Command, Args: b.Argv, Shell: b.Shell, Name: b.Name, User: b.User, Cwd: b.Cwd, Env: b.Env, PTY: terminalSize(b.PTY),
		KeepStdin: b.KeepStdin, Background: b.Background, Timeout: b.TimeoutSeconds.Duration(),
	}
	var err error
	if req.Stdin, err = b.Input(); err != nil {
		return req, err
	}
	if req.Key, err = idempotencyKey(r); err != nil {
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

// processViewOf is a Process without its output.
func processViewOf(p execution.Process) v1.Process { return processOf[*string, []byte](p) }

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

// ListProcesses answers GET /api/v1/processes.
func (a *API) ListProcesses(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := query(r, "sandbox_id", "session_id", "state")
	if err != nil {
		return err
	}
	id, err := v1.Target{SandboxID: values.Get("sandbox_id"), SessionID: values.Get("session_id")}.Required()
	if err != nil {
		return err
	}
	state := values.Get("state")
	if state != "" && state != stateRunning && state != stateEnded {
		return sandbox.Errorf(sandbox.Invalid, "state must be %s or %s", stateRunning, stateEnded)
	}
	all, err := a.Executions.ListProcesses(r.Context(), who.Tenant, id)
	if err != nil {
		return err
	}
	reply := v1.Processes{Processes: []v1.Process{}}
	for _, p := range all {
		if state == "" || stateOf(p) == state {
			reply.Processes = append(reply.Processes, processViewOf(p))
		}
	}
	return Reply(w, http.StatusOK, reply)
}

// processRef returns the Process in the path of r and the query parameters in known.
func processRef(r *http.Request, known ...string) (execution.ProcessRef, map[string]string, error) {
	ref := execution.ProcessRef{Process: r.PathValue("id")}
	values, err := query(r, append(known, "sandbox_id", "session_id")...)
	if err != nil {
		return ref, nil, err
	}
	more := map[string]string{}
	for _, name := range known {
		more[name] = values.Get(name)
	}
	ref.Sandbox, err = v1.Target{SandboxID: values.Get("sandbox_id"), SessionID: values.Get("session_id")}.Required()
	return ref, more, err
}

// GetProcess answers GET /api/v1/processes/{id}.
func (a *API) GetProcess(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	ref, _, err := processRef(r)
	if err != nil {
		return err
	}
	p, err := a.Executions.GetProcess(r.Context(), who.Tenant, ref)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, processViewOf(p))
}

// EndProcess answers DELETE /api/v1/processes/{id} when the Process is over.
func (a *API) EndProcess(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	ref, _, err := processRef(r)
	if err != nil {
		return err
	}
	p, err := a.Executions.EndProcess(r.Context(), who.Tenant, ref)
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, processViewOf(p))
}

// WriteProcessInput answers POST /api/v1/processes/{id}/stdin once the Process has
// received the body.
func (a *API) WriteProcessInput(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	ref, more, err := processRef(r, "eof")
	if err != nil {
		return err
	}
	eof, err := parseFlag("eof", more["eof"])
	if err != nil {
		return err
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return bodyError(err)
	}
	if err := a.Executions.WriteInput(r.Context(), who.Tenant, ref, execution.Input{Data: data, EOF: eof}); err != nil {
		return err
	}
	return Reply(w, http.StatusOK, v1.Written{Bytes: len(data)})
}

// SignalProcess answers POST /api/v1/processes/{id}/signal.
func (a *API) SignalProcess(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.SignalRequest
	ref, _, err := processRef(r)
	if err != nil {
		return err
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	p, err := a.Executions.Signal(r.Context(), who.Tenant, ref, string(body.Signal))
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, processViewOf(p))
}

// ResizeProcess answers POST /api/v1/processes/{id}/resize.
func (a *API) ResizeProcess(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	var body v1.TerminalSize
	ref, _, err := processRef(r)
	if err != nil {
		return err
	}
	if err := Decode(r, &body); err != nil {
		return err
	}
	p, err := a.Executions.Resize(r.Context(), who.Tenant, ref, execution.TerminalSize(body))
	if err != nil {
		return err
	}
	return Reply(w, http.StatusOK, processViewOf(p))
}

// WaitProcess answers GET /api/v1/processes/{id}/wait when the awaited state is
// reached, or cannot be reached any more.
func (a *API) WaitProcess(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	ref, more, err := processRef(r, "for", "timeout_seconds")
	if err != nil {
		return err
	}
	var timeout time.Duration
	if s := more["timeout_seconds"]; s != "" {
		var ok bool
		if timeout, ok = secondsOf(s); !ok {
			return sandbox.NotSeconds("timeout_seconds", s)
		}
	}
	got, err := a.Executions.Wait(r.Context(), who.Tenant, ref, more["for"], timeout)
	if err != nil {
		return err
	}
	v := v1.Wait{Met: got.Met, HTTPStatus: got.HTTPStatus, Process: processViewOf(got.Process)}
	if got.Met && got.Offset > 0 {
		v.Line, v.Offset = &got.Line, &got.Offset
	}
	return Reply(w, http.StatusOK, v)
}
