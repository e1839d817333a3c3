package replication_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/disk"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/seal"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/enginetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/fake"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/replication"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
)

// wait is the timeout of each wait.
const wait = 2 * time.Minute

// world is an Engine with Blobs and their folder, a Store, and a Collector of what is needed no
// more.
type world struct {
	*replication.Engine
	inner *fake.Engine
	blobs *switched
	dir   string // of the blobs
	store *sqlstore.Store
	cfg   replication.Config
	stop  func()

	wholly bool // the engine starts from whole states only
}

// switched is Blobs that a test can make unavailable.
type switched struct {
	sandbox.Blobs
	mu   sync.Mutex
	away bool
	left int      // puts that succeed; 0: all
	kept []string // blobs that cannot be deleted
}

func (s *switched) keep(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = names
}

func (s *switched) set(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *switched) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return sandbox.Errorf(sandbox.Unavailable, "nobody answers")
	}
	return nil
}

func (s *switched) Put(ctx context.Context, name string, content []byte) error {
	s.mu.Lock()
	if s.left > 0 {
		s.left--
		s.away = s.away || s.left == 0
	}
	s.mu.Unlock()
	if err := s.check(); err != nil {
		return err
	}
	return s.Blobs.Put(ctx, name, content)
}

func (s *switched) Get(ctx context.Context, name string) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	return s.Blobs.Get(ctx, name)
}

func (s *switched) Size(ctx context.Context, name string) (int64, error) {
	if err := s.check(); err != nil {
		return 0, err
	}
	return s.Blobs.Size(ctx, name)
}

func (s *switched) Delete(ctx context.Context, name string) error {
	if err := s.check(); err != nil {
		return err
	}
	s.mu.Lock()
	kept := slices.Contains(s.kept, name)
	s.mu.Unlock()
	if kept {
		return sandbox.Errorf(sandbox.Denied, "it is locked")
	}
	return s.Blobs.Delete(ctx, name)
}

// open makes a world that keeps diskBytes of states on the host.
func open(t *testing.T, diskBytes int64) *world {
	t.Helper()
	inner := fake.New()
	t.Cleanup(inner.Close)
	dir := t.TempDir()
	w := &world{inner: inner, blobs: &switched{Blobs: disk.Open(dir)}, dir: dir, store: sqlitetest.Open(t)}
	w.cfg = replication.Config{
		Dir: filepath.Join(t.TempDir(), "offload"), Blobs: w.blobs, Keys: [][]byte{key(7)},
		Records: w.store, Node: "node-" + rand.Text(),
		DiskBytes: diskBytes, Log: slog.New(slog.DiscardHandler), Retry: time.Millisecond, PutLife: putLife,
	}
	collectIn(t, w.store, w.blobs)
	w.start(t)
	t.Cleanup(func() { w.stop() })
	return w
}

// putLife is Config.PutLife of tests: after a crash their blobs are kept for this time.
const putLife = 2 * time.Second

