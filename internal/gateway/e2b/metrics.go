package e2b

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// metricView is a Sandbox's use at one time.
type metricView struct {
	Timestamp     string  `json:"timestamp"`
	TimestampUnix int64   `json:"timestampUnix"`
	CPUCount      int     `json:"cpuCount"`
	CPUUsedPct    float64 `json:"cpuUsedPct"`
	MemUsed       int64   `json:"memUsed"`
	MemTotal      int64   `json:"memTotal"`
	MemCache      int64   `json:"memCache"`
	DiskUsed      int64   `json:"diskUsed"`
	DiskTotal     int64   `json:"diskTotal"`
}

func metricOf(l execution.Load) metricView {
	return metricView{
		Timestamp: timestamp(l.At), TimestampUnix: l.At.Unix(), CPUCount: l.CPUs, CPUUsedPct: l.CPUPercent,
		MemUsed: l.MemoryUsed, MemTotal: l.MemoryAll, MemCache: l.MemoryCache, DiskUsed: l.DiskUsed, DiskTotal: l.DiskAll,
	}
}

// Metrics answers GET /sandboxes/{id}/metrics with the kept measurements from when the
// Sandbox was used, and a new one.
func (a *API) Metrics(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	from, to, err := period(r)
	if err != nil {
		return err
	}
	sb, err := a.live(r, who)
	if err != nil {
		return err
	}
	if sb.State == sandbox.Running {
		if err := a.measure(r.Context(), who, sb.ID); err != nil {
			return absent(err, sb.ID)
		}
	}
	views := []metricView{}
	for _, l := range a.loads.of(sb.ID) {
		if !l.At.Before(from) && !l.At.After(to) {
			views = append(views, metricOf(l))
		}
	}
	return rest.Reply(w, http.StatusOK, views)
}

// sinceMillis is the least number that is a time in milliseconds, which clients of a
// year ago send instead of seconds: as seconds it is in the year 5138.
const sinceMillis = 100_000_000_000

// period is the time range of a query, which may have more parameters.
func period(r *http.Request, more ...string) (from, to time.Time, err error) {
	values, err := parameters(r, append(more, "start", "end")...)
	if err != nil {
		return from, to, err
	}
	bounds := []time.Time{{}, time.Now().Add(24 * time.Hour)} // all times
	for i, name := range []string{"start", "end"} {
		s := values.Get(name)
		if s == "" {
			continue
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return from, to, sandbox.Errorf(sandbox.Invalid, "%s must be a time in whole seconds since 1970", name)
		}
		if n >= sinceMillis {
			bounds[i] = time.UnixMilli(n)
			continue
		}
		bounds[i] = time.Unix(n, 0)
		if name == "end" {
			bounds[i] = bounds[i].Add(time.Second - 1) // all of that second
		}
	}
	if bounds[0].After(bounds[1]) {
		return from, to, sandbox.Errorf(sandbox.Invalid, "start is after end")
	}
	return bounds[0], bounds[1], nil
}

// measure adds the Sandbox's current use to its measurements.
func (a *API) measure(ctx context.Context, who sandbox.Identity, id string) error {
	_, guest, err := a.Guests.Open(ctx, who.Tenant, id)
	if err != nil {
		return err
	}
	l, err := guest.Load(ctx)
	if err != nil {
		return err
	}
	a.loads.watch(id)
	a.loads.add(id, l)
	return nil
}

const (
	// inUse is how long after its last use a Sandbox is measured: measuring must not
	// keep an idle one busy.
	inUse = time.Minute
	// sampleTime bounds one measurement.
	sampleTime = 3 * time.Second
	// samplers bounds the concurrent measurements.
	samplers = 16
)

