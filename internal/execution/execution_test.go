package execution

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// oneSandbox is a Sandboxes port that knows one Sandbox.
type oneSandbox struct {
	waker     // what no test asks for
	sandboxes // likewise
	mu        sync.Mutex
	sb        sandbox.Sandbox
	gets      int
}

func newOne() *oneSandbox {
	return &oneSandbox{sb: sandbox.Sandbox{
		ID: "i00000000000000000000", Tenant: "t", State: sandbox.Running,
		Boot: sandbox.Boot{ID: "b00000000000000000000", Number: 1, Node: "n"},
	}}
}

func (o *oneSandbox) Get(ctx context.Context, _ sandbox.TenantID, _ string) (sandbox.Sandbox, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gets++
	return o.sb, ctx.Err()
}

// Settled is Get: nothing is ever under way.
func (o *oneSandbox) Settled(ctx context.Context, tenant sandbox.TenantID, id string) (sandbox.Sandbox, error) {
	return o.Get(ctx, tenant, id)
}

// Resume has it run in its next Boot.
func (o *oneSandbox) Resume(ctx context.Context, _ sandbox.TenantID, _ string) (sandbox.Sandbox, error) {
	o.change(func(s *sandbox.Sandbox) { s.State, s.Boot.Number = sandbox.Running, s.Boot.Number+1 })
	return o.sb, ctx.Err()
}

func (o *oneSandbox) change(f func(*sandbox.Sandbox)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(&o.sb)
}

// scripted is a Guest that only runs, by a script.
type scripted struct {
	Guest
	run    func(ctx context.Context, req RunRequest, handle func(RunEvent) error) (RunEnd, error)
	closed int
}

func (s *scripted) Run(ctx context.Context, req RunRequest, handle func(RunEvent) error) (RunEnd, error) {
	return s.run(ctx, req, handle)
}
func (s *scripted) Close()                     { s.closed++ }
func (s *scripted) Warm(context.Context) error { return nil }

// EndProcess finds none: what runs here ends with its call.
func (s *scripted) EndProcess(context.Context, string) (ProcessInfo, error) {
	return ProcessInfo{}, sandbox.Errorf(sandbox.NotFound, "no such process")
}

type deadNodes struct{}

func (deadNodes) Dial(context.Context, string, sandbox.BootRef, uint16) (net.Conn, error) {
	return nil, sandbox.Errorf(sandbox.NotFound, "no such boot")
}

func newService(one *oneSandbox, g Guest) *Service {
	guests := NewGuests(one, deadNodes{}, func(string, Dial) Guest { return g })
	return New(Config{Sandboxes: one, Guests: guests, Log: slog.New(slog.DiscardHandler)})
}

var someCode = Request{Sandbox: "i00000000000000000000", Code: "x", Language: "bash", Timeout: time.Second}

var errBroken = sandbox.Errorf(sandbox.Unavailable, "connection reset").WithCause(io.ErrUnexpectedEOF)

// The end of a program gives the Status of its execution.
func TestVerdicts(t *testing.T) {
	for _, tt := range []struct {
		end    RunEnd
		status Status
		exit   int
		name   string
	}{
		{RunEnd{Status: StatusOK}, StatusOK, 0, ""},
		{RunEnd{Status: StatusOK, ExitCode: 3}, StatusError, 3, "exit_code"},
		{RunEnd{Status: StatusKilled, Signal: 11, ExitCode: -1}, StatusKilled, 139, "signal"},
		{RunEnd{Status: StatusError}, StatusError, 126, "not_started"},
		{RunEnd{Status: StatusPids, ExitCode: 1}, StatusPids, 1, "pids"},
		{RunEnd{Status: StatusOOM, Signal: 9, ExitCode: -1}, StatusOOM, 137, "oom"},
		{RunEnd{Status: StatusOK, ExitCode: -1}, StatusError, 255, "exit_code"},
		{RunEnd{Status: StatusKilled, Signal: 1 << 20}, StatusKilled, 128, "signal"},
		{RunEnd{Status: "made up"}, StatusError, 126, "not_started"},
		{RunEnd{Status: StatusTimeout, Signal: 9}, StatusTimeout, 124, "timeout"},
		{RunEnd{Status: StatusOOM}, StatusOOM, 137, "oom"},
		{RunEnd{Status: StatusPids}, StatusPids, 137, "pids"},
		{RunEnd{Status: StatusDiskFull}, StatusDiskFull, 137, "disk_full"},
		{RunEnd{Status: StatusKilled}, StatusKilled, 137, "sandbox_ended"},
	} {
		g := &scripted{run: func(context.Context, RunRequest, func(RunEvent) error) (RunEnd, error) { return tt.end, nil }}
		res, err := newService(newOne(), g).Run(t.Context(), "t", someCode, nil)
		if err != nil {
			t.Fatal(err)
		}
		name := ""
		if res.Problem != nil {
			name = res.Problem.Name
		}
		if res.Status != tt.status || res.ExitCode != tt.exit || name != tt.name {
			t.Errorf("%+v = %s, %d, %q", tt.end, res.Status, res.ExitCode, name)
		}
	}
}

