package execution

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cap     int
		pieces  []string
		kept    string
		dropped int64
		all     string
	}{
		{"plain", 100, []string{"a", "b"}, "ab", 0, "ab"},
		{"character cut by pieces", 100, []string{"\xe6", "\x97", "\xa5!"}, "日!", 0, "日!"},
		{"never finished", 100, []string{"a\xe6\x97"}, "a\ufffd", 0, "a\ufffd"},
		{"not UTF-8", 100, []string{"a\xffb"}, "a\ufffdb", 0, "a\ufffdb"},
		{"cut at the cap", 3, []string{"abcd", "ef"}, "abc", 3, "abcdef"},
		{"exactly the cap", 3, []string{"abc"}, "abc", 0, "abc"},
		{"one beyond the cap", 3, []string{"abc", "d"}, "abc", 1, "abcd"},
		{"no half character at the cap", 4, []string{"日日", "x"}, "日", 4, "日日x"},
		{"nothing after the cut", 4, []string{"日日x"}, "日", 4, "日日x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := text{cap: tt.cap}
			var all strings.Builder
			for _, p := range tt.pieces {
				all.WriteString(c.add([]byte(p)).text)
			}
			all.WriteString(c.end().text)
			if c.kept.String() != tt.kept || c.dropped != tt.dropped || all.String() != tt.all {
				t.Errorf("kept %q, dropped %d, all %q", c.kept.String(), c.dropped, all.String())
			}
		})
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("a\xe6\x97\xa5\xff"), 3, 2)
	f.Fuzz(func(t *testing.T, data []byte, cap, step int) {
		if cap < 0 || step < 1 {
			return
		}
		c := text{cap: cap}
		var all strings.Builder
		for rest := data; len(rest) > 0; {
			n := min(step, len(rest))
			all.WriteString(c.add(rest[:n]).text)
			rest = rest[n:]
		}
		all.WriteString(c.end().text)
		switch kept := c.kept.String(); {
		case !utf8.ValidString(all.String()):
			t.Errorf("%q is not UTF-8", all.String())
		case utf8.Valid(data) && all.String() != string(data):
			t.Errorf("%q became %q", data, all.String())
		case len(kept) > cap || !strings.HasPrefix(all.String(), kept):
			t.Errorf("kept %q of %q with a cap of %d", kept, all.String(), cap)
		case len(kept)+int(c.dropped) != all.Len():
			t.Errorf("%d kept and %d dropped of %d", len(kept), c.dropped, all.Len())
		}
	})
}

func TestOutputStopsWithItsListener(t *testing.T) {
	gone := errors.New("gone")
	calls := 0
	o := newOutput(10, func(Event) error { calls++; return gone })
	if err := o.handle(RunEvent{Stdout: []byte("x"), Stderr: []byte("y")}); !errors.Is(err, gone) {
		t.Errorf("handle = %v", err)
	}
	if calls != 1 {
		t.Errorf("emit was called %d times after it failed", calls)
	}
}
