package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	processv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// processes is the service of Processes.
type processes struct{ executions *execution.Service }

// refOf is the Process in a message.
func refOf(m interface {
	GetSandboxId() string
	GetProcessId() string
},
) (execution.ProcessRef, error) {
	ref := execution.ProcessRef{Sandbox: m.GetSandboxId(), Process: m.GetProcessId()}
	if ref.Sandbox == "" {
		return ref, sandbox.Errorf(sandbox.Invalid, "sandbox_id is missing")
	}
	if ref.Process == "" {
		return ref, sandbox.Errorf(sandbox.Invalid, "process_id is missing")
	}
	return ref, nil
}

func sizeOf(m *processv1.TerminalSize) *execution.TerminalSize {
	if m == nil {
		return nil
	}
	return &execution.TerminalSize{Cols: int(m.Cols), Rows: int(m.Rows)}
}

func startOf(m *processv1.StartRequest) (req execution.StartRequest, err error) {
	req = execution.StartRequest{
		Sandbox: m.SandboxId, Command: m.Command, Args: m.Argv, Shell: m.Shell, Name: m.Name, User: m.User, Cwd: m.Cwd, Env: m.Env,
		PTY: sizeOf(m.Pty), Stdin: m.Stdin, KeepStdin: m.KeepStdin, Background: m.Background, Key: m.IdempotencyKey,
	}
	if req.Sandbox == "" {
		return req, sandbox.Errorf(sandbox.Invalid, "sandbox_id is missing")
	}
	if req.Timeout, err = secondsOr("timeout_seconds", m.TimeoutSeconds, 0); err != nil {
		return req, err
	}
	if m.YieldMs != nil {
		if req.Yield, err = execution.YieldOf(*m.YieldMs); err != nil {
			return req, err
		}
	}
	if m.MaxOutputBytes != nil {
		if req.MaxOutput, err = execution.OutputBound(int(*m.MaxOutputBytes), execution.MaxProcessOutput); err != nil {
			return req, err
		}
	}
	return req, nil
}

func processViewOf(p execution.Process) *processv1.Process {
	v := &processv1.Process{
		ProcessId: text(p.PublicID), SandboxId: p.SandboxID, Timeline: p.Timeline, Name: text(p.Name), Pid: p.PID, State: "running",
		Command: text(p.Command), Cwd: text(p.Cwd), User: text(p.User), Shell: text(p.Shell),
		StartedAt: timestamp(execution.Plausible(p.StartedAt)), TimeoutSeconds: p.Timeout.Seconds(), OutputStart: p.OutputStart, OutputEnd: p.OutputEnd,
	}
	if p.PTY != nil {
		v.Pty = &processv1.TerminalSize{Cols: int32(p.PTY.Cols), Rows: int32(p.PTY.Rows)}
	}
	if p.End != nil {
		v.State, v.Status, v.ExitCode, v.EndedAt = "ended", string(p.Status), new(int32(p.ExitCode)), timestamp(execution.Plausible(p.EndedAt))
	}
	if p.Problem != nil {
		v.Error = &sandboxv1.Problem{Name: text(p.Problem.Name), Message: text(p.Problem.Message)}
	}
	return v
}

// Start implements the service.
func (s processes) Start(ctx context.Context, r *connect.Request[processv1.StartRequest]) (*connect.Response[processv1.StartResponse], error) {
	req, err := startOf(r.Msg)
	if err != nil {
		return nil, err
	}
	got, err := s.executions.StartProcess(ctx, tenantOf(ctx), req)
	if err != nil {
		return nil, err
	}
	defer got.Close()
	if err := holdTexts(ctx, got.Stdout, got.Stderr); err != nil {
		return nil, err
	}
	return connect.NewResponse(&processv1.StartResponse{
		Process: processViewOf(got.Process), RepeatedStart: got.Repeated, Stdout: got.Stdout.String(), Stderr: got.Stderr.String(), Offset: got.Offset,
	}), nil
}

// Get implements the service.
func (s processes) Get(ctx context.Context, r *connect.Request[processv1.GetRequest]) (*connect.Response[processv1.GetResponse], error) {
	ref, err := refOf(r.Msg)
	if err != nil {
		return nil, err
	}
	p, err := s.executions.GetProcess(ctx, tenantOf(ctx), ref)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&processv1.GetResponse{Process: processViewOf(p)}), nil
}

