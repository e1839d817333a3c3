package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// Execute implements the service. The end of ctx, the call's context, ends the code.
func (a *API) Execute(ctx context.Context, r *connect.Request[sandboxv1.ExecuteRequest], out *connect.ServerStream[sandboxv1.ExecuteResponse]) error {
	if err := checkKnown(r.Msg); err != nil {
		return err
	}
	var asked v1.ExecuteRequest
	if err := take(&asked, r.Msg); err != nil {
		return err
	}
	req, err := rest.ExecutionRequest(&asked)
	if err != nil {
		return err
	}
	res, err := a.Executions.Run(ctx, tenantOf(ctx), req, func(e execution.Event) error {
		return out.Send(eventOf(e))
	})
	if err != nil {
		return err
	}
	defer res.Close()
	if err := holdTexts(ctx, res.Stdout, res.Stderr); err != nil {
		return err
	}
	return out.Send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Result{Result: resultOf(res)}})
}

// holdTexts waits until the output of a finished execution may be held in memory as one
// message.
func holdTexts(ctx context.Context, all ...*spool.Spool) error {
	n := 0
	for _, s := range all {
		n += s.Len()
	}
	memory := spool.Gather{Most: int64(n)}
	return sandbox.Begun(memory.Add(ctx, n))
}

func eventOf(e execution.Event) *sandboxv1.ExecuteResponse {
	switch e.Kind {
	case execution.EventStart:
		return &sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Start{Start: &sandboxv1.Start{SandboxId: e.SandboxID}}}
	case execution.EventStdout:
		return &sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Stdout{Stdout: e.Text}}
	case execution.EventStderr:
		return &sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Stderr{Stderr: e.Text}}
	}
	v := &sandboxv1.Value{IsMainResult: e.Value.Main, Data: map[string]string{}}
	for mime, data := range e.Value.Data {
		v.Data[text(mime)] = text(data)
	}
	return &sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Display{Display: v}}
}

func resultOf(res execution.Result) *sandboxv1.Result {
	m := &sandboxv1.Result{
		SandboxId: res.SandboxID, Status: string(res.Status), ExitCode: int32(res.ExitCode),
		Stdout: res.Stdout.String(), Stderr: res.Stderr.String(), Results: int32(res.Values.Len()),
		DurationMs: float64(res.Duration.Microseconds()) / 1000,
	}
	if p := res.Problem; p != nil {
		m.Error = &sandboxv1.Problem{Name: text(p.Name), Message: text(p.Message), Traceback: text(p.Traceback)}
	}
	if res.StdoutDropped > 0 || res.StderrDropped > 0 || res.ValuesDropped > 0 {
		m.Truncated = &sandboxv1.Truncated{
			StdoutBytesDropped: res.StdoutDropped, StderrBytesDropped: res.StderrDropped, ResultsDropped: res.ValuesDropped,
		}
	}
	if c := res.Cell; c != nil {
		m.Context = &sandboxv1.Context{
			ContextId: text(c.ContextID), ExecutionCount: c.Count, ContextRestarted: c.Restarted, ContextEnded: c.Lost,
		}
	}
	return m
}
