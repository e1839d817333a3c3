// Package replication replicates saved states to Blobs, so that they survive the loss of
// their host's disk. The disk then serves as a cache.
//
// Its Engine wraps another Engine and passes the same test suite. A state with a group
// (sandbox.Deduplicator) is copied in the background, as chunks that all states of the group
// share, sealed with a key of the group. Copied states may then be evicted from the host,
// least recently used first; they are fetched again when a Boot starts from them. The
// wrapped Engine signs its exports and imports nothing else, so malicious Blobs cannot
// make it start a state that it did not save.
//
// Each state has a record in its own file, written before the recorded change is made:
// see record.
package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// inner is an Engine whose saved states can be exported and imported.
type inner interface {
	sandbox.Engine
	sandbox.Pauser
	sandbox.Porter
	sandbox.Deduplicator
}

// Config configures an Engine.
type Config struct {
	Dir   string // its own folder; created if missing
	Blobs sandbox.Blobs
	// Keys are the operator's, of seal.KeyBytes each. The first seals the keys of groups; all
	// of them open.
	Keys [][]byte
	// DiskBytes bounds the total size on the host of all states except the uncopied
	// backlog. Each state counts with its full size. Above it, the least recently used
	// copied states are evicted. Zero: no eviction.
	DiskBytes int64
	// Owner returns the owner of a state that was saved before copying was enabled:
	// NotFound for a state without an owner, or not ready. Nil: such states are not
	// copied.
	Owner func(ctx context.Context, name string) (Owned, error)
	// Records are the records of copies, and Node is the name of this host there. Engines
	// with the same Records share keys and packs.
	Records sandbox.CopyRecords
	Node    string
	// BacklogRate is the average rate at which such states are copied, in bytes per
	// second; zero: unlimited.
	BacklogRate int64
	Log         *slog.Logger
	// Retry is the pause after the first failure; it doubles with each further one. Zero:
	// 1 s.
	Retry time.Duration
	// PutLife is how long after their registration blobs may be put. The blobs of an
	// interrupted attempt are not deleted earlier. Zero: 5 minutes.
	PutLife time.Duration
}

// usualPutLife is the default of PutLife.
const usualPutLife = 5 * time.Minute

// Engine is an Engine that replicates its saved states to Blobs. Run does the work.
type Engine struct {
	inner
	cfg    Config
	keys   *keyring
	encode *zstd.Encoder
	decode *zstd.Decoder
	wake   chan struct{} // holds one when there may be work
	over   chan struct{} // closed at the end of Run
	// fetching is a semaphore for fetches.
	fetching chan struct{}
	// arriving is a semaphore for states that arrive, packs one for their packs, and packsBeside
	// one for packs of them that no read waits for.
	arriving, packs, packsBeside chan struct{}
	resumed                      bool // guarded by mu: arrivals of an earlier process have continued, or failed
	counts                       counts

	mu     sync.Mutex
	states map[string]*state
	sizes  map[string]int64 // of saved states without a group
	failed int              // consecutive failures to reach the Blobs

	until     time.Time // next attempt to reach the Blobs
	unsettled bool      // records may differ from the host
	untaken   bool      // the host may have states without a record
	backlogAt time.Time // earliest copy of the next backlog state

	// Only Run uses these.
	unregistered bool      // blobs may be in records of an earlier version only
	refused      int       // consecutive failures to register them
	registerAt   time.Time // next attempt
	scope        string    // see sandbox.CopyRecords.PackScope; empty: not known yet

	resealAt time.Time // when Run retries to reseal keys
}

var (
	_ inner              = (*Engine)(nil)
	_ sandbox.Fetcher    = (*Engine)(nil)
	_ sandbox.Replicator = (*Engine)(nil)
)

