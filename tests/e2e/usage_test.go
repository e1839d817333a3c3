package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// used is a row of a usage report.
type used struct {
	SandboxID string  `json:"sandbox_id"`
	Seconds   float64 `json:"seconds"`
	CPU       float64 `json:"vcpu_seconds"`
	Memory    float64 `json:"memory_gib_seconds"`
	Egress    int64   `json:"egress_bytes"`
	Cost      *struct {
		Currency string  `json:"currency"`
		Total    float64 `json:"total"`
	} `json:"cost"`
}

func usage(t *testing.T, c *rig.Client, id string) (u used) {
	t.Helper()
	var page struct {
		Rows []used `json:"rows"`
	}
	c.Must(t, "GET", "/api/v1/usage?group_by=sandbox&sandbox_id="+id, nil, &page)
	if len(page.Rows) > 1 {
		t.Fatalf("rows of one sandbox: %+v", page.Rows)
	}
	if len(page.Rows) == 1 {
		u = page.Rows[0]
	}
	return u
}

// Usage counts the time that a sandbox runs and not the time that it is paused. A kill
// of the server loses none of it.
func TestUsage(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{"CLOUD_SANDBOX_PRICES=USD,vcpu_hour=3600,memory_gib_hour=3600"}})
	c := s.Client(t, "metered")
	body := rig.Body{"resources": rig.Body{"cpus": 0.5, "memory_mb": 256, "disk_mb": 64}}
	began := time.Now()
	sb := c.Create(t, body)
	c.Run(t, sb.ID, "bash", "sleep 1", nil)
	c.Must(t, "POST", "/api/v1/sessions/"+sb.ID+"/pause", nil, nil)
	ran, first := time.Since(began).Seconds(), usage(t, c, sb.ID)
	if first.Seconds < 1 || first.Seconds > ran || !near(first.CPU, first.Seconds/2) || !near(first.Memory, first.Seconds/4) {
		t.Fatalf("counted as %+v after %vs", first, ran)
	}
	if first.Cost == nil || first.Cost.Currency != "USD" || !near(first.Cost.Total, first.CPU+first.Memory) {
		t.Errorf("it costs %+v", first.Cost)
	}
	if again := usage(t, c, sb.ID); again.Seconds != first.Seconds {
		t.Errorf("while it is paused: %+v, before %+v", again, first)
	}

	resuming := time.Now()
	c.Must(t, "POST", "/api/v1/sessions/"+sb.ID+"/resume", nil, nil)
	resumed := time.Now()
	rig.Kill(t, s.One(t, rig.ServerRole))
	<-s.Done()
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	c.Run(t, sb.ID, "bash", "sleep 1", nil)
	least := time.Since(resumed).Seconds()
	c.Must(t, "DELETE", "/api/v1/sessions/"+sb.ID, nil, nil)
	most := time.Since(resuming).Seconds()
	last := usage(t, c, sb.ID)
	if more := last.Seconds - first.Seconds; more < least || more > most {
		t.Errorf("%vs were counted since it resumed, want from %v to %v", more, least, most)
	}
	if n := s.Metric("cloud_sandbox_usage_vcpu_seconds_total"); n <= 0 {
		t.Errorf("%v CPU seconds in the metrics", n)
	}
	if other := usage(t, s.Client(t, "other"), sb.ID); other.Seconds != 0 {
		t.Errorf("another tenant is told %+v", other)
	}
	operatorSees(t, s, last.Seconds)
	cmd := rig.Command(s.Bin, "usage", "--by", "sandbox", "--url", s.URL, "--user-id", "metered")
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte(sb.ID)) || !strings.Contains(string(out), "USD") {
		t.Errorf("the command says %s, %v", out, err)
	}
}

