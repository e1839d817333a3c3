package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// mortal is a server that dies at a chosen step.
type mortal struct {
	*rig.Server
	c     *rig.Client
	file  string // names the step; see internal/serve/failpoint
	words int
}

func newMortal(t *testing.T) *mortal {
	dir, err := os.MkdirTemp("/var/tmp", "cloud-sandbox-mortal-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, serverUID, serverUID); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "die-at")
	// No Pool, so that no background work counts as steps.
	m := &mortal{file: file, Server: rig.Own(t, rig.Options{
		Env: []string{"POOL_MIN_SIZE=0", "POOL_MAX_SIZE=0", "CLOUD_SANDBOX_DEV_FAILPOINT=" + file},
	})}
	m.c = m.Client(t, "mortal")
	return m
}

// dieAt makes the server die before the given step of the next operation.
func (m *mortal) dieAt(t *testing.T, step int) {
	t.Helper()
	m.words++
	half := m.file + ".half"
	err := os.WriteFile(half, fmt.Appendf(nil, "word%d %d", m.words, step), 0o644)
	if err == nil {
		err = os.Rename(half, m.file)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// died waits for the server's death and starts it again. If the operation had no such
// step, it returns false. Steps may follow the answer, so died waits for them briefly.
func (m *mortal) died(t *testing.T, answered bool) bool {
	t.Helper()
	if answered {
		select {
		case <-m.Done():
		case <-time.After(300 * time.Millisecond):
		}
		if os.Remove(m.file) == nil { // the server did not reach the step and can no longer die
			return false
		}
	}
	waitDone(t, m.Server)
	if err := m.Launch(); err != nil {
		t.Fatal(err)
	}
	return true
}

// live returns the sessions that have not ended, by ID.
func (m *mortal) live(t *testing.T) map[string]session {
	t.Helper()
	var page struct {
		Sessions []session `json:"sessions"`
	}
	m.c.Must(t, "GET", "/api/v1/sessions", nil, &page)
	all := map[string]session{}
	for _, s := range page.Sessions {
		all[s.ID] = s
	}
	return all
}

// wrong returns the first inconsistency. Each running session must have exactly one
// sentry, each snapshot exactly one saved state, and the quota must count the live
// sessions.
func (m *mortal) wrong(t *testing.T) string {
	t.Helper()
	var quota struct {
		Used map[string]float64 `json:"used"`
	}
	var snapshots struct {
		Snapshots []saved `json:"snapshots"`
	}
	m.c.Must(t, "GET", "/api/v1/quota", nil, &quota)
	m.c.Must(t, "GET", "/api/v1/snapshots", nil, &snapshots)
	running, live := 0, m.live(t)
	for _, s := range live {
		switch s.State {
		case "running":
			running++
		case "paused":
		default:
			return fmt.Sprintf("%s is %s", s.ID, s.State)
		}
	}
	var want []string
	for _, s := range snapshots.Snapshots {
		want = append(want, s.ID)
	}
	there := slices.DeleteFunc(states(t, m.Server), func(name string) bool { return !strings.HasPrefix(name, "s") })
	slices.Sort(want)
	slices.Sort(there)
	switch sentries := m.Processes(rig.Sentry); {
	case len(sentries) != running:
		return fmt.Sprintf("%d sessions run, and the sentries %v", running, sentries)
	case !slices.Equal(want, there):
		return fmt.Sprintf("the snapshots are %v, and the states %v", want, there)
	case quota.Used["sandboxes"] != float64(len(live)):
		return fmt.Sprintf("the quota counts %v of %d sessions", quota.Used["sandboxes"], len(live))
	}
	return ""
}

// agree waits until wrong finds no inconsistency.
func (m *mortal) agree(t *testing.T, what string) {
	t.Helper()
	last := ""
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if last = m.wrong(t); last == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %s", what, last)
		}
	}
}

// holds fails the test unless x in a session has one of the values.
func (m *mortal) holds(t *testing.T, id, what string, values ...string) {
	t.Helper()
	if got := strings.TrimSpace(output(t, m.c, id, "python", "print(x)")); !slices.Contains(values, got) {
		t.Errorf("%s: it holds %q, want one of %q", what, got, values)
	}
}

// The server is killed before each step of each operation that changes a session. The
// next server completes the operation or rolls it back.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	const first, now = "first", "now"
	set := func(t *testing.T, m *mortal, id, value string) {
		output(t, m.c, id, "python", fmt.Sprintf("x = %q", value))
	}
	for name, op := range map[string]struct {
		ready func(t *testing.T, m *mortal, id string) // prepares the session before each try; nil: no preparation
		path  string                                   // of the session; the operation is a POST to it
		body  rig.Body
		want  []string // allowed values of x after a crash
	}{
		"pause":  {nil, "/pause", rig.Body{}, []string{now}},
		"resume": {func(t *testing.T, m *mortal, id string) { act(t, m.c, id, "pause", rig.Body{}) }, "/resume", rig.Body{}, []string{now}},
		"fork":   {nil, "/fork", rig.Body{"count": 1}, []string{now}},
		"rollback": {func(t *testing.T, m *mortal, id string) { // of a paused session: "pause" covers pauses
			set(t, m, id, now)
			act(t, m.c, id, "pause", rig.Body{})
		}, "/rollback", rig.Body{"snapshot_id": first}, []string{first, now}},
		"create and delete": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMortal(t)
			if op.path == "" {
				m.killCreates(t)
				return
			}
			s := create(t, m.c, rig.Body{})
			set(t, m, s.ID, first)
			if name == "rollback" {
				m.c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/snapshots", rig.Body{"name": first}, nil)
			}
			set(t, m, s.ID, now)
			for step := 1; ; step++ {
				if op.ready != nil {
					op.ready(t, m, s.ID)
				}
				m.agree(t, "before") // pending work would count as steps
				m.dieAt(t, step)
				status, raw, err := m.c.Do("POST", "/api/v1/sessions/"+s.ID+op.path, op.body)
				if err == nil && status >= 300 {
					t.Fatalf("step %d: %d %s", step, status, raw)
				}
				died := m.died(t, err == nil)
				what := fmt.Sprintf("step %d", step)
				m.agree(t, what)
				m.holds(t, s.ID, what, op.want...)
				for id := range m.live(t) {
					if id != s.ID { // it is a fork
						m.holds(t, id, what, op.want...)
						m.c.Must(t, "DELETE", "/api/v1/sessions/"+id, nil, nil)
					}
				}
				if !died {
					enough(t, step)
					break
				}
			}
		})
	}
}

