package events

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// theReaper is the test process's own: there is one waiter a process.
var theReaper = sync.OnceValue(func() *server.Reaper {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	return server.NewReaper()
})

func newServer(t *testing.T) (*Server, *server.Guest) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the guest runs as root")
	}
	g := server.New(server.Accounts{Etc: fstest.MapFS{"passwd": {Data: []byte("root:x:0:0:root:/root:/bin/bash\n")}}}, theReaper())
	bind(t, g, "i1", 1)
	return New(g), g
}

func bind(t *testing.T, g *server.Guest, id string, boot int64) {
	t.Helper()
	if err := g.Bind(server.Owner{SandboxID: id, BootNumber: boot, User: "root", Cwd: "/", Restored: boot > 1}, 0, nil); err != nil {
		t.Fatal(err)
	}
}

func post(s *Server, body string) int {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/logs", strings.NewReader(body)))
	return w.Code
}

func kept(t *testing.T, s *Server) []guest.LogEntry {
	t.Helper()
	w := httptest.NewRecorder()
	s.Logs(w, httptest.NewRequest(http.MethodGet, guest.LogsPath, nil))
	var all []guest.LogEntry
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	return all
}

func TestMe(t *testing.T) {
	s, _ := newServer(t)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/me", nil))
	if got := strings.TrimSpace(w.Body.String()); w.Code != http.StatusOK || got != `{"sandboxID":"i1"}` {
		t.Errorf("%d %s", w.Code, got)
	}
}

func TestLogs(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"all", `{"message": "m", "level": "warn", "a": 1, "b": true, "c": "x", "d": {}, "e": [1], "f": null}`, 200, `{warn m map[a:1 b:true c:x]}`},
		{"nothing", `{}`, 200, `{info  map[]}`},
		{"wrong types", `{"message": 1, "level": []}`, 200, `{info  map[]}`},
		{"no object", `[1]`, 400, ``},
		{"null", `null`, 400, ``},
		{"no JSON", `m`, 400, ``},
		{"too large", `{"message": "` + strings.Repeat("m", guest.MaxLog) + `"}`, 413, ``},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := newServer(t)
			if status := post(s, tt.body); status != tt.status {
				t.Errorf("status %d, want %d", status, tt.status)
			}
			got := ""
			for _, e := range kept(t, s) {
				if e.UnixMillis == 0 {
					t.Error("it has no time")
				}
				got += fmt.Sprintf("{%s %s %v}", e.Level, e.Message, e.Fields)
			}
			if got != tt.want {
				t.Errorf("kept %q, want %q", got, tt.want)
			}
		})
	}
}

// What is kept is bounded in count, bytes and rate, and the newest stays.
func TestBounds(t *testing.T) {
	s, _ := newServer(t)
	for i := range guest.MaxLogs + 10 {
		s.keep(entry{LogEntry: guest.LogEntry{Message: fmt.Sprint(i)}, sandboxID: "i1"})
	}
	if all := kept(t, s); len(all) != guest.MaxLogs || all[0].Message != "10" {
		t.Errorf("kept %d, from %+v on", len(all), all[0])
	}
	for range 100 {
		s.keep(entry{LogEntry: guest.LogEntry{Message: strings.Repeat("m", guest.MaxLog)}, sandboxID: "i1"})
	}
	if all := kept(t, s); len(all) != maxKept/guest.MaxLog || s.bytes > maxKept {
		t.Errorf("kept %d of %d bytes", len(all), s.bytes)
	}
	fields := make([]string, 100)
	for i := range fields {
		fields[i] = fmt.Sprintf(`"%02d": 1`, i)
	}
	post(s, "{"+strings.Join(fields, ",")+"}")
	if all := kept(t, s); len(all[len(all)-1].Fields) != guest.MaxLogFields {
		t.Errorf("kept %d fields", len(all[len(all)-1].Fields))
	}
	refused := false
	for range 100 * logsAtOnce {
		refused = refused || post(s, "{}") == http.StatusTooManyRequests
		if refused {
			break
		}
	}
	if !refused {
		t.Error("any number of logs is taken")
	}
}

// A copy of a Sandbox does not show what the other said.
func TestLogsOfAnother(t *testing.T) {
	s, g := newServer(t)
	post(s, `{"message": "of the first"}`)
	bind(t, g, "i2", 2)
	post(s, `{"message": "of the second"}`)
	if all := kept(t, s); len(all) != 1 || all[0].Message != "of the second" {
		t.Errorf("kept %+v", all)
	}
}