// collectIn runs a Collector until the test ends.
func collectIn(t *testing.T, records sandbox.CopyGarbage, blobs sandbox.Blobs) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	c := replication.NewCollector(replication.CollectorConfig{
		Records: records, Blobs: blobs, Log: slog.New(slog.DiscardHandler), Settle: time.Millisecond, Every: 5 * time.Millisecond,
	}, &replication.CollectorCounts{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run of the collector = %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// insert adds the record of a Snapshot, unless the Store has it.
func insert(ctx context.Context, store sandbox.Store, node, name, group string) error {
	_, err := store.InsertSnapshot(ctx, sandbox.Snapshot{
		ID: name, Tenant: sandbox.TenantID(group), SandboxID: "i1", State: sandbox.SnapshotReady, Node: node, CreatedAt: time.Now(), Shape: sandbox.DefaultShape(),
	})
	if errors.Is(err, sandbox.Conflict) {
		return nil
	}
	return err
}

// ShareSaved is that of the Engine, for the state of a Snapshot.
func (w *world) ShareSaved(ctx context.Context, name, group string) error {
	if sandbox.ValidSnapshotID(name) {
		if err := insert(ctx, w.store, w.cfg.Node, name, group); err != nil {
			return err
		}
	}
	return w.Engine.ShareSaved(ctx, name, group)
}

// DeleteSaved deletes the state as a session manager does.
func (w *world) DeleteSaved(ctx context.Context, name string) error {
	if err := w.store.RetireSnapshot(ctx, name, false); err != nil && !errors.Is(err, sandbox.Conflict) { // it has none
		return err
	}
	if err := w.Engine.DeleteSaved(ctx, name); err != nil {
		return err
	}
	return w.store.DropSnapshot(ctx, name)
}

// left waits until n blobs are left, and returns them.
func (w *world) left(t *testing.T, n int) []string {
	t.Helper()
	for end := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		left := w.kept(t)
		if len(left) == n {
			return left
		}
		if time.Now().After(end) {
			t.Fatalf("blobs left: %v, want %d", left, n)
		}
	}
}

// key is an operator key.
func key(b byte) []byte { return bytes.Repeat([]byte{b}, seal.KeyBytes) }

// start opens and runs the Engine over the existing data.
func (w *world) start(t *testing.T) {
	t.Helper()
	if w.wholly {
		w.startOver(t, struct{ porter }{w.inner}) // without ArriveSaved
		return
	}
	w.startOver(t, w.inner)
}

// porter is an engine without sandbox.Arriver.
type porter interface {
	sandbox.Engine
	sandbox.Pauser
	sandbox.Porter
	sandbox.Deduplicator
}

// startOver is start over another engine.
func (w *world) startOver(t *testing.T, inner porter) {
	t.Helper()
	e, err := replication.Open(inner, w.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := e.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
	}()
	w.Engine = e
	w.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// restart opens the engine again, as a new process does.
func (w *world) restart(t *testing.T) {
	t.Helper()
	w.stop()
	w.inner = w.inner.Reopen()
	w.start(t)
}

// until waits until the Stats satisfy a condition.
func (w *world) until(t *testing.T, what string, ok func(replication.Stats) bool) {
	t.Helper()
	for end := time.Now().Add(wait); !ok(w.Stats()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: %+v", what, w.Stats())
		}
	}
}

// evicted waits until exactly left states are on the host.
func (w *world) evicted(t *testing.T, left int) (names []string) {
	t.Helper()
	for end := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		names, err := w.inner.ListSaved(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s := w.Stats(); len(names) == left && s.Here == left && s.Waiting == 0 {
			return names
		}
		if time.Now().After(end) {
			t.Fatalf("on the host are %v, want %d: %+v", names, left, w.Stats())
		}
	}
}

// save saves a new Boot with a file, for a group.
func (w *world) save(t *testing.T, content, group string) (name string) {
	t.Helper()
	id := sandbox.NewBootID()
	if err := w.Start(t.Context(), id, sandbox.BootSpec{Image: fake.Image, Shape: sandbox.DefaultShape()}); err != nil {
		t.Fatal(err)
	}
	w.inner.Guest(id).WriteFile("value", content)
	name = sandbox.NewSnapshotID()
	if _, err := w.Save(t.Context(), id, name, false); err != nil {
		t.Fatal(err)
	}
	if err := w.ShareSaved(t.Context(), name, group); err != nil {
		t.Fatal(err)
	}
	if err := w.Stop(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	return name
}

// file starts a Boot from a state, like a node, and returns the content of its file.
func (w *world) file(t *testing.T, name string) (string, error) {
	t.Helper()
	id := sandbox.NewBootID()
	for again := false; ; again = true {
		hold, err := w.HoldSaved(t.Context(), name, false)
		if err != nil {
			return "", err
		}
		err = w.Start(t.Context(), id, sandbox.BootSpec{Image: fake.Image, Shape: sandbox.DefaultShape(), From: name})
		hold.Release()
		if err == nil {
			break
		}
		if again || !errors.Is(err, sandbox.ErrDamaged) && !errors.Is(err, sandbox.NotFound) {
			return "", err
		}
	}
	defer func() {
		if err := w.Stop(context.WithoutCancel(t.Context()), id, 0); err != nil {
			t.Error(err)
		}
	}()
	return w.inner.Guest(id).ReadFile("value"), nil
}

// kept returns the blobs that exist, as paths below the folder.
func (w *world) kept(t *testing.T) (names []string) {
	t.Helper()
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(path, w.dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// packs selects the blobs that are neither keys nor lists.
func packs(names []string) (packs []string) {
	for _, name := range names {
		if strings.Contains(name, "/p/") {
			packs = append(packs, name)
		}
	}
	return packs
}

// The engine passes the suite of engines around the fake engine.
func TestEngine(t *testing.T) {
	suite(t, 0, func(e sandbox.Engine) *fake.Engine { return e.(*world).inner }, func(t *testing.T) sandbox.Engine { return open(t, 0) })
}

// The engine passes the suite also if no saved state stays on the host.
func TestEngineThatKeepsNothing(t *testing.T) {
	inner := func(e sandbox.Engine) *fake.Engine { return e.(*evicting).inner }
	suite(t, 1, inner, func(t *testing.T) sandbox.Engine { return &evicting{open(t, 1), t} })
}

// evicting is a world in which each state is evicted right after its save.
type evicting struct {
	*world
	t *testing.T
}

func (e *evicting) Save(ctx context.Context, id, name string, memory bool) (sandbox.Saved, error) {
	saved, err := e.world.Save(ctx, id, name, memory)
	if err == nil {
		err = e.ShareSaved(ctx, name, "t")
	}
	if err == nil {
		e.evicted(e.t, 0)
	}
	return saved, err
}

func suite(t *testing.T, diskBytes int64, inner func(sandbox.Engine) *fake.Engine, open func(*testing.T) sandbox.Engine) {
	need := func(_ *testing.T, e sandbox.Engine, name, feature string) { inner(e).Need(name, feature) }
	if diskBytes > 0 {
		need = nil
	}
	enginetest.Run(t, enginetest.Options{
		Open: open,
		Reopen: func(t *testing.T, e sandbox.Engine) sandbox.Engine {
			w, ok := e.(*world)
			if !ok {
				w = e.(*evicting).world
			}
			w.restart(t)
			return e
		},
		Kill:  func(_ *testing.T, e sandbox.Engine, id string) { inner(e).Kill(id, sandbox.CauseEngineLost) },
		Image: fake.Image,
		Pause: &enginetest.Pause{
			Ask: func(ctx context.Context, e sandbox.Engine, id string) error {
				c := inner(e).Control(id)
				defer c.Close()
				_, _, err := c.Health(ctx)
				return err
			},
			Remember: func(_ *testing.T, e sandbox.Engine, id, value string) {
				inner(e).Guest(id).Remember("value", value)
			},
			Recall: func(_ *testing.T, e sandbox.Engine, id string) string {
				return inner(e).Guest(id).Recall("value")
			},
			WriteFile: func(_ *testing.T, e sandbox.Engine, id, value string) {
				inner(e).Guest(id).WriteFile("value", value)
			},
			ReadFile: func(_ *testing.T, e sandbox.Engine, id string) string {
				return inner(e).Guest(id).ReadFile("value")
			},
			Need: need,
			Damage: func(t *testing.T, e sandbox.Engine, name string) {
				if diskBytes == 0 {
					inner(e).Damage(name)
					return
				}
				w := e.(*evicting).world
				w.evicted(t, 0)
				for _, blob := range packs(w.kept(t)) {
					if err := os.Truncate(filepath.Join(w.dir, blob), 20); err != nil { // also twice
						t.Fatal(err)
					}
				}
			},
		},
	})
}

// damage changes one bit in the middle of a file.
func damage(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCopyEvictAndBringBack(t *testing.T) {
	w := open(t, 1)
	text := strings.Repeat("a secret of one tenant. ", 1000)
	name := w.save(t, text, "tenant")
	w.evicted(t, 0)
	if all, err := w.ListSaved(t.Context()); err != nil || len(all) != 1 || all[0] != name {
		t.Errorf("ListSaved = %v, %v", all, err)
	}
	for _, blob := range w.kept(t) {
		raw, err := os.ReadFile(filepath.Join(w.dir, blob))
		if err != nil || bytes.Contains(raw, []byte("secret")) || strings.Contains(blob, "tenant") {
			t.Errorf("the blob %s tells what is in it, %v", blob, err)
		}
	}
	for range 2 {
		if got, err := w.file(t, name); err != nil || got != text {
			t.Errorf("brought back: %d bytes, %v", len(got), err)
		}
		w.evicted(t, 0)
		w.restart(t)
	}
	hold, err := w.HoldSaved(t.Context(), name, true)
	if err != nil {
		t.Fatal(err)
	}
	w.until(t, "here", func(s replication.Stats) bool { return s.Here == 1 && s.Away == 0 })
	hold.Release()
	w.evicted(t, 0)
	if err := w.DeleteSaved(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	w.until(t, "deleted", func(s replication.Stats) bool { return s.Deleted == 1 })
	if left := w.left(t, 1); !strings.HasSuffix(left[0], "/key") {
		t.Errorf("blobs left: %v", left)
	}
	if _, err := w.file(t, name); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("a start from what was deleted = %v", err)
	}
}

// Manually deleted files of a state are fetched again.
func TestLostFilesComeBack(t *testing.T) {
	w := open(t, 0)
	name := w.save(t, "x", "t")
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 1 && s.Here == 1 })
	if err := w.inner.DeleteSaved(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if got, err := w.file(t, name); err != nil || got != "x" {
		t.Errorf("brought back %q, %v", got, err)
	}
	var out bytes.Buffer
	if err := w.inner.DeleteSaved(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := w.ExportSaved(t.Context(), name, false, &out); err != nil || out.Len() == 0 {
		t.Errorf("exported %d bytes, %v", out.Len(), err)
	}
}

// copied saves a state and waits for its copy.
func (w *world) copied(t *testing.T, content string) (name string) {
	t.Helper()
	before := w.Stats().Copied
	name = w.save(t, content, "t")
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied > before && s.Waiting == 0 })
	return name
}

// A state that is damaged on the host is replaced by its copy, once for all concurrent
// starts.
func TestDamagedFilesComeBack(t *testing.T) {
	w := open(t, 0)
	name := w.copied(t, "x")
	w.inner.Damage(name)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, err := w.file(t, name); err != nil || got != "x" {
				t.Errorf("brought back %q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if s := w.Stats(); s.Healed != 1 || s.Fetched != 1 || s.Here != 1 {
		t.Errorf("after the damage: %+v", s)
	}
	w.inner.Damage(name)
	var out bytes.Buffer
	if err := w.ExportSaved(t.Context(), name, false, &out); err != nil || out.Len() == 0 || w.Stats().Healed != 2 {
		t.Errorf("exported %d bytes, %v; %+v", out.Len(), err, w.Stats())
	}
	w.restart(t)
	if got, err := w.file(t, name); err != nil || got != "x" || w.Stats().Fetched != 0 {
		t.Errorf("after a restart: %q, %v; %+v", got, err, w.Stats())
	}
}

// A start from a damaged state without a usable copy fails with an error that says so. The
// local state is kept.
func TestDamageThatStays(t *testing.T) {
	w := open(t, 0)
	name := w.copied(t, "x")
	w.inner.Damage(name)
	refused := func(code sandbox.Code, what string) {
		t.Helper()
		for range 2 {
			if _, err := w.file(t, name); !errors.Is(err, code) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), what) {
				t.Errorf("a start = %v, want %s that names %s and says %q", err, code, name, what)
			}
			if local, err := w.inner.ListSaved(t.Context()); err != nil || !slices.Equal(local, []string{name}) {
				t.Errorf("on the host: %v, %v", local, err)
			}
		}
	}
	w.blobs.set(true)
	refused(sandbox.Unavailable, "cannot be reached")
	w.blobs.set(false)
	for _, blob := range packs(w.kept(t)) {
		damage(t, filepath.Join(w.dir, blob))
	}
	refused(sandbox.Conflict, "its copy is damaged")
	w.blobs.set(true)
	name = w.save(t, "y", "t")
	w.inner.Damage(name)
	if _, err := w.file(t, name); !errors.Is(err, sandbox.ErrDamaged) {
		t.Errorf("a start from what was not copied = %v", err)
	}
}

// Concurrent users of a state fetch it once.
func TestFetchedOnce(t *testing.T) {
	w := open(t, 1)
	name := w.save(t, "x", "t")
	w.evicted(t, 0)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			hold, err := w.HoldSaved(t.Context(), name, i%2 == 0)
			if err != nil {
				t.Errorf("HoldSaved: %v", err)
				return
			}
			t.Cleanup(hold.Release)
		})
	}
	wg.Wait()
	w.until(t, "fetched once", func(s replication.Stats) bool { return s.Fetched == 1 })
}

