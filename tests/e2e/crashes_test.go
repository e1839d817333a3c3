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

// mortal is a server that dies at a step.
type mortal struct {
	*rig.Server
	c     *rig.Client
	file  string // says at which; see internal/serve/failpoint
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
	// Without a Pool: nothing is done that nobody asked for.
	m := &mortal{file: file, Server: rig.Own(t, rig.Options{
		Env: []string{"POOL_MIN_SIZE=0", "POOL_MAX_SIZE=0", "CLOUD_SANDBOX_DEV_FAILPOINT=" + file},
	})}
	m.c = m.Client(t, "mortal")
	return m
}

// dieAt has the server die before the given step of what comes.
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

// died waits for the server's death, if it dies, and starts another; otherwise it
// reports that there was no such step. What is done after the answer is waited for
// a moment.
func (m *mortal) died(t *testing.T, answered bool) bool {
	t.Helper()
	if answered {
		select {
		case <-m.Done():
		case <-time.After(300 * time.Millisecond):
		}
		if os.Remove(m.file) == nil { // before the server took it: it cannot die any more
			return false
		}
	}
	waitDone(t, m.Server)
	if err := m.Launch(); err != nil {
		t.Fatal(err)
	}
	return true
}

// live are the sessions that have not ended, by ID.
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

// wrong says what does not agree: no sentry without a session that runs, none
// twice, no state without a snapshot and none lost, and the quota counts what
// there is.
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

// agree waits until all agrees.
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

// holds fails the test unless a session goes on with one of the values.
func (m *mortal) holds(t *testing.T, id, what string, values ...string) {
	t.Helper()
	if got := strings.TrimSpace(output(t, m.c, id, "python", "print(x)")); !slices.Contains(values, got) {
		t.Errorf("%s: it holds %q, want one of %q", what, got, values)
	}
}

// The server is killed before each step of what changes a session, in turn; the
// next one finishes or undoes what was begun.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	const first, now = "first", "now"
	set := func(t *testing.T, m *mortal, id, value string) {
		output(t, m.c, id, "python", fmt.Sprintf("x = %q", value))
	}
	for name, op := range map[string]struct {
		ready func(t *testing.T, m *mortal, id string) // of what runs, before each try; nil: nothing
		path  string                                   // of the session, that is posted to
		body  rig.Body
		want  []string // what it may hold after a death
	}{
		"pause":  {nil, "/pause", rig.Body{}, []string{now}},
		"resume": {func(t *testing.T, m *mortal, id string) { act(t, m.c, id, "pause", rig.Body{}) }, "/resume", rig.Body{}, []string{now}},
		"fork":   {nil, "/fork", rig.Body{"count": 1}, []string{now}},
		"rollback": {func(t *testing.T, m *mortal, id string) { // of what is paused: pauses are above
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
				m.agree(t, "before") // what is still done counts as steps too
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
					if id != s.ID { // a fork
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

// enough fails the test unless a change had steps.
func enough(t *testing.T, steps int) {
	t.Helper()
	t.Logf("%d steps", steps-1)
	if steps < 3 {
		t.Errorf("it had %d steps", steps-1)
	}
}

// killCreates kills the server at each step of a create, and then at each of the
// end of what is running or paused.
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
		for id := range m.live(t) { // it is whole, or its name is free
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
