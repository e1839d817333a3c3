package rpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1/filev1connect"
	processv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1/processv1connect"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1/sandboxv1connect"
	healthv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/grpc/health/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/grpc/health/v1/healthv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// fixture is a gateway over the core, with what these tests do with it.
type fixture struct{ *gatewaytest.Fixture }

func newFixture(t testing.TB, change ...func(*gateway.Config)) *fixture {
	return &fixture{gatewaytest.New(t, change...)}
}

func TestCallsDoWhatRESTDoes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addr, stop := f.Serve()
	defer stop()
	for protocol := range gatewaytest.Protocols {
		t.Run(protocol, func(t *testing.T) {
			c := gatewaytest.SandboxClient(t, "http://"+addr.String(), f.Token, protocol)
			seconds := 90.5
			created, err := c.Create(t.Context(), connect.NewRequest(&sandboxv1.CreateRequest{
				Name: "mine", TimeoutSeconds: &seconds, IdleTimeoutSeconds: 5, Metadata: map[string]string{"a": "b"},
				Resources: &sandboxv1.Resources{MemoryMb: new(int32(256))}, User: "root", Cwd: "/tmp", Network: "none",
			}))
			if err != nil {
				t.Fatal(err)
			}
			sb := created.Msg.Sandbox
			if !created.Msg.Created || sb.State != "running" || sb.TimeoutSeconds != seconds || sb.IdleTimeoutSeconds != 5 || sb.Network != "none" ||
				sb.Shape.GetMemoryMb() != 256 || sb.Shape.GetDiskMb() != 4096 || sb.Metadata["a"] != "b" || sb.User != "root" || sb.Cwd != "/tmp" {
				t.Errorf("created %v", sb)
			}
			again, err := c.Create(t.Context(), connect.NewRequest(&sandboxv1.CreateRequest{Name: "mine", IfExists: "return"}))
			if err != nil || again.Msg.Created || again.Msg.Sandbox.SandboxId != sb.SandboxId {
				t.Errorf("the same name gives %v, %v", again, err)
			}
			got, err := c.Get(t.Context(), connect.NewRequest(&sandboxv1.GetRequest{SandboxId: "mine"}))
			if err != nil || got.Msg.Sandbox.SandboxId != sb.SandboxId {
				t.Errorf("by name: %v, %v", got, err)
			}
			page, err := c.List(t.Context(), connect.NewRequest(&sandboxv1.ListRequest{States: []string{"running"}, Limit: new(int32(5))}))
			if err != nil || len(page.Msg.Sandboxes) != 1 {
				t.Errorf("list: %v, %v", page, err)
			}
			if moved, err := c.SetTimeout(t.Context(), connect.NewRequest(&sandboxv1.SetTimeoutRequest{SandboxId: "mine", TimeoutSeconds: 7})); err != nil || moved.Msg.Sandbox.TimeoutSeconds != 7 {
				t.Errorf("timeout: %v, %v", moved, err)
			}
			if _, err := c.Touch(t.Context(), connect.NewRequest(&sandboxv1.TouchRequest{SandboxId: sb.SandboxId})); err != nil {
				t.Error(err)
			}
			changed, err := c.Update(t.Context(), connect.NewRequest(&sandboxv1.UpdateRequest{
				SandboxId: "mine", Network: new("public"), Metadata: map[string]string{"c": "d"}, RemoveMetadata: []string{"a"}, IdleTimeoutSeconds: new(0.0),
			}))
			if err != nil || changed.Msg.Sandbox.Network != "public" || changed.Msg.Sandbox.IdleTimeoutSeconds != 0 || !maps.Equal(changed.Msg.Sandbox.Metadata, map[string]string{"c": "d"}) {
				t.Errorf("update: %v, %v", changed, err)
			}
			executes(t, c, sb.SandboxId)
			ended, err := c.End(t.Context(), connect.NewRequest(&sandboxv1.EndRequest{SandboxId: "mine"}))
			if err != nil || ended.Msg.Sandbox.Ended.GetCause() != "released" {
				t.Errorf("end: %v, %v", ended, err)
			}
		})
	}
}

