package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	processv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
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
	if _, err := (v1.Target{SandboxID: ref.Sandbox}).Required(); err != nil {
		return ref, err
	}
	if ref.Process == "" {
		return ref, sandbox.Errorf(sandbox.Invalid, "process_id is missing")
	}
	return ref, nil
}

func processOf(p execution.Process) *processv1.Process {
	return messageOf(&processv1.Process{}, rest.ProcessViewOf(p))
}

// Start implements the service.
func (s processes) Start(ctx context.Context, r *connect.Request[processv1.StartRequest]) (*connect.Response[processv1.StartResponse], error) {
	var asked v1.StartProcessRequest
	if err := take(&asked, r.Msg); err != nil {
		return nil, err
	}
	req, err := rest.StartRequest(&asked)
	if err != nil {
		return nil, err
	}
	req.Key = r.Msg.IdempotencyKey
	got, err := s.executions.StartProcess(ctx, tenantOf(ctx), req)
	if err != nil {
		return nil, err
	}
	defer got.Close()
	if err := holdTexts(ctx, got.Stdout, got.Stderr); err != nil {
		return nil, err
	}
	return connect.NewResponse(&processv1.StartResponse{
		Process: processOf(got.Process), RepeatedStart: got.Repeated, Stdout: got.Stdout.String(), Stderr: got.Stderr.String(), Offset: got.Offset,
	}), nil
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
		return out.Send(&processv1.OutputResponse{Event: &processv1.OutputResponse_Process{Process: processOf(*p)}})
	})
}
