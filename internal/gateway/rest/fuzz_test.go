package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// For any path of a client, the path that a Guest gets is absolute and clean, and has no
// "..".
func checkGuestPath(t *testing.T, asked, p string, err error) {
	t.Helper()
	if err != nil {
		if sandbox.CodeOf(err) != sandbox.Invalid {
			t.Fatalf("%q: %v", asked, err)
		}
		return
	}
	if !strings.HasPrefix(p, "/") || len(p) > execution.MaxPath || strings.ContainsRune(p, 0) || !utf8.ValidString(p) {
		t.Fatalf("%q became %q", asked, p)
	}
	for i, part := range strings.Split(p[1:], "/") {
		if part == ".." || part == "." || part == "" && (i > 0 || p != "/") {
			t.Fatalf("%q became %q", asked, p)
		}
	}
}

func FuzzGuestPath(f *testing.F) {
	for _, s := range []string{"a", "/", "//a//./b/", "../a", "a/..", "a\x00", "\xff", strings.Repeat("a/", 2048)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := execution.Path("path", s)
		checkGuestPath(t, s, p, err)
	})
}

func FuzzUploadPath(f *testing.F) {
	for _, s := range []string{
		`form-data; name="a"; filename="b"`, `form-data; filename="../b"`, `form-data; filename*=UTF-8''%2e%2e%2fb`,
		`form-data; filename="/b"`, `form-data; filename*0="a/.";filename*1="./b"`, "form-data; filename=\"\xff\"",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := uploadPath("/workspace/up", s)
		checkGuestPath(t, s, p, err)
		if err == nil && !strings.HasPrefix(p, "/workspace/up/") {
			t.Fatalf("%q left the directory: %q", s, p)
		}
	})
}

func FuzzOperations(f *testing.F) {
	for _, s := range []string{
		`{"op":"read","path":"a","max_bytes":1}`, `{"op":"write","path":"a","content_base64":"eA==","mode":"0600"}`,
		`{"op":"copy","source":"a","destination":"b","recursive":true}`, `{"op":"list","path":"/","depth":3}`, `{"op":"chmod","mode":"9"}`, `null`, `{"op":`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		steps, err := parseOperations([]json.RawMessage{raw})
		if err != nil && sandbox.CodeOf(err) != sandbox.Invalid {
			t.Fatalf("%q: %v", raw, err)
		}
		if err == nil && (len(steps) != 1 || steps[0] == nil) {
			t.Fatalf("%q gives %v", raw, steps)
		}
	})
}

// A batch whose request has ended does nothing more.
func TestBatchEnds(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	done := 0
	step := func(context.Context, *batch) (v1.BatchResult, error) { done++; end(); return v1.BatchResult{}, nil }
	if _, _, err := new(batch).run(ctx, []operation{step, step}, false); err == nil || done != 1 {
		t.Errorf("%d steps, %v", done, err)
	}
}

// Any message over the WebSocket of a Process is a command or a clear error.
func FuzzAttachCommand(f *testing.F) {
	for _, s := range []string{
		`{"type":"resize","cols":80,"rows":24}`, `{"type":"signal","signal":"INT"}`, `{"type":"signal","signal":9}`, `{"type":"eof"}`,
		`{"type":"eof"}{}`, `[]`, `null`, `{"cols":1e99}`, "\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m attachCommand
		if err := decodeObject(raw, &m); err != nil && sandbox.CodeOf(err) != sandbox.Invalid {
			t.Fatalf("%q: %v", raw, err)
		}
	})
}

func FuzzStartProcess(f *testing.F) {
	for _, s := range []string{
		`{"sandbox_id":"a","command":"true","yield_ms":5,"pty":{"cols":80,"rows":24}}`, `{"sandbox_id":"a","argv":["a"],"env":{"A":"b"},"shell":"s"}`,
		`{"yield_ms":9223372036854775807,"timeout_seconds":1e300,"max_output_bytes":-1}`, `{"pty":null,"argv":null}`,
	} {
		f.Add([]byte(s), "key")
	}
	f.Fuzz(func(t *testing.T, raw []byte, key string) {
		var body v1.StartProcessRequest
		if err := decodeObject(raw, &body); err != nil {
			return
		}
		req, err := startRequest(&body, &http.Request{Header: http.Header{"Idempotency-Key": {key}}})
		switch {
		case err != nil && sandbox.CodeOf(err) != sandbox.Invalid:
			t.Fatalf("%q: %v", raw, err)
		case err == nil && (req.Yield < 0 || req.Yield > execution.MaxYield || req.MaxOutput < 0 || req.Key == ""):
			t.Fatalf("%q gives %+v", raw, req)
		}
	})
}

// Any request about files and repositories is understood or Invalid.
func FuzzFileBodies(f *testing.F) {
	for _, s := range []string{
		`{"sandbox_id":"a","path":"b","pattern":"c","replacement":"d","expected_count":1,"globs":["*"]}`, `{"path":"b","method":"GET","expires_in_seconds":1e9}`,
		`{"path":"a","mode":"0644","recursive":true}`, `{"source":"a","destination":"b"}`, `{"credentials":{"password":"a"},"timeout_seconds":5}`,
		`{"max_results":1,"context_lines":-1}`, `{"globs":[null]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, body := range []interface{ understood() error }{
			&understanding[v1.ReplaceRequest, execution.ReplaceRequest]{parse: replaceRequest},
			&understanding[v1.SearchRequest, execution.SearchRequest]{parse: searchRequest},
			&understanding[v1.FileCopy, execution.CopyRequest]{parse: copyRequest},
			&understanding[v1.FileChmod, execution.ChmodRequest]{parse: chmodRequest},
		} {
			if err := decodeObject(raw, body); err == nil {
				err = body.understood()
				if err != nil && sandbox.CodeOf(err) != sandbox.Invalid {
					t.Fatalf("%q: %v", raw, err)
				}
			} else if sandbox.CodeOf(err) != sandbox.Invalid {
				t.Fatalf("%q: %v", raw, err)
			}
		}
	})
}

// understanding is a body and what makes a request of it.
type understanding[B, R any] struct {
	body  B
	parse func(*B) (R, error)
}

func (u *understanding[B, R]) UnmarshalJSON(raw []byte) error { return json.Unmarshal(raw, &u.body) }

func (u *understanding[B, R]) understood() error {
	_, err := u.parse(&u.body)
	return err
}

// For any conditions of a read, a Guest is asked for one range or none.
func FuzzReadOptions(f *testing.F) {
	for _, s := range []string{"bytes=0-4", "bytes=-5", "bytes=9-", "bytes=5-4", "bytes=0-1,2-3", "lines=1-2", "bytes=99999999999999999999-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, asked string) {
		r := &http.Request{Method: "GET", Header: http.Header{"Range": {asked}}}
		if got := readOptions(r).Range; got != "" && (got != asked || strings.ContainsAny(got, ",\r\n") || !strings.HasPrefix(got, "bytes=")) {
			t.Fatalf("%q asks for %q", asked, got)
		}
	})
}