// executes runs code that greets.
func executes(t *testing.T, c sandboxv1connect.SandboxServiceClient, id string) {
	t.Helper()
	stream, err := c.Execute(t.Context(), connect.NewRequest(&sandboxv1.ExecuteRequest{SandboxId: id, Language: "bash", Code: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var events []string
	for stream.Receive() {
		switch e := stream.Msg().Event.(type) {
		case *sandboxv1.ExecuteResponse_Start:
			events = append(events, "start "+e.Start.SandboxId)
		case *sandboxv1.ExecuteResponse_Stdout:
			events = append(events, "stdout "+e.Stdout)
		case *sandboxv1.ExecuteResponse_Result:
			events = append(events, "result "+e.Result.Status+" "+e.Result.Stdout)
		}
	}
	if want := []string{"start " + id, "stdout Hello!\n", "result ok Hello!\n"}; stream.Err() != nil || !slices.Equal(events, want) {
		t.Errorf("events %q, then %v", events, stream.Err())
	}
}

func TestCallsRefuse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addr, stop := f.Serve()
	defer stop()
	mine := f.Acquire()
	unknown := &sandboxv1.CreateRequest{Resources: &sandboxv1.Resources{}}
	unknown.Resources.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1})
	create := func(m *sandboxv1.CreateRequest) func(sandboxv1connect.SandboxServiceClient) error {
		return func(c sandboxv1connect.SandboxServiceClient) error {
			_, err := c.Create(t.Context(), connect.NewRequest(m))
			return err
		}
	}
	execute := func(m *sandboxv1.ExecuteRequest) func(sandboxv1connect.SandboxServiceClient) error {
		return func(c sandboxv1connect.SandboxServiceClient) error {
			s, err := c.Execute(t.Context(), connect.NewRequest(m))
			if err != nil {
				return err
			}
			defer s.Close()
			for s.Receive() {
			}
			return s.Err()
		}
	}
	list := func(m *sandboxv1.ListRequest) func(sandboxv1connect.SandboxServiceClient) error {
		return func(c sandboxv1connect.SandboxServiceClient) error {
			_, err := c.List(t.Context(), connect.NewRequest(m))
			return err
		}
	}
	get := func(id string) func(sandboxv1connect.SandboxServiceClient) error {
		return func(c sandboxv1connect.SandboxServiceClient) error {
			_, err := c.Get(t.Context(), connect.NewRequest(&sandboxv1.GetRequest{SandboxId: id}))
			return err
		}
	}
	end := func(id string) func(sandboxv1connect.SandboxServiceClient) error {
		return func(c sandboxv1connect.SandboxServiceClient) error {
			_, err := c.End(t.Context(), connect.NewRequest(&sandboxv1.EndRequest{SandboxId: id}))
			return err
		}
	}
	timeout := func(id string, n float64) func(sandboxv1connect.SandboxServiceClient) error {
		return func(c sandboxv1connect.SandboxServiceClient) error {
			_, err := c.SetTimeout(t.Context(), connect.NewRequest(&sandboxv1.SetTimeoutRequest{SandboxId: id, TimeoutSeconds: n}))
			return err
		}
	}
	update := func(m *sandboxv1.UpdateRequest) func(sandboxv1connect.SandboxServiceClient) error {
		return func(c sandboxv1connect.SandboxServiceClient) error {
			_, err := c.Update(t.Context(), connect.NewRequest(m))
			return err
		}
	}
	fork := func(m *sandboxv1.ForkRequest) func(sandboxv1connect.SandboxServiceClient) error {
		return func(c sandboxv1connect.SandboxServiceClient) error {
			_, err := c.Fork(t.Context(), connect.NewRequest(m))
			return err
		}
	}
	rollback := func(m *sandboxv1.RollbackRequest) func(sandboxv1connect.SandboxServiceClient) error {
		return func(c sandboxv1connect.SandboxServiceClient) error {
			_, err := c.Rollback(t.Context(), connect.NewRequest(m))
			return err
		}
	}
	for _, tt := range []struct {
		name  string
		call  func(sandboxv1connect.SandboxServiceClient) error
		code  sandbox.Code
		wire  connect.Code
		words string
	}{
		{"a bad name", create(&sandboxv1.CreateRequest{Name: "No!"}), sandbox.Invalid, connect.CodeInvalidArgument, "name must"},
		{"a bad if_exists", create(&sandboxv1.CreateRequest{IfExists: "x"}), sandbox.Invalid, connect.CodeInvalidArgument, "if_exists"},
		{"no time", create(&sandboxv1.CreateRequest{TimeoutSeconds: new(0.0)}), sandbox.Invalid, connect.CodeInvalidArgument, "timeout_seconds must be a number of seconds, more than 0"},
		{"too much time", create(&sandboxv1.CreateRequest{TimeoutSeconds: new(1e6)}), sandbox.Invalid, connect.CodeInvalidArgument, "timeout_seconds"},
		{"negative idle time", create(&sandboxv1.CreateRequest{IdleTimeoutSeconds: -1}), sandbox.Invalid, connect.CodeInvalidArgument, "idle_timeout_seconds must"},
		{"much memory", create(&sandboxv1.CreateRequest{Resources: &sandboxv1.Resources{MemoryMb: new(int32(1 << 30))}}), sandbox.Invalid, connect.CodeInvalidArgument, "memory_mb"},
		{"a bad network", create(&sandboxv1.CreateRequest{Network: "lan"}), sandbox.Invalid, connect.CodeInvalidArgument, "network"},
		{"a bad env", create(&sandboxv1.CreateRequest{Env: map[string]string{"1": ""}}), sandbox.Invalid, connect.CodeInvalidArgument, "environment"},
		{"no template", create(&sandboxv1.CreateRequest{Template: "none"}), sandbox.NotFound, connect.CodeNotFound, "template"},
		{"an unknown field", create(unknown), sandbox.Invalid, connect.CodeInvalidArgument, "does not know"},
		{"a bad state", list(&sandboxv1.ListRequest{States: []string{"x"}}), sandbox.Invalid, connect.CodeInvalidArgument, "not a state"},
		{"many states", list(&sandboxv1.ListRequest{States: slices.Repeat([]string{"running"}, 100)}), sandbox.Invalid, connect.CodeInvalidArgument, "states"},
		{"a bad limit", list(&sandboxv1.ListRequest{Limit: new(int32(0))}), sandbox.Invalid, connect.CodeInvalidArgument, "limit"},
		{"a bad cursor", list(&sandboxv1.ListRequest{Cursor: strings.Repeat("c", 1000)}), sandbox.Invalid, connect.CodeInvalidArgument, "cursor"},
		{"no id", get(""), sandbox.Invalid, connect.CodeInvalidArgument, "sandbox_id is missing"},
		{"an absent one", get("none"), sandbox.NotFound, connect.CodeNotFound, "no sandbox \"none\"; `cloud-sandbox ls` and GET /api/v1/sessions list yours"},
		{"the end of an absent one", end("none"), sandbox.NotFound, connect.CodeNotFound, "no sandbox \"none\"; `cloud-sandbox ls` and GET /api/v1/sessions list yours"},
		{"a negative timeout", timeout(mine, -1), sandbox.Invalid, connect.CodeInvalidArgument, "timeout_seconds must"},
		{"no timeout", timeout(mine, 0), sandbox.Invalid, connect.CodeInvalidArgument, fmt.Sprintf("at most %d", int(sandbox.MaxTimeout.Seconds()))},
		{"a timeout of NaN", timeout(mine, math.NaN()), sandbox.Invalid, connect.CodeInvalidArgument, "timeout_seconds must"},
		{"an update of nothing known", update(&sandboxv1.UpdateRequest{SandboxId: "none"}), sandbox.NotFound, connect.CodeNotFound, "no sandbox \"none\"; `cloud-sandbox ls` and GET /api/v1/sessions list yours"},
		{"another disk", update(&sandboxv1.UpdateRequest{SandboxId: mine, Resources: &sandboxv1.Resources{DiskMb: new(int32(9))}}), sandbox.Conflict, connect.CodeFailedPrecondition, "disk_mb cannot change"},
		{"set and removed", update(&sandboxv1.UpdateRequest{SandboxId: mine, Env: map[string]string{"A": ""}, RemoveEnv: []string{"A"}}), sandbox.Invalid, connect.CodeInvalidArgument, "both sets and removes"},
		{"a bad idle time", update(&sandboxv1.UpdateRequest{SandboxId: mine, IdleTimeoutSeconds: new(-1.0)}), sandbox.Invalid, connect.CodeInvalidArgument, "idle_timeout_seconds must"},
		{"negative checkpoints", create(&sandboxv1.CreateRequest{CheckpointEverySeconds: -1}), sandbox.Invalid, connect.CodeInvalidArgument, "checkpoint_every_seconds must"},
		{"a bad end", create(&sandboxv1.CreateRequest{OnTimeout: "explode"}), sandbox.Invalid, connect.CodeInvalidArgument, "on_timeout"},
		{"bad checkpoints later", update(&sandboxv1.UpdateRequest{SandboxId: mine, CheckpointEverySeconds: new(-1.0)}), sandbox.Invalid, connect.CodeInvalidArgument, "checkpoint_every_seconds must"},
		{"no copies", fork(&sandboxv1.ForkRequest{SandboxId: mine, Count: new(int32(0))}), sandbox.Invalid, connect.CodeInvalidArgument, "count"},
		{"copies of nothing", fork(&sandboxv1.ForkRequest{SandboxId: "none"}), sandbox.NotFound, connect.CodeNotFound, "no sandbox \"none\"; `cloud-sandbox ls` and GET /api/v1/sessions list yours"},
		{"copies set and removed", fork(&sandboxv1.ForkRequest{SandboxId: mine, Env: map[string]string{"A": ""}, RemoveEnv: []string{"A"}}), sandbox.Invalid, connect.CodeInvalidArgument, "both sets and removes"},
		{"back to nothing", rollback(&sandboxv1.RollbackRequest{SandboxId: mine}), sandbox.Invalid, connect.CodeInvalidArgument, "snapshot_id is missing"},
		{"back of an absent one", rollback(&sandboxv1.RollbackRequest{SandboxId: "none", SnapshotId: "x"}), sandbox.NotFound, connect.CodeNotFound, "no sandbox \"none\"; `cloud-sandbox ls` and GET /api/v1/sessions list yours"},
		{"no code", execute(&sandboxv1.ExecuteRequest{SandboxId: mine, Language: "bash"}), sandbox.Invalid, connect.CodeInvalidArgument, "code is empty"},
		{"no language", execute(&sandboxv1.ExecuteRequest{SandboxId: mine, Code: "x", Language: "perl"}), sandbox.Invalid, connect.CodeInvalidArgument, "language"},
		{"no output", execute(&sandboxv1.ExecuteRequest{SandboxId: mine, Code: "x", Language: "bash", MaxOutputBytes: new(int32(0))}), sandbox.Invalid, connect.CodeInvalidArgument, "max_output_bytes"},
		{"much code", execute(&sandboxv1.ExecuteRequest{SandboxId: mine, Code: strings.Repeat("x", execution.MaxCode+1), Language: "bash"}), sandbox.TooLarge, connect.CodeOutOfRange, "code has"},
		{"a large message", create(&sandboxv1.CreateRequest{Cwd: strings.Repeat("x", 2<<20)}), sandbox.TooLarge, connect.CodeOutOfRange, "the body has more than"},
		{"an absent sandbox", execute(&sandboxv1.ExecuteRequest{SandboxId: "none", Code: "x", Language: "bash"}), sandbox.NotFound, connect.CodeNotFound, "no sandbox \"none\"; `cloud-sandbox ls` and GET /api/v1/sessions list yours"},
	} {
		for protocol := range gatewaytest.Protocols {
			if tt.name == "an unknown field" && protocol == "connect json" {
				continue // it cannot be written
			}
			err := tt.call(gatewaytest.SandboxClient(t, "http://"+addr.String(), f.Token, protocol))
			code, failure := gatewaytest.CodeOf(err)
			if code != tt.code || connect.CodeOf(err) != tt.wire || !strings.Contains(failure.GetMessage(), tt.words) || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("%s by %s: %v, %q, %v", tt.name, protocol, connect.CodeOf(err), code, err)
			}
		}
	}
	if n := f.Sandboxes.Live(); n != 1 {
		t.Errorf("there are %d sandboxes", n)
	}
}