// Open opens an Engine and loads the records of an earlier process from cfg.Dir. If
// cfg.Keys lacks a key that still seals something, the error is Invalid.
func Open(inner inner, cfg Config) (*Engine, error) {
	if cfg.Retry == 0 {
		cfg.Retry = time.Second
	}
	encode, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(puts))
	if err != nil {
		return nil, err
	}
	decode, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(gets), zstd.WithDecoderMaxMemory(packBytes))
	if err != nil {
		return nil, err
	}
	if cfg.PutLife == 0 {
		cfg.PutLife = usualPutLife
	}
	keys, err := openKeys(filepath.Join(cfg.Dir, "keys"), cfg.Blobs, cfg.Keys, cfg.Records)
	if err != nil {
		return nil, err
	}
	if err := forgetIdentity(cfg.Dir); err != nil {
		return nil, err
	}
	e := &Engine{
		inner: inner, cfg: cfg, keys: keys, encode: encode, decode: decode,
		wake: make(chan struct{}, 1), over: make(chan struct{}), fetching: make(chan struct{}, fetches), arriving: make(chan struct{}, mostArriving), packs: make(chan struct{}, mostPacks), packsBeside: make(chan struct{}, packsBeside), sizes: map[string]int64{},
		unsettled: true, untaken: true, unregistered: true,
	}
	if e.states, err = readRecords(cfg.Dir, cfg.Log); err != nil {
		return nil, err
	}
	for _, s := range e.states {
		if s.Away && !s.Copied && !s.Deleting { // a FetchSaved that has not returned
			if err := e.forget(s); err != nil {
				return nil, err
			}
		}
	}
	return e, nil
}

// counts holds the counters of Stats.
type counts struct {
	copied, copyFailed, fetched, fetchFailed, healed, evicted, deleted, putBytes, gotBytes atomic.Int64
}

// Stats are an Engine's counters since it was opened, and its pending work.
type Stats struct {
	Copied, CopyFailed   int64 // states, and failed attempts
	Fetched, FetchFailed int64
	Healed               int64 // fetches that replaced a damaged or missing state
	Evicted, Deleted     int64
	PutBytes, GotBytes   int64 // bytes transferred to and from Blobs
	Waiting              int   // states that are not copied yet
	Backlog              int   // of Waiting, saved before copying was enabled
	BacklogBytes         int64 // size of Backlog on the host
	Left                 int   // states that are still to be deleted
	Here, Away           int   // states on the host, and only in Blobs
	HereBytes            int64 // of Here, each with its full size
	OldKeys              int   // keys of groups that the first of Keys does not seal yet
	Unreachable          bool  // the last request to the Blobs failed
}

// Stats returns the current numbers.
func (e *Engine) Stats() Stats {
	c := &e.counts
	s := Stats{
		Copied: c.copied.Load(), CopyFailed: c.copyFailed.Load(), Fetched: c.fetched.Load(), FetchFailed: c.fetchFailed.Load(),
		OldKeys: e.keys.oldKeys(),
		Healed:  c.healed.Load(), Evicted: c.evicted.Load(), Deleted: c.deleted.Load(), PutBytes: c.putBytes.Load(), GotBytes: c.gotBytes.Load(),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Unreachable = e.failed > 0
	for _, st := range e.states {
		switch {
		case st.Deleting:
			s.Left++
			continue
		case st.Away:
			s.Away++
			continue
		case !st.Copied && st.Backlog:
			s.Backlog++
			s.BacklogBytes += st.Bytes
			fallthrough
		case !st.Copied:
			s.Waiting++
		}
		s.Here++
		s.HereBytes += st.Bytes
	}
	return s
}

// poke wakes Run to look for work.
func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// noteSize remembers the size of a state until ShareSaved.
func (e *Engine) noteSize(name string, saved sandbox.Saved, err error) (sandbox.Saved, error) {
	if err == nil {
		e.mu.Lock()
		e.sizes[name] = saved.Bytes
		e.mu.Unlock()
	}
	return saved, err
}

// Save implements sandbox.Pauser.
func (e *Engine) Save(ctx context.Context, id, name string, memory bool) (saved sandbox.Saved, err error) {
	if e.isDeleting(name) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "the saved state %s is being deleted", name)
	}
	_, err = e.with(ctx, name, e.back, func() error {
		saved, err = e.inner.Save(ctx, id, name, memory)
		saved, err = e.noteSize(name, saved, err)
		return err
	})
	return saved, err
}

