package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/node"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volume/disk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const name = "local"

// images resolves the Template "base".
type images struct {
	mu     sync.Mutex
	digest string // empty: still being built
}

func (i *images) Resolve(_ context.Context, _ sandbox.TenantID, template string) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if template != "base" {
		return "", sandbox.Errorf(sandbox.NotFound, "there is no such template")
	}
	if i.digest == "" {
		return "", sandbox.Errorf(sandbox.Unavailable, "the template is being built")
	}
	return i.digest, nil
}

func (i *images) set(digest string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.digest = digest
}

// leases counts renewals.
type leases struct {
	renewed atomic.Int64

	mu      sync.Mutex
	holders []string // of the renewals
	other   string   // who has the Lease instead
	away    bool     // the records are away
	epoch   int64    // of the Lease; 0: 1
	lost    int64    // LostEpoch
	fences  []time.Duration
	asked   int           // attempts to renew, with those that failed
	life    time.Duration // of the last Lease
}

// set makes the records be away, or come back in a term, with a LostEpoch.
func (l *leases) set(away bool, epoch, lost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away, l.epoch, l.lost = away, epoch, lost
}

func (l *leases) RenewLease(_ context.Context, n sandbox.NodeRecord, life time.Duration) (sandbox.NodeRecord, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if l.other != "" && l.other != n.Holder {
		return n, sandbox.Errorf(sandbox.Conflict, "another node has the name")
	}
	if l.away {
		return n, sandbox.Errorf(sandbox.Unavailable, "the records are away")
	}
	l.renewed.Add(1)
	l.life = life
	l.holders = append(l.holders, n.Holder)
	l.fences = append(l.fences, n.FenceAfter)
	n.Epoch, n.LeaseLeft, n.LostEpoch = max(l.epoch, 1), life, l.lost
	return n, nil
}

// give gives the Lease to another Holder; "" takes it back.
func (l *leases) give(other string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.other = other
}

// host reports the free resources of the machine.
type host struct {
	mu    sync.Mutex
	state sandbox.HostState
	// free, if set, tells how much memory is.
	free func() int64
}

func (h *host) set(s sandbox.HostState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = s
}

func (h *host) read() (sandbox.HostState, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.state
	if h.free != nil {
		s.MemoryFree = h.free()
	}
	return s, nil
}

// world is a Node and what it stands on.
type world struct {
	t      *testing.T
	dir    string
	engine *fake.Engine
	images *images
	leases *leases
	host   host
	cfg    node.Config
	ends   chan sandbox.BootEnd
	refuse atomic.Bool // reports of ends are not accepted
	// volumes gets the Boots' ends of connections to their volume servers; nil: Boots
	// have none.
	volumes chan net.Conn

	node *node.Node
	stop func() // ends Run; the Boots live on
}

// newWorld makes a world whose Node is not open yet.
func newWorld(t *testing.T, pool node.PoolConfig) *world {
	w := &world{
		t: t, dir: t.TempDir(), engine: fake.New(fake.Image, "sha256:next"),
		images: &images{digest: fake.Image}, leases: &leases{},
		ends: make(chan sandbox.BootEnd, 100),
	}
	w.host.set(sandbox.HostState{DiskFree: 50, DiskTotal: 100, MemoryFree: 8 << 30, MemoryTotal: 16 << 30})
	pool.Template = "base"
	volumes, err := disk.Open(filepath.Join(w.dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	w.cfg = node.Config{
		Name: name, Dir: w.dir, Volumes: volumes, Leases: w.leases, Images: w.images,
		Guest: func(dial node.Dial) node.GuestControl { return fake.NewControl(dial) },
		Pools: []node.PoolConfig{pool}, ColdStarts: 2, Saves: 2,
		Host: w.host.read,
		OnEnd: func(_ context.Context, e sandbox.BootEnd) error {
			if w.refuse.Load() {
				return sandbox.Errorf(sandbox.Unavailable, "later")
			}
			w.ends <- e
			return nil
		},
	}
	return w
}

// open opens the Node over the Engine's present Boots.
func (w *world) open() {
	w.t.Helper()
	w.cfg.Engine = w.engine
	if w.volumes != nil {
		w.cfg.Engine = volumeEngine{w.engine, w.volumes}
	}
	n, err := node.Open(w.t.Context(), w.cfg)
	if err != nil {
		w.t.Fatalf("Open: %v", err)
	}
	w.node = n
}

// run opens the Node and runs it.
func (w *world) run() {
	w.t.Helper()
	w.open()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.node.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Run = %v", err)
		}
	})
}

// restart is a crash of the process: what it knew is gone, Boots live on.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.engine = w.engine.Reopen()
	w.run()
}

// close stops the Node and ends every Boot.
func (w *world) close() {
	if w.stop != nil {
		w.stop()
	}
	if w.node != nil {
		if _, err := w.node.Down(context.WithoutCancel(w.t.Context())); err != nil {
			w.t.Errorf("Down: %v", err)
		}
	}
	if n := w.running(); n != 0 {
		w.t.Errorf("%d boots are left", n)
	}
	if files := w.journal(); len(files) != 0 {
		w.t.Errorf("the journal keeps %v", files)
	}
	w.engine.Close()
}

func (w *world) running() int {
	all, err := w.engine.List(context.WithoutCancel(w.t.Context()))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(all)
}

func (w *world) journal() []string {
	files, err := filepath.Glob(filepath.Join(w.dir, "boots", "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return files
}

func (w *world) pool() sandbox.PoolStats {
	w.t.Helper()
	return w.stats().Pools[0]
}

func (w *world) stats() sandbox.NodeStats {
	w.t.Helper()
	s, err := w.node.Stats(w.t.Context(), name)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func request(tenant sandbox.TenantID) sandbox.StartRequest {
	return sandbox.StartRequest{
		BootID: sandbox.NewBootID(), Image: fake.Image, Shape: sandbox.DefaultShape(),
		Binding: sandbox.Binding{
			SandboxID: sandbox.NewSandboxID(), BootNumber: 1, Tenant: tenant,
			Template: "base", Network: sandbox.NetworkPublic, AccessToken: "secret",
			Env: map[string]string{"KEY": "secret"}, Limits: sandbox.DefaultShape().Limits(),
		},
	}
}

func refOf(req sandbox.StartRequest, started sandbox.Started) sandbox.BootRef {
	return sandbox.BootRef{BootID: started.BootID, SandboxID: req.Binding.SandboxID, Number: req.Binding.BootNumber, Tenant: req.Binding.Tenant}
}

func (w *world) start(req sandbox.StartRequest) sandbox.Started {
	w.t.Helper()
	started, err := w.node.Start(w.t.Context(), name, req)
	if err != nil {
		w.t.Fatalf("Start: %v", err)
	}
	return started
}

// in runs a test in a bubble of its own time, with the Node running.
func in(t *testing.T, pool node.PoolConfig, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pool)
		defer w.close()
		w.run()
		synctest.Wait()
		test(t, w)
	})
}

