package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// Concurrent creates succeed only up to the quota. A raised quota admits more.
func TestQuota(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{"CLOUD_SANDBOX_QUOTA=sandboxes=2,memory_mb=4096,session_minutes=60"}})
	c := s.Client(t, "bounded")
	var in, out atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			status, raw, err := c.Do("POST", "/api/v1/sessions", rig.Body{"resources": rig.Body{"memory_mb": 128, "disk_mb": 64}})
			switch {
			case err != nil:
				t.Error(err)
			case status == http.StatusCreated:
				in.Add(1)
			case status == http.StatusTooManyRequests && strings.Contains(string(raw), "2 sandboxes"):
				out.Add(1)
			default:
				t.Errorf("%d %s", status, raw)
			}
		})
	}
	all.Wait()
	if in.Load() != 2 || out.Load() != 6 {
		t.Errorf("%d got in, %d did not", in.Load(), out.Load())
	}
	if n := s.Metric("cloud_sandbox_quota_refusals_total"); n != 6 {
		t.Errorf("%v refusals are counted", n)
	}
	var told struct {
		Limits, Used map[string]float64
	}
	c.Must(t, "GET", "/api/v1/quota", nil, &told)
	if told.Limits["sandboxes"] != 2 || told.Limits["cpus"] != 0 || told.Used["sandboxes"] != 2 || told.Used["memory_mb"] != 256 {
		t.Errorf("the quota is told as %+v", told)
	}

	var page struct {
		Sessions []rig.Sandbox `json:"sessions"`
	}
	c.Must(t, "GET", "/api/v1/sessions", nil, &page)
	for seconds, want := range map[int]int{3601: 429, 600: 200} {
		status, raw, err := c.Do("POST", "/api/v1/sessions/"+page.Sessions[0].ID+"/timeout", rig.Body{"timeout_seconds": seconds})
		if err != nil || status != want {
			t.Errorf("a timeout of %d seconds: %d %s %v", seconds, status, raw, err)
		}
	}

	tenant := func(args ...string) string {
		out, err := rig.Command(s.Bin, append(append([]string{"tenant", "quota", "dev:bounded"}, args...), "--data", s.Data)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if got := tenant("sandboxes=3"); !strings.Contains(got, "quota  sandboxes=3\n") || !strings.Contains(got, "used   sandboxes=2") {
		t.Errorf("the command says %s", got)
	}
	c.Create(t, nil)
	if status, raw, err := c.Do("POST", "/api/v1/sandbox/acquire", nil); err != nil || status != http.StatusTooManyRequests {
		t.Errorf("a fourth: %d %s %v", status, raw, err)
	}
	tenant("default")
	if status, _, _ := s.Client(t, "another").Do("POST", "/api/v1/sandbox/acquire", nil); status != http.StatusOK && status != http.StatusCreated {
		t.Errorf("another tenant: %d", status)
	}
}

// Snapshots beyond the quota are refused, and keep_snapshots deletes old ones. Sessions
// can still pause and resume.
func TestSnapshotsOfATenantAreBounded(t *testing.T) {
	t.Parallel()
	s := shared.Server(t)
	c := s.Client(t, "keeper")
	quota := func(text string) {
		t.Helper()
		if out, err := rig.Command(s.Bin, "tenant", "quota", s.Tenant("keeper"), text, "--data", s.Data).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	t.Cleanup(func() { quota("default") })
	sb := create(t, c, rig.Body{})
	output(t, c, sb.ID, "python", "x = 1")
	take := func(name string) (snap saved) {
		t.Helper()
		body := rig.Body{}
		if name != "" {
			body["name"] = name
		}
		c.Must(t, "POST", "/api/v1/sessions/"+sb.ID+"/snapshots", body, &snap)
		return snap
	}
	first := take("first")
	quota("snapshot_mb=1")
	status, raw, err := c.Do("POST", "/api/v1/sessions/"+sb.ID+"/snapshots", rig.Body{})
	if err != nil || status != http.StatusTooManyRequests || !strings.Contains(string(raw), "MiB of snapshots") {
		t.Errorf("one more: %d %s, %v", status, raw, err)
	}
	act(t, c, sb.ID, "pause", rig.Body{})
	if got := output(t, c, sb.ID, "python", "print(x)"); got != "1\n" {
		t.Errorf("went on with %q", got)
	}

	// Concurrent snapshots stay within the quota.
	const mib, room = 1 << 20, 3
	most := (first.Size*(2*room+1)/2 + mib - 1) / mib
	quota(fmt.Sprintf("snapshot_mb=%d", most))
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			status, raw, err := c.Do("POST", "/api/v1/sessions/"+sb.ID+"/snapshots", rig.Body{})
			if err != nil || status != http.StatusCreated && (status != http.StatusTooManyRequests || !strings.Contains(string(raw), "MiB of snapshots")) {
				t.Errorf("one of many: %d %s, %v", status, raw, err)
			}
		})
	}
	callers.Wait()
	var page struct{ Snapshots []saved }
	c.Must(t, "GET", "/api/v1/snapshots", nil, &page)
	together := int64(0)
	for _, s := range page.Snapshots {
		together += s.Size
	}
	if len(page.Snapshots) < 2 || together > most*mib {
		t.Errorf("%d snapshots of %d bytes in a quota of %d MiB", len(page.Snapshots), together, most)
	}

	quota("keep_snapshots=2")
	for range 3 {
		take("")
	}
	last := take("last")
	kept := func() (ids []string) {
		var page struct{ Snapshots []saved }
		c.Must(t, "GET", "/api/v1/snapshots", nil, &page)
		for _, s := range page.Snapshots {
			ids = append(ids, s.ID)
		}
		return ids
	}
	rig.Within(t, rig.Patience, "two snapshots", func() bool { return slices.Equal(kept(), []string{last.ID, first.ID}) })
	var told struct {
		Limits, Used map[string]float64
	}
	c.Must(t, "GET", "/api/v1/quota", nil, &told)
	if told.Limits["keep_snapshots"] != 2 || told.Used["snapshots"] != 2 || told.Used["snapshot_mb"] < 1 {
		t.Errorf("the quota is told as %+v", told)
	}
	for _, id := range kept() {
		c.Must(t, "DELETE", "/api/v1/snapshots/"+id, nil, nil)
	}
}
