package replication_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/disk"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/s3"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/replication"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/postgrestest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig/s3rig"
)

var errCrashed = errors.New("the process has crashed")

// process is one life of a process. At a random call to the records or to Blobs it crashes,
// before the call, after it, or while it is under way: then a put still arrives later, within
// its time, and a deletion within a batch's.
type process struct {
	crash context.CancelFunc
	ctx   context.Context

	mu    sync.Mutex
	left  int // calls; negative: it does not crash
	r     *mathrand.Rand
	later *sync.WaitGroup // calls that arrive after the crash
}

// newProcess makes a process that crashes within so many calls; 0: never.
func newProcess(parent context.Context, r *mathrand.Rand, within int, later *sync.WaitGroup) *process {
	p := &process{left: -1, r: mathrand.New(mathrand.NewPCG(r.Uint64(), r.Uint64())), later: later}
	if within > 0 {
		p.left = r.IntN(within)
	}
	p.ctx, p.crash = context.WithCancel(parent)
	return p
}

// call makes a call that may take effect, and may crash the process.
func (p *process) call(ctx context.Context, do func(context.Context) error) error {
	p.mu.Lock()
	if p.ctx.Err() != nil {
		p.mu.Unlock()
		return errCrashed
	}
	crashes, how := p.left == 0, p.r.IntN(3)
	p.left--
	p.mu.Unlock()
	if !crashes {
		return do(ctx)
	}
	defer p.crash()
	switch how {
	case 0:
	case 1:
		_ = do(ctx) // its process has died, so the caller gets no result
	default:
		sent := context.WithoutCancel(ctx)
		end, limited := ctx.Deadline()
		p.later.Go(func() {
			if limited {
				var cancel context.CancelFunc
				sent, cancel = context.WithDeadline(sent, end)
				defer cancel()
			}
			time.Sleep(50 * time.Millisecond)
			_ = do(sent) // its process has died, so the caller gets no result
		})
	}
	return errCrashed
}

// crashing are the records of a process.
type crashing struct {
	sandbox.CopyRecords
	p *process
}

func (c crashing) BeginCopy(ctx context.Context, node string, ref sandbox.CopyRef) (a sandbox.CopyAttempt, err error) {
	err = c.p.call(ctx, func(ctx context.Context) error {
		begun, err := c.CopyRecords.BeginCopy(ctx, node, ref)
		if c.p.ctx.Err() == nil { // it is waited for
			a = begun
		}
		return err
	})
	if err != nil {
		return sandbox.CopyAttempt{}, err
	}
	return a, nil
}

func (c crashing) UsePacks(ctx context.Context, node string, use sandbox.PackUse) (refused []string, err error) {
	var all []string // only of a call that is waited for
	err = c.p.call(ctx, func(ctx context.Context) error {
		got, err := c.CopyRecords.UsePacks(ctx, node, use)
		if c.p.ctx.Err() == nil {
			all = got
		}
		return err
	})
	if errors.Is(err, errCrashed) {
		return nil, err
	}
	return all, err
}

func (c crashing) CompleteCopy(ctx context.Context, node string, a sandbox.CopyAttempt) error {
	return c.p.call(ctx, func(ctx context.Context) error { return c.CopyRecords.CompleteCopy(ctx, node, a) })
}

func (c crashing) AbandonCopy(ctx context.Context, node string, a sandbox.AbandonedCopy) error {
	return c.p.call(ctx, func(ctx context.Context) error { return c.CopyRecords.AbandonCopy(ctx, node, a) })
}

// crashingBlobs are the Blobs of a process.
type crashingBlobs struct {
	sandbox.Blobs
	p *process
}

func (c crashingBlobs) Put(ctx context.Context, name string, content []byte) error {
	return c.p.call(ctx, func(ctx context.Context) error { return c.Blobs.Put(ctx, name, content) })
}

func (c crashingBlobs) Delete(ctx context.Context, name string) error {
	return c.p.call(ctx, func(ctx context.Context) error { return c.Blobs.Delete(ctx, name) })
}

func (c crashingBlobs) Get(ctx context.Context, name string) ([]byte, error) {
	if c.p.ctx.Err() != nil {
		return nil, errCrashed
	}
	return c.Blobs.Get(ctx, name)
}

// crashingGarbage are the records of a process that leads.
type crashingGarbage struct {
	sandbox.CopyGarbage
	p *process
}

func (c crashingGarbage) DropCopy(ctx context.Context, ref sandbox.CopyRef) (more bool, err error) {
	err = c.p.call(ctx, func(ctx context.Context) error {
		again, err := c.CopyGarbage.DropCopy(ctx, ref)
		if c.p.ctx.Err() == nil {
			more = again
		}
		return err
	})
	return err == nil && more, err
}

func (c crashingGarbage) DropPacks(ctx context.Context, names []string) error {
	return c.p.call(ctx, func(ctx context.Context) error { return c.CopyGarbage.DropPacks(ctx, names) })
}