// followed is the output of a Process as it comes, and its last state.
func followed(t *testing.T, c processv1connect.ProcessServiceClient, req *processv1.OutputRequest) (out string, state string) {
	t.Helper()
	s, err := c.Output(t.Context(), connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for s.Receive() {
		out += string(s.Msg().GetPiece().GetData())
		if p := s.Msg().GetProcess(); p != nil {
			state = p.State
		}
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	return out, state
}

func TestProcessesByCalls(t *testing.T) {
	f := newFixture(t)
	id := f.WithProcesses()
	addr, stop := f.Serve()
	defer stop()
	for protocol := range gatewaytest.Protocols {
		t.Run(protocol, func(t *testing.T) {
			c := processv1connect.NewProcessServiceClient(gatewaytest.HTTPClient(t, f.Token, protocol), "http://"+addr.String(), gatewaytest.Protocols[protocol]...)
			got, err := c.Start(t.Context(), connect.NewRequest(&processv1.StartRequest{SandboxId: id, Command: "echo out; echo err >&2; exit 3"}))
			if err != nil {
				t.Fatal(err)
			}
			if p := got.Msg.Process; p.State != "ended" || p.GetExitCode() != 3 || p.Status != "error" || got.Msg.Stdout != "out\n" || got.Msg.Stderr != "err\n" || got.Msg.Offset != 8 {
				t.Errorf("in the foreground: %v", got.Msg)
			}
			name := strings.ReplaceAll(protocol, " ", "-")
			start := &processv1.StartRequest{SandboxId: id, Command: "read x; echo got $x; read y; sleep 1000", Name: name, Background: true, KeepStdin: true, IdempotencyKey: "k-" + name}
			first, err := c.Start(t.Context(), connect.NewRequest(start))
			if err != nil {
				t.Fatal(err)
			}
			if again, err := c.Start(t.Context(), connect.NewRequest(start)); err != nil || !again.Msg.RepeatedStart || again.Msg.Process.ProcessId != first.Msg.Process.ProcessId {
				t.Errorf("once more: %v, %v", again, err)
			}
			if in, err := c.Input(t.Context(), connect.NewRequest(&processv1.InputRequest{SandboxId: id, ProcessId: name, Data: []byte("this\n")})); err != nil || in.Msg.WrittenBytes != 5 {
				t.Errorf("input: %v, %v", in, err)
			}
			if w, err := c.Wait(t.Context(), connect.NewRequest(&processv1.WaitRequest{SandboxId: id, ProcessId: name, For: "log:got"})); err != nil || !w.Msg.Met || w.Msg.Line != "got this" {
				t.Errorf("wait: %v, %v", w, err)
			}
			if p, err := c.Get(t.Context(), connect.NewRequest(&processv1.GetRequest{SandboxId: id, ProcessId: name})); err != nil || p.Msg.Process.State != "running" || p.Msg.Process.ExitCode != nil {
				t.Errorf("get: %v, %v", p, err)
			}
			if all, err := c.List(t.Context(), connect.NewRequest(&processv1.ListRequest{SandboxId: id})); err != nil || len(all.Msg.Processes) < 2 {
				t.Errorf("list: %v, %v", all, err)
			}
			if _, err := c.Signal(t.Context(), connect.NewRequest(&processv1.SignalRequest{SandboxId: id, ProcessId: name, Signal: "TERM"})); err != nil {
				t.Error(err)
			}
			if out, state := followed(t, c, &processv1.OutputRequest{SandboxId: id, ProcessId: name, Follow: true}); out != "got this\n" || state != "ended" {
				t.Errorf("output %q, %s", out, state)
			}
			if out, _ := followed(t, c, &processv1.OutputRequest{SandboxId: id, ProcessId: name, From: 4}); out != "this\n" {
				t.Errorf("output from 4: %q", out)
			}
			if p, err := c.End(t.Context(), connect.NewRequest(&processv1.EndRequest{SandboxId: id, ProcessId: name})); err != nil || p.Msg.Process.Status != "killed" {
				t.Errorf("end: %v, %v", p, err)
			}
			refusesProcesses(t, c, id)
		})
	}
}

// refusesProcesses makes calls that cannot be served.
func refusesProcesses(t *testing.T, c processv1connect.ProcessServiceClient, id string) {
	t.Helper()
	start := func(m *processv1.StartRequest) error {
		_, err := c.Start(t.Context(), connect.NewRequest(m))
		return err
	}
	_, get := c.Get(t.Context(), connect.NewRequest(&processv1.GetRequest{SandboxId: id}))
	_, absent := c.Get(t.Context(), connect.NewRequest(&processv1.GetRequest{SandboxId: id, ProcessId: "none"}))
	_, resize := c.Resize(t.Context(), connect.NewRequest(&processv1.ResizeRequest{SandboxId: id, ProcessId: "none"}))
	_, signal := c.Signal(t.Context(), connect.NewRequest(&processv1.SignalRequest{SandboxId: id, ProcessId: "none", Signal: "x"}))
	_, wait := c.Wait(t.Context(), connect.NewRequest(&processv1.WaitRequest{SandboxId: id, ProcessId: "none", For: "rain"}))
	_, input := c.Input(t.Context(), connect.NewRequest(&processv1.InputRequest{SandboxId: id, ProcessId: "none", Data: make([]byte, 3<<20)}))
	for _, tt := range []struct {
		name  string
		err   error
		code  sandbox.Code
		words string
	}{
		{"no sandbox", start(&processv1.StartRequest{Command: "x"}), sandbox.Invalid, "sandbox_id is missing"},
		{"no command", start(&processv1.StartRequest{SandboxId: id}), sandbox.Invalid, "command and argv are missing"},
		{"no time", start(&processv1.StartRequest{SandboxId: id, Command: "x", TimeoutSeconds: new(0.0)}), sandbox.Invalid, "more than 0"},
		{"no patience", start(&processv1.StartRequest{SandboxId: id, Command: "x", YieldMs: new(int64(0))}), sandbox.Invalid, "yield_ms"},
		{"no output", start(&processv1.StartRequest{SandboxId: id, Command: "x", MaxOutputBytes: new(int32(0))}), sandbox.Invalid, "max_output_bytes"},
		{"a sandbox that is absent", start(&processv1.StartRequest{SandboxId: "none", Command: "x"}), sandbox.NotFound, "no sandbox \"none\"; `cloud-sandbox ls` and GET /api/v1/sessions list yours"},
		{"no process", get, sandbox.Invalid, "process_id is missing"},
		{"an absent process", absent, sandbox.NotFound, "process"},
		{"no size", resize, sandbox.Invalid, "cols and rows"},
		{"no signal", signal, sandbox.Invalid, "not a signal"},
		{"a strange condition", wait, sandbox.Invalid, "for"},
		{"large input", input, sandbox.TooLarge, "bytes"},
	} {
		if code, failure := gatewaytest.CodeOf(tt.err); code != tt.code || !strings.Contains(failure.GetMessage(), tt.words) {
			t.Errorf("%s: %v", tt.name, tt.err)
		}
	}
}

// Each answer about another Tenant's Sandbox equals the answer about an absent one.
// Without a token there is no answer.
func TestCallsKnowTheirTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addr, stop := f.Serve()
	defer stop()
	mine := f.Acquire()
	for protocol := range gatewaytest.Protocols {
		other := gatewaytest.SandboxClient(t, "http://"+addr.String(), f.Mint("other"), protocol)
		said := map[string]string{}
		for _, id := range []string{mine, sandbox.NewSandboxID()} {
			var all []string
			_, err := other.Get(t.Context(), connect.NewRequest(&sandboxv1.GetRequest{SandboxId: id}))
			all = append(all, err.Error())
			_, err = other.End(t.Context(), connect.NewRequest(&sandboxv1.EndRequest{SandboxId: id}))
			all = append(all, err.Error())
			_, err = other.Touch(t.Context(), connect.NewRequest(&sandboxv1.TouchRequest{SandboxId: id}))
			all = append(all, err.Error())
			_, err = other.SetTimeout(t.Context(), connect.NewRequest(&sandboxv1.SetTimeoutRequest{SandboxId: id, TimeoutSeconds: 1}))
			all = append(all, err.Error())
			s, err := other.Execute(t.Context(), connect.NewRequest(&sandboxv1.ExecuteRequest{SandboxId: id, Code: "x", Language: "bash"}))
			if err == nil {
				for s.Receive() {
				}
				err = errors.Join(s.Err(), s.Close())
			}
			said[id] = strings.ReplaceAll(strings.Join(append(all, err.Error()), "\n"), id, "ID") // which each error repeats
			if connect.CodeOf(err) != connect.CodeNotFound {
				t.Errorf("%s: %v", protocol, err)
			}
		}
		if said[mine] == "" || len(slices.Compact(slices.Sorted(maps.Values(said)))) != 1 {
			t.Errorf("%s: another's answers otherwise than an absent one: %q", protocol, said)
		}
		for _, token := range []string{"", "nonsense", f.Token + "x"} {
			_, err := gatewaytest.SandboxClient(t, "http://"+addr.String(), token, protocol).List(t.Context(), connect.NewRequest(&sandboxv1.ListRequest{}))
			if code, _ := gatewaytest.CodeOf(err); code != sandbox.Anonymous || connect.CodeOf(err) != connect.CodeUnauthenticated {
				t.Errorf("%s with token %.10q: %v", protocol, token, err)
			}
		}
	}
}

// API keys open calls as they open REST, for what their scopes say, and limits
// count them.
func TestCallsKnowKeysAndLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) {
		c.Limits = ratelimit.Rules{ratelimit.Execute: {PerSecond: 0.001, Burst: 1}, ratelimit.Write: {PerSecond: 0.001, Burst: 1}}
	})
	addr, stop := f.Serve()
	defer stop()
	for protocol := range gatewaytest.Protocols {
		reader, writer := f.Key("acme", sandbox.RoleDeveloper, sandbox.ScopeRead), f.Key("acme", sandbox.RoleDeveloper, sandbox.ScopeWrite)
		url := "http://" + addr.String()
		w, r := gatewaytest.SandboxClient(t, url, writer, protocol), gatewaytest.SandboxClient(t, url, reader, protocol)
		processes := processv1connect.NewProcessServiceClient(gatewaytest.HTTPClient(t, reader, protocol), url, gatewaytest.Protocols[protocol]...)
		sb, err := w.Create(t.Context(), connect.NewRequest(&sandboxv1.CreateRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		id := sb.Msg.Sandbox.SandboxId
		denied := func(what string, err error) {
			t.Helper()
			if code, failure := gatewaytest.CodeOf(err); code != sandbox.Denied || !strings.Contains(failure.GetMessage(), "scope") {
				t.Errorf("%s by %s: %v", what, protocol, err)
			}
		}
		if _, err := r.Get(t.Context(), connect.NewRequest(&sandboxv1.GetRequest{SandboxId: id})); err != nil {
			t.Errorf("a reader gets %v", err)
		}
		_, err = r.Create(t.Context(), connect.NewRequest(&sandboxv1.CreateRequest{}))
		denied("a reader's create", err)
		_, err = r.End(t.Context(), connect.NewRequest(&sandboxv1.EndRequest{SandboxId: id}))
		denied("a reader's end", err)
		_, err = processes.Start(t.Context(), connect.NewRequest(&processv1.StartRequest{SandboxId: id, Command: "x"}))
		denied("a reader's start", err)
		_, err = w.List(t.Context(), connect.NewRequest(&sandboxv1.ListRequest{}))
		denied("a writer's list", err)
		_, err = processes.Get(t.Context(), connect.NewRequest(&processv1.GetRequest{SandboxId: "none", ProcessId: "x"}))
		if code, _ := gatewaytest.CodeOf(err); code != sandbox.NotFound {
			t.Errorf("a reader's process: %v", err)
		}

		touch := func() error {
			_, err := w.Touch(t.Context(), connect.NewRequest(&sandboxv1.TouchRequest{SandboxId: id}))
			return err
		}
		if err := touch(); err != nil {
			t.Error(err)
		}
		err = touch()
		code, failure := gatewaytest.CodeOf(err)
		if code != sandbox.Exhausted || failure.GetRetryAfter().AsDuration() < time.Second || connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("beyond the limit, by %s: %v, retry after %v", protocol, err, failure.GetRetryAfter())
		}
		executes(t, w, id)
		s, err := w.Execute(t.Context(), connect.NewRequest(&sandboxv1.ExecuteRequest{SandboxId: id, Language: "bash", Code: "x"}))
		if err == nil {
			for s.Receive() {
			}
			err = errors.Join(s.Err(), s.Close())
		}
		if code, _ := gatewaytest.CodeOf(err); code != sandbox.Exhausted {
			t.Errorf("a second execution, by %s: %v", protocol, err)
		}
	}
}

