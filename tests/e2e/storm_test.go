package e2e

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// depths counts a tenant's active, idle and paused sandboxes.
type depths struct{ Active, Idle, Paused int }

func depthsOf(t *testing.T, c *rig.Client) depths {
	t.Helper()
	var stats struct {
		Depths depths `json:"depths"`
	}
	c.Must(t, "GET", "/api/v1/sandbox/stats", nil, &stats)
	return stats.Depths
}

// One tenant resumes many sessions concurrently. All resume, and another tenant's create
// meanwhile does not wait for all of them.
func TestStormOfResumes(t *testing.T) {
	t.Parallel()
	srv := rig.Own(t, rig.Options{Pool: 1})
	many, few := srv.Client(t, "many"), srv.Client(t, "few")
	ids := make([]string, 10*runtime.NumCPU())
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			var s session
			err := many.Try("POST", "/api/v1/sessions", rig.Body{}, &s)
			if ids[i] = s.ID; err == nil {
				_, err = many.TryRun(s.ID, "bash", fmt.Sprintf("echo %d > /workspace/n", i), nil)
			}
			if err == nil {
				err = many.Try("POST", "/api/v1/sessions/"+s.ID+"/pause", rig.Body{}, nil)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := depthsOf(t, many); got != (depths{Paused: len(ids)}) {
		t.Errorf("paused, they are %+v", got)
	}
	var left atomic.Int64
	for _, id := range ids {
		left.Add(1)
		wg.Go(func() {
			if err := many.Try("POST", "/api/v1/sessions/"+id+"/resume", rig.Body{}, nil); err != nil {
				t.Error(err)
			}
			left.Add(-1)
		})
	}
	rig.Within(t, rig.Patience, "a queue of resumes", func() bool {
		return srv.Metric("cloud_sandbox_node_waiting_starts") >= float64(2*runtime.NumCPU())
	})
	other := create(t, few, rig.Body{"resources": rig.Body{"memory_mb": 640}}) // not a shape of the Pool
	if left.Load() == 0 {
		t.Error("one create of another waited for every resume")
	}
	few.Sh(t, other.ID, "true")
	wg.Wait()
	for i, id := range ids {
		if got := many.Sh(t, id, "cat /workspace/n"); got != fmt.Sprintln(i) {
			t.Errorf("session %d came back with %q", i, got)
		}
	}
	if got := depthsOf(t, many); got.Paused != 0 || got.Active+got.Idle != len(ids) { // the first may be idle again by now
		t.Errorf("resumed, they are %+v", got)
	}
	if n := srv.Metric(`cloud_sandbox_boot_duration_seconds_count{code="ok",step="queue"}`); n < float64(len(ids)) {
		t.Errorf("%v waits were measured, want at least %d", n, len(ids))
	}
}

// Many clients request more sandboxes than can start within the maximum wait. Refused
// clients retry after the given delay, and all succeed.
func TestCrowdComesBack(t *testing.T) {
	t.Parallel()
	srv := rig.Own(t, rig.Options{Env: []string{"POOL_MIN_SIZE=0", "POOL_MAX_SIZE=0", "START_WAIT_SECONDS=1"}})
	var refused atomic.Int64
	var wg sync.WaitGroup
	for tenant := range 4 {
		c := client.New(config.Client{URL: srv.URL, UserID: fmt.Sprintf("crowd-%d", tenant)})
		defer c.Close()
		c.Patience = 2 * rig.Patience
		c.Waits = func(time.Duration) { refused.Add(1) }
		for n := range 15 * runtime.NumCPU() {
			wg.Go(func() {
				r, err := c.Execute(t.Context(), client.ExecuteRequest{ExecuteRequest: v1.ExecuteRequest{Language: "bash", Code: fmt.Sprintf("echo %d", n)}})
				if want := fmt.Sprintf("%d\n", n); err != nil || r.Stdout != want {
					t.Errorf("%q instead of %q: %v", r.Stdout, want, err)
				}
			})
		}
	}
	wg.Wait()
	if refused.Load() == 0 {
		t.Error("nobody was refused, so nobody came back")
	}
}
