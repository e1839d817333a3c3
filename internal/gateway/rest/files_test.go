package rest_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/textproto"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// bad is a request that must be refused. ID stands for a Sandbox that runs.
type bad struct {
	method, path, body string
	status             int
	says               string
}

func (f *fixture) refuses(t *testing.T, id string, all []bad) {
	t.Helper()
	for _, tt := range all {
		path, body := strings.ReplaceAll(tt.path, "ID", id), strings.ReplaceAll(tt.body, `"ID"`, `"`+id+`"`)
		a := f.Do(tt.method, path, body)
		if a.Status != tt.status || !bytes.Contains(a.Body, []byte(tt.says)) {
			t.Errorf("%s %.80s %.80s = %d %.300s, want %d and %q", tt.method, tt.path, tt.body, a.Status, a.Body, tt.status, tt.says)
		}
	}
}

// batchOf is a batch of one operation.
func batchOf(operation string) string { return `{"sandbox_id":"ID","operations":[` + operation + `]}` }

func TestBadGitInputs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	long := strings.Repeat("x", 5000)
	const in = `{"sandbox_id":"ID"`
	all := []bad{
		{"POST", "/api/v1/git/clone", in + `}`, 400, "url"},
		{"POST", "/api/v1/git/clone", in + `,"url":"` + long + `"}`, 400, "2048"},
		{"POST", "/api/v1/git/clone", in + `,"url":"ext::id"}`, 400, "url must be"},
		{"POST", "/api/v1/git/clone", in + `,"url":"--upload-pack=id","path":"a"}`, 400, "url must be"},
		{"POST", "/api/v1/git/clone", in + `,"url":"https://u:p@git.example/a"}`, 400, "credentials"},
		{"POST", "/api/v1/git/clone", in + `,"url":"https://git.example/.."}`, 400, "path is missing"},
		{"POST", "/api/v1/git/clone", in + `,"url":"/a","branch":"-x"}`, 400, "branch"},
		{"POST", "/api/v1/git/clone", in + `,"url":"/a","branch":"a..b"}`, 400, "branch"},
		{"POST", "/api/v1/git/clone", in + `,"url":"/a","depth":0}`, 400, "depth"},
		{"POST", "/api/v1/git/clone", in + `,"url":"/a","credentials":{}}`, 400, "password"},
		{"POST", "/api/v1/git/clone", in + `,"url":"/a","credentials":{"password":"a\nb"}}`, 400, "line breaks"},
		{"POST", "/api/v1/git/clone", in + `,"url":"/a","credentials":{"password":"a","host":"x y"}}`, 400, "host"},
		{"POST", "/api/v1/git/clone", in + `,"url":"/a","credentials":{"password":"a","token":"x"}}`, 400, `unknown field \"token\"`},
		{"POST", "/api/v1/git/clone", in + `,"url":"git@git.example:a","credentials":{"password":"a"}}`, 400, "https"},
		{"POST", "/api/v1/git/clone", in + `,"url":"/a","timeout_seconds":3601}`, 400, "3600"},
		{"POST", "/api/v1/git/clone", in + `,"url":"/a","timeout_seconds":0}`, 400, "seconds"},
		{"POST", "/api/v1/git/checkout", in + `}`, 400, "ref is missing"},
		{"POST", "/api/v1/git/checkout", in + `,"ref":"--orphan"}`, 400, "ref must not begin"},
		{"POST", "/api/v1/git/checkout", in + `,"ref":"a","start":"b"}`, 400, "start"},
		{"POST", "/api/v1/git/add", in + `}`, 400, "files or all"},
		{"POST", "/api/v1/git/add", in + `,"all":true,"files":["a"]}`, 400, "files or all"},
		{"POST", "/api/v1/git/add", in + `,"files":[""]}`, 400, "a file is missing"},
		{"POST", "/api/v1/git/add", in + `,"files":["../a"]}`, 400, ".."},
		{"POST", "/api/v1/git/add", in + `,"files":["a` + strings.Repeat(`","a`, 1000) + `"]}`, 400, "1000"},
		{"POST", "/api/v1/git/commit", in + `}`, 400, "message"},
		{"POST", "/api/v1/git/commit", in + `,"message":"a\u0000b"}`, 400, "message"},
		{"POST", "/api/v1/git/commit", in + `,"message":"` + strings.Repeat("x", 65537) + `"}`, 400, "65536"},
		{"POST", "/api/v1/git/commit", in + `,"message":"a","author":{"name":"a"}}`, 400, "author.email"},
		{"POST", "/api/v1/git/commit", in + `,"message":"a","author":{"name":"a<","email":"b"}}`, 400, "author.name"},
		{"POST", "/api/v1/git/pull", in + `,"credentials":{"password":""}}`, 400, "password"},
		{"POST", "/api/v1/git/push", in + `,"timeout_seconds":"1"}`, 400, "seconds"},
	}
	for _, name := range []string{"clone", "status", "branches", "checkout", "add", "commit", "pull", "push"} {
		path, fields := "/api/v1/git/"+name, map[string]string{
			"clone": `,"url":"/a"`, "add": `,"all":true`, "commit": `,"message":"a"`, "checkout": `,"ref":"a"`,
		}[name]
		all = append(all,
			bad{"POST", path, in + fields + `,"path":"../a"}`, 400, ".."},
			bad{"POST", path, in + fields + `,"path":"` + long + `"}`, 400, "4096"},
			bad{"POST", path, in + fields + `,"path":"a\u0000"}`, 400, "zero byte"},
			bad{"POST", path, in + fields + `,"user":"a b"}`, 400, "user"},
			bad{"POST", path, in + fields + `,"bogus":1}`, 400, "bogus"},
			bad{"POST", path, `{"path":"a"` + fields + `}`, 400, "sandbox_id"},
			bad{"POST", path, `{"sandbox_id":"i00000000000000000000"` + fields + `}`, 404, "no sandbox"},
			bad{"GET", path, "", 405, "GET"},
		)
	}
	f.refuses(t, id, all)
	f.Guest.Lock()
	defer f.Guest.Unlock()
	if len(f.Guest.Runs) != 0 {
		t.Errorf("something was run: %+v", f.Guest.Runs)
	}
}

