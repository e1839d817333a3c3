package mcp

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// user calls tools and records which.
type user struct {
	t       *testing.T
	session *sdk.ClientSession
	server  *rig.Server
	called  map[string]bool
}

// call calls a tool, which must succeed, and returns its text.
func (u *user) call(name string, arguments map[string]any) string {
	u.t.Helper()
	u.called[name] = true
	return tool(u.t, u.session, name, arguments)
}

// has calls a tool, whose text must contain all that is wanted.
func (u *user) has(name string, arguments map[string]any, want ...string) string {
	u.t.Helper()
	got := u.call(name, arguments)
	for _, w := range want {
		if !strings.Contains(got, w) {
			u.t.Errorf("%s %v: %q does not contain %q", name, arguments, got, w)
		}
	}
	return got
}

// is calls a tool, whose text must be the wanted one.
func (u *user) is(name string, arguments map[string]any, want string) {
	u.t.Helper()
	if got := u.call(name, arguments); got != want {
		u.t.Errorf("%s %v: %q, want %q", name, arguments, got, want)
	}
}

// field calls a tool and returns a field of its JSON.
func (u *user) field(name string, arguments map[string]any, field string) string {
	u.t.Helper()
	got := u.call(name, arguments)
	var object map[string]any
	if err := json.Unmarshal([]byte(got), &object); err != nil || object[field] == nil {
		u.t.Fatalf("%s %v: no %s in %q: %v", name, arguments, field, got, err)
	}
	return object[field].(string)
}

