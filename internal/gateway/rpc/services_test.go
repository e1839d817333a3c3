package rpc_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"connectrpc.com/connect"

	filev1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/file/v1/filev1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rpc"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// badCall is a call that must be refused. ID in its messages is a Sandbox.
type badCall struct {
	call     string
	messages []string
	code     string // of Connect
	words    string
}

func (f *fixture) refusesCalls(id string, all []badCall) {
	f.T.Helper()
	for _, tt := range all {
		messages := slices.Clone(tt.messages)
		for i := range messages {
			messages[i] = strings.ReplaceAll(messages[i], "ID", id)
		}
		if answers, failed := f.Say(f.Token, tt.call, messages...); failed.Code != tt.code || !strings.Contains(failed.Message, tt.words) {
			f.T.Errorf("%s %.200q: %q, %+v", tt.call, messages, answers, failed)
		}
	}
}

// aboutSandboxes are calls about one Sandbox, with their other fields.
var aboutSandboxes = map[string]string{
	"file.v1.FileService/Read":    `"path":"a"`,
	"file.v1.FileService/Write":   `"path":"a"`,
	"file.v1.FileService/List":    `"path":"a"`,
	"file.v1.FileService/Stat":    `"path":"a"`,
	"file.v1.FileService/MakeDir": `"path":"a"`,
	"file.v1.FileService/Move":    `"source":"a","destination":"b"`,
	"file.v1.FileService/Copy":    `"source":"a","destination":"b"`,
	"file.v1.FileService/Chmod":   `"path":"a","mode":"0644"`,
	"file.v1.FileService/Remove":  `"path":"a"`,
	"file.v1.FileService/Search":  `"pattern":"a"`,
	"file.v1.FileService/Replace": `"files":{"path":"a"},"pattern":"a","replacement":"b"`,
	"file.v1.FileService/Archive": `"path":"a"`,
	"file.v1.FileService/Extract": `"path":"a"`,
	"file.v1.FileService/Watch":   `"path":"a"`,
	"file.v1.FileService/Changes": `"path":"a"`,

	"context.v1.ContextService/Create":    `"language":"python"`,
	"context.v1.ContextService/List":      ``,
	"context.v1.ContextService/Restart":   `"context_id":"c"`,
	"context.v1.ContextService/Interrupt": `"context_id":"c"`,
	"context.v1.ContextService/Delete":    `"context_id":"c"`,
}

// All services, called by clients of Connect. They share one server.
func TestServicesByCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.Token
	for name, check := range map[string]func(*testing.T, *fixture){
		"another's sandbox": aboutAnothersSandbox, "bad files": badCallsAboutFiles, "contexts": contextsByCalls, "templates": templatesByCalls,
		"bad git": badCallsAboutGit, "keys": keysByCalls, "secrets": secretsByCalls, "volumes": volumesByCalls,
	} {
		t.Run(name, func(t *testing.T) {
			f.T, f.Token = t, token
			check(t, f)
		})
	}
	f.T = t
}

// A call about another tenant's Sandbox gets the same answer as a call about a Sandbox
// that does not exist.
func aboutAnothersSandbox(t *testing.T, f *fixture) {
	id, other := f.Acquire(), f.Mint("other")
	for call, needs := range aboutSandboxes {
		about := func(id string) string {
			if needs == "" {
				return `{"sandbox_id":"` + id + `"}`
			}
			return `{"sandbox_id":"` + id + `",` + needs + `}`
		}
		absent, none := f.Say(other, call, about("i00000000000000000000"))
		got, failed := f.Say(other, call, about(id))
		failed.Message = strings.ReplaceAll(failed.Message, id, "i00000000000000000000") // each answer repeats the requested ID
		if none.Code != "not_found" || !strings.Contains(none.Message, "no sandbox") || failed != none || len(got)+len(absent) > 0 {
			t.Errorf("%s: absent is %q %+v, another's %q %+v", call, absent, none, got, failed)
		}
		if _, failed := f.Say(f.Token, call, `{`+needs+`}`); failed.Code != "invalid_argument" || !strings.Contains(failed.Message, "sandbox_id is missing") {
			t.Errorf("%s without a sandbox: %+v", call, failed)
		}
		if _, failed := f.Say("", call, about(id)); failed.Code != "unauthenticated" {
			t.Errorf("%s without a token: %+v", call, failed)
		}
	}
}

