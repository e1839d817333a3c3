package execution

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// told records what the session manager is told.
type told struct {
	*oneSandbox
	mu   sync.Mutex
	uses []sandbox.Use
	fail error
}

func (s *told) Used(_ context.Context, uses []sandbox.Use) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses = append(s.uses, uses...)
	return s.fail
}

func (s *told) take() []sandbox.Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	uses := s.uses
	s.uses = nil
	return uses
}

// A Sandbox is used as long as a request on it is under way, and once more.
func TestUseIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &told{oneSandbox: newOne()}
		guests := NewGuests(s, deadNodes{}, func(string, Dial) Guest { return &scripted{} })
		defer guests.Close()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); guests.KeepTelling(ctx, slog.New(slog.DiscardHandler)) }()

		time.Sleep(time.Minute)
		if uses := s.take(); len(uses) != 0 {
			t.Errorf("before any request: %+v", uses)
		}
		request, end := context.WithCancel(t.Context())
		if _, _, err := guests.Open(request, "t", someCode.Sandbox); err != nil {
			t.Fatal(err)
		}
		time.Sleep(sandbox.UseEvery / 2) // between two tellings
		for range 10 {
			time.Sleep(sandbox.UseEvery)
			synctest.Wait()
			if uses := s.take(); len(uses) == 0 || uses[0].SandboxID == "" || len(uses[0].Output) != 0 {
				t.Fatalf("during a request: %+v", uses)
			}
		}
		end()
		time.Sleep(2 * sandbox.UseEvery)
		synctest.Wait()
		if uses := s.take(); len(uses) != 1 {
			t.Errorf("after a request: %+v", uses)
		}
		time.Sleep(time.Minute)
		if uses := s.take(); len(uses) != 0 {
			t.Errorf("long after it: %+v", uses)
		}
		guests.Wrote("i00000000000000000000", []byte("at the end"))
		stop()
		<-done
		if uses := s.take(); len(uses) != 1 || string(uses[0].Output) != "at the end" {
			t.Errorf("at the end: %+v", uses)
		}
	})
}

// Output of an execution is told, the last of it.
func TestOutputIsTold(t *testing.T) {
	s := &told{oneSandbox: newOne()}
	g := &scripted{run: func(_ context.Context, _ RunRequest, handle func(RunEvent) error) (RunEnd, error) {
		for range 100 {
			if err := handle(RunEvent{Stdout: bytes.Repeat([]byte("x"), 100), Stderr: []byte("e")}); err != nil {
				return RunEnd{}, err
			}
		}
		return RunEnd{Status: StatusOK}, nil
	}}
	guests := NewGuests(s, deadNodes{}, func(string, Dial) Guest { return g })
	service := New(Config{Sandboxes: s, Guests: guests, Log: slog.New(slog.DiscardHandler)})
	if _, err := service.Run(t.Context(), "t", someCode, nil); err != nil {
		t.Fatal(err)
	}
	if err := guests.TellUse(t.Context()); err != nil {
		t.Fatal(err)
	}
	uses := s.take()
	if len(uses) != 1 || len(uses[0].Output) != sandbox.MaxOutputTail || !bytes.HasSuffix(uses[0].Output, []byte("xxe")) {
		t.Errorf("told %+v", uses)
	}
}