func TestLeastUsedGoesFirst(t *testing.T) {
	const each = 1 << 20 // the size of a state in the fake engine
	w := open(t, 2*each)
	one, two := w.save(t, "1", "t"), w.save(t, "2", "t")
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 2 && s.Here == 2 })
	if _, err := w.file(t, one); err != nil {
		t.Fatal(err)
	}
	w.restart(t) // the time of the last use survives it
	w.save(t, "3", "t")
	if names := w.evicted(t, 2); slices.Contains(names, two) {
		t.Errorf("%v stay, want %s gone", names, two)
	}
}

// Content shared by two states of a group is stored once, and is kept until the last of
// them is deleted. Groups share nothing.
func TestSharedWithinAGroup(t *testing.T) {
	w := open(t, 1)
	text := strings.Repeat("the same. ", 20_000)
	one := w.save(t, text, "t")
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 1 })
	first := w.Stats().PutBytes
	two := w.save(t, text, "t")
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 2 })
	names := packs(w.kept(t))
	w.save(t, text, "u")
	w.evicted(t, 0)
	if others := packs(w.kept(t)); len(others) != len(names)+1 {
		t.Errorf("another group made %d packs of %d", len(others), len(names))
	}
	if err := w.DeleteSaved(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	w.until(t, "deleted", func(s replication.Stats) bool { return s.Deleted == 1 })
	if got, err := w.file(t, two); err != nil || got != text {
		t.Errorf("the other state holds %d bytes, %v; %d were put at first", len(got), err, first)
	}
}