func TestColdStart(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		started := w.start(req)
		if started.BootID != req.BootID || started.Pooled {
			t.Errorf("Start = %+v, want %s, cold", started, req.BootID)
		}
		if got := w.engine.Guest(started.BootID).Bound(); got.SandboxID != req.Binding.SandboxID || got.Env["KEY"] != "secret" {
			t.Errorf("bound to %+v", got)
		}
		listed, err := w.engine.List(t.Context())
		if err != nil || len(listed) != 1 || listed[0].Network != sandbox.NetworkPublic {
			t.Errorf("the engine lists %+v, %v", listed, err)
		}
		ref := refOf(req, started)
		boots, err := w.node.Boots(t.Context(), name)
		if err != nil || len(boots) != 1 || boots[0] != (sandbox.BoundBoot{BootRef: ref}) {
			t.Errorf("Boots = %+v, %v", boots, err)
		}
		if again := w.start(req); again != started {
			t.Errorf("Start again = %+v, want %+v", again, started)
		}
		if text := readAll(t, w.journal()); contains(text, "secret") {
			t.Errorf("the journal holds a secret: %s", text)
		}
		echo(t, w, ref)
		if err := w.node.Stop(t.Context(), name, started.BootID, 0); err != nil {
			t.Fatal(err)
		}
		if err := w.node.Stop(t.Context(), name, started.BootID, 0); err != nil {
			t.Errorf("Stop again = %v", err)
		}
		if w.running() != 0 || len(w.journal()) != 0 {
			t.Errorf("after Stop: %d boots, journal %v", w.running(), w.journal())
		}
	})
}

func readAll(t *testing.T, files []string) string {
	all := ""
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all += string(b)
	}
	return all
}

func contains(s, part string) bool {
	for i := range len(s) {
		if len(s[i:]) >= len(part) && s[i:i+len(part)] == part {
			return true
		}
	}
	return false
}

func echo(t *testing.T, w *world, ref sandbox.BootRef) {
	t.Helper()
	conn, err := w.node.Dial(t.Context(), name, ref, 8000)
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 5)
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "hello" {
		t.Errorf("echo = %q, %v", buf, err)
	}
}

func TestPool(t *testing.T) {
	in(t, node.PoolConfig{Min: 3, Max: 10}, func(t *testing.T, w *world) {
		if p := w.pool(); p.Idle != 3 || !w.stats().Ready {
			t.Fatalf("after the start: %+v", w.stats())
		}
		var refs []sandbox.BootRef
		for range 3 {
			req := request("t")
			started := w.start(req)
			if !started.Pooled || started.BootID == req.BootID {
				t.Errorf("Start = %+v, want a boot of the pool", started)
			}
			if w.engine.Guest(started.BootID).Bound().SandboxID != req.Binding.SandboxID {
				t.Error("the pooled boot was not bound")
			}
			refs = append(refs, refOf(req, started))
		}
		time.Sleep(time.Second) // the pause after a claim, in the bubble's time
		synctest.Wait()
		if p := w.pool(); p.Hits != 3 || p.Idle < 3 {
			t.Errorf("after three claims: %+v", p)
		}
		other := request("t")
		other.Shape.MemoryBytes *= 2
		if started := w.start(other); started.Pooled {
			t.Error("a boot of another shape came from the pool")
		}
		next := request("t")
		next.Image = "sha256:next"
		if started := w.start(next); started.Pooled {
			t.Error("a boot of another image came from the pool")
		}
		for _, ref := range refs { // used ones are never parked again
			if err := w.node.Stop(t.Context(), name, ref.BootID, 0); err != nil {
				t.Fatal(err)
			}
			if w.engine.Guest(ref.BootID) != nil {
				t.Error("a used boot still runs")
			}
		}
	})
}

func TestPoolFollowsDemand(t *testing.T) {
	in(t, node.PoolConfig{Min: 2, Max: 12}, func(t *testing.T, w *world) {
		want := func(when string, idle int) {
			t.Helper()
			synctest.Wait()
			if p := w.pool(); p.Idle != idle {
				t.Errorf("%s: %d idle, want %d", when, p.Idle, idle)
			}
		}
		want("at the start", 2)
		burst := func(n int) {
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() { w.start(request("t")) })
			}
			wg.Wait()
		}
		w.engine.Hooks.Start = func(ctx context.Context, _ string) error { return sleepFor(ctx, 100*time.Millisecond) }
		burst(1)
		time.Sleep(10 * time.Second)
		want("after what it was large enough for", 2)
		burst(6)
		time.Sleep(10 * time.Second)
		want("after a burst: as many, and a quarter more", 8)
		burst(20)
		time.Sleep(10 * time.Second)
		want("after a large one: never more than the maximum", 12)
		for range 5 {
			time.Sleep(time.Minute)
			burst(8)
		}
		time.Sleep(10 * time.Second)
		want("while it is nearly used", 12)
		time.Sleep(2 * time.Minute)
		want("a while after", 9)
		time.Sleep(time.Minute)
		want("slowly", 6)
		time.Sleep(10 * time.Minute)
		want("after a quiet while", 2)
	})
}

// A claim has the cores to itself: the Pool reads the state of the host and refills only
// after it.
func TestClaimLeavesHostAlone(t *testing.T) {
	in(t, node.PoolConfig{Min: 2, Max: 4}, func(t *testing.T, w *world) {
		time.Sleep(5 * time.Second)
		var read atomic.Int64
		w.host.mu.Lock()
		w.host.free = func() int64 { read.Add(1); return 8 << 30 }
		w.host.mu.Unlock()
		for read.Load() == 0 { // the keeper sleeps again from here, for two seconds
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second) // what was read is old
		read.Store(0)
		w.start(request("t"))
		synctest.Wait()
		if n := read.Load(); n != 0 {
			t.Errorf("a claim had the host's state read %d times", n)
		}
		time.Sleep(time.Second)
		if p := w.pool(); p.Idle != 2 || read.Load() == 0 {
			t.Errorf("a second later %d boots wait, and the host's state was read %d times", p.Idle, read.Load())
		}
	})
}

// A steady demand that refills cannot meet at once makes a large Pool; one that
// they can meet does not.
func TestPoolFollowsARate(t *testing.T) {
	for _, tt := range []struct {
		every time.Duration
		least int
		most  int
	}{
		{5 * time.Second, 2, 2},
		{time.Second, 3, 5},
		{200 * time.Millisecond, 10, 22},
		{20 * time.Millisecond, 40, 40},
	} {
		in(t, node.PoolConfig{Min: 2, Max: 40}, func(t *testing.T, w *world) {
			w.engine.Hooks.Start = func(ctx context.Context, _ string) error { return sleepFor(ctx, 100*time.Millisecond) }
			var wg sync.WaitGroup
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(tt.every) {
				wg.Go(func() { w.start(request("t")) })
			}
			wg.Wait()
			if p := w.pool(); p.Wanted < tt.least || p.Wanted > tt.most {
				t.Errorf("at one each %v it wants %d, not from %d to %d", tt.every, p.Wanted, tt.least, tt.most)
			}
		})
	}
}

