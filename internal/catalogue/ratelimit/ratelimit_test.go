package ratelimit

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	with := func(change func(Rules)) Rules {
		r := Defaults()
		change(r)
		return r
	}
	for _, tt := range []struct {
		text string
		want Rules
		says string
	}{
		{"create=5:50", with(func(r Rules) { r[Create] = Rule{5, 50} }), ""},
		{" create=5:50 , execute=0.5:1 ", with(func(r Rules) { r[Create], r[Execute] = Rule{5, 50}, Rule{0.5, 1} }), ""},
		{"read=off", with(func(r Rules) { delete(r, Read) }), ""},
		{"off", nil, ""},
		{"", nil, "is not a limit"},
		{"create", nil, "is not a limit"},
		{"creates=5:50", nil, "create, execute, files, read, token, write"},
		{"create=5:50,", nil, "is not a limit"},
		{"create=5", nil, "PER_SECOND:BURST"},
		{"create=0:5", nil, "PER_SECOND:BURST"},
		{"create=5:0", nil, "PER_SECOND:BURST"},
		{"create=-1:5", nil, "PER_SECOND:BURST"},
		{"create=NaN:5", nil, "PER_SECOND:BURST"},
		{"create=+Inf:5", nil, "PER_SECOND:BURST"},
		{"create=1e7:5", nil, "PER_SECOND:BURST"},
		{"create=5:1.5", nil, "PER_SECOND:BURST"},
		{"create=5:99999999", nil, "PER_SECOND:BURST"},
		{"off,create=5:50", nil, "is not a limit"},
	} {
		got, _, err := Parse(tt.text)
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q: %v, %v, want %q", tt.text, got, err, tt.says)
			}
			continue
		}
		if err != nil || !maps.Equal(got, tt.want) {
			t.Errorf("%q = %v, %v, want %v", tt.text, got, err, tt.want)
		}
	}
}

// What Parse takes are limits that can be kept.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"create=5:50", "off", "read=off,write=0.1:1", "create=1e309:1", "=:", "create=0x1p-1074:1", "redis://:p%2C@h:1/2,create=1:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rules, _, err := Parse(text)
		if err != nil {
			return
		}
		l := New(rules)
		for class, rule := range rules {
			d := l.Take("a", class, time.Unix(1_700_000_000, 0))
			if !d.OK || rule.PerSecond <= 0 || rule.Burst < 1 || d.Reset < 0 {
				t.Errorf("%q: %v is %+v, the first request %+v", text, class, rule, d)
			}
		}
	})
}

func TestTake(t *testing.T) {
	l := New(Rules{Create: {PerSecond: 2, Burst: 3}})
	start := time.Unix(1_700_000_000, 0)
	for i, tt := range []struct {
		after     time.Duration // the start
		ok        bool
		remaining int
		wait      time.Duration
		reset     time.Duration
	}{
		{0, true, 2, 0, 500 * time.Millisecond},
		{0, true, 1, 0, time.Second},
		{0, true, 0, 0, 1500 * time.Millisecond},
		{0, false, 0, 500 * time.Millisecond, 1500 * time.Millisecond},
		{250 * time.Millisecond, false, 0, 250 * time.Millisecond, 1250 * time.Millisecond},
		{500 * time.Millisecond, true, 0, 0, 1500 * time.Millisecond},
		{time.Hour, true, 2, 0, 500 * time.Millisecond},
	} {
		d := l.Take("a", Create, start.Add(tt.after))
		if d.OK != tt.ok || d.Remaining != tt.remaining || d.Wait != tt.wait || d.Reset != tt.reset || !d.Limited {
			t.Errorf("%d: %+v, want %+v", i, d, tt)
		}
	}
	if d := l.Take("b", Create, start); !d.OK || d.Remaining != 2 {
		t.Errorf("another caller: %+v", d)
	}
	if d := l.Take("a", Read, start); !d.OK || d.Limited {
		t.Errorf("a class without a rule: %+v", d)
	}
	if d := New(nil).Take("a", Create, start); !d.OK || d.Limited {
		t.Errorf("no rules: %+v", d)
	}
}

// Callers that come and go do not fill the memory, and one that is limited stays
// so while most of them are new.
func TestBucketsAreBounded(t *testing.T) {
	l := New(Rules{Read: {PerSecond: 1000, Burst: 1}})
	now := time.Unix(1_700_000_000, 0)
	for i := range maxBuckets + 1000 {
		l.Take(fmt.Sprint(i), Read, now)
	}
	if len(l.buckets) > maxBuckets {
		t.Errorf("%d buckets", len(l.buckets))
	}
	l.Take("last", Read, now)
	if d := l.Take("last", Read, now); d.OK {
		t.Error("the newest bucket is gone")
	}
	l.Take("later", Read, now.Add(time.Second)) // all others are full again
	if len(l.buckets) > maxBuckets-evictSample+2 {
		t.Errorf("%d buckets after full ones could go", len(l.buckets))
	}
}