// Two hosts with the same records share packs. They stay until both states are deleted, in
// either order. Two installations share Blobs and keys, and no packs: each deletes only its own.
func TestSharedBlobs(t *testing.T) {
	for name, tt := range map[string]struct {
		order    [2]int
		separate bool
	}{
		"two hosts, the first goes first":          {order: [2]int{0, 1}},
		"two hosts, the second goes first":         {order: [2]int{1, 0}},
		"two installations, the first goes first":  {order: [2]int{0, 1}, separate: true},
		"two installations, the second goes first": {order: [2]int{1, 0}, separate: true},
	} {
		t.Run(name, func(t *testing.T) {
			var worlds [2]*world
			var states [2]string
			text := much(9<<20, 7) // whole packs of the two are alike
			for i := range worlds {
				w := open(t, 1)
				if i > 0 {
					w.share(t, worlds[0])
				}
				if i > 0 && tt.separate {
					w.stop()
					store, err := sqlstore.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "db"))
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = store.Close() })
					w.store, w.cfg.Records = store, store
					collectIn(t, store, w.blobs)
					w.start(t)
				}
				states[i] = w.save(t, text, "t")
				w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 1 })
				worlds[i] = w
			}
			want := 4 // the last pack of each has its signature
			if tt.separate {
				want = 6
			}
			if all := packs(worlds[0].kept(t)); len(all) != want {
				t.Errorf("there are %d packs, want %d", len(all), want)
			}
			for _, i := range tt.order {
				worlds[i].evicted(t, 0)
				if got, err := worlds[i].file(t, states[i]); err != nil || got != text {
					t.Errorf("the state of %d holds %d bytes, %v", i, len(got), err)
				}
				if err := worlds[i].DeleteSaved(t.Context(), states[i]); err != nil {
					t.Fatal(err)
				}
				worlds[i].until(t, "deleted", func(s replication.Stats) bool { return s.Deleted == 1 })
			}
			worlds[0].left(t, 1)
		})
	}
}

// share opens the Engine again over the Blobs and the records of another host.
func (w *world) share(t *testing.T, other *world) {
	t.Helper()
	w.stop()
	w.blobs, w.dir, w.cfg.Blobs = other.blobs, other.dir, other.blobs
	w.store, w.cfg.Records = other.store, other.store
	w.start(t)
}

// onTwo returns two hosts over the same Blobs, and a copied state of group t on the first.
func onTwo(t *testing.T, content string) (a, b *world, name string) {
	t.Helper()
	a, b = open(t, 0), open(t, 0)
	b.share(t, a)
	name = a.save(t, content, "t")
	a.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 1 })
	return a, b, name
}

