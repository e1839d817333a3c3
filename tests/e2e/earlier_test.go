package e2e

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// beforeRollOut are Sandboxes, at least one on each Node, from before the first program of
// the cluster was replaced.
var beforeRollOut struct {
	c   *rig.Client
	all []ticks
}

// rollOut replaces the programs of one Machine of each role, in the order of the
// documentation. The first session-manager migrates the database while all others run the
// earlier version. Sandboxes of before run on, and requests through the other gateway
// succeed, also creates.
func rollOut(t testing.TB, f *rig.Fleet) {
	c := f.Gateways().Client(t, "rolled")
	beforeRollOut.c = c
	for _, id := range onBothNodes(t, f, c, rig.Body{"timeout_seconds": 3600}) {
		beforeRollOut.all = append(beforeRollOut.all, newTicks(t, c, id))
	}
	stays := &rig.Client{URL: f.Machine(rig.FleetGatewayA).URL, HTTP: c.HTTP, Token: c.Token}
	var near string // on the Node that is not replaced
	for _, s := range beforeRollOut.all {
		if _, here := f.Machine(rig.FleetHome).Runs(s.id); here {
			near = s.id
		}
	}
	stop := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() {
		var worst, worstCreate time.Duration
		creates, refused := 0, 0
		for {
			select {
			case <-stop:
				t.Logf("while programs were replaced: %d sandboxes created and ended in at most %v, %d calls refused with 503 and repeated; executions took at most %v", creates, worstCreate, refused, worst)
				return
			default:
			}
			began := time.Now()
			if r, err := stays.TryRun(near, "bash", "echo works", nil); err != nil || r.Stdout != "works\n" {
				t.Errorf("an execution while programs are replaced: %s, %v", r, err)
			}
			worst = max(worst, time.Since(began))
			began = time.Now()
			n, err := createSoon(stays)
			if err != nil {
				t.Errorf("a create while programs are replaced: %v", err)
			}
			worstCreate, creates, refused = max(worstCreate, time.Since(began)), creates+1, refused+n
		}
	})
	defer func() { close(stop); load.Wait() }()
	for _, name := range []string{rig.FleetManagerB, rig.FleetSchedulerB, rig.FleetGatewayB, rig.FleetNode} {
		f.Upgrade(t, name)
		for _, s := range beforeRollOut.all {
			for _, gateway := range []string{rig.FleetGatewayA, rig.FleetGatewayB} {
				rig.Within(t, rig.Patience, name+" runs the present version, and the port of "+s.id+" answers", func() bool {
					_, err := s.at(f.Machine(gateway).URL)
					return err == nil
				})
			}
		}
	}
	t.Cleanup(func() { rollOutRest(t, f) })
}

// rollOutRest replaces the programs of the other Machines, after all tests. A Sandbox of
// before works afterwards.
func rollOutRest(t testing.TB, f *rig.Fleet) {
	c := f.Gateways().Client(t, "rest")
	s := newTicks(t, c, c.Create(t, rig.Body{"timeout_seconds": 1800}).ID)
	for _, name := range []string{rig.FleetManager, rig.FleetScheduler, rig.FleetGatewayA, rig.FleetHome} {
		f.Upgrade(t, name)
	}
	s.remembers(t)
	if _, err := createSoon(c); err != nil {
		t.Errorf("a create after the last program was replaced: %v", err)
	}
}

// presentLeads lets the session-manager of the present version lead. One of the earlier
// version that is killed does not start again: it does not know the schema.
func presentLeads(t testing.TB, f *rig.Fleet) {
	if !rig.HasEarlier() {
		return
	}
	if leader, _ := f.Lead(t); leader.IsEarlier() {
		f.HandOver(t)
	}
}

// keepsTemplates skips a test that removes Templates while the Node that keeps them runs
// the earlier version.
func keepsTemplates(t testing.TB) {
	t.Helper()
	rig.LacksEarlier(t, "its node opens the database before it removes a template, and does not know the schema")
}