// A host whose memory gets short has idle Boots given back before it refuses
// anybody, and no more of them than helps.
func TestPoolGivesMemoryBack(t *testing.T) {
	in(t, node.PoolConfig{Min: 4, Max: 20}, func(t *testing.T, w *world) {
		const total, needed, each = 4 << 30, 256 << 20, 12 << 20 // of the host; for a new Boot; what one takes
		var spare atomic.Int64                                   // when there are no Boots
		spare.Store(total)
		w.host.mu.Lock()
		w.host.state.MemoryTotal = total
		w.host.free = func() int64 { return spare.Load() - each*int64(w.running()) }
		w.host.mu.Unlock()
		for range 14 { // which makes it large
			started := w.start(request("t"))
			if err := w.node.Stop(t.Context(), name, started.BootID, 0); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Second)
		for _, tt := range []struct {
			when        string
			spare       int64
			least, most int
		}{
			{"plenty", 2 << 30, 18, 18},
			{"just enough for all", 2*needed + 20*16<<20, 18, 18},
			{"less", 2*needed + 10*16<<20, 10, 14},
			{"not more than the minimum", needed + needed/4 + 8*16<<20, 4, 4},
			{"less than that", needed + needed/4 + 2*16<<20, 2, 3},
			{"next to nothing", needed + needed/8, 0, 0},
			{"too little", needed / 2, 0, 0},
			{"enough for the minimum again", needed + needed/4 + 8*16<<20, 4, 4},
			{"plenty again", 2 << 30, 4, 18},
		} {
			spare.Store(tt.spare)
			time.Sleep(8 * time.Second)
			synctest.Wait()
			p := w.pool()
			if p.Idle < tt.least || p.Idle > tt.most || p.Wanted != p.Idle {
				t.Errorf("%s: %d idle, %d wanted; it should be from %d to %d", tt.when, p.Idle, p.Wanted, tt.least, tt.most)
			}
			before := p.Idle
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if p := w.pool(); p.Idle > before {
				t.Errorf("%s: it gave back too many: %d idle, then %d", tt.when, before, p.Idle)
			}
		}
	})
}

// A Pool is refilled when claimed Boots have been bound for a while, or after a bounded
// wait, so that their first commands get the cores.
func TestRefillsWaitForClaims(t *testing.T) {
	in(t, node.PoolConfig{Min: 4, Max: 4}, func(t *testing.T, w *world) {
		synctest.Wait()
		w.engine.Hooks.SetNetwork = func(ctx context.Context, _ string, _ sandbox.NetworkPolicy) error {
			return sleepFor(ctx, 300*time.Millisecond)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { w.start(request("t")) })
		}
		time.Sleep(299 * time.Millisecond)
		if p := w.pool(); p.Idle != 0 || p.Starting != 0 {
			t.Errorf("while claims are bound: %+v", p)
		}
		wg.Wait()
		time.Sleep(199 * time.Millisecond)
		if p := w.pool(); p.Idle != 0 || p.Starting != 0 {
			t.Errorf("while first commands run: %+v", p)
		}
		time.Sleep(time.Minute)
		if p := w.pool(); p.Idle != 4 {
			t.Errorf("afterwards: %+v", p)
		}
		w.engine.Hooks.SetNetwork = func(ctx context.Context, _ string, _ sandbox.NetworkPolicy) error {
			return sleepFor(ctx, 1800*time.Millisecond)
		}
		for range 4 {
			wg.Go(func() { w.start(request("t")) })
		}
		time.Sleep(1700 * time.Millisecond)
		if p := w.pool(); p.Idle < 3 { // more than half
			t.Errorf("claims that take long hold up the pool: %+v", p)
		}
		wg.Wait()
	})
}

// Cold starts get the cores too, for the start and the first command.
func TestRefillsWaitForColdStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{Min: 2, Max: 4})
		defer w.close()
		w.cfg.ColdStarts = 2
		var starting, most atomic.Int64
		cold := map[string]bool{}
		var mu sync.Mutex
		w.engine.Hooks.Start = func(ctx context.Context, id string) error {
			mu.Lock()
			asked := cold[id]
			mu.Unlock()
			if asked {
				defer starting.Add(-1)
				starting.Add(1)
			} else {
				most.Store(max(most.Load(), starting.Load()))
			}
			return sleepFor(ctx, 100*time.Millisecond)
		}
		w.run()
		time.Sleep(time.Minute)
		most.Store(0)
		var wg sync.WaitGroup
		for range 7 { // the last start has a slot free beside it
			req := request("t")
			mu.Lock()
			cold[req.BootID] = true
			mu.Unlock()
			wg.Go(func() { w.start(req) })
		}
		wg.Wait()
		if n := most.Load(); n != 0 {
			t.Errorf("a refill began while %d of those who asked started", n)
		}
		time.Sleep(199 * time.Millisecond)
		if p := w.pool(); p.Idle != 0 || p.Starting != 0 {
			t.Errorf("while first commands run: %+v", p)
		}
		time.Sleep(time.Minute)
		if p := w.pool(); p.Idle < 2 || p.Misses != 5 {
			t.Errorf("afterwards: %+v", p)
		}
	})
}

func TestClaimsTakeTurns(t *testing.T) {
	in(t, node.PoolConfig{Min: 12, Max: 12}, func(t *testing.T, w *world) {
		synctest.Wait()
		w.engine.Hooks.SetNetwork = func(ctx context.Context, _ string, _ sandbox.NetworkPolicy) error {
			return sleepFor(ctx, 100*time.Millisecond)
		}
		began := time.Now()
		var mu sync.Mutex
		took := map[sandbox.TenantID][]time.Duration{}
		var wg sync.WaitGroup
		claim := func(tenant sandbox.TenantID) {
			wg.Go(func() {
				if !w.start(request(tenant)).Pooled {
					t.Error("a claim started cold")
				}
				mu.Lock()
				defer mu.Unlock()
				took[tenant] = append(took[tenant], time.Since(began))
			})
			synctest.Wait()
		}
		for range 11 {
			claim("many")
		}
		claim("few") // which finds four of the others being bound, and seven waiting
		wg.Wait()
		if got := took["few"]; !slices.Equal(got, []time.Duration{200 * time.Millisecond}) {
			t.Errorf("the other tenant waits %v", got)
		}
		if got := took["many"]; got[3] != 100*time.Millisecond || got[10] != 300*time.Millisecond {
			t.Errorf("claims at once took %v", got)
		}
	})
}