// place is where two nodes and a leader keep what they share.
type place struct {
	stores [3]*sqlstore.Store // of the nodes and of the leader
	blobs  sandbox.Blobs
	dir    string // of the blobs
}

// crashStates is the number of states of TestStatesUnderCrashes. `make test-copies` has 1,000.
var crashStates = flag.Int("crash.states", 150, "states that two nodes copy while they crash")

// Two nodes copy, delete and fetch many states of one tenant, and both and the leader crash
// again and again. In the end each state that is ready restores as it was saved, and once all
// are deleted no blob is left but the key.
func TestStatesUnderCrashes(t *testing.T) {
	t.Run("SQLite and a folder", func(t *testing.T) {
		dir, store := t.TempDir(), sqlitetest.Open(t)
		crashes(t, place{stores: [3]*sqlstore.Store{store, store, store}, blobs: disk.Open(dir), dir: dir}, *crashStates)
	})
	t.Run("PostgreSQL and S3", func(t *testing.T) {
		server := s3rig.Start(t)
		bucket := server.Bucket(t)
		blobs, err := s3.Open(s3.Config{
			Endpoint: server.URL, Region: s3rig.Region, Bucket: bucket, AccessKey: s3rig.AccessKey, SecretKey: s3rig.SecretKey,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(blobs.Close)
		p := place{blobs: blobs, dir: filepath.Join(server.Dir, bucket)}
		address := postgrestest.Start(t).Address(t)
		for i := range p.stores {
			if p.stores[i], err = sqlstore.OpenPostgres(t.Context(), address); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = p.stores[i].Close() })
		}
		crashes(t, p, *crashStates)
	})
}

// crashedLife is Config.PutLife in the test, and longer than each call takes to arrive.
const crashedLife = 3 * time.Second

// mortal is a node that crashes.
type mortal struct {
	*world
	t     *testing.T
	r     *mathrand.Rand
	blobs sandbox.Blobs
	later *sync.WaitGroup
	times int // crashes
	live  *process
	ended chan struct{}
}

// begin starts a process that crashes within so many calls; 0: never.
func (m *mortal) begin(within int) {
	m.live = newProcess(context.WithoutCancel(m.t.Context()), m.r, within, m.later)
	m.cfg.Records, m.cfg.Blobs = crashing{CopyRecords: m.store, p: m.live}, crashingBlobs{m.blobs, m.live}
	e, err := replication.Open(m.inner, m.cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	m.Engine, m.ended = e, make(chan struct{})
	go func(p *process, ended chan struct{}) {
		defer close(ended)
		_ = e.Run(p.ctx) // it ends with a crash
	}(m.live, m.ended)
}

// end ends the process.
func (m *mortal) end() {
	m.live.crash()
	<-m.ended
}

// alive starts the process again if it has crashed.
func (m *mortal) alive(within int) {
	select {
	case <-m.live.ctx.Done():
		<-m.ended
		m.times++
		m.inner = m.inner.Reopen()
		m.begin(within)
	default:
	}
}

// leaders run one collector after the other until ctx ends, each in a term of its own. It
// returns how many crashed.
func leaders(ctx context.Context, t *testing.T, store *sqlstore.Store, blobs sandbox.Blobs, r *mathrand.Rand, later *sync.WaitGroup) (times int) {
	for ; ctx.Err() == nil; times++ {
		claim := sandbox.LeaderClaim{Role: "session-manager", Holder: fmt.Sprint("leader ", times)}
		term, err := store.Lead(ctx, claim, time.Hour)
		if err != nil {
			if ctx.Err() == nil {
				t.Error(err)
			}
			return times
		}
		p := newProcess(ctx, r, 300, later) // a batch has up to 200
		c := replication.NewCollector(replication.CollectorConfig{
			Records: crashingGarbage{store.Under(term, nil), p}, Blobs: crashingBlobs{blobs, p}, Log: slog.New(slog.DiscardHandler),
			Settle: 150 * time.Millisecond, Every: 10 * time.Millisecond, // later than what a former one has sent
		}, &replication.CollectorCounts{})
		_ = c.Run(p.ctx) // it ends with a crash
		p.crash()
		if err := store.Resign(context.WithoutCancel(ctx), claim.Role, claim.Holder); err != nil {
			t.Error(err)
		}
	}
	return times
}

// kept is a state that is needed, and what it holds.
type kept struct {
	node    int
	content string
}

func crashes(t *testing.T, p place, states int) {
	began := time.Now()
	seed := uint64(began.UnixNano())
	t.Logf("the seed is %d", seed)
	r := mathrand.New(mathrand.NewPCG(seed, 0))
	var later sync.WaitGroup
	defer later.Wait()
	collecting, stopCollecting := context.WithCancel(context.WithoutCancel(t.Context()))
	collected := make(chan int)
	leading := mathrand.New(mathrand.NewPCG(seed, 1))
	go func() { collected <- leaders(collecting, t, p.stores[2], p.blobs, leading, &later) }()

	var nodes [2]*mortal
	for i := range nodes {
		inner := fake.New()
		t.Cleanup(inner.Close)
		w := &world{inner: inner, store: p.stores[i], cfg: replication.Config{
			Dir: filepath.Join(t.TempDir(), "offload"), Keys: [][]byte{key(7)}, Node: fmt.Sprint("node-", i),
			Log: slog.New(slog.DiscardHandler), Retry: time.Millisecond, PutLife: crashedLife,
		}}
		nodes[i] = &mortal{world: w, t: t, r: r, blobs: p.blobs, later: &later}
		nodes[i].begin(40)
	}
	all := map[string]kept{}
	names := []string{}
	common := make([]string, 4)
	for i := range common {
		common[i] = much(150<<10, byte(i))
	}
	for n := range states {
		i := r.IntN(2)
		m := nodes[i]
		m.alive(40)
		name, content := "", ""
		if from := pick(r, names); from != "" && r.IntN(4) == 0 {
			name, content = m.fetchFrom(from, all[from].content)
		}
		if name == "" {
			content = fmt.Sprint(n) + common[r.IntN(len(common))]
			name = m.save(t, content, "t")
		}
		all[name], names = kept{i, content}, append(names, name)
		for len(names) > 0 && r.IntN(5) < 2 { // also while it is copied
			gone := names[max(0, len(names)-1-r.IntN(8))]
			m := nodes[all[gone].node]
			m.alive(40)
			if err := m.DeleteSaved(t.Context(), gone); err != nil {
				t.Fatal(err)
			}
			delete(all, gone)
			names = slices.DeleteFunc(names, func(name string) bool { return name == gone })
		}
	}
	for _, m := range nodes {
		for end := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
			m.alive(200)
			if s := m.Stats(); s.Waiting == 0 && s.Left == 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("not copied: %+v", m.Stats())
			}
		}
		m.end()
		m.inner = m.inner.Reopen()
		m.begin(0)
	}
	t.Logf("%d of %d states are needed, after %s; the nodes crashed %d and %d times", len(all), states, time.Since(began), nodes[0].times, nodes[1].times)
	restores(t, nodes, all)
	for name, s := range all {
		if err := nodes[s.node].DeleteSaved(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(wait); ; time.Sleep(20 * time.Millisecond) {
		left := blobsBelow(t, p.dir)
		copies, copiesErr := p.stores[2].CopiesLeft(t.Context(), 10)
		packs, packsErr := p.stores[2].PacksLeft(t.Context(), 10)
		if err := errors.Join(copiesErr, packsErr); err != nil {
			t.Fatal(err)
		}
		if len(copies)+len(packs) == 0 && len(left) == 1 && strings.HasSuffix(left[0], "/key") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d blobs are left, for example %v, and records of %v and %v", len(left), left[:min(len(left), 5)], copies, packs)
		}
	}
	for _, m := range nodes {
		m.end()
	}
	stopCollecting()
	t.Logf("no pack is left after %s; leaders crashed %d times", time.Since(began), <-collected-1)
}