// A host starts from the copy of another one that is gone, and makes a copy of its own, which
// shares the packs. A copy that was sealed with an earlier key is found as well, also when that
// key was removed.
func TestFetchFromAnotherHost(t *testing.T) {
	for name, tt := range map[string]struct {
		keys   [][]byte
		reseal bool
		wholly bool // the second host starts from whole states only
		shares bool
	}{
		"the same key":            {keys: [][]byte{key(7)}, shares: true},
		"a new first key":         {keys: [][]byte{key(8), key(7)}, shares: true},
		"a new key alone":         {keys: [][]byte{key(8)}, reseal: true, shares: true},
		"the same key, wholly":    {keys: [][]byte{key(7)}, wholly: true, shares: true},
		"a new first key, wholly": {keys: [][]byte{key(8), key(7)}, wholly: true},
		"a new key alone, wholly": {keys: [][]byte{key(8)}, reseal: true, wholly: true},
	} {
		t.Run(name, func(t *testing.T) {
			text := much(9<<20, 7)
			a, b, from := onTwo(t, text)
			if tt.reseal {
				a.cfg.Keys = [][]byte{key(8), key(7)}
				a.restart(t)
				a.until(t, "its key is sealed again", func(s replication.Stats) bool { return s.OldKeys == 0 })
			}
			a.stop()
			b.cfg.Keys, b.wholly = tt.keys, tt.wholly
			b.restart(t)
			to := sandbox.NewSnapshotID()
			if err := insert(t.Context(), b.store, b.cfg.Node, to, "t"); err != nil {
				t.Fatal(err)
			}
			saved, err := b.FetchSaved(t.Context(), to, from, "t")
			if err != nil || saved.Bytes == 0 || saved.Image != fake.Image {
				t.Fatalf("FetchSaved = %+v, %v", saved, err)
			}
			if err := b.ShareSaved(t.Context(), to, "t"); err != nil {
				t.Fatal(err)
			}
			b.until(t, "fetched", func(s replication.Stats) bool { return s.Waiting == 0 && s.Fetched == 1 })
			if put := b.Stats().PutBytes; tt.shares != (put < 1<<20) {
				t.Errorf("%d bytes were put for the copy of a copy", put)
			}
			a.start(t)
			if err := a.DeleteSaved(t.Context(), from); err != nil {
				t.Fatal(err)
			}
			a.until(t, "deleted", func(s replication.Stats) bool { return s.Deleted == 1 })
			b.cfg.DiskBytes = 1
			b.restart(t)
			b.evicted(t, 0)
			if got, err := b.file(t, to); err != nil || got != text {
				t.Errorf("it holds %d bytes, %v", len(got), err)
			}
			if err := b.DeleteSaved(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			b.until(t, "deleted", func(s replication.Stats) bool { return s.Deleted == 1 })
			keys := 1
			if !tt.shares {
				keys = 2
			}
			b.left(t, keys)
		})
	}
}

// A copy is found where it usually is while no session manager answers. Where it is not there,
// it may be elsewhere.
func TestFetchWithoutRecords(t *testing.T) {
	a, b, from := onTwo(t, "text")
	away := &refusing{CopyRecords: b.store}
	away.refuse.Store(true)
	b.cfg.Records = away
	b.restart(t)
	if _, err := b.FetchSaved(t.Context(), sandbox.NewSnapshotID(), from, "t"); err != nil {
		t.Errorf("FetchSaved: %v", err)
	}
	if _, err := b.FetchSaved(t.Context(), sandbox.NewSnapshotID(), sandbox.NewSnapshotID(), "t"); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("FetchSaved of one without a copy below the prefix: %v", err)
	}
	a.stop()
}

func TestFetchFromAnotherHostFails(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(t *testing.T, w *world)
		group string
		from  string // empty: the state
		to    string // empty: a new one
		code  sandbox.Code
	}{
		"of another group":   {group: "u", code: sandbox.NotFound},
		"an unknown state":   {from: sandbox.NewSnapshotID(), code: sandbox.NotFound},
		"a bad name":         {to: "../x", code: sandbox.Invalid},
		"the blobs are away": {spoil: func(_ *testing.T, w *world) { w.blobs.set(true) }, code: sandbox.Unavailable},
		"a damaged list":     {spoil: func(t *testing.T, w *world) { w.spoil(t, "/s/") }, code: sandbox.Conflict},
		"a damaged pack":     {spoil: func(t *testing.T, w *world) { w.spoil(t, "/p/") }, code: sandbox.Conflict},
		"a damaged key":      {spoil: func(t *testing.T, w *world) { w.spoil(t, "/key") }, code: sandbox.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			_, b, from := onTwo(t, "x")
			if tt.spoil != nil {
				tt.spoil(t, b)
			}
			to := cmp.Or(tt.to, sandbox.NewSnapshotID())
			if _, err := b.FetchSaved(t.Context(), to, cmp.Or(tt.from, from), cmp.Or(tt.group, "t")); sandbox.CodeOf(err) != tt.code {
				t.Errorf("FetchSaved = %v, want %v", err, tt.code)
			}
			if left, err := b.inner.ListSaved(t.Context()); err != nil || len(left) != 0 {
				t.Errorf("left on the host: %v, %v", left, err)
			}
			if files, err := filepath.Glob(filepath.Join(b.cfg.Dir, ".new-*")); err != nil || len(files) != 0 {
				t.Errorf("left in the folder: %v, %v", files, err)
			}
		})
	}
	_, b, from := onTwo(t, "x")
	taken := b.save(t, "y", "t")
	if _, err := b.FetchSaved(t.Context(), taken, from, "t"); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("FetchSaved as a name in use = %v", err)
	}
}

// spoil damages all blobs whose paths contain part.
func (w *world) spoil(t *testing.T, part string) {
	t.Helper()
	for _, blob := range w.kept(t) {
		if strings.Contains("/"+blob, part) {
			damage(t, filepath.Join(w.dir, blob))
		}
	}
}

// much returns n bytes of text that hardly compresses.
func much(n int, seed byte) string {
	raw := make([]byte, n/2)
	r := mathrand.NewChaCha8([32]byte{seed})
	_, _ = r.Read(raw)
	return hex.EncodeToString(raw)
}

// A state that differs little from another uploads little.
// firstTogether are the Blobs of two Engines. The first reads of a key end only when both
// have begun.
type firstTogether struct {
	sandbox.Blobs
	asked  sync.WaitGroup
	reads  sync.Map // Engines that have read
	engine string
	all    *firstTogether
}

func newFirstTogether(blobs sandbox.Blobs) *firstTogether {
	f := &firstTogether{Blobs: blobs}
	f.asked.Add(2)
	return f
}

// of returns the Blobs for one Engine.
func (f *firstTogether) of(engine string) *firstTogether {
	return &firstTogether{Blobs: f.Blobs, engine: engine, all: f}
}