// Cancelling a call, and its deadline, end the code.
func TestCancelledCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addr, stop := f.Serve()
	defer stop()
	id := f.Acquire()
	began, left := make(chan struct{}, 100), make(chan struct{}, 100)
	f.Guest.Scripts["wait"] = func(ctx context.Context, _ execution.RunRequest, _ func(execution.RunEvent) error) (execution.RunEnd, error) {
		began <- struct{}{}
		<-ctx.Done()
		left <- struct{}{}
		return execution.RunEnd{}, ctx.Err()
	}
	for protocol := range gatewaytest.Protocols {
		c := gatewaytest.SandboxClient(t, "http://"+addr.String(), f.Token, protocol)
		ctx, cancel := context.WithCancel(t.Context())
		s, err := c.Execute(ctx, connect.NewRequest(&sandboxv1.ExecuteRequest{SandboxId: id, Code: "wait", Language: "bash"}))
		if err != nil {
			t.Fatal(err)
		}
		<-began
		cancel()
		<-left
		for s.Receive() {
		}
		if connect.CodeOf(s.Err()) != connect.CodeCanceled {
			t.Errorf("%s: %v", protocol, s.Err())
		}
		_ = s.Close()
		gatewaytest.WaitFor(t, "the log says that the client left", func() bool {
			return strings.Contains(f.Logs.String(), `"status":499`)
		})
		f.Logs.Reset()
	}
	for limit := 100 * time.Millisecond; len(began) == 0; limit *= 2 { // its time may be over before it arrives
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		s, err := gatewaytest.SandboxClient(t, "http://"+addr.String(), f.Token, "grpc").Execute(ctx, connect.NewRequest(&sandboxv1.ExecuteRequest{SandboxId: id, Code: "wait", Language: "bash"}))
		if err == nil {
			for s.Receive() {
			}
			err = errors.Join(s.Err(), s.Close())
		}
		cancel()
		if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
			t.Fatalf("after its deadline: %v", err)
		}
	}
	<-left
}