// createSoon creates and ends a Sandbox. A call that is refused with 503 is repeated for
// up to 20 s, and counted: an end fails while the programs of the Sandbox's Node are
// replaced.
func createSoon(c *rig.Client) (refused int, err error) {
	late := time.Now().Add(20 * time.Second)
	again := func(err error) bool {
		if err == nil || !strings.Contains(err.Error(), "answered 503") || time.Now().After(late) {
			return false
		}
		refused++
		time.Sleep(100 * time.Millisecond)
		return true
	}
	var sb rig.Sandbox
	for err = c.Try("POST", "/api/v1/sessions", littleSession(""), &sb); again(err); {
		err = c.Try("POST", "/api/v1/sessions", littleSession(""), &sb)
	}
	if err != nil {
		return refused, err
	}
	for err = c.Try("DELETE", "/api/v1/sessions/"+sb.ID, nil, nil); again(err); {
		err = c.Try("DELETE", "/api/v1/sessions/"+sb.ID, nil, nil)
	}
	return refused, err
}

// Both versions serve, whichever of them leads, and Sandboxes of before have lost nothing.
// It runs before the other tests of the cluster, which then use the present leader.
func TestEarlierVersionBeside(t *testing.T) {
	f := aCluster(t)
	if !rig.HasEarlier() {
		t.Skip("no earlier version runs: see make test-upgrade")
	}
	leader := f.HandOver(t)
	if !leader.IsEarlier() {
		t.Fatalf("%s leads, and is of the present version", leader.Name)
	}
	for _, s := range beforeRollOut.all {
		s.remembers(t)
	}
	c := f.Gateways().Client(t, "beside")
	everyday(t, f, c)
	if leader = f.HandOver(t); leader.IsEarlier() {
		t.Fatalf("%s leads, and is of the earlier version", leader.Name)
	}
	everyday(t, f, c)
	for _, s := range beforeRollOut.all {
		s.remembers(t)
		beforeRollOut.c.Must(t, "DELETE", "/api/v1/sessions/"+s.id, nil, nil)
	}
	own, err := rig.Command(filepath.Join(filepath.Dir(f.Machine(rig.FleetNode).Bin), "node"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimPrefix(strings.TrimSpace(string(own)), "node version ")
	resp, err := http.Get(leader.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for node, version := range map[string]string{rig.FleetHome: "unknown", rig.FleetNode: version} {
		if want := fmt.Sprintf("cloud_sandbox_node_info{node=%q,version=%q} 1\n", node, version); !strings.Contains(string(metrics), want) {
			t.Errorf("the leader does not show %s", want)
		}
	}
}

// everyday uses a Sandbox on each Node: code, files, a port, pause and resume, a snapshot
// and a rollback to it, a fork, and an end.
func everyday(t *testing.T, f *rig.Fleet, c *rig.Client) {
	t.Helper()
	for _, id := range onBothNodes(t, f, c, rig.Body{"timeout_seconds": 1800}) {
		s := newTicks(t, c, id)
		session := "/api/v1/sessions/" + id
		c.Must(t, "PUT", rig.Files("", id, "/workspace/file"), []byte("first"), nil)
		c.Must(t, "POST", session+"/pause", rig.Body{}, nil)
		c.Must(t, "POST", session+"/resume", rig.Body{}, nil)
		s.remembers(t)
		var snap saved
		c.Must(t, "POST", session+"/snapshots", rig.Body{}, &snap)
		c.Must(t, "PUT", rig.Files("", id, "/workspace/file"), []byte("second"), nil)
		c.Must(t, "POST", session+"/rollback", rig.Body{"snapshot_id": snap.ID}, nil)
		if got := c.Sh(t, id, "cat /workspace/file"); got != "first" {
			t.Errorf("after the rollback the file has %q", got)
		}
		s.remembers(t)
		var made struct{ Forks []rig.Sandbox }
		c.Must(t, "POST", session+"/fork", rig.Body{"count": 1}, &made)
		ticks{made.Forks[0].ID, c}.remembers(t)
		c.Must(t, "DELETE", "/api/v1/sessions/"+made.Forks[0].ID, nil, nil)
		c.Must(t, "DELETE", session, nil, nil)
		if got := c.Get(t, id); got.State != "ended" {
			t.Errorf("%s is %s", id, got.State)
		}
		c.Must(t, "DELETE", "/api/v1/snapshots/"+snap.ID, nil, nil)
	}
}
