// Package scheduler chooses the Nodes that a Boot may start on. Its choice is only a
// proposal: a Node admits or refuses, so a slightly stale view does no harm, and several
// Schedulers may serve at once.
package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// refreshEvery is the interval at which Run refreshes the view.
	refreshEvery = 2 * time.Second
	// staleAfter is the age at which Place reads the Store itself.
	staleAfter = 5 * time.Second
	// retryAfter is the Retry-After when no Node is available.
	retryAfter = 5 * time.Second
	// reportLimit bounds the wait for the report of one Node, and reportLife is the age
	// from which a report is ignored.
	reportLimit = time.Second
	reportLife  = 3 * refreshEvery
	// sampled is how many Nodes Place compares, and tried how many it returns.
	sampled, tried = 8, 3
	// startTook is the expected turn of a start on a Node that reports none.
	startTook = 100 * time.Millisecond
	// fetchTook is the expected time to fetch an image, by which a Node that has it is
	// preferred: not for ever, or all Sandboxes of a Template would be on one Node.
	fetchTook = 2 * time.Second
	// waitStep and freeSteps are how finely Nodes are compared: below that they take turns.
	waitStep  = 200 * time.Millisecond
	freeSteps = 32
)

// Reports returns the reports of Nodes. sandbox.Nodes has it.
type Reports interface {
	// Stats returns the state of a Node.
	Stats(ctx context.Context, node string) (sandbox.NodeStats, error)
}

// Scheduler places Boots on the Nodes with a valid Lease. It implements
// sandbox.Placement. Use New; Run is optional and makes Place faster, and better where
// there are several Nodes.
type Scheduler struct {
	store   sandbox.NodeStore
	reports Reports // nil: Nodes take turns
	log     *slog.Logger

	mu    sync.Mutex
	nodes []*candidate // by name
	asked time.Time    // when the Store was asked for the records; zero: never
	turn  int          // the Node that is looked at first
}

// A candidate is a Node as the Scheduler knows it. It is guarded by Scheduler.mu.
type candidate struct {
	record   sandbox.NodeRecord
	report   sandbox.NodeStats
	reported time.Time   // when report was requested; zero: never
	placed   []placement // Boots that were placed here first since then
	asking   bool        // a request for a report is in progress
}

// A placement is a Boot that was placed on a Node.
type placement struct {
	tenant sandbox.TenantID
	image  string
	memory int64 // bytes of the Shape
}

var _ sandbox.Placement = (*Scheduler)(nil)

// New returns a Scheduler over the Leases in store. reports may be nil: then Nodes take
// turns. log may be nil.
func New(store sandbox.NodeStore, reports Reports, log *slog.Logger) *Scheduler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Scheduler{store: store, reports: reports, log: log}
}

