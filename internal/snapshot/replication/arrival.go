package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// retryPacks is how long the packs of a state that Boots depend on are asked for again
	// when Blobs cannot be reached; firstPacks, before a Boot can start.
	retryPacks, firstPacks = 5 * time.Minute, 2 * time.Second
	// resumeWithin bounds the attempts to continue an arrival of an earlier process. The
	// Engine gives it up then.
	resumeWithin = 2 * time.Minute
	// mostBeside bounds the packs of an arrival in progress that no read waits for. They share
	// the line with packs that reads wait for.
	mostBeside = 4
	// mostArriving bounds the states that arrive at a time: each holds memory and a file.
	// mostPacks bounds the packs that are fetched for all of them, of which packsBeside may be
	// packs that no read waits for.
	mostArriving, mostPacks, packsBeside = 32, 24, 16
	// packLimit bounds one attempt to fetch a pack. A connection may stall while others work.
	packLimit = 2 * time.Minute
)

// arrival is the content of a copy that is on its way, as sandbox.Arrival. Packs that are
// preferred are fetched first. As long as more of them are, others come one at a time.
type arrival struct {
	list *list
	file *os.File // has the packs that are here
	ends []int64  // where each place ends in the content

	ctx     context.Context
	cancel  context.CancelFunc
	gone    sync.WaitGroup
	release func()      // called at the end
	needed  atomic.Bool // Boots may depend on the content

	mu     sync.Mutex
	packs  []arrivingPack
	more   *sync.Cond // of mu: there may be a pack to fetch
	urgent []int      // preferred packs, the latest last
	next   int        // the first pack that may not have been begun
	beside int        // packs in progress that were not preferred
	most   int        // how many of them may be
	failed error
}

type arrivingPack struct {
	begun, here bool
	done        chan struct{} // closed when it is here, or all has failed; nil: no read waits
}

// newArrival begins to fetch the content of a list. Cancel must be called. It calls release at
// its end, also if it fails.
func (e *Engine) newArrival(key *groupKey, l *list, release func()) (*arrival, error) {
	f, err := durable.Unnamed(e.cfg.Dir)
	if err == nil {
		// Later there may be Boots that would end for want of it.
		if err = noRoom(unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, l.Bytes)); errors.Is(err, sandbox.Exhausted) {
			f.Close()
		} else {
			err = nil // it is only a precaution
		}
	}
	if err != nil {
		release()
		return nil, err
	}
	a := &arrival{list: l, file: f, packs: make([]arrivingPack, len(l.Packs)), most: 1, release: release}
	a.more = sync.NewCond(&a.mu)
	at := int64(0)
	for _, p := range l.places {
		at += int64(p.Bytes)
		a.ends = append(a.ends, at)
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	targets := l.targets()
	for range min(gets, len(l.Packs)) + mostBeside {
		a.gone.Go(func() {
			for e.bringNext(a, key, targets) {
			}
		})
	}
	return a, nil
}

// bringNext fetches one more pack, in its turn; false if all are begun. The turn comes before
// the choice, so that a pack which a read waits for does not stand behind others.
func (e *Engine) bringNext(a *arrival, key *groupKey, targets [][]target) bool {
	preferred, more := a.await()
	if !more {
		return false
	}
	done, ok := e.packTurn(a.ctx, preferred)
	if !ok {
		return false
	}
	i, ok := a.take(preferred)
	if !ok { // another worker was quicker
		done()
		return true
	}
	bring := func() error {
		defer done()
		ctx, cancel := context.WithTimeout(a.ctx, packLimit)
		defer cancel()
		err := e.getPack(ctx, key, a.list.Packs[i], targets[i], a.file)
		if err != nil && ctx.Err() != nil && a.ctx.Err() == nil { // not the user's deadline
			err = sandbox.Errorf(sandbox.Unavailable, "a part of the saved state did not come in %v", packLimit).WithCause(err)
		}
		return err
	}
	err := bring()
	for failed, pause := time.Now(), e.cfg.Retry; err != nil && e.again(a, failed, pause, err); pause = min(2*pause, fetchAgain) {
		if done, ok = e.packTurn(a.ctx, preferred); !ok {
			break
		}
		err = bring()
	}
	a.came(i, preferred, err)
	return true
}