// Egress counts all bytes that a sandbox sends, across a pause and its end. Traffic with
// its owner is not counted.
func TestEgress(t *testing.T) {
	t.Parallel()
	addr := rig.HostAddress(t)
	port := webSite(t, addr, false)
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{
		fmt.Sprintf("CLOUD_SANDBOX_EGRESS_OPEN=%s:%d", addr, port), "CLOUD_SANDBOX_PRICES=USD,egress_gib=1024",
	}})
	c := s.Client(t, "sender")
	sb := c.Create(t, nil)
	const sent, most = 1_000_000, 1_100_000 // most allows for headers
	send := func() {
		t.Helper()
		c.Sh(t, sb.ID, fmt.Sprintf("head -c %d /dev/zero | curl -sf -o /dev/null --data-binary @- http://%s:%d/", sent, addr, port))
	}
	counted := func(times int64) (u used) {
		t.Helper()
		rig.Within(t, rig.Patience, "what was sent is counted", func() bool {
			u = usage(t, c, sb.ID)
			return u.Egress >= times*sent
		})
		if u.Egress > times*most {
			t.Errorf("%d bytes are counted after %d uploads", u.Egress, times)
		}
		return u
	}
	c.Sh(t, sb.ID, "head -c 3000000 /dev/zero | base64") // output to the owner
	send()
	c.Must(t, "POST", "/api/v1/sessions/"+sb.ID+"/pause", nil, nil)
	if u := counted(1); u.Cost == nil || u.Cost.Total < 0.9 || u.Cost.Total > 1.1 {
		t.Errorf("a megabyte costs %+v", u.Cost)
	}
	c.Must(t, "POST", "/api/v1/sessions/"+sb.ID+"/resume", nil, nil)
	send()
	c.Must(t, "DELETE", "/api/v1/sessions/"+sb.ID, nil, nil)
	counted(2)
	overEgress(t, s, c, sent, fmt.Sprintf("http://%s:%d/", addr, port))
	if n := s.Metric("cloud_sandbox_usage_egress_bytes_total"); n < 2*sent {
		t.Errorf("%v bytes in the metrics", n)
	}
}

// overEgress checks that a tenant beyond its egress quota loses its network.
func overEgress(t *testing.T, s *rig.Server, c *rig.Client, sent int64, url string) {
	t.Helper()
	live := c.Create(t, nil)
	quota := func(text string) {
		t.Helper()
		if out, err := command(s, "tenant", "quota", "dev:sender", text); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	quota(fmt.Sprintf("egress_mb=%d", max(sent>>20, 1)))
	c.Sh(t, live.ID, "curl -s -m 20 -o /dev/null "+url+" || true") // it may be cut while it sends
	rig.Within(t, rig.Patience, "one that runs and sends loses its network", func() bool {
		var now struct {
			Network json.RawMessage `json:"network"`
		}
		c.Must(t, "GET", "/api/v1/sessions/"+live.ID, nil, &now)
		return string(now.Network) == `"none"`
	})
	if got := c.Sh(t, live.ID, "curl -sf -m 10 -o /dev/null "+url+" || echo cut"); got != "cut\n" {
		t.Errorf("without a network it says %q", got)
	}
	if status, raw, err := c.Do("POST", "/api/v1/sessions", nil); err != nil || status != http.StatusTooManyRequests {
		t.Errorf("a session beyond the quota: %d %s %v", status, raw, err)
	}
	sb := c.Create(t, rig.Body{"network": "none"})
	change := func() int {
		t.Helper()
		status, _, err := c.Do("PATCH", "/api/v1/sessions/"+sb.ID, rig.Body{"network": "public"})
		if err != nil {
			t.Error(err)
		}
		return status
	}
	if status := change(); status != http.StatusTooManyRequests {
		t.Errorf("a network beyond the quota: %d", status)
	}
	quota("default")
	if status := change(); status != http.StatusOK {
		t.Errorf("a network within the quota: %d", status)
	}
}

// operatorSees checks that an operator's key can set a tenant's quota and read its
// usage, that keys of an owner or admin cannot, and that a viewer's key is read-only.
func operatorSees(t *testing.T, s *rig.Server, seconds float64) {
	t.Helper()
	ask := func(role, method, path string) (int, string) {
		out, err := rig.Command(s.Bin, "key", "create", "--tenant", "ops", "--role", role, "--data", s.Data).Output()
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequest(method, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-API-Key", strings.TrimSpace(string(out)))
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if status, body := ask("operator", "PUT", "/api/v1/tenants/dev:metered/quota"); status != 200 || !strings.Contains(body, `"own":true`) {
		t.Errorf("an operator sets a quota: %d %s", status, body)
	}
	if status, body := ask("owner", "PUT", "/api/v1/tenants/dev:metered/quota"); status != 403 {
		t.Errorf("an owner sets a quota: %d %s", status, body)
	}
	const path = "/api/v1/usage?group_by=tenant&tenant=dev:metered"
	if status, body := ask("operator", "GET", path); status != 200 || !strings.Contains(body, fmt.Sprintf(`"seconds":%v`, seconds)) {
		t.Errorf("an operator hears %d %s", status, body)
	}
	if status, body := ask("admin", "GET", path); status != 403 {
		t.Errorf("an admin hears %d %s", status, body)
	}
	if status, body := ask("viewer", "GET", "/api/v1/sessions"); status != 200 {
		t.Errorf("a viewer looks: %d %s", status, body)
	}
	if status, body := ask("viewer", "POST", "/api/v1/sessions"); status != 403 {
		t.Errorf("a viewer creates: %d %s", status, body)
	}
}

func near(a, b float64) bool { return a-b < 1e-3 && b-a < 1e-3 }