// gRPC's tools find out what is served, without a token.
func TestReflection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addr, stop := f.Serve()
	defer stop()
	client := grpcreflect.NewClient(gatewaytest.HTTPClient(t, "", "grpc"), "http://"+addr.String(), connect.WithGRPC())
	stream := client.NewStream(t.Context())
	defer stream.Close()
	names, err := stream.ListServices()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		sandboxv1connect.SandboxServiceName, processv1connect.ProcessServiceName, filev1connect.FileServiceName, healthv1connect.HealthName,
	} {
		if !slices.ContainsFunc(names, func(n protoreflect.FullName) bool { return string(n) == want }) {
			t.Errorf("%s is not among %v", want, names)
		}
	}
	if files, err := stream.FileContainingSymbol(sandboxv1connect.SandboxServiceName + ".Execute"); err != nil || len(files) == 0 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

// Health says what /ready says, and a drain at once.
func TestHealthFollowsReady(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) { c.Drain = 2 * time.Minute })
	addr, stop := f.Serve()
	c := healthv1connect.NewHealthClient(gatewaytest.HTTPClient(t, "", "grpc"), "http://"+addr.String(), connect.WithGRPC())
	check := func(service string) (healthv1.HealthCheckResponse_ServingStatus, error) {
		r, err := c.Check(t.Context(), connect.NewRequest(&healthv1.HealthCheckRequest{Service: service}))
		if err != nil {
			return 0, err
		}
		return r.Msg.Status, nil
	}
	for _, service := range []string{"", sandboxv1connect.SandboxServiceName} {
		if s, err := check(service); err != nil || s != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v", service, s, err)
		}
	}
	if _, err := check("nothing"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("an unknown service: %v", err)
	}
	watch, err := c.Watch(t.Context(), connect.NewRequest(&healthv1.HealthCheckRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	says := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if !watch.Receive() || watch.Msg().Status != want {
			t.Fatalf("the watch says %v, %v, not %v", watch.Msg(), watch.Err(), want)
		}
	}
	unready := func(reasons ...string) {
		f.Nodes.Lock()
		defer f.Nodes.Unlock()
		f.Nodes.NotReady = reasons
	}
	says(healthv1.HealthCheckResponse_SERVING)
	unready("the pool is empty")
	says(healthv1.HealthCheckResponse_NOT_SERVING)
	if s, err := check(""); err != nil || s != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v, %v", s, err)
	}
	unready()
	says(healthv1.HealthCheckResponse_SERVING)
	began := time.Now()
	stop()
	says(healthv1.HealthCheckResponse_NOT_SERVING)
	if watch.Receive() || connect.CodeOf(watch.Err()) != connect.CodeUnavailable {
		t.Errorf("after the drain: %v", watch.Err())
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("a watch held up the end for %v", took)
	}
}

