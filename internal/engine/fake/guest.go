package fake

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Guest is the agent of a fake Boot. Its control service, on
// sandbox.GuestPort, is plain HTTP: GET /health, POST /bind, POST
// /kill-biggest. Its methods are safe for concurrent use.
type Guest struct {
	mu      sync.Mutex
	state   state
	frozen  chan struct{} // requests wait until it is closed; nil: they do not wait
	kills   int
	failing sandbox.Code
	hang    chan struct{} // requests wait until it is closed; nil: they do not wait
	ready   chan struct{} // Ready waits until it is closed; nil: Bind reports no wait
}

// state is the part of a Boot that Save copies.
type state struct {
	binding sandbox.Binding
	memory  map[string]string
	files   map[string]string
}

func (s state) clone() state {
	s.memory, s.files = maps.Clone(s.memory), maps.Clone(s.files)
	return s
}

// Remember keeps a value in the memory of a program.
func (g *Guest) Remember(key, value string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state.memory == nil {
		g.state.memory = map[string]string{}
	}
	g.state.memory[key] = value
}

// Recall returns the value that Remember stored; empty: none.
func (g *Guest) Recall(key string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.memory[key]
}

// WriteFile makes a file.
func (g *Guest) WriteFile(name, content string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state.files == nil {
		g.state.files = map[string]string{}
	}
	g.state.files[name] = content
}

// ReadFile returns the content that WriteFile wrote; empty: none.
func (g *Guest) ReadFile(name string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.files[name]
}

func (g *Guest) copyState(memory bool) state {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !memory {
		return state{files: maps.Clone(g.state.files)}
	}
	return g.state.clone()
}

func (g *Guest) freeze() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen == nil {
		g.frozen = make(chan struct{})
	}
}

func (g *Guest) thaw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen != nil {
		close(g.frozen)
		g.frozen = nil
	}
}

// Frozen reports whether the Guest is frozen.
func (g *Guest) Frozen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.frozen != nil
}

// Bound returns the Guest's Binding; zero when it is blank.
func (g *Guest) Bound() sandbox.Binding {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state.binding
}

// Kills returns how often the Guest was asked to kill its biggest Process.
func (g *Guest) Kills() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kills
}

// Fail makes every call fail with code; empty ends that.
func (g *Guest) Fail(code sandbox.Code) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failing = code
}

// Hang makes calls wait until release is called.
func (g *Guest) Hang() (release func()) {
	hang := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hang = hang
	return sync.OnceFunc(func() { close(hang) })
}

// Pretend makes the Guest claim another owner than it has.
func (g *Guest) Pretend(b sandbox.Binding) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state.binding = b
}

// Wait makes Bind report that Ready must be called; Ready then waits until release is
// called.
func (g *Guest) Wait() (release func()) {
	ready := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ready = ready
	return sync.OnceFunc(func() { close(ready) })
}

func (g *Guest) waiting() chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ready
}

func (g *Guest) serve(l net.Listener) {
	// Tests run a hundred thousand of these: they need no routes and no HTTP/2.
	server := &http.Server{Handler: g.mayFail(http.HandlerFunc(g.answer)), TLSNextProto: noHTTP2} //nolint:gosec // in memory
	_ = server.Serve(l)
	_ = server.Close()
}

// noHTTP2 turns HTTP/2 off for a server. It is never changed.
var noHTTP2 = map[string]func(*http.Server, *tls.Conn, http.Handler){}

func (g *Guest) answer(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /health":
		b := g.Bound()
		_ = json.NewEncoder(w).Encode(health{SandboxID: b.SandboxID, Number: b.BootNumber})
	case "POST /bind":
		var b sandbox.Binding
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			http.Error(w, string(sandbox.Invalid), http.StatusBadRequest)
			return
		}
		if !g.bind(b) {
			http.Error(w, string(sandbox.Conflict), http.StatusConflict)
			return
		}
		_ = json.NewEncoder(w).Encode(g.waiting() != nil)
	case "POST /ready":
		select {
		case <-g.waiting():
		case <-r.Context().Done():
		}
	case "POST /kill-biggest":
		g.mu.Lock()
		defer g.mu.Unlock()
		g.kills++
	default:
		http.NotFound(w, r)
	}
}

// bind returns false when the Guest is bound to another Sandbox or Boot number already.
func (g *Guest) bind(b sandbox.Binding) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !b.Restored && g.state.binding.SandboxID != "" && (g.state.binding.SandboxID != b.SandboxID || g.state.binding.BootNumber != b.BootNumber) {
		return false
	}
	g.state.binding = b
	return true
}

func (g *Guest) mayFail(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		hang, frozen, failing := g.hang, g.frozen, g.failing
		g.mu.Unlock()
		for _, wait := range []chan struct{}{hang, frozen} {
			if wait == nil {
				continue
			}
			select {
			case <-wait:
			case <-r.Context().Done():
				return
			}
		}
		if failing != "" {
			http.Error(w, string(failing), http.StatusInternalServerError)
			return
		}
		next.ServeHTTP(w, r)
	})
}

type health struct {
	SandboxID string
	Number    int64
}

// Control is a client of the control service of a fake Boot. Its methods are
// safe for concurrent use.
type Control struct{ http *http.Client }

// NewControl returns a Control that reaches its Boot through dial. It connects at the
// first call.
func NewControl(dial func(ctx context.Context, port uint16) (net.Conn, error)) *Control {
	return &Control{http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, sandbox.GuestPort) },
	}}}
}

// Health returns the Guest's Sandbox ID and Boot number; empty and zero for a blank one.
func (c *Control) Health(ctx context.Context) (sandboxID string, number int64, err error) {
	var h health
	err = c.call(ctx, http.MethodGet, "/health", nil, &h)
	return h.SandboxID, h.Number, err
}

// Park readies a blank Boot.
func (c *Control) Park(ctx context.Context, _ int64) error {
	_, _, err := c.Health(ctx)
	return err
}

// Bind binds the Boot to a Sandbox.
func (c *Control) Bind(ctx context.Context, b sandbox.Binding) (waits bool, err error) {
	err = c.call(ctx, http.MethodPost, "/bind", b, &waits)
	return waits, err
}

// Ready waits until the release function of Guest.Wait is called, or for limit.
func (c *Control) Ready(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.call(ctx, http.MethodPost, "/ready", nil, nil)
}

// KillBiggest asks the Guest to kill the Process that uses most memory.
func (c *Control) KillBiggest(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/kill-biggest", nil, nil)
}

// Close frees idle connections.
func (c *Control) Close() { c.http.CloseIdleConnections() }

func (c *Control) call(ctx context.Context, method, path string, in, out any) error {
	var body strings.Builder
	if err := json.NewEncoder(&body).Encode(in); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+path, strings.NewReader(body.String()))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the guest does not answer").WithCause(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return answer(resp)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// answer returns an error with the Code of a failed response.
func answer(resp *http.Response) error {
	buf := make([]byte, 64)
	n, _ := resp.Body.Read(buf)
	text := strings.TrimSpace(string(buf[:n]))
	for _, code := range sandbox.Codes() {
		if text == string(code) {
			return sandbox.Errorf(code, "the guest says %s", code)
		}
	}
	return fmt.Errorf("the guest says %s", resp.Status)
}

// Control returns a client of the Guest of a Boot.
func (e *Engine) Control(id string) *Control {
	return NewControl(func(ctx context.Context, port uint16) (net.Conn, error) { return e.Dial(ctx, id, port) })
}