// again waits for the next attempt to fetch a pack which failed first at a time; false if it
// failed for good, which takes longer once Boots depend on it.
func (e *Engine) again(a *arrival, failed time.Time, pause time.Duration, err error) bool {
	limit := firstPacks
	if a.needed.Load() {
		limit = retryPacks
	}
	full := errors.Is(err, sandbox.Exhausted) && !a.needed.Load()
	if a.ctx.Err() != nil || errors.Is(err, sandbox.ErrDamaged) || full || time.Since(failed) > limit {
		return false
	}
	select {
	case <-time.After(pause):
		return true
	case <-a.ctx.Done():
		return false
	case <-e.over:
		if a.needed.Load() { // the next process continues, unless this one says that it failed
			<-a.ctx.Done()
		}
		return false
	}
}

// packTurn waits until one more pack may be fetched for an arrival; false if ctx ends.
func (e *Engine) packTurn(ctx context.Context, preferred bool) (done func(), ok bool) {
	turns := []chan struct{}{e.packs}
	if !preferred {
		turns = []chan struct{}{e.packsBeside, e.packs}
	}
	taken := 0
	done = func() {
		for _, turn := range turns[:taken] {
			<-turn
		}
	}
	for _, turn := range turns {
		select {
		case turn <- struct{}{}:
			taken++
		case <-ctx.Done():
			done()
			return nil, false
		}
	}
	return done, true
}

// await waits until there is a pack to fetch, and reports whether it is preferred; false if all
// are begun, or the arrival has ended. If it is not preferred, take must be called: until then it
// counts as in progress, so that the other workers wait for preferred ones.
func (a *arrival) await() (preferred, more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.failed == nil && a.ctx.Err() == nil && a.next < len(a.packs) {
		switch {
		case len(a.urgent) > 0:
			return true, true
		case a.beside < a.most:
			a.beside++
			return false, true
		}
		a.more.Wait()
	}
	return false, false
}

// take returns the next pack to fetch; false if no pack is to be fetched now.
func (a *arrival) take(preferred bool) (pack int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.failed == nil && a.ctx.Err() == nil {
		var i int
		switch n := len(a.urgent); {
		case preferred && n > 0:
			i, a.urgent = a.urgent[n-1], a.urgent[:n-1]
		case !preferred && a.next < len(a.packs):
			i = a.next
			if a.next++; a.next == len(a.packs) {
				a.more.Broadcast() // for the ends of others
			}
		default:
			if !preferred {
				a.beside--
				a.more.Broadcast()
			}
			return 0, false
		}
		if !a.packs[i].begun {
			a.packs[i].begun = true
			return i, true
		}
	}
	return 0, false
}

// came notes that a pack is here, or that it will not come.
func (a *arrival) came(i int, preferred bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !preferred {
		a.beside--
		a.most = min(a.most+1, mostBeside)
		a.more.Broadcast()
	}
	if err != nil {
		a.fail(err)
		return
	}
	a.packs[i].here = true
	if done := a.packs[i].done; done != nil {
		close(done)
	}
}

// fail ends all reads that wait. The caller holds mu.
func (a *arrival) fail(err error) {
	if a.failed != nil {
		return
	}
	a.failed = err
	a.more.Broadcast()
	for i := range a.packs {
		if p := &a.packs[i]; !p.here && p.done != nil {
			close(p.done)
			p.done = nil
		}
	}
}

// Bytes implements sandbox.Arrival.
func (a *arrival) Bytes() int64 { return a.list.Bytes }

// Cancel implements sandbox.Arrival.
func (a *arrival) Cancel() {
	a.cancel()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail(context.Canceled)
}

// close ends the arrival, and waits until nothing is fetched.
func (a *arrival) close() {
	a.Cancel()
	a.gone.Wait()
	a.file.Close()
	a.release()
}

