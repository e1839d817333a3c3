package processes

import (
	"context"
	"errors"
	"math"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/contexts"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// maxRequest bounds one request of the host.
	maxRequest = 8 << 20
	// messageSize is how much output one message holds.
	messageSize = 256 << 10
	// maxSignal is the highest signal number.
	maxSignal = 64
)

// Service serves a Registry to the host.
type Service struct{ registry *Registry }

var _ guestv1connect.ProcessServiceHandler = (*Service)(nil)

// NewService returns the service of a Registry.
func NewService(r *Registry) *Service { return &Service{r} }

// Handler returns the service's path and handler.
func (s *Service) Handler() (string, http.Handler) {
	path, h := guestv1connect.NewProcessServiceHandler(s, connect.WithReadMaxBytes(maxRequest), server.Uncompressed)
	gathered := server.Gathered(h)
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == guestv1connect.ProcessServiceRunProcessProcedure { // usually short; other calls carry typed input
			gathered.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// StartProcess starts a Process and waits for its end for the requested time.
func (s *Service) StartProcess(ctx context.Context, r *connect.Request[guestv1.StartProcessRequest]) (*connect.Response[guestv1.StartProcessResponse], error) {
	m := r.Msg
	p, repeated, err := s.registry.Start(ctx, specOf(m))
	if err != nil {
		return nil, rpcError(err)
	}
	if wait := time.Duration(m.WaitMillis) * time.Millisecond; wait > 0 {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		p.Wait(ctx, Condition{})
	}
	answer := &guestv1.StartProcessResponse{Process: infoOf(p), Repeated: repeated}
	pieces, _, err := p.output.read(0, int(min(max(m.OutputLimit, 0), maxAnswer)))
	if err != nil {
		return nil, rpcError(err)
	}
	answer.Pieces = piecesOf(pieces)
	return connect.NewResponse(answer), nil
}

func specOf(m *guestv1.StartProcessRequest) Spec {
	spec := Spec{
		ID: m.Id, Args: m.Args, Line: m.Command, Shell: m.Shell, Name: m.Name, User: m.User, Cwd: m.Cwd, Env: m.Env,
		Stdin: m.Stdin, Keep: m.KeepStdin, Timeout: time.Duration(m.TimeoutMillis) * time.Millisecond,
		Key: m.IdempotencyKey, Fingerprint: m.Fingerprint,
	}
	if m.Terminal != nil {
		size := sizeOf(m.Terminal)
		spec.PTY = &size
	}
	return spec
}

// maxAnswer bounds the output in the answer to a start.
const maxAnswer = 8 << 20

func sizeOf(t *guestv1.Terminal) Size {
	const most = 1 << 15
	return Size{Cols: uint16(min(t.GetCols(), most)), Rows: uint16(min(t.GetRows(), most))}
}

func piecesOf(pieces []piece) []*guestv1.OutputPiece {
	out := make([]*guestv1.OutputPiece, len(pieces))
	for i, p := range pieces {
		out[i] = &guestv1.OutputPiece{Offset: p.offset, Stderr: p.stderr, Data: p.data}
	}
	return out
}

func infoOf(p *Process) *guestv1.ProcessInfo {
	info := &guestv1.ProcessInfo{
		Id: p.ID, Name: p.Name, Pid: int64(p.PID()), Command: p.Text, Cwd: p.Command.Cwd, User: p.Command.User.Name,
		Shell: p.Shell, StartedUnixNanos: p.Started.UnixNano(), TimeoutMillis: p.Timeout.Milliseconds(),
	}
	result, over := p.Result() // before the offsets: they are of its end, or later
	info.OutputStart, info.OutputEnd = p.output.bounds()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tty {
		info.Terminal = &guestv1.Terminal{Cols: uint32(p.size.Cols), Rows: uint32(p.size.Rows)}
	}
	if over {
		info.EndedUnixNanos = p.at.UnixNano()
		info.Ended = &guestv1.RunEnded{
			Status: guestv1.RunStatus(result.Status), ExitCode: int32(result.ExitCode), Signal: int32(result.Signal), Message: result.Message,
		}
	}
	return info
}

// rpcError gives an error of this package, or of server, its Connect code.
func rpcError(err error) error {
	var bad *server.InvalidError
	var busy *busyError
	code := connect.CodeInternal
	switch {
	case errors.As(err, &bad), errors.Is(err, errInput), errors.Is(err, errNoTerminal), errors.Is(err, errNoSignal), errors.Is(err, errGap):
		code = connect.CodeInvalidArgument
	case errors.As(err, &busy), errors.Is(err, errKeyReused), errors.Is(err, errKeyOld), errors.Is(err, errNameTaken),
		errors.Is(err, errEnded), errors.Is(err, errClosed), errors.Is(err, server.ErrNotBound), errors.Is(err, contexts.ErrDeleted):
		code = connect.CodeFailedPrecondition
	case errors.Is(err, syscall.EAGAIN):
		return connect.NewError(connect.CodeResourceExhausted, errors.New("no more processes may be started"))
	case errors.Is(err, contexts.ErrUnknown):
		code = connect.CodeNotFound
	case errors.Is(err, errTooMany), errors.Is(err, errNoSession), errors.Is(err, contexts.ErrBusy), errors.Is(err, contexts.ErrTooMany):
		code = connect.CodeResourceExhausted
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = connect.CodeCanceled
	}
	return connect.NewError(code, err)
}

func (s *Service) find(id string) (*Process, error) {
	if p := s.registry.Find(id); p != nil {
		return p, nil
	}
	return nil, connect.NewError(connect.CodeNotFound, errors.New("no such process, or it is no longer kept"))
}

// ListProcesses lists the running Processes and the Processes that ended last, except
// Processes whose end was delivered to their owner.
func (s *Service) ListProcesses(context.Context, *connect.Request[guestv1.ListProcessesRequest]) (*connect.Response[guestv1.ListProcessesResponse], error) {
	out := &guestv1.ListProcessesResponse{}
	for _, p := range s.registry.All() {
		if p.over() && p.output.delivered() {
			continue
		}
		out.Processes = append(out.Processes, infoOf(p))
	}
	return connect.NewResponse(out), nil
}

// GetProcess returns one Process.
func (s *Service) GetProcess(_ context.Context, r *connect.Request[guestv1.GetProcessRequest]) (*connect.Response[guestv1.GetProcessResponse], error) {
	p, err := s.find(r.Msg.Id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&guestv1.GetProcessResponse{Process: infoOf(p)}), nil
}

// ReadOutput streams output from an offset on.
func (s *Service) ReadOutput(ctx context.Context, r *connect.Request[guestv1.ReadOutputRequest], stream *connect.ServerStream[guestv1.ReadOutputResponse]) error {
	p, err := s.find(r.Msg.Id)
	if err != nil {
		return err
	}
	f := p.output.follow(r.Msg.From)
	defer f.leave()
	first := infoOf(p)
	if err := stream.Send(&guestv1.ReadOutputResponse{Process: first, NextOffset: f.next}); err != nil {
		return err
	}
	last := int64(math.MaxInt64) // offset of the end, once it is known: processes left behind may write for ever
	if !r.Msg.Follow {
		last = first.OutputEnd
	}
	for {
		if last == math.MaxInt64 && p.over() {
			_, last = p.output.bounds()
		}
		pieces, next, more, err := f.take(int(min(messageSize, max(last-f.next, 0))))
		if err != nil {
			return rpcError(err)
		}
		if len(pieces) > 0 {
			if err := stream.Send(&guestv1.ReadOutputResponse{Pieces: piecesOf(pieces), NextOffset: next}); err != nil {
				return err
			}
		}
		if next >= last {
			return stream.Send(&guestv1.ReadOutputResponse{Process: infoOf(p), NextOffset: next})
		}
		if more == nil {
			continue
		}
		select {
		case <-more:
		case <-p.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WriteInput writes input to a Process.
func (s *Service) WriteInput(ctx context.Context, r *connect.Request[guestv1.WriteInputRequest]) (*connect.Response[guestv1.WriteInputResponse], error) {
	p, err := s.find(r.Msg.Id)
	if err != nil {
		return nil, err
	}
	n, err := p.Write(ctx, Input{Data: r.Msg.Data, EOF: r.Msg.Eof, From: r.Msg.From})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&guestv1.WriteInputResponse{Written: int64(n)}), nil
}

// SignalProcess sends a signal to a Process's group.
func (s *Service) SignalProcess(_ context.Context, r *connect.Request[guestv1.SignalProcessRequest]) (*connect.Response[guestv1.SignalProcessResponse], error) {
	p, err := s.find(r.Msg.Id)
	if err != nil {
		return nil, err
	}
	if r.Msg.Signal < 1 || r.Msg.Signal > maxSignal {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no such signal"))
	}
	if err := p.Signal(syscall.Signal(r.Msg.Signal)); err != nil && !errors.Is(err, unix.ESRCH) {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&guestv1.SignalProcessResponse{Process: infoOf(p)}), nil
}

// ResizeProcess changes the size of a Process's terminal.
func (s *Service) ResizeProcess(_ context.Context, r *connect.Request[guestv1.ResizeProcessRequest]) (*connect.Response[guestv1.ResizeProcessResponse], error) {
	p, err := s.find(r.Msg.Id)
	if err != nil {
		return nil, err
	}
	if err := p.Resize(sizeOf(r.Msg.Terminal)); err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&guestv1.ResizeProcessResponse{Process: infoOf(p)}), nil
}

// EndProcess ends a Process and everything it started, and returns when it has
// ended. With UnlessFollowedMillis it ends the Process later, unless a client
// follows it by then.
func (s *Service) EndProcess(ctx context.Context, r *connect.Request[guestv1.EndProcessRequest]) (*connect.Response[guestv1.EndProcessResponse], error) {
	p, err := s.named(r.Msg)
	if err != nil {
		return nil, err
	}
	if wait := r.Msg.UnlessFollowedMillis; wait > 0 {
		go p.endUnlessFollowed(time.Duration(wait) * time.Millisecond)
		return connect.NewResponse(&guestv1.EndProcessResponse{Process: infoOf(p)}), nil
	}
	p.End()
	select {
	case <-p.ended:
	case <-ctx.Done():
		return nil, rpcError(ctx.Err())
	}
	return connect.NewResponse(&guestv1.EndProcessResponse{Process: infoOf(p)}), nil
}

// named returns the Process to end.
func (s *Service) named(m *guestv1.EndProcessRequest) (*Process, error) {
	if m.IdempotencyKey == "" {
		return s.find(m.Id)
	}
	if p := s.registry.FindKey(m.IdempotencyKey); p != nil {
		return p, nil
	}
	return nil, connect.NewError(connect.CodeNotFound, errors.New("no process was started with this Idempotency-Key, or it is no longer kept"))
}

// endUnlessFollowed ends p after a while, unless a client has begun to follow it.
func (p *Process) endUnlessFollowed(after time.Duration) {
	late := time.NewTimer(after)
	defer late.Stop()
	_, before := p.output.followers()
	select {
	case <-p.ended:
		return
	case <-late.C:
	}
	if now, ever := p.output.followers(); now == 0 && ever == before {
		p.End()
	}
}

// WaitProcess waits for a condition.
func (s *Service) WaitProcess(ctx context.Context, r *connect.Request[guestv1.WaitProcessRequest]) (*connect.Response[guestv1.WaitProcessResponse], error) {
	p, err := s.find(r.Msg.Id)
	if err != nil {
		return nil, err
	}
	c, err := conditionOf(r.Msg)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.Msg.TimeoutMillis)*time.Millisecond)
	defer cancel()
	o := p.Wait(ctx, c)
	return connect.NewResponse(&guestv1.WaitProcessResponse{
		Process: infoOf(p), Met: o.Met, HttpStatus: int32(o.HTTPStatus), Line: strings.ToValidUTF8(o.Line, "\uFFFD"), Offset: o.Offset,
	}), nil
}

func conditionOf(m *guestv1.WaitProcessRequest) (c Condition, err error) {
	const maxPort = 65535
	switch by := m.Condition.(type) {
	case *guestv1.WaitProcessRequest_Port:
		c.Port = int(min(by.Port, maxPort))
	case *guestv1.WaitProcessRequest_Http:
		c.HTTP, c.Path = int(min(by.Http.Port, maxPort)), by.Http.Path
	case *guestv1.WaitProcessRequest_Log:
		c.Log, err = regexp.Compile(by.Log)
	}
	return c, err
}
