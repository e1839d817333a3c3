package envd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/api/gen/filesystem"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/filesystem/filesystemconnect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/process"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/process/processconnect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

var theReaper = sync.OnceValue(func() *server.Reaper {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	return server.NewReaper()
})

const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"

// rig is envd on this machine, whose user is root.
type rig struct {
	url   string
	home  string
	procs processconnect.ProcessClient
	files filesystemconnect.FilesystemClient
}

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guest runs as root")
	}
	home := t.TempDir()
	accounts := server.Accounts{Etc: fstest.MapFS{"passwd": {Data: []byte("root:x:0:0:root:" + home + ":/bin/bash\n")}}}
	g := server.New(accounts, theReaper())
	if err := g.Bind(server.Owner{SandboxID: "i", BootNumber: 1, User: "root", Cwd: home, AccessToken: token}, 0, nil); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(New(g))
	t.Cleanup(s.Close)
	withToken := &http.Client{Transport: addToken{}}
	return &rig{
		url: s.URL, home: home,
		procs: processconnect.NewProcessClient(withToken, s.URL, connect.WithProtoJSON()),
		files: filesystemconnect.NewFilesystemClient(withToken, s.URL, connect.WithProtoJSON()),
	}
}

type addToken struct{}

func (addToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set(tokenHeader, token)
	return http.DefaultTransport.RoundTrip(r)
}

func TestSignature(t *testing.T) {
	const want = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
	if got := Signature("hello.txt", "read", "user", token, ""); got != want {
		t.Errorf("Signature = %s, want %s", got, want)
	}
}

func TestAcceptedEncoding(t *testing.T) {
	for header, want := range map[string]string{
		"": "identity", "identity": "identity", "gzip": "gzip", "GZIP": "gzip", "gzip;q=1, identity;q=0.5": "gzip", "gzip;q=0": "identity",
		"identity, gzip;q=0.5": "identity", "gzip, identity;q=0": "gzip", "*": "identity", "identity;q=0": "", "identity;q=0, *;q=0": "",
		"gzip, deflate": "identity", "gzip, deflate, br, zstd": "identity", "gzip, deflate, identity;q=0": "gzip", "br": "identity", "br, identity;q=0": "",
	} {
		if got, ok := acceptedEncoding(header); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v, want %q", header, got, ok, want)
		}
	}
}

func bash(code string) *process.StartRequest {
	return &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", code}}}
}

// all reads a stream to its end.
func all(t *testing.T, r *rig, req *process.StartRequest) (stdout, stderr, tty string, end *process.ProcessEvent_EndEvent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := r.procs.Start(ctx, connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for first := true; stream.Receive(); first = false {
		e := stream.Msg().Event
		if first && e.GetStart().GetPid() == 0 {
			t.Fatalf("the first event is %v", e)
		}
		stdout += string(e.GetData().GetStdout())
		stderr += string(e.GetData().GetStderr())
		tty += string(e.GetData().GetPty())
		if e.GetEnd() != nil {
			end = e.GetEnd()
		}
	}
	if end == nil {
		t.Fatalf("no end: %v", stream.Err())
	}
	return stdout, stderr, tty, end
}

func TestStart(t *testing.T) {
	r := newRig(t)
	no := false
	out, errOut, _, end := all(t, r, bash("echo out; echo err >&2; pwd; exit 3"))
	if out != "out\n"+r.home+"\n" || errOut != "err\n" || end.ExitCode != 3 || !end.Exited || end.Status != "exit status 3" || end.GetError() == "" {
		t.Errorf("got %q, %q, %v", out, errOut, end)
	}
	_, _, _, end = all(t, r, bash("kill -9 $$"))
	if end.ExitCode != -1 || end.Exited || end.Status != "signal: killed" {
		t.Errorf("killed: %v", end)
	}
	req := bash("cat; echo done")
	req.Stdin = &no
	if out, _, _, _ := all(t, r, req); out != "done\n" {
		t.Errorf("without stdin: %q", out)
	}
	req = bash("stty size; [ -t 0 ] && echo terminal")
	req.Pty = &process.PTY{Size: &process.PTY_Size{Cols: 111, Rows: 33}}
	if _, _, tty, _ := all(t, r, req); tty != "33 111\r\nterminal\r\n" {
		t.Errorf("terminal: %q", tty)
	}
	if out, _, _, end := all(t, r, bash("head -c 5000000 /dev/zero | tr '\\0' x")); len(out) != 5000000 || end.ExitCode != 0 {
		t.Errorf("much output: %d bytes, %v", len(out), end)
	}
	missing := bash("true")
	missing.Process.Cwd = ptr("/no/such")
	stream, err := r.procs.Start(t.Context(), connect.NewRequest(missing))
	if err == nil {
		stream.Receive()
		err = stream.Err()
	}
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("missing folder: %v", err)
	}
}

