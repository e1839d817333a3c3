package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// leases is a NodeStore in memory.
type leases struct {
	sandbox.NodeStore
	nodes []sandbox.NodeRecord
	err   error
	reads atomic.Int64
	slow  time.Duration // how long a read takes
}

func (l *leases) Nodes(context.Context) ([]sandbox.NodeRecord, error) {
	l.reads.Add(1)
	time.Sleep(l.slow)
	return l.nodes, l.err
}

func lease(name string, d time.Duration) sandbox.NodeRecord {
	return sandbox.NodeRecord{Name: name, LeaseLeft: d}
}

func TestPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name  string
			nodes []sandbox.NodeRecord
			err   error
			want  []string
			code  error
		}{
			{"no node", nil, nil, nil, sandbox.Exhausted},
			{"only a silent one", []sandbox.NodeRecord{lease("a", -time.Second)}, nil, nil, sandbox.Exhausted},
			{"one", []sandbox.NodeRecord{lease("a", time.Second)}, nil, []string{"a"}, nil},
			{"one of two", []sandbox.NodeRecord{lease("a", -1), lease("b", time.Second)}, nil, []string{"b"}, nil},
			{"the store is away", nil, sandbox.Errorf(sandbox.Unavailable, "away"), nil, sandbox.Unavailable},
		} {
			got, err := New(&leases{nodes: tt.nodes, err: tt.err}, nil, nil).Place(t.Context(), sandbox.BootNeeds{})
			if !slices.Equal(got, tt.want) || !errors.Is(err, tt.code) {
				t.Errorf("%s: %v, %v, want %v, %v", tt.name, got, err, tt.want, tt.code)
			}
		}
	})
}

func TestNodesTakeTurns(t *testing.T) {
	s := New(&leases{nodes: []sandbox.NodeRecord{lease("a", time.Hour), lease("b", time.Hour)}}, nil, nil)
	first := map[string]int{}
	for range 10 {
		names, err := s.Place(t.Context(), sandbox.BootNeeds{})
		if err != nil || len(names) != 2 {
			t.Fatal(names, err)
		}
		first[names[0]]++
	}
	if first["a"] != 5 || first["b"] != 5 {
		t.Errorf("first were %v, want five of each", first)
	}
}

// A lease can expire between two reads of the store. Its time counts from before the read.
func TestLeaseEndsBetweenReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &leases{nodes: []sandbox.NodeRecord{lease("a", time.Second), lease("b", time.Hour)}, slow: 600 * time.Millisecond}
		s := New(store, nil, nil)
		for _, want := range [][]string{{"a", "b"}, {"b"}} {
			names, err := s.Place(t.Context(), sandbox.BootNeeds{})
			slices.Sort(names)
			if err != nil || !slices.Equal(names, want) {
				t.Errorf("%v, %v, want %v", names, err, want)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if n := store.reads.Load(); n != 1 {
			t.Errorf("the store was read %d times", n)
		}
	})
}

func TestRunSparesTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &leases{nodes: []sandbox.NodeRecord{lease("a", time.Hour)}}
		s := New(store, nil, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		before := store.reads.Load()
		for range 100 {
			if _, err := s.Place(t.Context(), sandbox.BootNeeds{}); err != nil {
				t.Fatal(err)
			}
		}
		if store.reads.Load() != before {
			t.Error("Place read the store although the view is fresh")
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
		// Without Run the view is stale, and Place reads the store.
		time.Sleep(time.Minute)
		if _, err := s.Place(t.Context(), sandbox.BootNeeds{}); err != nil || store.reads.Load() == before {
			t.Errorf("Place with an old view: %v, %d reads", err, store.reads.Load()-before)
		}
	})
}

// reports are the reports of Nodes in memory. A Node without a report is silent: it blocks
// until the request ends.
type reports struct {
	mu sync.Mutex
	of map[string]sandbox.NodeStats
}

func (r *reports) Stats(ctx context.Context, node string) (sandbox.NodeStats, error) {
	r.mu.Lock()
	stats, ok := r.of[node]
	r.mu.Unlock()
	if !ok {
		<-ctx.Done()
		return sandbox.NodeStats{}, ctx.Err()
	}
	return stats, nil
}

