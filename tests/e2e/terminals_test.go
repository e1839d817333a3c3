package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// reads is output that a viewer received from a terminal, and its offset.
type reads struct {
	from  int64
	bytes string
}

// read reads the terminal's output until stop returns true or the connection ends.
func (v *viewer) read(t *testing.T, stop func(shown string) bool) (got reads, err error) {
	t.Helper()
	for !stop(got.bytes) {
		kind, data, err := v.Read(t.Context())
		if err != nil {
			return got, err
		}
		if kind == websocket.MessageBinary {
			got.bytes += string(data)
			continue
		}
		var told struct {
			Type   string
			Offset int64
			Error  struct{ Code, Message string }
		}
		if err := json.Unmarshal(data, &told); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		switch told.Type {
		case "start":
			got.from = told.Offset
		case "end":
		case "error": // the last message before the close
			if _, _, err := v.Read(t.Context()); err == nil {
				t.Errorf("the connection goes on after %s", data)
			}
			return got, errors.New(told.Error.Code + ": " + told.Error.Message)
		default:
			t.Fatalf("the terminal says %s", data)
		}
	}
	return got, nil
}

func (r reads) next() string { return strconv.FormatInt(r.from+int64(len(r.bytes)), 10) }

// An attached terminal keeps its session from pausing when idle. A pause closes the
// connection, attaching again resumes the session, and a viewer that sends its offset
// misses no output.
func TestTerminalOverPauses(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "terminal-pauses")
	s := station{c, create(t, c, rig.Body{"idle_timeout_seconds": 2, "on_timeout": "pause"}).ID}
	const count = `i=0; until [ -e /tmp/stop ]; do i=$((i+1)); echo line-$i; sleep 0.02; done; echo the-end`
	s.start(t, rig.Body{"argv": []string{"bash", "-c", count}, "pty": rig.Body{"cols": 80, "rows": 24}, "name": "tty", "background": true})
	state := func() string { return string(c.Get(t, s.id).State) }

	v := s.attach(t, "tty", "from", "0")
	var all strings.Builder
	// Longer than the idle timeout and the delay of reports of use.
	got, err := v.read(t, func(shown string) bool { return strings.Contains(shown, "line-250\r\n") })
	if err != nil || got.from != 0 {
		t.Fatalf("from %d: %v", got.from, err)
	}
	all.WriteString(got.bytes)
	if now := state(); now != "running" {
		t.Errorf("while somebody looked it became %s", now)
	}
	// The owner pauses it: the connection ends. The next attach resumes it.
	act(t, c, s.id, "pause", rig.Body{})
	rest, err := v.read(t, func(string) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "the sandbox was paused just now") {
		t.Errorf("the connection ended with %v", err)
	}
	got.bytes += rest.bytes
	all.WriteString(rest.bytes)
	if now := state(); now != "paused" {
		t.Errorf("it is %s", now)
	}
	for range 2 {
		v = s.attach(t, "tty", "from", got.next())
		next, err := v.read(t, func(shown string) bool { return strings.Count(shown, "\n") > 50 })
		if err != nil || strconv.FormatInt(next.from, 10) != got.next() {
			t.Fatalf("from %d, want %s: %v", next.from, got.next(), err)
		}
		all.WriteString(next.bytes)
		got = next
		// Without a viewer it pauses when idle.
		if err := v.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Errorf("leaving: %v", err)
		}
		rig.Within(t, rig.Patience, "it pauses by itself", func() bool { return state() == "paused" })
	}
	c.Sh(t, s.id, "touch /tmp/stop")
	v = s.attach(t, "tty", "from", got.next())
	last, err := v.read(t, func(shown string) bool { return strings.Contains(shown, "the-end\r\n") })
	if err != nil {
		t.Fatal(err)
	}
	all.WriteString(last.bytes)
	lines := strings.Split(strings.TrimSuffix(all.String(), "\r\n"), "\r\n")
	for i, line := range lines[:len(lines)-1] {
		if line != fmt.Sprintf("line-%d", i+1) {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
	if len(lines) < 300 || lines[len(lines)-1] != "the-end" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}

// A rollback restores the terminal's state and closes its connections. Viewers must
// attach again.
func TestTerminalRollsBack(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "terminal-back")
	s := station{c, create(t, c, rig.Body{}).ID}
	s.start(t, rig.Body{"argv": []string{"bash", "--norc"}, "pty": rig.Body{"cols": 80, "rows": 24}, "name": "tty", "background": true})
	v := s.attach(t, "tty", "from", "0")
	v.send(t, websocket.MessageBinary, "x=before; echo $x-typed\n")
	v.sees(t, "before-typed")
	c.Must(t, "POST", "/api/v1/sessions/"+s.id+"/snapshots", rig.Body{"name": "then"}, nil)
	v.send(t, websocket.MessageBinary, "x=after; cd /tmp; echo $x-typed\n")
	v.sees(t, "after-typed") // it continues after the snapshot

	act(t, c, s.id, "rollback", rig.Body{"snapshot_id": "then"})
	if _, err := v.read(t, func(string) bool { return false }); err == nil {
		t.Error("the connection outlived the rollback")
	}
	v = s.attach(t, "tty", "from", "0")
	v.send(t, websocket.MessageBinary, "echo $x-$((40+2)) $PWD\n")
	v.sees(t, "before-42 /workspace")
	if strings.Contains(v.seen, "after") {
		t.Errorf("it shows what was undone: %q", v.seen)
	}
	v.send(t, websocket.MessageText, `{"type":"resize","cols":100,"rows":30}`)
	v.send(t, websocket.MessageBinary, "stty size; exit 5\n")
	v.sees(t, "30 100")
	v.sees(t, `"exit_code":5`)
}

// Creates that cannot start within the maximum wait are refused at once with
// Retry-After. The others succeed.
func TestQueueIsBounded(t *testing.T) {
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{"START_WAIT_SECONDS=1"}})
	c := s.Client(t, "crowd")
	crowd := 60 * runtime.NumCPU()                // if a start takes 0.1 s, ten per core may wait for 1 s
	const body = `{"resources":{"disk_mb":3000}}` // not a shape of the Pool
	var mu sync.Mutex
	got := map[int]int{}
	var all sync.WaitGroup
	for range crowd {
		all.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/api/v1/sessions", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Authorization", "Bearer "+c.Token)
			r.Header.Set("Content-Type", "application/json")
			resp, err := c.HTTP.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			got[resp.StatusCode]++
			mu.Unlock()
			if resp.StatusCode != http.StatusServiceUnavailable {
				return
			}
			after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
			if err != nil || after < 1 || after > 120 || !strings.Contains(string(raw), "too many sandboxes wait") {
				t.Errorf("Retry-After %q: %s", resp.Header.Get("Retry-After"), raw)
			}
		})
	}
	all.Wait()
	if got[http.StatusCreated] == 0 || got[http.StatusServiceUnavailable] == 0 || got[http.StatusCreated]+got[http.StatusServiceUnavailable] != crowd {
		t.Errorf("the answers are %v", got)
	}
	rig.Within(t, rig.Patience, "one more starts", func() bool { return c.Try("POST", "/api/v1/sessions", json.RawMessage(body), nil) == nil })
}
