package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cloud-sandbox/cloud-sandbox"
	sessionv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1/sessionv1connect"
)

// manager is a session manager that counts its creates and imports.
type manager struct {
	sandbox.Sandboxes
	sandbox.BootEnds
	made     atomic.Int64
	onCreate atomic.Pointer[func() error]
}

func (m *manager) Create(context.Context, sandbox.TenantID, sandbox.CreateRequest) (sandbox.Sandbox, error) {
	m.made.Add(1)
	if do := m.onCreate.Load(); do != nil {
		return sandbox.Sandbox{}, (*do)()
	}
	return sandbox.Sandbox{ID: "i"}, nil
}

func (m *manager) ImportSnapshot(_ context.Context, _ sandbox.TenantID, _ sandbox.ImportRequest, file io.Reader) (sandbox.Snapshot, error) {
	m.made.Add(1)
	_, err := io.Copy(io.Discard, file)
	return sandbox.Snapshot{ID: "s"}, err
}

func (m *manager) ExportSnapshot(_ context.Context, _ sandbox.TenantID, _ string, _ bool, to io.Writer) error {
	m.made.Add(1)
	_, err := io.WriteString(to, "content")
	return err
}

// candidate is a process that can become leader.
type candidate struct {
	*server
	manager manager
	leads   atomic.Bool
	asked   atomic.Int64 // calls that came
	calls   atomic.Int64 // in progress
}

func candidates(t *testing.T, n int) (all []*candidate) {
	for range n {
		c := &candidate{}
		c.server = serve(t, SessionManager, LeaderService(func() (Manager, func()) {
			c.asked.Add(1)
			if !c.leads.Load() {
				return nil, nil
			}
			c.calls.Add(1)
			return &c.manager, func() { c.calls.Add(-1) }
		}))
		all = append(all, c)
	}
	return all
}

func TestCallsFollowTheLeader(t *testing.T) {
	all := candidates(t, 2)
	var at atomic.Pointer[string]
	var looked atomic.Int64
	lead := func(i int) {
		for j, c := range all {
			c.leads.Store(i == j)
		}
	}
	record := func(i int) { at.Store(&all[i].unix) }
	s := NewLeader(func(context.Context) (string, bool, error) { looked.Add(1); return *at.Load(), false, nil }, all[0].self(Gateway, ""))
	t.Cleanup(s.Close)
	create := func() error {
		_, err := s.Create(t.Context(), "t", sandbox.CreateRequest{})
		return err
	}

	lead(0)
	record(0)
	for range 10 {
		if err := create(); err != nil {
			t.Fatal(err)
		}
	}
	if n := looked.Load(); n > 3 {
		t.Errorf("it was looked up %d times", n)
	}
	lead(1)
	record(1)
	if err := create(); err != nil || all[1].manager.made.Load() != 1 {
		t.Errorf("after another one leads: %v", err)
	}

	// A call waits while there is no leader.
	lead(-1)
	var taken sync.WaitGroup
	taken.Go(func() {
		time.Sleep(3 * leadPause)
		lead(0)
		record(0)
	})
	if err := create(); err != nil || all[0].manager.made.Load() != 11 {
		t.Errorf("while no one leads: %v", err)
	}
	taken.Wait()

	// The same holds for transfers.
	lead(1)
	record(1)
	var out bytes.Buffer
	if err := s.ExportSnapshot(t.Context(), "t", "s", false, &out); err != nil || out.String() != "content" {
		t.Errorf("an export: %q, %v", out.String(), err)
	}
	if _, err := s.ImportSnapshot(t.Context(), "t", sandbox.ImportRequest{}, strings.NewReader("file")); err != nil {
		t.Errorf("an import: %v", err)
	}

	// An unreachable leader is replaced too.
	all[1].stop()
	// A call on a connection that the other end has just closed may have begun, and is not
	// repeated.
	s.Close()
	lead(0)
	record(0)
	if err := create(); err != nil {
		t.Errorf("after the leader's end: %v", err)
	}
	for i, c := range all {
		if n := c.calls.Load(); n != 0 {
			t.Errorf("%d calls of %d are in progress", n, i)
		}
	}
}