// pick returns one of names, of which there may be none.
func pick(r *mathrand.Rand, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[r.IntN(len(names))]
}

// fetchFrom makes a new state from the copy of another one. Without a complete copy, or if the
// process crashes meanwhile, the name is empty.
func (m *mortal) fetchFrom(from, content string) (name, _ string) {
	name = sandbox.NewSnapshotID()
	ctx := m.t.Context()
	if err := insert(ctx, m.store, m.cfg.Node, name, "t"); err != nil {
		m.t.Fatal(err)
	}
	_, err := m.FetchSaved(ctx, name, from, "t")
	if err == nil {
		err = m.ShareSaved(ctx, name, "t")
	}
	if err != nil {
		m.alive(40)
		if err := m.DeleteSaved(ctx, name); err != nil {
			m.t.Fatal(err)
		}
		return "", ""
	}
	return name, content
}

// restores checks each state from its copy alone: on its own node, and as a new state on the
// other one.
func restores(t *testing.T, nodes [2]*mortal, all map[string]kept) {
	t.Helper()
	for name, s := range all {
		own, other := nodes[s.node], nodes[1-s.node]
		if err := own.inner.DeleteSaved(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if got, err := own.file(t, name); err != nil || got != s.content {
			t.Errorf("%s holds %d bytes of %d, %v", name, len(got), len(s.content), err)
		}
		again := sandbox.NewSnapshotID()
		if _, err := other.FetchSaved(t.Context(), again, name, "t"); err != nil {
			t.Errorf("%s on the other node: %v", name, err)
			continue
		}
		if got, err := other.file(t, again); err != nil || got != s.content {
			t.Errorf("%s on the other node holds %d bytes of %d, %v", name, len(got), len(s.content), err)
		}
		if err := other.DeleteSaved(t.Context(), again); err != nil {
			t.Fatal(err)
		}
	}
}

// blobsBelow returns the files below a folder in which others delete.
func blobsBelow(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil && !d.IsDir():
			all = append(all, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return all
}