// List implements the service.
func (s processes) List(ctx context.Context, r *connect.Request[processv1.ListRequest]) (*connect.Response[processv1.ListResponse], error) {
	id, err := required(r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	all, err := s.executions.ListProcesses(ctx, tenantOf(ctx), id)
	if err != nil {
		return nil, err
	}
	res := &processv1.ListResponse{}
	for _, p := range all {
		res.Processes = append(res.Processes, processViewOf(p))
	}
	return connect.NewResponse(res), nil
}

// Output implements the service.
func (s processes) Output(ctx context.Context, r *connect.Request[processv1.OutputRequest], out *connect.ServerStream[processv1.OutputResponse]) error {
	if err := checkKnown(r.Msg); err != nil {
		return err
	}
	ref, err := refOf(r.Msg)
	if err != nil {
		return err
	}
	return s.executions.ReadOutput(ctx, tenantOf(ctx), ref, r.Msg.From, r.Msg.Follow, func(p *execution.Process, o execution.Output) error {
		for _, piece := range o.Pieces {
			sent := &processv1.Piece{Offset: piece.Offset, Stderr: piece.Stderr, Data: piece.Data}
			if err := out.Send(&processv1.OutputResponse{Event: &processv1.OutputResponse_Piece{Piece: sent}}); err != nil {
				return err
			}
		}
		if p == nil {
			return nil
		}
		return out.Send(&processv1.OutputResponse{Event: &processv1.OutputResponse_Process{Process: processViewOf(*p)}})
	})
}

// Input implements the service.
func (s processes) Input(ctx context.Context, r *connect.Request[processv1.InputRequest]) (*connect.Response[processv1.InputResponse], error) {
	ref, err := refOf(r.Msg)
	if err == nil {
		err = s.executions.WriteInput(ctx, tenantOf(ctx), ref, execution.Input{Data: r.Msg.Data, EOF: r.Msg.Eof})
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&processv1.InputResponse{WrittenBytes: int64(len(r.Msg.Data))}), nil
}

// Signal implements the service.
func (s processes) Signal(ctx context.Context, r *connect.Request[processv1.SignalRequest]) (*connect.Response[processv1.SignalResponse], error) {
	ref, err := refOf(r.Msg)
	if err != nil {
		return nil, err
	}
	p, err := s.executions.Signal(ctx, tenantOf(ctx), ref, r.Msg.Signal)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&processv1.SignalResponse{Process: processViewOf(p)}), nil
}

// Resize implements the service.
func (s processes) Resize(ctx context.Context, r *connect.Request[processv1.ResizeRequest]) (*connect.Response[processv1.ResizeResponse], error) {
	ref, err := refOf(r.Msg)
	if err == nil && r.Msg.Pty == nil {
		err = sandbox.Errorf(sandbox.Invalid, "pty is missing: it has cols and rows")
	}
	if err != nil {
		return nil, err
	}
	p, err := s.executions.Resize(ctx, tenantOf(ctx), ref, *sizeOf(r.Msg.Pty))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&processv1.ResizeResponse{Process: processViewOf(p)}), nil
}

// Wait implements the service.
func (s processes) Wait(ctx context.Context, r *connect.Request[processv1.WaitRequest]) (*connect.Response[processv1.WaitResponse], error) {
	ref, err := refOf(r.Msg)
	if err != nil {
		return nil, err
	}
	timeout, err := secondsOr("timeout_seconds", r.Msg.TimeoutSeconds, 0)
	if err != nil {
		return nil, err
	}
	got, err := s.executions.Wait(ctx, tenantOf(ctx), ref, r.Msg.For, timeout)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&processv1.WaitResponse{
		Met: got.Met, HttpStatus: int32(got.HTTPStatus), Line: text(got.Line), Offset: got.Offset, Process: processViewOf(got.Process),
	}), nil
}

// End implements the service.
func (s processes) End(ctx context.Context, r *connect.Request[processv1.EndRequest]) (*connect.Response[processv1.EndResponse], error) {
	ref, err := refOf(r.Msg)
	if err != nil {
		return nil, err
	}
	p, err := s.executions.EndProcess(ctx, tenantOf(ctx), ref)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&processv1.EndResponse{Process: processViewOf(p)}), nil
}