// An execution that outlasts the drain is told why it ends.
func TestDrainEndsCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) { c.Drain = 100 * time.Millisecond })
	addr, stop := f.Serve()
	began := make(chan struct{})
	f.Guest.Scripts["stuck"] = func(ctx context.Context, _ execution.RunRequest, _ func(execution.RunEvent) error) (execution.RunEnd, error) {
		close(began)
		<-ctx.Done()
		return execution.RunEnd{}, ctx.Err()
	}
	s, err := gatewaytest.SandboxClient(t, "http://"+addr.String(), f.Token, "grpc").Execute(t.Context(), connect.NewRequest(&sandboxv1.ExecuteRequest{Code: "stuck", Language: "bash"}))
	if err != nil {
		t.Fatal(err)
	}
	<-began
	stop()
	for s.Receive() {
	}
	if code, failure := gatewaytest.CodeOf(s.Err()); code != sandbox.Unavailable || !strings.Contains(failure.GetMessage(), "shutting down") {
		t.Errorf("%v", s.Err())
	}
	_ = s.Close()
	if f.Sandboxes.Live() != 0 {
		t.Error("a borrowed sandbox is left")
	}
}

// A malformed call is refused without harm, and counted as malformed.
func TestMalformedCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	get := "/" + sandboxv1connect.SandboxServiceName + "/Get"
	for _, tt := range []struct {
		kind, body string
		status     int
		grpc       string
	}{
		{"application/json", `{"sandbox_id":`, 400, ""},
		{"application/json", `{"sandbox_id":7}`, 400, ""},
		{"application/json", `{"nonsense":1}`, 400, ""},
		{"application/json", `[]`, 400, ""},
		{"application/json", "{\"sandbox_id\":\"\xff\"}", 400, ""},
		{"application/json", ``, 400, ""}, // {} lacks the ID
		{"application/proto", "\xff\xff\xff", 400, ""},
		{"application/grpc", "\x00\x00\x00\x00\x03\xff\xff\xff", 200, "3"},
		{"application/grpc", "\x00\xff\xff\xff\xff", 200, "13"},
		{"application/grpc", "\x01\x00\x00\x00\x00", 200, "3"},
		{"application/grpc", "", 200, "12"},
		{"text/plain", "x", 415, ""},
		{"", "", 415, ""},
	} {
		req, err := http.NewRequest("POST", f.URL+get, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.Token)
		if tt.kind != "" {
			req.Header.Set("Content-Type", tt.kind)
		}
		f.Logs.Reset()
		resp, err := f.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		status := resp.Header.Get("Grpc-Status") + resp.Trailer.Get("Grpc-Status")
		if resp.StatusCode != tt.status || tt.grpc != "" && (status == "" || status == "0") {
			t.Errorf("%s %q: %d, gRPC status %q, %s", tt.kind, tt.body, resp.StatusCode, status, body)
		}
		gatewaytest.WaitFor(t, "its line in the log", func() bool { return strings.Contains(f.Logs.String(), `"code":"`) })
		if !strings.Contains(f.Logs.String(), `"status":400`) {
			t.Errorf("%s %q is logged as %s", tt.kind, tt.body, f.Logs)
		}
	}
	a := f.Do("GET", get, "")
	if a.Status != 405 || a.Header.Get("Allow") != "POST" {
		t.Errorf("GET answers %d", a.Status)
	}
}

