package storetest

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// usageOf is a Tenant's usage in one row.
func usageOf(t *testing.T, st sandbox.Store, q sandbox.UsageQuery) sandbox.UsageAmount {
	t.Helper()
	q.From, q.To = sandbox.DayOf(epoch)-10, sandbox.DayOf(epoch)+10
	page, err := st.Usage(t.Context(), q)
	must(t, err)
	switch len(page.Rows) {
	case 0:
		return sandbox.UsageAmount{}
	case 1:
		return page.Rows[0].UsageAmount
	}
	t.Fatalf("%d rows for one", len(page.Rows))
	return sandbox.UsageAmount{}
}

func sameAmount(t *testing.T, what string, got, want sandbox.UsageAmount) {
	t.Helper()
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }
	if !near(got.Seconds, want.Seconds) || !near(got.CPUSeconds, want.CPUSeconds) ||
		!near(got.MemoryGiBSeconds, want.MemoryGiBSeconds) || !near(got.DiskGiBSeconds, want.DiskGiBSeconds) {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// becomes writes sb in a State, as of a time.
func becomes(t *testing.T, st sandbox.Store, sb sandbox.Sandbox, state sandbox.State, at time.Time) sandbox.Sandbox {
	t.Helper()
	sb.State, sb.MeteredAt = state, at
	sb, err := st.UpdateSandbox(t.Context(), sb)
	must(t, err)
	if !sb.MeteredAt.IsZero() {
		t.Error("a record keeps when it was written")
	}
	return sb
}

// Each byte of a Boot's traffic is counted once, also after its count restarts.
func trafficCounts(t *testing.T, st sandbox.Store) {
	boot := func(id string, tenant sandbox.TenantID, sent, received int64) sandbox.BootTraffic {
		ref := sandbox.BootRef{BootID: id, SandboxID: "i" + id, Tenant: tenant}
		return sandbox.BootTraffic{BootRef: ref, Traffic: sandbox.Traffic{Sent: sent, Received: received}}
	}
	for i, boots := range [][]sandbox.BootTraffic{
		{boot("a", "t", 10, 1), boot("b", "other", 5, 5)},
		{boot("a", "t", 15, 1)},
		{boot("a", "t", 15, 1)},
		{boot("a", "t", 3, 2)}, // its link was lost
	} {
		must(t, st.CountTraffic(t.Context(), boots, epoch.Add(time.Duration(i)*time.Hour)))
	}
	for tenant, want := range map[sandbox.TenantID]sandbox.Traffic{"t": {Sent: 18, Received: 3}, "other": {Sent: 5, Received: 5}} {
		if got := usageOf(t, st, sandbox.UsageQuery{Tenant: tenant}).Traffic; got != want {
			t.Errorf("%s carried %+v, want %+v", tenant, got, want)
		}
	}
	if got := st.CountedUsage().Traffic; got != (sandbox.Traffic{Sent: 23, Received: 8}) {
		t.Errorf("counted since it was opened: %+v", got)
	}
}

// A Sandbox's charges begin, change and end with its record.
func usageCounts(t *testing.T, st sandbox.Store) {
	sb := sample("t")
	sb.CheckpointEvery = 0
	sb = insert(t, st, sb)
	rate := sandbox.Rate{CPUs: 0.5, MemoryBytes: 300 << 20, DiskBytes: 4 << 30}
	sameAmount(t, "one that starts", usageOf(t, st, sandbox.UsageQuery{}), sandbox.UsageAmount{})

	at := epoch
	sb = becomes(t, st, sb, sandbox.Running, at)
	sb = becomes(t, st, sb, sandbox.Pausing, at.Add(10*time.Second)) // still charged
	sb = becomes(t, st, sb, sandbox.Running, at.Add(20*time.Second))
	sameAmount(t, "one that runs", usageOf(t, st, sandbox.UsageQuery{}), sandbox.UsageAmount{})
	must(t, st.CountUsage(t.Context(), []string{sb.ID, sandbox.NewSandboxID()}, at.Add(30*time.Second)))
	must(t, st.CountUsage(t.Context(), []string{sb.ID}, at.Add(25*time.Second))) // reported late
	sum := rate.Over(30 * time.Second)
	sameAmount(t, "counted on the way", usageOf(t, st, sandbox.UsageQuery{Tenant: "t"}), sum)

	sb.State, sb.Limits.CPUs, sb.MeteredAt = sandbox.Running, 1.5, at.Add(40*time.Second)
	sb, err := st.UpdateSandbox(t.Context(), sb)
	must(t, err)
	sum.Add(rate.Over(10 * time.Second))
	rate.CPUs = 1.5
	sb = becomes(t, st, sb, sandbox.Pausing, at.Add(50*time.Second))
	sb.Snapshot = ""
	sb = becomes(t, st, sb, sandbox.Paused, at.Add(60*time.Second))
	sum.Add(rate.Over(20 * time.Second))
	sameAmount(t, "paused", usageOf(t, st, sandbox.UsageQuery{Sandbox: sb.ID}), sum)
	must(t, st.CountUsage(t.Context(), []string{sb.ID}, at.Add(time.Hour)))
	sb = becomes(t, st, sb, sandbox.Resuming, at.Add(2*time.Hour))
	sameAmount(t, "while it was paused", usageOf(t, st, sandbox.UsageQuery{}), sum)

	at = at.Add(3 * time.Hour)
	sb = becomes(t, st, sb, sandbox.Running, at)
	must(t, st.CountUsage(t.Context(), []string{sb.ID}, at.Add(time.Minute)))
	sum.Add(rate.Over(time.Minute))
	// Its Boot was lost, and was last seen before it was last counted.
	sb.Ended = &sandbox.TerminationRecord{Cause: sandbox.CauseEngineLost, At: at.Add(time.Hour)}
	sb = becomes(t, st, sb, sandbox.Stopping, at)
	becomes(t, st, sb, sandbox.Ended, at.Add(time.Hour))
	sameAmount(t, "lost", usageOf(t, st, sandbox.UsageQuery{}), sum)
	sameAmount(t, "of others", usageOf(t, st, sandbox.UsageQuery{Tenant: "other"}), sandbox.UsageAmount{})
	sameAmount(t, "of another sandbox", usageOf(t, st, sandbox.UsageQuery{Sandbox: sandbox.NewSandboxID()}), sandbox.UsageAmount{})

	// A write that loses its race counts nothing.
	sb.State, sb.MeteredAt = sandbox.Running, at
	_, err = st.UpdateSandbox(t.Context(), sb)
	codetest.Want(t, "an old version", err, sandbox.Conflict)
	must(t, st.CountUsage(t.Context(), []string{sb.ID}, at.Add(9*time.Hour)))
	sameAmount(t, "after a lost race", usageOf(t, st, sandbox.UsageQuery{}), sum)
	sameAmount(t, "all that was counted", st.CountedUsage(), sum)
}

// Sums are grouped by day, Tenant and Sandbox, page by page.
func usageGroups(t *testing.T, st sandbox.Store) {
	midnight := (sandbox.DayOf(epoch) + 1).Start()
	var ids []string
	for _, tenant := range []sandbox.TenantID{"t", "t", "other"} {
		sb := becomes(t, st, insert(t, st, sample(tenant)), sandbox.Running, midnight.Add(-time.Hour))
		becomes(t, st, sb, sandbox.Stopping, midnight.Add(2*time.Hour))
		ids = append(ids, sb.ID)
	}
	day := sandbox.DayOf(epoch)
	slices.Sort(ids[:2])
	for _, tt := range []struct {
		tenant sandbox.TenantID
		by     []sandbox.UsageGroup
		want   string
	}{
		{"t", nil, "[1970-01-01 - - 21600]"},
		{"", nil, "[1970-01-01 - - 32400]"},
		{"t", []sandbox.UsageGroup{sandbox.ByDay}, fmt.Sprintf("[%s - - 7200] [%s - - 14400]", day, day+1)},
		{"t", []sandbox.UsageGroup{sandbox.BySandbox}, fmt.Sprintf("[1970-01-01 - %s 10800] [1970-01-01 - %s 10800]", ids[0], ids[1])},
		{"", []sandbox.UsageGroup{sandbox.ByTenant}, "[1970-01-01 other - 10800] [1970-01-01 t - 21600]"},
		{"", []sandbox.UsageGroup{sandbox.ByTenant, sandbox.ByDay}, fmt.Sprintf(
			"[%s other - 3600] [%s t - 7200] [%s other - 7200] [%s t - 14400]", day, day, day+1, day+1)},
	} {
		for limit := range 3 {
			q := sandbox.UsageQuery{Tenant: tt.tenant, By: tt.by, From: day, To: day + 2, Limit: limit}
			if got := usagePages(t, st, q); got != tt.want {
				t.Errorf("%v by %v, %d a page:\n%s, want\n%s", tt.tenant, tt.by, limit, got, tt.want)
			}
		}
	}
	for name, q := range map[string]sandbox.UsageQuery{
		"no days":         {From: day, To: day},
		"too many days":   {From: 0, To: sandbox.MaxUsageDays + 1},
		"too many rows":   {From: day, To: day + 1, Limit: sandbox.MaxUsagePage + 1},
		"a group unknown": {From: day, To: day + 1, By: []sandbox.UsageGroup{"week"}},
		"a group twice":   {From: day, To: day + 1, By: []sandbox.UsageGroup{sandbox.ByDay, sandbox.ByDay}},
		"a cursor":        {From: day, To: day + 1, Cursor: "eyJ9"},
	} {
		_, err := st.Usage(t.Context(), q)
		codetest.Want(t, name, err, sandbox.Invalid)
	}
	n, err := st.TrimUsage(t.Context(), day+1)
	if err != nil || n != 3 {
		t.Errorf("trimmed %d, %v", n, err)
	}
	sameAmount(t, "what is left", usageOf(t, st, sandbox.UsageQuery{Tenant: "t"}), sandbox.Rate{CPUs: 0.5, MemoryBytes: 300 << 20, DiskBytes: 4 << 30}.Over(4*time.Hour))
}

func usagePages(t *testing.T, st sandbox.Store, q sandbox.UsageQuery) (text string) {
	t.Helper()
	for {
		page, err := st.Usage(t.Context(), q)
		must(t, err)
		for _, r := range page.Rows {
			part := func(s string) string {
				if s == "" {
					return "-"
				}
				return s
			}
			if text != "" {
				text += " "
			}
			text += fmt.Sprintf("[%v %s %s %.0f]", r.Day, part(string(r.Tenant)), part(r.Sandbox), r.Seconds)
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return text
		}
	}
}
