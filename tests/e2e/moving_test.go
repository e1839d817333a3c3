package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1/sandboxv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// mover is an auto-resuming Sandbox with a server on a port, and the clients that call
// it.
type mover struct {
	c         *rig.Client
	g         sandboxv1connect.SandboxServiceClient
	id, token string
}

func newMover(t *testing.T, name string) *mover {
	transport := &http.Transport{MaxIdleConnsPerHost: 8}
	t.Cleanup(transport.CloseIdleConnections)
	c := shared.Server(t).Client(t, name)
	c.HTTP = &http.Client{Transport: transport, Timeout: 10 * time.Minute} // E2B's API is not in the contract
	m := &mover{c: c, g: grpcClient(t, c)}
	var sb struct{ SandboxID, EnvdAccessToken string }
	c.Must(t, "POST", "/v2/sandboxes", rig.Body{"templateID": "base", "timeout": 600, "autoPause": true, "autoResume": rig.Body{"enabled": true}}, &sb)
	m.id, m.token = sb.SandboxID, sb.EnvdAccessToken
	t.Cleanup(func() { _, _, _ = c.Do("DELETE", "/sandboxes/"+m.id, nil) })
	c.Must(t, "POST", "/api/v1/processes", rig.Body{"sandbox_id": m.id, "background": true, "command": "exec python3 -m http.server 8000"}, nil)
	rig.Within(t, rig.Patience, "an answer of its server", func() bool { return m.get("8000-"+m.id+".localhost") == nil })
	return m
}

