package rest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

// An operator gets the usage of every tenant. Other callers get only their own.
func TestUsageForOperators(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	at := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	f.ran("a", at)
	f.ran("b", at)
	operator := f.Key("ops", sandbox.RoleOperator)
	ask := func(key, tenant string) gatewaytest.Answer {
		return f.With("GET", "/api/v1/usage?from=2026-03-01&to=2026-04-01&group_by=tenant&tenant="+tenant, "", "X-API-Key", key)
	}
	for tenant, want := range map[string]int{"": 0, "ops": 0, "a": 1, "b": 1, "none": 0, "*": 2} {
		var p usagePage
		if ask(operator, tenant).Into(t, 200, &p); len(p.Rows) != want {
			t.Errorf("of %q: %+v", tenant, p.Rows)
		}
	}
	owner, narrow := f.Key("a", sandbox.RoleOwner), f.Key("ops", sandbox.RoleOperator, sandbox.ScopeRead)
	for _, key := range []string{owner, narrow} {
		for _, tenant := range []string{"b", "none", "*"} {
			if a := ask(key, tenant); a.Status != 403 {
				t.Errorf("of %q: %d %s", tenant, a.Status, a.Body)
			}
		}
	}
	var p usagePage
	if ask(owner, "a").Into(t, 200, &p); len(p.Rows) != 1 {
		t.Errorf("one's own: %+v", p.Rows)
	}
}

// ran records a Sandbox of a Tenant that ran for an hour until at.
func (f *fixture) ran(tenant sandbox.TenantID, at time.Time) string {
	f.T.Helper()
	shape := sandbox.Shape{CPUs: 2, MemoryBytes: 1 << 30, DiskBytes: 4 << 30, Pids: 100}
	sb, err := f.Store.InsertSandbox(f.T.Context(), sandbox.Sandbox{
		ID: sandbox.NewSandboxID(), Tenant: tenant, State: sandbox.Running, Shape: shape, Limits: shape.Limits(),
		CreatedAt: at, Deadline: at, MeteredAt: at.Add(-time.Hour),
	})
	if err != nil {
		f.T.Fatal(err)
	}
	sb.State, sb.MeteredAt = sandbox.Stopping, at
	if _, err := f.Store.UpdateSandbox(f.T.Context(), sb); err != nil {
		f.T.Fatal(err)
	}
	return sb.ID
}

type usagePage struct {
	From, To string
	Rows     []struct {
		Day       string
		SandboxID string  `json:"sandbox_id"`
		Seconds   float64 `json:"seconds"`
		CPU       float64 `json:"vcpu_seconds"`
		Memory    float64 `json:"memory_gib_seconds"`
		Disk      float64 `json:"disk_gib_seconds"`
		Cost      *struct {
			Currency string
			Total    float64
		}
	}
	Next string `json:"next_cursor"`
}

func TestUsage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) {
		c.Prices = sandbox.Prices{Currency: "EUR", CPUHour: 0.5, MemoryGiBHour: 0.25, DiskGiBHour: 0.01}
	})
	midnight := time.Date(2026, 3, 2, 0, 30, 0, 0, time.UTC)
	first, second := f.ran("dev:test", midnight), f.ran("dev:test", midnight.AddDate(0, 0, 1))
	other := f.ran("dev:other", midnight)

	var p usagePage
	f.Do("GET", "/api/v1/usage?from=2026-03-01&to=2026-04-01", "").Into(t, 200, &p)
	if len(p.Rows) != 1 || p.From != "2026-03-01" || p.To != "2026-04-01" {
		t.Fatalf("all: %+v", p)
	}
	if r := p.Rows[0]; r.Seconds != 7200 || r.CPU != 14400 || r.Memory != 7200 || r.Disk != 28800 || r.Cost == nil ||
		r.Cost.Currency != "EUR" || r.Cost.Total != 2.58 || r.Day != "" || r.SandboxID != "" {
		t.Errorf("all: %+v %+v", r, r.Cost)
	}

	var lines []string
	cursor := ""
	for {
		p = usagePage{}
		f.Do("GET", "/api/v1/usage?from=2026-03-01&to=2026-04-01&group_by=day,sandbox&limit=1&cursor="+cursor, "").Into(t, 200, &p)
		for _, r := range p.Rows {
			lines = append(lines, r.Day+" "+r.SandboxID)
		}
		if cursor = p.Next; cursor == "" {
			break
		}
	}
	want := []string{"2026-03-01 " + first, "2026-03-02 " + first, "2026-03-02 " + second, "2026-03-03 " + second}
	if first > second {
		want[1], want[2] = want[2], want[1]
	}
	if strings.Join(lines, ",") != strings.Join(want, ",") {
		t.Errorf("page by page: %q, want %q", lines, want)
	}

	p = usagePage{}
	f.Do("GET", "/api/v1/usage?from=2026-03-01&to=2026-04-01&sandbox_id="+other, "").Into(t, 200, &p)
	if len(p.Rows) != 0 {
		t.Errorf("another tenant's: %+v", p)
	}
	before := time.Now().UTC()
	f.Do("GET", "/api/v1/usage", "").Into(t, 200, &p) // this month
	if after := time.Now().UTC(); p.From != before.Format("2006-01-")+"01" && p.From != after.Format("2006-01-")+"01" {
		t.Errorf("by default from %s", p.From)
	}
}

func TestUsageOfBadQuestions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for query, says := range map[string]string{
		"from=yesterday":                     "from must be a day",
		"from=2026-13-01":                    "from must be a day",
		"to=2026-02-30":                      "to must be a day",
		"from=2026-03-02&to=2026-03-02":      "must be after from",
		"from=1970-01-01&to=2026-03-02":      "3660 days",
		"from=1969-01-01":                    "from must be a day",
		"group_by=week":                      "group_by",
		"group_by=day,day":                   "group_by",
		"group_by=day,":                      "group_by",
		"sandbox_id=mine":                    "sandbox_id",
		"limit=0":                            "limit",
		"limit=1001":                         "limit",
		"limit=x":                            "limit",
		"cursor=!":                           "cursor",
		"cursor=" + strings.Repeat("a", 513): "cursor",
		"since=2026-01-01":                   "since",
		"from=2026-01-01&from=2026-01-02":    "from",
	} {
		if a := f.Do("GET", "/api/v1/usage?"+query, ""); a.Status != 400 || !strings.Contains(string(a.Body), says) {
			t.Errorf("%s: %d %s", query, a.Status, a.Body)
		}
	}
}