// enough fails the test if an operation had fewer than two steps.
func enough(t *testing.T, steps int) {
	t.Helper()
	t.Logf("%d steps", steps-1)
	if steps < 3 {
		t.Errorf("it had %d steps", steps-1)
	}
}

// killCreates kills the server at each step of a create, and then at each step of a
// delete of a running and of a paused session.
func (m *mortal) killCreates(t *testing.T) {
	for step := 1; ; step++ {
		m.agree(t, "before")
		m.dieAt(t, step)
		status, raw, err := m.c.Do("POST", "/api/v1/sessions", rig.Body{"name": "new"})
		if err == nil && status != http.StatusCreated {
			t.Fatalf("step %d: %d %s", step, status, raw)
		}
		died := m.died(t, err == nil)
		m.agree(t, fmt.Sprintf("create, step %d", step))
		for id := range m.live(t) { // the session works, or its name is free
			m.c.Sh(t, id, "true")
			m.c.Must(t, "DELETE", "/api/v1/sessions/new", nil, nil)
		}
		if !died {
			enough(t, step)
			break
		}
	}
	for _, paused := range []bool{false, true} {
		for step := 1; ; step++ {
			s := create(t, m.c, rig.Body{"name": "new"})
			if paused {
				act(t, m.c, s.ID, "pause", rig.Body{})
			}
			m.agree(t, "before")
			m.dieAt(t, step)
			status, raw, err := m.c.Do("DELETE", "/api/v1/sessions/"+s.ID, nil)
			if err == nil && status >= 300 {
				t.Fatalf("step %d: %d %s", step, status, raw)
			}
			died := m.died(t, err == nil)
			m.agree(t, fmt.Sprintf("delete, step %d", step))
			if _, there := m.live(t)[s.ID]; there && step > 1 {
				t.Errorf("step %d: what was to end lives", step)
			} else if there {
				m.c.Must(t, "DELETE", "/api/v1/sessions/"+s.ID, nil, nil)
			}
			if !died {
				enough(t, step)
				break
			}
		}
	}
}
