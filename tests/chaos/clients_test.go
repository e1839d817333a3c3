package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// beats is a server outside of the cluster that Sandboxes call, in two steps: the first one
// is answered with a token, and the second one brings it back with the list in memory. So
// the list was read between the two.
type beats struct {
	address string

	mu      sync.Mutex
	history *History
	begun   map[int]time.Duration // by token
	last    int
}

func newBeats(t *testing.T, host string) *beats {
	t.Helper()
	l, err := net.Listen("tcp4", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	b := &beats{address: l.Addr().String()}
	b.reset(NewHistory())
	server := &http.Server{Handler: b, ReadHeaderTimeout: callLimit}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return b
}

// reset has the calls from now on recorded in a history.
func (b *beats) reset(h *History) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.history, b.begun = h, map[int]time.Duration{}
}

// ServeHTTP implements http.Handler.
func (b *beats) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.history.Now()
	if r.URL.Path == "/begin" {
		b.last++
		b.begun[b.last] = now
		fmt.Fprint(w, b.last)
		return
	}
	token, err := strconv.Atoi(r.URL.Query().Get("token"))
	began, known := b.begun[token]
	if err != nil || !known {
		http.Error(w, "no such token", http.StatusNotFound)
		return
	}
	delete(b.begun, token)
	list := ""
	for _, id := range strings.Fields(r.URL.Query().Get("list")) {
		list += " " + id
	}
	b.history.Add(Operation{In: Input{Sandbox: r.URL.Query().Get("sandbox"), Kind: Beat}, Out: Output{List: list}, Call: began, Return: now})
}

// setup is the code that a Sandbox begins with. It may run again.
func (b *beats) setup(id string, every time.Duration) string {
	return fmt.Sprintf(`
import threading, time, urllib.request
def beat():
    while True:
        try:
            token = urllib.request.urlopen('http://%[1]s/begin', timeout=5).read().decode()
            urllib.request.urlopen('http://%[1]s/end?sandbox=%[2]s&token=' + token + '&list=' + '+'.join(map(str, m)), timeout=5).read()
        except Exception:
            pass
        time.sleep(%[3]f)
if 'm' not in globals():
    m = []
    open('/workspace/list', 'a').close()
    threading.Thread(target=beat, daemon=True).start()
`, b.address, id, every.Seconds())
}

// client is one client of one Tenant.
type client struct {
	c      *rig.Client
	h      *History
	number int // from 1
}

// ask sends a request with a key for its repetition, which may be empty.
func (c *client) ask(ctx context.Context, method, path string, body any, key string) (status int, raw []byte, err error) {
	var r io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		r = bytes.NewReader(text)
	}
	req, err := c.c.NewRequest(method, path, r)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.c.HTTP.Do(req.WithContext(ctx))
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(resp.Body)
	return resp.StatusCode, raw, err
}

// unknown is the Output of a request that may or may not have taken effect.
func unknown(status int, raw []byte, err error) Output {
	detail := string(raw)
	if err != nil {
		detail = err.Error()
	}
	return Output{Unknown: true, Detail: fmt.Sprintf("%d %.160s", status, strings.TrimSpace(detail))}
}

// failed is the Output of a request that was not answered with success.
func (c *client) failed(ctx context.Context, id string, status int, raw []byte, err error) Output {
	out := unknown(status, raw, err)
	if status != http.StatusNotFound && status != http.StatusConflict && status != http.StatusGone {
		return out
	}
	if s, err := c.record(ctx, id); err == nil && s.State == ended {
		return Output{Gone: true, Detail: out.Detail}
	}
	return out
}

// record is the part of a Sandbox's record that clients look at.
type record struct {
	ID       string `json:"session_id"`
	State    string
	Name     string
	Timeline int
}

func (c *client) record(ctx context.Context, id string) (r record, err error) {
	status, raw, err := c.ask(ctx, "GET", "/api/v1/sessions/"+id, nil, "")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d %s", status, raw)
	}
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	return r, err
}

// create makes a Sandbox, with as many attempts as it takes; false: the run has ended.
func (c *client) create(ctx context.Context) (id string, ok bool) {
	call, key := c.h.Now(), fmt.Sprintf("create-%d-%d", c.h.start.UnixNano(), c.h.NewID())
	body := rig.Body{"timeout_seconds": 7200, "on_timeout": "pause", "checkpoint_every_seconds": 3600, "resources": rig.Body{"cpus": 0.5, "memory_mb": 256, "disk_mb": 256}}
	for ctx.Err() == nil {
		var r record
		status, raw, err := c.ask(ctx, "POST", "/api/v1/sessions", body, key)
		if err == nil && status == http.StatusCreated && json.Unmarshal(raw, &r) == nil {
			c.h.Add(Operation{Client: c.number, In: Input{Sandbox: r.ID, Kind: Create}, Out: Output{}, Call: call, Return: c.h.Now()})
			return r.ID, true
		}
		c.pause(ctx)
	}
	return "", false
}

// pause waits before another attempt.
func (c *client) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(500 * time.Millisecond):
	}
}

