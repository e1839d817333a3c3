package processes

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// spoolLimit is how many bytes of one Process's output are kept.
	spoolLimit = 16 << 20
	// segmentSize is how many bytes are dropped at a time.
	segmentSize = 256 << 10
	// segmentRuns is how often a segment may change between the streams: its index
	// must stay smaller than its data.
	segmentRuns = 4096
	// smallSegment is how many bytes a segment holds before it gets a file.
	smallSegment = 8 << 10
	// patience is how long a Process waits for its followers before output that
	// they have not read is dropped.
	patience = 10 * time.Second
	// returnTime is how long an owned spool keeps unread output after its last
	// owner has left.
	returnTime = time.Minute
	// overflow is how much more than spoolLimit an owned spool may hold for a
	// Process that has just ended, in bytes: more than its pipes can hold.
	overflow = 1 << 20
	// lookEvery is how often a writer that waits for owners checks the shared
	// budget.
	lookEvery = time.Second
)

// A piece is one write of one stream.
type piece struct {
	offset int64 // of its first byte, over both streams
	stderr bool
	data   []byte
}

// spool is the output of one Process: both streams in order of arrival, with
// offsets that count from its start. Its methods are safe for concurrent use.
type spool struct {
	budget *budget
	// owned says that output which an owner has not read is kept: a writer waits
	// for the owners, however slow they are, and for returnTime while no owner
	// follows.
	owned bool

	mu       sync.Mutex
	segments []*segment
	start    int64              // offset of the first byte that is kept
	end      int64              // total bytes written
	changed  chan struct{}      // closed at the next change; nil: no waiter
	follows  map[*follower]bool // followers that a writer waits for
	hurried  bool               // writers do not wait
	closed   bool               // further writes are dropped
	left     time.Time          // since when no owner has followed
	owners   int                // owners that follow now
	came     int                // owners that have ever followed
	told     bool               // an owner has read it to its end
}

// segment is one stretch of output. Its data is in small up to smallSegment bytes,
// then in a file.
type segment struct {
	start int64
	size  int
	runs  []uint32 // lengths in order of arrival, doubled, odd for stderr
	small []byte
	fd    int // -1: none
}

// append adds output of one stream. It waits for followers that have not read the
// output that it has to drop: up to patience, and for owners as owned says.
func (s *spool) append(stderr bool, data []byte) {
	for len(data) > 0 {
		n := min(len(data), segmentSize)
		s.makeRoom(n)
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return
		}
		n = s.write(stderr, data[:n])
		s.wake()
		s.mu.Unlock()
		if s.budget.exceeded() {
			s.budget.shrink()
		}
		data = data[n:]
	}
}

// write appends as much of data as fits to the last segment, and returns how much
// that was. Data is dropped at once if no file can be created for it. The lock is
// held.
func (s *spool) write(stderr bool, data []byte) int {
	var last *segment
	if n := len(s.segments); n > 0 {
		last = s.segments[n-1]
	}
	if last == nil || last.size == segmentSize || len(last.runs) == segmentRuns {
		last = &segment{start: s.end, fd: -1}
		s.segments = append(s.segments, last)
	}
	data = data[:min(len(data), segmentSize-last.size)]
	if err := last.write(data); err != nil {
		s.end += int64(len(data))
		for len(s.segments) > 0 {
			s.budget.add(-s.dropOldest())
		}
		s.start = s.end
		return len(data)
	}
	last.note(stderr, len(data))
	s.end += int64(len(data))
	s.budget.add(int64(len(data)))
	return len(data)
}

// note adds n bytes of a stream to the index.
func (g *segment) note(stderr bool, n int) {
	odd := uint32(0)
	if stderr {
		odd = 1
	}
	g.size += n
	if k := len(g.runs); k > 0 && g.runs[k-1]&1 == odd {
		g.runs[k-1] += uint32(n) << 1
		return
	}
	g.runs = append(g.runs, uint32(n)<<1|odd)
}

// write appends data.
func (g *segment) write(data []byte) error {
	if g.fd < 0 && g.size+len(data) <= smallSegment {
		g.small = append(g.small, data...)
		return nil
	}
	if g.fd < 0 {
		fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
		if err != nil {
			return fmt.Errorf("make a file for output: %w", err)
		}
		g.fd = fd
		if err := writeAt(fd, g.small, 0); err != nil {
			return err
		}
		g.small = nil
	}
	return writeAt(g.fd, data, int64(g.size))
}

