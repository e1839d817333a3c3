package sandbox

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rate is the charge for a Sandbox per unit of time while it has a Boot: the resources
// that the Boot may use, whether it uses them or not.
type Rate struct {
	CPUs        float64
	MemoryBytes int64
	DiskBytes   int64
}

// Rate returns the current Rate of s; false when s is not charged: before it runs, while
// it is paused or resuming, and once it is stopping.
func (s *Sandbox) Rate() (Rate, bool) {
	if s.State != Running && s.State != Pausing {
		return Rate{}, false
	}
	return Rate{CPUs: s.Limits.CPUs, MemoryBytes: s.Limits.MemoryBytes, DiskBytes: s.Shape.DiskBytes}, true
}

// Over returns the usage accrued at this Rate over d.
func (r Rate) Over(d time.Duration) UsageAmount {
	const gib = 1 << 30
	s := d.Seconds()
	return UsageAmount{
		Seconds: s, CPUSeconds: r.CPUs * s,
		MemoryGiBSeconds: float64(r.MemoryBytes) / gib * s, DiskGiBSeconds: float64(r.DiskBytes) / gib * s,
	}
}

// UsageAmount is usage for which Sandboxes were charged.
type UsageAmount struct {
	Seconds          float64 // with a Boot
	CPUSeconds       float64
	MemoryGiBSeconds float64
	DiskGiBSeconds   float64
	Traffic          // of outgoing connections
}

// Add adds b to a.
func (a *UsageAmount) Add(b UsageAmount) {
	a.Seconds += b.Seconds
	a.CPUSeconds += b.CPUSeconds
	a.MemoryGiBSeconds += b.MemoryGiBSeconds
	a.DiskGiBSeconds += b.DiskGiBSeconds
	a.Sent += b.Sent
	a.Received += b.Received
}

// Day is a UTC day, counted from 1970-01-01.
type Day int64

const dayLength = 24 * time.Hour

// DayOf returns the Day of t.
func DayOf(t time.Time) Day {
	return Day(math.Floor(float64(t.Unix()) / dayLength.Seconds()))
}

// ParseDay parses a date such as 2026-01-31; Invalid for other text.
func ParseDay(text string) (Day, error) {
	t, err := time.Parse(time.DateOnly, text)
	if err != nil || t.Year() < 1970 {
		return 0, Errorf(Invalid, "%.40q is not a day such as 2026-01-31", text)
	}
	return DayOf(t), nil
}

// Start returns the beginning of d.
func (d Day) Start() time.Time { return time.Unix(int64(d)*int64(dayLength/time.Second), 0).UTC() }

func (d Day) String() string { return d.Start().Format(time.DateOnly) }

// DaysBetween yields each Day of [from, to) in order, with the duration within it. It
// yields nothing when to is not after from.
func DaysBetween(from, to time.Time) iter.Seq2[Day, time.Duration] {
	return func(yield func(Day, time.Duration) bool) {
		for from.Before(to) {
			day := DayOf(from)
			end := (day + 1).Start()
			if end.After(to) {
				end = to
			}
			if !yield(day, end.Sub(from)) {
				return
			}
			from = end
		}
	}
}

// ThisMonth returns the query for a Tenant's usage in the month of now, in one row.
func ThisMonth(tenant TenantID, now time.Time) UsageQuery {
	now = now.UTC()
	return UsageQuery{Tenant: tenant, From: DayOf(now.AddDate(0, 0, 1-now.Day())), To: DayOf(now) + 1}
}

// UsageGroup is a key by which a UsageQuery groups amounts.
type UsageGroup string

const (
	ByDay     UsageGroup = "day"
	BySandbox UsageGroup = "sandbox"
	ByTenant  UsageGroup = "tenant"
)

const (
	// MaxUsagePage bounds UsageQuery.Limit.
	MaxUsagePage = 1000
	// MaxUsageDays bounds the days of a UsageQuery.
	MaxUsageDays = 3660
)

// UsageQuery selects usage by days. Its zero value selects nothing.
type UsageQuery struct {
	Tenant  TenantID     // empty: all
	Sandbox string       // ID; empty: all
	From    Day          // the first day
	To      Day          // the day after the last
	By      []UsageGroup // empty: one row in total
	Limit   int          // of a page; zero: MaxUsagePage
	Cursor  string       // UsagePage.Next; empty: first page
}

