package execution

import (
	"errors"
	"io"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution/spool"
)

// A listener that comes back after any event, with its cursor, misses no byte and
// hears none twice: also where characters are cut, and between the streams.
func TestOutputGoesOnAfterAnyEvent(t *testing.T) {
	pieces := []struct {
		stderr bool
		text   string
	}{
		{false, "a\xe6"}, {true, "e\xff"}, {false, "\x97"}, {true, "\xe2\x82"}, {false, "\xa5b"}, {true, "\xacf"}, {false, "\xe2"},
	}
	play := func(cursor Cursor, from int, hear func(Event) error) *output {
		o := newOutput(1<<20, hear)
		o.resume = cursor
		at := int64(0)
		_ = o.handle(RunEvent{Process: &ProcessInfo{}})
		for i, p := range pieces {
			next := at + int64(len(p.text))
			if i >= from {
				_ = o.handle(RunEvent{Pieces: []OutputPiece{{Offset: at, Stderr: p.stderr, Data: []byte(p.text)}}})
			}
			at = next
		}
		_ = o.finish()
		return o
	}
	bytesOf := func(e Event) string {
		if e.Bytes != nil {
			return string(e.Bytes)
		}
		return e.Text
	}
	want := [2]string{"a\xe6\x97\xa5b\xe2", "e\xff\xe2\x82\xacf"}
	gone := errors.New("gone")
	for events := 1; ; events++ {
		var heard [2]string
		take := func(e Event) {
			i := 0
			if e.Kind == EventStderr {
				i = 1
			}
			heard[i] += bytesOf(e)
		}
		var cursor Cursor
		count := 0
		o := play(Cursor{}, 0, func(e Event) error {
			take(e)
			cursor = e.Next
			if count++; count == events {
				return gone
			}
			return nil
		})
		if o.failed == nil {
			if heard != want || allOf(t, o.stdout.exact) != want[0] || allOf(t, o.stderr.exact) != want[1] {
				t.Errorf("without a break: %q, kept %q and %q", heard, allOf(t, o.stdout.exact), allOf(t, o.stderr.exact))
			}
			return
		}
		again := play(cursor, 0, func(e Event) error { take(e); return nil })
		if heard != want {
			t.Errorf("after event %d (%+v): %q, want %q", events, cursor, heard, want)
		}
		if allOf(t, again.stdout.exact) != want[0] || allOf(t, again.stderr.exact) != want[1] {
			t.Errorf("the result holds %q and %q", allOf(t, again.stdout.exact), allOf(t, again.stderr.exact))
		}
	}
}

// Output that is no longer kept is reported and counted.
func TestOutputTellsOfGaps(t *testing.T) {
	var dropped int64
	o := newOutput(100, func(e Event) error { dropped += e.Dropped; return nil })
	_ = o.handle(RunEvent{Process: &ProcessInfo{}})
	_ = o.handle(RunEvent{Pieces: []OutputPiece{{Offset: 0, Data: []byte("ab")}, {Offset: 12, Data: []byte("c")}}})
	if err := o.finish(); err != nil || dropped != 10 || o.gaps != 10 || allOf(t, &o.stdout.kept) != "abc" || o.next != 13 {
		t.Errorf("told of %d, counted %d, next %d, %q: %v", dropped, o.gaps, o.next, allOf(t, &o.stdout.kept), err)
	}
}

// allOf is all that a spool holds.
func allOf(t *testing.T, s *spool.Spool) string {
	t.Helper()
	all, err := io.ReadAll(s.Reader())
	if err != nil {
		t.Fatal(err)
	}
	return string(all)
}