// All tools of both sets do what they say, over both transports. A new tool fails this
// test until it is called here.
func TestEveryTool(t *testing.T) {
	rig.Need(t)
	s := shared.Server(t)
	for set, use := range map[string]func(*user){"full": useFull, "claude": useClaude} {
		for _, way := range []string{"stdio", "http"} {
			t.Run(set+" over "+way, func(t *testing.T) {
				t.Parallel()
				secret := key(t, s, "mcp-tools-"+set+"-"+way)
				var over sdk.Transport = &sdk.StreamableClientTransport{
					Endpoint: s.URL + "/mcp?session=tools&tools=" + set, HTTPClient: &http.Client{Transport: withKey{secret}}, DisableStandaloneSSE: true,
				}
				if way == "stdio" {
					cmd := rig.Command(s.Bin, "mcp", "--session", "tools", "--tools", set)
					cmd.Env = append(os.Environ(), "CLOUD_SANDBOX_URL="+s.URL, "CLOUD_SANDBOX_API_KEY="+secret)
					over = &sdk.CommandTransport{Command: cmd}
				}
				u := &user{t: t, session: connect(t, over), server: s, called: map[string]bool{}}
				use(u)
				listed, err := u.session.ListTools(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range listed.Tools {
					if !u.called[l.Name] {
						t.Errorf("no call of %s", l.Name)
					}
				}
			})
		}
	}
}

func useFull(u *user) {
	// Code and commands.
	u.is("run_code", map[string]any{"code": "x = 41\nx + 1"}, "42")
	u.is("run_command", map[string]any{"command": "pwd; echo $((6 * 7))"}, "/workspace\n42\n")

	// Files.
	u.has("write_file", map[string]any{"path": "src/a.txt", "content": "one\ntwo\nthree\n"}, "/workspace/src/a.txt has 14 bytes now.")
	u.is("edit_file", map[string]any{"path": "src/a.txt", "old_string": "two", "new_string": "2"}, "1 occurrence(s) replaced in src/a.txt.")
	u.is("read_file", map[string]any{"path": "src/a.txt", "offset": 2, "limit": 1}, "     2\t2\n[there is more: continue with offset 3]")
	u.has("list_files", map[string]any{"path": "src"}, " 12 ", " a.txt")
	u.is("glob", map[string]any{"pattern": "src/**/*.txt"}, "/workspace/src/a.txt")
	u.is("grep", map[string]any{"pattern": "^t", "context_lines": 1}, "/workspace/src/a.txt-2-2\n/workspace/src/a.txt:3:three")
	u.call("run_code", map[string]any{"code": "from PIL import Image\nImage.new('RGB', (3, 3), 'red').save('/workspace/red.png')"})
	shown, err := u.session.CallTool(u.t.Context(), &sdk.CallToolParams{Name: "read_file", Arguments: map[string]any{"path": "red.png"}})
	if err != nil || len(shown.Content) != 1 {
		u.t.Fatalf("%v, %+v", err, shown)
	}
	if image, ok := shown.Content[0].(*sdk.ImageContent); !ok || image.MIMEType != "image/png" || len(image.Data) == 0 {
		u.t.Errorf("the image is shown as %+v", shown.Content[0])
	}

	// URLs of files.
	u.http(http.MethodPut, u.field("upload_url", map[string]any{"path": "up.bin", "expires_in_seconds": 60}, "url"), "sent\x00")
	if got := u.http(http.MethodGet, u.field("download_url", map[string]any{"path": "up.bin"}, "url"), ""); got != "sent\x00" {
		u.t.Errorf("%q was downloaded", got)
	}

	// Processes.
	process := u.field("start_process", map[string]any{"command": "cat; sleep 1000", "name": "cat"}, "process_id")
	u.is("write_stdin", map[string]any{"process_id": process, "input": "hello\n"}, "The process has 6 more bytes to read.")
	u.has("read_process", map[string]any{"process_id": "cat", "wait_seconds": 20}, "hello\n", "still running; next_offset 6")
	u.has("kill_process", map[string]any{"process_id": process}, process+" has ended")
	u.has("read_process", map[string]any{"process_id": process, "offset": 6}, "(no new output)", "ended: status ")

	// Ports.
	u.call("start_process", map[string]any{"command": "cd src && exec python3 -m http.server 8000"})
	preview := u.field("get_preview_url", map[string]any{"port": 8000}, "url")
	u.until("the port answers", func() bool { return strings.Contains(u.http(http.MethodGet, preview, ""), "a.txt") })

	// States of this sandbox.
	saved := u.field("create_snapshot", map[string]any{"name": "before"}, "snapshot_id")
	u.call("run_code", map[string]any{"code": "x = 1"})
	u.has("rollback", map[string]any{"snapshot_id": saved}, `"state": "running"`)
	u.is("run_code", map[string]any{"code": "x"}, "41")
	u.has("pause_sandbox", nil, `"state": "paused"`)
	u.has("resume_sandbox", nil, `"state": "running"`)
	u.is("run_code", map[string]any{"code": "x"}, "41")

	// Other sandboxes.
	var copies struct {
		Forks []struct {
			ID string `json:"sandbox_id"`
		}
	}
	if err := json.Unmarshal([]byte(u.call("fork_sandbox", map[string]any{"count": 2})), &copies); err != nil || len(copies.Forks) != 2 {
		u.t.Fatalf("%v, %+v", err, copies)
	}
	for _, f := range copies.Forks {
		u.is("run_code", map[string]any{"sandbox_id": f.ID, "code": "x"}, "41")
		u.has("kill_sandbox", map[string]any{"sandbox_id": f.ID}, f.ID+" has ended")
	}
	other := u.field("create_sandbox", map[string]any{"name": "other", "snapshot_id": "before", "timeout_seconds": 300}, "sandbox_id")
	u.is("run_code", map[string]any{"sandbox_id": "other", "code": "x"}, "41")
	own := u.field("list_sandboxes", nil, "own_sandbox_id")
	listed := u.has("list_sandboxes", nil, other, own)
	for _, f := range copies.Forks {
		if strings.Contains(listed, f.ID) {
			u.t.Errorf("the ended sandbox %s is listed: %s", f.ID, listed)
		}
	}
	u.has("kill_sandbox", map[string]any{"sandbox_id": "other"}, other+" has ended")
}

func useClaude(u *user) {
	u.is("bash", map[string]any{"command": "cd /tmp && echo here", "timeout": 60000, "description": "goes elsewhere"}, "here\n")
	u.is("bash", map[string]any{"command": "pwd"}, "/tmp\n") // the folder is kept
	started := u.has("bash", map[string]any{"command": "echo begun; sleep 1000", "run_in_background": true}, "task_id ")
	_, rest, _ := strings.Cut(started, "task_id ")
	task, _, _ := strings.Cut(rest, ".")
	u.has("task_output", map[string]any{"task_id": task, "wait_seconds": 20}, "begun\n", "still running; next_offset 6")
	u.is("task_stop", map[string]any{"task_id": task}, "The task has ended.")
	u.has("task_output", map[string]any{"task_id": task, "offset": 6}, "(no new output)", "ended: ")

	const path = "/workspace/app.js"
	u.has("write", map[string]any{"file_path": path, "content": "const a = 1\nlet b = a + a\n// END\n"}, path+" has 33 bytes now.")
	u.is("edit", map[string]any{"file_path": path, "old_string": "let", "new_string": "const"}, "1 occurrence(s) replaced in "+path+".")
	u.is("edit", map[string]any{"file_path": path, "old_string": "const", "new_string": "var", "replace_all": true}, "2 occurrence(s) replaced in "+path+".")
	u.is("read", map[string]any{"file_path": path, "offset": 2, "limit": 5}, "     2\tvar b = a + a\n     3\t// END")
	u.call("write", map[string]any{"file_path": "/workspace/b.py", "content": "a = 1\nA = 2\n"})
	u.is("glob", map[string]any{"pattern": "**/*.js", "path": "/workspace"}, path)

	u.is("grep", map[string]any{"pattern": "var", "path": "/workspace"}, path)
	u.is("grep", map[string]any{"pattern": "a", "output_mode": "count", "type": "js"}, path+":2")
	u.is("grep", map[string]any{"pattern": "var b", "output_mode": "content", "-A": 1, "-n": false}, path+":var b = a + a\n"+path+"-// END")
	u.is("grep", map[string]any{"pattern": "var b", "output_mode": "content", "-B": 1}, path+"-1-var a = 1\n"+path+":2:var b = a + a")
	u.is("grep", map[string]any{"pattern": "[ab] =", "output_mode": "content", "-o": true, "glob": "*.js"}, path+":1:a =\n"+path+":2:b =")
	u.is("grep", map[string]any{"pattern": "^a", "output_mode": "content", "-i": true, "type": "python"}, "/workspace/b.py:1:a = 1\n/workspace/b.py:2:A = 2")
	u.is("grep", map[string]any{"pattern": "var", "output_mode": "content", "offset": 1, "head_limit": 1}, path+":2:var b = a + a")
	u.is("grep", map[string]any{"pattern": "var", "output_mode": "content", "offset": 1, "head_limit": 0}, path+":2:var b = a + a") // all that follow
	u.has("grep", map[string]any{"pattern": "nowhere"}, "(no matches)")
}

func (u *user) until(what string, true func() bool) { u.t.Helper(); until(u.t, what, true) }

// http sends a request to a URL, whose host is reached at the server's address, and
// returns the answer's body; empty: there is no good answer.
func (u *user) http(method, target, body string) string {
	u.t.Helper()
	at, err := url.Parse(u.server.URL)
	if err != nil {
		u.t.Fatal(err)
	}
	line := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at.Host)
	}}
	defer line.CloseIdleConnections()
	req, err := http.NewRequestWithContext(u.t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		u.t.Fatal(err)
	}
	reply, err := line.RoundTrip(req)
	if err != nil {
		u.t.Fatal(err)
	}
	defer reply.Body.Close()
	got, err := io.ReadAll(reply.Body)
	if !slices.Contains([]int{200, 201}, reply.StatusCode) || err != nil {
		return ""
	}
	return string(got)
}
