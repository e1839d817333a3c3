package server

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"connectrpc.com/connect"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

// Control is the Guest's control service; only the host may call it.
type Control struct {
	Guest *Guest
	// End ends the Guest, and with it the Boot.
	End func()
	// Parked does further work before Bind, and Bound is called after each Bind;
	// nil: nothing.
	Parked, Bound func()
}

var _ guestv1connect.GuestServiceHandler = (*Control)(nil)

// maxRequest bounds one request of the host: code and input of a run.
const maxRequest = 40 << 20

// Uncompressed disables compression of a service's answers: the way to the host is
// short, and a compressor takes a megabyte and a garbage collection.
var Uncompressed = connect.WithCompressMinBytes(math.MaxInt)

// Handler returns the service's path and handler.
func (c *Control) Handler() (string, http.Handler) {
	path, h := guestv1connect.NewGuestServiceHandler(c, connect.WithReadMaxBytes(maxRequest), Uncompressed)
	return path, Gathered(h)
}

// OnlyFrom accepts connections from one address and closes all others before a
// byte is read.
func OnlyFrom(l net.Listener, host netip.Addr) net.Listener { return &onlyFrom{l, host} }

type onlyFrom struct {
	net.Listener
	host netip.Addr
}

func (l *onlyFrom) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, err := netip.ParseAddrPort(c.RemoteAddr().String())
		if err == nil && from.Addr().Unmap() == l.host {
			return c, nil
		}
		c.Close()
	}
}

// Health returns the version of the Guest and the owner of the Boot.
func (c *Control) Health(_ context.Context, r *connect.Request[guestv1.HealthRequest]) (*connect.Response[guestv1.HealthResponse], error) {
	if at := r.Msg.SavedAtUnixNano; at > 0 {
		c.Guest.SetSavedAt(time.Unix(0, at))
	}
	owner, _ := c.Guest.Owner()
	return connect.NewResponse(&guestv1.HealthResponse{Version: guest.Version, SandboxId: owner.SandboxID, BootNumber: owner.BootNumber}), nil
}

// Park readies a blank Boot to wait in a Pool.
func (c *Control) Park(_ context.Context, r *connect.Request[guestv1.ParkRequest]) (*connect.Response[guestv1.ParkResponse], error) {
	if err := c.Guest.Limit(r.Msg.PidsLimit); err != nil {
		return nil, connectError(err)
	}
	if c.Parked != nil {
		c.Parked()
	}
	c.Guest.Park()
	return connect.NewResponse(&guestv1.ParkResponse{}), nil
}

// Bind opens the Boot's life under an owner.
func (c *Control) Bind(_ context.Context, r *connect.Request[guestv1.BindRequest]) (*connect.Response[guestv1.BindResponse], error) {
	m := r.Msg
	err := c.Guest.Bind(Owner{
		SandboxID: m.SandboxId, BootNumber: m.BootNumber, AccessToken: m.AccessToken, Template: m.Template,
		Hostname: m.Hostname, Env: m.Env, User: m.DefaultUser, Cwd: m.DefaultCwd, Timeline: m.Timeline, PidsLimit: m.PidsLimit,
		Restored: m.Restored, Authority: m.Authority, Volumes: volumeMounts(m.Volumes),
	}, m.UnixNanos, m.Entropy)
	switch {
	case errors.Is(err, ErrBound):
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case err != nil:
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if c.Bound != nil {
		c.Bound()
	}
	err = c.Guest.begin()
	if m.Restored {
		// A restored Boot is bound whether or not its Template's start command can
		// be started, and its ready command is not awaited.
		return connect.NewResponse(&guestv1.BindResponse{Mounted: int32(len(m.Volumes))}), nil
	}
	if err != nil {
		return nil, connectError(err)
	}
	return connect.NewResponse(&guestv1.BindResponse{Waits: c.Guest.Waits(), Mounted: int32(len(m.Volumes))}), nil
}

func volumeMounts(mounts []*guestv1.VolumeMount) []VolumeMount {
	var out []VolumeMount
	for _, m := range mounts {
		out = append(out, VolumeMount{ID: m.Id, Path: m.Path})
	}
	return out
}

// Ready waits until the Template's ready command succeeds.
func (c *Control) Ready(ctx context.Context, r *connect.Request[guestv1.ReadyRequest]) (*connect.Response[guestv1.ReadyResponse], error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.Msg.TimeoutMillis)*time.Millisecond)
	defer cancel()
	if err := c.Guest.Ready(ctx); err != nil {
		return nil, connectError(err)
	}
	return connect.NewResponse(&guestv1.ReadyResponse{}), nil
}