func (r *reports) set(node string, stats sandbox.NodeStats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[node] = stats
}

// running returns a Scheduler that has received the reports of its Nodes. The one called
// drains does so.
func running(t *testing.T, r *reports, names ...string) *Scheduler {
	store := &leases{}
	for _, name := range names {
		record := lease(name, 24*time.Hour)
		record.Draining = name == "drains"
		if name == "away" {
			record.LeaseLeft = -time.Second
		}
		store.nodes = append(store.nodes, record)
	}
	s := New(store, r, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	time.Sleep(reportLimit + time.Millisecond)
	synctest.Wait()
	return s
}

// image is the digest of the image in tests.
const image = "aa"

// wanted are the needs of most Boots in tests.
var wanted = sandbox.BootNeeds{Image: image, Shape: sandbox.DefaultShape()}

func pool(idle int) []sandbox.PoolStats {
	return []sandbox.PoolStats{{Template: "base", Image: image, Shape: sandbox.DefaultShape(), Idle: idle}}
}

func TestPlaceByReports(t *testing.T) {
	const gib = 1 << 30
	half := sandbox.HostState{MemoryFree: 8 * gib, MemoryTotal: 16 * gib}
	for _, tt := range []struct {
		name string
		of   map[string]sandbox.NodeStats
		want []string
	}{
		{"an idle boot before an image", map[string]sandbox.NodeStats{"a": {Images: []string{image}}, "b": {Pools: pool(1)}}, []string{"b", "a"}},
		{"an image before a short queue", map[string]sandbox.NodeStats{"a": {}, "b": {Images: []string{image}, Wait: time.Second}}, []string{"b", "a"}},
		{"a long queue before an image", map[string]sandbox.NodeStats{"a": {Images: []string{image}, Wait: 5 * time.Second}, "b": {}}, []string{"b", "a"}},
		{"a pool has its image", map[string]sandbox.NodeStats{"a": {}, "b": {Pools: pool(0)}}, []string{"b", "a"}},
		{"a pool of another image is none", map[string]sandbox.NodeStats{
			"a": {Pools: []sandbox.PoolStats{{Image: "bb", Shape: sandbox.DefaultShape(), Idle: 9}}}, "b": {Images: []string{image}},
		}, []string{"b", "a"}},
		{"a short queue", map[string]sandbox.NodeStats{"a": {Wait: time.Second}, "b": {Host: half}}, []string{"b", "a"}},
		{"free memory", map[string]sandbox.NodeStats{"a": {Host: half}, "b": {Host: sandbox.HostState{MemoryFree: 15 * gib, MemoryTotal: 16 * gib}}}, []string{"b", "a"}},
		{"a full one last", map[string]sandbox.NodeStats{"a": {Full: true, Pools: pool(5)}, "b": {Wait: time.Minute}}, []string{"b", "a"}},
		{"a silent one last", map[string]sandbox.NodeStats{"b": {Full: true}}, []string{"b", "a"}},
		{"all silent", nil, []string{"a", "b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := running(t, &reports{of: tt.of}, "a", "b")
				if got, err := s.Place(t.Context(), wanted); err != nil || !slices.Equal(got, tt.want) {
					t.Errorf("%v, %v, want %v", got, err, tt.want)
				}
			})
		})
	}
}