func ptr[T any](v T) *T { return &v }

// A client that leaves does not end the process; it is found by tag, fed,
// connected to and ended.
func TestLeaveAndReturn(t *testing.T) {
	r := newRig(t)
	ctx, leave := context.WithCancel(t.Context())
	req := bash("while read line; do echo got $line; done; echo end; sleep 60")
	req.Tag = ptr("reader")
	stream, err := r.procs.Start(ctx, connect.NewRequest(req))
	if err != nil || !stream.Receive() {
		t.Fatal(err)
	}
	leave()
	stream.Close()
	sel := &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: "reader"}}
	list, err := r.procs.List(t.Context(), connect.NewRequest(&process.ListRequest{}))
	if err != nil || len(list.Msg.Processes) != 1 || list.Msg.Processes[0].GetTag() != "reader" {
		t.Fatalf("list: %v, %v", list, err)
	}
	again, err := r.procs.Connect(t.Context(), connect.NewRequest(&process.ConnectRequest{Process: sel}))
	if err != nil || !again.Receive() || again.Msg().Event.GetStart() == nil {
		t.Fatalf("connect: %v", err)
	}
	in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("a\n")}}
	if _, err := r.procs.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel, Input: in})); err != nil {
		t.Fatal(err)
	}
	if !again.Receive() || string(again.Msg().Event.GetData().GetStdout()) != "got a\n" {
		t.Fatalf("after input: %v, %v", again.Msg(), again.Err())
	}
	for range 2 {
		if _, err := r.procs.CloseStdin(t.Context(), connect.NewRequest(&process.CloseStdinRequest{Process: sel})); err != nil {
			t.Fatal(err)
		}
	}
	if !again.Receive() || string(again.Msg().Event.GetData().GetStdout()) != "end\n" {
		t.Fatalf("after the end of input: %v", again.Msg())
	}
	if _, err := r.procs.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel, Input: in})); connect.CodeOf(err) != connect.CodeInternal {
		t.Errorf("input after the end: %v", err)
	}
	if _, err := r.procs.SendSignal(t.Context(), connect.NewRequest(&process.SendSignalRequest{Process: sel, Signal: process.Signal_SIGNAL_SIGKILL})); err != nil {
		t.Fatal(err)
	}
	for again.Receive() {
		if e := again.Msg().Event.GetEnd(); e != nil && e.Status != "signal: killed" {
			t.Errorf("end: %v", e)
		}
	}
	late, err := r.procs.Connect(t.Context(), connect.NewRequest(&process.ConnectRequest{Process: sel}))
	if err != nil || !late.Receive() || late.Msg().Event.GetStart() == nil || !late.Receive() || late.Msg().Event.GetEnd() == nil {
		t.Errorf("late connect: %v", err)
	}
	unknown := &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: 4000000}}
	if _, err := r.procs.SendSignal(t.Context(), connect.NewRequest(&process.SendSignalRequest{Process: unknown, Signal: process.Signal_SIGNAL_SIGKILL})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("unknown process: %v", err)
	}
}

