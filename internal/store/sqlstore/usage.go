package sqlstore

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// countBatch is how many Sandboxes CountUsage counts in one write: other writes wait for
// it.
const countBatch = 64

// usageStatements are the writer's prepared statements for usage.
type usageStatements struct {
	openUsage, beginUsage, endUsage *sql.Stmt
	moveUsage, addUsage, trimUsage  *sql.Stmt
	traffic, setTraffic, addTraffic *sql.Stmt
	trimTraffic                     *sql.Stmt
}

func (s *usageStatements) all() []prepared {
	return []prepared{
		{&s.openUsage, openTable.record + `WHERE sandbox = ?`},
		{&s.beginUsage, beginUsage.text},
		{&s.endUsage, `DELETE FROM usage_open WHERE sandbox = ?`},
		{&s.moveUsage, `UPDATE usage_open SET since = ? WHERE sandbox = ?`},
		{&s.addUsage, `INSERT INTO usage_days (tenant, day, sandbox, seconds, cpu, memory, disk, sent, received) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)
			ON CONFLICT (tenant, day, sandbox) DO UPDATE SET seconds = usage_days.seconds + excluded.seconds, cpu = usage_days.cpu + excluded.cpu,
			memory = usage_days.memory + excluded.memory, disk = usage_days.disk + excluded.disk`},
		{&s.traffic, `SELECT sent, received FROM traffic_boots WHERE boot = ?`},
		{&s.setTraffic, `INSERT INTO traffic_boots (boot, sent, received, seen_at) VALUES (?, ?, ?, ?)
			ON CONFLICT (boot) DO UPDATE SET sent = excluded.sent, received = excluded.received, seen_at = excluded.seen_at`},
		{&s.addTraffic, `INSERT INTO usage_days (tenant, day, sandbox, seconds, cpu, memory, disk, sent, received) VALUES (?, ?, ?, 0, 0, 0, 0, ?, ?)
			ON CONFLICT (tenant, day, sandbox) DO UPDATE SET sent = usage_days.sent + excluded.sent, received = usage_days.received + excluded.received`},
		{&s.trimTraffic, `DELETE FROM traffic_boots WHERE boot IN (SELECT boot FROM traffic_boots WHERE seen_at < ? LIMIT ?)`},
		{&s.trimUsage, `DELETE FROM usage_days WHERE (tenant, day, sandbox) IN (SELECT tenant, day, sandbox FROM usage_days WHERE day < ? LIMIT ?)`},
	}
}

// usageQueries are the prepared statements of reading connections.
type usageQueries struct{ usageOfTenant, usageOfAll *sql.Stmt }

// grouped are the grouping columns of a sum; ?4 to ?6 select them.
const grouped = `CASE WHEN ?4 THEN day ELSE 0 END, CASE WHEN ?5 THEN tenant ELSE '' END, CASE WHEN ?6 THEN sandbox ELSE '' END`

// summed selects a page of sums: ?7 to ?9 are the last row of the previous page.
const summed = `
	SELECT ` + grouped + `, sum(seconds), sum(cpu), sum(memory), sum(disk), CAST(sum(sent) AS BIGINT), CAST(sum(received) AS BIGINT)
	FROM usage_days WHERE day >= ?1 AND day < ?2 AND (?3 = '' OR sandbox = ?3) AND (` + grouped + `) > (?7, ?8, ?9)`

func (q *usageQueries) all() []prepared {
	return []prepared{
		{&q.usageOfTenant, summed + ` AND tenant = ?11 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT ?10`},
		{&q.usageOfAll, summed + ` GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT ?10`},
	}
}

// An openUsage is a Sandbox that is charged at a Rate; usage from since on is not counted
// yet.
type openUsage struct {
	sandbox string
	tenant  sandbox.TenantID
	since   time.Time
	rate    sandbox.Rate
}

var openTable = newTable("usage_open", func(o *openUsage, c *columns) {
	c.add("sandbox", &o.sandbox)
	c.add("tenant", (*string)(&o.tenant))
	c.add("since", (*moment)(&o.since))
	c.add("cpus", &o.rate.CPUs)
	c.add("memory_bytes", &o.rate.MemoryBytes)
	c.add("disk_bytes", &o.rate.DiskBytes)
})