// Tenants take turns in a Node's queue. So a Tenant waits for its own starts, and for as
// many of each other Tenant at most.
func TestPlaceByTheTurnOfTheTenant(t *testing.T) {
	waits := func(turn time.Duration, of ...sandbox.WaitingStarts) sandbox.NodeStats {
		return sandbox.NodeStats{Images: []string{image}, Turn: turn, Wait: time.Duration(len(of)+1) * turn, Waiting: of}
	}
	for _, tt := range []struct {
		name     string
		a, b     sandbox.NodeStats
		one, two string // the first choice for each of two Tenants
	}{
		{
			"the other's many starts", waits(time.Second, sandbox.WaitingStarts{Tenant: "two", Starts: 100}),
			waits(time.Second, sandbox.WaitingStarts{Tenant: "two", Starts: 9}, sandbox.WaitingStarts{Tenant: "three", Starts: 1}), "a", "b",
		},
		{
			"the own starts", waits(time.Second, sandbox.WaitingStarts{Tenant: "one", Starts: 5}, sandbox.WaitingStarts{Tenant: "two", Starts: 2}),
			waits(time.Second, sandbox.WaitingStarts{Tenant: "one", Starts: 2}, sandbox.WaitingStarts{Tenant: "two", Starts: 9}), "b", "a",
		},
		{
			"slow turns", waits(3*time.Second, sandbox.WaitingStarts{Tenant: "two", Starts: 1}),
			waits(time.Second, sandbox.WaitingStarts{Tenant: "two", Starts: 9}), "b", "a",
		},
		{
			"the other's starts, and a fetch of the image", waits(200*time.Millisecond, sandbox.WaitingStarts{Tenant: "two", Starts: 50}),
			sandbox.NodeStats{Turn: 200 * time.Millisecond},
			"a", "b",
		},
		{
			"an idle node", waits(time.Second, sandbox.WaitingStarts{Tenant: "two", Starts: 1}),
			sandbox.NodeStats{Images: []string{image}, Turn: time.Second},
			"b", "b",
		},
		{
			"a node of an earlier version", waits(time.Second, sandbox.WaitingStarts{Tenant: "two", Starts: 9}),
			sandbox.NodeStats{Images: []string{image}, Wait: 4 * time.Second},
			"a", "b",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := running(t, &reports{of: map[string]sandbox.NodeStats{"a": tt.a, "b": tt.b}}, "a", "b")
				for tenant, want := range map[sandbox.TenantID]string{"one": tt.one, "two": tt.two} {
					needs := wanted
					needs.Tenant = tenant
					if got, err := s.Place(t.Context(), needs); err != nil || got[0] != want {
						t.Errorf("%s: %v, %v, want %s first", tenant, got, err, want)
					}
				}
			})
		})
	}
}

// What a Tenant has had placed since the last report delays it, and another Tenant by one
// turn at most. It takes no idle Boots of other images.
func TestPlacedBootsOfAnotherTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here := sandbox.NodeStats{Images: []string{image}, Pools: []sandbox.PoolStats{{Image: "bb", Shape: sandbox.DefaultShape(), Idle: 1}}, Turn: 200 * time.Millisecond}
		s := running(t, &reports{of: map[string]sandbox.NodeStats{"a": here, "b": {Turn: 200 * time.Millisecond}}}, "a", "b")
		first := func(tenant sandbox.TenantID, image string) string {
			needs := wanted
			needs.Tenant, needs.Image = tenant, image
			names, err := s.Place(t.Context(), needs)
			if err != nil {
				t.Fatal(err)
			}
			return names[0]
		}
		got := map[string]int{}
		for range 40 {
			got[first("many", image)]++
		}
		if got["b"] < 10 {
			t.Errorf("a tenant with many was placed on %v, want the node without the image too", got)
		}
		if node := first("one", image); node != "a" {
			t.Errorf("another tenant was placed on %s, want the node with its image", node)
		}
		if node := first("one", "bb"); node != "a" {
			t.Errorf("another tenant was placed on %s, want the node with an idle boot", node)
		}
	})
}

// The memory of Boots that were placed since the last report counts as used, so the Node
// with the most free memory does not get all of them.
func TestPlacedMemoryCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const gib = 1 << 30
		free := func(n int64) sandbox.NodeStats {
			return sandbox.NodeStats{Images: []string{image}, Host: sandbox.HostState{MemoryFree: n * gib, MemoryTotal: 64 * gib}, Pools: pool(1000)}
		}
		s := running(t, &reports{of: map[string]sandbox.NodeStats{"a": free(40), "b": free(30)}}, "a", "b")
		got := map[string]int{}
		for range 100 {
			names, err := s.Place(t.Context(), wanted) // half a GiB each
			if err != nil {
				t.Fatal(err)
			}
			got[names[0]]++
		}
		if got["a"] < 55 || got["a"] > 65 {
			t.Errorf("with 40 and 30 GiB free, 50 GiB went as %v, want 60 and 40 sandboxes", got)
		}
	})
}

