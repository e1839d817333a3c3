package builder

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// Files of a build, in one folder.
const (
	recordSuffix  = ".json"
	logSuffix     = ".log"
	archiveSuffix = ".archive"
)

const (
	maxLine   = 4 << 10  // bytes of a line of a log
	maxLog    = 16 << 20 // bytes of a log
	maxRecord = 1 << 20
)

// build is one build and its log.
type build struct {
	path string // of its files, without a suffix
	ctx  context.Context
	stop context.CancelCauseFunc
	done chan struct{} // closed at the end of the build

	mu      sync.Mutex
	record  sandbox.TemplateBuild // its ID and Tenant never change
	changed chan struct{}         // closed and replaced on every change
	log     *os.File              // nil before the first line and after the last
	logged  int64                 // bytes of it
	stage   string                // last printed stage
	partial []byte                // incomplete line of output
}

func (b *build) snapshot() sandbox.TemplateBuild {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record
}

// change edits the record and notifies followers.
func (b *build) change(how func(*sandbox.TemplateBuild)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	how(&b.record)
	b.tell()
}

func (b *build) tell() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *build) end(state sandbox.BuildState, how func(*sandbox.TemplateBuild)) {
	b.change(func(r *sandbox.TemplateBuild) {
		r.State, r.EndedAt = state, time.Now().UTC()
		how(r)
	})
}

// write saves the record.
func (b *build) write() error {
	body, err := json.Marshal(b.snapshot())
	if err != nil {
		return fmt.Errorf("write the record of a build: %w", err)
	}
	tmp := b.path + ".new"
	if err := os.WriteFile(tmp, body, 0o600); err != nil {
		return fmt.Errorf("write the record of a build: %w", err)
	}
	if err := os.Rename(tmp, b.path+recordSuffix); err != nil {
		return fmt.Errorf("write the record of a build: %w", err)
	}
	return nil
}

func readRecord(path string) (r sandbox.TemplateBuild, err error) {
	f, err := os.Open(path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	err = json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&r)
	return r, err
}

// say records the progress of a build: every step in the record, each new stage in the
// log.
func (b *build) say(p template.Progress) {
	b.change(func(r *sandbox.TemplateBuild) { r.Progress = p.String() })
	b.mu.Lock()
	stage := p.Stage + ": " + p.Detail
	news := stage != b.stage
	b.stage = stage
	b.mu.Unlock()
	if news {
		b.print(stage)
	}
}

// logLine is a line of the log's file.
type logLine struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// print adds a line to the log. Lines beyond the bounds are dropped; a failed write does
// not fail the build.
func (b *build) print(text string) { b.line(text, maxLog) }

// conclude is print for the end of a build, with extra room beyond maxLog.
func (b *build) conclude(text string) { b.line(text, maxLog+4*maxLine) }

func (b *build) line(text string, most int64) {
	if len(text) > maxLine {
		text = text[:maxLine] + " ..."
	}
	body, err := json.Marshal(logLine{time.Now().UTC(), strings.ToValidUTF8(text, "\uFFFD")})
	if err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.log == nil {
		if b.log, err = os.OpenFile(b.path+logSuffix, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
			return
		}
	}
	if b.logged+int64(len(body)) >= most {
		return
	}
	n, _ := b.log.Write(append(body, '\n'))
	b.logged += int64(n)
	b.tell()
}

func (b *build) closeLog() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.log != nil {
		b.log.Close()
		b.log = nil
	}
}

// output returns a writer for the output of the build's programs.
func (b *build) output() io.Writer { return (*output)(b) }

type output build

// Write never fails. It is called by one goroutine at a time.
func (o *output) Write(p []byte) (int, error) {
	b := (*build)(o)
	b.partial = append(b.partial, p...)
	for {
		line, rest, whole := bytes.Cut(b.partial, []byte("\n"))
		if !whole && len(line) < maxLine {
			return len(p), nil
		}
		if text := strings.TrimRight(string(line), "\r"); text != "" {
			b.print(text)
		}
		b.partial = append(b.partial[:0], rest...)
	}
}

// read calls each with the lines of the log from an offset on.
func (b *build) read(ctx context.Context, from int64, follow bool, each func(sandbox.BuildLine) error) error {
	b.mu.Lock()
	size := b.logged
	b.mu.Unlock()
	if from < 0 || from > size {
		return sandbox.Errorf(sandbox.Invalid, "from must be 0 or the next of a line before")
	}
	for {
		b.mu.Lock()
		changed, end, over := b.changed, b.logged, b.record.State.Final()
		b.mu.Unlock()
		next, err := b.lines(from, end, each)
		if err != nil {
			return err
		}
		if from = next; !follow || over {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lines reads the log's file from one offset to another.
func (b *build) lines(from, end int64, each func(sandbox.BuildLine) error) (next int64, err error) {
	if from == end {
		return from, nil
	}
	f, err := os.Open(b.path + logSuffix)
	if errors.Is(err, fs.ErrNotExist) { // the build was removed meanwhile
		return end, nil
	}
	if err != nil {
		return from, fmt.Errorf("read the log of a build: %w", err)
	}
	defer f.Close()
	text := bufio.NewReader(io.NewSectionReader(f, from, end-from))
	for from < end {
		raw, err := text.ReadBytes('\n')
		if err != nil {
			return end, nil // an incomplete write
		}
		var line logLine
		if json.Unmarshal(raw, &line) != nil {
			return from, sandbox.Errorf(sandbox.Invalid, "from must be 0 or the next of a line before")
		}
		from += int64(len(raw))
		if err := each(sandbox.BuildLine{At: line.At, Text: line.Text, Next: from}); err != nil {
			return from, err
		}
	}
	return from, nil
}

// BuildLog implements sandbox.Templates.
func (s *Service) BuildLog(ctx context.Context, tenant sandbox.TenantID, id string, from int64, follow bool, each func(sandbox.BuildLine) error) error {
	b, err := s.find(tenant, id)
	if err != nil {
		return err
	}
	return b.read(ctx, from, follow, each)
}