// ImportSaved implements sandbox.Porter.
func (e *Engine) ImportSaved(ctx context.Context, name string, r io.Reader) (sandbox.Saved, error) {
	if e.find(name) != nil || e.isDeleting(name) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "another state was saved as %s", name)
	}
	saved, err := e.inner.ImportSaved(ctx, name, r)
	return e.noteSize(name, saved, err)
}

// ShareSaved implements sandbox.Deduplicator: it queues the state for copying.
func (e *Engine) ShareSaved(ctx context.Context, name, group string) error {
	if s := e.find(name); s != nil {
		e.mu.Lock()
		other, away := s.Group != group, s.Away
		e.mu.Unlock()
		if other {
			return sandbox.Errorf(sandbox.Conflict, "the saved state %s shares with others", name)
		}
		if away {
			return nil
		}
	}
	e.mu.Lock()
	r := record{Name: name, Group: group, Bytes: e.sizes[name]}
	e.mu.Unlock()
	return e.add(ctx, r, time.Now())
}

// add queues a state for copying, unless it is already known.
func (e *Engine) add(ctx context.Context, r record, used time.Time) error {
	if err := e.inner.ShareSaved(ctx, r.Name, r.Group); err != nil {
		return err
	}
	e.mu.Lock()
	if e.states[r.Name] != nil {
		e.mu.Unlock()
		return nil
	}
	s := &state{record: r, used: used}
	delete(e.sizes, r.Name)
	e.states[r.Name] = s
	e.mu.Unlock()
	defer e.poke()
	// If this is lost in a crash, takeUp of the next process finds the state.
	return e.change(s, false, func() {})
}

// ExportSaved implements sandbox.Porter. Damaged or missing states are detected before
// anything is written.
func (e *Engine) ExportSaved(ctx context.Context, name string, image bool, w io.Writer) error {
	export := func() error { return e.inner.ExportSaved(ctx, name, image, w) }
	spoiled, err := e.with(ctx, name, e.back, export)
	if spoiled {
		_, err = e.with(ctx, name, e.back, export)
	}
	return err
}

// Start implements sandbox.Engine. A state found damaged or missing is not fetched here,
// where other callers may be waiting for it, but at its next HoldSaved.
func (e *Engine) Start(ctx context.Context, id string, spec sandbox.BootSpec) error {
	if spec.From == "" {
		return e.inner.Start(ctx, id, spec)
	}
	_, err := e.with(ctx, spec.From, e.startable, func() error { return e.inner.Start(ctx, id, spec) })
	return err
}

