package traffic

import (
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func running(id string) sandbox.Sandbox {
	return sandbox.Sandbox{ID: id, State: sandbox.Running}
}

func TestMemory(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	at := func(d time.Duration) time.Time { return start.Add(d) }
	knows := func(m *memory, id string, d time.Duration) bool {
		_, ok := m.recall(id, at(d))
		return ok
	}
	for _, tt := range []struct {
		name string
		do   func(*memory)
		want bool // that "a" is recalled after a minute
	}{
		{"nothing is known", func(*memory) {}, false},
		{"the store went away after the read", func(m *memory) { m.know(running("a"), at(0)) }, true},
		{"the store answered for others since", func(m *memory) {
			m.know(running("a"), at(0))
			m.know(running("b"), at(staleAfter+1))
		}, false},
		{"it was read again meanwhile", func(m *memory) {
			m.know(running("a"), at(0))
			m.renew([]string{"a"}, []sandbox.Sandbox{running("a")}, at(staleAfter))
			m.know(running("b"), at(staleAfter+1))
		}, true},
		{"it is paused", func(m *memory) {
			m.know(running("a"), at(0))
			m.know(sandbox.Sandbox{ID: "a", State: sandbox.Paused}, at(1))
		}, false},
		{"it was paused when it was read again", func(m *memory) {
			m.know(running("a"), at(0))
			m.renew([]string{"a"}, []sandbox.Sandbox{{ID: "a", State: sandbox.Paused}}, at(1))
		}, false},
		{"it was not there when it was read again", func(m *memory) {
			m.know(running("a"), at(0))
			m.renew([]string{"a"}, nil, at(1))
		}, false},
		{"a request has read it after that read was asked for", func(m *memory) {
			m.know(running("a"), at(2))
			m.renew([]string{"a"}, nil, at(1))
		}, true},
		{"it is gone", func(m *memory) {
			m.know(running("a"), at(0))
			m.forget("a", at(1))
		}, false},
		{"a read that was asked for before is slower", func(m *memory) {
			m.know(running("a"), at(2))
			m.know(sandbox.Sandbox{ID: "a", State: sandbox.Paused}, at(1))
		}, true},
		{"the store was asked too long ago", func(m *memory) { m.know(running("a"), at(time.Minute-longestOutage-1)) }, false},
		{"it had no request for long", func(m *memory) {
			m.know(running("a"), at(-rememberFor))
			if ids := m.due(at(1)); len(ids) != 0 {
				t.Errorf("%q are due", ids)
			}
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := &memory{byID: map[string]remembered{}}
			tt.do(m)
			if got := knows(m, "a", time.Minute); got != tt.want {
				t.Errorf("it is known: %v", got)
			}
		})
	}
}

// A request keeps its Sandbox in memory, and the memory is bounded.
func TestMemoryIsUsedAndBounded(t *testing.T) {
	m := &memory{byID: map[string]remembered{}}
	now := time.Unix(1_000_000, 0)
	m.know(running("a"), now)
	later := now.Add(rememberFor)
	m.renew([]string{"a"}, []sandbox.Sandbox{running("a")}, later)
	m.recall("a", later)
	if ids := m.due(later.Add(rememberFor)); len(ids) != 1 {
		t.Errorf("%q are due after a request", ids)
	}
	for range maxRemembered + 10 {
		m.know(running(sandbox.NewSandboxID()), later)
	}
	if n := len(m.byID); n != maxRemembered {
		t.Errorf("%d are remembered", n)
	}
	later = later.Add(1)
	m.know(running("a"), later)
	if m.byID["a"].used != later {
		t.Error("one that is known is not renewed when the memory is full")
	}
}