// packsOf returns the packs of the content from off to end, each once.
func (a *arrival) packsOf(off, end int64) (packs []int) {
	first := sort.Search(len(a.ends), func(i int) bool { return a.ends[i] > off })
	for i := first; i < len(a.ends) && (i == first || a.ends[i-1] < end); i++ {
		if pack := a.list.places[i].pack; !slices.Contains(packs, pack) {
			packs = append(packs, pack)
		}
	}
	return packs
}

// Prefer implements sandbox.Arrival.
func (a *arrival) Prefer(off, n int64) {
	if off < 0 || n <= 0 || off >= a.list.Bytes {
		return
	}
	packs := a.packsOf(off, min(off+n, a.list.Bytes))
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, i := range slices.Backward(packs) {
		if a.packs[i].here {
			continue
		}
		a.most = 1
		if !a.packs[i].begun {
			a.urgent = append(a.urgent, i)
		}
	}
	a.more.Broadcast()
}

// ReadAt implements sandbox.Arrival.
func (a *arrival) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, sandbox.Errorf(sandbox.Invalid, "a read at %d", off)
	}
	needed := a.packsOf(off, min(off+int64(len(p)), a.list.Bytes))
	for _, done := range a.endsOf(needed) {
		<-done
	}
	if err := a.missing(needed); err != nil {
		return 0, err
	}
	return io.NewSectionReader(a.file, 0, a.list.Bytes).ReadAt(p, off)
}

// endsOf returns channels that are closed at the ends of the packs that are not here.
func (a *arrival) endsOf(packs []int) (ends []chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, i := range packs {
		p := &a.packs[i]
		if p.here || a.failed != nil {
			continue
		}
		if p.done == nil {
			p.done = make(chan struct{})
		}
		ends = append(ends, p.done)
	}
	return ends
}

// missing returns why a pack is not here; nil if all are.
func (a *arrival) missing(packs []int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, i := range packs {
		if !a.packs[i].here {
			return a.failed
		}
	}
	return nil
}

// startable brings a state so far to the host that Boots can start from it.
func (e *Engine) startable(ctx context.Context, s *state) error {
	arriver, can := e.inner.(sandbox.Arriver)
	for ctx.Err() == nil {
		e.mu.Lock()
		arrives, late := s.arrives, can && s.late()
		e.mu.Unlock()
		if arrives != nil {
			if begun, err := arrives.await(ctx); begun || err != nil {
				return err
			}
			continue
		}
		if !late {
			return e.back(ctx, s)
		}
		switch err := e.arrive(ctx, arriver, s); {
		case errors.Is(err, sandbox.Unsupported):
			e.mu.Lock()
			s.whole = true
			e.mu.Unlock()
		case !errors.Is(err, errMeanwhile):
			return err
		}
	}
	return ctx.Err()
}

// late reports whether Boots may start from a state before all of it is on the host. The caller
// holds Engine.mu.
func (s *state) late() bool { return s.Away && !s.spoiled && !s.whole && !s.Deleting }

// errMeanwhile says that the state changed while its lock was awaited.
var errMeanwhile = errors.New("another caller was quicker")

// arrive begins the arrival of a state, in its turn. It returns errMeanwhile if the state needs
// none any more.
func (e *Engine) arrive(ctx context.Context, arriver sandbox.Arriver, s *state) error {
	unlock, err := e.lock(ctx, s)
	if err != nil {
		return err
	}
	defer unlock()
	e.mu.Lock()
	other := s.arrives != nil || !s.late()
	prefix, earlier := s.prefix(), s.Arriving
	e.mu.Unlock()
	if other {
		return errMeanwhile
	}
	if here, err := e.isHere(ctx, s); here || err != nil { // after an interrupted eviction or arrival
		return cmp.Or(err, errMeanwhile)
	}
	release := func() {}
	if !earlier { // a state that Boots may need already does not wait
		select { // before the turn, which others want
		case e.arriving <- struct{}{}:
			release = func() { <-e.arriving }
		case <-ctx.Done():
			return ctx.Err()
		}
		turn, err := e.fetchTurn(ctx)
		if err != nil {
			release()
			return err
		}
		defer turn()
	}
	content, err := e.contentOf(ctx, prefix, s.Name, release)
	if err == nil {
		_, err = e.beginArrival(ctx, arriver, s, content)
	}
	if errors.Is(err, sandbox.Conflict) { // it arrived while it was looked for
		if here, _ := e.isHere(ctx, s); here {
			return errMeanwhile
		}
	}
	if err == nil || errors.Is(err, sandbox.Unsupported) {
		return err
	}
	return e.notFetched(ctx, s, absent, err)
}