// A request that would wait too long for a Boot of the Pool starts cold. It is not refused
// while the host has room for a cold start.
func TestNoTurnToClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{Min: 8, Max: 8})
		defer w.close()
		w.cfg.ColdStarts, w.cfg.Waiting = 1, 1
		w.run()
		time.Sleep(time.Minute)
		w.engine.Hooks.SetNetwork = func(ctx context.Context, _ string, _ sandbox.NetworkPolicy) error {
			return sleepFor(ctx, time.Second)
		}
		began := time.Now()
		var wg sync.WaitGroup
		for i, pooled := range []bool{true, true, true, false} { // two are bound, one waits
			wg.Go(func() {
				if got := w.start(request(sandbox.TenantID(fmt.Sprint("t", i)))); got.Pooled != pooled {
					t.Errorf("start %d is pooled: %t", i, got.Pooled)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if took := time.Since(began); took > 2100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// A request that waited for a Boot of the Pool until no time was left for a cold start is
// refused. No start begins that its deadline would cut.
func TestNoTimeAfterAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{Min: 8, Max: 8})
		defer w.close()
		w.cfg.ColdStarts = 1
		w.engine.Hooks.Start = func(ctx context.Context, _ string) error { return sleepFor(ctx, time.Second) }
		w.run()
		time.Sleep(time.Minute)
		w.engine.Hooks.SetNetwork = func(ctx context.Context, _ string, _ sandbox.NetworkPolicy) error {
			return sleepFor(ctx, 1500*time.Millisecond)
		}
		var wg sync.WaitGroup
		for i := range 2 { // as many as are bound at a time
			wg.Go(func() { w.start(request(sandbox.TenantID(fmt.Sprint("t", i)))) })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := w.node.Start(ctx, name, request("late"))
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Code != sandbox.Unavailable || e.RetryAfter == 0 || ctx.Err() != nil {
			t.Errorf("Start = %v, with its time over: %v", err, ctx.Err())
		}
		wg.Wait()
	})
}

func sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestNoPool(t *testing.T) {
	in(t, node.PoolConfig{Min: 5, Max: 0}, func(t *testing.T, w *world) {
		if s := w.stats(); w.running() != 0 || !s.Ready {
			t.Errorf("with a maximum of 0: %d boots, %+v", w.running(), s)
		}
		if w.start(request("t")).Pooled {
			t.Error("a boot came from a pool that is off")
		}
	})
}

func TestPoolWaitsForItsTemplate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{Min: 1, Max: 2})
		defer w.close()
		w.images.set("")
		w.run()
		synctest.Wait()
		if s := w.stats(); s.Ready || len(s.NotReady) != 1 {
			t.Errorf("before the template is there: %+v", s)
		}
		w.images.set(fake.Image)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s := w.stats(); !s.Ready || s.Pools[0].Idle != 1 {
			t.Errorf("after: %+v", s)
		}
		// A new version replaces what is idle.
		w.images.set("sha256:next")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		req := request("t")
		req.Image = "sha256:next"
		if !w.start(req).Pooled {
			t.Error("the pool still holds the old version")
		}
	})
}

func TestPoolThatCannotBeFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{Min: 1, Max: 2})
		defer w.close()
		var broken atomic.Bool
		broken.Store(true)
		var tries atomic.Int64
		w.engine.Hooks.Start = func(context.Context, string) error {
			tries.Add(1)
			if broken.Load() {
				return errors.New("broken")
			}
			return nil
		}
		w.run()
		time.Sleep(10 * time.Minute)
		if s := w.stats(); s.Ready {
			t.Errorf("a pool that cannot be filled is ready: %+v", s)
		}
		if n := tries.Load(); n < 5 || n > 40 {
			t.Errorf("%d tries in ten minutes, want them to become rare", n)
		}
		broken.Store(false)
		time.Sleep(time.Minute)
		if s := w.stats(); !s.Ready {
			t.Errorf("mended: %+v", s)
		}
	})
}

func TestBrokenPoolMembersAreReplaced(t *testing.T) {
	in(t, node.PoolConfig{Min: 3, Max: 3}, func(t *testing.T, w *world) {
		listed, err := w.engine.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range listed {
			w.engine.Guest(b.ID).Fail(sandbox.Internal)
		}
		req := request("t")
		started := w.start(req)
		synctest.Wait()
		if w.engine.Guest(started.BootID).Bound().SandboxID != req.Binding.SandboxID {
			t.Error("not bound")
		}
		left := 0
		for _, b := range listed {
			if w.engine.Guest(b.ID) != nil {
				left++
			}
		}
		if left == 3 {
			t.Error("none of the broken ones is gone")
		}
		time.Sleep(time.Second) // the pause after a claim, in the bubble's time
		synctest.Wait()
		if p := w.pool(); p.Idle != 3 {
			t.Errorf("pool = %+v, want it full again", p)
		}
	})
}

func TestHungPoolMemberIsPassedOver(t *testing.T) {
	in(t, node.PoolConfig{Min: 1, Max: 1}, func(t *testing.T, w *world) {
		listed, err := w.engine.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release := w.engine.Guest(listed[0].ID).Hang()
		defer release()
		began := time.Now()
		started := w.start(request("t"))
		if took := time.Since(began); started.BootID == listed[0].ID || took > 5*time.Second {
			t.Errorf("%+v after %v", started, took)
		}
	})
}

// A Binding that the Guest refuses costs the Boot that it was tried on, not the
// Pool.
func TestBadBindingCostsOneBoot(t *testing.T) {
	in(t, node.PoolConfig{Min: 4, Max: 4}, func(t *testing.T, w *world) {
		listed, err := w.engine.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range listed {
			w.engine.Guest(b.ID).Fail(sandbox.Invalid)
		}
		_, err = w.node.Start(t.Context(), name, request("t"))
		codetest.Want(t, "Start", err, sandbox.Invalid)
		left := 0
		for _, b := range listed {
			if w.engine.Guest(b.ID) != nil {
				left++
			}
		}
		if left != 3 {
			t.Errorf("%d of 4 are left, want 3", left)
		}
	})
}

func TestDeathOfAPooledBoot(t *testing.T) {
	in(t, node.PoolConfig{Min: 2, Max: 2}, func(t *testing.T, w *world) {
		listed, err := w.engine.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		w.engine.Kill(listed[0].ID, sandbox.CauseGuestExit)
		synctest.Wait()
		if p := w.pool(); p.Idle != 2 {
			t.Errorf("pool = %+v, want it refilled", p)
		}
		if len(w.ends) != 0 {
			t.Errorf("the session manager was told of a boot that is nobody's")
		}
	})
}