// get sends a request to a port of the Sandbox.
func (m *mover) get(host string, header ...string) error {
	req, err := http.NewRequest("GET", m.c.URL+"/", nil)
	if err != nil {
		return err
	}
	if host != "" {
		req.Host = host
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := m.c.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 500 {
		err = fmt.Errorf("the port answered %d: %s", resp.StatusCode, raw)
	}
	return err
}

// doors returns the requests that succeed for both running and paused Sandboxes, and so
// also during a transition. A refusal that E2B's contract requires for one state is no
// failure.
func (m *mover) doors() map[string]func() error {
	post := func(path string, body rig.Body) func() error {
		return func() error { return m.c.Try("POST", path, body, nil) }
	}
	settled := func(ask func() error, state string) func() error {
		return func() error {
			err := ask()
			if err != nil && strings.Contains(err.Error(), `is `+state+`"`) {
				return nil
			}
			return err
		}
	}
	rest, e2b := "/api/v1/sessions/"+m.id, "/sandboxes/"+m.id
	return map[string]func() error{
		"resume":        post(rest+"/resume", rig.Body{}),
		"timeout":       post(rest+"/timeout", rig.Body{"timeout_seconds": 600}),
		"touch":         post(rest+"/touch", rig.Body{}),
		"snapshot":      post(rest+"/snapshots", rig.Body{}),
		"update":        func() error { return m.c.Try("PATCH", rest, rig.Body{"metadata": rig.Body{"a": "b"}}, nil) },
		"fork":          m.fork,
		"Resume":        m.resumeByGRPC,
		"E2B connect 1": post(e2b+"/connect", rig.Body{"timeout": 300}),
		"E2B connect 2": post("/v2"+e2b+"/connect", rig.Body{"timeout": 300}),
		"E2B resume":    settled(post(e2b+"/resume", rig.Body{"timeout": 300}), "running"),
		"E2B timeout":   settled(post(e2b+"/timeout", rig.Body{"timeout": 300}), "paused"),
		"E2B refresh":   post(e2b+"/refreshes", rig.Body{"duration": 300}),
		"E2B network":   settled(func() error { return m.c.Try("PUT", e2b+"/network", rig.Body{}, nil) }, "paused"),
		"E2B snapshot":  post(e2b+"/snapshots", rig.Body{}),
		"port":          func() error { return m.get("8000-" + m.id + ".localhost") },
		"port by header": func() error {
			return m.get("", "E2b-Sandbox-Id", m.id, "E2b-Sandbox-Port", "8000")
		},
		"envd": func() error {
			return m.get("", "E2b-Sandbox-Id", m.id, "E2b-Sandbox-Port", "49983", "X-Access-Token", m.token)
		},
	}
}

func (m *mover) resumeByGRPC() error {
	ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
	defer cancel()
	_, err := m.g.Resume(ctx, connect.NewRequest(&sandboxv1.ResumeRequest{SandboxId: m.id}))
	return err
}

func (m *mover) fork() error {
	var reply struct {
		Forks []struct {
			ID    string `json:"session_id"`
			Error any    `json:"error"`
		} `json:"forks"`
		Failed int `json:"failed"`
	}
	err := m.c.Try("POST", "/api/v1/sessions/"+m.id+"/fork", rig.Body{}, &reply)
	for _, f := range reply.Forks {
		_, _, _ = m.c.Do("DELETE", "/api/v1/sessions/"+f.ID, nil)
	}
	if err == nil && reply.Failed > 0 {
		err = fmt.Errorf("forked %+v", reply)
	}
	return err
}

// state returns the Sandbox's state as an API path reports it.
func (m *mover) state(path string) string {
	var s struct {
		State string `json:"state"`
	}
	_ = m.c.Try("GET", path, nil, &s)
	return s.State
}

// A request during a pause or resume waits for the transition, in every API and at any
// moment.
func TestEveryDoorWaitsForAPause(t *testing.T) {
	t.Parallel()
	const rounds, clients = 12, 4
	m := newMover(t, "waits")
	doors := m.doors()
	// A pause may interrupt an execution, so executions are only sent once the pause is
	// reported.
	later := map[string]func() error{"execute": func() error {
		var r rig.Result
		err := m.c.Try("POST", "/api/v1/execute", rig.Body{"sandbox_id": m.id, "language": "bash", "code": "true"}, &r)
		if err == nil && r.Status != "ok" {
			err = fmt.Errorf("executed: %s", r)
		}
		return err
	}}
	for range rounds {
		paused := make(chan error, 1)
		over := make(chan struct{})
		go func() {
			defer close(over)
			paused <- m.c.Try("POST", "/sandboxes/"+m.id+"/pause", rig.Body{}, nil)
		}()
		var asking sync.WaitGroup
		for range clients {
			asking.Go(func() {
				way := rand.IntN(4)
				ways := doors
				switch way {
				case 0:
					time.Sleep(rand.N(300 * time.Millisecond)) // at a random moment
				case 1:
					m.await(over, "/sandboxes/"+m.id, "paused")
					ways = both(doors, later)
				case 2:
					m.await(over, "/api/v1/sessions/"+m.id, "paused")
					ways = both(doors, later)
				case 3:
					m.await(over, "/api/v1/sessions/"+m.id, "pausing")
				}
				names := make([]string, 0, len(ways))
				for name := range ways {
					names = append(names, name)
				}
				slices.Sort(names)
				name := names[rand.IntN(len(names))]
				if err := ways[name](); err != nil {
					t.Errorf("%s, way %d: %v", name, way, err)
				}
			})
		}
		asking.Wait()
		if err := <-paused; err != nil {
			t.Errorf("the pause: %v", err)
		}
		if err := m.resumeByGRPC(); err != nil {
			t.Fatal(err)
		}
	}
}

// await polls an API path until it reports state, or over is closed.
func (m *mover) await(over <-chan struct{}, path, state string) {
	for m.state(path) != state {
		select {
		case <-over:
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func both(a, b map[string]func() error) map[string]func() error {
	all := map[string]func() error{}
	for _, doors := range []map[string]func() error{a, b} {
		for name, ask := range doors {
			all[name] = ask
		}
	}
	return all
}

// Concurrent pauses all answer once the Sandbox is paused. A delete during a pause ends
// the Sandbox.
func TestPausesAtOnce(t *testing.T) {
	t.Parallel()
	m := newMover(t, "pauses")
	for range 3 {
		var asking sync.WaitGroup
		for i, path := range []string{"/api/v1/sessions/" + m.id + "/pause", "/sandboxes/" + m.id + "/pause", "/sandboxes/" + m.id + "/pause"} {
			asking.Go(func() {
				time.Sleep(rand.N(200 * time.Millisecond))
				status, raw, err := m.c.Do("POST", path, rig.Body{})
				is409 := i > 0 && status == http.StatusConflict && strings.Contains(string(raw), `is paused"`) // E2B's answer for a paused sandbox
				if err != nil || status >= 300 && !is409 {
					t.Errorf("%s answered %d %s, %v", path, status, raw, err)
				}
				if got := m.state("/api/v1/sessions/" + m.id); got != "paused" {
					t.Errorf("after %s it is %s", path, got)
				}
			})
		}
		asking.Wait()
		if err := m.resumeByGRPC(); err != nil {
			t.Fatal(err)
		}
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		status, raw, err := m.c.Do("POST", "/api/v1/sessions/"+m.id+"/pause", rig.Body{})
		if err != nil || status >= 500 {
			t.Errorf("a pause beside a delete answered %d %s, %v", status, raw, err)
		}
	})
	asking.Go(func() {
		time.Sleep(rand.N(200 * time.Millisecond))
		if err := m.c.Try("DELETE", "/api/v1/sessions/"+m.id, nil, nil); err != nil {
			t.Errorf("a delete beside a pause: %v", err)
		}
	})
	asking.Wait()
	var s rig.Sandbox
	_, raw, _ := m.c.Do("GET", "/api/v1/sessions/"+m.id, nil)
	if err := json.Unmarshal(raw, &s); err != nil || s.Cause() != "released" {
		t.Errorf("it is %s, %v", raw, err)
	}
}