func TestBadFileInputs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	long := strings.Repeat("x", 5000)
	const replace, batch = "/api/v1/files/replace", "/api/v1/files/batch"
	f.refuses(t, id, []bad{
		{"POST", replace, `{"sandbox_id":"ID","pattern":"a","replacement":""}`, 400, "path is missing"},
		{"POST", replace, `{"sandbox_id":"ID","path":"a","replacement":""}`, 400, "pattern"},
		{"POST", replace, `{"sandbox_id":"ID","path":"a","pattern":"b"}`, 400, "replacement is missing"},
		{"POST", replace, `{"sandbox_id":"ID","path":"a","pattern":"` + strings.Repeat("x", 65537) + `","replacement":""}`, 400, "65536"},
		{"POST", replace, `{"sandbox_id":"ID","path":"a","pattern":"b","replacement":"` + strings.Repeat("x", 1<<20+1) + `"}`, 400, "1048576"},
		{"POST", replace, `{"sandbox_id":"ID","path":"a","pattern":"b","replacement":"","expected_count":-1}`, 400, "expected_count"},
		{"POST", replace, `{"sandbox_id":"ID","path":"../a","pattern":"b","replacement":""}`, 400, ".."},
		{"POST", replace, `{"sandbox_id":"ID","path":"a\u0000","pattern":"b","replacement":""}`, 400, "zero byte"},
		{"POST", replace, `{"sandbox_id":"ID","path":"` + long + `","pattern":"b","replacement":""}`, 400, "4096"},
		{"POST", replace, `{"sandbox_id":"ID","path":"a","pattern":"b","replacement":"","globs":[""]}`, 400, "glob"},
		{"POST", replace, `{"sandbox_id":"ID","path":"a","pattern":"b","replacement":"","user":"a b"}`, 400, "user"},
		{"POST", replace, `{"path":"a","pattern":"b","replacement":""}`, 400, "sandbox_id"},

		{"POST", batch, `{"sandbox_id":"ID"}`, 400, "operations"},
		{"POST", batch, `{"sandbox_id":"ID","operations":[]}`, 400, "operations"},
		{"POST", batch, batchOf(strings.Repeat(`{"op":"stat","path":"a"},`, 256) + `{"op":"stat","path":"a"}`), 400, "256"},
		{"POST", batch, batchOf(`"stat"`), 400, "operations[0]"},
		{"POST", batch, batchOf(`null`), 400, "operations[0]"},
		{"POST", batch, batchOf(`{"op":"stat","path":"a"},{"op":"format"}`), 400, "operations[1]: op must be"},
		{"POST", batch, batchOf(`{"op":"stat"}`), 400, "path is missing"},
		{"POST", batch, batchOf(`{"op":"stat","path":"a","depth":1}`), 400, `unknown field \"depth\"`},
		{"POST", batch, batchOf(`{"op":"stat","path":"a/../b"}`), 400, ".."},
		{"POST", batch, batchOf(`{"op":"stat","path":"` + long + `"}`), 400, "4096"},
		{"POST", batch, batchOf(`{"op":"read","path":"a","max_bytes":0}`), 400, "max_bytes"},
		{"POST", batch, batchOf(`{"op":"read","path":"a","max_bytes":1048577}`), 400, "max_bytes"},
		{"POST", batch, batchOf(`{"op":"write","path":"a"}`), 400, "content"},
		{"POST", batch, batchOf(`{"op":"write","path":"a","content":"","content_base64":""}`), 400, "content"},
		{"POST", batch, batchOf(`{"op":"write","path":"a","content_base64":"%"}`), 400, "not base64"},
		{"POST", batch, batchOf(`{"op":"write","path":"a","content":"","mode":"rw"}`), 400, "octal"},
		{"POST", batch, batchOf(`{"op":"list","path":"a","depth":33}`), 400, "depth"},
		{"POST", batch, batchOf(`{"op":"move","source":"a"}`), 400, "destination"},
		{"POST", batch, batchOf(`{"op":"copy","source":"a","destination":"b","user":"a:b"}`), 400, "user"},
		{"POST", batch, batchOf(`{"op":"chmod","path":"a"}`), 400, "octal"},
		{"POST", batch, batchOf(`{"op":"mkdir","path":"\u0000"}`), 400, "zero byte"},
		{"POST", batch, `{"operations":[{"op":"stat","path":"a"}]}`, 400, "sandbox_id"},
		{"POST", batch, strings.Repeat(" ", 16<<20) + "{}", 413, "16777216 bytes"},

		{"POST", "/api/v1/files?sandbox_id=ID&path=a", "x", 400, "multipart/form-data"},

		{"POST", "/api/v1/files/sign", `{"sandbox_id":"ID","method":"GET"}`, 400, "path is missing"},
		{"POST", "/api/v1/files/sign", `{"sandbox_id":"ID","path":"a"}`, 400, "method"},
		{"POST", "/api/v1/files/sign", `{"sandbox_id":"ID","path":"a","method":"DELETE"}`, 400, "method"},
		{"POST", "/api/v1/files/sign", `{"sandbox_id":"ID","path":"../a","method":"GET"}`, 400, ".."},
		{"POST", "/api/v1/files/sign", `{"sandbox_id":"ID","path":"a","method":"GET","expires_in_seconds":604801}`, 400, "604800"},
		{"POST", "/api/v1/files/sign", `{"sandbox_id":"ID","path":"a","method":"GET","expires_in_seconds":0}`, 400, "seconds"},
		{"POST", "/api/v1/files/sign", `{"path":"a","method":"GET"}`, 400, "sandbox_id"},
		{"POST", "/api/v1/files/sign/rotate", `{"x":1}`, 400, `unknown field \"x\"`},
		{"GET", "/api/v1/files?sandbox_id=ID&path=a&signature=x", "", 403, "not valid"},
		{"GET", "/api/v1/files?signature=x", "", 403, "not valid"},
		{"GET", "/api/v1/files/stat?sandbox_id=ID&path=a&signature=x", "", 400, "unknown query parameter"},
		{"DELETE", "/api/v1/files?sandbox_id=ID&path=a&signature=x", "", 400, "unknown query parameter"},

		{"GET", "/api/v1/files/watch?sandbox_id=ID", "", 400, "path is missing"},
		{"GET", "/api/v1/files/watch?path=a", "", 400, "sandbox_id"},
		{"GET", "/api/v1/files/watch?sandbox_id=ID&path=../a", "", 400, ".."},
		{"GET", "/api/v1/files/watch?sandbox_id=ID&path=a&recursive=1", "", 400, "recursive"},
		{"GET", "/api/v1/files/watch?sandbox_id=ID&path=a&since=" + long[:65], "", 400, "since"},
		{"GET", "/api/v1/files/watch?sandbox_id=ID&path=a&user=%20", "", 400, "user"},
		{"GET", "/api/v1/files/watch?sandbox_id=ID&path=/none", "", 404, "does not exist"},
		{"GET", "/api/v1/files/changes?sandbox_id=ID&path=" + long, "", 400, "4096"},
		{"GET", "/api/v1/files/changes?sandbox_id=ID&path=a&since=" + long[:65], "", 400, "since"},
	})
	if f.Guest.Has("/workspace/a") {
		t.Error("something was written")
	}
}