func TestFilesOverHTTP(t *testing.T) {
	r := newRig(t)
	client := &http.Client{Transport: addToken{}}
	post := func(query, kind string, body io.Reader, header ...string) (int, string) {
		req, _ := http.NewRequest(http.MethodPost, r.url+"/files?"+query, body)
		req.Header.Set("Content-Type", kind)
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	if code, body := post("path=a/b/c.txt", "application/octet-stream", strings.NewReader("hello")); code != 200 || !strings.Contains(body, `"path":"`+r.home+`/a/b/c.txt"`) {
		t.Errorf("upload: %d %s", code, body)
	}
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for _, name := range []string{"/x.txt", "/deep/y.txt"} {
		part, _ := w.CreateFormFile("file", r.home+name)
		io.WriteString(part, name)
	}
	w.Close()
	if code, body := post("", w.FormDataContentType(), &form); code != 200 || strings.Count(body, `"type":"file"`) != 2 {
		t.Errorf("form: %d %s", code, body)
	}
	if b, err := os.ReadFile(filepath.Join(r.home, "deep/y.txt")); err != nil || string(b) != "/deep/y.txt" {
		t.Errorf("form's file: %q, %v", b, err)
	}
	form.Reset()
	w = multipart.NewWriter(&form)
	for _, name := range []string{"twice.txt", r.home + "/./twice.txt"} {
		part, _ := w.CreateFormFile("file", name)
		io.WriteString(part, name)
	}
	w.Close()
	if code, body := post("", w.FormDataContentType(), &form); code != 400 {
		t.Errorf("a form with one file twice: %d %s", code, body)
	}
	for encoding, want := range map[string]int{"identity": 200, "br": 400, "gzip": 400} {
		if code, body := post("path=encoded", "application/octet-stream", strings.NewReader("plain"), "Content-Encoding", encoding); code != want {
			t.Errorf("a body that is plain, said to be %s: %d %s", encoding, code, body)
		}
	}
	if err := unix.Mkfifo(filepath.Join(r.home, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{"path=a": 400, "path=fifo": 400, "": 400} {
		if code, body := post(query, "application/octet-stream", strings.NewReader("x")); code != want {
			t.Errorf("upload to %q: %d %s", query, code, body)
		}
	}
	get := func(c *http.Client, query string, header ...string) (*http.Response, string) {
		req, _ := http.NewRequest(http.MethodGet, r.url+"/files?"+query, nil)
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp, string(b)
	}
	if resp, body := get(client, "path=a/b/c.txt", "Range", "bytes=1-2"); resp.StatusCode != 206 || body != "el" {
		t.Errorf("range: %d %q", resp.StatusCode, body)
	}
	if resp, body := get(client, "path=none"); resp.StatusCode != 404 || !strings.Contains(body, "path '"+r.home+"/none' does not exist") {
		t.Errorf("missing: %d %q", resp.StatusCode, body)
	}
	for _, query := range []string{"path=a", "path=fifo", "path=/proc/self/mem"} {
		if resp, body := get(client, query); resp.StatusCode != 400 {
			t.Errorf("%s: %d %q", query, resp.StatusCode, body)
		}
	}
	// What the kernel makes up as it is read has no size and no end to seek.
	if resp, body := get(client, "path=/proc/self/environ", "Range", "bytes=0-1"); resp.StatusCode != 200 || resp.Header.Get("ETag") != "" || !strings.Contains(body, "PATH=") {
		t.Errorf("a file of /proc: %d %q %q", resp.StatusCode, resp.Header, body)
	}
	plain := http.DefaultClient
	for _, tt := range []struct {
		query, message string
		code           int
	}{
		{"path=a/b/c.txt", "missing signature query parameter", 401},
		{"path=a/b/c.txt&signature=v1_no", "invalid signature", 401},
		{"path=a/b/c.txt&signature=" + strings.ReplaceAll(Signature("a/b/c.txt", "read", "", token, ""), "+", "%2B"), "hello", 200},
		{"path=a/b/c.txt&signature_expiration=1&signature=" + strings.ReplaceAll(Signature("a/b/c.txt", "read", "", token, "1"), "+", "%2B"), "signature is already expired", 401},
	} {
		if resp, body := get(plain, tt.query); resp.StatusCode != tt.code || !strings.Contains(body, tt.message) {
			t.Errorf("%s: %d %s", tt.query, resp.StatusCode, body)
		}
	}
	if resp, body := get(plain, "path=a/b/c.txt", tokenHeader, "wrong"); resp.StatusCode != 401 || !strings.Contains(body, "does not match") {
		t.Errorf("wrong token: %d %s", resp.StatusCode, body)
	}
}

func TestFilesystem(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	if _, err := r.files.MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: "d/e"})); err != nil {
		t.Fatal(err)
	}
	if _, err := r.files.MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: "d/e"})); connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Errorf("again: %v", err)
	}
	if err := os.WriteFile(filepath.Join(r.home, "d/f"), []byte("12345"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("f", filepath.Join(r.home, "d/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.home, "d/odd\xff"), nil, 0o640); err != nil {
		t.Fatal(err)
	}
	bounded := connect.NewRequest(&filesystem.ListDirRequest{Path: "~", Depth: 2})
	bounded.Header().Set(LimitHeader, "1")
	if some, err := r.files.ListDir(ctx, bounded); err != nil || len(some.Msg.Entries) != 1 || some.Header().Get(TruncatedHeader) != "true" {
		t.Errorf("a bounded listing: %v, %v", some, err)
	}
	list, err := r.files.ListDir(ctx, connect.NewRequest(&filesystem.ListDirRequest{Path: "~", Depth: 2}))
	if err == nil && list.Header().Get(TruncatedHeader) != "" {
		t.Error("a whole listing is said to be cut")
	}
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list.Msg.Entries {
		names = append(names, strings.TrimPrefix(e.Path, r.home+"/"))
	}
	if got := strings.Join(names, " "); got != "d d/e d/f d/link d/odd\uFFFD" {
		t.Errorf("list: %s", got)
	}
	stat, err := r.files.Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: "d/link"}))
	if err != nil || stat.Msg.Entry.Type != filesystem.FileType_FILE_TYPE_FILE || stat.Msg.Entry.GetSymlinkTarget() != r.home+"/d/f" || !strings.HasPrefix(stat.Msg.Entry.Permissions, "L") {
		t.Errorf("link: %v, %v", stat, err)
	}
	if _, err := r.files.Move(ctx, connect.NewRequest(&filesystem.MoveRequest{Source: "d/f", Destination: "new/g"})); err != nil {
		t.Error(err)
	}
	if _, err := r.files.Move(ctx, connect.NewRequest(&filesystem.MoveRequest{Source: "new", Destination: "new/x/y"})); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("into itself: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(r.home, "new/x")); err == nil {
		t.Error("a move that is refused left a folder")
	}
	for range 2 {
		if _, err := r.files.Remove(ctx, connect.NewRequest(&filesystem.RemoveRequest{Path: "d"})); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.files.Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: "d"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("removed: %v", err)
	}
}

