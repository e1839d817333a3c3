package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

func TestSandboxTo(t *testing.T) {
	for _, tt := range []struct {
		from, to sandbox.State
		want     error
	}{
		{sandbox.Starting, sandbox.Running, nil},
		{sandbox.Starting, sandbox.Stopping, nil},
		{sandbox.Running, sandbox.Stopping, nil},
		{sandbox.Running, sandbox.Paused, nil}, // its Boot was lost
		{sandbox.Stopping, sandbox.Ended, nil},
		{sandbox.Pausing, sandbox.Running, nil}, // a failed pause lets it run on
		{sandbox.Resuming, sandbox.Paused, nil}, // a failed resume loses nothing
		{sandbox.Running, sandbox.Running, sandbox.Conflict},
		{sandbox.Running, sandbox.Ended, sandbox.Conflict}, // its end is decided first
		{sandbox.Paused, sandbox.Running, sandbox.Conflict},
		{sandbox.Stopping, sandbox.Running, sandbox.Conflict},
		{sandbox.Ended, sandbox.Starting, sandbox.Conflict},
		{"nonsense", sandbox.Running, sandbox.Conflict},
	} {
		s := sandbox.Sandbox{State: tt.from}
		err := s.To(tt.to)
		if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s to %s = %v, want %v", tt.from, tt.to, err, tt.want)
		}
		if want := map[bool]sandbox.State{true: tt.to, false: tt.from}[err == nil]; s.State != want {
			t.Errorf("%s to %s left %s, want %s", tt.from, tt.to, s.State, want)
		}
	}
}

// Every State is followed by those it may be, and Ended can be reached from all.
func TestEveryStateCanEnd(t *testing.T) {
	states := []sandbox.State{
		sandbox.Starting, sandbox.Running, sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.Stopping, sandbox.Ended,
	}
	for _, from := range states {
		reached := []sandbox.State{from}
		for i := 0; i < len(reached); i++ {
			for _, to := range states {
				s := sandbox.Sandbox{State: reached[i]}
				if s.To(to) == nil && !slices.Contains(reached, to) {
					reached = append(reached, to)
				}
			}
		}
		if !slices.Contains(reached, sandbox.Ended) {
			t.Errorf("from %s only %v can be reached", from, reached)
		}
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		s, b := sandbox.NewSandboxID(), sandbox.NewBootID()
		if !sandbox.ValidSandboxID(s) || !sandbox.ValidBootID(b) || sandbox.ValidBootID(s) || sandbox.ValidSandboxID(b) {
			t.Fatalf("IDs %q and %q", s, b)
		}
		if seen[s] || seen[b] {
			t.Fatal("an ID came twice")
		}
		seen[s], seen[b] = true, true
	}
	fresh := []func() string{
		sandbox.NewSandboxID, sandbox.NewBootID, sandbox.NewSnapshotID, sandbox.NewVolumeID, sandbox.NewBuildID,
		sandbox.NewEventID, sandbox.NewKeyID, sandbox.NewSecretID,
		func() string { return sandbox.NewSigningKey("t", time.Now()).ID },
	}
	letters := map[byte]bool{}
	for _, id := range fresh {
		letters[id()[0]] = true
	}
	if len(letters) != len(fresh) {
		t.Errorf("%d kinds of IDs begin with %d letters", len(fresh), len(letters))
	}
	for name, valid := range map[string]func(string) bool{
		"i": sandbox.ValidSandboxID, "b": sandbox.ValidBootID, "s": sandbox.ValidSnapshotID, "v": sandbox.ValidVolumeID, "t": sandbox.ValidBuildID,
	} {
		for _, id := range fresh {
			if s := id(); valid(s) != strings.HasPrefix(s, name) {
				t.Errorf("the ID %q is valid as one of %q: %v", s, name, valid(s))
			}
		}
	}
	if old := "k" + sandbox.NewKeyID()[1:]; !sandbox.ValidSigningKeyID(old) || sandbox.ValidSigningKeyID(sandbox.NewSandboxID()) {
		t.Errorf("%q is not the ID of a signing key of an earlier version", old)
	}
	good := sandbox.NewSandboxID()
	for _, bad := range []string{"", "i", good + "a", good[:20], strings.ToUpper(good), "x" + good[1:], good + "\n", "../" + good, good[:10] + "/" + good[11:]} {
		if sandbox.ValidSandboxID(bad) {
			t.Errorf("%q is taken for a sandbox ID", bad)
		}
	}
}

func TestErrors(t *testing.T) {
	cause := io.ErrUnexpectedEOF
	err := fmt.Errorf("create network: %w", sandbox.Errorf(sandbox.Exhausted, "no room for %d", 3).WithCause(cause))
	if !errors.Is(err, sandbox.Exhausted) || !errors.Is(err, cause) || errors.Is(err, sandbox.Conflict) {
		t.Errorf("%v does not carry its code and its cause", err)
	}
	if got := sandbox.CodeOf(err); got != sandbox.Exhausted {
		t.Errorf("CodeOf = %s", got)
	}
	gone := sandbox.Errorf(sandbox.NotFound, "no such boot").WithCause(fmt.Errorf("ask: %w", &fs.PathError{Op: "open", Err: cause}))
	err = fmt.Errorf("save: %w", sandbox.Errorf(sandbox.Unavailable, "it does not answer").WithCause(fmt.Errorf("node a: %w", gone)))
	var path *fs.PathError
	if !errors.Is(err, sandbox.Unavailable) || errors.Is(err, sandbox.NotFound) || !errors.Is(err, cause) || !errors.As(err, &path) {
		t.Errorf("%v must be what its causes are, without their codes", err)
	}
	if got := sandbox.CodeOf(context.Canceled); got != sandbox.Internal {
		t.Errorf("CodeOf of an unclassified error = %s", got)
	}
	if got := sandbox.CodeOf(nil); got != "" {
		t.Errorf("CodeOf of nil = %s", got)
	}
	seen := map[sandbox.Code]bool{}
	for _, code := range sandbox.Codes() {
		if seen[code] || code == "" {
			t.Errorf("Codes lists %q twice", code)
		}
		seen[code] = true
	}
}

