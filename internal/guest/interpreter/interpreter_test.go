package interpreter

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/contexts"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// theReaper is the test process's own: there is one waiter a process.
var theReaper = sync.OnceValue(func() *server.Reaper {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	return server.NewReaper()
})

const token = "secret"

// newServer is that of a Guest on this machine.
func newServer(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guest runs as root")
	}
	for _, program := range []string{"python3", "node", "bash"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s on this machine", program)
		}
	}
	g := server.New(server.Accounts{Etc: fstest.MapFS{"passwd": {Data: []byte("root:x:0:0:root:/root:/bin/bash\n")}}}, theReaper())
	owner := server.Owner{SandboxID: "i", BootNumber: 1, User: "root", Cwd: "/", AccessToken: token, Env: map[string]string{"PATH": os.Getenv("PATH"), "ALL": "a"}}
	if err := g.Bind(owner, 0, nil); err != nil {
		t.Fatal(err)
	}
	c := contexts.New(g)
	s := New(g, c)
	s.folder = t.TempDir()
	h := httptest.NewServer(server.Gathered(s))
	t.Cleanup(func() {
		for _, i := range c.List() {
			_ = c.Delete(i.ID)
		}
		h.Close()
	})
	return h.URL
}

func call(t *testing.T, method, url, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Access-Token", token)
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Body.Close() })
	return r
}

// answer is the status and body of a request.
func answer(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	r := call(t, method, url, body)
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, strings.TrimSpace(string(b))
}

type event map[string]any

// events of an execution, times left out.
func events(t *testing.T, url string, body map[string]any) []event {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r := call(t, http.MethodPost, url+"/execute", string(b))
	if r.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(r.Body)
		t.Fatalf("%v: %d %s", body, r.StatusCode, text)
	}
	var all []event
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		delete(e, "timestamp")
		maps.DeleteFunc(e, func(_ string, v any) bool { return v == nil })
		all = append(all, e)
	}
	return all
}

// summary is events in short: what each says.
func summary(all []event) string {
	var words []string
	for _, e := range all {
		switch e["type"] {
		case "stdout", "stderr":
			words = append(words, e["type"].(string)+":"+e["text"].(string))
		case "result":
			kind := "display"
			if e["is_main_result"] == true {
				kind = "result"
			}
			text, _ := e["text"].(string)
			words = append(words, kind+":"+text)
		case "error":
			words = append(words, "error:"+e["name"].(string)+":"+e["value"].(string))
		case "number_of_executions":
			words = append(words, "n")
		case "keepalive": // of a slow machine
		default:
			words = append(words, e["type"].(string))
		}
	}
	return strings.Join(words, " ")
}