func TestDeathOfABoundBoot(t *testing.T) {
	for _, tt := range []struct{ cause, want sandbox.Cause }{
		{sandbox.CauseOOM, sandbox.CauseOOM},
		{sandbox.CauseGuestExit, sandbox.CauseGuestExit},
		{sandbox.CauseEngineLost, sandbox.CauseEngineLost},
		{sandbox.CauseReleased, sandbox.CauseEngineLost}, // an engine cannot say that
	} {
		t.Run(string(tt.cause), func(t *testing.T) {
			in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
				req := request("t")
				ref := refOf(req, w.start(req))
				w.refuse.Store(true)
				w.engine.Kill(ref.BootID, tt.cause)
				time.Sleep(time.Minute)
				if len(w.ends) != 0 || len(w.journal()) != 1 {
					t.Fatalf("before it is accepted: %d reports, journal %v", len(w.ends), w.journal())
				}
				if boots, err := w.node.Boots(t.Context(), name); err != nil || len(boots) != 1 {
					t.Errorf("Boots = %v, %v: its end is not accepted yet", boots, err)
				}
				_, err := w.node.Dial(t.Context(), name, ref, 80)
				codetest.Want(t, "Dial", err, sandbox.NotFound)
				w.refuse.Store(false)
				e := <-w.ends
				if e.BootRef != ref || e.Cause != tt.want || e.At.IsZero() {
					t.Errorf("told %+v, want %s of %+v", e, tt.want, ref)
				}
				synctest.Wait()
				if len(w.journal()) != 0 {
					t.Errorf("journal %v", w.journal())
				}
			})
		})
	}
}

// A comparison with the engine's list, before the event of an end arrives, does not take
// the Boot for one that was lost.
func TestCauseOutlivesComparison(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		w.engine.Hooks.Event = func(sandbox.BootEvent) { time.Sleep(time.Hour) } // two comparisons a minute
		w.engine.Kill(ref.BootID, sandbox.CauseGuestExit)
		if e := <-w.ends; e.BootRef != ref || e.Cause != sandbox.CauseGuestExit {
			t.Errorf("told %+v, want %s", e, sandbox.CauseGuestExit)
		}
	})
}

// An end that was seen but not accepted before a crash is told, with its cause,
// by the next process.
func TestEndIsToldAfterACrash(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		seen, unseen := request("t"), request("t")
		seenRef, unseenRef := refOf(seen, w.start(seen)), refOf(unseen, w.start(unseen))
		w.refuse.Store(true)
		w.engine.Kill(seenRef.BootID, sandbox.CauseOOM)
		synctest.Wait()
		w.stop()
		w.engine.Kill(unseenRef.BootID, sandbox.CauseOOM)
		w.engine = w.engine.Reopen()
		w.refuse.Store(false)
		w.run()
		got := map[sandbox.BootRef]sandbox.Cause{}
		for range 2 {
			e := <-w.ends
			got[e.BootRef] = e.Cause
		}
		if got[seenRef] != sandbox.CauseOOM || got[unseenRef] != sandbox.CauseEngineLost {
			t.Errorf("told %v", got)
		}
	})
}

// The death of a Boot between the Engine's list and its watch is noticed.
func TestUnwatchedDeathIsNoticed(t *testing.T) {
	in(t, node.PoolConfig{Min: 1, Max: 1}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		synctest.Wait()
		w.stop()
		w.engine = w.engine.Reopen()
		w.open()
		lost := w.engine.Reopen() // takes the events
		listed, err := lost.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range listed {
			lost.Kill(b.ID, sandbox.CauseOOM)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.node.Run(ctx) }()
		w.stop = sync.OnceFunc(func() { cancel(); <-done })
		if e := <-w.ends; e.BootRef != ref || e.Cause != sandbox.CauseEngineLost {
			t.Errorf("told %+v", e)
		}
		time.Sleep(time.Minute)
		if p := w.pool(); p.Idle != 1 {
			t.Errorf("pool = %+v, want it refilled", p)
		}
	})
}

func TestRestart(t *testing.T) {
	in(t, node.PoolConfig{Min: 2, Max: 4}, func(t *testing.T, w *world) {
		warm, cold := request("t"), request("other")
		cold.Shape.MemoryBytes *= 2
		warmRef, coldRef := refOf(warm, w.start(warm)), refOf(cold, w.start(cold))
		w.engine.Guest(coldRef.BootID).Pretend(sandbox.Binding{}) // a liar: "nobody's"
		time.Sleep(time.Second)                                   // the pool is full again
		idle, before := w.pool().Idle, w.running()
		w.restart()
		synctest.Wait()
		if p := w.pool(); p.Idle != idle || w.running() != before {
			t.Errorf("%d idle and %d running after the restart, want %d and %d", p.Idle, w.running(), idle, before)
		}
		echo(t, w, warmRef)
		echo(t, w, coldRef)
		if again := w.start(warm); again.BootID != warmRef.BootID || !again.Pooled {
			t.Errorf("Start of what is bound = %+v", again)
		}
		old := warm
		old.Binding.BootNumber = 0
		_, err := w.node.Start(t.Context(), name, old)
		codetest.Want(t, "Start with number 0", err, sandbox.Invalid)
		if !w.start(request("t")).Pooled {
			t.Error("an adopted boot is not claimed")
		}
	})
}