func writeAt(fd int, data []byte, at int64) error {
	for len(data) > 0 {
		n, err := unix.Pwrite(fd, data, at)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("keep output: %w", err)
		}
		data, at = data[n:], at+int64(n)
	}
	return nil
}

// read returns size bytes from an offset within the segment.
func (g *segment) read(at, size int) ([]byte, error) {
	if g.fd < 0 {
		return append([]byte(nil), g.small[at:at+size]...), nil
	}
	out := make([]byte, size)
	for done := 0; done < size; {
		n, err := unix.Pread(g.fd, out[done:], int64(at+done))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, fmt.Errorf("read output: %w", err)
		case n == 0:
			return nil, fmt.Errorf("read output: it ends early")
		default:
			done += n
		}
	}
	return out, nil
}

func (g *segment) free() {
	if g.fd >= 0 {
		unix.Close(g.fd)
		g.fd = -1
	}
	g.small = nil
}

// makeRoom drops the oldest output until n more bytes are within the limit, once
// the followers have read it or the wait for them is over.
func (s *spool) makeRoom(n int) {
	var late <-chan time.Time
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.segments) > 0 && s.overfull(n) {
		if owed, until := s.owed(); owed && !s.hurried {
			s.awaitOwners(until)
			continue
		}
		if s.awaited() {
			if late == nil {
				t := time.NewTimer(patience)
				defer t.Stop()
				late = t.C
			}
			changed := s.change()
			s.mu.Unlock()
			select {
			case <-changed:
			case <-late:
				s.giveUp()
			}
			s.mu.Lock()
			continue
		}
		s.budget.add(-s.dropOldest())
	}
}

// overfull reports whether output must be dropped for n more bytes. The lock is
// held.
func (s *spool) overfull(n int) bool {
	limit := int64(spoolLimit)
	if s.owned && s.hurried {
		limit += overflow
	}
	return s.end-s.start+int64(n) > limit || s.owned && !s.hurried && s.budget.exceeded()
}

// owed reports whether the oldest segment must be kept for an owner. It must be
// kept at most until a time; the zero time means no limit. The lock is held, and a
// segment exists.
func (s *spool) owed() (owed bool, until time.Time) {
	if !s.owned || s.told {
		return false, until
	}
	oldest := s.segments[0]
	for f := range s.follows {
		if f.owner && f.next < oldest.start+int64(oldest.size) {
			return true, until
		}
	}
	if s.owners > 0 {
		return false, until
	}
	until = s.left.Add(returnTime)
	return time.Now().Before(until), until
}

// awaitOwners waits for a change of this spool, at most until that time and at most
// lookEvery. After a timeout it enforces the budget. The lock is held, but released
// during the wait.
func (s *spool) awaitOwners(until time.Time) {
	wait := lookEvery
	if !until.IsZero() {
		wait = min(wait, time.Until(until))
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	changed := s.change()
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
	case <-t.C:
		if s.budget.exceeded() {
			s.budget.shrink()
		}
	}
}

// awaited reports whether a follower still has to read some of the oldest
// segment. The lock is held.
func (s *spool) awaited() bool {
	if s.hurried {
		return false
	}
	oldest := s.segments[0]
	for f := range s.follows {
		if !f.owner && f.next < oldest.start+int64(oldest.size) {
			return true
		}
	}
	return false
}

// giveUp stops waiting for the followers that are behind.
func (s *spool) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.segments) == 0 {
		return
	}
	oldest := s.segments[0]
	for f := range s.follows {
		if !f.owner && f.next < oldest.start+int64(oldest.size) {
			delete(s.follows, f)
		}
	}
}

// dropOldest drops one segment and returns how many bytes that freed. The lock is
// held.
func (s *spool) dropOldest() int64 {
	g := s.segments[0]
	s.segments[0] = nil
	s.segments = s.segments[1:]
	s.start = g.start + int64(g.size)
	g.free()
	return int64(g.size)
}

// hurry has writers no longer wait for followers.
func (s *spool) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hurried = true
	s.wake()
}

// seal has further writes dropped.
func (s *spool) seal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.hurried = true, true
	s.wake()
}

// poke wakes the followers.
func (s *spool) poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake()
}

// followers returns how many owners follow now, and how many ever have.
func (s *spool) followers() (now, ever int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owners, s.came
}

// delivered reports whether an owner has read the output to its end.
func (s *spool) delivered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told
}