// Run keeps the view of the Nodes fresh until ctx ends.
func (s *Scheduler) Run(ctx context.Context) error {
	ticker := time.NewTicker(refreshEvery)
	defer ticker.Stop()
	var asked sync.WaitGroup
	defer asked.Wait()
	for {
		if err := s.refresh(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("reading the nodes failed; the scheduler uses an old view", telemetry.KeyError, err)
		}
		s.ask(ctx, &asked)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Place implements sandbox.Placement. It compares up to sampled Nodes, and Nodes without
// room only if too few have some. It compares by these properties, in this order: the Node
// reports; it has room; a Pool has an idle Boot of the image and Shape; it can start the
// Boot sooner, by the turn of the Tenant in its queue and the fetch of the image; it has
// more free memory. Nodes that are alike take turns. Nodes that lack needed CPU features
// are left out.
func (s *Scheduler) Place(ctx context.Context, needs sandbox.BootNeeds) ([]string, error) {
	names, lacking := s.best(needs)
	if len(names) == 0 {
		// The view may lack the first Node, or a Node whose Lease was renewed just now.
		if err := s.refresh(ctx); err != nil {
			return nil, err
		}
		names, lacking = s.best(needs)
	}
	switch {
	case len(names) > 0:
	case len(lacking) > 0:
		return nil, lackCPU("no node", lacking, needs.CPU)
	default:
		return nil, noNode()
	}
	return names, nil
}

// PlaceElsewhere implements sandbox.Placement. It prefers Nodes as Place does.
func (s *Scheduler) PlaceElsewhere(ctx context.Context, needs sandbox.BootNeeds, node string) (string, error) {
	if err := s.freshen(ctx); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sample, lacking := s.sample(needs, func(c *candidate) bool {
		return c.record.Name != node && c.hasRoom()
	})
	switch {
	case len(sample) > 0:
	case len(lacking) > 0:
		return "", lackCPU("no other node with room", lacking, needs.CPU)
	default:
		return "", &sandbox.Error{Code: sandbox.Exhausted, Detail: "no other node has room for the sandbox", RetryAfter: retryAfter}
	}
	sample[0].place(needs)
	return sample[0].record.Name, nil
}

// freshen reads the records if the view is too old.
func (s *Scheduler) freshen(ctx context.Context) error {
	s.mu.Lock()
	stale := s.isStale()
	s.mu.Unlock()
	if !stale {
		return nil
	}
	return s.refresh(ctx)
}

// isStale reports whether the view is too old. s.mu is held.
func (s *Scheduler) isStale() bool { return time.Since(s.asked) > staleAfter }

// Ready returns Exhausted if no Node has a valid Lease, and the error of a Store that
// cannot be read. It places nothing.
func (s *Scheduler) Ready(ctx context.Context) error {
	if err := s.refresh(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.live()) == 0 {
		return noNode()
	}
	return nil
}

// live returns the Nodes with a valid Lease, by name. s.mu is held.
func (s *Scheduler) live() []*candidate {
	// Leases run by the Store's clock, and from the question on by this process's
	// monotonic one: its wall clock may be wrong.
	age := time.Since(s.asked)
	return slices.DeleteFunc(slices.Clone(s.nodes), func(c *candidate) bool { return c.record.LeaseLeft <= age })
}

func noNode() error {
	return &sandbox.Error{Code: sandbox.Exhausted, Detail: "no node is available to run the sandbox", RetryAfter: retryAfter}
}

// lackCPU says which CPU features each of the Nodes lacks. where tells which Nodes these are.
func lackCPU(where string, lacking []*candidate, needs sandbox.CPUFeatures) error {
	const shown = 3
	var each []string
	for _, c := range lacking[:min(shown, len(lacking))] {
		each = append(each, fmt.Sprintf("%s lacks %s", c.record.Name, sandbox.ListCPUFeatures(c.report.Engine.CPU.Lacks(needs))))
	}
	if more := len(lacking) - shown; more > 0 {
		each = append(each, fmt.Sprintf("and %d more", more))
	}
	return sandbox.Errorf(sandbox.Conflict, "%s has the CPU features that this state needs: %s", where, strings.Join(each, "; ")).WithCause(sandbox.ErrCPU)
}

// best returns up to tried Nodes with a valid Lease, best first; none when the view is
// too old. lacking are the Nodes that were left out for their CPU.
func (s *Scheduler) best(needs sandbox.BootNeeds) (names []string, lacking []*candidate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isStale() {
		return nil, nil
	}
	sample, lacking := s.sample(needs, func(*candidate) bool { return true })
	for _, c := range sample[:min(tried, len(sample))] {
		names = append(names, c.record.Name)
	}
	if len(sample) > 0 {
		sample[0].place(needs)
	}
	return names, lacking
}

// sample returns up to sampled Nodes that take Boots, that fits accepts and that have the
// needed CPU features, best first. lacking are the Nodes that only lack features. s.mu is
// held.
func (s *Scheduler) sample(needs sandbox.BootNeeds, fits func(*candidate) bool) (sample, lacking []*candidate) {
	var roomy, rest []*candidate
	for _, c := range s.live() {
		switch {
		case c.record.Draining || !fits(c):
		case len(c.report.Engine.CPU.Lacks(needs.CPU)) > 0:
			lacking = append(lacking, c)
		case c.hasRoom():
			roomy = append(roomy, c)
		default:
			rest = append(rest, c)
		}
	}
	for _, some := range [][]*candidate{roomy, rest} {
		for i := range min(sampled-len(sample), len(some)) {
			sample = append(sample, some[(s.turn+i)%len(some)])
		}
	}
	s.turn++
	ranks := make(map[*candidate]rank, len(sample))
	for _, c := range sample {
		ranks[c] = c.rank(needs)
	}
	slices.SortStableFunc(sample, func(a, b *candidate) int { return ranks[a].compare(ranks[b]) })
	return sample, lacking
}

// A rank is the fitness of a Node for a Boot: a lower one is better.
type rank struct {
	silent, full, cold bool
	wait               time.Duration // until a Boot can start, in steps of waitStep
	used               int           // of the memory, in freeSteps
}

// compare orders ranks, the best first.
func (r rank) compare(other rank) int {
	return cmp.Or(
		compareFlaws(r.silent, other.silent), compareFlaws(r.full, other.full), compareFlaws(r.cold, other.cold),
		cmp.Compare(r.wait, other.wait), cmp.Compare(r.used, other.used),
	)
}

// compareFlaws orders without before with.
func compareFlaws(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// rank rates a Node for a Boot. Scheduler.mu is held.
func (c *candidate) rank(needs sandbox.BootNeeds) rank {
	if c.isSilent() {
		return rank{silent: true}
	}
	r := rank{full: c.report.Full, cold: !c.hasIdle(needs.Image, needs.Shape)}
	wait := c.wait(needs.Tenant, r.cold)
	if needs.Image != "" && !c.hasImage(needs.Image) {
		wait += fetchTook
	}
	r.wait = wait.Truncate(waitStep)
	if h := c.report.Host; h.MemoryTotal > 0 {
		used := h.MemoryTotal - h.MemoryFree
		for _, p := range c.placed {
			used += p.memory
		}
		r.used = int(used * freeSteps / h.MemoryTotal)
	}
	return r
}

// isSilent reports whether the last report is too old, or missing. Scheduler.mu is held.
func (c *candidate) isSilent() bool {
	return c.reported.IsZero() || time.Since(c.reported) > reportLife
}

// hasRoom reports whether the Node has reported room. Scheduler.mu is held.
func (c *candidate) hasRoom() bool { return !c.isSilent() && !c.report.Full }

// place notes that a Boot was placed here. Without reports nothing is noted: only a report
// ends a note. Scheduler.mu is held.
func (c *candidate) place(needs sandbox.BootNeeds) {
	if !c.isSilent() {
		c.placed = append(c.placed, placement{needs.Tenant, needs.Image, needs.Shape.MemoryBytes})
	}
}

// wait is how long one more start of a Tenant would wait here. Tenants take turns, so a
// Tenant waits for all of its own starts, and for no more of each other one. cold: starts
// that were placed since the report count. Scheduler.mu is held.
func (c *candidate) wait(tenant sandbox.TenantID, cold bool) time.Duration {
	starts := map[sandbox.TenantID]int{}
	for _, w := range c.report.Waiting {
		starts[w.Tenant] += w.Starts
	}
	if cold {
		for _, p := range c.placed {
			starts[p.tenant]++
		}
	}
	mine := starts[tenant]
	ahead := mine
	for other, n := range starts {
		if other != tenant {
			ahead += min(n, mine+1)
		}
	}
	switch {
	case c.report.Turn == 0: // of an earlier version
		return c.report.Wait + time.Duration(ahead)*startTook
	case c.report.Wait > 0: // for the turn in progress too
		ahead++
	}
	return time.Duration(ahead) * c.report.Turn
}

// hasIdle reports whether a Pool has a Boot for the request left, by the last report.
func (c *candidate) hasIdle(image string, shape sandbox.Shape) bool {
	left := 0
	for _, p := range c.report.Pools {
		if (image == "" || p.Image == image) && p.Shape.Covers(shape) {
			left += p.Idle
		}
	}
	for _, p := range c.placed {
		if left > 0 && (image == "" || p.image == image) {
			left--
		}
	}
	return left > 0
}

func (c *candidate) hasImage(image string) bool {
	return slices.Contains(c.report.Images, image) ||
		slices.ContainsFunc(c.report.Pools, func(p sandbox.PoolStats) bool { return p.Image == image })
}

// refresh reads the records of the Nodes.
func (s *Scheduler) refresh(ctx context.Context) error {
	asked := time.Now()
	records, err := s.store.Nodes(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[string]*candidate{}
	for _, c := range s.nodes {
		known[c.record.Name] = c
	}
	nodes := make([]*candidate, len(records))
	for i, r := range records {
		c := known[r.Name]
		if c == nil || c.record.Holder != r.Holder {
			c = new(candidate)
		}
		c.record, nodes[i] = r, c
	}
	s.nodes, s.asked = nodes, asked
	return nil
}

// ask requests the reports of all Nodes with a valid Lease, unless there is only one Node.
// Nodes that are away count: their Sandboxes start on the others. Each report counts from
// when it arrives, so that a silent Node delays none of the others.
func (s *Scheduler) ask(ctx context.Context, asked *sync.WaitGroup) {
	if s.reports == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.nodes) < 2 {
		return
	}
	for _, c := range s.live() {
		if !c.asking {
			c.asking = true
			name := c.record.Name
			asked.Go(func() { s.hear(ctx, c, name) })
		}
	}
}

// hear requests the report of one Node.
func (s *Scheduler) hear(ctx context.Context, c *candidate, name string) {
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	s.mu.Lock()
	began, before := time.Now(), len(c.placed)
	s.mu.Unlock()
	report, err := s.reports.Stats(ctx, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.asking = false
	if err != nil {
		s.log.Debug("a node did not report", telemetry.KeyNode, name, telemetry.KeyError, err)
		return
	}
	c.report, c.reported = report, began
	c.placed = slices.Clone(c.placed[before:])
}