func TestFileTenantsAreInvisible(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	other := f.Mint("other")
	for _, route := range []struct{ method, path, body string }{
		{"POST", "/api/v1/files/replace", `{"sandbox_id":"ID","path":"a","pattern":"b","replacement":""}`},
		{"POST", "/api/v1/files/batch", batchOf(`{"op":"stat","path":"a"}`)},
		{"GET", "/api/v1/files/watch?path=a&sandbox_id=ID", ""},
		{"POST", "/api/v1/files/sign", `{"sandbox_id":"ID","path":"a","method":"GET"}`},
		{"POST", "/api/v1/git/status", `{"sandbox_id":"ID"}`},
		{"POST", "/api/v1/git/clone", `{"sandbox_id":"ID","url":"/a"}`},
		{"POST", "/api/v1/git/push", `{"sandbox_id":"ID"}`},
		{"GET", "/api/v1/files/changes?path=a&sandbox_id=ID", ""},
	} {
		ask := func(id string) gatewaytest.Answer {
			return f.DoAs(other, route.method, strings.ReplaceAll(route.path, "ID", id), strings.ReplaceAll(route.body, "ID", id))
		}
		absent, foreign := ask("i00000000000000000000"), ask(id)
		foreign.Body = bytes.ReplaceAll(foreign.Body, []byte(id), []byte("i00000000000000000000")) // each error repeats the requested ID
		if absent.Status != 404 || foreign.Status != 404 || !bytes.Equal(absent.Body, foreign.Body) {
			t.Errorf("%s %s: absent %d %s, another's %d %s", route.method, route.path, absent.Status, absent.Body, foreign.Status, foreign.Body)
		}
	}
}

func TestReplaceAndBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	var replaced struct {
		Count  int
		Files  []struct{ Path string }
		DryRun bool `json:"dry_run"`
	}
	f.Do("PUT", "/api/v1/files?path=f&sandbox_id="+id, "a b a")
	f.Do("POST", "/api/v1/files/replace", `{"sandbox_id":"`+id+`","path":"f","pattern":"a","replacement":"c"}`).Into(t, 200, &replaced)
	if replaced.Count != 2 || len(replaced.Files) != 1 || replaced.Files[0].Path != "/workspace/f" || replaced.DryRun {
		t.Errorf("replaced %+v", replaced)
	}
	type result struct {
		Status, Content string
		Base64          string `json:"content_base64"`
		Truncated       bool
		Entry           *struct{ Path string }
		Entries         []struct{ Path string }
		Error           *struct{ Code string }
	}
	var batch struct {
		Results []result
		Failed  int
	}
	run := func(more string, operations ...string) string {
		batch.Results = nil
		f.Do("POST", "/api/v1/files/batch", `{"sandbox_id":"`+id+`","operations":[`+strings.Join(operations, ",")+`]`+more+`}`).Into(t, 200, &batch)
		var all []string
		for _, r := range batch.Results {
			s := r.Status + r.Content + r.Base64
			if r.Error != nil {
				s += " " + r.Error.Code
			}
			if r.Truncated {
				s += "+"
			}
			all = append(all, s)
		}
		return fmt.Sprint(strings.Join(all, "|"), " ", batch.Failed)
	}
	got := run("", `{"op":"write","path":"u","content":"aé"}`, `{"op":"read","path":"u","max_bytes":2}`, `{"op":"read","path":"u"}`,
		`{"op":"write","path":"b","content_base64":"/w=="}`, `{"op":"read","path":"b"}`, `{"op":"read","path":"none"}`,
		`{"op":"copy","source":"u","destination":"v"}`, `{"op":"move","source":"v","destination":"w"}`, `{"op":"chmod","path":"w","mode":"600"}`,
		`{"op":"mkdir","path":"d"}`, `{"op":"write","path":"d/x","content":"","mode":"0755"}`, `{"op":"remove","path":"d"}`,
		`{"op":"remove","path":"d","recursive":true}`, `{"op":"list","path":"."}`, `{"op":"stat","path":"w"}`)
	if want := "ok|oka+|okaé|ok|ok/w==|error not_found|ok|ok|ok|ok|ok|error conflict|ok|ok|ok 2"; got != want {
		t.Errorf("batch: %s, want %s", got, want)
	}
	if e := batch.Results[13].Entries; len(e) != 4 {
		t.Errorf("list %+v", e)
	}
	if got := run(`,"stop_on_error":true`, `{"op":"stat","path":"none"}`, `{"op":"mkdir","path":"e"}`); got != "error not_found|skipped 2" || f.Guest.Has("/workspace/e/") {
		t.Errorf("after a failure: %s", got)
	}
	f.Do("PUT", "/api/v1/files?path=big&sandbox_id="+id, strings.Repeat("x", 1<<20))
	reads := strings.Repeat(`{"op":"read","path":"big"},`, 9)
	run("", reads[:len(reads)-1])
	if first, last := batch.Results[0], batch.Results[8]; len(first.Content) != 1<<20 || first.Truncated || last.Content != "" || !last.Truncated {
		t.Errorf("nine of 1 MiB: %d %v, %d %v", len(first.Content), first.Truncated, len(last.Content), last.Truncated)
	}
}