// close frees everything; further writes are dropped.
func (s *spool) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	freed := int64(0)
	for len(s.segments) > 0 {
		freed += s.dropOldest()
	}
	s.closed, s.hurried = true, true
	s.wake()
	s.budget.add(-freed)
}

// change returns a channel that is closed at the next change. The lock is held.
func (s *spool) change() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// wake wakes all waiters. The lock is held.
func (s *spool) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// bounds returns the offset of the first byte that is kept, and how many were
// written.
func (s *spool) bounds() (start, end int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start, s.end
}

// kept returns how many bytes are kept.
func (s *spool) kept() int64 {
	start, end := s.bounds()
	return end - start
}

// read returns at most size bytes from an offset on, or from the first byte that is
// kept, and the offset to read next.
func (s *spool) read(from int64, size int) (pieces []piece, next int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readLocked(from, size)
}

func (s *spool) readLocked(from int64, size int) (pieces []piece, next int64, err error) {
	from = min(max(from, s.start), s.end)
	for _, g := range s.segments {
		if size <= 0 {
			break
		}
		if from >= g.start+int64(g.size) {
			continue
		}
		at := int(from - g.start)
		n := min(size, g.size-at)
		data, err := g.read(at, n)
		if err != nil {
			return nil, from, err
		}
		pieces = g.split(pieces, at, data)
		from, size = from+int64(n), size-n
	}
	return pieces, from, nil
}

// split cuts data, which begins at an offset within the segment, into pieces by
// stream.
func (g *segment) split(pieces []piece, at int, data []byte) []piece {
	begin := 0
	for _, r := range g.runs {
		end := begin + int(r>>1)
		if len(data) == 0 {
			break
		}
		if end > at {
			n := min(len(data), end-at)
			pieces = append(pieces, piece{offset: g.start + int64(at), stderr: r&1 == 1, data: data[:n:n]})
			data, at = data[n:], at+n
		}
		begin = end
	}
	return pieces
}

// A follower reads continuously; the Process waits for it before it drops output
// that the follower has not read. Only one goroutine at a time may use it.
type follower struct {
	spool *spool
	owner bool
	next  int64 // guarded by spool.mu
}

// follow begins at an offset; a negative one counts from the end. An offset beyond
// the end begins at the end. The caller ends it by leave.
func (s *spool) follow(from int64) *follower { return s.followAs(from, false) }

// followAs is follow, as an owner or not.
func (s *spool) followAs(from int64, owner bool) *follower {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from < 0 {
		from = max(s.end+from, s.start)
	}
	f := &follower{spool: s, owner: owner, next: min(from, s.end)}
	if owner {
		s.owners++
		s.came++
	}
	if s.follows == nil {
		s.follows = map[*follower]bool{}
	}
	s.follows[f] = true
	return f
}

func (f *follower) leave() {
	f.spool.mu.Lock()
	defer f.spool.mu.Unlock()
	delete(f.spool.follows, f)
	if f.owner {
		f.spool.owners--
		f.spool.left = time.Now()
	}
	f.spool.wake()
}

// done records that an owner has read everything and received the end.
func (f *follower) done() {
	f.spool.mu.Lock()
	defer f.spool.mu.Unlock()
	f.spool.told = true
}

// take returns the next output, and a channel that is closed when more arrives; nil
// when more is available already.
func (f *follower) take(size int) (pieces []piece, next int64, more <-chan struct{}, err error) {
	s := f.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	pieces, f.next, err = s.readLocked(f.next, size)
	if len(pieces) > 0 && s.changed != nil {
		s.wake() // a writer may wait for this
	}
	if f.next == s.end {
		more = s.change()
	}
	return pieces, f.next, more, err
}

// drop drops the output that is kept, or only the oldest segment, except output
// that is owed to an owner. It returns how many bytes that freed.
func (s *spool) drop(all bool) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	freed := int64(0)
	for len(s.segments) > 0 {
		if owed, _ := s.owed(); owed {
			break
		}
		freed += s.dropOldest()
		if !all {
			break
		}
	}
	s.budget.add(-freed)
	return freed
}

// budget is how many bytes all spools together may keep.
type budget struct {
	limit  int64
	shrink func() // makes the spools drop output beyond limit
	used   atomic.Int64
}

func (b *budget) add(n int64) { b.used.Add(n) }

func (b *budget) exceeded() bool { return b.used.Load() > b.limit }