// A Sandbox that ends during a run gives the run the Status of its termination record.
func TestSandboxEndsDuringARun(t *testing.T) {
	for cause, want := range map[sandbox.Cause]Status{
		sandbox.CauseOOM: StatusOOM, sandbox.CauseDiskFull: StatusDiskFull,
		sandbox.CauseDeadline: StatusKilled, sandbox.CauseReleased: StatusKilled, sandbox.CauseEngineLost: StatusKilled,
	} {
		synctest.Test(t, func(t *testing.T) {
			one := newOne()
			g := &scripted{run: func(_ context.Context, _ RunRequest, handle func(RunEvent) error) (RunEnd, error) {
				_ = handle(RunEvent{Started: true})
				_ = handle(RunEvent{Stdout: []byte("so far")})
				go func() { // the word of it comes later than the broken connection
					time.Sleep(time.Second)
					one.change(func(s *sandbox.Sandbox) {
						s.State, s.Ended, s.Boot.ID = sandbox.Ended, &sandbox.TerminationRecord{Cause: cause, At: time.Now()}, ""
					})
				}()
				return RunEnd{}, errBroken
			}}
			res, err := newService(one, g).Run(t.Context(), "t", someCode, nil)
			if err != nil || res.Status != want || res.Stdout.String() != "so far" || !strings.Contains(res.Problem.Message, string(cause)) {
				t.Errorf("%s: %+v, %v", cause, res, err)
			}
			if g.closed == 0 {
				t.Error("the broken client was kept")
			}
		})
	}
}

func TestBrokenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &scripted{run: func(context.Context, RunRequest, func(RunEvent) error) (RunEnd, error) { return RunEnd{}, errBroken }}
		start := time.Now()
		_, err := newService(newOne(), g).Run(t.Context(), "t", someCode, nil)
		if !errors.Is(err, sandbox.Unavailable) || time.Since(start) != lossTime {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // ended before the program started
		one := newOne()
		g := &scripted{run: func(context.Context, RunRequest, func(RunEvent) error) (RunEnd, error) {
			one.change(func(s *sandbox.Sandbox) {
				s.State, s.Ended = sandbox.Stopping, &sandbox.TerminationRecord{Cause: sandbox.CauseDeadline, At: time.Now()}
			})
			return RunEnd{}, errBroken
		}}
		if _, err := newService(one, g).Run(t.Context(), "t", someCode, nil); !errors.Is(err, sandbox.Conflict) {
			t.Errorf("never started: %v", err)
		}
	})
}

func pauseIt(s *sandbox.Sandbox) { s.State, s.Boot.ID = sandbox.Paused, "" }

// No client is told to repeat a call that may have had an effect.
func TestNoAdviceOnceBegun(t *testing.T) {
	full := &sandbox.Error{Code: sandbox.Exhausted, Detail: "too many large answers", RetryAfter: time.Second}
	unreached := sandbox.Errorf(sandbox.Unavailable, "no way").WithCause(errUnreached)
	for _, tt := range []struct {
		name   string
		fails  error
		pauses bool
		advice time.Duration
	}{
		{"paused before it was sent", unreached, true, time.Second},
		{"paused while it was under way", errBroken, true, 0},
		{"its answer has no room", full, false, 0},
	} {
		for name, call := range map[string]func(ctx context.Context, s *Service) error{
			"execute": func(ctx context.Context, s *Service) error {
				_, err := s.Run(ctx, "t", someCode, nil)
				return err
			},
			"start": func(ctx context.Context, s *Service) error {
				_, err := s.StartProcess(ctx, "t", StartRequest{Sandbox: someCode.Sandbox, Args: []string{"x"}})
				return err
			},
			"input": func(ctx context.Context, s *Service) error {
				return s.WriteInput(ctx, "t", ProcessRef{Sandbox: someCode.Sandbox, Process: "p_x"}, Input{Data: []byte("x")})
			},
			"signal": func(ctx context.Context, s *Service) error {
				_, err := s.Signal(ctx, "t", ProcessRef{Sandbox: someCode.Sandbox, Process: "p_x"}, "TERM")
				return err
			},
		} {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					one := newOne()
					g := &failing{err: func() error {
						if tt.pauses {
							one.change(pauseIt)
						}
						return tt.fails
					}}
					err := call(t.Context(), newService(one, g))
					var e *sandbox.Error
					if !errors.As(err, &e) || e.RetryAfter != tt.advice || !errors.Is(err, sandbox.CodeOf(tt.fails)) {
						t.Errorf("%v, again after %v; want after %v", err, e.RetryAfter, tt.advice)
					}
				})
			})
		}
	}
}