// In a large cluster the only Node with room is found.
func TestPlaceFindsTheLastRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reports{of: map[string]sandbox.NodeStats{}}
		var names []string
		for i := range 100 {
			name := fmt.Sprintf("n%02d", i)
			names = append(names, name)
			r.set(name, sandbox.NodeStats{Full: i != 70})
		}
		s := running(t, r, names...)
		for range 20 { // whoever's turn it is
			if got, err := s.Place(t.Context(), wanted); err != nil || len(got) != tried || got[0] != "n70" {
				t.Fatalf("%v, %v, want n70 first", got, err)
			}
		}
	})
}

func TestPlaceElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name string
		of   map[string]sandbox.NodeStats
		want string // empty: none
	}{
		{"another one", map[string]sandbox.NodeStats{"a": {Pools: pool(5)}, "b": {}}, "b"},
		{"the better one", map[string]sandbox.NodeStats{"a": {}, "b": {Wait: time.Minute}, "c": {}}, "c"},
		{"none that is full", map[string]sandbox.NodeStats{"a": {}, "b": {Full: true}}, ""},
		{"none that is silent", map[string]sandbox.NodeStats{"a": {}}, ""},
		{"none that drains", map[string]sandbox.NodeStats{"a": {}, "drains": {}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				names := slices.Collect(maps.Keys(tt.of))
				if !slices.Contains(names, "b") {
					names = append(names, "b")
				}
				s := running(t, &reports{of: tt.of}, names...)
				for range 20 { // whoever's turn it is
					got, err := s.PlaceElsewhere(t.Context(), wanted, "a")
					if got != tt.want || (tt.want == "") != errors.Is(err, sandbox.Exhausted) {
						t.Fatalf("%q, %v, want %q", got, err, tt.want)
					}
				}
			})
		})
	}
	s := New(&leases{nodes: []sandbox.NodeRecord{lease("a", time.Hour)}}, nil, nil)
	if got, err := s.PlaceElsewhere(t.Context(), wanted, "a"); !errors.Is(err, sandbox.Exhausted) {
		t.Errorf("where there is one node: %q, %v", got, err)
	}
}

// Nodes that lack CPU features of a saved state are left out; a Node that reports none, or
// nothing, counts as one with all. Where all lack some, the error says which.
func TestPlaceByCPU(t *testing.T) {
	cpu := func(features sandbox.CPUFeatures) sandbox.NodeStats {
		return sandbox.NodeStats{Engine: sandbox.Features{CPU: features}}
	}
	needs := wanted
	needs.CPU = "avx512bw avx512f sse"
	const old sandbox.CPUFeatures = "avx sse"
	for _, tt := range []struct {
		name            string
		of              map[string]sandbox.NodeStats
		want, elsewhere string // names; empty: none
		err             string
	}{
		{"one has them", map[string]sandbox.NodeStats{"a": cpu(old), "b": cpu(old), "c": cpu("avx avx512bw avx512f sse")}, "c", "c", ""},
		{"one reports none", map[string]sandbox.NodeStats{"a": cpu(old), "b": cpu(old), "c": {}}, "c", "c", ""},
		{"one is silent", map[string]sandbox.NodeStats{"a": cpu("sse"), "b": cpu("sse")}, "c", "", "b lacks avx512bw, avx512f"},
		{"all lack some", map[string]sandbox.NodeStats{"a": cpu("avx512bw sse"), "b": cpu("sse"), "c": cpu("avx512f sse")}, "", "", "b lacks avx512bw, avx512f; c lacks avx512bw"},
		{"the one with room lacks some", map[string]sandbox.NodeStats{
			"a": {}, "b": cpu("sse"), "c": {Full: true, Engine: sandbox.Features{CPU: needs.CPU}},
		}, "a c", "", "no other node with room has the CPU features that this state needs: b lacks"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := running(t, &reports{of: tt.of}, "a", "b", "c")
				refused := func(err error) bool {
					return errors.Is(err, sandbox.Conflict) && errors.Is(err, sandbox.ErrCPU) && strings.Contains(err.Error(), tt.err)
				}
				for range 5 { // whoever's turn it is
					got, err := s.Place(t.Context(), needs)
					if strings.Join(got, " ") != tt.want || (tt.want == "") != refused(err) {
						t.Fatalf("%q, %v, want %q", got, err, tt.want)
					}
					other, err := s.PlaceElsewhere(t.Context(), needs, "a")
					if other != tt.elsewhere || (tt.elsewhere == "") != refused(err) {
						t.Fatalf("elsewhere %q, %v, want %q", other, err, tt.elsewhere)
					}
				}
			})
		})
	}
}