func (f *firstTogether) Get(ctx context.Context, name string) ([]byte, error) {
	content, err := f.Blobs.Get(ctx, name)
	if _, read := f.all.reads.LoadOrStore(f.engine, true); !read && strings.HasSuffix(name, "/key") {
		f.all.asked.Done()
		f.all.asked.Wait()
	}
	return content, err
}

// Two Engines that copy the first states of a group at the same time use one key: what
// either has sealed opens with the key that Blobs have.
func TestOneKeyForTwoEngines(t *testing.T) {
	shared := newFirstTogether(disk.Open(t.TempDir()))
	store := sqlitetest.Open(t)
	var worlds []*world
	for _, engine := range []string{"a", "b"} {
		inner := fake.New()
		t.Cleanup(inner.Close)
		w := &world{inner: inner, store: store, cfg: replication.Config{
			Dir: filepath.Join(t.TempDir(), "offload"), Blobs: shared.of(engine), Keys: [][]byte{key(7)}, Records: store, Node: engine,
			Log: slog.New(slog.DiscardHandler), Retry: time.Millisecond,
		}}
		w.start(t)
		t.Cleanup(func() { w.stop() })
		worlds = append(worlds, w)
	}
	var keys []string
	for _, w := range worlds {
		w.save(t, "content", "tenant")
	}
	for _, w := range worlds {
		w.until(t, "it is copied", func(s replication.Stats) bool { return s.Copied == 1 })
		files, err := filepath.Glob(filepath.Join(w.cfg.Dir, "keys", "*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("the keys are %v, %v", files, err)
		}
		raw, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, filepath.Base(files[0])+" "+string(raw))
	}
	if keys[0] != keys[1] {
		t.Errorf("the two engines use %q", keys)
	}
}

// keeper are records that keep keys as a function does.
type keeper struct {
	sandbox.CopyRecords
	keep func(ctx context.Context, prefix string, sealed []byte) ([]byte, error)
}

func (k keeper) KeepCopyKey(ctx context.Context, prefix string, sealed []byte) ([]byte, error) {
	return k.keep(ctx, prefix, sealed)
}

// A key that cannot be kept is not used: the copy waits.
func TestKeyThatIsNotKept(t *testing.T) {
	w := open(t, 0)
	w.stop()
	var refused atomic.Int64
	w.cfg.Records = keeper{w.store, func(_ context.Context, _ string, sealed []byte) ([]byte, error) {
		if refused.Add(1) < 3 {
			return nil, sandbox.Errorf(sandbox.Unavailable, "no session manager answers")
		}
		return sealed, nil
	}}
	w.start(t)
	w.save(t, "content", "tenant")
	w.until(t, "it is copied in the end", func(s replication.Stats) bool { return s.Copied == 1 })
	if n := refused.Load(); n != 3 {
		t.Errorf("the key was offered %d times", n)
	}
}

func TestLargeStates(t *testing.T) {
	w := open(t, 1)
	text := much(5<<20, 1)
	names := map[string]string{w.save(t, text, "t"): text}
	w.evicted(t, 0)
	first := w.Stats().PutBytes
	text = "before" + text[:3<<20] + "between" + text[3<<20:]
	names[w.save(t, text, "t")] = text
	w.evicted(t, 0)
	if more := w.Stats().PutBytes - first; first < 2<<20 || more > first/10 {
		t.Errorf("%d bytes were put, and %d for what hardly differs", first, more)
	}
	for name, text := range names {
		if got, err := w.file(t, name); err != nil || got != text {
			t.Errorf("brought back %d bytes of %d, %v", len(got), len(text), err)
		}
	}
}