// DeleteSaved implements sandbox.Pauser. The copy in Blobs is not deleted here: see
// sandbox.CopyRecords.
func (e *Engine) DeleteSaved(ctx context.Context, name string) error {
	s := e.find(name)
	if s == nil {
		e.mu.Lock()
		delete(e.sizes, name)
		e.mu.Unlock()
		if err := os.Remove(e.file(name, listSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) { // of FetchSaved
			return err
		}
		return e.inner.DeleteSaved(ctx, name)
	}
	unlock, err := e.lockArrived(ctx, s, e.giveUpArrival)
	if err != nil {
		return err
	}
	defer unlock()
	if err := e.change(s, true, func() { s.Deleting = true }); err != nil {
		return err
	}
	e.mu.Lock()
	if s.cancel != nil {
		s.cancel()
	}
	e.mu.Unlock()
	defer e.poke()
	return e.inner.DeleteSaved(ctx, name)
}

// lockArrived is lock for a state that does not arrive. It has end end an arrival.
func (e *Engine) lockArrived(ctx context.Context, s *state, end func(context.Context, *state) error) (unlock func(), err error) {
	for {
		if err := end(ctx, s); err != nil {
			return nil, err
		}
		unlock, err := e.lock(ctx, s)
		if err != nil {
			return nil, err
		}
		e.mu.Lock()
		arrives := s.arrives != nil // meanwhile
		e.mu.Unlock()
		if !arrives {
			return unlock, nil
		}
		unlock()
	}
}

// ListSaved implements sandbox.Pauser.
func (e *Engine) ListSaved(ctx context.Context) ([]string, error) {
	names, err := e.inner.ListSaved(ctx)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, name := range names {
		there[name] = true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, s := range e.states {
		if s.Copied && !s.Deleting && !there[name] { // even if it is being fetched or evicted
			names = append(names, name)
		}
	}
	return names, nil
}

// find returns a state that has a group and is not being deleted, or nil.
func (e *Engine) find(name string) *state {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.states[name]; s != nil && !s.Deleting && !s.coming {
		return s
	}
	return nil
}

func (e *Engine) isDeleting(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.states[name]
	return s != nil && s.Deleting
}

// HoldSaved implements sandbox.Fetcher.
func (e *Engine) HoldSaved(ctx context.Context, name string, whole bool) (sandbox.Hold, error) {
	bring := e.startable
	if whole {
		bring = e.back
	}
	release, err := e.hold(ctx, name, bring)
	if err != nil {
		return sandbox.Hold{}, err
	}
	s := e.find(name)
	e.mu.Lock()
	defer e.mu.Unlock()
	return sandbox.Hold{Release: release, Arrives: s != nil && s.arrives != nil}, nil
}

// hold is HoldSaved for a state that bring brings to the host.
func (e *Engine) hold(ctx context.Context, name string, bring func(context.Context, *state) error) (release func(), err error) {
	s := e.find(name)
	if s == nil {
		return func() {}, nil
	}
	e.mu.Lock()
	s.holds++
	s.used = time.Now()
	e.mu.Unlock()
	release = sync.OnceFunc(func() {
		e.mu.Lock()
		s.holds--
		e.mu.Unlock()
		e.poke()
	})
	if err := bring(ctx, s); err != nil {
		release()
		return nil, err
	}
	e.touch(s)
	return release, nil
}

// with runs do on a state that bring brings to the host. If do fails because the state is damaged
// or missing there, with records this and reports whether a retry would fetch the copy.
func (e *Engine) with(ctx context.Context, name string, bring func(context.Context, *state) error, do func() error) (again bool, err error) {
	release, err := e.hold(ctx, name, bring)
	if err != nil {
		return false, err
	}
	defer release()
	s := e.find(name)
	if s == nil {
		return false, do()
	}
	e.mu.Lock()
	times := s.times
	e.mu.Unlock()
	if err = do(); err == nil || !e.isBroken(ctx, s, err) {
		return false, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !s.Copied || s.Deleting {
		return false, err
	}
	s.spoiled = s.spoiled || s.times == times // otherwise it was fetched meanwhile
	return true, err
}

// isBroken reports whether err, of a call on a state, means that the state is damaged or
// missing on the host.
func (e *Engine) isBroken(ctx context.Context, s *state, err error) bool {
	if !errors.Is(err, sandbox.NotFound) { // NotFound may concern something else
		return errors.Is(err, sandbox.ErrDamaged)
	}
	e.mu.Lock()
	arrives := s.arrives != nil
	e.mu.Unlock()
	if arrives {
		return false
	}
	names, err := e.inner.ListSaved(ctx)
	return err == nil && !slices.Contains(names, s.Name)
}

// lock gives the caller exclusive access to the files of a state until unlock.
func (e *Engine) lock(ctx context.Context, s *state) (unlock func(), err error) {
	for {
		e.mu.Lock()
		busy := s.busy
		if busy == nil {
			mine := make(chan struct{})
			s.busy = mine
			e.mu.Unlock()
			return func() {
				e.mu.Lock()
				s.busy = nil
				e.mu.Unlock()
				close(mine)
			}, nil
		}
		e.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// change edits the record of a state and writes it; on error the record is unchanged.
// With lasting, the change survives a crash of the machine once change has returned.
func (e *Engine) change(s *state, lasting bool, edit func()) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	e.mu.Lock()
	before := s.record
	edit()
	e.mu.Unlock()
	err := e.write(s, lasting)
	if err != nil {
		e.mu.Lock()
		s.record = before
		e.mu.Unlock()
	}
	return err
}

// Run copies, deletes and evicts until ctx ends. It first registers the copies of an earlier
// version, and copies and deletes nothing before.
func (e *Engine) Run(ctx context.Context) error {
	defer close(e.over)
	var resuming sync.WaitGroup
	defer resuming.Wait()
	resuming.Go(func() { e.resumeArrivals(ctx) })
	for ctx.Err() == nil {
		e.once(ctx, &e.unsettled, e.settle)
		e.once(ctx, &e.untaken, e.takeUp)
		e.reseal(ctx)
		e.evict(ctx)
		s, wait := e.next(time.Now())
		if later := e.register(ctx); later > 0 {
			s, wait = nil, later
		}
		if s != nil {
			e.attempt(ctx, s)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-e.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return ctx.Err()
}

// once runs do if needed is set. If do fails, needed is set again. e.mu guards needed.
func (e *Engine) once(ctx context.Context, needed *bool, do func(context.Context) error) {
	e.mu.Lock()
	now := *needed
	*needed = false
	e.mu.Unlock()
	if !now {
		return
	}
	if err := do(ctx); err != nil && ctx.Err() == nil {
		e.cfg.Log.WarnContext(ctx, "listing the saved states of this host failed", telemetry.KeyError, err)
		e.mu.Lock()
		*needed = true
		e.mu.Unlock()
	}
}

// idle is how long Run waits without work.
const idle = time.Minute

// reseal reseals keys that the first of Keys does not seal. After a failure it retries
// later.
func (e *Engine) reseal(ctx context.Context) {
	n := e.keys.oldKeys()
	if n == 0 || time.Now().Before(e.resealAt) {
		return
	}
	if err := e.keys.reseal(ctx); err != nil && ctx.Err() == nil {
		e.resealAt = time.Now().Add(idle)
		e.cfg.Log.WarnContext(ctx, "tenants' keys are still sealed with an old key for copies of snapshots; keep that key", "keys", e.keys.oldKeys(), telemetry.KeyError, err)
		return
	}
	e.cfg.Log.InfoContext(ctx, "all tenants' keys are sealed with the first key for copies of snapshots; the other keys can go", "keys", n)
}

// next returns the state to work on, by rank and then least recently used, or how long to
// wait for one.
func (e *Engine) next(now time.Time) (first *state, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = idle
	for _, s := range e.states {
		if s.Copied && !s.Deleting || s.coming {
			continue
		}
		at := s.retry
		if e.until.After(at) {
			at = e.until
		}
		if s.rank() == backlogRank && e.backlogAt.After(at) {
			at = e.backlogAt
		}
		if d := at.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		if first == nil || s.rank() < first.rank() || s.rank() == first.rank() && s.used.Before(first.used) {
			first = s
		}
	}
	return first, wait
}

const (
	// fetches bounds concurrent fetches: each can use the full network bandwidth.
	fetches = 8
	// mostRetry is the longest pause between attempts.
	mostRetry = 5 * time.Minute
	// tooLargeRetry is the pause after TooLarge, which a retry hardly helps.
	tooLargeRetry = 24 * time.Hour
	// attemptLimit bounds one attempt.
	attemptLimit = 30 * time.Minute
)

// backoff returns the pause after the given number of consecutive failures, at least 1.
func (e *Engine) backoff(failures int) time.Duration {
	return min(e.cfg.Retry<<min(failures-1, 16), mostRetry)
}

// attempt works on one state and records the result.
func (e *Engine) attempt(ctx context.Context, s *state) {
	whole, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	e.mu.Lock()
	deleting := s.Deleting
	if !deleting {
		s.cancel = cancel
	}
	e.mu.Unlock()
	what, err := "copied", error(nil)
	if deleting {
		what, err = "deleted", e.remove(whole, s)
	} else {
		began := time.Now()
		err = e.copyOut(whole, s)
		e.paced(s, began)
	}
	e.mu.Lock()
	s.cancel = nil
	given := s.Deleting && !deleting || ctx.Err() != nil
	e.mu.Unlock()
	if given {
		return
	}
	e.note(ctx, s, what, err)
}

// note records the result of an attempt. When Blobs cannot be reached, it delays the work
// on all states.
func (e *Engine) note(ctx context.Context, s *state, what string, err error) {
	away := errors.Is(err, sandbox.Unavailable) || errors.Is(err, sandbox.Denied) || errors.Is(err, context.DeadlineExceeded)
	e.mu.Lock()
	switch {
	case err == nil:
		s.failures, e.failed = 0, 0
	default:
		s.failures++
		s.retry = time.Now().Add(e.backoff(s.failures))
		if errors.Is(err, sandbox.TooLarge) {
			s.retry = time.Now().Add(tooLargeRetry)
		}
		if away {
			e.failed++
			e.until = time.Now().Add(e.backoff(e.failed))
		}
	}
	again := s.failures
	e.mu.Unlock()
	if err != nil {
		if what == "copied" {
			e.counts.copyFailed.Add(1)
		}
		e.cfg.Log.WarnContext(ctx, "a saved state is not "+what+" yet", telemetry.KeySnapshot, s.Name, "attempt", again, telemetry.KeyError, err)
	}
}

// evict removes the least recently used copied states from the host while the total
// exceeds DiskBytes.
func (e *Engine) evict(ctx context.Context) {
	for e.cfg.DiskBytes > 0 && ctx.Err() == nil {
		s := e.oldest()
		if s == nil {
			return
		}
		if err := e.evictOne(ctx, s); err != nil && ctx.Err() == nil {
			e.cfg.Log.WarnContext(ctx, "removing a copied saved state from this full host failed", telemetry.KeySnapshot, s.Name, telemetry.KeyError, err)
			e.mu.Lock()
			e.unsettled = true
			e.mu.Unlock()
			return
		}
	}
}

// oldest returns the state to evict next; nil when none must be or can be evicted.
func (e *Engine) oldest() (oldest *state) {
	e.mu.Lock()
	defer e.mu.Unlock()
	total := int64(0)
	for _, s := range e.states {
		if s.Away || s.Deleting || s.Backlog && !s.Copied { // a backlog must not evict used states
			continue
		}
		total += s.Bytes
		if s.Copied && s.holds == 0 && s.busy == nil && (oldest == nil || s.used.Before(oldest.used)) {
			oldest = s
		}
	}
	if total <= e.cfg.DiskBytes {
		return nil
	}
	return oldest
}

// evictOne removes a state from the host, unless it is in use again.
func (e *Engine) evictOne(ctx context.Context, s *state) error {
	unlock, err := e.lock(ctx, s)
	if err != nil {
		return err
	}
	defer unlock()
	e.mu.Lock()
	stays := s.holds > 0 || !s.Copied || s.Away || s.Deleting
	e.mu.Unlock()
	if stays {
		return nil
	}
	if err := e.change(s, false, func() { s.setAway(true) }); err != nil {
		return err
	}
	if err := e.inner.DeleteSaved(ctx, s.Name); err != nil {
		return fmt.Errorf("remove the files: %w", err) // the files may be gone: settle checks
	}
	e.counts.evicted.Add(1)
	return nil
}

// settle corrects the records of where states are, after interrupted work or removal by
// hand.
func (e *Engine) settle(ctx context.Context) error {
	names, err := e.inner.ListSaved(ctx)
	if err != nil {
		return fmt.Errorf("look for saved states: %w", err)
	}
	there := map[string]bool{}
	for _, name := range names {
		there[name] = true
	}
	e.mu.Lock()
	var wrong []*state
	for name, s := range e.states {
		if s.Copied && !s.Deleting && s.busy == nil && s.Away == there[name] {
			wrong = append(wrong, s)
		}
	}
	e.mu.Unlock()
	for _, s := range wrong {
		if err := e.lookAt(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// lookAt corrects the record of whether one state is on the host.
func (e *Engine) lookAt(ctx context.Context, s *state) error {
	unlock, err := e.lock(ctx, s)
	if err != nil {
		return err
	}
	defer unlock()
	e.mu.Lock()
	arrives := s.arrives != nil
	e.mu.Unlock()
	if arrives { // its end is recorded
		return nil
	}
	names, err := e.inner.ListSaved(ctx)
	if err != nil {
		return err
	}
	return e.change(s, false, func() {
		if slices.Contains(names, s.Name) {
			s.setAway(false)
		} else {
			s.Away = true // it may still be about to continue to arrive
		}
	})
}