// failing is a Guest whose calls fail.
type failing struct {
	scripted
	err func() error
}

func (f *failing) Run(context.Context, RunRequest, func(RunEvent) error) (RunEnd, error) {
	return RunEnd{}, f.err()
}

func (f *failing) StartProcess(context.Context, ProcessStart) (ProcessStarted, error) {
	return ProcessStarted{}, f.err()
}

func (f *failing) WriteInput(context.Context, string, Input) (int64, error) { return 0, f.err() }

func (f *failing) SignalProcess(context.Context, string, int) (ProcessInfo, error) {
	return ProcessInfo{}, f.err()
}

// A program survives a rollback that fails: its Sandbox is paused in the state before.
func TestRollbackFailsDuringARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newOne()
		one.sb.Timeline = 1
		g := &scripted{run: func(_ context.Context, _ RunRequest, handle func(RunEvent) error) (RunEnd, error) {
			_ = handle(RunEvent{Process: &ProcessInfo{ID: "#p"}, Started: true})
			one.change(func(s *sandbox.Sandbox) {
				s.State, s.Timeline, s.Snapshot = sandbox.Resuming, 2, "wanted"
				s.Boot.Number, s.Back = 2, sandbox.Back{Snapshot: "before", Timeline: 1, Boot: 2}
			})
			time.AfterFunc(someCode.Timeout/2, func() {
				one.change(func(s *sandbox.Sandbox) {
					s.State, s.Timeline, s.Snapshot, s.Boot.ID, s.Back = sandbox.Paused, 1, "before", "", sandbox.Back{}
				})
			})
			return RunEnd{}, errBroken
		}}
		res, err := newService(one, g).Run(t.Context(), "t", someCode, nil)
		if err != nil || res.Status != StatusPaused || res.ProcessID != "p1-p" {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// A Guest that lets go of the connection again and again gets no more time by it, and
// is not asked without a pause.
func TestConnectionBreaksAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		runs := 0
		g := &scripted{run: func(_ context.Context, _ RunRequest, handle func(RunEvent) error) (RunEnd, error) {
			if runs++; runs == 1000 {
				cancel() // or else it never ends
			}
			_ = handle(RunEvent{Process: &ProcessInfo{ID: "p"}, Started: true})
			return RunEnd{}, errBroken
		}}
		start := time.Now()
		res, err := newService(newOne(), g).Run(ctx, "t", someCode, nil)
		if err != nil || res.Status != StatusTimeout || time.Since(start) > someCode.Timeout+guardTime+lastLook {
			t.Errorf("after %s: %+v, %v", time.Since(start), res, err)
		}
		if most := int((someCode.Timeout+guardTime)/lastLook) + 10; runs > most {
			t.Errorf("asked %d times, want at most %d", runs, most)
		}
	})
}

// With NoTimeout a program runs as long as it likes, in a Sandbox that is named.
func TestNoTimeout(t *testing.T) {
	req := someCode
	req.Timeout = NoTimeout
	synctest.Test(t, func(t *testing.T) {
		g := &scripted{run: func(_ context.Context, r RunRequest, handle func(RunEvent) error) (RunEnd, error) {
			if r.Timeout != 0 {
				t.Errorf("the guest is given %s", r.Timeout)
			}
			_ = handle(RunEvent{Started: true})
			time.Sleep(26 * time.Hour)
			return RunEnd{Status: StatusOK}, nil
		}}
		if res, err := newService(newOne(), g).Run(t.Context(), "t", req, nil); err != nil || res.Status != StatusOK || res.Duration != 26*time.Hour {
			t.Errorf("%+v, %v", res, err)
		}
	})
	req.Sandbox = ""
	if _, err := newService(newOne(), &scripted{}).Run(t.Context(), "t", req, nil); !errors.Is(err, sandbox.Invalid) || !strings.Contains(err.Error(), "sandbox_id") {
		t.Errorf("in a sandbox that is borrowed: %v", err)
	}
}

