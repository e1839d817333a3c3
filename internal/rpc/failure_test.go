package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox"
	schedulerv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/scheduler/v1"
)

// placement is a Placement that calls a test's function.
type placement func(context.Context) ([]string, error)

func (p placement) PlaceElsewhere(ctx context.Context, needs sandbox.BootNeeds, _ string) (string, error) {
	_, err := p.Place(ctx, needs)
	return "", err
}

func (p placement) Place(ctx context.Context, _ sandbox.BootNeeds) ([]string, error) {
	return p(ctx)
}

// needed records the needs that arrive.
type needed struct{ got []sandbox.BootNeeds }

func (n *needed) Place(_ context.Context, needs sandbox.BootNeeds) ([]string, error) {
	n.got = append(n.got, needs)
	return nil, nil
}

func (n *needed) PlaceElsewhere(ctx context.Context, needs sandbox.BootNeeds, _ string) (string, error) {
	_, err := n.Place(ctx, needs)
	return "", err
}

func TestNeedsArriveWhole(t *testing.T) {
	var n needed
	s := serve(t, Scheduler, SchedulerService(&n))
	p := NewPlacement(s.unix, s.self(SessionManager, ""))
	defer p.Close()
	want := sandbox.BootNeeds{Tenant: "t", Image: "i", Shape: sandbox.DefaultShape(), CPU: "avx"}
	_, err := p.Place(t.Context(), want)
	_, elsewhereErr := p.PlaceElsewhere(t.Context(), want, "n")
	if err != nil || elsewhereErr != nil || len(n.got) != 2 || n.got[0] != want || n.got[1] != want {
		t.Errorf("%+v, %v, %v, want %+v twice", n.got, err, elsewhereErr, want)
	}
}

func TestErrorsArriveWhole(t *testing.T) {
	var answer error
	s := serve(t, Scheduler, SchedulerService(placement(func(context.Context) ([]string, error) { return nil, answer })))
	for _, address := range []string{s.unix, s.tcp} {
		p := NewPlacement(address, s.self(SessionManager, ""))
		defer p.Close()
		for _, code := range sandbox.Codes() {
			if code == sandbox.Anonymous { // see TestRefused
				continue
			}
			for _, sent := range []*sandbox.Error{
				{Code: code, Detail: "one sentence"},
				{Code: code, Detail: "later", RetryAfter: 1500 * time.Millisecond, Cause: errors.New("why it is so")},
			} {
				answer = fmt.Errorf("in a step: %w", sent)
				_, err := p.Place(t.Context(), sandbox.BootNeeds{})
				var got *sandbox.Error
				if !errors.As(err, &got) || got.Code != code || got.Detail != sent.Detail || got.RetryAfter != sent.RetryAfter {
					t.Errorf("%+v arrives as %+v", sent, err)
				} else if sent.Cause != nil && !strings.Contains(got.Error(), "why it is so") {
					t.Errorf("the cause of %+v is lost: %v", sent, got)
				}
			}
		}
		answer = sandbox.CPUFeatures("sse").Admit("avx", "a")
		if _, err := p.Place(t.Context(), sandbox.BootNeeds{}); !errors.Is(err, sandbox.ErrCPU) {
			t.Errorf("an error about the CPU arrives as %v", err)
		}
		answer = io.ErrUnexpectedEOF
		if _, err := p.Place(t.Context(), sandbox.BootNeeds{}); sandbox.CodeOf(err) != sandbox.Internal || !strings.Contains(err.Error(), "unexpected EOF") {
			t.Errorf("an error without a code arrives as %v", err)
		}
	}
}

func TestPublicTellsNoCause(t *testing.T) {
	err := Public(sandbox.Errorf(sandbox.Conflict, "told").WithCause(errors.New("hidden")))
	if err.Code() != connect.CodeFailedPrecondition || detailOf(err).Cause != nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("%v, %+v", err, detailOf(err))
	}
	if err := Public(errors.New("/etc/hidden")); err.Code() != connect.CodeInternal || strings.Contains(err.Error(), "hidden") {
		t.Error(err)
	}
}

func TestEndOfContext(t *testing.T) {
	began := make(chan bool, 100)
	left := make(chan error, 100)
	s := serve(t, Scheduler, SchedulerService(placement(func(ctx context.Context) ([]string, error) {
		began <- true
		<-ctx.Done()
		left <- ctx.Err()
		return nil, ctx.Err()
	})))
	p := NewPlacement(s.unix, s.self(SessionManager, ""))
	defer p.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if _, err := p.Place(ctx, sandbox.BootNeeds{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
	<-left // the other end has noticed
	// The deadline of a call may pass before the call arrives.
	for limit := 20 * time.Millisecond; len(began) == 0; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := p.Place(ctx, sandbox.BootNeeds{})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a call that is late: %v", err)
		}
	}
	<-left
}

func TestAwayProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPlacement(UnixAddress(t.TempDir()+"/none"), Self{Role: SessionManager, Keys: testKeys(t)})
		defer p.Close()
		began := time.Now()
		_, err := p.Place(t.Context(), sandbox.BootNeeds{})
		var e *sandbox.Error
		if took := time.Since(began); !errors.As(err, &e) || e.Code != sandbox.Unavailable || e.RetryAfter == 0 || took < startWait || took > startWait+startPause {
			t.Errorf("%+v after %v", err, took)
		}
	})
}

