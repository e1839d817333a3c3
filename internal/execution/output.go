package execution

import (
	"io"
	"strings"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

// text converts one stream of bytes to valid UTF-8, piece by piece. Invalid bytes become
// U+FFFD; a character split between pieces is joined. text keeps the beginning, up to cap
// bytes and while the spool has room, and counts the rest.
type text struct {
	cap     int
	kept    spool.Spool
	full    bool // kept ends at cap, or just before the character that exceeds it
	dropped int64
	tail    []byte       // an incomplete character
	exact   *spool.Spool // the first cap bytes, if they differ from kept; else nil
}

// known is a part of a stream.
type known struct {
	text  string
	bytes []byte // the original bytes, if they differ from text; else nil
}

// add takes the next piece and returns its text. An incomplete character at the end waits
// for the next piece.
func (t *text) add(piece []byte) known {
	if len(t.tail) > 0 {
		piece = append(t.tail, piece...)
		t.tail = nil
	}
	if n := CutCharacter(piece); n > 0 {
		t.tail = append([]byte(nil), piece[len(piece)-n:]...)
		piece = piece[:len(piece)-n]
	}
	return t.take(piece)
}

// end returns the incomplete character at the end of a stream.
func (t *text) end() known {
	piece := t.tail
	t.tail = nil
	return t.take(piece)
}

func (t *text) take(piece []byte) known {
	if len(piece) == 0 {
		return known{}
	}
	if utf8.Valid(piece) {
		s := string(piece)
		t.keepExact(piece)
		t.keep(s)
		return known{text: s}
	}
	if t.exact == nil && !t.full {
		t.exact = t.kept.Beside()
		if _, err := io.Copy(t.exact, t.kept.Reader()); err != nil {
			t.full = true
		}
	}
	t.keepExact(piece)
	s := strings.ToValidUTF8(string(piece), string(utf8.RuneError))
	t.keep(s)
	return known{text: s, bytes: append([]byte(nil), piece...)}
}

// keepExact keeps the original bytes, if they differ from the text.
func (t *text) keepExact(piece []byte) {
	if t.exact != nil {
		room := max(t.cap-t.exact.Len(), 0)
		if _, err := t.exact.Write(piece[:min(len(piece), room)]); err != nil {
			t.full = true // the text ends where the bytes do
		}
	}
}

// keep keeps the beginning of a text, and counts the rest.
func (t *text) keep(s string) {
	keep := s
	if room := t.cap - t.kept.Len(); t.full {
		keep = ""
	} else if len(s) > room {
		for room > 0 && !utf8.RuneStart(s[room]) {
			room--
		}
		keep, t.full = s[:room], true
	}
	if _, err := t.kept.WriteString(keep); err != nil {
		keep, t.full = "", true
	}
	t.dropped += int64(len(s) - len(keep))
}

// Text converts one stream of bytes, piece by piece, to valid UTF-8. Invalid bytes become
// U+FFFD. The zero value is ready to use.
type Text struct{ text text }

// Add takes the next piece and returns its text. An incomplete character at the end waits
// for the next piece. exact holds the original bytes if any were replaced, else nil.
func (t *Text) Add(piece []byte) (s string, exact []byte) {
	t.text.full = true // it keeps nothing
	k := t.text.add(piece)
	return k.text, k.bytes
}

// Waiting returns the number of bytes of the incomplete character.
func (t *Text) Waiting() int { return len(t.text.tail) }

// End returns the incomplete character at the end of a stream or before a gap.
func (t *Text) End() (s string, exact []byte) {
	k := t.text.end()
	return k.text, k.bytes
}

// CutCharacter returns how many bytes at the end of b are an incomplete character that
// later bytes may complete.
func CutCharacter(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if end := b[len(b)-n:]; utf8.RuneStart(end[0]) {
			if utf8.FullRune(end) {
				return 0
			}
			return n
		}
	}
	return 0
}

// Bounds of the values that a Result keeps of an execution in a context. They hold even
// if the Guest sends more.
const (
	maxValues     = 256
	maxValueBytes = 32 << 20
)

// output collects both streams and the values of an execution, and passes them on as
// Events.
type output struct {
	stdout, stderr text
	cell           *Cell    // nil: not in a context
	failure        *Failure // the last one
	values         Values
	valueBytes     int
	valuesDropped  int64
	started        bool
	process        bool              // it is a Process: output has offsets, and holds tracebacks
	limited        bool              // missing output in between was not requested
	next           int64             // offset of the output that comes next
	gaps           int64             // bytes that are no longer kept
	resume         Cursor            // the listener's position before this request
	told           Cursor            // the listener's position in this request
	valuesHeard    int               // since the last connection was made
	begun          bool              // emit has received the start
	emit           func(Event) error // nil: no listener
	wrote          func([]byte)      // receives all of both streams; may be nil
	failed         error             // of emit
}

func newOutput(cap int, emit func(Event) error) *output {
	return &output{stdout: text{cap: cap}, stderr: text{cap: cap}, emit: emit}
}

// keepIn charges the kept output to a Tenant's budget in b.
func (o *output) keepIn(b *spool.Budget, tenant sandbox.TenantID) {
	o.stdout.kept, o.stderr.kept, o.values.spool = b.New(string(tenant)), b.New(string(tenant)), b.New(string(tenant))
}

