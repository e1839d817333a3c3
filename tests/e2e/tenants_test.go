package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A suspension pauses a tenant's sandboxes. They keep their memory and continue after
// it.
func TestTenants(t *testing.T) {
	t.Parallel()
	s := rig.Own(t, rig.Options{Pool: 1})
	mine, other, ops := s.Client(t, "mine"), s.Client(t, "other"), s.Operator(t)
	sb := mine.Create(t, rig.Body{"timeout_seconds": 600, "on_timeout": "end"})
	mine.Run(t, sb.ID, "python", "x = 41", nil)
	others := other.Acquire(t)

	type told struct {
		Tenant, State string
		Suspended     *struct{ Reason string }
		Quota         *struct{ Used map[string]float64 }
	}
	var one told
	if ops.Must(t, "GET", "/api/v1/tenants/dev:mine", nil, &one); one.State != "active" || one.Quota.Used["sandboxes"] != 1 {
		t.Errorf("at first it is %+v", one)
	}
	before := s.SentryOf(t, sb.ID)
	ops.Must(t, "PATCH", "/api/v1/tenants/dev:mine", rig.Body{"state": "suspended", "reason": "a test"}, &one)
	refused := func() bool {
		status, raw, err := mine.Do("GET", "/api/v1/sessions/"+sb.ID, nil)
		return err == nil && status == http.StatusForbidden && strings.Contains(string(raw), "suspended")
	}
	if !refused() {
		t.Error("it is let in after it was suspended")
	}
	rig.Within(t, time.Minute, "its sandbox to stand still", func() bool {
		for _, p := range s.Processes(rig.Sentry) {
			if p.Pid == before.Pid {
				return false
			}
		}
		return true
	})
	other.Run(t, others, "bash", "true", nil)

	command := func(args ...string) (string, error) {
		out, err := rig.Command(s.Bin, append(append([]string{"tenant"}, args...), "--data", s.Data)...).CombinedOutput()
		return string(out), err
	}
	do := func(args ...string) string {
		t.Helper()
		out, err := command(args...)
		if err != nil {
			t.Fatalf("tenant %v: %v: %s", args, err, out)
		}
		return out
	}
	var listed struct {
		Tenant, State string
		Suspended     struct{ Reason string }
	}
	if err := json.Unmarshal([]byte(do("ls", "--state", "suspended", "--json")), &listed); err != nil || listed.Tenant != "dev:mine" || listed.Suspended.Reason != "a test" {
		t.Errorf("ls says %+v, %v", listed, err)
	}
	if text := do("ls"); !strings.HasPrefix(text, "TENANT") || !strings.Contains(text, "dev:other") {
		t.Errorf("ls prints %s", text)
	}
	if out, err := command("rm", "dev:mine"); err == nil || !strings.Contains(out, "1 sessions") {
		t.Errorf("rm of who has a session: %v, %s", err, out)
	}
	do("resume", "dev:mine")
	rig.Within(t, 30*time.Second, "the server to hear of it", func() bool { return !refused() })
	if got := mine.Get(t, sb.ID); got.State != "paused" {
		t.Errorf("afterwards it is %+v", got)
	}
	if r := mine.Run(t, sb.ID, "python", "print(x + 1)", nil); r.Stdout != "42\n" {
		t.Errorf("it goes on with %v", r)
	}

	if text := do("create", "acme", "--name", "Acme Ltd", "--json"); !strings.Contains(text, `"name":"Acme Ltd"`) {
		t.Errorf("create prints %s", text)
	}
	secret, err := rig.Command(s.Bin, "key", "create", "--tenant", "acme", "--data", s.Data).Output()
	if err != nil {
		t.Fatal(err)
	}
	acme := s.Anyone(t)
	acme.Token = strings.TrimSpace(string(secret))
	acme.Must(t, "GET", "/api/v1/sessions", nil, &struct{}{})
	do("rm", "acme")
	rig.Within(t, 30*time.Second, "its key to be refused", func() bool {
		status, _, err := acme.Do("GET", "/api/v1/sessions", nil)
		return err == nil && status == http.StatusUnauthorized
	})
}