// Blobs of an interrupted copy are reused by the next copy, or deleted with the state.
func TestCutCopies(t *testing.T) {
	for _, puts := range []int{2, 3, 4} { // the key, two packs, the list
		w := open(t, 0)
		w.blobs.left = puts
		text := much(5<<20, byte(puts))
		name, other := w.save(t, text, "t"), ""
		w.until(t, "cut", func(s replication.Stats) bool { return s.CopyFailed > 0 })
		w.restart(t)
		if puts%2 == 0 {
			if err := w.DeleteSaved(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		} else {
			other = w.save(t, text, "t")
		}
		w.restart(t)
		w.blobs.set(false)
		if other != "" {
			w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 2 })
			for _, name := range []string{name, other} {
				if err := w.inner.DeleteSaved(t.Context(), name); err != nil {
					t.Fatal(err)
				}
				if got, err := w.file(t, name); err != nil || got != text {
					t.Errorf("brought back %d bytes of %d, %v", len(got), len(text), err)
				}
				if err := w.DeleteSaved(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.until(t, "deleted", func(s replication.Stats) bool { return s.Left == 0 && s.Here == 0 })
		w.left(t, 1)
	}
}

func TestDamagedBlobs(t *testing.T) {
	for _, part := range []string{"/p/", "/s/"} {
		for what, spoil := range map[string]func(*testing.T, string){
			"changed": damage,
			"gone": func(t *testing.T, path string) {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			},
			"cut": func(t *testing.T, path string) {
				if err := os.Truncate(path, 20); err != nil {
					t.Fatal(err)
				}
			},
		} {
			t.Run(what+part, func(t *testing.T) {
				w := open(t, 1)
				name := w.save(t, "x", "t")
				w.evicted(t, 0)
				for _, blob := range w.kept(t) {
					if strings.Contains(blob, part) {
						spoil(t, filepath.Join(w.dir, blob))
					}
				}
				_, err := w.file(t, name)
				if !errors.Is(err, sandbox.Conflict) || !strings.Contains(err.Error(), name) {
					t.Errorf("a start = %v, want a conflict that names %s", err, name)
				}
				if local, err := w.inner.ListSaved(t.Context()); err != nil || len(local) != 0 {
					t.Errorf("left on the host: %v, %v", local, err)
				}
			})
		}
	}
}

// The blobs of one tenant cannot be opened under the names of another's.
func TestBlobsOfAnotherTenant(t *testing.T) {
	w := open(t, 1)
	mine := w.save(t, "mine", "me")
	w.evicted(t, 0)
	own := w.kept(t)
	theirs := w.save(t, "theirs", "they")
	w.evicted(t, 0)
	prefix := func(name string) string { return strings.SplitN(name, "/", 2)[0] }
	for _, blob := range w.kept(t) {
		if prefix(blob) == prefix(own[0]) || !strings.HasSuffix(blob, theirs) {
			continue
		}
		// Replace my list by theirs.
		raw, err := os.ReadFile(filepath.Join(w.dir, blob))
		if err == nil {
			err = os.WriteFile(filepath.Join(w.dir, prefix(own[0]), "s", mine), raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := w.file(t, mine); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("a start from another tenant's blobs = %q, %v", got, err)
	}
	if got, err := w.file(t, theirs); err != nil || got != "theirs" {
		t.Errorf("their own state holds %q, %v", got, err)
	}
}

// While Blobs are unavailable, saves, starts from local states and deletes succeed. Copies
// and deletes of blobs are retried later.
func TestBlobsAway(t *testing.T) {
	w := open(t, 0)
	w.blobs.set(true)
	gone, name := w.save(t, "gone", "t"), w.save(t, "x", "t")
	w.until(t, "tried", func(s replication.Stats) bool { return s.CopyFailed > 2 && s.Unreachable && s.Waiting == 2 })
	if got, err := w.file(t, name); err != nil || got != "x" {
		t.Errorf("a start = %q, %v", got, err)
	}
	if err := w.DeleteSaved(t.Context(), gone); err != nil {
		t.Error(err)
	}
	w.restart(t)
	w.blobs.set(false)
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 1 && s.Waiting == 0 && !s.Unreachable })
	w.cfg.DiskBytes = 1
	w.restart(t)
	w.evicted(t, 0)
	w.blobs.set(true)
	if _, err := w.file(t, name); !errors.Is(err, sandbox.Unavailable) || !strings.Contains(err.Error(), name) {
		t.Errorf("a start from what cannot be reached = %v", err)
	}
	if err := w.DeleteSaved(t.Context(), name); err != nil {
		t.Error(err)
	}
	w.restart(t)
	w.blobs.set(false)
	w.until(t, "deleted", func(s replication.Stats) bool { return s.Left == 0 && s.Away == 0 })
	w.left(t, 1)
}

// savedBefore saves states without copying them.
func (w *world) savedBefore(t *testing.T, contents ...string) (names []string) {
	t.Helper()
	for i, content := range contents {
		id := sandbox.NewBootID()
		if err := w.inner.Start(t.Context(), id, sandbox.BootSpec{Image: fake.Image, Shape: sandbox.DefaultShape()}); err != nil {
			t.Fatal(err)
		}
		w.inner.Guest(id).WriteFile("value", content)
		names = append(names, sandbox.NewSnapshotID())
		if err := insert(t.Context(), w.store, w.cfg.Node, names[i], "t"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.inner.Save(t.Context(), id, names[i], false); err != nil {
			t.Fatal(err)
		}
		if err := w.inner.Stop(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// owner returns the tenant as the owner of the named states, an hour apart, the first
// being the oldest. Other states have no owner.
func owner(names []string) func(context.Context, string) (replication.Owned, error) {
	const each = 1 << 20
	return func(_ context.Context, name string) (replication.Owned, error) {
		i := slices.Index(names, name)
		if i < 0 {
			return replication.Owned{}, sandbox.Errorf(sandbox.NotFound, "nobody's")
		}
		return replication.Owned{Group: "t", Bytes: each, At: time.Now().Add(time.Duration(i-len(names)) * time.Hour)}, nil
	}
}

// States saved before copying was enabled are copied and evicted like others.
func TestBacklog(t *testing.T) {
	w := open(t, 0)
	w.stop()
	names := w.savedBefore(t, "0", "1", "2")
	stray := w.savedBefore(t, "nobody's")[0]
	w.cfg.Owner, w.cfg.DiskBytes = owner(names), 1
	w.restart(t)
	w.until(t, "copied", func(s replication.Stats) bool {
		return s.Copied == 3 && s.Evicted == 3 && s.Backlog == 0 && s.BacklogBytes == 0
	})
	if left, err := w.inner.ListSaved(t.Context()); err != nil || !slices.Equal(left, []string{stray}) {
		t.Errorf("%v stay, %v, want %s", left, err, stray)
	}
	for i, name := range names {
		if got, err := w.file(t, name); err != nil || got != string(rune('0'+i)) {
			t.Errorf("brought back %q, %v", got, err)
		}
	}
	w.restart(t)
	if got, err := w.file(t, stray); err != nil || got != "nobody's" {
		t.Errorf("nobody's holds %q, %v", got, err)
	}
}

// The backlog is copied oldest first, at its rate, and after new states, and continues
// after a restart. It evicts nothing meanwhile.
func TestBacklogWaits(t *testing.T) {
	w := open(t, 0)
	w.stop()
	names := w.savedBefore(t, "0", "1", "2")
	w.cfg.Owner, w.cfg.BacklogRate, w.cfg.DiskBytes = owner(names), 1, 2<<20 // a state in twelve days, two on the host
	w.restart(t)
	w.until(t, "one is copied", func(s replication.Stats) bool { return s.Copied == 1 && s.Backlog == 2 && s.BacklogBytes == 2<<20 })
	now := w.save(t, "now", "t")
	w.until(t, "what is saved now is copied", func(s replication.Stats) bool { return s.Copied == 2 })
	if s := w.Stats(); s.Backlog != 2 || s.Waiting != 2 || s.Here != 4 || s.Evicted != 0 {
		t.Errorf("beside the backlog: %+v", s)
	}
	if err := w.DeleteSaved(t.Context(), names[2]); err != nil {
		t.Fatal(err)
	}
	w.until(t, "what is deleted waits for nothing", func(s replication.Stats) bool { return s.Deleted == 1 && s.Backlog == 1 })
	w.restart(t)
	if left := w.evicted(t, 2); slices.Contains(left, names[0]) || !slices.Contains(left, now) {
		t.Errorf("%v stay, want the oldest gone", left)
	}
}

// A failed lookup of a state's owner is retried later.
func TestBacklogWithoutOwners(t *testing.T) {
	w := open(t, 0)
	w.stop()
	names := w.savedBefore(t, "0")
	known, asked := owner(names), make(chan struct{}, 100)
	w.cfg.Owner = func(ctx context.Context, name string) (replication.Owned, error) {
		asked <- struct{}{}
		if len(asked) == 1 {
			return replication.Owned{}, errors.New("the store is away")
		}
		return known(ctx, name)
	}
	w.restart(t)
	w.save(t, "x", "t") // triggers the next look for work
	w.until(t, "both are copied", func(s replication.Stats) bool { return s.Copied == 2 && s.Backlog == 0 })
}

// A new key seals new content while the old key still opens existing content. Once all
// group keys are sealed with the new key, the old key is not needed any more.
func TestRotatedKeys(t *testing.T) {
	w := open(t, 1)
	text := strings.Repeat("the same. ", 20_000)
	names := []string{w.save(t, text, "t")}
	w.evicted(t, 0)
	before := w.kept(t)

	w.blobs.set(true)
	w.cfg.Keys = [][]byte{key(8), key(7)}
	w.restart(t)
	w.until(t, "the old key is in use", func(s replication.Stats) bool { return s.OldKeys == 1 })
	w.stop()
	only := w.cfg
	only.Keys = [][]byte{key(8)}
	if _, err := replication.Open(w.inner, only); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("without the old key while it is in use: %v", err)
	}
	w.blobs.set(false)
	w.restart(t)
	w.until(t, "the old key is not in use", func(s replication.Stats) bool { return s.OldKeys == 0 })
	for range 2 {
		names = append(names, w.save(t, text, "t"))
		w.evicted(t, 0)
	}
	places := map[string]bool{}
	for _, pack := range packs(w.kept(t)) {
		places[strings.SplitN(pack, "/", 2)[0]] = true
	}
	if len(places) != 2 {
		t.Errorf("what two keys sealed is in %v", places)
	}

	w.stop()
	only.Keys = [][]byte{key(7)}
	if _, err := replication.Open(w.inner, only); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("with the old key alone: %v", err)
	}
	w.cfg.Keys = [][]byte{key(8)}
	if err := os.RemoveAll(filepath.Join(w.cfg.Dir, "keys")); err != nil { // the keys in Blobs must suffice
		t.Fatal(err)
	}
	w.restart(t)
	for _, name := range names {
		if got, err := w.file(t, name); err != nil || got != text {
			t.Errorf("%s holds %d bytes, %v", name, len(got), err)
		}
		if err := w.DeleteSaved(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	w.until(t, "deleted", func(s replication.Stats) bool { return s.Deleted == 3 })
	if left := w.left(t, 2); slices.Equal(left, before) {
		t.Errorf("blobs left: %v", left)
	}
}

func TestOpenRefuses(t *testing.T) {
	w := open(t, 1)
	name := w.save(t, "x", "t")
	w.evicted(t, 0)
	w.stop()
	for what, keys := range map[string][][]byte{"another key": {key(8)}, "a short key": {key(7), {1}}, "no key": nil} {
		cfg := w.cfg
		cfg.Keys = keys
		if _, err := replication.Open(w.inner, cfg); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.WriteFile(filepath.Join(w.cfg.Dir, name+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := replication.Open(w.inner, w.cfg); err == nil {
		t.Error("a record that cannot be understood was passed over")
	}
	record := filepath.Join(w.cfg.Dir, name+".json")
	for _, err := range []error{os.Remove(record), os.Mkdir(record, 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := replication.Open(w.inner, w.cfg); err == nil {
		t.Error("a record that cannot be read was passed over")
	}
}

// A damaged key in Blobs is not used, and does not prevent a start.
func TestDamagedKey(t *testing.T) {
	w := open(t, 0)
	w.save(t, "x", "t")
	w.until(t, "copied", func(s replication.Stats) bool { return s.Copied == 1 })
	w.stop()
	var key string
	for _, blob := range w.kept(t) {
		if strings.HasSuffix(blob, "/key") {
			key = filepath.Join(w.dir, blob)
		}
	}
	raw, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	damage(t, key)
	if err := os.RemoveAll(filepath.Join(w.cfg.Dir, "keys")); err != nil {
		t.Fatal(err)
	}
	w.restart(t)
	w.save(t, "y", "t")
	w.until(t, "tried", func(s replication.Stats) bool { return s.CopyFailed > 1 })
	w.restart(t)
	if err := os.WriteFile(key, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	w.until(t, "copied once it is mended", func(s replication.Stats) bool { return s.Copied == 1 && s.Waiting == 0 })
}