// drop releases the kept output.
func (o *output) drop() {
	for _, s := range []*spool.Spool{&o.stdout.kept, &o.stderr.kept, o.stdout.exact, o.stderr.exact, &o.values.spool} {
		s.Close()
	}
}

// handle processes an event of the Guest. It returns emit's error.
func (o *output) handle(e RunEvent) error {
	if e.Process != nil {
		o.process, o.valuesHeard = true, 0
	}
	if e.Started {
		o.started, o.cell = true, e.Cell
	}
	if o.wrote != nil {
		o.wrote(e.Stdout)
		o.wrote(e.Stderr)
	}
	o.send(EventStdout, o.stdout.add(e.Stdout))
	o.send(EventStderr, o.stderr.add(e.Stderr))
	for _, p := range e.Pieces {
		o.piece(p)
	}
	if e.Value != nil {
		o.value(*e.Value)
	}
	if e.Failure != nil {
		// The traceback goes where a program would print it.
		if o.failure = e.Failure; o.process {
			return o.failed
		}
		if o.wrote != nil {
			o.wrote([]byte(e.Failure.Traceback))
		}
		o.send(EventStderr, o.stderr.add([]byte(e.Failure.Traceback)))
	}
	return o.failed
}

// value keeps a value and passes it on.
func (o *output) value(v Value) {
	if o.valuesHeard++; o.valuesHeard <= o.values.Len()+int(o.valuesDropped) {
		return // received before the connection broke
	}
	for mime, data := range v.Data {
		o.valueBytes += len(mime) + len(data)
	}
	if o.values.Len() >= maxValues || o.valueBytes > maxValueBytes || !o.values.add(v) {
		o.valuesDropped++
		return
	}
	if o.emit != nil && o.failed == nil && o.values.Len() > o.resume.Values {
		o.told.Values = o.values.Len()
		o.failed = o.emit(Event{Kind: EventValue, Value: &v, Next: o.cursor()})
	}
}

// start emits the start event, once.
func (o *output) start(e Event) error {
	if o.begun || o.emit == nil || o.failed != nil {
		return o.failed
	}
	o.begun = true
	o.failed = o.emit(e)
	return o.failed
}

// piece processes output with a known offset.
func (o *output) piece(p OutputPiece) {
	end := p.Offset + int64(len(p.Data))
	if end <= o.next {
		return // received before the connection broke
	}
	data := p.Data
	switch {
	case p.Offset < o.next:
		data = data[o.next-p.Offset:]
	case p.Offset > o.next && !o.limited:
		o.gap(p.Offset)
	}
	from := end - int64(len(data))
	o.next = end
	if o.wrote != nil {
		o.wrote(data)
	}
	kind, stream, heard, told := EventStdout, &o.stdout, o.resume.Stdout, &o.told.Stdout
	if p.Stderr {
		kind, stream, heard, told = EventStderr, &o.stderr, o.resume.Stderr, &o.told.Stderr
	}
	if from < heard && heard < end { // the listener's position is inside: split
		o.hear(kind, stream, data[:heard-from], heard, heard, told)
		data, from = data[heard-from:], heard
	}
	o.hear(kind, stream, data, end, heard, told)
}

// hear processes output of one stream that ends at an offset, and emits the part that the
// listener lacks.
func (o *output) hear(kind EventKind, stream *text, data []byte, end, heard int64, told *int64) {
	k := stream.add(data)
	if waits := len(stream.tail); waits <= len(data) { // else the character began earlier
		*told = end - int64(waits)
	}
	if end > heard {
		o.send(kind, k)
	}
}

// gap records that output up to an offset is no longer kept.
func (o *output) gap(until int64) {
	o.flush()
	missing := until - o.next
	o.gaps += missing
	o.told.Stdout, o.told.Stderr = until, until
	if o.emit != nil && o.failed == nil && until > max(o.resume.Stdout, o.resume.Stderr) {
		o.failed = o.emit(Event{Kind: EventGap, Dropped: missing, Next: o.cursor()})
	}
}

// cursor returns the listener's position.
func (o *output) cursor() Cursor {
	return Cursor{
		Stdout: max(o.told.Stdout, o.resume.Stdout), Stderr: max(o.told.Stderr, o.resume.Stderr),
		Values: max(o.told.Values, o.resume.Values),
	}
}

// finish emits the incomplete characters at the ends of the streams.
func (o *output) finish() error {
	o.flush()
	return o.failed
}

// flush emits incomplete characters as they are.
func (o *output) flush() {
	told := o.told // where the incomplete characters begin
	o.told.Stdout = o.next
	if k := o.stdout.end(); o.resume.Stdout <= told.Stdout {
		o.send(EventStdout, k)
	}
	o.told.Stderr = o.next
	if k := o.stderr.end(); o.resume.Stderr <= told.Stderr {
		o.send(EventStderr, k)
	}
}

func (o *output) send(kind EventKind, k known) {
	if k.text == "" || o.emit == nil || o.failed != nil {
		return
	}
	o.failed = o.emit(Event{Kind: kind, Text: k.text, Bytes: k.bytes, Next: o.cursor()})
}