// Sample measures, every loadStep until ctx ends, the watched Sandboxes that are in
// use.
func (a *API) Sample(ctx context.Context) {
	tick := time.NewTicker(loadStep)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.sampleAll(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (a *API) sampleAll(ctx context.Context) {
	var work errgroup.Group
	work.SetLimit(samplers)
	used := a.Guests.UsedWithin(inUse)
	for _, id := range a.loads.watchedOf(used) {
		work.Go(func() error {
			a.sample(ctx, id)
			return nil
		})
	}
	_ = work.Wait() // none fails
}

// sample measures a Sandbox without using it. One that does not answer has no point at
// that time.
func (a *API) sample(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	sb, err := a.Records.SandboxByID(ctx, id)
	if err == nil && !sb.Live() {
		a.loads.unwatch(id)
		return
	}
	if err != nil || sb.State != sandbox.Running {
		return
	}
	if l, err := a.Guests.Peek(sb).Load(ctx); err == nil {
		a.loads.add(id, l)
	}
}

// maxMeasured is how many Sandboxes one query may name.
const maxMeasured = 100

// LatestMetrics answers GET /sandboxes/metrics. It leaves out Sandboxes that do not
// exist.
func (a *API) LatestMetrics(w http.ResponseWriter, r *http.Request, who sandbox.Identity) error {
	values, err := parameters(r, "sandbox_ids")
	if err != nil {
		return err
	}
	ids := strings.FieldsFunc(values.Get("sandbox_ids"), func(c rune) bool { return c == ',' })
	if len(ids) == 0 || len(ids) > maxMeasured {
		return sandbox.Errorf(sandbox.Invalid, "sandbox_ids must name 1 to %d sandboxes", maxMeasured)
	}
	var mu sync.Mutex
	latest := map[string]metricView{}
	g, ctx := errgroup.WithContext(r.Context())
	g.SetLimit(8)
	for _, id := range ids {
		g.Go(func() error {
			sb, err := a.liveByID(ctx, who, id)
			if err != nil || sb.State == sandbox.Running && a.measure(ctx, who, id) != nil {
				return ctx.Err()
			}
			if all := a.loads.of(id); len(all) > 0 {
				mu.Lock()
				defer mu.Unlock()
				latest[id] = metricOf(all[len(all)-1])
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return rest.Reply(w, http.StatusOK, map[string]any{"sandboxes": latest})
}

const (
	loadStep = 5 * time.Second // of measurements within this time only the latest is kept
	maxLoads = 240             // per Sandbox, twenty minutes of steps or longer ones
	maxKept  = 2048            // measured Sandboxes
)

// loads keeps the measurements, in memory, and the set of watched Sandboxes.
type loads struct {
	mu      sync.Mutex
	byID    map[string][]execution.Load
	watched map[string]bool
}

// watch adds a Sandbox to the watched Sandboxes, which are measured while they are
// used. Beyond maxKept it replaces another.
func (l *loads) watch(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watched == nil {
		l.watched = map[string]bool{}
	}
	if len(l.watched) >= maxKept && !l.watched[id] {
		for other := range l.watched {
			delete(l.watched, other)
			break
		}
	}
	l.watched[id] = true
}

func (l *loads) unwatch(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.watched, id)
	delete(l.byID, id)
}

// watchedOf returns the watched Sandboxes among ids.
func (l *loads) watchedOf(ids map[string]bool) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var both []string
	for id := range l.watched {
		if ids[id] {
			both = append(both, id)
		}
	}
	return both
}

func (l *loads) add(id string, m execution.Load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID == nil {
		l.byID = map[string][]execution.Load{}
	}
	all := l.byID[id]
	n := len(all)
	if n > 0 && m.At.Before(all[n-1].At) {
		return // a concurrent measurement was later
	}
	if n > 1 && m.At.Sub(all[n-2].At) < loadStep {
		all = all[:n-1]
	}
	if len(all) == maxLoads {
		all = thinned(all)
	}
	l.byID[id] = append(all, m)
	if len(l.byID) > maxKept {
		l.dropOldest()
	}
}

// thinned drops every other measurement of the older three quarters: older measurements
// have longer steps.
func thinned(all []execution.Load) []execution.Load {
	older := len(all) * 3 / 4
	kept := make([]execution.Load, 0, len(all))
	for i, m := range all {
		if i >= older || i%2 == 0 {
			kept = append(kept, m)
		}
	}
	return kept
}

// dropOldest forgets the Sandbox whose last measurement is the oldest. The lock is
// held.
func (l *loads) dropOldest() {
	var oldest string
	var at time.Time
	for id, all := range l.byID {
		if last := all[len(all)-1].At; oldest == "" || last.Before(at) {
			oldest, at = id, last
		}
	}
	delete(l.byID, oldest)
}

func (l *loads) of(id string) []execution.Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]execution.Load(nil), l.byID[id]...)
}