// No bytes bring a call to an internal error.
func FuzzCalls(f *testing.F) {
	x := newFixture(f)
	kinds := []string{"application/json", "application/proto", "application/grpc", "application/grpc+proto", "application/grpc-web", "application/connect+json", "application/connect+proto"}
	raw, err := proto.Marshal(&sandboxv1.ExecuteRequest{Code: "x", Language: "bash", TimeoutSeconds: new(1.5)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(byte(0), byte(0), []byte(`{"name":"a","timeout_seconds":1e9,"resources":{"cpus":"NaN"}}`))
	f.Add(byte(1), byte(6), raw)
	f.Add(byte(2), byte(6), append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(raw))), raw...))
	f.Add(byte(5), byte(6), []byte("\x00\x00\x00\x00\x02{}\x02\x00\x00\x00\x00"))
	other := x.Mint("other")
	procedures := proceduresOf("sandbox", "process", "file", "context", "template", "git", "key", "secret", "volume")
	f.Fuzz(func(t *testing.T, kind, procedure byte, body []byte) {
		path := procedures[int(procedure)%len(procedures)]
		req, err := http.NewRequest("POST", x.URL+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		token := x.Token
		if !strings.Contains(path, "sandbox.v1") { // of one who has no sandbox: nothing is started here
			token = other
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", kinds[int(kind)%len(kinds)])
		x.Logs.Reset()
		resp, err := x.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode >= 500 && resp.StatusCode != 501 || strings.Contains(x.Logs.String(), `"level":"ERROR"`) {
			t.Errorf("%d: %s", resp.StatusCode, x.Logs)
		}
	})
}

// proceduresOf returns the paths of the calls of services.
func proceduresOf(services ...protoreflect.Name) (all []string) {
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if file.Services().Len() == 0 || file.Package().Parent().Parent() != "cloudsandbox" || !slices.Contains(services, file.Package().Parent().Name()) {
			return true
		}
		service := file.Services().Get(0)
		for i := range service.Methods().Len() {
			all = append(all, fmt.Sprintf("/%s/%s", service.FullName(), service.Methods().Get(i).Name()))
		}
		return true
	})
	slices.Sort(all) // the order of the files is random
	return all
}