var beginUsage = openTable.replacing("sandbox")

// open reads the open usage of a Sandbox into o, which stays zero if it is not charged.
func (s *usageStatements) open(p *pipeline, id string, o *openUsage) {
	p.row(s.openUsage, func(scan scanner) (err error) {
		*o, err = openTable.scan(scan)
		if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		return err
	}, id)
}

// charged reports whether o is of a Sandbox that is charged.
func (o *openUsage) charged() bool { return o.sandbox != "" }

// meter charges the Sandbox at the rate of its record sb from the time at on, and returns
// the usage that it counts. had is the open usage before.
func (s *usageStatements) meter(p *pipeline, sb sandbox.Sandbox, had openUsage, at time.Time) (counted sandbox.UsageAmount) {
	rate, charged := sb.Rate()
	if charged == had.charged() && rate == had.rate {
		return counted
	}
	if at.IsZero() {
		at = time.Now()
	}
	if had.charged() {
		counted = s.count(p, had, at)
		if at.Before(had.since) { // a clock was set back, or a lost Boot was last seen before it was last counted
			at = had.since
		}
	}
	if charged {
		beginUsage.send(p, s.beginUsage, &openUsage{sandbox: sb.ID, tenant: sb.Tenant, since: at, rate: rate})
	} else {
		p.exec(s.endUsage, sb.ID)
	}
	return counted
}

// count adds the usage of a Sandbox that is charged until a time.
func (s *usageStatements) count(p *pipeline, o openUsage, until time.Time) (counted sandbox.UsageAmount) {
	for day, d := range sandbox.DaysBetween(o.since, until) {
		a := o.rate.Over(d)
		p.exec(s.addUsage, string(o.tenant), int64(day), o.sandbox, a.Seconds, a.CPUSeconds, a.MemoryGiBSeconds, a.DiskGiBSeconds)
		counted.Add(a)
	}
	return counted
}

// A counter sums the usage that a Store has counted since it was opened.
type counter struct {
	mu  sync.Mutex
	all sandbox.UsageAmount
}

func (c *counter) add(a sandbox.UsageAmount) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all.Add(a)
}

// CountedUsage implements sandbox.UsageStore.
func (s *Store) CountedUsage() sandbox.UsageAmount {
	s.counter.mu.Lock()
	defer s.counter.mu.Unlock()
	return s.counter.all
}