// Run runs one program to its end.
func (c *Control) Run(ctx context.Context, r *connect.Request[guestv1.RunRequest], stream *connect.ServerStream[guestv1.RunResponse]) error {
	m := r.Msg
	result, err := c.Guest.Run(ctx, RunRequest{
		Args: m.Args, Env: m.Env, Cwd: m.Cwd, User: m.User, Stdin: m.Stdin,
		Timeout:     time.Duration(m.TimeoutMillis) * time.Millisecond,
		StdoutLimit: m.StdoutLimit, StderrLimit: m.StderrLimit,
	}, &runStream{stream})
	if err != nil {
		return connectError(err)
	}
	return stream.Send(&guestv1.RunResponse{Event: &guestv1.RunResponse_Ended{Ended: EndMessage(result)}})
}

// EndMessage converts a result to its protocol message.
func EndMessage(r RunResult) *guestv1.RunEnded {
	return &guestv1.RunEnded{
		Status: guestv1.RunStatus(r.Status), ExitCode: int32(r.ExitCode), Signal: int32(r.Signal), Message: r.Message,
		StdoutDropped: r.StdoutDropped, StderrDropped: r.StderrDropped, DurationNanos: int64(r.Duration),
	}
}

// connectError gives an error of this package its code.
func connectError(err error) error {
	var bad *InvalidError
	switch {
	case errors.As(err, &bad):
		return connect.NewError(connect.CodeInvalidArgument, err)
	case errors.Is(err, ErrNotBound):
		return connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.Is(err, os.ErrNotExist):
		return connect.NewError(connect.CodeNotFound, err)
	}
	return connect.NewError(connect.CodeInternal, err)
}

type runStream struct {
	stream *connect.ServerStream[guestv1.RunResponse]
}

func (s *runStream) Started(pid int) error {
	return s.stream.Send(&guestv1.RunResponse{Event: &guestv1.RunResponse_Started{Started: &guestv1.RunStarted{Pid: int64(pid)}}})
}

func (s *runStream) Output(stderr bool, data []byte) error {
	m := &guestv1.RunResponse{Event: &guestv1.RunResponse_Stdout{Stdout: data}}
	if stderr {
		m = &guestv1.RunResponse{Event: &guestv1.RunResponse_Stderr{Stderr: data}}
	}
	return s.stream.Send(m)
}

// KillBiggest makes room when memory is used up.
func (c *Control) KillBiggest(context.Context, *connect.Request[guestv1.KillBiggestRequest]) (*connect.Response[guestv1.KillBiggestResponse], error) {
	pid, bytes := c.Guest.KillBiggest()
	return connect.NewResponse(&guestv1.KillBiggestResponse{Pid: int64(pid), RssBytes: bytes}), nil
}

// Shutdown asks every process to end, waits, and ends the Guest.
func (c *Control) Shutdown(ctx context.Context, r *connect.Request[guestv1.ShutdownRequest]) (*connect.Response[guestv1.ShutdownResponse], error) {
	c.Guest.TerminateAll(ctx, time.Duration(r.Msg.GraceMillis)*time.Millisecond)
	defer c.End()
	return connect.NewResponse(&guestv1.ShutdownResponse{}), nil
}
