package rest

import (
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// maxUsageList bounds a page of usage.
const maxUsageList = 1000

// ReadUsage answers GET /api/v1/usage with a page of the Tenant's usage, and its cost
// if prices are set.
func (a *API) ReadUsage(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	q, err := usageQuery(r, time.Now(), who)
	if err != nil {
		return err
	}
	page, err := a.Usage.Usage(r.Context(), q)
	if err != nil {
		return err
	}
	reply := v1.UsageRows{From: q.From.String(), To: q.To.String(), Rows: []v1.Usage{}, Next: page.Next}
	for _, row := range page.Rows {
		reply.Rows = append(reply.Rows, a.usageViewOf(row, q))
	}
	return Reply(w, http.StatusOK, reply)
}

func (a *API) usageViewOf(row sandbox.UsageRow, q sandbox.UsageQuery) v1.Usage {
	v := v1.Usage{
		SandboxID: row.Sandbox, Tenant: string(row.Tenant), Seconds: micro(row.Seconds), CPUSeconds: micro(row.CPUSeconds),
		MemoryGiBSeconds: micro(row.MemoryGiBSeconds), DiskGiBSeconds: micro(row.DiskGiBSeconds),
		EgressBytes: row.Sent, IngressBytes: row.Received,
	}
	if slices.Contains(q.By, sandbox.ByDay) {
		v.Day = row.Day.String()
	}
	if a.Prices.Currency != "" {
		c := a.Prices.Of(row.UsageAmount)
		v.Cost = &v1.Cost{
			Currency: a.Prices.Currency, CPU: micro(c.CPU), Memory: micro(c.Memory), Disk: micro(c.Disk), Egress: micro(c.Egress), Total: micro(c.Total()),
		}
	}
	return v
}

// micro rounds n to millionths.
func micro(n float64) float64 { return math.Round(n*1e6) / 1e6 }

// allTenants asks for the usage of every Tenant.
const allTenants = "*"

// usageTenant is the Tenant whose usage is returned: the caller's own, or for an
// operator any or, as "", all.
func usageTenant(who sandbox.Identity, asked string) (sandbox.TenantID, error) {
	switch {
	case asked == "" || asked == string(who.Tenant):
		return who.Tenant, nil
	case !who.May(sandbox.ScopeTenants):
		return "", sandbox.Errorf(sandbox.Denied, "the usage of other tenants needs the scope %q, which operators have", sandbox.ScopeTenants)
	case asked == allTenants:
		return "", nil
	}
	return sandbox.TenantID(asked), nil
}

// usageQuery reads the query. The default period is this month until now.
func usageQuery(r *http.Request, now time.Time, who sandbox.Identity) (sandbox.UsageQuery, error) {
	values, err := query(r, "from", "to", "group_by", "sandbox_id", "tenant", "limit", "cursor")
	if err != nil {
		return sandbox.UsageQuery{}, err
	}
	now = now.UTC()
	q := sandbox.UsageQuery{
		From: sandbox.DayOf(time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)), To: sandbox.DayOf(now) + 1,
		Sandbox: values.Get("sandbox_id"), Cursor: values.Get("cursor"), Limit: maxUsageList,
	}
	if q.Tenant, err = usageTenant(who, values.Get("tenant")); err != nil {
		return q, err
	}
	switch {
	case q.Sandbox != "" && !sandbox.ValidSandboxID(q.Sandbox):
		return q, sandbox.Errorf(sandbox.Invalid, "sandbox_id must be the ID of a sandbox, not its name")
	}
	if err := sandbox.CheckCursor(q.Cursor); err != nil {
		return q, err
	}
	if err := pageLimit(values, maxUsageList, &q.Limit); err != nil {
		return q, err
	}
	if s := values.Get("group_by"); s != "" {
		for word := range strings.SplitSeq(s, ",") {
			q.By = append(q.By, sandbox.UsageGroup(word))
		}
	}
	if err := dayParameter(values, "from", &q.From); err != nil {
		return q, err
	}
	if err := dayParameter(values, "to", &q.To); err != nil {
		return q, err
	}
	return q, q.Check()
}

// dayParameter reads a day of the query into day, if it is given.
func dayParameter(values url.Values, name string, day *sandbox.Day) error {
	text := values.Get(name)
	if text == "" {
		return nil
	}
	d, err := sandbox.ParseDay(text)
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "%s must be a day of UTC such as 2026-01-31", name)
	}
	*day = d
	return nil
}
