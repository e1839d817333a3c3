package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	contextv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/context/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/context/v1/contextv1connect"
	filev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1/filev1connect"
	gitv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/git/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/git/v1/gitv1connect"
	keyv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/key/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/key/v1/keyv1connect"
	processv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/process/v1/processv1connect"
	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1/sandboxv1connect"
	secretv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/secret/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/secret/v1/secretv1connect"
	templatev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/template/v1/templatev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

const service = "cloudsandbox.sandbox.v1.SandboxService"

// grpcClient speaks gRPC over HTTP/2 as c's Tenant.
func grpcClient(t testing.TB, c *rig.Client) sandboxv1connect.SandboxServiceClient {
	return sandboxv1connect.NewSandboxServiceClient(grpcTransport(t, c), c.URL, connect.WithGRPC())
}

// grpcTransport speaks HTTP/2 as c's Tenant.
func grpcTransport(t testing.TB, c *rig.Client) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: p}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: bearer{transport, c.Token}}
}

type bearer struct {
	http.RoundTripper
	token string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(r)
}

// runsByGRPC runs code in a Sandbox and returns the streamed stdout and the result.
func runsByGRPC(t *testing.T, c sandboxv1connect.SandboxServiceClient, req *sandboxv1.ExecuteRequest) (stdout string, res *sandboxv1.Result) {
	t.Helper()
	s, err := c.Execute(t.Context(), connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for s.Receive() {
		stdout += s.Msg().GetStdout()
		if r := s.Msg().GetResult(); r != nil {
			res = r
		}
	}
	if s.Err() != nil || res == nil {
		t.Fatalf("%v, result %v", s.Err(), res)
	}
	return stdout, res
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	rest := shared.Server(t).Client(t, "grpc")
	c := grpcClient(t, rest)
	created, err := c.Create(t.Context(), connect.NewRequest(&sandboxv1.CreateRequest{Name: "by-grpc", Env: map[string]string{"A": "b"}}))
	if err != nil {
		t.Fatal(err)
	}
	id := created.Msg.Sandbox.SandboxId
	if out, res := runsByGRPC(t, c, &sandboxv1.ExecuteRequest{SandboxId: "by-grpc", Language: "python", Code: "import os\nprint(os.environ['A'])\nx = 41"}); out != "b\n" || res.Status != "ok" || res.Context.GetContextId() != "python" {
		t.Errorf("%q, %v", out, res)
	}
	if r := rest.Run(t, id, "python", "x + 1", nil); len(r.Results) != 1 || r.Results[0].Text != "42" {
		t.Errorf("by REST: %s", r)
	}
	if out, res := runsByGRPC(t, c, &sandboxv1.ExecuteRequest{SandboxId: id, Language: "bash", Code: "echo out; echo err >&2; exit 3"}); out != "out\n" || res.ExitCode != 3 || res.Stderr != "err\n" || res.Status != "error" {
		t.Errorf("%q, %v", out, res)
	}
	if _, res := runsByGRPC(t, c, &sandboxv1.ExecuteRequest{SandboxId: id, Language: "bash", Code: "sleep 60", TimeoutSeconds: new(0.2)}); res.Status != "timeout" {
		t.Errorf("%v", res)
	}
	cancels(t, c, rest, id)
	processByGRPC(t, rest, id)
	if _, err := c.End(t.Context(), connect.NewRequest(&sandboxv1.EndRequest{SandboxId: id})); err != nil {
		t.Error(err)
	}
	if got := rest.Get(t, id); got.State != "ended" || got.Cause() != "released" {
		t.Errorf("it is %s, %s", got.State, got.Cause())
	}
}

// A create by gRPC has the fields and defaults of REST. A retry with its Idempotency-Key
// returns the same sandbox.
func TestCreatesOnceByGRPC(t *testing.T) {
	t.Parallel()
	rest := shared.Server(t).Client(t, "grpc-once")
	c := grpcClient(t, rest)
	create := func() *connect.Response[sandboxv1.CreateResponse] {
		r := connect.NewRequest(&sandboxv1.CreateRequest{Resources: &sandboxv1.Resources{Type: "lite", Pids: new(int32(100))}, Ports: &sandboxv1.Ports{Private: true}})
		r.Header().Set("Idempotency-Key", "order-1")
		created, err := c.Create(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return created
	}
	first, again := create(), create()
	sb := first.Msg.Sandbox
	if again.Msg.Sandbox.SandboxId != sb.SandboxId || again.Header().Get("Idempotent-Replayed") != "true" || first.Header().Get("Idempotent-Replayed") != "" {
		t.Errorf("%v, then %v", first, again)
	}
	if sb.OnTimeout != "pause" || !sb.Ports.GetPrivate() || sb.Shape.GetMemoryMb() != 256 || sb.Shape.GetPids() != 100 {
		t.Errorf("created %v", sb)
	}
	if _, err := c.End(t.Context(), connect.NewRequest(&sandboxv1.EndRequest{SandboxId: sb.SandboxId})); err != nil {
		t.Error(err)
	}
}

// A sandbox is paused, resumed, forked and rolled back by gRPC.
func TestSavesByGRPC(t *testing.T) {
	t.Parallel()
	c := grpcClient(t, shared.Server(t).Client(t, "grpc-saves"))
	ctx := t.Context()
	created, err := c.Create(ctx, connect.NewRequest(&sandboxv1.CreateRequest{OnTimeout: "pause", AutoResume: new(false), CheckpointEverySeconds: 3600}))
	if err != nil {
		t.Fatal(err)
	}
	id := created.Msg.Sandbox.SandboxId
	t.Cleanup(func() { _, _ = c.End(context.Background(), connect.NewRequest(&sandboxv1.EndRequest{SandboxId: id})) })
	if sb := created.Msg.Sandbox; sb.OnTimeout != "pause" || sb.AutoResume || sb.CheckpointEverySeconds != 3600 || sb.Timeline != 1 || sb.LostSeconds != nil {
		t.Errorf("created: %v", sb)
	}
	python := func(id, code, want string) {
		t.Helper()
		if out, res := runsByGRPC(t, c, &sandboxv1.ExecuteRequest{SandboxId: id, Language: "python", Code: code}); res.Status != "ok" || out != want {
			t.Errorf("%s: %q, %v", code, out, res)
		}
	}
	python(id, "x = 1", "")
	saved, err := c.Snapshot(ctx, connect.NewRequest(&sandboxv1.SnapshotRequest{SandboxId: id, Name: "one"}))
	if err != nil || !saved.Msg.Snapshot.Memory || saved.Msg.Snapshot.Name != "one" || saved.Msg.Snapshot.SizeBytes == 0 {
		t.Fatalf("%v, %v", saved, err)
	}
	python(id, "x = 2", "")
	paused, err := c.Pause(ctx, connect.NewRequest(&sandboxv1.PauseRequest{SandboxId: id}))
	if err != nil || paused.Msg.Sandbox.State != "paused" {
		t.Fatalf("%v, %v", paused, err)
	}
	if s, err := c.Execute(ctx, connect.NewRequest(&sandboxv1.ExecuteRequest{SandboxId: id, Language: "python", Code: "x"})); err == nil {
		for s.Receive() {
		}
		if connect.CodeOf(s.Err()) != connect.CodeFailedPrecondition {
			t.Errorf("code in one that stays paused: %v", s.Err())
		}
		_ = s.Close()
	}
	forks, err := c.Fork(ctx, connect.NewRequest(&sandboxv1.ForkRequest{SandboxId: id, Count: new(int32(2)), Metadata: map[string]string{"copy": "yes"}}))
	if err != nil || len(forks.Msg.Copies) != 2 {
		t.Fatalf("%v, %v", forks, err)
	}
	for _, f := range forks.Msg.Copies {
		if f.Error != "" || f.Sandbox.Metadata["copy"] != "yes" {
			t.Fatalf("a copy: %v", f)
		}
		python(f.Sandbox.SandboxId, "print(x)", "2\n")
		if _, err := c.End(ctx, connect.NewRequest(&sandboxv1.EndRequest{SandboxId: f.Sandbox.SandboxId})); err != nil {
			t.Error(err)
		}
	}
	resumed, err := c.Resume(ctx, connect.NewRequest(&sandboxv1.ResumeRequest{SandboxId: id}))
	if err != nil || resumed.Msg.Sandbox.State != "running" {
		t.Fatalf("%v, %v", resumed, err)
	}
	python(id, "print(x)", "2\n")
	back, err := c.Rollback(ctx, connect.NewRequest(&sandboxv1.RollbackRequest{SandboxId: id, SnapshotId: "one"}))
	if err != nil || back.Msg.Sandbox.SnapshotId != saved.Msg.Snapshot.SnapshotId {
		t.Fatalf("%v, %v", back, err)
	}
	python(id, "print(x)", "1\n")
	history, err := c.History(ctx, connect.NewRequest(&sandboxv1.HistoryRequest{SandboxId: id}))
	if err != nil || !slices.ContainsFunc(history.Msg.Snapshots, func(s *sandboxv1.Saved) bool { return s.Name == "one" && s.Current }) {
		t.Errorf("%v, %v", history, err)
	}
}

// processByGRPC starts a background process and then follows its output.
func processByGRPC(t *testing.T, rest *rig.Client, id string) {
	t.Helper()
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: p}
	defer transport.CloseIdleConnections()
	c := processv1connect.NewProcessServiceClient(&http.Client{Transport: bearer{transport, rest.Token}}, rest.URL, connect.WithGRPC())
	started, err := c.Start(t.Context(), connect.NewRequest(&processv1.StartRequest{
		SandboxId: id, Name: "clock", Background: true, Command: "until [ -e /tmp/begin ]; do sleep 0.05; done; for i in 1 2 3; do echo tick $i; sleep 0.1; done; echo end >&2; exit 4",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got := started.Msg.Process; got.State != "running" {
		t.Errorf("started: %v", got)
	}
	rest.Sh(t, id, "touch /tmp/begin")
	out := map[bool]string{} // true: stderr; the order of the two streams is not defined
	var last *processv1.Process
	s, err := c.Output(t.Context(), connect.NewRequest(&processv1.OutputRequest{SandboxId: id, ProcessId: "clock", Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for s.Receive() {
		piece := s.Msg().GetPiece()
		out[piece.GetStderr()] += string(piece.GetData())
		if p := s.Msg().GetProcess(); p != nil {
			last = p
		}
	}
	if s.Err() != nil || out[false] != "tick 1\ntick 2\ntick 3\n" || out[true] != "end\n" || last.GetExitCode() != 4 {
		t.Errorf("%v, %v, %v", out, last, s.Err())
	}
}

// Files are uploaded and downloaded in chunks, archived, extracted, searched and watched
// by gRPC.
func TestFilesByGRPC(t *testing.T) {
	t.Parallel()
	rest := shared.Server(t).Client(t, "grpc-files")
	c := filev1connect.NewFileServiceClient(grpcTransport(t, rest), rest.URL, connect.WithGRPC())
	id := rest.Acquire(t)
	ctx := t.Context()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // 16 MiB
	up := c.Write(ctx)
	must(t, up.Send(&filev1.WriteRequest{SandboxId: id, Path: "tree/large"}))
	for piece := range slices.Chunk(content, 1<<20) {
		must(t, up.Send(&filev1.WriteRequest{Data: piece}))
	}
	if res, err := up.CloseAndReceive(); err != nil || res.Msg.Entry.SizeBytes != int64(len(content)) {
		t.Fatalf("%v, %v", res, err)
	}
	read := func(req *filev1.ReadRequest) (*filev1.Head, []byte) {
		t.Helper()
		down, err := c.Read(ctx, connect.NewRequest(req))
		must(t, err)
		defer down.Close()
		var head *filev1.Head
		var all []byte
		for down.Receive() {
			if h := down.Msg().GetHead(); h != nil {
				head = h
			}
			all = append(all, down.Msg().GetData()...)
		}
		must(t, down.Err())
		return head, all
	}
	if _, got := read(&filev1.ReadRequest{SandboxId: id, Path: "/workspace/tree/large"}); !bytes.Equal(got, content) {
		t.Errorf("%d bytes came, and not those that went", len(got))
	}
	head, got := read(&filev1.ReadRequest{SandboxId: id, Path: "tree/large", Offset: 18, Length: new(int64(4))})
	if string(got) != "2345" || head.Offset != 18 || head.GetSizeBytes() != 4 {
		t.Errorf("a part: %q, %v", got, head)
	}
	watched, err := c.Watch(ctx, connect.NewRequest(&filev1.WatchRequest{SandboxId: id, Path: "/workspace", Recursive: true}))
	must(t, err)
	defer watched.Close()
	if !watched.Receive() || watched.Msg().GetPosition().GetCursor() == "" {
		t.Fatalf("%v, %v", watched.Msg(), watched.Err())
	}
	packed, err := c.Archive(ctx, connect.NewRequest(&filev1.ArchiveRequest{SandboxId: id, Path: "tree"}))
	must(t, err)
	unpack := c.Extract(ctx)
	must(t, unpack.Send(&filev1.ExtractRequest{SandboxId: id, Path: "copy"}))
	for packed.Receive() {
		must(t, unpack.Send(&filev1.ExtractRequest{Data: packed.Msg().Data}))
	}
	must(t, packed.Err())
	if res, err := unpack.CloseAndReceive(); err != nil || res.Msg.Files != 1 || res.Msg.Bytes != int64(len(content)) {
		t.Errorf("%v, %v", res, err)
	}
	if got := rest.Sh(t, id, "cmp tree/large copy/large && echo same"); got != "same\n" {
		t.Errorf("%q", got)
	}
	rest.Sh(t, id, "echo needle > hay")
	for watched.Receive() && watched.Msg().GetChange().GetPath() != "/workspace/hay" {
	}
	must(t, watched.Err())
	if res, err := c.Search(ctx, connect.NewRequest(&filev1.SearchRequest{SandboxId: id, Pattern: "need.e"})); err != nil || len(res.Msg.Matches) != 1 || res.Msg.Matches[0].Path != "/workspace/hay" {
		t.Errorf("%v, %v", res, err)
	}
	stranger := filev1connect.NewFileServiceClient(grpcTransport(t, shared.Server(t).Client(t, "grpc-stranger")), rest.URL, connect.WithGRPC())
	if _, err := stranger.Stat(ctx, connect.NewRequest(&filev1.StatRequest{SandboxId: id, Path: "hay"})); connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), "no sandbox") {
		t.Errorf("a stranger hears %v", err)
	}
}

// A context keeps its variables until it is restarted.
func TestContextsByGRPC(t *testing.T) {
	t.Parallel()
	rest := shared.Server(t).Client(t, "grpc-contexts")
	code := grpcClient(t, rest)
	c := contextv1connect.NewContextServiceClient(grpcTransport(t, rest), rest.URL, connect.WithGRPC())
	id, ctx := rest.Acquire(t), t.Context()
	made, err := c.Create(ctx, connect.NewRequest(&contextv1.CreateRequest{SandboxId: id, Language: "python", Cwd: "/tmp"}))
	must(t, err)
	one := made.Msg.Context.ContextId
	python := func(text, want string) {
		t.Helper()
		if out, res := runsByGRPC(t, code, &sandboxv1.ExecuteRequest{SandboxId: id, ContextId: one, Code: text}); out != want || res.Context.GetContextId() != one {
			t.Errorf("%s: %q, %v", text, out, res)
		}
	}
	python("import os; x = 1; print(os.getcwd())", "/tmp\n")
	python("print(x)", "1\n")
	if r, err := c.Restart(ctx, connect.NewRequest(&contextv1.RestartRequest{SandboxId: id, ContextId: one})); err != nil || r.Msg.Context.ContextId != one {
		t.Errorf("%v, %v", r, err)
	}
	python("print('x' in globals())", "False\n")
	if r, err := c.Interrupt(ctx, connect.NewRequest(&contextv1.InterruptRequest{SandboxId: id, ContextId: one})); err != nil || r.Msg.Interrupted {
		t.Errorf("%v, %v", r, err)
	}
	_, err = c.Delete(ctx, connect.NewRequest(&contextv1.DeleteRequest{SandboxId: id, ContextId: one}))
	must(t, err)
	list, err := c.List(ctx, connect.NewRequest(&contextv1.ListRequest{SandboxId: id}))
	if err != nil || slices.ContainsFunc(list.Msg.Contexts, func(c *contextv1.Context) bool { return c.ContextId == one }) {
		t.Errorf("%v, %v", list, err)
	}
}

// A template is built from an archive in chunks, and a sandbox starts from it.
func TestTemplatesByGRPC(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	rest := s.Client(t, "grpc-templates")
	c := templatev1connect.NewTemplateServiceClient(grpcTransport(t, rest), rest.URL, connect.WithGRPC())
	ctx := t.Context()
	up := c.Build(ctx)
	must(t, up.Send(&templatev1.BuildRequest{Part: &templatev1.BuildRequest_Recipe{Recipe: &templatev1.Recipe{
		Template: "mine", Source: "tar:", Files: []*templatev1.File{{Path: "/srv/a", Content: []byte("put in\n"), Owner: "user"}},
	}}}))
	for piece := range slices.Chunk(tarOf(t, tinyRoot(t)), 64<<10) {
		must(t, up.Send(&templatev1.BuildRequest{Part: &templatev1.BuildRequest_Archive{Archive: piece}}))
	}
	queued, err := up.CloseAndReceive()
	must(t, err)
	log, err := c.BuildLog(ctx, connect.NewRequest(&templatev1.BuildLogRequest{BuildId: queued.Msg.Build.BuildId, Follow: true}))
	must(t, err)
	defer log.Close()
	lines := 0
	var built *templatev1.Build
	for log.Receive() {
		if log.Msg().GetLine() != nil {
			lines++
		}
		built = log.Msg().GetBuild()
	}
	if log.Err() != nil || lines == 0 || built.GetState() != "ready" {
		t.Fatalf("%v after %d lines, %v", built, lines, log.Err())
	}
	box, err := grpcClient(t, rest).Create(ctx, connect.NewRequest(&sandboxv1.CreateRequest{Template: "mine"}))
	must(t, err)
	if got := rest.Sh(t, box.Msg.Sandbox.SandboxId, "cat /srv/a"); got != "put in\n" {
		t.Errorf("the file holds %q", got)
	}
	rest.Must(t, "DELETE", "/api/v1/sessions/"+box.Msg.Sandbox.SandboxId, nil, nil)
	if r, err := c.Get(ctx, connect.NewRequest(&templatev1.GetRequest{Template: "mine"})); err != nil || len(r.Msg.Versions) != 1 || r.Msg.Template.Version != built.Version {
		t.Errorf("%v, %v", r, err)
	}
	stranger := templatev1connect.NewTemplateServiceClient(grpcTransport(t, s.Client(t, "grpc-stranger")), s.URL, connect.WithGRPC())
	if _, err := stranger.Get(ctx, connect.NewRequest(&templatev1.GetRequest{Template: "mine"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a stranger gets %v", err)
	}
	if r, err := c.Remove(ctx, connect.NewRequest(&templatev1.RemoveRequest{Template: "mine"})); err != nil || len(r.Msg.Removed) == 0 {
		t.Errorf("%v, %v", r, err)
	}
}

func TestGitByGRPC(t *testing.T) {
	t.Parallel()
	rest := shared.Server(t).Client(t, "grpc-git")
	c := gitv1connect.NewGitServiceClient(grpcTransport(t, rest), rest.URL, connect.WithGRPC())
	id, ctx := rest.Acquire(t), t.Context()
	rest.Sh(t, id, `set -e
		git config --global init.defaultBranch main
		git init -q /tmp/seed; cd /tmp/seed; echo one >a.txt; git add .; git -c user.name=S -c user.email=s@example.com commit -qm first
		git clone -q --bare /tmp/seed /tmp/app.git`)
	head, err := c.Clone(ctx, connect.NewRequest(&gitv1.CloneRequest{Repository: &gitv1.Repository{SandboxId: id}, Url: "/tmp/app.git"}))
	if err != nil || head.Msg.Head.Path != "/workspace/app" || head.Msg.Head.Branch != "main" {
		t.Fatalf("%v, %v", head, err)
	}
	repo := &gitv1.Repository{SandboxId: id, Path: "app"}
	rest.Sh(t, id, "echo two > app/b.txt; echo more >> app/a.txt")
	if r, err := c.Checkout(ctx, connect.NewRequest(&gitv1.CheckoutRequest{Repository: repo, Ref: "work", Create: true})); err != nil || r.Msg.Head.Branch != "work" {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := c.Add(ctx, connect.NewRequest(&gitv1.AddRequest{Repository: repo, Files: []string{"b.txt"}})); err != nil || len(r.Msg.Status.Files) != 2 || r.Msg.Status.Clean {
		t.Errorf("%v, %v", r, err)
	}
	made, err := c.Commit(ctx, connect.NewRequest(&gitv1.CommitRequest{Repository: repo, Message: "second", All: true, Author: &gitv1.Author{Name: "A", Email: "a@example.com"}}))
	must(t, err)
	if r, err := c.Status(ctx, connect.NewRequest(&gitv1.StatusRequest{Repository: repo})); err != nil || !r.Msg.Status.Clean || r.Msg.Status.Head.Commit != made.Msg.Head.Commit {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := c.Push(ctx, connect.NewRequest(&gitv1.PushRequest{Repository: repo, SetUpstream: true})); err != nil || r.Msg.Branch != "work" || r.Msg.Commit != made.Msg.Head.Commit {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := c.Pull(ctx, connect.NewRequest(&gitv1.PullRequest{Repository: repo})); err != nil || r.Msg.Updated {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := c.Branches(ctx, connect.NewRequest(&gitv1.BranchesRequest{Repository: repo})); err != nil || r.Msg.Current != "work" || len(r.Msg.Branches) < 3 {
		t.Errorf("%v, %v", r, err)
	}
}

// A key created by gRPC authenticates until it is revoked. A secret created by gRPC is
// listed by REST.
func TestKeysAndSecretsByGRPC(t *testing.T) {
	t.Parallel()
	s := shared.Server(t)
	rest := s.Client(t, "grpc-keys")
	ctx := t.Context()
	c := keyv1connect.NewKeyServiceClient(grpcTransport(t, rest), rest.URL, connect.WithGRPC())
	made, err := c.Create(ctx, connect.NewRequest(&keyv1.CreateRequest{Name: "robot", Scopes: []string{"read", "write"}}))
	must(t, err)
	robot := *rest
	robot.Token = made.Msg.Secret
	secrets := secretv1connect.NewSecretServiceClient(grpcTransport(t, &robot), rest.URL, connect.WithGRPC())
	_, err = secrets.Create(ctx, connect.NewRequest(&secretv1.CreateRequest{Name: "BY_GRPC", Value: "v"}))
	must(t, err)
	var listed struct{ Secrets []struct{ Name string } }
	if rest.Must(t, "GET", "/api/v1/secrets", nil, &listed); len(listed.Secrets) != 1 || listed.Secrets[0].Name != "BY_GRPC" {
		t.Errorf("REST lists %v", listed)
	}
	_, err = secrets.Delete(ctx, connect.NewRequest(&secretv1.DeleteRequest{Name: "BY_GRPC"}))
	must(t, err)
	_, err = c.Revoke(ctx, connect.NewRequest(&keyv1.RevokeRequest{KeyId: made.Msg.Key.KeyId}))
	must(t, err)
	if _, err := secrets.List(ctx, connect.NewRequest(&secretv1.ListRequest{})); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a revoked key: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cancels checks that canceling a call ends its code.
func cancels(t *testing.T, c sandboxv1connect.SandboxServiceClient, rest *rig.Client, id string) {
	t.Helper()
	s, err := c.Execute(t.Context(), connect.NewRequest(&sandboxv1.ExecuteRequest{SandboxId: id, Language: "bash", Code: "echo begun; exec sleep 4242", TimeoutSeconds: new(900.0)}))
	if err != nil {
		t.Fatal(err)
	}
	for s.Receive() && s.Msg().GetStdout() == "" {
	}
	// The output precedes the exec of sleep, so wait for that.
	rig.Within(t, rig.Patience, "what is cancelled", func() bool {
		return rest.Sh(t, id, "pgrep -fx 'sleep 4242' | wc -l") == "1\n"
	})
	_ = s.Close()
	rig.Within(t, rig.Patience, "the end of what was cancelled", func() bool {
		return rest.Sh(t, id, "pgrep -fx 'sleep 4242' | wc -l") == "0\n"
	})
}

// grpcurl, which uses grpc-go, works by server reflection without .proto files.
func TestGrpcurl(t *testing.T) {
	t.Parallel()
	tool := os.Getenv("CLOUD_SANDBOX_GRPCURL")
	if tool == "" {
		t.Skip("CLOUD_SANDBOX_GRPCURL does not name grpcurl: scripts/grpcurl.sh builds it and prints its path")
	}
	srv := shared.Server(t)
	c := srv.Client(t, "grpcurl")
	run := func(args ...string) string {
		t.Helper()
		out, err := rig.Command(tool, append([]string{"-plaintext"}, args...)...).CombinedOutput()
		if err != nil && !strings.HasPrefix(string(out), "ERROR:") {
			t.Fatalf("grpcurl %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	auth := "authorization: Bearer " + c.Token
	all := []string{
		"cloudsandbox.context.v1.ContextService", "cloudsandbox.file.v1.FileService", "cloudsandbox.git.v1.GitService", "cloudsandbox.key.v1.KeyService",
		"cloudsandbox.process.v1.ProcessService", service, "cloudsandbox.secret.v1.SecretService", "cloudsandbox.template.v1.TemplateService", "cloudsandbox.volume.v1.VolumeService", "grpc.health.v1.Health",
	}
	if out := run(srv.Addr, "list"); out != strings.Join(all, "\n")+"\n" {
		t.Errorf("list: %s", out)
	}
	if out := run(srv.Addr, "describe", service+".Execute"); !strings.Contains(out, "returns ( stream .cloudsandbox.sandbox.v1.ExecuteResponse )") {
		t.Errorf("describe: %s", out)
	}
	if out := run(srv.Addr, "grpc.health.v1.Health/Check"); !strings.Contains(out, `"SERVING"`) {
		t.Errorf("health: %s", out)
	}
	if out := run("-d", `{"code": "6 * 7", "language": "python"}`, srv.Addr, service+"/Execute"); !strings.Contains(out, "Unauthenticated") {
		t.Errorf("without a token: %s", out)
	}
	out := run("-H", auth, "-d", `{"code": "6 * 7", "language": "python"}`, srv.Addr, service+"/Execute")
	events := json.NewDecoder(bytes.NewReader([]byte(out)))
	var last, event map[string]any
	for events.Decode(&event) == nil {
		last, event = event, nil
	}
	if result, _ := last["result"].(map[string]any); result["status"] != "ok" || !strings.Contains(out, `"text/plain": "42"`) {
		t.Errorf("execute: %s", out)
	}
	id := c.Acquire(t)
	if out := run("-H", auth, "-d", `{"sandbox_id": "`+id+`"}`, srv.Addr, service+"/Get"); !strings.Contains(out, `"running"`) {
		t.Errorf("get: %s", out)
	}
	for _, call := range []string{"template.v1.TemplateService/List", "template.v1.TemplateService/ListBuilds", "key.v1.KeyService/List", "secret.v1.SecretService/List", "volume.v1.VolumeService/List"} {
		if out := run("-H", auth, srv.Addr, "cloudsandbox."+call); strings.HasPrefix(out, "ERROR") {
			t.Errorf("%s: %s", call, out)
		}
	}
	pieces := `{"sandbox_id": "` + id + `", "path": "f", "data": "YWI="} {"data": "Yw=="}`
	if out := run("-H", auth, "-d", pieces, srv.Addr, "cloudsandbox.file.v1.FileService/Write"); !strings.Contains(out, `"sizeBytes": "3"`) {
		t.Errorf("a file in pieces: %s", out)
	}
	if out := run("-H", auth, "-d", `{"sandbox_id": "none"}`, srv.Addr, service+"/Get"); !strings.Contains(out, "NotFound") || !strings.Contains(out, `"code": "not_found"`) {
		t.Errorf("an absent one: %s", out)
	}
}
