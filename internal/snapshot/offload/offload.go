// Package offload keeps copies of saved states in Blobs, so that they outlive the
// disk of their host, and lets that disk be a cache of them.
//
// It is an Engine around another one, and as such passes the same suite. A state
// that has a group (sandbox.Sharer) is copied in the background: as pieces that
// all states of its group share, sealed with a key of that group. What was copied
// may then be removed from the host, the least used first, and is brought back
// when a Boot is to start from it. The Engine below signs what it exports and
// takes back nothing else, so that no Blobs can make it start what it did not
// save.
//
// What is known of each state is a file of its own, written before what it speaks
// of is done: see record.
package offload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// inner is an Engine whose saved states can be kept elsewhere.
type inner interface {
	sandbox.Engine
	sandbox.Pauser
	sandbox.Porter
	sandbox.Sharer
}

// Config says what an Engine works with.
type Config struct {
	Dir   string // its own folder; made if it is missing
	Blobs sandbox.Blobs
	// Keys are the operator's, of KeyBytes each: the first seals the keys of groups,
	// all of them open.
	Keys [][]byte
	// DiskBytes is how much the states that were copied or will be may take on the
	// host, each counted as its whole size; beyond it the least used of those that
	// were copied go. A backlog that is not copied yet does not count. Zero: none
	// goes.
	DiskBytes int64
	// Owner says to whom a state belongs that was saved before there were copies:
	// NotFound for one that is nobody's, or not ready. Nil: those are not copied.
	Owner func(ctx context.Context, name string) (Owned, error)
	// BacklogRate is how many bytes of those states are copied in a second, on
	// average; zero: as many as can be.
	BacklogRate int64
	Log         *slog.Logger
	// Retry is the pause after the first failure, which doubles with each; zero: a
	// second.
	Retry time.Duration
}

// Engine is an Engine whose saved states are also in Blobs. Run does the work.
type Engine struct {
	inner
	cfg    Config
	keys   *keyring
	encode *zstd.Encoder
	decode *zstd.Decoder
	wake   chan struct{} // holds one when there may be work
	// fetching holds one for each state that is being brought back.
	fetching chan struct{}
	counts   counts

	mu     sync.Mutex
	states map[string]*state
	sizes  map[string]int64 // of what was saved and has no group yet
	failed int              // failures in a row to reach the Blobs

	until     time.Time // when they are tried again
	unsettled bool      // records may be wrong about what is on the host
	untaken   bool      // states may be on the host that have no record
	backlogAt time.Time // when the next state of the backlog is copied

	resealAt time.Time // when Run tries again to seal keys with the first
}

var (
	_ inner           = (*Engine)(nil)
	_ sandbox.Fetcher = (*Engine)(nil)
)

// Open takes up what an earlier process left in cfg.Dir. Keys without one that it
// used are Invalid, unless nothing is sealed with that any more.
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
	keys, err := openKeys(filepath.Join(cfg.Dir, "keys"), cfg.Blobs, cfg.Keys)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		inner: inner, cfg: cfg, keys: keys, encode: encode, decode: decode,
		wake: make(chan struct{}, 1), fetching: make(chan struct{}, fetches), sizes: map[string]int64{},
		unsettled: true, untaken: true,
	}
	if e.states, err = readRecords(cfg.Dir, cfg.Log); err != nil {
		return nil, err
	}
	return e, nil
}

// counts is what Stats tells, as it grows.
type counts struct {
	copied, copyFailed, fetched, fetchFailed, healed, evicted, deleted, putBytes, gotBytes atomic.Int64
}

// Stats is what an Engine did since it was opened, and what it has to do.
type Stats struct {
	Copied, CopyFailed   int64 // states, and attempts
	Fetched, FetchFailed int64
	Healed               int64 // of those fetched, what took the place of something damaged or gone
	Evicted, Deleted     int64
	PutBytes, GotBytes   int64 // as they went to Blobs and came back
	Waiting              int   // states that are not copied yet
	Backlog              int   // of those, saved before there were copies
	BacklogBytes         int64 // that they take on the host
	Left                 int   // states whose copies are still to be deleted
	Here, Away           int   // states on the host, and only in Blobs
	HereBytes            int64 // of those on the host, each counted as its whole size
	OldKeys              int   // keys of groups that are not sealed with the first of Keys yet
	Unreachable          bool  // the last request to the Blobs failed
}

// Stats returns the present numbers.
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

// poke has Run look for work.
func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// noteSize remembers how big a state is until its group is told.
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
	_, err = e.with(ctx, name, func() error {
		saved, err = e.inner.Save(ctx, id, name, memory)
		saved, err = e.noteSize(name, saved, err)
		return err
	})
	return saved, err
}

// ImportSaved implements sandbox.Porter.
func (e *Engine) ImportSaved(ctx context.Context, name string, r io.Reader) (sandbox.Saved, error) {
	if e.find(name) != nil || e.isDeleting(name) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "something else was saved as %s", name)
	}
	saved, err := e.inner.ImportSaved(ctx, name, r)
	return e.noteSize(name, saved, err)
}

// ShareSaved implements sandbox.Sharer: from here on the state is copied.
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

// add has a state be copied from here on, unless it is already.
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
	// Should this not last, the next process takes it up.
	return e.change(s, false, func() {})
}