// A call that has begun is not retried. Neither a refused write nor a broken connection
// counts as the answer of a standby.
func TestCallsThatBeganAreNotRepeated(t *testing.T) {
	all := candidates(t, 2)
	var at atomic.Pointer[string]
	at.Store(&all[0].unix)
	s := NewLeader(func(context.Context) (string, bool, error) { return *at.Load(), false, nil }, all[0].self(Gateway, ""))
	t.Cleanup(s.Close)
	all[0].leads.Store(true)
	all[1].leads.Store(true)
	for name, fail := range map[string]func() error{
		"a refused write":     func() error { return sandbox.Errorf(sandbox.Unavailable, "over").WithCause(sandbox.ErrNotLeading) },
		"a broken connection": func() error { panic(http.ErrAbortHandler) },
	} {
		before := all[0].manager.made.Load()
		at.Store(&all[0].unix)
		s.mu.Lock()
		s.leader = nil
		s.mu.Unlock()
		onCreate := func() error {
			at.Store(&all[1].unix)
			return fail()
		}
		all[0].manager.onCreate.Store(&onCreate)
		_, err := s.Create(t.Context(), "t", sandbox.CreateRequest{})
		if sandbox.CodeOf(err) != sandbox.Unavailable || adviceOf(err) != 0 || all[0].manager.made.Load() != before+1 || all[1].manager.made.Load() != 0 {
			t.Errorf("%s: %v, %d calls, then %d", name, err, all[0].manager.made.Load()-before, all[1].manager.made.Load())
		}
	}
}

func TestStandby(t *testing.T) {
	all := candidates(t, 1)
	s := NewSandboxes(all[0].unix, all[0].self(Gateway, ""))
	t.Cleanup(s.Close)
	began := time.Now()
	_, err := s.Create(t.Context(), "t", sandbox.CreateRequest{})
	if !errors.Is(err, sandbox.Unavailable) || !errors.Is(err, sandbox.ErrStandby) || adviceOf(err) != awayAdvice || time.Since(began) < leadWait {
		t.Errorf("a create: %v after %v", err, time.Since(began))
	}
	if err := s.ExportSnapshot(t.Context(), "t", "s", false, io.Discard); !errors.Is(err, sandbox.ErrStandby) {
		t.Errorf("an export: %v", err)
	}
	// Clients of other protocols get the same code.
	for name, option := range map[string]connect.ClientOption{"gRPC-Web": connect.WithGRPCWeb(), "Connect": connect.WithProtoJSON()} {
		c := sessionv1connect.NewSessionServiceClient(http.DefaultClient, all[0].tcp, option)
		_, err := c.Create(t.Context(), connect.NewRequest(&sessionv1.CreateRequest{}))
		if connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Without a token the leader refuses the call as unauthenticated.
	all[0].leads.Store(true)
	c := sessionv1connect.NewSessionServiceClient(http.DefaultClient, all[0].tcp)
	if _, err := c.Create(t.Context(), connect.NewRequest(&sessionv1.CreateRequest{})); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("without a token: %v", err)
	}
}

// While the leader cannot be looked up, calls go to the last known leader. Without one
// they fail with Unavailable and may be repeated.
func TestLookUpFails(t *testing.T) {
	all := candidates(t, 1)
	all[0].leads.Store(true)
	var away atomic.Pointer[sandbox.Error]
	away.Store(sandbox.Errorf(sandbox.Unavailable, "away"))
	s := NewLeader(func(context.Context) (string, bool, error) {
		if err := away.Load(); err != nil {
			return "", false, err
		}
		return all[0].unix, false, nil
	}, all[0].self(Gateway, ""))
	t.Cleanup(s.Close)
	if _, err := s.Create(t.Context(), "t", sandbox.CreateRequest{}); !errors.Is(err, sandbox.Unavailable) || adviceOf(err) == 0 {
		t.Errorf("the first call: %v, to be repeated after %v", err, adviceOf(err))
	}
	away.Store(nil)
	if _, err := s.Create(t.Context(), "t", sandbox.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	away.Store(sandbox.Errorf(sandbox.Unavailable, "away"))
	s.mu.Lock()
	s.found = time.Time{} // long ago
	s.mu.Unlock()
	if _, err := s.Create(t.Context(), "t", sandbox.CreateRequest{}); err != nil {
		t.Errorf("with a leader known before: %v", err)
	}
}

// A call waits for the next leader when the last one has resigned and is gone, and fails
// soon when it may still lead.
func TestLeaderResignedAndGone(t *testing.T) {
	all := candidates(t, 1)
	all[0].leads.Store(true)
	gone := UnixAddress(filepath.Join(t.TempDir(), "gone.sock"))
	for _, over := range []bool{true, false} {
		began := time.Now()
		s := NewLeader(func(context.Context) (string, bool, error) {
			if !over || time.Since(began) < startWait+startWait/2 {
				return gone, over, nil
			}
			return all[0].unix, false, nil
		}, all[0].self(Gateway, ""))
		t.Cleanup(s.Close)
		_, err := s.Create(t.Context(), "t", sandbox.CreateRequest{})
		if over && err != nil || !over && !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("the term of the last leader is over: %v, the call ends with %v", over, err)
		}
	}
}

