package sandboxbuild

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"
)

const (
	maxLine  = 4 << 10 // bytes of a line of a log
	maxLog   = 1 << 20 // bytes of a log
	maxLines = 20_000
)

// Level is the severity of a Line.
type Level string

// The levels, in ascending order.
const (
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Line is a line of a build's log.
type Line struct {
	At    time.Time
	Level Level
	Text  string
	Step  string // as in a Failure
}

// build is one build of this process.
type build struct {
	done chan struct{} // closed when it has ended

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with every line and at the end
	record  Build         // its ID, Tenant and Draft never change
	lines   []Line
	size    int
	cut     bool // the log is full
	stop    context.CancelCauseFunc
}

func newBuild(record Build) *build {
	return &build{record: record, done: make(chan struct{}), changed: make(chan struct{})}
}

func (b *build) snapshot() Build {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record
}

// view returns the record and the log; lines are append-only.
func (b *build) view() (Build, []Line) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record, b.lines[:len(b.lines):len(b.lines)]
}

func (b *build) begin(stop context.CancelCauseFunc, source string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record.State, b.record.Source, b.stop = Building, source, stop
}

// made records the result.
func (b *build) made(version string, size int64, cached bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record.Version, b.record.SizeBytes, b.record.Cached = version, size, cached
}

// wakeFollowers wakes the followers of the log. build.mu is held.
func (b *build) wakeFollowers() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// cancel cancels a running build, and reports whether it was running.
func (b *build) cancel() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.record.State != Building {
		return false
	}
	b.stop(errCancelled)
	return true
}

// over returns the final record and the log of a build that has just ended, before it is
// visible to clients; f is nil if it succeeded.
func (b *build) over(f *Failure) (Build, []Line) {
	record, lines := b.view()
	record.State, record.EndedAt, record.Failure = Ready, time.Now().UTC(), f
	if f != nil {
		record.State = Failed
	}
	return record, lines
}

// end makes the final record visible. It is called once.
func (b *build) end(over Build) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record.State, b.record.EndedAt, b.record.Failure = over.State, over.EndedAt, over.Failure // the other fields are read without the lock
	b.wakeFollowers()
	close(b.done)
}

// print adds a line to the log, within its bounds.
func (b *build) print(level Level, step, text string) {
	if len(text) > maxLine {
		text = text[:maxLine] + " ..."
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.wakeFollowers()
	if b.cut && level != Error {
		return
	}
	if !b.cut && (b.size+len(text) > maxLog || len(b.lines) >= maxLines) {
		b.cut = true
		b.lines = append(b.lines, Line{time.Now().UTC(), Warn, "the log is full: later lines are left out", step})
		if level != Error {
			return
		}
	}
	b.size += len(text)
	b.lines = append(b.lines, Line{time.Now().UTC(), level, strings.ToValidUTF8(text, "\uFFFD"), step})
}

// stream splits one stream of output into lines. The last may lack a newline: see flush.
type stream struct {
	level   Level
	print   func(Level, string)
	partial []byte
	last    []string // lines, for an error
}

const lastLines = 5

func (s *stream) take(p []byte) {
	s.partial = append(s.partial, p...)
	for {
		line, rest, whole := bytes.Cut(s.partial, []byte("\n"))
		if !whole && len(line) < maxLine {
			return
		}
		s.line(string(line))
		s.partial = append(s.partial[:0], rest...)
	}
}

func (s *stream) flush() {
	s.line(string(s.partial))
	s.partial = nil
}

func (s *stream) line(text string) {
	if text = strings.TrimRight(text, "\r"); strings.TrimSpace(text) == "" {
		return
	}
	if s.last = append(s.last, text); len(s.last) > lastLines {
		s.last = s.last[1:]
	}
	s.print(s.level, text)
}
