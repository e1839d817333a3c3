package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// lines collects log lines.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// find returns the line with a message for a method, or nil.
func (l *lines) find(t *testing.T, msg, method string) map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := json.NewDecoder(bytes.NewReader(l.buf.Bytes())); d.More(); {
		var line map[string]any
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if line["msg"] == msg && line[telemetry.KeyMethod] == method {
			return line
		}
	}
	return nil
}

// A call carries the ID of its client's request and logs it. A call without a request ID
// is not logged at info level.
func TestRequestsPassThrough(t *testing.T) {
	var seen string
	log := &lines{}
	s := prepare(t, Scheduler, SchedulerService(placement(func(ctx context.Context) ([]string, error) {
		seen = telemetry.RequestOf(ctx)
		return nil, sandbox.Errorf(sandbox.Exhausted, "no node has room")
	})))
	s.log = telemetry.NewLogger(log, slog.LevelInfo, false)
	s.start(t)
	const method = "/cloudsandbox.scheduler.v1.SchedulerService/Place"
	for _, address := range []string{s.unix, s.tcp} {
		p := NewPlacement(address, s.self(SessionManager, ""))
		defer p.Close()
		if _, err := p.Place(t.Context(), sandbox.BootNeeds{}); sandbox.CodeOf(err) != sandbox.Exhausted {
			t.Fatal(err)
		}
		if line := log.find(t, "call", method); seen != "" || line != nil {
			t.Errorf("no request, but %q, %v", seen, line)
		}
		if _, err := p.Place(telemetry.WithRequest(t.Context(), "r-1"), sandbox.BootNeeds{}); sandbox.CodeOf(err) != sandbox.Exhausted {
			t.Fatal(err)
		}
		line := log.find(t, "call", method)
		if seen != "r-1" || line[telemetry.KeyRequest] != "r-1" || line[telemetry.KeyCaller] != "session-manager" || line[telemetry.KeyCode] != "exhausted" {
			t.Errorf("seen %q, line %v", seen, line)
		}
		log.buf.Reset()
	}
}

// A dial carries a valid request ID too.
func TestRequestsOfDials(t *testing.T) {
	seen := make(chan string, 1)
	s := serve(t, Node, NodeService(dialed{dial: func(ctx context.Context) (net.Conn, error) {
		seen <- telemetry.RequestOf(ctx)
		return nil, sandbox.Errorf(sandbox.NotFound, "the boot is not here")
	}}, nil))
	n := NewNodes(func(context.Context) ([]sandbox.NodeRecord, error) {
		return []sandbox.NodeRecord{{Name: "n", Address: s.unix}}, nil
	}, s.self(Gateway, ""))
	defer n.Close()
	for _, id := range []string{"r-2", "not harmless\"", ""} {
		_, err := n.Dial(telemetry.WithRequest(t.Context(), id), "n", sandbox.BootRef{Tenant: "t"}, 1)
		if sandbox.CodeOf(err) != sandbox.NotFound {
			t.Fatal(err)
		}
		if got := <-seen; got != id && id == "r-2" || got != "" && id != "r-2" {
			t.Errorf("%q arrives as %q", id, got)
		}
	}
}

// dialed implements only Dial of Nodes.
type dialed struct {
	sandbox.Nodes
	dial func(context.Context) (net.Conn, error)
}

func (d dialed) Dial(ctx context.Context, _ string, _ sandbox.BootRef, _ uint16) (net.Conn, error) {
	return d.dial(ctx)
}