// A leader that has resigned is called once more at most, however long the next one takes.
func TestResignedLeaderIsLeftAlone(t *testing.T) {
	all := candidates(t, 2)
	all[1].leads.Store(true)
	var looked atomic.Int64
	s := NewLeader(func(context.Context) (string, bool, error) {
		if looked.Add(1) < 5 {
			return all[0].unix, true, nil
		}
		return all[1].unix, false, nil
	}, all[0].self(Gateway, ""))
	t.Cleanup(s.Close)
	if _, err := s.Create(t.Context(), "t", sandbox.CreateRequest{}); err != nil || all[0].asked.Load() != 1 {
		t.Errorf("%v, after %d calls of the leader that has resigned", err, all[0].asked.Load())
	}
}

func TestReadySaysWhoLeads(t *testing.T) {
	var leads bool
	for _, tt := range []struct {
		leads func() bool
		lead  bool
		want  string
	}{
		{nil, false, ""},
		{func() bool { return leads }, false, "standby"},
		{func() bool { return leads }, true, "leader"},
	} {
		leads = tt.lead
		s := &Server{Role: SessionManager, Keys: testKeys(t), Leads: tt.leads, Registry: prometheus.NewRegistry(), Ready: func(context.Context) []string { return nil }}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", "/ready", nil))
		var ready struct {
			Ready bool
			Lead  string
		}
		if err := json.Unmarshal(w.Body.Bytes(), &ready); err != nil || w.Code != 200 || !ready.Ready || ready.Lead != tt.want {
			t.Errorf("%d %s, want %q", w.Code, w.Body, tt.want)
		}
	}
}

// A Node refuses the calls of a former leader after the first call of the next one.
func TestNodesRefuseFormerLeaders(t *testing.T) {
	c := &carrier{export: func(io.Writer) error { return nil }}
	s := serve(t, Node, NodeService(c, nil))
	of := func(epoch int64) *Nodes {
		self := s.self(SessionManager, "")
		self.Epoch = epoch
		n := NewNodes(func(context.Context) ([]sandbox.NodeRecord, error) {
			return []sandbox.NodeRecord{{Name: "n", Address: s.unix}}, nil
		}, self)
		t.Cleanup(n.Close)
		return n
	}
	former, next, other := of(3), of(5), of(0)
	export := func(n *Nodes) error { return n.ExportSaved(t.Context(), "n", "s", false, io.Discard) }
	for range 2 {
		if err := export(former); err != nil {
			t.Errorf("the leader: %v", err)
		}
	}
	_ = next.Thaw(t.Context(), "n", sandbox.BootRef{Tenant: "t"}) // its result does not matter
	if err := export(former); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("the former leader: %v", err)
	}
	if err := former.Thaw(t.Context(), "n", sandbox.BootRef{Tenant: "t"}); !errors.Is(err, sandbox.Unavailable) || !strings.Contains(err.Error(), "another session-manager leads") {
		t.Errorf("a call of the former leader: %v", err)
	}
	for name, n := range map[string]*Nodes{"the next leader": next, "a caller that does not lead": other} {
		if err := export(n); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
