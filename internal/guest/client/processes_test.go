package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// liar is a Guest whose user has replaced it.
type liar struct {
	guestv1connect.UnimplementedProcessServiceHandler
	says []*guestv1.ReadOutputResponse // the last of them again and again
}

func (l *liar) ReadOutput(_ context.Context, _ *connect.Request[guestv1.ReadOutputRequest], s *connect.ServerStream[guestv1.ReadOutputResponse]) error {
	for i := 0; ; i++ {
		if err := s.Send(l.says[min(i, len(l.says)-1)]); err != nil {
			return err
		}
	}
}

func (l *liar) GetProcess(context.Context, *connect.Request[guestv1.GetProcessRequest]) (*connect.Response[guestv1.GetProcessResponse], error) {
	return connect.NewResponse(&guestv1.GetProcessResponse{}), nil
}

func (l *liar) WriteInput(context.Context, *connect.Request[guestv1.WriteInputRequest]) (*connect.Response[guestv1.WriteInputResponse], error) {
	return connect.NewResponse(&guestv1.WriteInputResponse{Written: 100}), nil
}

// against returns a client of a Guest that lies.
func against(t *testing.T, says ...*guestv1.ReadOutputResponse) *Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(guestv1connect.NewProcessServiceHandler(&liar{says: says}))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	c := New(func(ctx context.Context, _ uint16) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", srv.Listener.Addr().String())
	})
	t.Cleanup(c.Close)
	return c
}

func TestLyingGuest(t *testing.T) {
	process := func(end int64) *guestv1.ProcessInfo {
		return &guestv1.ProcessInfo{Id: "#aaaaaaaaaaaaaaaa", OutputEnd: end}
	}
	data := func(at int64) []*guestv1.OutputPiece {
		return []*guestv1.OutputPiece{{Offset: at, Data: []byte("data")}}
	}
	for name, says := range map[string][]*guestv1.ReadOutputResponse{
		"no process first":      {{Pieces: data(0), NextOffset: 4}},
		"more than there is":    {{Process: process(4)}, {Pieces: data(0), NextOffset: 4}, {Pieces: data(4), NextOffset: 8}},
		"offsets that go back":  {{Process: process(100)}, {Pieces: data(8), NextOffset: 12}, {Pieces: data(0), NextOffset: 4}},
		"a next before the end": {{Process: process(100)}, {Pieces: data(8), NextOffset: 9}},
		"no ID":                 {{Process: &guestv1.ProcessInfo{}}},
		"an end before a start": {{Process: &guestv1.ProcessInfo{Id: "#aaaaaaaaaaaaaaaa", OutputStart: 5, OutputEnd: 4}}},
		"an overflow":           {{Process: process(1 << 62)}, {Pieces: data(1<<63 - 2), NextOffset: 1<<63 - 1}},
	} {
		if err := against(t, says...).ReadOutput(t.Context(), "x", 0, false, func(execution.Output) error { return nil }); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := against(t, &guestv1.ReadOutputResponse{Process: process(0)})
	if _, err := c.GetProcess(t.Context(), "x"); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("no process: %v", err)
	}
	if _, err := c.WriteInput(t.Context(), "x", execution.Input{Data: []byte("a")}); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("more input taken than was given: %v", err)
	}
	stop := errors.New("stop")
	if err := c.ReadOutput(t.Context(), "x", 0, true, func(execution.Output) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a reader that stops: %v", err)
	}
}