// A Guest that does not enforce the timeout is not waited for.
func TestGuard(t *testing.T) {
	stuck := func(start bool) *scripted {
		return &scripted{run: func(ctx context.Context, _ RunRequest, handle func(RunEvent) error) (RunEnd, error) {
			if start {
				_ = handle(RunEvent{Started: true})
				_ = handle(RunEvent{Stdout: []byte("so far")})
			}
			<-ctx.Done()
			return RunEnd{}, ctx.Err()
		}}
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		res, err := newService(newOne(), stuck(true)).Run(t.Context(), "t", someCode, nil)
		if err != nil || res.Status != StatusTimeout || res.Stdout.String() != "so far" || time.Since(start) != 6*time.Second {
			t.Errorf("after %s: %+v, %v", time.Since(start), res, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		if _, err := newService(newOne(), stuck(false)).Run(t.Context(), "t", someCode, nil); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("never started: %v", err)
		}
	})
}

// A missing object below a Sandbox is not reported as a missing Sandbox.
func TestAbsent(t *testing.T) {
	missing := sandbox.Errorf(sandbox.NotFound, "no such state")
	for _, tt := range []struct {
		err  error
		want sandbox.Code
	}{
		{nil, ""},
		{missing, sandbox.NotFound},
		{fmt.Errorf("look: %w", missing), sandbox.NotFound},
		{sandbox.Errorf(sandbox.Conflict, "the saved state is gone").WithCause(missing), sandbox.Conflict},
	} {
		got := Absent("box", tt.err)
		if sandbox.CodeOf(got) != tt.want || tt.want == sandbox.NotFound && !strings.Contains(got.Error(), `no sandbox "box"`) {
			t.Errorf("Absent(%v) = %v, want %s", tt.err, got, tt.want)
		}
	}
}

func TestGuestsFollowBoots(t *testing.T) {
	one := newOne()
	var made []*scripted
	guests := NewGuests(one, deadNodes{}, func(_ string, dial Dial) Guest {
		if _, err := dial(t.Context(), 1); sandbox.CodeOf(err) != sandbox.Unavailable {
			t.Errorf("a boot that is gone: %v", err) // not NotFound: the request is right
		}
		made = append(made, &scripted{})
		return made[len(made)-1]
	})
	open := func() {
		t.Helper()
		if _, _, err := guests.Open(t.Context(), "t", one.sb.ID); err != nil {
			t.Fatal(err)
		}
	}
	open()
	open()
	if len(made) != 1 {
		t.Fatalf("%d clients for one boot", len(made))
	}
	one.change(func(s *sandbox.Sandbox) { s.Boot.Number, s.Boot.ID = 2, "b00000000000000000001" })
	open()
	if len(made) != 2 || made[0].closed != 1 {
		t.Errorf("%d clients, the first closed %d times", len(made), made[0].closed)
	}
	one.change(func(s *sandbox.Sandbox) { s.State, s.StayPaused = sandbox.Paused, true })
	if _, _, err := guests.Open(t.Context(), "t", one.sb.ID); !errors.Is(err, sandbox.Conflict) || made[1].closed != 1 {
		t.Errorf("paused: %v, closed %d times", err, made[1].closed)
	}
	one.change(func(s *sandbox.Sandbox) { s.StayPaused = false })
	open()
	if one.sb.State != sandbox.Running || one.sb.Boot.Number != 3 {
		t.Errorf("what was paused is now %+v", one.sb)
	}
	guests.Close()
	if made[2].closed != 1 {
		t.Error("Close left a client open")
	}
}

func TestGuestsAreDroppedWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newOne()
		old := &scripted{}
		guests := NewGuests(one, deadNodes{}, func(string, Dial) Guest { return old })
		if _, _, err := guests.Open(t.Context(), "t", ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(guestIdle + time.Second)
		one.change(func(s *sandbox.Sandbox) { s.ID = "i00000000000000000001" })
		if _, _, err := guests.Open(t.Context(), "t", ""); err != nil || old.closed != 1 || len(guests.byID) != 1 {
			t.Errorf("%v, closed %d times, %d kept", err, old.closed, len(guests.byID))
		}
	})
}