// Check returns Invalid, saying what to change, for a query that is out of bounds or
// malformed.
func (q UsageQuery) Check() error {
	switch {
	case q.To <= q.From:
		return Errorf(Invalid, "to, which is the day after the last, must be after from")
	case q.To-q.From > MaxUsageDays:
		return Errorf(Invalid, "from and to may be at most %d days apart", MaxUsageDays)
	case q.Limit < 0 || q.Limit > MaxUsagePage:
		return Errorf(Invalid, "limit must be between 1 and %d", MaxUsagePage)
	}
	for i, g := range q.By {
		if (g != ByDay && g != BySandbox && g != ByTenant) || slices.Contains(q.By[:i], g) {
			return Errorf(Invalid, "group_by is a list of %q, %q and %q, each at most once, with commas between", ByDay, BySandbox, ByTenant)
		}
	}
	return nil
}

// UsageRow is the usage of one group. Fields by which the query does not group are zero.
type UsageRow struct {
	Day     Day
	Tenant  TenantID
	Sandbox string
	UsageAmount
}

// UsagePage is one page of the rows, ordered by day, Tenant and Sandbox.
type UsagePage struct {
	Rows []UsageRow
	Next string // empty: last page
}

// UsageStore keeps the usage of Sandboxes. SandboxStore's writes count it in their own
// transaction: a Sandbox's Rate begins, changes and ends with its record. While a Sandbox
// keeps running, CountUsage counts it.
type UsageStore interface {
	// CountUsage counts the usage of the running Sandboxes among these until at, when
	// they were known to run. It skips the others.
	CountUsage(ctx context.Context, sandboxes []string, at time.Time) error
	// CountTraffic adds each Boot's traffic since its last count to the day of at. Totals
	// below the last count mean that the Boot's counter restarted at zero.
	CountTraffic(ctx context.Context, boots []BootTraffic, at time.Time) error
	// Usage returns a page of usage. An invalid query and a malformed Cursor are Invalid.
	Usage(ctx context.Context, query UsageQuery) (UsagePage, error)
	// TrimUsage removes usage before a day and returns the number of records removed.
	TrimUsage(ctx context.Context, before Day) (int, error)
	// CountedUsage returns the usage counted by this Store since it was opened.
	CountedUsage() UsageAmount
}

// Prices holds the prices of usage, in Currency. The zero value has no prices.
type Prices struct {
	Currency      string  // three capital letters; empty: no prices
	CPUHour       float64 // one CPU for an hour
	MemoryGiBHour float64
	DiskGiBHour   float64
	EgressGiB     float64 // a GiB sent
}

// Cost is the cost of a UsageAmount, by resource.
type Cost struct {
	CPU, Memory, Disk, Egress float64
}

// Total returns the sum of c.
func (c Cost) Total() float64 { return c.CPU + c.Memory + c.Disk + c.Egress }

// Of returns the Cost of a.
func (p Prices) Of(a UsageAmount) Cost {
	const hour, gib = 3600, 1 << 30
	return Cost{
		CPU:    a.CPUSeconds / hour * p.CPUHour,
		Memory: a.MemoryGiBSeconds / hour * p.MemoryGiBHour,
		Disk:   a.DiskGiBSeconds / hour * p.DiskGiBHour,
		Egress: float64(a.Sent) / gib * p.EgressGiB,
	}
}

// ParsePrices parses CURRENCY followed by FIELD=PRICE items, separated by commas, as in
// "USD,vcpu_hour=0.05". FIELD is vcpu_hour, memory_gib_hour, disk_gib_hour or egress_gib.
func ParsePrices(text string) (Prices, error) {
	parts := strings.Split(text, ",")
	p := Prices{Currency: strings.TrimSpace(parts[0])}
	if len(p.Currency) != 3 || strings.Trim(p.Currency, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return p, fmt.Errorf("%q is not a currency: begin with three capital letters, as in USD,vcpu_hour=0.05", parts[0])
	}
	fields := map[string]*float64{"vcpu_hour": &p.CPUHour, "memory_gib_hour": &p.MemoryGiBHour, "disk_gib_hour": &p.DiskGiBHour, "egress_gib": &p.EgressGiB}
	for _, item := range parts[1:] {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		n, err := strconv.ParseFloat(value, 64)
		at := fields[name]
		if at == nil {
			return p, fmt.Errorf("%q is not a price: write FIELD=PRICE, each field once, of vcpu_hour, memory_gib_hour, disk_gib_hour, egress_gib", item)
		}
		if err != nil || !(n >= 0) || n > 1e6 {
			return p, fmt.Errorf("%s must be a number from 0 to 1000000, not %q", name, value)
		}
		*at = n
		delete(fields, name)
	}
	return p, nil
}