// prepare runs the first code of a Sandbox, with as many attempts as it takes.
func (c *client) prepare(ctx context.Context, id, setup string) (ok bool) {
	for ctx.Err() == nil {
		out := c.h.Do(c.number, Input{Sandbox: id, Kind: Resume}, func() Output {
			_, out := c.run(ctx, id, "python", setup)
			return out
		})
		if !out.Unknown {
			return !out.Gone
		}
		c.pause(ctx)
	}
	return false
}

// run executes code. The Output is of the attempt alone.
func (c *client) run(ctx context.Context, id, language, code string) (stdout string, out Output) {
	status, raw, err := c.ask(ctx, "POST", "/api/v1/execute", rig.Body{"sandbox_id": id, "language": language, "code": code}, "")
	var r rig.Result
	if err == nil && status == http.StatusOK {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil || status != http.StatusOK {
		return "", c.failed(ctx, id, status, raw, err)
	}
	if r.Error != nil && r.Error.Name == "NameError" { // the context has lost its variables
		return "NameError", Output{Detail: r.String()}
	}
	if r.Status != "ok" {
		return "", Output{Unknown: true, Detail: r.String()}
	}
	return r.Stdout, Output{}
}

// listed is run of code that prints a list.
func (c *client) listed(ctx context.Context, id, language, code string) Output {
	stdout, out := c.run(ctx, id, language, code)
	for _, field := range strings.Fields(stdout) {
		out.List += " " + field
	}
	return out
}

// step makes one operation. snapshot is one of the Sandbox, or empty.
func (c *client) step(ctx context.Context, id string, kind Kind, snapshot string) Output {
	in := Input{Sandbox: id, Kind: kind}
	switch kind {
	case AddMemory, AddFile, Rename:
		in.ID = c.h.NewID()
	case Rollback:
		if in.Snapshot = snapshot; snapshot == "" {
			in.Kind = Get
		}
	}
	return c.h.Do(c.number, in, func() Output {
		path := "/api/v1/sessions/" + id
		switch in.Kind {
		case AddMemory:
			return c.listed(ctx, id, "python", fmt.Sprintf("m.append(%d)\nprint(*m)", in.ID))
		case ReadMemory:
			return c.listed(ctx, id, "python", "print(*m)")
		case AddFile:
			return c.listed(ctx, id, "bash", fmt.Sprintf("exec 9>>/workspace/lock && flock 9 && echo %d >> /workspace/list && cat /workspace/list", in.ID))
		case ReadFile:
			status, raw, err := c.ask(ctx, "GET", rig.Files("", id, "/workspace/list"), nil, "")
			if err != nil || status != http.StatusOK {
				return c.failed(ctx, id, status, raw, err)
			}
			out := Output{}
			for _, field := range strings.Fields(string(raw)) {
				out.List += " " + field
			}
			return out
		case Get:
			return c.recorded(ctx, id, "GET", path, nil)
		case Rename:
			return c.recorded(ctx, id, "PATCH", path, rig.Body{"name": fmt.Sprintf("n%d", in.ID)})
		case Take:
			var made struct {
				ID string `json:"snapshot_id"`
			}
			status, raw, err := c.ask(ctx, "POST", path+"/snapshots", rig.Body{}, "")
			if err != nil || status != http.StatusCreated || json.Unmarshal(raw, &made) != nil {
				return c.failed(ctx, id, status, raw, err)
			}
			return Output{Snapshot: made.ID}
		case Pause, Resume:
			return c.recorded(ctx, id, "POST", path+"/"+string(in.Kind), rig.Body{})
		case Rollback:
			return c.recorded(ctx, id, "POST", path+"/rollback", rig.Body{"snapshot_id": snapshot})
		}
		return Output{Unknown: true}
	})
}

// recorded is a request that is answered with the record.
func (c *client) recorded(ctx context.Context, id, method, path string, body any) Output {
	status, raw, err := c.ask(ctx, method, path, body, "")
	var r record
	if err == nil && status == http.StatusOK {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil || status != http.StatusOK {
		return c.failed(ctx, id, status, raw, err)
	}
	name := 0
	if r.Name != "" {
		if name, err = strconv.Atoi(strings.TrimPrefix(r.Name, "n")); err != nil {
			return Output{Detail: "a name of nobody: " + r.Name, Name: -1, State: r.State}
		}
	}
	return Output{State: r.State, Name: name, Timeline: r.Timeline}
}

// remove deletes a Sandbox, and then its snapshots, with as many attempts as it takes.
func (c *client) remove(ctx context.Context, id string) bool {
	call := c.h.Now()
	for attempt := 1; ctx.Err() == nil; attempt++ {
		status, raw, err := c.ask(ctx, "DELETE", "/api/v1/sessions/"+id, nil, "")
		out := Output{}
		if err != nil || status != http.StatusOK {
			out = c.failed(ctx, id, status, raw, err)
		}
		if !out.Unknown {
			out.Gone = out.Gone && attempt == 1 // a later one may see the effect of the first
			c.h.Add(Operation{Client: c.number, In: Input{Sandbox: id, Kind: Delete}, Out: out, Call: call, Return: c.h.Now()})
			return c.removeSnapshots(ctx, id)
		}
		c.pause(ctx)
	}
	return false
}

func (c *client) removeSnapshots(ctx context.Context, id string) bool {
	for ctx.Err() == nil {
		var page struct {
			Snapshots []struct {
				ID string `json:"snapshot_id"`
			}
		}
		status, raw, err := c.ask(ctx, "GET", "/api/v1/snapshots?session_id="+id, nil, "")
		if err == nil && status == http.StatusOK && json.Unmarshal(raw, &page) == nil {
			if len(page.Snapshots) == 0 {
				return true
			}
			for _, s := range page.Snapshots {
				_, _, _ = c.ask(ctx, "DELETE", "/api/v1/snapshots/"+s.ID, nil, "")
			}
		}
		c.pause(ctx)
	}
	return false
}

// slot is a place for one Sandbox at a time, which several clients use.
type slot struct {
	clients []*client
	random  []*rand.Rand // one for each client
	beats   *beats
	reached atomic.Int64 // the call of the last operation with an answer
	ended   func(id string)
	// saving excludes appends while the state is saved. A program that runs then is part of
	// what is saved, and may do its append once more after the Sandbox has gone back.
	saving sync.RWMutex

	mu       sync.Mutex
	id       string // of the present Sandbox
	snapshot string // its last one, to which clients roll back
	doubts   int    // rollbacks without an answer
}

// mostDoubts bounds the rollbacks without an answer of one Sandbox. Each may happen at any
// later time, which doubles the histories that the checker has to try.
const mostDoubts = 2

// generation bounds the life of a Sandbox: histories stay short enough to be checked.
const generation = 150 * time.Second

// use has Sandboxes come and go until over is closed. ctx ends what still waits then. The
// last Sandbox stays.
func (s *slot) use(ctx context.Context, over <-chan struct{}) {
	first := s.clients[0]
	for !isClosed(over) && ctx.Err() == nil {
		id, ok := first.create(ctx)
		if !ok {
			return
		}
		s.reach(first.h.Now())
		s.mu.Lock()
		s.id, s.snapshot, s.doubts = id, "", 0
		s.mu.Unlock()
		if !first.prepare(ctx, id, s.beats.setup(id, time.Second)) {
			s.gone(id)
			continue
		}
		if s.random[0].IntN(6) > 0 { // the others have no checkpoint at first
			for ctx.Err() == nil {
				out := first.step(ctx, id, Take, "")
				if s.saw(out) || out.Gone {
					break
				}
				first.pause(ctx)
			}
		}
		s.live(ctx, id, over)
		if isClosed(over) || ctx.Err() != nil {
			return
		}
		if !first.remove(ctx, id) {
			return
		}
		s.gone(id)
	}
}

func (s *slot) gone(id string) {
	s.mu.Lock()
	s.id = ""
	s.mu.Unlock()
	s.ended(id)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// live has all clients use the Sandbox until its generation ends.
func (s *slot) live(ctx context.Context, id string, over <-chan struct{}) {
	end := time.Now().Add(generation)
	var left atomic.Bool // one was told that the Sandbox has ended
	var all sync.WaitGroup
	for i, c := range s.clients {
		all.Go(func() {
			for time.Now().Before(end) && !isClosed(over) && ctx.Err() == nil && !left.Load() {
				kind, wait := nextStep(s.random[i])
				select {
				case <-ctx.Done():
				case <-time.After(wait):
				}
				unlock := s.exclude(kind)
				s.mu.Lock()
				snapshot := s.snapshot
				if s.doubts >= mostDoubts {
					snapshot = ""
				}
				s.mu.Unlock()
				call := c.h.Now()
				out := c.step(ctx, id, kind, snapshot)
				unlock()
				if out.Gone {
					left.Store(true)
				}
				if s.saw(out) {
					s.reach(call)
				} else if kind == Rollback && snapshot != "" {
					s.mu.Lock()
					s.doubts++
					s.mu.Unlock()
				}
			}
		})
	}
	all.Wait()
}

// exclude waits until an operation may begin beside those of the other clients.
func (s *slot) exclude(kind Kind) (unlock func()) {
	switch kind {
	case AddMemory, AddFile:
		s.saving.RLock()
		return s.saving.RUnlock
	case Take, Pause, Rollback:
		s.saving.Lock()
		return s.saving.Unlock
	}
	return func() {}
}

// saw remembers the snapshot of an answer, and reports whether there was one.
func (s *slot) saw(out Output) bool {
	if out.Unknown {
		return false
	}
	if out.Snapshot != "" {
		s.mu.Lock()
		s.snapshot = out.Snapshot
		s.mu.Unlock()
	}
	return true
}

func (s *slot) reach(call time.Duration) {
	if now := int64(call); now > s.reached.Load() {
		s.reached.Store(now)
	}
}

// present is the Sandbox of the slot now; empty: none.
func (s *slot) present() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}