func TestRestartDestroysWhatBelongsToNobody(t *testing.T) {
	in(t, node.PoolConfig{Min: 1, Max: 1}, func(t *testing.T, w *world) {
		w.stop()
		boot := func(image string, shape sandbox.Shape) string {
			id := sandbox.NewBootID()
			if err := w.engine.Start(t.Context(), id, sandbox.BootSpec{Image: image, Shape: shape}); err != nil {
				t.Fatal(err)
			}
			return id
		}
		shape := sandbox.DefaultShape()
		big := shape
		big.MemoryBytes *= 2
		claimed := boot(fake.Image, shape) // bound, and the crash came before the journal was of use
		w.engine.Guest(claimed).Pretend(sandbox.Binding{SandboxID: sandbox.NewSandboxID(), BootNumber: 1})
		damaged := boot(fake.Image, shape)
		if err := os.WriteFile(filepath.Join(w.dir, "boots", damaged+".json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		strays := []string{claimed, damaged, boot("sha256:next", shape), boot(fake.Image, big)}
		if err := os.WriteFile(filepath.Join(w.dir, "boots", sandbox.NewBootID()+".json.new"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.engine = w.engine.Reopen()
		w.run()
		synctest.Wait()
		for _, id := range strays {
			if w.engine.Guest(id) != nil {
				t.Errorf("%s is still there", id)
			}
		}
		if p := w.pool(); p.Idle != 1 || w.running() != 1 || len(w.journal()) != 0 {
			t.Errorf("pool %+v, %d running, journal %v", p, w.running(), w.journal())
		}
	})
}

// A crash at each step of a start leaves either a Boot that its Node reports as
// the Sandbox's, or none.
func TestCrashWhileStarting(t *testing.T) {
	for _, step := range []string{"engine start", "network", "bind"} {
		for _, pooled := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, pool of %d", step, pooled), func(t *testing.T) {
				in(t, node.PoolConfig{Min: pooled, Max: pooled}, func(t *testing.T, w *world) {
					req := request("t")
					crashed, dead := make(chan struct{}), make(chan struct{})
					announce := sync.OnceFunc(func() { close(crashed) })
					crash := func() error { announce(); <-dead; return errors.New("dead") }
					switch step {
					case "engine start":
						w.engine.Hooks.Start = func(_ context.Context, id string) error {
							if id == req.BootID {
								return crash()
							}
							return nil
						}
					case "network":
						w.engine.Hooks.SetNetwork = func(context.Context, string, sandbox.NetworkPolicy) error { return crash() }
					case "bind":
						w.engine.Hooks.SetNetwork = func(context.Context, string, sandbox.NetworkPolicy) error {
							time.Sleep(time.Millisecond) // the Guest is bound by then
							return crash()
						}
					}
					if step == "engine start" && pooled == 1 {
						t.Skip("a claim starts nothing")
					}
					// The first process stops dead in the middle; a copy of what it
					// left on disk and in the Engine is what the next one finds.
					ctx, cancel := context.WithCancel(t.Context())
					var wg sync.WaitGroup
					wg.Go(func() { _, _ = w.node.Start(ctx, name, req) })
					<-crashed
					w.stop()
					left := w.journal()
					if len(left) > 1 {
						t.Errorf("journal %v", left)
					}
					second := newWorld(t, node.PoolConfig{Min: pooled, Max: pooled})
					second.engine = w.engine.Reopen()
					second.engine.Hooks = fake.Hooks{}
					copyFiles(t, left, filepath.Join(second.dir, "boots"))
					second.run()
					time.Sleep(10 * time.Second)
					boots, err := second.node.Boots(t.Context(), name)
					if err != nil || len(boots) != len(left) {
						t.Errorf("Boots = %v, %v, want %d", boots, err, len(left))
					}
					for _, b := range boots { // as reconciling does: the record says starting
						if err := second.node.Stop(t.Context(), name, b.BootID, 0); err != nil {
							t.Error(err)
						}
					}
					second.close()
					cancel()
					close(dead)
					wg.Wait()
				})
			})
		}
	}
}

func copyFiles(t *testing.T, files []string, dir string) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(f)), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestFencing(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		first := request("t")
		firstRef := refOf(first, w.start(first))
		second := first
		second.BootID = sandbox.NewBootID()
		second.Binding.BootNumber = 2
		secondRef := refOf(second, w.start(second))
		if w.engine.Guest(firstRef.BootID) != nil {
			t.Error("the older boot still runs")
		}
		_, err := w.node.Start(t.Context(), name, first)
		codetest.Want(t, "Start of the older number", err, sandbox.Conflict)
		_, err = w.node.Dial(t.Context(), name, firstRef, 80)
		codetest.Want(t, "Dial of the older number", err, sandbox.Conflict)
		echo(t, w, secondRef)
		if err := w.node.Stop(t.Context(), name, secondRef.BootID, 0); err != nil {
			t.Fatal(err)
		}
		_, err = w.node.Start(t.Context(), name, first)
		codetest.Want(t, "Start of the older number after the end", err, sandbox.Conflict)
	})
}

func TestNewerStartEndsAnOlderOne(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		older := request("t")
		w.engine.Hooks.Start = func(ctx context.Context, id string) error {
			if id == older.BootID {
				<-ctx.Done()
			}
			return ctx.Err()
		}
		result := make(chan error, 1)
		go func() {
			_, err := w.node.Start(t.Context(), name, older)
			result <- err
		}()
		synctest.Wait()
		newer := older
		newer.BootID = sandbox.NewBootID()
		newer.Binding.BootNumber = 2
		w.start(newer)
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("the older start = %v", err)
		}
		if w.running() != 1 {
			t.Errorf("%d run, want 1", w.running())
		}
	})
}

// Traffic of a bound Boot is reported with its owner, also for a while after the end of
// the Boot.
func TestTrafficOfBoots(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		quiet := request("t")
		w.start(quiet)
		carried := map[string]sandbox.Traffic{ref.BootID: {Sent: 7, Received: 1}, "bforeign": {Sent: 1}}
		w.engine.Hooks.Traffic = func() map[string]sandbox.Traffic { return carried }
		told := func(when string, want ...sandbox.BootTraffic) {
			t.Helper()
			if got, err := w.node.Traffic(t.Context(), name); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %+v, %v, want %+v", when, got, err, want)
			}
		}
		told("while it runs", sandbox.BootTraffic{BootRef: ref, Traffic: sandbox.Traffic{Sent: 7, Received: 1}})
		if err := w.node.Stop(t.Context(), name, ref.BootID, 0); err != nil {
			t.Fatal(err)
		}
		carried[ref.BootID] = sandbox.Traffic{Sent: 9, Received: 1}
		told("after its end", sandbox.BootTraffic{BootRef: ref, Traffic: sandbox.Traffic{Sent: 9, Received: 1}})
		time.Sleep(sandbox.TrafficMemory + time.Second)
		told("long after its end")
		if _, err := w.node.Traffic(t.Context(), "another"); err == nil {
			t.Error("another node is told of")
		}
	})
}

func TestStopGivesUpAStart(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		w.engine.Hooks.Start = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		req := request("t")
		result := make(chan error, 1)
		go func() {
			_, err := w.node.Start(t.Context(), name, req)
			result <- err
		}()
		synctest.Wait()
		if err := w.node.Stop(t.Context(), name, req.BootID, 0); err != nil {
			t.Fatal(err)
		}
		if err := <-result; err == nil {
			t.Error("the start succeeded")
		}
	})
}

func TestFailedStartLeavesNothing(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name  string
		spoil func(w *world)
		ctx   time.Duration
	}{
		{"the engine fails", func(w *world) {
			w.engine.Hooks.Start = func(context.Context, string) error { return broken }
		}, time.Hour},
		{"the network fails", func(w *world) {
			w.engine.Hooks.SetNetwork = func(context.Context, string, sandbox.NetworkPolicy) error { return broken }
		}, time.Hour},
		{"the client leaves", func(w *world) {
			w.engine.Hooks.SetNetwork = func(ctx context.Context, _ string, _ sandbox.NetworkPolicy) error { return sleepFor(ctx, time.Minute) }
		}, time.Second},
		{"the boot dies while it is bound", func(w *world) {
			w.engine.Hooks.SetNetwork = func(_ context.Context, id string, _ sandbox.NetworkPolicy) error {
				w.engine.Kill(id, sandbox.CauseOOM)
				time.Sleep(time.Millisecond)
				return nil
			}
		}, time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
				tt.spoil(w)
				ctx, cancel := context.WithTimeout(t.Context(), tt.ctx)
				defer cancel()
				if _, err := w.node.Start(ctx, name, request("t")); err == nil {
					t.Error("Start succeeded")
				}
				boots, err := w.node.Boots(t.Context(), name)
				if err != nil || len(boots) != 0 || w.running() != 0 || len(w.journal()) != 0 {
					t.Errorf("left: %v, %v, %d running, journal %v", boots, err, w.running(), w.journal())
				}
			})
		})
	}
}