// uploads sends content in pieces.
func uploads(t *testing.T, c filev1connect.FileServiceClient, id, path string, pieces ...string) (*filev1.Entry, error) {
	t.Helper()
	s := c.Write(t.Context())
	if err := s.Send(&filev1.WriteRequest{SandboxId: id, Path: path}); err != nil {
		t.Fatal(err)
	}
	for _, p := range pieces {
		if s.Send(&filev1.WriteRequest{Data: []byte(p)}) != nil {
			break // the answer says why
		}
	}
	res, err := s.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return res.Msg.Entry, nil
}

// downloads reads a file.
func downloads(t *testing.T, c filev1connect.FileServiceClient, req *filev1.ReadRequest) (head *filev1.Head, content string, err error) {
	t.Helper()
	s, err := c.Read(t.Context(), connect.NewRequest(req))
	if err != nil {
		return nil, "", err
	}
	defer s.Close()
	for s.Receive() {
		if h := s.Msg().GetHead(); h != nil {
			head = h
		}
		content += string(s.Msg().GetData())
	}
	return head, content, s.Err()
}

// tarOf is an archive of one file.
func tarOf(t *testing.T, name, content string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.AddFS(fstest.MapFS{name: {Data: []byte(content)}})
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestFilesByCalls(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	addr, stop := f.Serve()
	defer stop()
	large := strings.Repeat("0123456789abcdef", 12_000) // two of them are more than one piece
	for protocol := range gatewaytest.Protocols {
		t.Run(protocol, func(t *testing.T) {
			c := filev1connect.NewFileServiceClient(gatewaytest.HTTPClient(t, f.Token, protocol), "http://"+addr.String(), gatewaytest.Protocols[protocol]...)
			if e, err := uploads(t, c, id, "notes", "one ", "", "two"); err != nil || e.Path != "/workspace/notes" || e.SizeBytes != 7 || e.Type != "file" || e.Mode != "0644" {
				t.Errorf("written: %v, %v", e, err)
			}
			if head, got, err := downloads(t, c, &filev1.ReadRequest{SandboxId: id, Path: "/workspace/notes"}); err != nil || got != "one two" || head.GetSizeBytes() != 7 {
				t.Errorf("read: %v, %q, %v", head, got, err)
			}
			if _, err := uploads(t, c, id, "large", large, large); err != nil {
				t.Error(err)
			}
			if _, got, err := downloads(t, c, &filev1.ReadRequest{SandboxId: id, Path: "large"}); err != nil || got != large+large {
				t.Errorf("%d bytes came, %v", len(got), err)
			}
			if _, err := uploads(t, c, id, "/early", large, large, large); connect.CodeOf(err) != connect.CodeOutOfRange {
				t.Errorf("on a full disk: %v", err)
			}
			if _, _, err := downloads(t, c, &filev1.ReadRequest{SandboxId: id, Path: "/broken"}); connect.CodeOf(err) != connect.CodeUnavailable {
				t.Errorf("what broke off: %v", err)
			}
			unary(t, c, id)
			watches(t, f, c, id)
			x := c.Extract(t.Context())
			archive := tarOf(t, "f", "abc")
			for _, m := range []*filev1.ExtractRequest{{SandboxId: id, Path: "tree", Data: archive[:100]}, {Data: archive[100:]}} {
				if err := x.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			if done, err := x.CloseAndReceive(); err != nil || done.Msg.Files != 1 || done.Msg.Bytes != 3 || done.Msg.Path != "/workspace/tree" {
				t.Errorf("extract: %v, %v", done, err)
			}
			if _, err := c.Remove(t.Context(), connect.NewRequest(&filev1.RemoveRequest{SandboxId: id, Path: "notes"})); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
	}
}

// changes asks for the changes of files since a cursor, and since an unknown one.
func changes(t *testing.T, c filev1connect.FileServiceClient, id string) {
	t.Helper()
	ask := func(since string) *filev1.ChangesResponse {
		t.Helper()
		r, err := c.Changes(t.Context(), connect.NewRequest(&filev1.ChangesRequest{SandboxId: id, Path: "/workspace/dir", Since: since}))
		if err != nil {
			t.Fatal(err)
		}
		return r.Msg
	}
	from := ask("").Position.Cursor
	if _, err := uploads(t, c, id, "dir/new", "x"); err != nil {
		t.Error(err)
	}
	if r := ask(from); r.Position.Reset_ || len(r.Changes) != 1 || r.Changes[0].Type != "created" || r.Changes[0].Path != "/workspace/dir/new" {
		t.Errorf("changes: %v", r)
	}
	if r := ask("old"); !r.Position.Reset_ || len(r.Changes) != 0 {
		t.Errorf("changes since an unknown cursor: %v", r)
	}
}

// unary makes the calls about files that are one message each way.
func unary(t *testing.T, c filev1connect.FileServiceClient, id string) {
	t.Helper()
	ctx := t.Context()
	if r, err := c.MakeDir(ctx, connect.NewRequest(&filev1.MakeDirRequest{SandboxId: id, Path: "dir"})); err != nil || r.Msg.Entry.Type != "directory" {
		t.Errorf("mkdir: %v, %v", r, err)
	}
	if r, err := c.Copy(ctx, connect.NewRequest(&filev1.CopyRequest{SandboxId: id, Source: "notes", Destination: "dir/copy"})); err != nil || r.Msg.Files != 1 {
		t.Errorf("copy: %v, %v", r, err)
	}
	if r, err := c.Move(ctx, connect.NewRequest(&filev1.MoveRequest{SandboxId: id, Source: "dir/copy", Destination: "dir/moved"})); err != nil || r.Msg.Entry.Name != "moved" {
		t.Errorf("move: %v, %v", r, err)
	}
	if r, err := c.List(ctx, connect.NewRequest(&filev1.ListRequest{SandboxId: id, Path: "dir"})); err != nil || len(r.Msg.Entries) != 1 || r.Msg.Path != "/workspace/dir" {
		t.Errorf("list: %v, %v", r, err)
	}
	if r, err := c.Chmod(ctx, connect.NewRequest(&filev1.ChmodRequest{SandboxId: id, Path: "notes", Mode: "0600"})); err != nil || r.Msg.Changed != 1 {
		t.Errorf("chmod: %v, %v", r, err)
	}
	if r, err := c.Search(ctx, connect.NewRequest(&filev1.SearchRequest{SandboxId: id, Pattern: "two"})); err != nil || len(r.Msg.Matches) == 0 || r.Msg.Matches[0].Spans[0].End != 7 {
		t.Errorf("search: %v, %v", r, err)
	}
	replace := &filev1.ReplaceRequest{SandboxId: id, Files: &filev1.Selection{Path: "notes"}, Pattern: "two", Replacement: new(""), DryRun: true}
	if r, err := c.Replace(ctx, connect.NewRequest(replace)); err != nil || r.Msg.Count != 1 || r.Msg.Files[0].Path != "/workspace/notes" {
		t.Errorf("replace: %v, %v", r, err)
	}
	changes(t, c, id)
	if _, err := c.Remove(ctx, connect.NewRequest(&filev1.RemoveRequest{SandboxId: id, Path: "dir"})); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("remove of a full directory: %v", err)
	}
	if _, err := c.Remove(ctx, connect.NewRequest(&filev1.RemoveRequest{SandboxId: id, Path: "dir", Recursive: true})); err != nil {
		t.Errorf("remove: %v", err)
	}
	if _, err := c.Stat(ctx, connect.NewRequest(&filev1.StatRequest{SandboxId: id, Path: "dir"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("stat of what is gone: %v", err)
	}
	s, err := c.Archive(ctx, connect.NewRequest(&filev1.ArchiveRequest{SandboxId: id, Path: "/workspace", Format: "zip"}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var got []byte
	for s.Receive() {
		got = append(got, s.Msg().Data...)
	}
	members, err := zip.NewReader(bytes.NewReader(got), int64(len(got)))
	if s.Err() != nil || err != nil {
		t.Fatalf("archive: %v, %v", s.Err(), err)
	}
	if text, err := fs.ReadFile(members, "notes"); err != nil || string(text) != "one two" {
		t.Errorf("archive: %q, %v", text, err)
	}
}

// watches follows changes until the watched directory is removed.
func watches(t *testing.T, f *fixture, c filev1connect.FileServiceClient, id string) {
	t.Helper()
	s, err := c.Watch(t.Context(), connect.NewRequest(&filev1.WatchRequest{SandboxId: id, Path: "/workspace", Since: "old"}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Receive() || s.Msg().GetPosition().GetCursor() == "" || !s.Msg().GetPosition().Reset_ {
		t.Errorf("it begins with %v, %v", s.Msg(), s.Err())
	}
	f.Guest.Events <- gatewaytest.CreatedEvent
	if !s.Receive() || s.Msg().GetChange().GetPath() != "/workspace/a" {
		t.Errorf("%v, %v", s.Msg(), s.Err())
	}
	f.Guest.Events <- nil
	if s.Receive() || connect.CodeOf(s.Err()) != connect.CodeNotFound {
		t.Errorf("it ends with %v", s.Err())
	}
}

func badCallsAboutFiles(t *testing.T, f *fixture) {
	id := f.Acquire()
	const files = "file.v1.FileService/"
	about := func(fields string) []string { return []string{`{"sandbox_id":"ID",` + fields + `}`} }
	all := []badCall{
		{files + "Read", about(`"path":"a","offset":-1`), "invalid_argument", "offset"},
		{files + "Read", about(`"path":"a","length":0`), "invalid_argument", "length"},
		{files + "Read", about(`"path":"none"`), "not_found", "no such file"},
		{files + "Read", about(`"path":""`), "invalid_argument", "path is missing"},
		{files + "Read", about(`"path":"\u0000"`), "invalid_argument", "zero byte"},
		{files + "Read", about(`"path":"` + strings.Repeat("p", 5000) + `"`), "invalid_argument", "4096"},
		{files + "Write", nil, "invalid_argument", "no message was sent"},
		{files + "Write", []string{`{"sandbox_id":"ID","path":"a"}`, `{"path":"b","data":"YQ=="}`}, "invalid_argument", "only the first message"},
		{files + "Write", []string{`{"sandbox_id":"ID","path":"a"}`, `{"nonsense":1}`}, "invalid_argument", "nonsense"},
		{files + "Write", about(`"path":"a","data":"` + strings.Repeat("A", rpc.MaxStreamed+4) + `"`), "resource_exhausted", "larger than"},
		{files + "List", about(`"path":"a","depth":0`), "invalid_argument", "depth"},
		{files + "List", about(`"path":"a","depth":33`), "invalid_argument", "depth"},
		{files + "Move", about(`"source":"a"`), "invalid_argument", "destination is missing"},
		{files + "Copy", about(`"source":"a","destination":"../b"`), "invalid_argument", ".."},
		{files + "Copy", about(`"source":"a","destination":"b","user":"a b"`), "invalid_argument", "user"},
		{files + "Chmod", about(`"path":"a","mode":"rwx"`), "invalid_argument", "octal"},
		{files + "Remove", about(`"path":"/"`), "invalid_argument", "root directory"},
		{files + "Search", about(`"max_results":0`), "invalid_argument", "max_results"},
		{files + "Search", about(`"context_lines":-1`), "invalid_argument", "context_lines"},
		{files + "Search", about(`"files":{"globs":[""]}`), "invalid_argument", "glob"},
		{files + "Search", about(`"files":{"unknown":1}`), "invalid_argument", "unknown"},
		{files + "Replace", about(`"pattern":"a","replacement":""`), "invalid_argument", "path is missing"},
		{files + "Replace", about(`"files":{"path":"a"},"pattern":"a"`), "invalid_argument", "replacement is missing"},
		{files + "Replace", about(`"files":{"path":"a"},"pattern":"a","replacement":"b","expected_count":-1`), "invalid_argument", "expected_count"},
		{files + "Archive", about(`"path":"a","format":"rar"`), "invalid_argument", "format must be"},
		{files + "Extract", about(`"path":"a","format":"rar"`), "invalid_argument", "format must be"},
		{files + "Watch", about(`"path":"a","since":"` + strings.Repeat("c", 65) + `"`), "invalid_argument", "since"},
		{files + "Watch", about(`"path":"/none"`), "not_found", "/none"},
		{files + "Changes", about(`"path":"a","user":"` + strings.Repeat("u", 65) + `"`), "invalid_argument", "user"},
	}
	for _, call := range []string{"Read", "Write", "List", "Stat", "MakeDir", "Chmod", "Remove", "Archive", "Extract", "Watch", "Changes"} {
		mode := ""
		if call == "Chmod" {
			mode = `,"mode":"0644"`
		}
		all = append(all, badCall{files + call, about(`"path":"a/../b"` + mode), "invalid_argument", ".."})
	}
	f.refusesCalls(id, all)
}

func contextsByCalls(t *testing.T, f *fixture) {
	id := f.Acquire()
	const contexts = "context.v1.ContextService/"
	one := `{"sandbox_id":"` + id + `","context_id":"c1"}`
	f.Says(contexts+"Create", `{"sandbox_id":"`+id+`","language":"javascript","cwd":"/tmp"}`, `"context_id":"c1"`, `"cwd":"/tmp"`, `"state":"stopped"`)
	f.Says(contexts+"List", `{"sandbox_id":"`+id+`"}`, `"context_id":"python"`, `"default":true`)
	f.Do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","context_id":"c1","code":"1"}`)
	f.Says(contexts+"Restart", one, `"execution_count":"1"`)
	f.Says(contexts+"Interrupt", one, `"interrupted":true`)
	if e := f.AuditOf(func() { f.Says(contexts+"Delete", one) }); e.Operation != "cloudsandbox.context.v1.ContextService/Delete" || e.Target != "c1" || e.Sandbox != id {
		t.Errorf("the audit log says %+v", e)
	}
	f.refusesCalls(id, []badCall{
		{contexts + "Create", []string{`{"sandbox_id":"ID","language":"cobol"}`}, "invalid_argument", "language"},
		{contexts + "Create", []string{`{"sandbox_id":"ID","language":"python","cwd":"/none"}`}, "invalid_argument", "does not exist"},
		{contexts + "Restart", []string{`{"sandbox_id":"ID"}`}, "invalid_argument", "context_id is missing"},
		{contexts + "Interrupt", []string{`{"sandbox_id":"ID","context_id":"c2"}`}, "not_found", "no such context"},
		{contexts + "Delete", []string{`{"sandbox_id":"ID","context_id":"c2"}`}, "not_found", "no such context"},
	})
}

func templatesByCalls(t *testing.T, f *fixture) {
	const templates = "template.v1.TemplateService/"
	f.Says(templates+"List", `{}`, `"template":"base"`, `"shared":true`)
	f.Says(templates+"Get", `{"template":"base"}`, `"version":"`+gatewaytest.BaseVersion+`"`, `"template":"base@`+gatewaytest.BaseVersion+`"`)
	recipe := `{"recipe":{"template":"mine","source":"tar:","files":[{"path":"/a","content":"YQ==","mode":"0755","owner":"user"}]}}`
	var built []string
	e := f.AuditOf(func() {
		var failed gatewaytest.Failure
		if built, failed = f.Say(f.Token, templates+"Build", recipe, `{"archive":"YWI="}`, `{"archive":"Yw=="}`); len(built) != 1 {
			t.Fatalf("%q, %+v", built, failed)
		}
	})
	var answer struct {
		Build struct {
			ID string `json:"build_id"`
		}
	}
	if err := json.Unmarshal([]byte(built[0]), &answer); err != nil || answer.Build.ID == "" || e.Target != answer.Build.ID {
		t.Fatalf("%s, %v; audited as %+v", built[0], err, e)
	}
	if r := f.Templates.Requests[0]; f.Templates.Archives[0] != "abc" || r.Files[0].Mode != 0o755 || !r.Files[0].User || string(r.Files[0].Content) != "a" {
		t.Errorf("built is %+v of %q", r, f.Templates.Archives[0])
	}
	for _, tt := range []struct {
		messages         []string
		uploads, archive string
	}{
		{[]string{`{"recipe":{"template":"mine","source":"tar:"}}`, `{"files":"Zg=="}`, `{"files":"Zw=="}`, `{"archive":"YWI="}`, `{"archive":"Yw=="}`}, "fg", "abc"},
		{[]string{`{"recipe":{"template":"mine","source":"debian:bookworm"}}`, `{"files":"Zg=="}`}, "f", ""},
	} {
		if built, failed := f.Say(f.Token, templates+"Build", tt.messages...); len(built) != 1 {
			t.Fatalf("%q: %q, %+v", tt.messages, built, failed)
		}
		if n := len(f.Templates.Uploads) - 1; f.Templates.Uploads[n] != tt.uploads || f.Templates.Archives[n] != tt.archive {
			t.Errorf("%q: built of %q and %q", tt.messages, f.Templates.Uploads[n], f.Templates.Archives[n])
		}
	}
	named := `{"build_id":"` + answer.Build.ID + `"}`
	f.Says(templates+"ListBuilds", `{}`, answer.Build.ID)
	f.Says(templates+"GetBuild", named, `"state":"failed"`, `"message":"no/bin/sh"`)
	lines, failed := f.Say(f.Token, templates+"BuildLog", `{"build_id":"`+answer.Build.ID+`","from":"1","follow":true}`)
	if len(lines) != 2 || !strings.Contains(lines[0], "failed: no /bin/sh") || !strings.Contains(lines[1], answer.Build.ID) {
		t.Errorf("the log is %q, %+v", lines, failed)
	}
	f.refusesCalls("", []badCall{
		{templates + "Build", nil, "invalid_argument", "recipe is missing"},
		{templates + "Build", []string{`{"archive":"YQ=="}`}, "invalid_argument", "recipe is missing"},
		{templates + "Build", []string{`{"recipe":{"source":"tar:"}}`}, "invalid_argument", "its name, is missing"},
		{templates + "Build", []string{`{"recipe":{"template":"a"}}`}, "invalid_argument", "source is missing"},
		{templates + "Build", []string{`{"recipe":{"template":"a","source":"dir:/"}}`}, "permission_denied", "operator"},
		{templates + "Build", []string{`{"recipe":{"template":"a","source":"oci:x"}}`, `{"archive":"YQ=="}`}, "invalid_argument", "or a dockerfile"},
		{templates + "Build", []string{`{"recipe":{"template":"a","dockerfile":"FROM base\nRUNN x"}}`}, "invalid_argument", "Dockerfile line 2"},
		{templates + "Build", []string{`{"recipe":{"template":"a","dockerfile":"FROM base"}}`, `{"archive":"YQ=="}`}, "invalid_argument", "not a whole tar"},
		{templates + "Build", []string{`{"recipe":{"template":"a","source":"tar:"}}`, `{"archive":"YQ=="}`, `{"files":"YQ=="}`}, "invalid_argument", "files come before the archive"},
		{templates + "Build", []string{recipe, recipe}, "invalid_argument", "only the first message"},
		{templates + "Build", []string{`{"recipe":{"template":"a","source":"tar:","files":[{"path":"/a","mode":"x"}]}}`}, "invalid_argument", "octal"},
		{templates + "Build", []string{`{"recipe":{"template":"a","source":"tar:","files":[{"path":"/a","owner":"me"}]}}`}, "invalid_argument", "root or user"},
		{templates + "Build", []string{`{"recipe":{"template":"` + strings.Repeat("a", rpc.MaxRecipe) + `","source":"tar:"}}`}, "resource_exhausted", "larger than"},
		{templates + "Get", []string{`{"template":"none"}`}, "not_found", "no template"},
		{templates + "Remove", []string{`{"template":"base"}`}, "permission_denied", "server's own"},
		{templates + "GetBuild", []string{`{"build_id":"none"}`}, "not_found", "no such build"},
		{templates + "CancelBuild", []string{named}, "failed_precondition", "the build has ended"},
		{templates + "BuildLog", []string{`{"build_id":"none"}`}, "not_found", "no such build"},
		{templates + "BuildLog", []string{`{"build_id":"` + answer.Build.ID + `","from":"-1"}`}, "invalid_argument", "next_offset"},
	})
	f.Token = f.Mint("other")
	f.refusesCalls("", []badCall{
		{templates + "GetBuild", []string{named}, "not_found", "no such build"},
		{templates + "CancelBuild", []string{named}, "not_found", "no such build"},
		{templates + "BuildLog", []string{named}, "not_found", "no such build"},
	})
}

func badCallsAboutGit(t *testing.T, f *fixture) {
	id := f.Acquire()
	const git = "git.v1.GitService/"
	about := func(fields string) []string { return []string{`{"repository":{"sandbox_id":"ID"}` + fields + `}`} }
	all := []badCall{
		{git + "Clone", about(``), "invalid_argument", "url needs"},
		{git + "Clone", about(`,"url":"ext::id"`), "invalid_argument", "url must be"},
		{git + "Clone", about(`,"url":"/a","depth":0`), "invalid_argument", "depth"},
		{git + "Clone", about(`,"url":"/a","credentials":{}`), "invalid_argument", "password"},
		{git + "Clone", about(`,"url":"/a","timeout_seconds":3601`), "invalid_argument", "3600"},
		{git + "Clone", about(`,"url":"/a","timeout_seconds":0`), "invalid_argument", "seconds"},
		{git + "Checkout", about(``), "invalid_argument", "ref is missing"},
		{git + "Add", about(``), "invalid_argument", "files or all"},
		{git + "Add", about(`,"files":["../a"]`), "invalid_argument", ".."},
		{git + "Commit", about(``), "invalid_argument", "message needs"},
		{git + "Commit", about(`,"message":"m","author":{"name":"a"}`), "invalid_argument", "author.email"},
		{git + "Commit", about(`,"message":"m","author":{"name":"a<","email":"b"}`), "invalid_argument", "author.name"},
		{git + "Pull", about(`,"timeout_seconds":-1`), "invalid_argument", "seconds"},
		{git + "Push", about(`,"credentials":{"password":"a\nb"}`), "invalid_argument", "line breaks"},
	}
	other := f.Mint("other")
	for call, needs := range map[string]string{
		"Clone": `,"url":"/a"`, "Status": "", "Branches": "", "Checkout": `,"ref":"a"`, "Add": `,"all":true`, "Commit": `,"message":"m"`, "Pull": "", "Push": "",
	} {
		all = append(all,
			badCall{git + call, []string{`{"repository":{"sandbox_id":"ID","path":"a/../b"}` + needs + `}`}, "invalid_argument", ".."},
			badCall{git + call, []string{`{"repository":{"sandbox_id":"ID","user":"a b"}` + needs + `}`}, "invalid_argument", "user"},
			badCall{git + call, []string{`{"repository":{"path":"/a"}` + needs + `}`}, "invalid_argument", "sandbox_id is missing"},
			badCall{git + call, []string{`{"repository":{"sandbox_id":"ID","branch":"b"}` + needs + `}`}, "invalid_argument", "branch"},
		)
		_, absent := f.Say(other, git+call, `{"repository":{"sandbox_id":"i00000000000000000000"}`+needs+`}`)
		_, failed := f.Say(other, git+call, `{"repository":{"sandbox_id":"`+id+`"}`+needs+`}`)
		failed.Message = strings.ReplaceAll(failed.Message, id, "i00000000000000000000") // each answer repeats the requested ID
		if failed != absent || failed.Code != "not_found" {
			t.Errorf("%s: another's answers %+v, an absent one %+v", call, failed, absent)
		}
	}
	f.refusesCalls(id, all)
}

func keysByCalls(t *testing.T, f *fixture) {
	const service = "key.v1.KeyService/"
	f.Token = f.MintAs("owner", "owner")
	made := f.Says(service+"Create", `{"name":"robot","role":"user","scopes":["read"],"expires_in_seconds":3600}`, `"role":"user"`, `"scopes":["read"]`, `"expires_at"`, `"secret":"e2b_`)
	var key struct {
		Secret string
		Key    struct {
			ID string `json:"key_id"`
		}
	}
	if err := json.Unmarshal([]byte(made), &key); err != nil {
		t.Fatal(err)
	}
	if a := f.With("GET", "/api/v1/sessions", "", "X-API-Key", key.Secret); a.Status != 200 {
		t.Errorf("the key opens REST: %d %s", a.Status, a.Body)
	}
	if list := f.Says(service+"List", `{}`, key.Key.ID); strings.Contains(list, key.Secret) {
		t.Error("the list tells the secret")
	}
	named := `{"key_id":"` + key.Key.ID + `"}`
	rotated := f.Says(service+"Rotate", `{"key_id":"`+key.Key.ID+`","overlap_seconds":60}`, `"previous"`, `"secret":"e2b_`)
	if strings.Contains(rotated, key.Secret) {
		t.Error("rotating tells the secret before")
	}
	stranger := f.MintAs("stranger", "owner")
	for _, call := range []string{"Rotate", "Revoke"} {
		if _, failed := f.Say(stranger, service+call, named); failed.Code != "not_found" {
			t.Errorf("%s of another's: %+v", call, failed)
		}
		if _, failed := f.Say(f.MintAs("owner", "viewer"), service+call, named); failed.Code != "permission_denied" {
			t.Errorf("%s by a viewer: %+v", call, failed)
		}
	}
	f.refusesCalls("", []badCall{
		{service + "Create", []string{`{}`}, "invalid_argument", "name must"},
		{service + "Create", []string{`{"name":"a","role":"king"}`}, "invalid_argument", "role must"},
		{service + "Create", []string{`{"name":"a","scopes":["everything"]}`}, "invalid_argument", "scope"},
		{service + "Create", []string{`{"name":"a","expires_in_seconds":0.5}`}, "invalid_argument", "expires_in_seconds"},
		{service + "Create", []string{`{"name":"a","expires_in_seconds":1e12}`}, "invalid_argument", "expires_in_seconds"},
		{service + "Rotate", []string{`{"key_id":"` + key.Key.ID + `","overlap_seconds":-1}`}, "invalid_argument", "seconds"},
		{service + "Revoke", []string{`{"key_id":"none"}`}, "not_found", "key"},
	})
	if e := f.AuditOf(func() { f.Says(service+"Revoke", named) }); e.Target != key.Key.ID {
		t.Errorf("the audit log says %+v", e)
	}
	if a := f.With("GET", "/api/v1/sessions", "", "X-API-Key", key.Secret); a.Status != 401 {
		t.Errorf("a revoked key: %d", a.Status)
	}
}

func secretsByCalls(t *testing.T, f *fixture) {
	const service = "secret.v1.SecretService/"
	const value = "the-treasure"
	all := []string{
		f.Says(service+"Create", `{"name":"TOKEN","value":"`+value+`","description":"of mine","hosts":{"names":["api.example.com"]}}`, `"name":"TOKEN"`, `"hosts":["api.example.com"]`),
		f.Says(service+"List", `{}`, `"name":"TOKEN"`, `"description":"ofmine"`),
		f.Says(service+"Replace", `{"name":"TOKEN","value":"`+value+`2"}`, `"description":"ofmine"`, `"hosts":["api.example.com"]`),
		f.Says(service+"Replace", `{"name":"TOKEN","value":"`+value+`3","hosts":{}}`, `"name":"TOKEN"`),
	}
	if strings.Contains(strings.Join(all, ""), value) || strings.Contains(all[3], "api.example.com") {
		t.Errorf("answers are %q", all)
	}
	stranger := f.Mint("stranger")
	for _, message := range []string{`{"name":"TOKEN","value":"x"}`, `{"name":"ABSENT","value":"x"}`} {
		if _, failed := f.Say(stranger, service+"Replace", message); failed.Code != "not_found" {
			t.Errorf("replace of %s by a stranger: %+v", message, failed)
		}
	}
	f.refusesCalls("", []badCall{
		{service + "Create", []string{`{"name":"TOKEN","value":"x"}`}, "failed_precondition", "with this name"},
		{service + "Create", []string{`{"name":"a b","value":"x"}`}, "invalid_argument", "name"},
		{service + "Create", []string{`{"name":"EMPTY"}`}, "invalid_argument", "value"},
		{service + "Create", []string{`{"name":"HOSTS","value":"x","hosts":{"names":["*"]}}`}, "invalid_argument", "host"},
		{service + "Replace", []string{`{"name":"ABSENT","value":"x"}`}, "not_found", "secret"},
		{service + "Delete", []string{`{"name":"ABSENT"}`}, "not_found", "secret"},
	})
	if e := f.AuditOf(func() { f.Says(service+"Delete", `{"name":"TOKEN"}`) }); e.Target != "TOKEN" {
		t.Errorf("the audit log says %+v", e)
	}
	if list := f.Says(service+"List", `{}`); strings.Contains(list, "TOKEN") {
		t.Errorf("afterwards there are %s", list)
	}
}

func volumesByCalls(t *testing.T, f *fixture) {
	const service = "volume.v1.VolumeService/"
	f.Says(service+"Create", `{"name":"data","sizeMb":"5"}`, `"name":"data"`, `"size_mb":"5"`)
	f.Says(service+"Create", `{"name":"more"}`, `"size_mb":"1024"`)
	f.Says(service+"List", `{}`, `"name":"data"`, `"name":"more"`)
	f.Says(service+"Get", `{"volumeId":"data"}`, `"name":"data"`)
	stranger := f.Mint("stranger")
	for _, call := range []string{"Get", "Delete"} {
		for _, name := range []string{"data", "absent"} {
			if _, failed := f.Say(stranger, service+call, `{"volumeId":"`+name+`"}`); failed.Code != "not_found" {
				t.Errorf("%s of %s by a stranger: %+v", call, name, failed)
			}
		}
	}
	const sandboxes = "sandbox.v1.SandboxService/"
	f.Says(sandboxes+"Create", `{"name":"with-volumes","volumes":[{"volume":"data","path":"/data"}]}`, `"volumes":[{"volume":"data","path":"/data"}]`)
	f.refusesCalls("", []badCall{
		{service + "Create", []string{`{"name":"data"}`}, "failed_precondition", "exists already"},
		{service + "Create", []string{`{"name":"a b"}`}, "invalid_argument", "name"},
		{service + "Create", []string{`{"name":"a","sizeMb":"-5"}`}, "invalid_argument", "1 MiB"},
		{service + "Get", []string{`{}`}, "not_found", "volume"},
		{service + "Delete", []string{`{"volumeId":"data"}`}, "failed_precondition", "in use"},
		{sandboxes + "Create", []string{`{"volumes":[{"path":"/data"}]}`}, "invalid_argument", "name the volume"},
		{sandboxes + "Create", []string{`{"volumes":[{"volume":"data","path":"/usr"}]}`}, "invalid_argument", "cannot be mounted"},
	})
	if e := f.AuditOf(func() { f.Says(service+"Delete", `{"volumeId":"more"}`) }); e.Target != "more" {
		t.Errorf("the audit log says %+v", e)
	}
}