func TestExecute(t *testing.T) {
	url := newServer(t)
	for _, tt := range []struct {
		name string
		body map[string]any
		want string
	}{
		{"state", map[string]any{"code": "x = 1"}, "n end_of_execution"},
		{"of before", map[string]any{"code": "x+=1; x"}, "n result:2 end_of_execution"},
		{"quotes", map[string]any{"code": `'a "b"'`}, `n result:a "b" end_of_execution`},
		{"order", map[string]any{"code": "import sys\nprint(1)\ndisplay(2)\nprint(3)\n4", "context_id": nil, "language": "Python"}, "n stdout:1\n display:2 stdout:3\n result:4 end_of_execution"},
		{"an error", map[string]any{"code": "1/0"}, "n error:ZeroDivisionError:division by zero end_of_execution"},
		{"an exit", map[string]any{"code": "import sys; sys.exit(3)"}, "n error:SystemExit:3 end_of_execution"},
		{"variables of the sandbox and the call", map[string]any{"code": "import os; os.environ['ALL']+os.environ['B']", "env_vars": map[string]string{"B": "b"}}, "n result:ab end_of_execution"},
		{"gone after it", map[string]any{"code": "os.environ.get('B', '-')"}, "n result:- end_of_execution"},
		{"JavaScript by another name", map[string]any{"code": "typeof y", "language": "JavaScript"}, "n result:undefined end_of_execution"},
		{"JavaScript", map[string]any{"code": "let y = 1; y + 1", "language": "js"}, "n result:2 end_of_execution"},
		{"bash", map[string]any{"code": "v=7", "language": "bash"}, "n end_of_execution"},
		{"bash again", map[string]any{"code": "echo $v; false", "language": "bash"}, "n stdout:7\n error:ExitCode:1 end_of_execution"},
		{"its end", map[string]any{"code": "import os; os._exit(5)"}, "n error:UnexpectedEndOfExecution:the interpreter ended before the execution was finished; its state is gone end_of_execution"},
		{"after it", map[string]any{"code": "'x' in globals()"}, "n result:False end_of_execution"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := summary(events(t, url, tt.body)); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestResultFields(t *testing.T) {
	url := newServer(t)
	code := `class A:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "p", "text/html": "h", "text/markdown": "m", "text/latex": "l", "image/svg+xml": "s", "image/png": b"\0\1",
                "image/jpeg": "anBn", "application/pdf": "cGRm", "application/json": {"a": [1]}, "application/javascript": "j",
                "application/geo+json": {"g": 1}, "text/x-own": "o"}
A()`
	all := events(t, url, map[string]any{"code": code})
	if len(all) != 3 {
		t.Fatalf("got %v", all)
	}
	got, _ := json.Marshal(all[1])
	want := `{"extra":{"application/geo+json":{"g":1},"text/x-own":"o"},"html":"h","is_main_result":true,"javascript":"j","jpeg":"anBn",` +
		`"json":{"a":[1]},"latex":"l","markdown":"m","pdf":"cGRm","png":"AAE=","svg":"s","text":"p","type":"result"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestContexts(t *testing.T) {
	url := newServer(t)
	dir := t.TempDir()
	list := func() []contextView {
		var all []contextView
		_, body := answer(t, "GET", url+"/contexts", "")
		if err := json.Unmarshal([]byte(body), &all); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return all
	}
	if all := list(); len(all) != 2 || all[0].Language != "python" || all[1].Language != "javascript" {
		t.Errorf("at first there are %v", all)
	}
	var made contextView
	status, body := answer(t, "POST", url+"/contexts", `{"cwd": "`+dir+`", "language": "PYTHON"}`)
	if err := json.Unmarshal([]byte(body), &made); err != nil || status != 200 || made.ID == "" || made.Language != "python" || made.Cwd != dir {
		t.Fatalf("create = %d %s", status, body)
	}
	if all := list(); len(all) != 3 || all[2] != made {
		t.Errorf("then there are %v, want %v last", all, made)
	}
	in := func(code string) string {
		return summary(events(t, url, map[string]any{"code": code, "context_id": made.ID}))
	}
	if got := in("x = 1; import os; os.getcwd()"); got != "n result:"+dir+" end_of_execution" {
		t.Errorf("it runs in %s", got)
	}
	if status, body := answer(t, "POST", url+"/contexts/"+made.ID+"/restart", ""); status != 200 || body != "null" {
		t.Errorf("restart = %d %s", status, body)
	}
	if got := in("'x' in globals()"); got != "n result:False end_of_execution" {
		t.Errorf("after a restart: %s", got)
	}
	if status, body := answer(t, "DELETE", url+"/contexts/"+made.ID, ""); status != 200 || body != "null" {
		t.Errorf("delete = %d %s", status, body)
	}
	if all := list(); slices.Contains(all, made) {
		t.Error("a deleted context is listed")
	}
	first := list()[0].ID
	if status, body := answer(t, "POST", url+"/contexts/"+first+"/restart", ""); status != 200 {
		t.Errorf("restart of a default context = %d %s", status, body)
	}
}

// A restart ends what runs, which says why.
func TestRestartUnderWay(t *testing.T) {
	url := newServer(t)
	r := call(t, http.MethodPost, url+"/execute", `{"code": "print('go')\nimport time\nfor i in range(1000): time.sleep(1)"}`)
	lines := bufio.NewScanner(r.Body)
	var all []event
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if all = append(all, e); e["type"] == "stdout" {
			if status, body := answer(t, "POST", url+"/contexts/python.root/restart", ""); status != 200 && status != 404 {
				t.Fatalf("restart = %d %s", status, body)
			}
			if status, body := answer(t, "POST", url+"/contexts/python/restart", ""); status != 200 {
				t.Fatalf("restart = %d %s", status, body)
			}
		}
	}
	if got := summary(all); got != "n stdout:go\n error:ContextRestarting:Context was restarted end_of_execution" {
		t.Errorf("got %q", got)
	}
}

// Whoever leaves interrupts, and the state stays.
func TestLeave(t *testing.T) {
	url := newServer(t)
	r := call(t, http.MethodPost, url+"/execute", `{"code": "x = 5\nprint('go')\nimport time\nfor i in range(1000): time.sleep(1)"}`)
	for lines := bufio.NewScanner(r.Body); lines.Scan() && !strings.Contains(lines.Text(), "stdout"); {
	}
	r.Body.Close()
	if got := summary(events(t, url, map[string]any{"code": "x"})); got != "n result:5 end_of_execution" {
		t.Errorf("afterwards: %s", got)
	}
}

func TestRefusals(t *testing.T) {
	url := newServer(t)
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"health", "GET", "/health", "", 200, `"OK"`},
		{"no code", "POST", "/execute", `{}`, 422, "field required"},
		{"no JSON", "POST", "/execute", `code`, 422, "JSON"},
		{"wrong type", "POST", "/execute", `{"code": 1}`, 422, "JSON"},
		{"zero byte", "POST", "/execute", `{"code": "\u0000"}`, 422, "zero byte"},
		{"bad variable", "POST", "/execute", `{"code": "1", "env_vars": {"A=B": "1"}}`, 422, "environment"},
		{"both", "POST", "/execute", `{"code": "1", "context_id": "x", "language": "python"}`, 400, "Only one of"},
		{"unknown context", "POST", "/execute", `{"code": "1", "context_id": "x"}`, 404, "Context x not found"},
		{"unknown language", "POST", "/execute", `{"code": "1", "language": "cobol"}`, 500, `"cobol"`},
		{"Ruby", "POST", "/execute", `{"code": "1", "language": "ruby"}`, 500, "python, javascript, typescript, bash, r or java"},
		{"bad folder", "POST", "/contexts", `{"cwd": "/no-such"}`, 500, "/no-such"},
		{"bad language", "POST", "/contexts", `{"language": "cobol"}`, 500, "cobol"},
		{"too large", "POST", "/execute", `{"code": "` + strings.Repeat("a", maxBody) + `"}`, 413, "at most"},
		{"restart unknown", "POST", "/contexts/x/restart", "", 404, "Context x not found"},
		{"delete unknown", "DELETE", "/contexts/x", "", 404, "Context x not found"},
		{"wrong method", "GET", "/execute", "", 405, ""},
		{"wrong path", "GET", "/nothing", "", 404, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if status, body := answer(t, tt.method, url+tt.path, tt.body); status != tt.status || !strings.Contains(body, tt.want) {
				t.Errorf("got %d %s, want %d %s", status, body, tt.status, tt.want)
			}
		})
	}
	for _, wrong := range []string{"", "other"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/execute", strings.NewReader(`{"code": "1"}`))
		req.Header.Set("X-Access-Token", wrong)
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if r.Body.Close(); r.StatusCode != http.StatusUnauthorized {
			t.Errorf("the token %q gives %d", wrong, r.StatusCode)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodOptions, url+"/execute", nil)
	req.Header.Set("Access-Control-Request-Headers", "x-access-token")
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if r.Body.Close(); r.StatusCode != http.StatusNoContent || r.Header.Get("Access-Control-Allow-Headers") != "x-access-token" {
		t.Errorf("a browser's question = %d %v", r.StatusCode, r.Header)
	}
}