// A call to a host that accepts no connection fails before its deadline. Nothing was sent,
// so the call may be retried elsewhere.
func TestUnreachableHost(t *testing.T) {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	if err := errors.Join(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(l, 0)); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(l)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
	for { // unaccepted connections fill its backlog
		conn, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err != nil {
			break
		}
		defer conn.Close()
	}
	p := NewPlacement("http://"+address, Self{Role: SessionManager, Keys: testKeys(t)})
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = p.Place(ctx, sandbox.BootNeeds{})
	if sandbox.CodeOf(err) != sandbox.Unavailable || adviceOf(err) != awayAdvice || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}

// Calls wait briefly for a killed process, because it is restarted.
func TestCallsWaitForAStart(t *testing.T) {
	for again := range 10 {
		s := prepare(t, Scheduler, SchedulerService(placement(func(context.Context) ([]string, error) { return []string{"n"}, nil })))
		p := NewPlacement(s.unix, s.self(SessionManager, ""))
		defer p.Close()
		began, answered := time.Now(), make(chan error, 1)
		go func() {
			_, err := p.Place(t.Context(), sandbox.BootNeeds{})
			answered <- err
		}()
		time.Sleep(3 * startPause)
		s.start(t)
		err := <-answered
		if err == nil {
			return
		}
		// On a machine that stalled meanwhile the restart may have been too late.
		if took := time.Since(began); took < startWait || again == 9 {
			t.Fatalf("after %v: %v", took, err)
		}
	}
}

// A role that refuses another one, because their clocks differ for example, says nothing about
// the credentials of a Tenant: the request may be sent again.
func TestRefused(t *testing.T) {
	s := serve(t, Node, NodeService(&sayingNodes{}, nil))
	scheduler := serve(t, Scheduler, SchedulerService(placement(func(context.Context) ([]string, error) { return nil, nil })))
	other, err := NewKeys([]byte(strings.Repeat("x", minSecret)))
	if err != nil {
		t.Fatal(err)
	}
	n := NewNodes(func(context.Context) ([]sandbox.NodeRecord, error) {
		return []sandbox.NodeRecord{{Name: "n", Address: s.tcp, LeaseLeft: time.Minute}}, nil
	}, Self{Role: SessionManager, Keys: other})
	defer n.Close()
	_, startErr := n.Start(t.Context(), "n", sandbox.StartRequest{Binding: sandbox.Binding{Tenant: "t"}})
	_, dialErr := n.Dial(t.Context(), "n", sandbox.BootRef{Tenant: "t", BootID: "b"}, 8080)
	exportErr := n.ExportSaved(t.Context(), "n", "s", false, io.Discard)
	p := NewPlacement(scheduler.tcp, Self{Role: SessionManager, Keys: other})
	defer p.Close()
	_, placeErr := p.Place(t.Context(), sandbox.BootNeeds{})
	for name, err := range map[string]error{"Start": startErr, "Dial": dialErr, "ExportSaved": exportErr, "Place": placeErr} {
		if sandbox.CodeOf(err) != sandbox.Unavailable || adviceOf(err) != awayAdvice || !strings.Contains(err.Error(), "clocks may differ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhoMayCall(t *testing.T) {
	s := serve(t, Scheduler, SchedulerService(placement(func(context.Context) ([]string, error) { return nil, nil })))
	other, err := NewKeys([]byte(strings.Repeat("x", minSecret)))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		self Self
		want sandbox.Code
	}{
		{"session-manager", s.self(SessionManager, ""), ""},
		{"node", s.self(Node, "n"), sandbox.Denied},
		{"gateway", s.self(Gateway, ""), sandbox.Denied},
		{"another installation", Self{Role: SessionManager, Keys: other}, sandbox.Unavailable},
	} {
		p := NewPlacement(s.tcp, tt.self)
		defer p.Close()
		if _, err := p.Place(t.Context(), sandbox.BootNeeds{}); sandbox.CodeOf(err) != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	// A token is for one role only.
	token, err := s.keys.sign(Caller{Role: SessionManager}, Node)
	if err != nil {
		t.Fatal(err)
	}
	req := connect.NewRequest(&schedulerv1.PlaceRequest{})
	req.Header().Set("Authorization", "Bearer "+token)
	if _, err := s.keys.check(req.Header(), Scheduler); sandbox.CodeOf(err) != sandbox.Anonymous {
		t.Errorf("a token for another role: %v", err)
	}
	if _, err := s.keys.check(req.Header(), Node); err != nil {
		t.Error(err)
	}
}

// A shutdown breaks no call that follows another one: the process answers it, or no
// connection can be made.
func TestShutdownBreaksNoCall(t *testing.T) {
	for i := range 5 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			all := candidates(t, 1)
			all[0].leads.Store(true)
			s := NewSandboxes(all[0].unix, all[0].self(Gateway, ""))
			t.Cleanup(s.Close)
			var last error
			var calling sync.WaitGroup
			some := make(chan struct{})
			calling.Go(func() {
				for n := 0; last == nil; n++ {
					if n == 100 {
						close(some)
					}
					_, last = s.Create(t.Context(), "t", sandbox.CreateRequest{})
				}
			})
			select {
			case <-some:
			case <-time.After(time.Minute):
				t.Fatal("a hundred calls take a minute")
			}
			all[0].stop()
			calling.Wait()
			if !unreached(last) {
				t.Errorf("after %d calls: %v", all[0].manager.made.Load(), last)
			}
		})
	}
}