func TestWatch(t *testing.T) {
	r := newRig(t)
	stream, err := r.files.WatchDir(t.Context(), connect.NewRequest(&filesystem.WatchDirRequest{Path: "~", Recursive: true, IncludeEntry: true}))
	if err != nil || !stream.Receive() || stream.Msg().GetStart() == nil {
		t.Fatalf("watch: %v", err)
	}
	defer stream.Close()
	watcher, err := r.files.CreateWatcher(t.Context(), connect.NewRequest(&filesystem.CreateWatcherRequest{Path: "~", Recursive: true}))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(r.home, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	wait := func(name string) {
		for stream.Receive() {
			if e := stream.Msg().GetFilesystem(); e.GetName() == name && e.Type == filesystem.EventType_EVENT_TYPE_CREATE {
				if e.Entry == nil {
					t.Error("the event has no entry")
				}
				return
			}
		}
		t.Fatalf("no event for %s: %v", name, stream.Err())
	}
	wait("sub")
	if err := os.WriteFile(filepath.Join(r.home, "sub/f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	wait("sub/f")
	if err := os.MkdirAll(filepath.Join(r.home, "sub/all/at/once"), 0o755); err != nil {
		t.Fatal(err)
	}
	wait("sub/all/at/once")
	id := watcher.Msg.WatcherId
	poll := func() []*filesystem.FilesystemEvent {
		t.Helper()
		events, err := r.files.GetWatcherEvents(t.Context(), connect.NewRequest(&filesystem.GetWatcherEventsRequest{WatcherId: id}))
		if err != nil {
			t.Fatal(err)
		}
		return events.Msg.Events
	}
	if events := poll(); len(events) == 0 || events[0].Name != "sub" {
		t.Errorf("polled: %v", events)
	}
	for i := range 200 { // what was there before the question is in the answer
		name := fmt.Sprint("n", i)
		if err := os.WriteFile(filepath.Join(r.home, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if events := poll(); len(events) == 0 || events[0].Name != name {
			t.Fatalf("polled after writing %s: %v", name, events)
		}
	}
	if events := poll(); len(events) > 0 {
		t.Errorf("polled when nothing has changed: %v", events)
	}
	if _, err := r.files.RemoveWatcher(t.Context(), connect.NewRequest(&filesystem.RemoveWatcherRequest{WatcherId: id})); err != nil {
		t.Error(err)
	}
	if _, err := r.files.GetWatcherEvents(t.Context(), connect.NewRequest(&filesystem.GetWatcherEventsRequest{WatcherId: id})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("removed watcher: %v", err)
	}
}

// Who hears of the end of a process finds it ended, and who comes then hears of it
// too, also while somebody else is slow to take it.
func TestEndIsTheEndForAll(t *testing.T) {
	p := &proc{ended: make(chan struct{}), subscribers: map[*subscriber]struct{}{}}
	slow, quick := p.subscribe(), p.subscribe()
	for range queued {
		slow.events <- &process.ProcessEvent{}
	}
	end := &process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{}}}
	finished := make(chan struct{})
	go func() { p.finish(end); close(finished) }()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		t.Fatal("it has not ended")
	}
	if e := <-p.subscribe().events; e != end {
		t.Errorf("who came later is told %v", e)
	}
	for range queued {
		<-slow.events
	}
	for _, s := range []*subscriber{slow, quick} {
		if e := <-s.events; e != end {
			t.Errorf("told %v", e)
		}
	}
	<-finished
	p.publish(&process.ProcessEvent{}) // by what the process left behind
}

// What was killed is gone for whoever asks next.
func TestKilledIsGone(t *testing.T) {
	r := newRig(t)
	for range 20 {
		stream, err := r.procs.Start(t.Context(), connect.NewRequest(bash("exec sleep 60")))
		if err != nil || !stream.Receive() {
			t.Fatalf("start: %v", err)
		}
		sel := &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: stream.Msg().Event.GetStart().GetPid()}}
		kill := connect.NewRequest(&process.SendSignalRequest{Process: sel, Signal: process.Signal_SIGNAL_SIGKILL})
		if _, err := r.procs.SendSignal(t.Context(), kill); err != nil {
			t.Fatal(err)
		}
		if _, err := r.procs.SendSignal(t.Context(), kill); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("killed again: %v", err)
		}
		in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("a\n")}}
		if _, err := r.procs.SendInput(t.Context(), connect.NewRequest(&process.SendInputRequest{Process: sel, Input: in})); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("input: %v", err)
		}
		if list, err := r.procs.List(t.Context(), connect.NewRequest(&process.ListRequest{})); err != nil || len(list.Msg.Processes) > 0 {
			t.Errorf("list: %v, %v", list, err)
		}
		stream.Close()
	}
}