func TestUpload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	send := func(dispositions ...string) gatewaytest.Answer {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		for i, d := range dispositions {
			w, err := form.CreatePart(textproto.MIMEHeader{"Content-Disposition": {d}})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(w, "content %d", i)
		}
		form.Close()
		req, _ := http.NewRequest("POST", f.URL+"/api/v1/files?path=up&sandbox_id="+id, &body)
		req.Header.Set("Authorization", "Bearer "+f.Token)
		req.Header.Set("Content-Type", form.FormDataContentType())
		return f.Send(req)
	}
	var done struct{ Entries []struct{ Path string } }
	send(`form-data; name="a"; filename="a.txt"`, `form-data; name="b"; filename="sub/b.txt"`, `form-data; name=c; filename*=UTF-8''%C3%A9`).Into(t, 200, &done)
	if len(done.Entries) != 3 || done.Entries[1].Path != "/workspace/up/sub/b.txt" || done.Entries[2].Path != "/workspace/up/é" {
		t.Errorf("uploaded %+v", done)
	}
	if a := f.Do("GET", "/api/v1/files?path=up/sub/b.txt&sandbox_id="+id, ""); string(a.Body) != "content 1" {
		t.Errorf("content %q", a.Body)
	}
	for name, says := range map[string]string{
		`form-data; name="a"; filename="../x"`:                                   "..",
		`form-data; name="a"; filename="/etc/x"`:                                 "begin with /",
		`form-data; name="a"; filename="."`:                                      "names no file",
		`form-data; name="a"; filename="` + strings.Repeat("x", 5000) + `"`:      "4096",
		"form-data; name=\"a\"; filename=\"a\xff\"":                              "UTF-8",
		`form-data; name="a"; filename*=UTF-8''a%00b`:                            "zero byte",
		`form-data; name="a"`:                                                    "no file name",
		`attachment; filename="a"`:                                               "form-data",
		`form-data; name="a"; filename="`:                                        "form-data",
		`form-data; name="path"; filename="` + strings.Repeat("a/", 2045) + `x"`: "4096",
	} {
		if a := send(name); a.Status != 400 || !bytes.Contains(a.Body, []byte(says)) {
			t.Errorf("%.60s = %d %.200s", name, a.Status, a.Body)
		}
	}
	if a := send(); a.Status != 400 {
		t.Errorf("no file: %d %s", a.Status, a.Body)
	}
	for body, kind := range map[string]string{
		"--b\r\nContent-Disposition: form-data; name=a; filename=broken\r\n\r\nhalf": "multipart/form-data; boundary=b",
		"--b--":   "multipart/form-data; boundary=" + strings.Repeat("b", 71),
		"":        "multipart/form-data; boundary=b",
		"nothing": "multipart/form-data",
	} {
		req, _ := http.NewRequest("POST", f.URL+"/api/v1/files?path=up&sandbox_id="+id, strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+f.Token)
		req.Header.Set("Content-Type", kind)
		if a := f.Send(req); a.Status != 400 {
			t.Errorf("%.40s: %d %s", body, a.Status, a.Body)
		}
	}
	if f.Guest.Has("/workspace/up/broken") {
		t.Error("half of a file was kept")
	}
}