// Sandboxes of a Node that is away are placed on the only Node that is left.
func TestPlaceElsewhereOnTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := running(t, &reports{of: map[string]sandbox.NodeStats{"b": {}}}, "away", "b")
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, err := s.PlaceElsewhere(t.Context(), wanted, "away"); got != "b" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// Nothing is placed on a Node that drains.
func TestNodesThatDrain(t *testing.T) {
	drains := lease("a", time.Hour)
	drains.Draining = true
	for _, tt := range []struct {
		nodes []sandbox.NodeRecord
		want  []string
	}{
		{[]sandbox.NodeRecord{drains, lease("b", time.Hour)}, []string{"b"}},
		{[]sandbox.NodeRecord{drains}, nil},
	} {
		got, err := New(&leases{nodes: tt.nodes}, nil, nil).Place(t.Context(), sandbox.BootNeeds{})
		if !slices.Equal(got, tt.want) || (tt.want == nil) != errors.Is(err, sandbox.Exhausted) {
			t.Errorf("%v, %v, want %v", got, err, tt.want)
		}
	}
}

func TestPlacedBootsCountUntilTheNextReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reports{of: map[string]sandbox.NodeStats{"a": {Pools: pool(3)}, "b": {Pools: pool(1)}}}
		s := running(t, r, "a", "b")
		count := func(n int) map[string]int {
			first := map[string]int{}
			for range n {
				names, err := s.Place(t.Context(), wanted)
				if err != nil {
					t.Fatal(err)
				}
				first[names[0]]++
			}
			return first
		}
		if got := count(4); got["a"] != 3 || got["b"] != 1 {
			t.Errorf("of 3 and 1 idle boots, %v were used", got)
		}
		if got := count(40); got["a"] < 15 || got["b"] < 15 {
			t.Errorf("cold starts went to %v, want about as many each", got)
		}
		r.set("b", sandbox.NodeStats{Pools: pool(5)})
		time.Sleep(refreshEvery)
		synctest.Wait()
		// a reports three idle ones again, so both have some.
		if got := count(8); got["a"] != 3 || got["b"] != 5 {
			t.Errorf("after the next reports of 3 and 5, %v were used", got)
		}
	})
}

func TestASilentNodeDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reports{of: map[string]sandbox.NodeStats{"a": {}, "b": {}}}
		s := running(t, r, "a", "b", "silent")
		began := time.Now()
		for range 10 {
			names, err := s.Place(t.Context(), wanted)
			if err != nil || len(names) != 3 || names[2] != "silent" {
				t.Fatal(names, err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("placing took %s", took)
		}
		// A Node that becomes silent is avoided once its report is old.
		r.mu.Lock()
		delete(r.of, "a")
		r.mu.Unlock()
		time.Sleep(reportLife + refreshEvery)
		for range 10 {
			if names, err := s.Place(t.Context(), wanted); err != nil || names[0] != "b" {
				t.Fatal(names, err)
			}
		}
	})
}

func TestPlaceSamplesManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reports{of: map[string]sandbox.NodeStats{}}
		var names []string
		for i := range 100 {
			name := fmt.Sprintf("n%02d", i)
			names = append(names, name)
			r.set(name, sandbox.NodeStats{})
		}
		s := running(t, r, names...)
		first := map[string]int{}
		for range 1000 {
			got, err := s.Place(t.Context(), wanted)
			if err != nil || len(got) != tried {
				t.Fatal(got, err)
			}
			first[got[0]]++
		}
		for _, name := range names {
			if n := first[name]; n < 1 || n > 40 {
				t.Errorf("%s was first %d times of 1000", name, n)
			}
		}
	})
}

func TestOneNodeIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := running(t, &reports{}, "a")
		s.mu.Lock()
		defer s.mu.Unlock()
		if c := s.nodes[0]; c.asking || !c.reported.IsZero() {
			t.Error("the only node was asked for its report")
		}
	})
}