// ExportSaved implements sandbox.Porter. What is damaged or gone is noticed before
// anything is written.
func (e *Engine) ExportSaved(ctx context.Context, name string, image bool, w io.Writer) error {
	export := func() error { return e.inner.ExportSaved(ctx, name, image, w) }
	spoiled, err := e.with(ctx, name, export)
	if spoiled {
		_, err = e.with(ctx, name, export)
	}
	return err
}

// Start implements sandbox.Engine. A state that turns out to be damaged or gone is
// not brought back here, where others may wait for it, but when it is held next.
func (e *Engine) Start(ctx context.Context, id string, spec sandbox.BootSpec) error {
	if spec.From == "" {
		return e.inner.Start(ctx, id, spec)
	}
	_, err := e.with(ctx, spec.From, func() error { return e.inner.Start(ctx, id, spec) })
	return err
}

// DeleteSaved implements sandbox.Pauser. That its copy is to go is recorded, and
// done later.
func (e *Engine) DeleteSaved(ctx context.Context, name string) error {
	s := e.find(name)
	if s == nil {
		e.mu.Lock()
		delete(e.sizes, name)
		e.mu.Unlock()
		return e.inner.DeleteSaved(ctx, name)
	}
	unlock, err := e.lock(ctx, s)
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
		if s.Copied && !s.Deleting && !there[name] { // whether it comes or goes just now
			names = append(names, name)
		}
	}
	return names, nil
}

// find returns a state that has a group and is not deleted; nil when there is
// none.
func (e *Engine) find(name string) *state {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.states[name]; s != nil && !s.Deleting {
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
func (e *Engine) HoldSaved(ctx context.Context, name string) (release func(), err error) {
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
	if err := e.back(ctx, s); err != nil {
		release()
		return nil, err
	}
	e.touch(s)
	return release, nil
}

// with does something with a state that is on the host. It notes when that shows
// that the state is damaged or gone there, and reports whether its copy may do
// better.
func (e *Engine) with(ctx context.Context, name string, do func() error) (again bool, err error) {
	release, err := e.HoldSaved(ctx, name)
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
	s.spoiled = s.spoiled || s.times == times // otherwise it was brought back meanwhile
	return true, err
}

// isBroken reports whether err, of something done with a state, says that it is
// damaged or gone.
func (e *Engine) isBroken(ctx context.Context, s *state, err error) bool {
	if !errors.Is(err, sandbox.NotFound) { // which may be of something else
		return errors.Is(err, sandbox.ErrDamaged)
	}
	names, err := e.inner.ListSaved(ctx)
	return err == nil && !slices.Contains(names, s.Name)
}

// lock makes the caller the only one that moves the files of a state, until it
// calls unlock.
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

// change edits the record of a state and writes it; on error it is as before. With
// lasting it survives the machine once change returns.
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

// Run copies, deletes and evicts until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		e.once(ctx, &e.unsettled, e.settle)
		e.once(ctx, &e.untaken, e.takeUp)
		e.reseal(ctx)
		e.evict(ctx)
		s, wait := e.next(time.Now())
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

// once does something when it is needed, and needed again when it fails. e.mu
// guards needed.
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

// idle is how long Run waits when there is nothing to do.
const idle = time.Minute

// reseal seals keys again that are not sealed with the first of Keys, now and then
// while that fails.
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

// next returns what to work on, by rank and then what was used longest ago, or how
// long there is nothing.
func (e *Engine) next(now time.Time) (first *state, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = idle
	for _, s := range e.states {
		if s.Copied && !s.Deleting {
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
	// fetches is how many states are brought back at a time: each takes all that
	// the network gives.
	fetches = 8
	// mostRetry is the longest pause between attempts.
	mostRetry = 5 * time.Minute
	// tooLargeRetry is the pause after one that will hardly go better.
	tooLargeRetry = 24 * time.Hour
	// attemptLimit bounds one attempt.
	attemptLimit = 30 * time.Minute
)

// backoff is the pause after so many failures in a row, 1 or more.
func (e *Engine) backoff(failures int) time.Duration {
	return min(e.cfg.Retry<<min(failures-1, 16), mostRetry)
}

// attempt works on one state and notes how it went.
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

// note takes down how an attempt went. What cannot be reached is left alone for a
// while, for all states.
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

// evict removes states from the host that were copied and not used for longest,
// while there is more than there may be.
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

// oldest returns the state to evict next; nil when none has to go or can.
func (e *Engine) oldest() (oldest *state) {
	e.mu.Lock()
	defer e.mu.Unlock()
	total := int64(0)
	for _, s := range e.states {
		if s.Away || s.Deleting || s.Backlog && !s.Copied { // which may not push out what is used
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

// evictOne removes a state from the host, unless it is used again.
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
	if err := e.change(s, false, func() { s.Away = true }); err != nil {
		return err
	}
	if err := e.inner.DeleteSaved(ctx, s.Name); err != nil {
		return fmt.Errorf("remove the files: %w", err) // perhaps they went: settle looks
	}
	e.counts.evicted.Add(1)
	return nil
}

// settle has the records say what is on the host and what is not, whatever was cut
// or removed by hand.
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

// lookAt has the record of one state say whether it is on the host.
func (e *Engine) lookAt(ctx context.Context, s *state) error {
	unlock, err := e.lock(ctx, s)
	if err != nil {
		return err
	}
	defer unlock()
	names, err := e.inner.ListSaved(ctx)
	if err != nil {
		return err
	}
	return e.change(s, false, func() { s.Away = !slices.Contains(names, s.Name) })
}
