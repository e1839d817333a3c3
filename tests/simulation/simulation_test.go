package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
)

// The plan of a simulation in minutes.
const (
	full     = 5  // the population has its size
	burst    = 6  // many creates of one Tenant at once
	loss     = 7  // machines end or are cut off
	burstAll = 10 // many creates of many Tenants at once
	back     = 11 // the machines return, empty
	shrinks  = 13 // the population falls to shrunk
	over     = 15
)

const (
	shrunk = 0.7 // of the population, at the end
	// life is how long a Sandbox lives on average, while the population keeps its size.
	life = 30 * time.Minute
	// bursts is the share of the population that a burst creates.
	bursts = 0.05
	// losses is the share of the machines that are lost: half of them end, the others are
	// cut off.
	losses = 0.03
	// paused and checkpointed are the shares of Sandboxes that are paused once they run, and
	// that have checkpoints.
	paused, checkpointed = 0.04, 0.02
	// maxRatio bounds the fullest Node's memory in relation to the mean, from half load on.
	maxRatio = 1.3
)

var (
	size = flag.Int("simulate.nodes", 100, "simulate this many nodes, with a hundred sandboxes each")
	seed = flag.Uint64("simulate.seed", 0, "the seed of the simulation; 0: a random one, which is printed")
	out  = flag.String("simulate.out", "", "write the samples and the state for the benchmark to this folder")
)

// sample is the state of the Nodes that are up, in shares of their memory.
type sample struct {
	Minute          int
	Sandboxes       int // that run
	Min, Mean, Max  float64
	Waiting, Absent int // clients that wait for a create, and for a Sandbox after a loss
}

func (s sample) ratio() float64 { return s.Max / s.Mean }

func (s sample) String() string {
	return fmt.Sprintf("minute %d: %d sandboxes, %d clients wait for a create, %d have lost theirs; committed %.3f to %.3f, mean %.3f, ratio %.3f",
		s.Minute, s.Sandboxes, s.Waiting, s.Absent, s.Min, s.Max, s.Mean, s.ratio())
}

// chart is what tools/plots draws.
type chart struct {
	Title    string
	MaxRatio float64
	Samples  []sample
	Events   []event
}

// event is a part of the plan.
type event struct {
	Minute int
	What   string
}

// client is the owner of one Sandbox. It creates another one if that is lost.
type client struct {
	tenant sandbox.TenantID
	req    sandbox.CreateRequest
	pauses bool
	away   bool      // the Sandbox is paused
	lost   time.Time // since when it is missing after a loss; zero: it is not
}

// simulation is a cluster and its clients.
type simulation struct {
	*cluster
	ctx     context.Context
	random  *rand.Rand // of the goroutine that runs the plan
	clients sync.WaitGroup

	waiting, missing atomic.Int64

	mu        sync.Mutex
	sandboxes map[string]*client // by Sandbox ID
	ids       []string           // of sandboxes, to choose from; some have ended
	waits     []time.Duration    // of creates, refusals included
	replaced  []time.Duration    // from the loss of a Sandbox until it ran again
	refused   int
	lostAt    time.Time
}

// TestSimulation runs the scheduler, the session manager and the Nodes through bursts and
// losses of machines in simulated time. make simulate runs it with a thousand Nodes.
func TestSimulation(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("seed %d, %d nodes", *seed, *size)
	began := time.Now()
	var samples []sample
	var state []sandbox.NodeStats
	synctest.Test(t, func(t *testing.T) { samples, state = simulate(t, *size, *seed) })
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	t.Logf("took %s, %d MiB", time.Since(began).Round(time.Second), memory.Sys>>20)
	if *out != "" {
		write(t, *out+"/simulation.json", chart{
			Title:    fmt.Sprintf("%d nodes, %d sandboxes, seed %d", *size, 100**size, *seed),
			MaxRatio: maxRatio, Samples: samples,
			Events: []event{{burst, "a burst of one tenant"}, {loss, "nodes are lost"}, {burstAll, "bursts of 50 tenants"}, {back, "the nodes return"}, {shrinks, "fewer sandboxes"}},
		})
		write(t, *out+"/reports.json", state)
	}
}

