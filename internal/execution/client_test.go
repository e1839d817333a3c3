package execution_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/client"
)

// talker is a Guest that speaks the protocol and runs nothing.
type talker struct {
	guestv1connect.UnimplementedGuestServiceHandler
	run func(context.Context, *guestv1.RunRequest, *connect.ServerStream[guestv1.RunResponse]) error
}

func (t *talker) Run(ctx context.Context, r *connect.Request[guestv1.RunRequest], s *connect.ServerStream[guestv1.RunResponse]) error {
	return t.run(ctx, r.Msg, s)
}

// overWire serves a Guest and returns the real client of it.
func overWire(t *testing.T, run func(context.Context, *guestv1.RunRequest, *connect.ServerStream[guestv1.RunResponse]) error) execution.Guest {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(guestv1connect.NewGuestServiceHandler(&talker{run: run}))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	c := client.New(func(ctx context.Context, port uint16) (net.Conn, error) {
		if port != sandbox.GuestPort {
			return nil, errors.New("another port")
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", srv.Listener.Addr().String())
	})
	t.Cleanup(c.Close)
	return c
}

func started(s *connect.ServerStream[guestv1.RunResponse]) error {
	return s.Send(&guestv1.RunResponse{Event: &guestv1.RunResponse_Started{Started: &guestv1.RunStarted{Pid: 9}}})
}

func printed(s *connect.ServerStream[guestv1.RunResponse], text string) error {
	return s.Send(&guestv1.RunResponse{Event: &guestv1.RunResponse_Stdout{Stdout: []byte(text)}})
}

func TestRunOverTheWire(t *testing.T) {
	guest := overWire(t, func(_ context.Context, r *guestv1.RunRequest, s *connect.ServerStream[guestv1.RunResponse]) error {
		if r.StdoutLimit != 12 || r.TimeoutMillis != 60_000 {
			t.Errorf("asked for %v", r)
		}
		_ = started(s)
		_ = printed(s, strings.Join(r.Args[:3], " "))
		return s.Send(&guestv1.RunResponse{Event: &guestv1.RunResponse_Ended{Ended: &guestv1.RunEnded{
			Status: guestv1.RunStatus_RUN_STATUS_OK, ExitCode: 2, StdoutDropped: 100,
		}}})
	})
	req := someCode
	req.MaxOutput = 8
	res, err := execution.NewServiceForTest(guest).Run(t.Context(), "t", req, nil)
	if err != nil || res.Status != execution.StatusError || res.ExitCode != 2 || res.Stdout.String() != "bash -c " || res.StdoutDropped != 102 {
		t.Errorf("%+v, %v", res, err)
	}
}

// A client that leaves ends its program inside, over the real protocol.
func TestLeavingReachesTheGuest(t *testing.T) {
	ended := make(chan struct{})
	guest := overWire(t, func(ctx context.Context, _ *guestv1.RunRequest, s *connect.ServerStream[guestv1.RunResponse]) error {
		defer close(ended)
		_ = started(s)
		_ = printed(s, "x")
		<-ctx.Done()
		return ctx.Err()
	})
	gone := errors.New("gone")
	_, err := execution.NewServiceForTest(guest).Run(t.Context(), "t", someCode, func(e execution.Event) error {
		if e.Kind == execution.EventStdout {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) {
		t.Errorf("Run = %v", err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the program runs on")
	}
}

// A Guest that breaks the protocol is away, whatever it sends.
func TestHostileGuests(t *testing.T) {
	for name, run := range map[string]func(context.Context, *guestv1.RunRequest, *connect.ServerStream[guestv1.RunResponse]) error{
		"ends without an end": func(_ context.Context, _ *guestv1.RunRequest, s *connect.ServerStream[guestv1.RunResponse]) error {
			return started(s)
		},
		"unknown status": func(_ context.Context, _ *guestv1.RunRequest, s *connect.ServerStream[guestv1.RunResponse]) error {
			_ = started(s)
			return s.Send(&guestv1.RunResponse{Event: &guestv1.RunResponse_Ended{Ended: &guestv1.RunEnded{Status: 77}}})
		},
		"negative count": func(_ context.Context, _ *guestv1.RunRequest, s *connect.ServerStream[guestv1.RunResponse]) error {
			return s.Send(&guestv1.RunResponse{Event: &guestv1.RunResponse_Ended{Ended: &guestv1.RunEnded{Status: 1, StdoutDropped: -1}}})
		},
		"a giant message": func(_ context.Context, _ *guestv1.RunRequest, s *connect.ServerStream[guestv1.RunResponse]) error {
			return printed(s, strings.Repeat("x", 64<<20))
		},
		"breaks off": func(context.Context, *guestv1.RunRequest, *connect.ServerStream[guestv1.RunResponse]) error {
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := execution.NewServiceForTest(overWire(t, run)).Run(t.Context(), "t", someCode, nil)
			if !errors.Is(err, sandbox.Unavailable) {
				t.Errorf("Run = %v", err)
			}
		})
	}
}

var someCode = execution.Request{Sandbox: "i00000000000000000000", Code: "x", Language: "bash", Timeout: time.Minute}

// The client passes on the advice to repeat a request that was not sent because of a
// pause.
func TestPausedBeforeItWasReached(t *testing.T) {
	s := execution.NewPausedServiceForTest(func(_ string, dial execution.Dial) execution.Guest { return client.New(client.Dial(dial)) })
	_, err := s.Run(t.Context(), "t", execution.Request{Sandbox: "i00000000000000000000", Code: "x", Language: "bash", Timeout: time.Second}, nil)
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Code != sandbox.Unavailable || e.RetryAfter == 0 {
		t.Errorf("%#v", err)
	}
}
