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

// Rate is what a Tenant is charged for a Sandbox while it has a Boot: what the
// Boot may use, whether it does or not.
type Rate struct {
	CPUs        float64
	MemoryBytes int64
	DiskBytes   int64
}

// Rate returns what s is charged for now; false when for nothing: before it runs,
// while it is paused or resumes, and once its end is decided.
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

// UsageAmount is what Sandboxes were charged for.
type UsageAmount struct {
	Seconds          float64 // that they had a Boot
	CPUSeconds       float64
	MemoryGiBSeconds float64
	DiskGiBSeconds   float64
	Traffic          // of connections that they opened
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

// Day is a day of UTC, counted from the first of 1970.
type Day int64

const dayLength = 24 * time.Hour

// DayOf returns the Day that t is in.
func DayOf(t time.Time) Day {
	return Day(math.Floor(float64(t.Unix()) / dayLength.Seconds()))
}

// ParseDay reads a date such as 2026-01-31; Invalid for other text.
func ParseDay(text string) (Day, error) {
	t, err := time.Parse(time.DateOnly, text)
	if err != nil || t.Year() < 1970 {
		return 0, Errorf(Invalid, "%.40q is not a day such as 2026-01-31", text)
	}
	return DayOf(t), nil
}

// Start is the first moment of d.
func (d Day) Start() time.Time { return time.Unix(int64(d)*int64(dayLength/time.Second), 0).UTC() }

func (d Day) String() string { return d.Start().Format(time.DateOnly) }

// DaysBetween yields how much of [from, to) is in each Day, in order; nothing
// when to is not after from.
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

// ThisMonth asks for what a Tenant used in the month of now, in one row.
func ThisMonth(tenant TenantID, now time.Time) UsageQuery {
	now = now.UTC()
	return UsageQuery{Tenant: tenant, From: DayOf(now.AddDate(0, 0, 1-now.Day())), To: DayOf(now) + 1}
}

// UsageGroup is by what a UsageQuery tells amounts apart.
type UsageGroup string

const (
	ByDay     UsageGroup = "day"
	BySandbox UsageGroup = "sandbox"
	ByTenant  UsageGroup = "tenant"
)

const (
	// MaxUsagePage bounds UsageQuery.Limit.
	MaxUsagePage = 1000
	// MaxUsageDays bounds how many days a UsageQuery asks for.
	MaxUsageDays = 3660
)

// UsageQuery asks for what was used on days. Its zero value asks for nothing.
type UsageQuery struct {
	Tenant  TenantID     // empty: all
	Sandbox string       // ID; empty: all
	From    Day          // the first day
	To      Day          // the day after the last
	By      []UsageGroup // empty: one row for all
	Limit   int          // of a page; zero: MaxUsagePage
	Cursor  string       // UsagePage.Next of the page before; empty: the beginning
}

// Check returns Invalid, saying what to change, for a query that asks for too
// much or the wrong way around.
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
			return Errorf(Invalid, "group_by is of %q, %q and %q, each once, with commas between", ByDay, BySandbox, ByTenant)
		}
	}
	return nil
}

// UsageRow is what was used, by what the query tells apart; other fields are
// zero.
type UsageRow struct {
	Day     Day
	Tenant  TenantID
	Sandbox string
	UsageAmount
}

// UsagePage is some of the rows that were asked for, ordered by day, Tenant and
// Sandbox.
type UsagePage struct {
	Rows []UsageRow
	Next string // empty: there are no more
}

// UsageStore keeps what Sandboxes used. It is counted by the writes of
// SandboxStore themselves: what a Sandbox is charged for begins, changes and
// ends with its record, in one transaction. For one that runs on it is counted
// by CountUsage.
type UsageStore interface {
	// CountUsage counts what those of the Sandboxes that run have used until at,
	// when they were known to run. Others are passed over.
	CountUsage(ctx context.Context, sandboxes []string, at time.Time) error
	// CountTraffic counts, for the day of at, what each Boot carried beyond what was
	// counted of it before; one that carried less than that began anew.
	CountTraffic(ctx context.Context, boots []BootTraffic, at time.Time) error
	// Usage returns a page of what was counted. A query that is not right and a
	// Cursor that is none of ours are Invalid.
	Usage(ctx context.Context, query UsageQuery) (UsagePage, error)
	// TrimUsage removes what was used before a day and returns how many records
	// that were.
	TrimUsage(ctx context.Context, before Day) (int, error)
	// CountedUsage returns what this Store has counted since it was opened.
	CountedUsage() UsageAmount
}

// Prices are what usage costs, in Currency. The zero value has no prices.
type Prices struct {
	Currency      string  // three capital letters; empty: no prices
	CPUHour       float64 // one CPU for an hour
	MemoryGiBHour float64
	DiskGiBHour   float64
	EgressGiB     float64 // a GiB sent
}

// Cost is what an amount costs, by what it is for.
type Cost struct {
	CPU, Memory, Disk, Egress float64
}

// Total is all of it.
func (c Cost) Total() float64 { return c.CPU + c.Memory + c.Disk + c.Egress }

// Of returns what an amount costs.
func (p Prices) Of(a UsageAmount) Cost {
	const hour, gib = 3600, 1 << 30
	return Cost{
		CPU:    a.CPUSeconds / hour * p.CPUHour,
		Memory: a.MemoryGiBSeconds / hour * p.MemoryGiBHour,
		Disk:   a.DiskGiBSeconds / hour * p.DiskGiBHour,
		Egress: float64(a.Sent) / gib * p.EgressGiB,
	}
}

// ParsePrices reads CURRENCY and then FIELD=PRICE, with commas between, of
// vcpu_hour, memory_gib_hour, disk_gib_hour and egress_gib: "USD,vcpu_hour=0.05".
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