// CountUsage implements sandbox.UsageStore.
func (s *Store) CountUsage(ctx context.Context, sandboxes []string, at time.Time) error {
	at = fromMicros(micros(at))
	for batch := range slices.Chunk(sandboxes, countBatch) {
		var counted sandbox.UsageAmount
		err := s.writer.send(ctx, func(p *pipeline) error {
			open := make([]openUsage, len(batch))
			for i, id := range batch {
				p.st.open(p, id, &open[i])
			}
			if err := p.flush(); err != nil {
				return err
			}
			for _, o := range open {
				if o.charged() && o.since.Before(at) {
					counted.Add(p.st.count(p, o, at))
					p.exec(p.st.moveUsage, micros(at), o.sandbox)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		s.counter.add(counted)
	}
	return nil
}

// trafficLife is how long a Boot's traffic count is kept after its last report: its Node
// has forgotten it long before.
const trafficLife = 24 * time.Hour

// CountTraffic implements sandbox.UsageStore.
func (s *Store) CountTraffic(ctx context.Context, boots []sandbox.BootTraffic, at time.Time) error {
	for batch := range slices.Chunk(boots, countBatch) {
		var counted sandbox.UsageAmount
		err := s.writer.write(ctx, func(st *statements) error {
			counted = sandbox.UsageAmount{}
			for _, b := range batch {
				more, err := st.countTraffic(b, at)
				if err != nil {
					return err
				}
				counted.Add(sandbox.UsageAmount{Traffic: more})
			}
			return nil
		})
		if err != nil {
			return err
		}
		s.counter.add(counted)
	}
	if len(boots) == 0 {
		return nil
	}
	_, err := s.deleteAll(ctx, micros(at.Add(-trafficLife)), func(st *statements) *sql.Stmt { return st.trimTraffic })
	return err
}

// countTraffic counts the new traffic of a Boot, and returns it.
func (s *usageStatements) countTraffic(b sandbox.BootTraffic, at time.Time) (more sandbox.Traffic, err error) {
	var had sandbox.Traffic
	switch err := s.traffic.QueryRow(b.BootID).Scan(&had.Sent, &had.Received); {
	case errors.Is(err, sql.ErrNoRows):
	case err != nil:
		return more, err
	}
	if b.Sent < had.Sent || b.Received < had.Received { // the count restarted
		had = sandbox.Traffic{}
	}
	more = sandbox.Traffic{Sent: b.Sent - had.Sent, Received: b.Received - had.Received}
	if _, err := s.setTraffic.Exec(b.BootID, b.Sent, b.Received, micros(at)); err != nil || more == (sandbox.Traffic{}) {
		return more, err
	}
	_, err = s.addTraffic.Exec(string(b.Tenant), int64(sandbox.DayOf(at)), b.SandboxID, more.Sent, more.Received)
	return more, err
}

// usageCursor is the last row of a page, with the page's grouping.
type usageCursor struct {
	Day     int64    `json:"d"`
	Tenant  string   `json:"t,omitempty"`
	Sandbox string   `json:"s,omitempty"`
	By      []string `json:"b"`
}

// Usage implements sandbox.UsageStore.
func (s *Store) Usage(ctx context.Context, q sandbox.UsageQuery) (sandbox.UsagePage, error) {
	if err := q.Check(); err != nil {
		return sandbox.UsagePage{}, err
	}
	if q.Limit == 0 {
		q.Limit = sandbox.MaxUsagePage
	}
	by := func(g sandbox.UsageGroup) bool { return slices.Contains(q.By, g) }
	after, err := parseUsageCursor(q)
	if err != nil {
		return sandbox.UsagePage{}, err
	}
	args := []any{
		int64(q.From), int64(q.To), q.Sandbox, by(sandbox.ByDay), by(sandbox.ByTenant), by(sandbox.BySandbox),
		after.Day, after.Tenant, after.Sandbox, q.Limit + 1,
	}
	statement := s.query.usageOfAll
	if q.Tenant != "" {
		statement, args = s.query.usageOfTenant, append(args, string(q.Tenant))
	}
	rows, err := statement.QueryContext(ctx, args...)
	if err != nil {
		return sandbox.UsagePage{}, classify(err)
	}
	defer rows.Close()
	var page sandbox.UsagePage
	for rows.Next() {
		if len(page.Rows) == q.Limit { // the extra row
			page.Next = usageCursorOf(page.Rows[q.Limit-1], q)
			break
		}
		var r sandbox.UsageRow
		if err := rows.Scan(&r.Day, &r.Tenant, &r.Sandbox, &r.Seconds, &r.CPUSeconds, &r.MemoryGiBSeconds, &r.DiskGiBSeconds, &r.Sent, &r.Received); err != nil {
			return sandbox.UsagePage{}, classify(err)
		}
		page.Rows = append(page.Rows, r)
	}
	return page, classify(rows.Err())
}

func groups(q sandbox.UsageQuery) []string {
	names := make([]string, len(q.By))
	for i, g := range q.By {
		names[i] = string(g)
	}
	slices.Sort(names)
	return names
}

func usageCursorOf(r sandbox.UsageRow, q sandbox.UsageQuery) string {
	b, _ := json.Marshal(usageCursor{int64(r.Day), string(r.Tenant), r.Sandbox, groups(q)}) // strings and numbers never fail
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseUsageCursor returns the row before the page of q; for the first page one before
// all rows.
func parseUsageCursor(q sandbox.UsageQuery) (c usageCursor, err error) {
	if q.Cursor == "" {
		return usageCursor{Day: -1}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(q.Cursor)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || !slices.Equal(c.By, groups(q)) {
		return c, sandbox.Errorf(sandbox.Invalid, "the cursor is not one that this list returned")
	}
	return c, nil
}

// TrimUsage implements sandbox.UsageStore.
func (s *Store) TrimUsage(ctx context.Context, before sandbox.Day) (int, error) {
	return s.deleteAll(ctx, int64(before), func(st *statements) *sql.Stmt { return st.trimUsage })
}
