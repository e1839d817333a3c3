package fdrpc_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// serve runs s on a socket until the test ends and returns the socket's path.
func serve(t *testing.T, s *fdrpc.Server) string {
	t.Helper()
	s.Log = slog.New(slog.DiscardHandler)
	path := filepath.Join(t.TempDir(), "s")
	l, err := fdrpc.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve = %v", err)
		}
	})
	return path
}

func TestFilesGoBothWays(t *testing.T) {
	path := serve(t, &fdrpc.Server{Handle: func(_ context.Context, r *fdrpc.Request) (any, []*os.File, error) {
		f, err := r.TakeFile(0)
		if err != nil {
			return nil, nil, err
		}
		return "got " + r.Method, []*os.File{f}, nil
	}})
	c, err := fdrpc.Dial(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var reply string
	files, err := c.Call(t.Context(), "echo", nil, &reply, f)
	if err != nil || reply != "got echo" || len(files) != 1 {
		t.Fatalf("reply %q, %d files, %v", reply, len(files), err)
	}
	defer files[0].Close()
	if b, err := io.ReadAll(files[0]); err != nil || string(b) != "content" {
		t.Errorf("the file that came back holds %q: %v", b, err)
	}
	if _, err := c.Call(t.Context(), "echo", nil, nil); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("without a file: %v", err)
	}
}

func TestHelloComesFirst(t *testing.T) {
	path := serve(t, &fdrpc.Server{Hello: "hello", Handle: func(_ context.Context, r *fdrpc.Request) (any, []*os.File, error) {
		if r.Method == "hello" && string(r.Body) != "1" {
			return nil, nil, sandbox.Errorf(sandbox.Unsupported, "wrong version")
		}
		return r.Method, nil, nil
	}})
	c, err := fdrpc.Dial(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, step := range []struct {
		method string
		body   int
		want   error
	}{
		{"work", 0, sandbox.Conflict},
		{"hello", 2, sandbox.Unsupported},
		{"work", 0, sandbox.Conflict},
		{"hello", 1, nil},
		{"work", 0, nil},
	} {
		if _, err := c.Call(t.Context(), step.method, step.body, nil); !errors.Is(err, step.want) {
			t.Errorf("%s %d: %v, want %v", step.method, step.body, err, step.want)
		}
	}
}

// Requests with equal keys run in order, also if a caller gives up. Requests with other
// keys do not wait for them.
func TestTurns(t *testing.T) {
	entered, release := make(chan string, 3), make(chan struct{})
	path := serve(t, &fdrpc.Server{
		Turn: func(r *fdrpc.Request) string { return string(r.Body) },
		Handle: func(_ context.Context, r *fdrpc.Request) (any, []*os.File, error) {
			entered <- r.Method
			if r.Method == "start" {
				<-release
			}
			return nil, nil, nil
		},
	})
	c, err := fdrpc.Dial(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, giveUp := context.WithCancel(t.Context())
	given := make(chan error, 1)
	go func() { _, err := c.Call(ctx, "start", 1, nil); given <- err }()
	if m := <-entered; m != "start" {
		t.Fatalf("%s was handled first", m)
	}
	giveUp()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	stopped := make(chan error, 1)
	go func() { _, err := c.Call(t.Context(), "stop", 1, nil); stopped <- err }()
	if _, err := c.Call(t.Context(), "other", 2, nil); err != nil {
		t.Error(err)
	}
	if m := <-entered; m != "other" {
		t.Errorf("%s did not wait for its turn", m)
	}
	close(release)
	if m := <-entered; m != "stop" {
		t.Errorf("then %s was handled", m)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := c.Call(ctx, "late", 3, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a call whose context has ended: %v", err)
	}
	if len(entered) != 0 {
		t.Errorf("%s was sent", <-entered)
	}
}