func TestShapeCheck(t *testing.T) {
	change := func(f func(*sandbox.Shape)) sandbox.Shape {
		s := sandbox.DefaultShape()
		f(&s)
		return s
	}
	nan := 0.0
	nan /= nan
	for _, tt := range []struct {
		shape sandbox.Shape
		want  string // part of the refusal; empty: none
	}{
		{sandbox.DefaultShape(), ""},
		{sandbox.Shape{}, "cpus"},
		{change(func(s *sandbox.Shape) { s.CPUs = nan }), "cpus"},
		{change(func(s *sandbox.Shape) { s.CPUs = 65 }), "cpus"},
		{change(func(s *sandbox.Shape) { s.MemoryBytes = 1 << 20 }), "memory_mb"},
		{change(func(s *sandbox.Shape) { s.DiskBytes = -1 }), "disk_mb"},
		{change(func(s *sandbox.Shape) { s.Pids = 1 << 40 }), "pids"},
	} {
		err := tt.shape.Check()
		if (err == nil) != (tt.want == "") || err != nil && (!errors.Is(err, sandbox.Invalid) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%v: %v, want %q", tt.shape, err, tt.want)
		}
	}
	for cpus, want := range map[float64]int{0.1: 2, 1: 2, 2: 2, 2.1: 3, 8: 8} {
		if got := change(func(s *sandbox.Shape) { s.CPUs = cpus }).VisibleCPUs(); got != want {
			t.Errorf("%g cpus are seen as %d, want %d", cpus, got, want)
		}
	}
}

func TestCreateRequestCheck(t *testing.T) {
	many := map[string]string{}
	for i := range 600 {
		many[fmt.Sprintf("K%d", i)] = ""
	}
	for _, tt := range []struct {
		name string
		req  sandbox.CreateRequest
		ok   bool
	}{
		{"nothing", sandbox.CreateRequest{}, true},
		{"a name", sandbox.CreateRequest{Name: "my-app.v2_x"}, true},
		{"a name of one letter", sandbox.CreateRequest{Name: "a"}, true},
		{"a long name", sandbox.CreateRequest{Name: strings.Repeat("a", 64)}, false},
		{"a name with a slash", sandbox.CreateRequest{Name: "a/b"}, false},
		{"a name with a line break", sandbox.CreateRequest{Name: "ab\n"}, false},
		{"a name like an ID", sandbox.CreateRequest{Name: sandbox.NewSandboxID()}, false},
		{"a day", sandbox.CreateRequest{Timeout: sandbox.MaxTimeout}, true},
		{"more than a day", sandbox.CreateRequest{Timeout: sandbox.MaxTimeout + 1}, false},
		{"a negative timeout", sandbox.CreateRequest{Timeout: -time.Second}, false},
		{"a network", sandbox.CreateRequest{Network: sandbox.NetworkNone}, true},
		{"an unknown network", sandbox.CreateRequest{Network: "all"}, false},
		{"half a shape", sandbox.CreateRequest{Shape: sandbox.Shape{CPUs: 1}}, false},
		{"env", sandbox.CreateRequest{Env: map[string]string{"A_1": "x=y\n"}}, true},
		{"env without a name", sandbox.CreateRequest{Env: map[string]string{"": "x"}}, false},
		{"env with a sign", sandbox.CreateRequest{Env: map[string]string{"A=B": "x"}}, false},
		{"env with a zero byte", sandbox.CreateRequest{Env: map[string]string{"A": "x\x00y"}}, false},
		{"much env", sandbox.CreateRequest{Env: many}, false},
		{"long env", sandbox.CreateRequest{Env: map[string]string{"A": strings.Repeat("x", 1<<20)}}, false},
		{"metadata", sandbox.CreateRequest{Metadata: map[string]string{"any key": "x"}}, true},
		{"metadata without a key", sandbox.CreateRequest{Metadata: map[string]string{"": "x"}}, false},
		{"metadata with a zero byte", sandbox.CreateRequest{Metadata: map[string]string{"a": "b\x00"}}, false},
		{"a metadata key with a zero byte", sandbox.CreateRequest{Metadata: map[string]string{"a\x00": "b"}}, false},
		{"much metadata", sandbox.CreateRequest{Metadata: many}, false},
		{"long metadata", sandbox.CreateRequest{Metadata: map[string]string{"a": strings.Repeat("x", 1<<20)}}, false},
	} {
		if err := tt.req.Check(); (err == nil) != tt.ok || err != nil && !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%s: %v, want it to be refused: %v", tt.name, err, !tt.ok)
		}
	}
}