func TestSignedURLs(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	sign := func(token, body string) string {
		t.Helper()
		var signed struct {
			URL, Method string
			ExpiresAt   time.Time `json:"expires_at"`
		}
		f.DoAs(token, "POST", "/api/v1/files/sign", body).Into(t, 200, &signed)
		path, ours := strings.CutPrefix(signed.URL, f.URL)
		if !ours || time.Until(signed.ExpiresAt) > time.Hour+time.Minute {
			t.Fatalf("signed %+v", signed)
		}
		return path
	}
	up := sign(f.Token, `{"sandbox_id":"`+id+`","path":"a b","method":"PUT"}`)
	down := sign(f.Token, `{"sandbox_id":"`+id+`","path":"a b","method":"GET","expires_in_seconds":60}`)
	if a := f.DoAs("", "PUT", up, "content"); a.Status != 200 {
		t.Fatalf("upload: %d %s", a.Status, a.Body)
	}
	for _, token := range []string{"", "nonsense", f.Mint("other")} {
		if a := f.DoAs(token, "GET", down, ""); a.Status != 200 || string(a.Body) != "content" {
			t.Errorf("download: %d %s", a.Status, a.Body)
		}
	}
	if a := f.DoAs("", "HEAD", down, ""); a.Status != 200 {
		t.Errorf("HEAD: %d", a.Status)
	}
	for _, tt := range []struct{ method, path string }{
		{"PUT", down},
		{"GET", up},
		{"GET", strings.Replace(down, "a+b", "etc", 1)},
		{"GET", strings.Replace(down, "a+b", "a+b%2Fc", 1)},
		{"GET", down + "&path=b"},
		{"GET", down + "x"},
		{"GET", strings.Replace(down, "expires=", "expires=9", 1)},
	} {
		if a := f.DoAs("", tt.method, tt.path, ""); a.Status != 403 || a.Code(t) != "denied" {
			t.Errorf("%s %s = %d %s", tt.method, tt.path, a.Status, a.Body)
		}
	}
	if a := f.DoAs("", "GET", down+"&x=%zz", ""); a.Status != 400 {
		t.Errorf("malformed: %d %s", a.Status, a.Body)
	}
	if a := f.DoAs("", "DELETE", down, ""); a.Status != 401 {
		t.Errorf("another method: %d %s", a.Status, a.Body)
	}
	if a := f.DoAs(f.Mint("other"), "POST", "/api/v1/files/sign/rotate", ""); a.Status != 204 {
		t.Errorf("rotate another's: %d", a.Status)
	}
	if a := f.DoAs("", "GET", down, ""); a.Status != 200 {
		t.Errorf("after another's rotation: %d %s", a.Status, a.Body)
	}
	if a := f.Do("POST", "/api/v1/files/sign/rotate", ""); a.Status != 204 {
		t.Errorf("rotate: %d %s", a.Status, a.Body)
	}
	if a := f.DoAs("", "GET", down, ""); a.Status != 403 {
		t.Errorf("after the rotation: %d %s", a.Status, a.Body)
	}
	down = sign(f.Token, `{"sandbox_id":"`+id+`","path":"a b","method":"GET"}`)
	if a := f.DoAs("", "GET", down, ""); a.Status != 200 {
		t.Errorf("signed again: %d %s", a.Status, a.Body)
	}
	f.Do("POST", "/api/v1/sandbox/release", `{"sandbox_id":"`+id+`"}`)
	if a := f.DoAs("", "GET", down, ""); a.Status != 404 && a.Status != 409 {
		t.Errorf("after the end: %d %s", a.Status, a.Body)
	}
	if strings.Contains(f.Logs.String(), "signature=") {
		t.Error("a signature is in the log")
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	at := func(p string) string { return "?sandbox_id=" + id + "&path=" + p }
	var entry struct {
		Name, Path, Type, Mode string
		Size                   int64 `json:"size_bytes"`
	}
	f.Do("PUT", "/api/v1/files"+at("./test.py"), "x = 42").Into(t, 200, &entry)
	if entry.Path != "/workspace/test.py" || entry.Size != 6 || entry.Mode != "0644" {
		t.Errorf("written %+v", entry)
	}
	if a := f.Do("GET", "/api/v1/files"+at("/workspace/test.py"), ""); string(a.Body) != "x = 42" || a.Header.Get("Content-Length") != "6" || a.Header.Get("Content-Security-Policy") != "sandbox" {
		t.Errorf("read %q %v", a.Body, a.Header)
	}
	if a := f.Do("HEAD", "/api/v1/files"+at("test.py"), ""); a.Status != 200 || a.Header.Get("Content-Length") != "6" {
		t.Errorf("head %d %v", a.Status, a.Header)
	}
	req, _ := http.NewRequest("GET", f.URL+"/api/v1/files"+at("test.py"), nil)
	req.Header.Set("Authorization", "Bearer "+f.Token)
	req.Header.Set("Range", "bytes=0-2")
	if a := f.Send(req); a.Status != 206 || string(a.Body) != "x =" || a.Header.Get("Content-Range") != "bytes 0-2/6" {
		t.Errorf("range %d %q %v", a.Status, a.Body, a.Header)
	}
	f.Do("GET", "/api/v1/files/stat"+at("test.py"), "").Into(t, 200, &entry)
	f.Do("POST", "/api/v1/files/mkdir", `{"session_id":"`+id+`","path":"data"}`).Into(t, 201, &entry)
	if entry.Path != "/workspace/data" || entry.Type != "directory" {
		t.Errorf("made %+v", entry)
	}
	f.Do("POST", "/api/v1/files/move", `{"sandbox_id":"`+id+`","source":"test.py","destination":"data/a.py"}`).Into(t, 200, &entry)
	if entry.Path != "/workspace/data/a.py" {
		t.Errorf("moved %+v", entry)
	}
	var list struct {
		Path    string
		Entries []struct{ Path string }
	}
	f.Do("GET", "/api/v1/files/list"+at(".")+"&depth=2", "").Into(t, 200, &list)
	if list.Path != "/workspace" || len(list.Entries) != 2 {
		t.Errorf("list %+v", list)
	}
	if a := f.Do("DELETE", "/api/v1/files"+at("data"), ""); a.Status != 409 || !bytes.Contains(a.Body, []byte("recursive=true")) {
		t.Errorf("a full directory: %d %s", a.Status, a.Body)
	}
	if a := f.Do("DELETE", "/api/v1/files"+at("data")+"&recursive=true", ""); a.Status != 204 || len(a.Body) != 0 {
		t.Errorf("recursive: %d %s", a.Status, a.Body)
	}
	if a := f.Do("GET", "/api/v1/files"+at("data/a.py"), ""); a.Status != 404 || !bytes.Contains(a.Body, []byte("file")) {
		t.Errorf("after removal: %d %s", a.Status, a.Body)
	}
	if a := f.Do("PUT", "/api/v1/files"+at("empty"), ""); a.Status != 200 {
		t.Errorf("an empty file: %d %s", a.Status, a.Body)
	}
	if a := f.Do("GET", "/api/v1/files"+at("empty"), ""); a.Status != 200 || a.Header.Get("Content-Length") != "0" {
		t.Errorf("an empty file: %d %v", a.Status, a.Header)
	}
}

func TestFilesStreamAtConstantMemory(t *testing.T) {
	f := newFixture(t)
	id := f.Acquire()
	// The garbage of other tests would let the heap grow by as much again before a collection.
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	stop := make(chan struct{})
	var peak uint64
	var watcher sync.WaitGroup
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	watcher.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				peak = max(peak, now.HeapInuse)
			}
		}
	})
	req, _ := http.NewRequest("GET", f.URL+"/api/v1/files?path=/dev/huge&sandbox_id="+id, nil)
	req.Header.Set("Authorization", "Bearer "+f.Token)
	resp, err := f.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if n != gatewaytest.HugeSize || err != nil {
		t.Errorf("down: %d bytes, %v", n, err)
	}
	req, _ = http.NewRequest("PUT", f.URL+"/api/v1/files?path=/dev/null&sandbox_id="+id, io.LimitReader(gatewaytest.Zeros{}, gatewaytest.HugeSize))
	req.Header.Set("Authorization", "Bearer "+f.Token)
	a := f.Send(req)
	if a.Status != 200 || !bytes.Contains(a.Body, []byte(fmt.Sprint(gatewaytest.HugeSize))) {
		t.Errorf("up: %d %s", a.Status, a.Body)
	}
	close(stop)
	watcher.Wait()
	if grown := int64(peak) - int64(before.HeapInuse); grown > 32<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

// A truncated read from the Guest ends in an error for the client.
func TestBrokenDownload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	req, _ := http.NewRequest("GET", f.URL+"/api/v1/files?path=/broken&sandbox_id="+f.Acquire(), nil)
	req.Header.Set("Authorization", "Bearer "+f.Token)
	resp, err := f.Client.Do(req)
	if err != nil {
		return // nothing had been sent yet
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("read %q without an error", body)
	}
}

// An upload that breaks off is the client's failure and writes nothing.
func TestUploadBreaksOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "PUT /api/v1/files?path=a&sandbox_id=%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\nhalf", id, f.Token)
	conn.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if resp.StatusCode != 400 {
		t.Errorf("status %d", resp.StatusCode)
	}
	if a := f.Do("GET", "/api/v1/files?path=a&sandbox_id="+id, ""); a.Status != 404 {
		t.Errorf("a partial file exists: %s", a.Body)
	}
}