// A Boot that cannot be stopped stays known, keeps its journal, and is stopped
// once that works.
func TestStopThatFailsIsRepeated(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		var broken atomic.Bool
		broken.Store(true)
		w.engine.Hooks.Stop = func(context.Context, string) error {
			if broken.Load() {
				return errors.New("broken")
			}
			return nil
		}
		if err := w.node.Stop(t.Context(), name, ref.BootID, 0); err == nil {
			t.Error("Stop succeeded")
		}
		if boots, err := w.node.Boots(t.Context(), name); err != nil || len(boots) != 1 || len(w.journal()) != 1 {
			t.Errorf("Boots = %v, %v, journal %v", boots, err, w.journal())
		}
		broken.Store(false)
		time.Sleep(time.Minute)
		if boots, err := w.node.Boots(t.Context(), name); err != nil || len(boots) != 0 || len(w.journal()) != 0 {
			t.Errorf("after the regular comparison: %v, %v, journal %v", boots, err, w.journal())
		}
	})
}

func TestStraysAreStopped(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		id := sandbox.NewBootID()
		if err := w.engine.Start(t.Context(), id, sandbox.BootSpec{Image: fake.Image, Shape: sandbox.DefaultShape()}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if w.running() != 0 {
			t.Error("a boot that nobody knows still runs")
		}
	})
}

func TestMemoryFull(t *testing.T) {
	in(t, node.PoolConfig{Min: 1, Max: 1}, func(t *testing.T, w *world) {
		req := request("t")
		ref := refOf(req, w.start(req))
		w.engine.FillMemory(ref.BootID)
		w.engine.FillMemory(sandbox.NewBootID())
		synctest.Wait()
		if n := w.engine.Guest(ref.BootID).Kills(); n != 1 {
			t.Errorf("asked %d times to make room, want once", n)
		}
		release := w.engine.Guest(ref.BootID).Hang()
		defer release()
		began := time.Now()
		w.engine.FillMemory(ref.BootID)
		w.engine.FillMemory(ref.BootID)
		time.Sleep(sandbox.OOMGrace)
		w.stop() // waits for the plea, which gave up before the grace was over
		if took := time.Since(began); took > sandbox.OOMGrace {
			t.Errorf("a hung guest held up the node for %v", took)
		}
	})
}

func TestHostThatIsFull(t *testing.T) {
	in(t, node.PoolConfig{Min: 1, Max: 1}, func(t *testing.T, w *world) {
		enough, _ := w.host.read()
		for _, tt := range []struct {
			name string
			host sandbox.HostState
			want error
		}{
			{"disk at the mark", sandbox.HostState{DiskFree: 15, DiskTotal: 100, MemoryFree: 1 << 30, MemoryTotal: 2 << 30}, nil},
			{"disk below it", sandbox.HostState{DiskFree: 14, DiskTotal: 100, MemoryFree: 1 << 30, MemoryTotal: 2 << 30}, sandbox.Exhausted},
			{"little memory", sandbox.HostState{DiskFree: 50, DiskTotal: 100, MemoryFree: 255 << 20, MemoryTotal: 2 << 30}, sandbox.Exhausted},
			{"little memory of a large host", sandbox.HostState{DiskFree: 50, DiskTotal: 100, MemoryFree: 1 << 30, MemoryTotal: 64 << 30}, sandbox.Exhausted},
		} {
			w.host.set(tt.host)
			time.Sleep(time.Second) // older than a reading may be
			req := request("t")
			req.Shape.DiskBytes++ // cold
			started, err := w.node.Start(t.Context(), name, req)
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
			}
			var e *sandbox.Error
			if errors.As(err, &e) && e.RetryAfter <= 0 {
				t.Errorf("%s: no advice when to retry", tt.name)
			}
			if err == nil {
				_ = w.node.Stop(t.Context(), name, started.BootID, 0)
			}
		}
		w.host.set(enough)
		time.Sleep(time.Second)
		was := request("t")
		snapshot := w.save(refOf(was, w.start(was)), true)
		for _, tt := range []struct {
			name  string
			free  int64
			again bool // the Sandbox was there before
			want  error
		}{
			{"a resume at the mark", 5, true, nil},
			{"a resume below it", 4, true, sandbox.Exhausted},
			{"a new one from a snapshot", 14, false, sandbox.Exhausted},
			{"and with room", 15, false, nil},
		} {
			w.host.set(sandbox.HostState{DiskFree: tt.free, DiskTotal: 100, MemoryFree: 1 << 30, MemoryTotal: 2 << 30})
			time.Sleep(time.Second)
			req := request("t")
			req.From = snapshot
			if tt.again {
				req.Binding.BootNumber++
			}
			started, err := w.node.Start(t.Context(), name, req)
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
			}
			if err == nil {
				_ = w.node.Stop(t.Context(), name, started.BootID, 0)
			}
		}
		w.host.set(enough)
		time.Sleep(time.Minute)
	})
}

// A start that a full host has no room for waits for what boots that go give back, and
// for nothing else.
func TestHostThatIsFullWaits(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		w.host.free = func() int64 { return int64(1-w.running()) << 30 } // room for one
		var stop chan struct{}
		w.engine.Hooks.Stop = func(ctx context.Context, _ string) error {
			if stop == nil {
				return nil
			}
			select {
			case <-stop:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		req := request("t")
		ref := refOf(req, w.start(req))
		begin := func(ctx context.Context) (sandbox.StartRequest, <-chan error) {
			next, ended := request("t"), make(chan error, 1)
			go func() {
				_, err := w.node.Start(ctx, name, next)
				ended <- err
			}()
			synctest.Wait()
			return next, ended
		}
		time.Sleep(time.Second) // older than a reading may be
		began := time.Now()
		_, ended := begin(t.Context())
		if codetest.Want(t, "Start beside one that runs", <-ended, sandbox.Exhausted); !time.Now().Equal(began) {
			t.Errorf("it was refused after %v", time.Since(began))
		}

		w.save(ref, true)
		_, ended = begin(t.Context())
		if codetest.Want(t, "Start beside one that is paused and stays", <-ended, sandbox.Exhausted); time.Since(began) > time.Minute {
			t.Errorf("it was refused after %v", time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, ended = begin(ctx)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Start of a client that left = %v", err)
		}

		next, ended := begin(t.Context())
		select {
		case err := <-ended:
			t.Fatalf("Start while one is going = %v", err)
		default:
		}
		stop = make(chan struct{})
		stopped := make(chan error, 1)
		go func() { stopped <- w.node.Stop(t.Context(), name, ref.BootID, 0) }()
		synctest.Wait()
		close(stop)
		stop = nil
		if err := errors.Join(<-stopped, <-ended); err != nil {
			t.Fatal(err)
		}

		ref = sandbox.BootRef{BootID: next.BootID, SandboxID: next.Binding.SandboxID, Number: 1, Tenant: "t"}
		w.save(ref, true)
		if err := w.node.Thaw(t.Context(), name, ref); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		began = time.Now()
		_, ended = begin(t.Context())
		if codetest.Want(t, "Start beside one that goes on after all", <-ended, sandbox.Exhausted); !time.Now().Equal(began) {
			t.Errorf("it was refused after %v", time.Since(began))
		}
		// A reading from before the end of a Boot does not count.
		if err := w.node.Stop(t.Context(), name, ref.BootID, 0); err != nil {
			t.Fatal(err)
		}
		if _, ended = begin(t.Context()); <-ended != nil {
			t.Error("it is refused once the other is gone")
		}
	})
}

func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, node.PoolConfig{})
		defer w.close()
		w.cfg.ColdStarts, w.cfg.Waiting = 1, 6
		var mu sync.Mutex
		var order []sandbox.TenantID
		tenants := map[string]sandbox.TenantID{}
		w.engine.Hooks.Start = func(ctx context.Context, id string) error {
			mu.Lock()
			order = append(order, tenants[id])
			mu.Unlock()
			return sleepFor(ctx, time.Second)
		}
		w.run()
		var wg sync.WaitGroup
		start := func(tenant sandbox.TenantID) {
			req := request(tenant)
			mu.Lock()
			tenants[req.BootID] = tenant
			mu.Unlock()
			wg.Go(func() { w.start(req) })
			synctest.Wait()
		}
		for range 5 {
			start("many") // one runs, four wait
		}
		start("few")
		start("few")
		_, err := w.node.Start(t.Context(), name, request("many"))
		codetest.Want(t, "Start with too many before it", err, sandbox.Unavailable)
		var e *sandbox.Error
		if !errors.As(err, &e) || e.RetryAfter <= 0 {
			t.Errorf("no advice when to retry: %v", err)
		}
		start("late") // its own place is a good one
		wg.Wait()
		wanted := []sandbox.TenantID{"many", "many", "few", "late", "many", "few", "many", "many"}
		if fmt.Sprint(order) != fmt.Sprint(wanted) {
			t.Errorf("started in the order %v, want %v", order, wanted)
		}
	})
}

