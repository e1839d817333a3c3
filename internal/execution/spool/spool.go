// Package spool buffers the output of executions until it is sent to a client: a
// little in memory and the rest in files without names. Many large answers that are
// not read thus take disk, within a budget, and not memory.
package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// inMemory is the number of bytes of a Spool that stay in memory.
	inMemory = 32 << 10
	// step is the number of bytes of the budget that a Spool takes at a time.
	step = 1 << 20
	// first is the number of bytes that each owner is guaranteed.
	first = 8 << 20
	// patience is the timeout of Enter.
	patience = 10 * time.Second
	// retryAfter is the Retry-After of a wait that timed out.
	retryAfter = 5 * time.Second
	// minFree is the space of the disk that stays free, in bytes.
	minFree = 512 << 20
)

// ErrFull is returned by a write beyond the budget.
var ErrFull = errors.New("no room for more output")

// A Budget bounds the bytes in files of all Spools, in total and for each owner. An
// owner's first bytes are guaranteed, even if other owners use the rest. Its methods
// are safe for concurrent use.
type Budget struct {
	dir        string
	total, own int64

	mu     sync.Mutex
	used   int64
	owners map[string]int64 // bytes of each owner that uses any
	freed  chan struct{}    // closed and replaced when bytes are released
}

// NewBudget returns a Budget of total bytes in files in a folder, of which one
// owner gets own at most. An empty folder is the system's for temporary files.
func NewBudget(dir string, total, own int64) *Budget {
	if dir == "" {
		dir = os.TempDir()
	}
	return &Budget{dir: dir, total: total, own: own, owners: map[string]int64{}, freed: make(chan struct{})}
}

// Used returns the number of bytes in use.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Enter waits until owner has room for need bytes, the most that one execution
// prints. It reserves nothing. It returns Exhausted when the wait takes too long. A
// nil Budget always has room.
func (b *Budget) Enter(ctx context.Context, owner string, need int64) error {
	if b == nil {
		return nil
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		b.mu.Lock()
		room, freed := b.room(owner, need), b.freed
		b.mu.Unlock()
		if room {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			err := sandbox.Errorf(sandbox.Exhausted, "too much output of your executions waits to be read; read the answers, or request less with max_output_bytes")
			err.RetryAfter = retryAfter
			return err
		}
	}
}

// room reports whether owner may take n more bytes. b.mu is held.
func (b *Budget) room(owner string, n int64) bool {
	mine := b.owners[owner] + n
	return mine <= first || mine <= b.own && b.used+n <= b.total
}

// take takes n more bytes for owner, and reports whether it could.
func (b *Budget) take(owner string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.room(owner, n) {
		return false
	}
	b.used += n
	b.owners[owner] += n
	return true
}

func (b *Budget) giveBack(owner string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.owners[owner] -= n; b.owners[owner] <= 0 {
		delete(b.owners, owner)
	}
	close(b.freed)
	b.freed = make(chan struct{})
}

// New returns an empty Spool of an owner. With a nil Budget the Spool keeps all bytes
// in memory.
func (b *Budget) New(owner string) Spool { return Spool{budget: b, owner: owner} }

// A Spool is an append-only buffer. It is not safe for concurrent use, except for
// reading after the last write. The zero value keeps all bytes in memory.
type Spool struct {
	budget *Budget // nil: all bytes stay in memory
	owner  string
	head   []byte   // the first bytes
	file   *os.File // the bytes after head; nil: none
	size   int64    // of both
	taken  int64    // bytes of the budget
}

// Beside returns an empty Spool of the same owner.
func (s *Spool) Beside() *Spool { return &Spool{budget: s.budget, owner: s.owner} }

// Len returns the number of bytes.
func (s *Spool) Len() int { return int(s.size) }

// Write appends p, or returns ErrFull when the budget has no room for it.
func (s *Spool) Write(p []byte) (int, error) {
	n := len(p)
	if room := inMemory - len(s.head); s.budget == nil || n <= room {
		s.head = append(s.head, p...)
		s.size += int64(n)
		return n, nil
	} else if room > 0 {
		if err := s.reserve(int64(n - room)); err != nil {
			return 0, err
		}
		s.head = append(s.head, p[:room]...)
		s.size += int64(room)
		p = p[room:]
	} else if err := s.reserve(int64(n)); err != nil {
		return 0, err
	}
	if _, err := s.file.WriteAt(p, s.size-int64(len(s.head))); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrFull, err)
	}
	s.size += int64(len(p))
	return n, nil
}

// WriteString is Write of a string.
func (s *Spool) WriteString(text string) (int, error) { return s.Write([]byte(text)) }

// reserve ensures that the file has budget for n more bytes.
func (s *Spool) reserve(n int64) error {
	want := s.size - int64(len(s.head)) + n
	if more := (want - s.taken + step - 1) / step * step; more > 0 {
		if !s.budget.take(s.owner, more) {
			return ErrFull
		}
		s.taken += more
		if err := s.open(); err != nil {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
	}
	return nil
}

// open makes the file, if it is not open yet, on a disk with enough free space.
func (s *Spool) open() error {
	free, err := freeAt(s.budget.dir)
	if err != nil {
		return err
	}
	if free < minFree {
		return errors.New("the disk is nearly full")
	}
	if s.file != nil {
		return nil
	}
	f, err := os.CreateTemp(s.budget.dir, ".spool-")
	if err != nil {
		return err
	}
	if err := os.Remove(f.Name()); err != nil {
		return errors.Join(err, f.Close())
	}
	s.file = f
	return nil
}

// Reader returns a reader of all bytes.
func (s *Spool) Reader() io.Reader { return s.Section(0, s.size) }

// Section returns a reader of n bytes from an offset on.
func (s *Spool) Section(from, n int64) io.Reader { return io.NewSectionReader(s, from, n) }

// ReadAt implements io.ReaderAt.
func (s *Spool) ReadAt(p []byte, at int64) (n int, err error) {
	if at < int64(len(s.head)) {
		n = copy(p, s.head[at:])
	}
	if n == len(p) {
		return n, nil
	}
	if s.file == nil {
		return n, io.EOF
	}
	more, err := s.file.ReadAt(p[n:], at+int64(n)-int64(len(s.head)))
	return n + more, err
}

// String returns all bytes. The caller must have memory for them.
func (s *Spool) String() string {
	var all bytes.Buffer
	all.Grow(int(s.size))
	_, _ = all.ReadFrom(s.Reader()) // bytes that the disk cannot return are missing
	return all.String()
}

// Close discards all bytes. It may be called more than once, and on nil.
func (s *Spool) Close() {
	if s == nil {
		return
	}
	if s.file != nil {
		_ = s.file.Close() // the file has no name, so its space is freed
		s.file = nil
	}
	if s.taken > 0 {
		s.budget.giveBack(s.owner, s.taken)
		s.taken = 0
	}
	s.head, s.size = nil, 0
}