// isHere reports whether all of a state is on the host, and then records it. The caller holds
// the lock.
func (e *Engine) isHere(ctx context.Context, s *state) (bool, error) {
	names, err := e.inner.ListSaved(ctx)
	if err != nil || !slices.Contains(names, s.Name) {
		return false, err
	}
	return true, e.change(s, false, func() { s.setAway(false) })
}

// beginArrival begins to bring a state to the host. The caller holds the lock, or the state is
// not known to others.
func (e *Engine) beginArrival(ctx context.Context, arriver sandbox.Arriver, s *state, content *arrival) (saved sandbox.Saved, err error) {
	arrives := &arriving{begun: make(chan struct{}), done: make(chan struct{})}
	e.mu.Lock()
	earlier := s.Arriving
	s.arrives, s.givenUp = arrives, false
	s.holds++
	e.mu.Unlock()
	end := func(err error) {
		content.close()
		e.endArrival(s, arrives, func() { s.setAway(err != nil) })
	}
	fail := func() {
		content.close()
		// The Boots of an earlier arrival still need it.
		e.endArrival(s, arrives, func() { s.Arriving = earlier && !e.resumed })
	}
	// A process that finds this continues: see resumeArrivals.
	if err := e.change(s, false, func() { s.Arriving = true }); err != nil {
		fail()
		return saved, err
	}
	began := time.Now()
	saved, err = arriver.ArriveSaved(ctx, s.Name, content, func(err error) { e.arrived(s, began, err, end) })
	if err != nil {
		fail()
		return saved, trusted(content.list.Name, err)
	}
	content.needed.Store(true)
	close(arrives.begun)
	return saved, nil
}

// arriving is an arrival in progress of a state.
type arriving struct {
	begun chan struct{} // closed when Boots can start from it
	done  chan struct{} // closed at its end
}