func TestLease(t *testing.T) {
	in(t, node.PoolConfig{}, func(_ *testing.T, w *world) {
		before := w.leases.renewed.Load()
		time.Sleep(time.Minute)
		if n := w.leases.renewed.Load() - before; n < 11 || n > 13 {
			t.Errorf("renewed %d times in a minute, want every 5 s", n)
		}
	})
}

// A Node that fences itself early has a shorter Lease, and renews it more often. One that
// does so late has the Lease of one that does not.
func TestLeaseInProportion(t *testing.T) {
	for _, tt := range []struct {
		fence  time.Duration
		life   time.Duration
		times  int // in a minute
		failed int // attempts in a minute, while all fail
	}{
		{sandbox.MinFenceAfter, 1500 * time.Millisecond, 120, 600},
		{45 * time.Second, 7500 * time.Millisecond, 24, 120},
		{90 * time.Second, 15 * time.Second, 12, 60},
		{time.Hour, 15 * time.Second, 12, 60},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, node.PoolConfig{})
			w.cfg.FenceAfter, w.cfg.Fencer = tt.fence, w.engine
			defer w.close()
			w.run()
			synctest.Wait()
			attempts := func() (n int, life time.Duration) {
				w.leases.mu.Lock()
				defer w.leases.mu.Unlock()
				return w.leases.asked, w.leases.life
			}
			counted := func() int {
				before, _ := attempts()
				time.Sleep(time.Minute)
				after, _ := attempts()
				return after - before
			}
			if n := counted(); n < tt.times-1 || n > tt.times+1 {
				t.Errorf("with a fence of %v it renews its lease %d times in a minute, want %d", tt.fence, n, tt.times)
			}
			if _, life := attempts(); life != tt.life {
				t.Errorf("with a fence of %v its lease lasts %v, want %v", tt.fence, life, tt.life)
			}
			w.leases.give("another")
			counted() // until it knows
			if n := counted(); n < tt.failed-1 || n > tt.failed+1 {
				t.Errorf("with a fence of %v it tries %d times in a minute, want %d", tt.fence, n, tt.failed)
			}
		})
	}
}

// A Node whose name another host has starts nothing, and goes on when that host is gone.
func TestNameOfAnother(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		w.leases.give("another")
		time.Sleep(time.Minute)
		if s := w.stats(); s.Ready || !slices.Contains(s.NotReady, "another node has its name") {
			t.Errorf("%+v", s)
		}
		_, err := w.node.Start(t.Context(), name, request("refused"))
		if !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Start = %v", err)
		}
		if _, err := node.Open(t.Context(), w.cfg); !errors.Is(err, sandbox.Conflict) {
			t.Errorf("Open = %v", err)
		}
		w.leases.give("")
		time.Sleep(time.Minute)
		if s := w.stats(); !s.Ready {
			t.Errorf("%+v", s)
		}
		w.start(request("taken"))
		w.restart()
		w.leases.mu.Lock()
		defer w.leases.mu.Unlock()
		if all := slices.Compact(w.leases.holders); len(all) != 1 || all[0] == "" {
			t.Errorf("the holders are %q", all)
		}
	})
}

// Many Sandboxes come and go at once, on real time, for the race detector.
func TestChurn(t *testing.T) {
	w := newWorld(t, node.PoolConfig{Min: 4, Max: 16})
	defer w.close()
	w.run()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 40 {
				req := request(sandbox.TenantID(fmt.Sprint(i)))
				started, err := w.node.Start(t.Context(), name, req)
				if err != nil {
					t.Errorf("Start: %v", err)
					return
				}
				if k%5 == 0 {
					w.engine.Kill(started.BootID, sandbox.CauseOOM)
					continue
				}
				if err := w.node.Stop(t.Context(), name, started.BootID, 0); err != nil {
					t.Errorf("Stop: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for range 8 * 8 {
		<-w.ends
	}
	w.stop() // which waits for what it does with the answers to its reports
	if boots, err := w.node.Boots(t.Context(), name); err != nil || len(boots) != 0 {
		t.Errorf("left: %v, %v", boots, err)
	}
}

// A start waits for the ready command of its Template. Other starts continue meanwhile.
func TestWaitForReady(t *testing.T) {
	in(t, node.PoolConfig{}, func(t *testing.T, w *world) {
		release := func() {}
		w.engine.Hooks.Started = func(id string) { release = w.engine.Guest(id).Wait() }
		waiting := make(chan error, 2)
		for range 2 { // as many as may start at a time
			go func() {
				_, err := w.node.Start(t.Context(), name, request("t"))
				waiting <- err
			}()
			synctest.Wait()
			defer release()
		}
		w.engine.Hooks.Started = nil
		w.start(request("other"))
		select {
		case err := <-waiting:
			t.Fatalf("a start whose template is not ready returned %v", err)
		default:
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		for range 2 {
			if err := <-waiting; err == nil {
				t.Error("a template that never gets ready was given out")
			}
		}
		if n := w.running(); n != 1 {
			t.Errorf("%d boots run, want the other's", n)
		}
	})
}
