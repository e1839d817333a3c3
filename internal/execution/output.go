package execution

import (
	"strings"
	"unicode/utf8"
)

// text turns one stream of bytes into valid UTF-8, piece by piece: what is not
// UTF-8 becomes U+FFFD, also when a character is cut by the pieces. It keeps
// the beginning, up to cap bytes, and counts the rest.
type text struct {
	cap     int
	kept    strings.Builder
	full    bool // kept ends at cap, or just before a character that passes it
	dropped int64
	tail    []byte // the beginning of a character whose end has not come
}

// add takes the next piece and returns what of the stream is now known.
func (t *text) add(piece []byte) string {
	if len(t.tail) > 0 {
		piece = append(t.tail, piece...)
		t.tail = nil
	}
	if n := cutCharacter(piece); n > 0 {
		t.tail = append([]byte(nil), piece[len(piece)-n:]...)
		piece = piece[:len(piece)-n]
	}
	return t.take(piece)
}

// end returns what is left of a stream that ended inside a character.
func (t *text) end() string {
	piece := t.tail
	t.tail = nil
	return t.take(piece)
}

func (t *text) take(piece []byte) string {
	if len(piece) == 0 {
		return ""
	}
	s := strings.ToValidUTF8(string(piece), string(utf8.RuneError))
	keep := s
	if room := t.cap - t.kept.Len(); t.full {
		keep = ""
	} else if len(s) > room {
		for room > 0 && !utf8.RuneStart(s[room]) {
			room--
		}
		keep, t.full = s[:room], true
	}
	t.kept.WriteString(keep)
	t.dropped += int64(len(s) - len(keep))
	return s
}

// Text turns one stream of bytes, piece by piece, into valid UTF-8: what is not
// UTF-8 becomes U+FFFD. The zero value is ready.
type Text struct{ text text }

// Add takes the next piece and returns what is known with it; the beginning of a
// character waits for its end.
func (t *Text) Add(piece []byte) string {
	t.text.full = true // it keeps nothing
	return t.text.add(piece)
}

// Waiting is how many bytes wait for the end of their character.
func (t *Text) Waiting() int { return len(t.text.tail) }

// End returns what is left of a stream that ended, or has a gap, inside a
// character.
func (t *Text) End() string { return t.text.end() }

// cutCharacter returns how many bytes at the end of b begin a character that
// may be completed by what follows.
func cutCharacter(b []byte) int {
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

// Bounds of what a Result holds of an execution in a context, whatever the Guest
// sends.
const (
	maxValues     = 256
	maxValueBytes = 32 << 20
)

// output gathers both streams of an execution, and the values it gives, and
// passes them on as Events.
type output struct {
	stdout, stderr text
	cell           *Cell    // nil: not in a context
	failure        *Failure // the last one
	values         []Value
	valueBytes     int
	valuesDropped  int64
	started        bool
	emit           func(Event) error // nil: nobody listens
	wrote          func([]byte)      // is given all of both streams; nil: nobody is
	failed         error             // of emit
}

func newOutput(cap int, emit func(Event) error) *output {
	return &output{stdout: text{cap: cap}, stderr: text{cap: cap}, emit: emit}
}

// handle takes what the Guest tells. Its error is that of emit.
func (o *output) handle(e RunEvent) error {
	if e.Started {
		o.started, o.cell = true, e.Cell
	}
	if o.wrote != nil {
		o.wrote(e.Stdout)
		o.wrote(e.Stderr)
	}
	o.send(EventStdout, o.stdout.add(e.Stdout))
	o.send(EventStderr, o.stderr.add(e.Stderr))
	if e.Value != nil {
		o.value(*e.Value)
	}
	if e.Failure != nil {
		// Where a program would print it.
		o.failure = e.Failure
		if o.wrote != nil {
			o.wrote([]byte(e.Failure.Traceback))
		}
		o.send(EventStderr, o.stderr.add([]byte(e.Failure.Traceback)))
	}
	return o.failed
}

// value keeps a value and passes it on.
func (o *output) value(v Value) {
	for mime, data := range v.Data {
		o.valueBytes += len(mime) + len(data)
	}
	if len(o.values) >= maxValues || o.valueBytes > maxValueBytes {
		o.valuesDropped++
		return
	}
	o.values = append(o.values, v)
	if o.emit != nil && o.failed == nil {
		o.failed = o.emit(Event{Kind: EventValue, Value: &v})
	}
}

// finish passes on what the ends of the streams left behind.
func (o *output) finish() error {
	o.send(EventStdout, o.stdout.end())
	o.send(EventStderr, o.stderr.end())
	return o.failed
}

func (o *output) send(kind EventKind, s string) {
	if s == "" || o.emit == nil || o.failed != nil {
		return
	}
	o.failed = o.emit(Event{Kind: kind, Text: s})
}