// await waits until Boots can start from the state, or the arrival has ended.
func (a *arriving) await(ctx context.Context) (begun bool, err error) {
	select {
	case <-a.begun:
		return true, nil
	case <-a.done:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// contentOf begins to fetch the copy of a state. It calls release as newArrival does.
func (e *Engine) contentOf(ctx context.Context, prefix, name string, release func()) (*arrival, error) {
	key, err := e.keys.at(ctx, prefix)
	if err != nil {
		release()
		return nil, err
	}
	l, err := e.listOf(ctx, key, name)
	if err != nil {
		release()
		return nil, err
	}
	return e.newArrival(key, l, release)
}

// arrived ends an arrival from which Boots may have started.
func (e *Engine) arrived(s *state, began time.Time, err error, end func(error)) {
	ctx := context.Background()
	e.mu.Lock()
	group, given := s.Group, s.Deleting || s.givenUp
	s.whole = err != nil && !given // the next fetch says what is wrong with the copy
	e.mu.Unlock()
	switch {
	case given:
	case err != nil:
		_ = e.notFetched(ctx, s, absent, err)
	default:
		e.fetched(ctx, s, false, time.Since(began))
		e.shareFetched(ctx, s.Name, group)
	}
	if given {
		err = errGivenUp // nothing of it is here
	}
	end(err)
	e.poke()
}

// errGivenUp ends the arrival of a state that was deleted meanwhile.
var errGivenUp = errors.New("the saved state was deleted")

// endArrival records the end of an arrival, by edit. After the end of Run that is the next process's
// affair.
func (e *Engine) endArrival(s *state, arrives *arriving, edit func()) {
	select {
	case <-e.over:
	default:
		e.noteEnd(s, edit)
	}
	e.mu.Lock()
	s.holds--
	s.arrives = nil
	e.mu.Unlock()
	close(arrives.done)
}

// noteEnd changes the record of a state that does not arrive any more.
func (e *Engine) noteEnd(s *state, edit func()) {
	err := e.change(s, false, edit)
	if err == nil {
		return
	}
	e.cfg.Log.Warn("recording the end of a fetch failed", telemetry.KeySnapshot, s.Name, telemetry.KeyError, err)
	e.mu.Lock()
	e.unsettled = true
	e.mu.Unlock()
}

// awaitWhole waits until a state does not arrive any more. It continues an arrival of an earlier
// process first.
func (e *Engine) awaitWhole(ctx context.Context, s *state) error {
	arrives, err := e.continueArrival(ctx, s)
	if arrives == nil || err != nil {
		return err
	}
	select {
	case <-arrives.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// AwaitArrival implements sandbox.Fetcher.
func (e *Engine) AwaitArrival(ctx context.Context, id string) error {
	if arriver, can := e.inner.(sandbox.Arriver); can {
		return arriver.AwaitArrival(ctx, id)
	}
	return nil
}

// resumeArrivals continues the arrivals of an earlier process, so that the Boots which need
// them keep running. It returns once all are begun, or cannot be.
func (e *Engine) resumeArrivals(ctx context.Context) {
	arriver, can := e.inner.(sandbox.Arriver)
	if !can {
		return
	}
	e.mu.Lock()
	var all []*state
	for _, s := range e.states {
		if s.Arriving && s.arrives == nil {
			all = append(all, s)
		}
	}
	e.mu.Unlock()
	var resuming sync.WaitGroup
	for _, s := range all { // at once: the Engine gives them up soon
		resuming.Go(func() {
			if e.resumeArrival(ctx, arriver, s) || ctx.Err() != nil {
				return
			}
			// Nothing needs it any more.
			e.noteEnd(s, func() { s.Arriving = s.Arriving && s.arrives != nil })
		})
	}
	resuming.Wait()
	e.mu.Lock()
	e.resumed = true
	e.mu.Unlock()
}

// resumeArrival continues one arrival; false if that failed for good.
func (e *Engine) resumeArrival(ctx context.Context, arriver sandbox.Arriver, s *state) bool {
	ctx, cancel := context.WithTimeout(ctx, resumeWithin)
	defer cancel()
	for pause := e.cfg.Retry; ; pause = min(2*pause, fetchAgain) {
		err := e.arrive(ctx, arriver, s)
		switch {
		case err == nil, errors.Is(err, errMeanwhile):
			return true
		case errors.Is(err, sandbox.Unsupported), errors.Is(err, sandbox.Conflict):
			return false
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}

// giveUpWait is how long the deletion of a state waits for Boots that still need the rest.
const giveUpWait = 5 * time.Second

// giveUpArrival ends the arrival of a state that is to be deleted, once no Boot needs it. Its
// packs are needed until then: Unavailable, if that takes long. It continues an arrival of an
// earlier process first.
func (e *Engine) giveUpArrival(ctx context.Context, s *state) error {
	arrives, err := e.continueArrival(ctx, s)
	if arrives == nil || err != nil {
		return err
	}
	if _, err := arrives.await(ctx); err != nil {
		return err
	}
	given := func(up bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if s.arrives == arrives {
			s.givenUp = up
		}
	}
	given(true)
	if err := e.inner.DeleteSaved(ctx, s.Name); err != nil {
		given(false)
		return err
	}
	select {
	case <-arrives.done:
		return nil
	case <-time.After(giveUpWait):
		err := sandbox.Errorf(sandbox.Unavailable, "sandboxes that started from the saved state %s still need the rest of it", s.Name)
		err.RetryAfter = fetchAgain
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// continueArrival returns the arrival of a state; nil if it does not arrive. It begins one again
// that an earlier process began.
func (e *Engine) continueArrival(ctx context.Context, s *state) (*arriving, error) {
	e.mu.Lock()
	earlier := s.arrives == nil && s.Arriving && s.late()
	e.mu.Unlock()
	if arriver, can := e.inner.(sandbox.Arriver); can && earlier {
		switch err := e.arrive(ctx, arriver, s); {
		case errors.Is(err, sandbox.Conflict): // it never can
			e.noteEnd(s, func() { s.Arriving = s.Arriving && s.arrives != nil })
		case err != nil && !errors.Is(err, errMeanwhile) && !errors.Is(err, sandbox.Unsupported):
			return nil, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.arrives, nil
}

// share makes the state name from the copy of another state, whose list is l. The state arrives,
// and has a copy of its own, which shares all packs. Unsupported if it has to be fetched whole.
func (e *Engine) share(ctx context.Context, key *groupKey, l *list, name, group string) (saved sandbox.Saved, err error) {
	arriver, can := e.inner.(sandbox.Arriver)
	if !can {
		return saved, sandbox.Errorf(sandbox.Unsupported, "this host starts from whole states only")
	}
	select {
	case e.arriving <- struct{}{}:
	default:
		return saved, sandbox.Errorf(sandbox.Unsupported, "too many states arrive")
	}
	content, err := e.newArrival(key, l, func() { <-e.arriving })
	if err != nil {
		return saved, err
	}
	s := &state{record: record{Name: name, Group: group, Bytes: l.Bytes, Prefix: key.prefix, Away: true}, used: time.Now(), coming: true}
	if !e.reserve(s) {
		content.close()
		return saved, sandbox.Errorf(sandbox.Conflict, "another state was saved as %s", name)
	}
	own := *l
	own.Name = name
	// First, because parts that arrive use the disks that it waits for.
	if err := e.registerShared(ctx, key, &own, s); err != nil {
		content.close()
		return saved, errors.Join(err, e.forget(s))
	}
	if saved, err = e.beginArrival(ctx, arriver, s, content); err != nil {
		return saved, errors.Join(err, e.forget(s))
	}
	if err := e.adopt(s); err != nil {
		undo := context.WithoutCancel(ctx)
		return saved, errors.Join(err, e.giveUpArrival(undo, s), e.inner.DeleteSaved(undo, name), e.forget(s)) // all of it may be here
	}
	return saved, nil
}

// reserve adds a state that has no copy yet, so that no other one gets its name; false if one
// has it.
func (e *Engine) reserve(s *state) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.states[s.Name] != nil {
		return false
	}
	e.states[s.Name] = s
	return true
}

// adopt makes a reserved state one that others see: it has a copy.
func (e *Engine) adopt(s *state) error {
	err := e.change(s, true, func() { s.Copied = true })
	if err == nil {
		e.mu.Lock()
		s.coming = false
		e.mu.Unlock()
	}
	return err
}

// registerShared records that the copy of s is complete, with the packs of other copies. If it
// fails, the state can still be fetched whole, which needs neither records nor a writable store;
// the deletion of the Snapshot releases the packs.
func (e *Engine) registerShared(ctx context.Context, key *groupKey, l *list, s *state) error {
	unsupported := func(cause error) error {
		return sandbox.Errorf(sandbox.Unsupported, "the saved state %s must be fetched whole", s.Name).WithCause(cause)
	}
	attempt, err := e.cfg.Records.BeginCopy(ctx, e.cfg.Node, sandbox.CopyRef{Snapshot: s.Name, Prefix: key.prefix})
	if err != nil {
		return unsupported(err)
	}
	u := &upload{engine: e, ctx: ctx, state: s, key: key, attempt: attempt}
	for packs := range slices.Chunk(l.Packs, sandbox.MaxPacks) {
		refused, err := u.register(ctx, packs, true)
		if err == nil && len(refused) > 0 {
			err = fmt.Errorf("%d packs are being deleted", len(refused))
		}
		if err != nil {
			return unsupported(err)
		}
	}
	if err := u.putList(ctx, l); err != nil {
		return unsupported(err)
	}
	if err := e.cfg.Records.CompleteCopy(ctx, e.cfg.Node, attempt); err != nil {
		return unsupported(err)
	}
	return nil
}