func write(t *testing.T, file string, v any) {
	b, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(file, b, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}

// simulate runs the plan. It returns the samples of each minute, and the reports of the
// Nodes before the population shrinks.
func simulate(t *testing.T, nodes int, seed uint64) ([]sample, []sandbox.NodeStats) {
	const gib = 1 << 30
	shape := sandbox.DefaultShape()
	shape.MemoryBytes = gib / 2
	s := &simulation{ctx: context.WithoutCancel(t.Context()), random: rand.New(rand.NewPCG(seed, 0)), sandboxes: map[string]*client{}}
	s.cluster = newCluster(t, nodes, machine{
		memory: 96 * gib, slots: 4, starts: 200 * time.Millisecond, fenceAfter: 90 * time.Second, pool: node.PoolConfig{Min: 2, Max: 8, Shape: shape},
	}, session.Config{Ended: func(_ context.Context, sb sandbox.Sandbox) { s.ended(sb) }})
	defer s.close()

	population := 100 * nodes
	var samples []sample
	var reports []sandbox.NodeStats
	var lost []string
	for second := range over * 60 {
		minute := second / 60
		if second%60 == 0 {
			switch minute {
			case burst:
				s.burst(int(bursts*float64(population)), 1)
			case loss:
				lost = s.lose(int(losses*float64(nodes)) + 1)
			case burstAll:
				s.burst(int(bursts*float64(population)), 50)
			case back:
				for i, name := range lost {
					s.hosts[name].comeBack(ends(i))
				}
			case shrinks:
				reports = s.reports(t)
			}
			if minute > loss {
				s.resume(t)
			}
		}
		s.churn(second, population)
		time.Sleep(time.Second)
		if second%60 == 59 {
			sample := s.sample(minute + 1)
			t.Log(sample)
			samples = append(samples, sample)
		}
	}
	s.clients.Wait()
	s.resume(t)
	s.clients.Wait()
	s.check(t, samples)
	return samples, reports
}

// churn ends and begins Sandboxes so that the population has the size of the plan.
func (s *simulation) churn(second, population int) {
	want := population
	ending := 0
	switch minute := float64(second) / 60; {
	case minute < full:
		want = int(float64(population) * minute / full)
	case minute < shrinks:
		ending = s.some(float64(population) / life.Seconds())
	default:
		share := 1 - (1-shrunk)*(minute-shrinks)/(over-shrinks)
		want = int(float64(population) * share)
	}
	s.mu.Lock()
	have := len(s.sandboxes) + int(s.waiting.Load())
	ending = max(ending, have-want-int(2*bursts*float64(population)))
	if second/60 >= shrinks { // half as many come as go
		ending = 2 * (have - want)
	}
	var leaving []string
	for len(leaving) < ending && len(s.ids) > 0 {
		i := s.random.IntN(len(s.ids))
		id := s.ids[i]
		s.ids[i] = s.ids[len(s.ids)-1]
		s.ids = s.ids[:len(s.ids)-1]
		if c := s.sandboxes[id]; c != nil && c.lost.IsZero() {
			leaving = append(leaving, id)
		}
	}
	s.mu.Unlock()
	for _, id := range leaving {
		s.clients.Go(func() { s.end(id) })
	}
	for range want - have + len(leaving) {
		s.begin(s.newClient(sandbox.TenantID(fmt.Sprint("t", s.random.IntN(200)))))
	}
}

// some is a random whole number with this mean.
func (s *simulation) some(mean float64) int {
	n := int(mean)
	if s.random.Float64() < mean-float64(n) {
		n++
	}
	return n
}

func (s *simulation) newClient(tenant sandbox.TenantID) *client {
	const mib = 1 << 20
	req := sandbox.CreateRequest{Shape: sandbox.DefaultShape(), Timeout: 24 * time.Hour}
	req.Shape.MemoryBytes = []int64{256, 256, 256, 256, 512, 512, 512, 1024, 1024, 2048}[s.random.IntN(10)] * mib
	kind := s.random.Float64()
	if kind < checkpointed {
		req.CheckpointEvery = 5 * time.Minute
	}
	return &client{tenant: tenant, req: req, pauses: kind > 1-paused}
}

// burst begins n Sandboxes at once.
func (s *simulation) burst(n, tenants int) {
	for i := range n {
		s.begin(s.newClient(sandbox.TenantID(fmt.Sprint("burst", i%tenants))))
	}
}

// begin creates the Sandbox of a client, and repeats refused creates as they ask for.
func (s *simulation) begin(c *client) {
	s.waiting.Add(1)
	s.clients.Go(func() {
		defer s.waiting.Add(-1)
		began := time.Now()
		for {
			sb, err := s.manager.Create(s.ctx, c.tenant, c.req)
			if err == nil {
				s.runs(c, sb, began)
				return
			}
			var refusal *sandbox.Error
			if !errors.As(err, &refusal) || refusal.Code != sandbox.Exhausted && refusal.Code != sandbox.Unavailable {
				s.t.Errorf("a create: %v", err)
				return
			}
			s.mu.Lock()
			s.refused++
			s.mu.Unlock()
			time.Sleep(max(refusal.RetryAfter, time.Second))
		}
	})
}

// runs notes the Sandbox of a client.
func (s *simulation) runs(c *client, sb sandbox.Sandbox, began time.Time) {
	s.mu.Lock()
	s.waits = append(s.waits, time.Since(began))
	if !c.lost.IsZero() {
		s.replaced = append(s.replaced, time.Since(c.lost))
		s.missing.Add(-1)
		c.lost = time.Time{}
	}
	s.sandboxes[sb.ID] = c
	s.ids = append(s.ids, sb.ID)
	s.mu.Unlock()
	if !c.pauses {
		return
	}
	if _, err := s.manager.Pause(s.ctx, c.tenant, sb.ID, false); err != nil {
		if !errors.Is(err, sandbox.NotFound) && !errors.Is(err, sandbox.Conflict) && !errors.Is(err, sandbox.Unavailable) {
			s.t.Errorf("a pause: %v", err)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.away = true
}

// end ends a Sandbox. If its Node is away, the session manager finishes that.
func (s *simulation) end(id string) {
	s.mu.Lock()
	c := s.sandboxes[id]
	delete(s.sandboxes, id)
	s.mu.Unlock()
	if c == nil {
		return
	}
	if _, err := s.manager.End(s.ctx, c.tenant, id, sandbox.CauseReleased); err != nil && !errors.Is(err, sandbox.Unavailable) && !errors.Is(err, sandbox.NotFound) {
		s.t.Errorf("an end: %v", err)
	}
}

// ended replaces a Sandbox that its owner has not ended.
func (s *simulation) ended(sb sandbox.Sandbox) {
	s.mu.Lock()
	c := s.sandboxes[sb.ID]
	delete(s.sandboxes, sb.ID)
	if c != nil {
		c.lost = s.lostAt
		s.missing.Add(1)
	}
	s.mu.Unlock()
	if c == nil {
		return
	}
	if cause := sb.Ended.Cause; cause != sandbox.CauseNodeLost && cause != sandbox.CauseEngineLost {
		s.t.Errorf("%s ended with %s", sb.ID, cause)
	}
	s.begin(c)
}

// ends reports whether the i-th lost machine ends. Others are cut off.
func ends(i int) bool { return i%2 == 0 }

// comeBack starts a machine again that has ended, or connects one that was cut off: its
// Node still has its Boots.
func (h *host) comeBack(ended bool) {
	if ended {
		h.boot()
		return
	}
	h.cut.Store(false)
}

// lose ends n machines, or cuts them off, and returns their names.
func (s *simulation) lose(n int) []string {
	s.mu.Lock()
	s.lostAt = time.Now()
	s.mu.Unlock()
	var lost []string
	for i, of := range s.random.Perm(len(s.names))[:n] {
		h := s.hosts[s.names[of]]
		h.cut.Store(true)
		if ends(i) {
			h.crash()
		}
		lost = append(lost, h.name)
	}
	return lost
}

// resume resumes the Sandboxes that have gone back to a checkpoint, and those paused ones
// whose Nodes are lost.
func (s *simulation) resume(t *testing.T) {
	all, err := s.store.SandboxesNotEnded(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range all {
		if sb.State != sandbox.Paused {
			continue
		}
		s.mu.Lock()
		c := s.sandboxes[sb.ID]
		lost := c != nil && c.lost.IsZero() && (!c.away && !c.pauses || s.hosts[sb.Boot.Node].cut.Load())
		if lost {
			c.lost = s.lostAt
			s.missing.Add(1)
		}
		s.mu.Unlock()
		if lost {
			s.clients.Go(func() { s.wake(c, sb.ID) })
		}
	}
}

// wake resumes a Sandbox, and repeats what is refused.
func (s *simulation) wake(c *client, id string) {
	for {
		_, err := s.manager.Resume(s.ctx, c.tenant, id)
		if err == nil {
			break
		}
		if !errors.Is(err, sandbox.Unavailable) && !errors.Is(err, sandbox.Exhausted) {
			s.t.Errorf("a resume: %v", err)
			return
		}
		time.Sleep(5 * time.Second)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replaced = append(s.replaced, time.Since(c.lost))
	s.missing.Add(-1)
	c.lost, c.away, c.pauses = time.Time{}, false, false
}

// sample measures the Nodes that are up.
func (s *simulation) sample(minute int) sample {
	got := sample{Minute: minute, Min: 1, Waiting: int(s.waiting.Load()), Absent: int(s.missing.Load())}
	up := 0
	for _, h := range s.hosts {
		if h.cut.Load() {
			continue
		}
		share := float64(h.engine.memory()) / float64(s.machine.memory)
		got.Min, got.Max = min(got.Min, share), max(got.Max, share)
		got.Mean += share
		up++
	}
	got.Mean /= float64(up)
	s.mu.Lock()
	defer s.mu.Unlock()
	got.Sandboxes = len(s.sandboxes)
	return got
}

// reports returns the reports of all Nodes.
func (s *simulation) reports(t *testing.T) (all []sandbox.NodeStats) {
	for _, name := range s.names {
		stats, err := s.Stats(s.ctx, name)
		if err != nil {
			t.Errorf("the report of %s: %v", name, err)
		}
		all = append(all, stats)
	}
	return all
}

// check compares the end of the simulation with what was promised.
func (s *simulation) check(t *testing.T, samples []sample) {
	worst := 0.0
	for _, sample := range samples {
		if sample.Max > 1 {
			t.Errorf("minute %d: a node has committed %.2f of its memory", sample.Minute, sample.Max)
		}
		if sample.Mean < 0.5 {
			continue
		}
		worst = max(worst, sample.ratio())
		if sample.ratio() > maxRatio {
			t.Errorf("minute %d: the fullest node has %.2f times the mean, want at most %.1f", sample.Minute, sample.ratio(), maxRatio)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Logf("the fullest node had at most %.3f times the mean", worst)
	t.Logf("%d creates, %d refused; waits: median %s, p99 %s, at most %s", len(s.waits), s.refused, quantile(s.waits, 0.5), quantile(s.waits, 0.99), quantile(s.waits, 1))
	t.Logf("%d were lost and ran again: median after %s, the last after %s", len(s.replaced), quantile(s.replaced, 0.5), quantile(s.replaced, 1))
	if n := s.missing.Load(); n != 0 || len(s.replaced) == 0 {
		t.Errorf("%d sandboxes are missing after the loss, and %d were replaced", n, len(s.replaced))
	}
	s.compare(t)
}

// compare checks that records, Boots and clients agree. s.mu is held.
func (s *simulation) compare(t *testing.T) {
	all, err := s.store.SandboxesNotEnded(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	boots := map[string]map[string]bool{}
	for name, h := range s.hosts {
		boots[name] = map[string]bool{}
		there, err := h.node.Load().Boots(s.ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range there {
			boots[name][b.SandboxID] = true
		}
	}
	expected := maps.Clone(s.sandboxes)
	for _, sb := range all {
		c := expected[sb.ID]
		delete(expected, sb.ID)
		runs := boots[sb.Boot.Node][sb.ID]
		switch {
		case c == nil:
			t.Errorf("%s is %s, and its owner has ended it", sb.ID, sb.State)
		case sb.State == sandbox.Running && !runs, sb.State == sandbox.Paused && runs:
			t.Errorf("%s is %s, and has a boot: %t", sb.ID, sb.State, runs)
		case sb.State != sandbox.Running && sb.State != sandbox.Paused, sb.State == sandbox.Paused && !c.pauses:
			t.Errorf("%s is %s", sb.ID, sb.State)
		}
		delete(boots[sb.Boot.Node], sb.ID)
	}
	for id := range expected {
		t.Errorf("%s has no record", id)
	}
	for name, left := range boots {
		for id := range left {
			t.Errorf("%s runs on %s without a record", id, name)
		}
	}
}

// quantile returns the q quantile of durations; zero of none.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
