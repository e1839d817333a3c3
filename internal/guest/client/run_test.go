package client_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/client"
)

// ender ends all that it is asked to run at once.
type ender struct {
	guestv1connect.UnimplementedGuestServiceHandler
	guestv1connect.UnimplementedContextServiceHandler
}

var ended = &guestv1.RunEnded{Status: guestv1.RunStatus_RUN_STATUS_OK}

func (ender) Run(_ context.Context, _ *connect.Request[guestv1.RunRequest], s *connect.ServerStream[guestv1.RunResponse]) error {
	return s.Send(&guestv1.RunResponse{Event: &guestv1.RunResponse_Ended{Ended: ended}})
}

func (ender) Execute(_ context.Context, _ *connect.Request[guestv1.ExecuteRequest], s *connect.ServerStream[guestv1.ExecuteResponse]) error {
	return s.Send(&guestv1.ExecuteResponse{Event: &guestv1.ExecuteResponse_Ended{Ended: &guestv1.ExecuteEnded{End: ended}}})
}

// What runs one after the other shares a connection.
func TestOneConnection(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(guestv1connect.NewGuestServiceHandler(ender{}))
	mux.Handle(guestv1connect.NewContextServiceHandler(ender{}))
	s := httptest.NewServer(mux)
	defer s.Close()
	var dialled atomic.Int32
	c := client.New(func(ctx context.Context, _ uint16) (net.Conn, error) {
		dialled.Add(1)
		return new(net.Dialer).DialContext(ctx, "tcp", s.Listener.Addr().String())
	})
	defer c.Close()
	ignore := func(execution.RunEvent) error { return nil }
	for range 20 {
		if _, err := c.Run(t.Context(), execution.RunRequest{Args: []string{"true"}}, ignore); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Execute(t.Context(), execution.CellRequest{Code: "1"}, ignore); err != nil {
			t.Fatal(err)
		}
	}
	if n := dialled.Load(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// parked is a Guest that waits in a Pool.
type parked struct {
	guestv1connect.UnimplementedGuestServiceHandler
	takes bool // whatever owner there is

	mu    sync.Mutex
	calls []string
}

func (p *parked) called(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, what)
}

func (p *parked) Park(context.Context, *connect.Request[guestv1.ParkRequest]) (*connect.Response[guestv1.ParkResponse], error) {
	p.called("park")
	return connect.NewResponse(&guestv1.ParkResponse{}), nil
}

func (p *parked) Bind(_ context.Context, r *connect.Request[guestv1.BindRequest]) (*connect.Response[guestv1.BindResponse], error) {
	p.called("bind " + r.Msg.SandboxId + r.Msg.AccessToken + r.Msg.Authority)
	if p.takes {
		return connect.NewResponse(&guestv1.BindResponse{}), nil
	}
	return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("none is named"))
}

// A Boot that waits in a Pool has rehearsed its Bind, with nothing of an owner, and is still
// nobody's.
func TestParkRehearsesBind(t *testing.T) {
	for _, takes := range []bool{false, true} {
		p := &parked{takes: takes}
		mux := http.NewServeMux()
		mux.Handle(guestv1connect.NewGuestServiceHandler(p))
		s := httptest.NewServer(mux)
		c := client.New(func(ctx context.Context, _ uint16) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", s.Listener.Addr().String())
		}, client.WithTrusted("an authority"))
		err := c.Park(t.Context(), 10)
		if takes != errors.Is(err, sandbox.Unavailable) {
			t.Errorf("a guest that takes any owner (%t): %v", takes, err)
		}
		p.mu.Lock()
		if want := []string{"park", "bind ", "bind "}; !takes && !slices.Equal(p.calls, want) {
			t.Errorf("the guest was called %q, want %q", p.calls, want)
		}
		p.mu.Unlock()
		c.Close()
		s.Close()
	}
}
