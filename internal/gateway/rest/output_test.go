package rest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// told is a sink that writes events down.
type told struct{ events []string }

func (s *told) start(v1.Process) error { return nil }
func (s *told) end(v1.Process) error   { return nil }

func (s *told) send(e v1.OutputEvent) error {
	s.events = append(s.events, fmt.Sprintf("%s %d-%d %q", e.Event, e.Offset, e.Next, e.Text))
	return nil
}

func TestTeller(t *testing.T) {
	t.Parallel()
	out := func(at int64, text string) execution.OutputPiece {
		return execution.OutputPiece{Offset: at, Data: []byte(text)}
	}
	oops := func(at int64, text string) execution.OutputPiece {
		return execution.OutputPiece{Offset: at, Data: []byte(text), Stderr: true}
	}
	for _, tt := range []struct {
		name, stream string
		pieces       []execution.OutputPiece
		want         string
	}{
		{"both", "", []execution.OutputPiece{out(0, "a"), oops(1, "b")}, `stdout 0-1 "a" stderr 1-2 "b"`},
		{"one", "stderr", []execution.OutputPiece{out(0, "a"), oops(1, "b")}, `stderr 1-2 "b"`},
		{"dropped", "", []execution.OutputPiece{out(0, "a"), out(5, "b")}, `stdout 0-1 "a" dropped 1-5 "" stdout 5-6 "b"`},
		{"cut character", "", []execution.OutputPiece{out(0, "a\xe2"), out(2, "\x82"), out(3, "\xacb")}, `stdout 0-1 "a" stdout 1-5 "€b"`},
		{"cut at first", "", []execution.OutputPiece{out(0, "\xe2"), out(1, "\x82"), out(2, "\xac")}, `stdout 0-3 "€"`},
		{"cut by the other stream", "", []execution.OutputPiece{out(0, "\xe2"), oops(1, "x"), out(2, "\x82\xac")}, `stderr 1-2 "x" stdout 0-4 "€"`},
		{"cut by a gap", "", []execution.OutputPiece{out(0, "\xe2"), out(9, "\x82")}, `stdout 0-1 "` + "\ufffd" + `" dropped 1-9 "" stdout 9-10 "` + "\ufffd" + `"`},
		{"cut by the end", "", []execution.OutputPiece{out(0, "a\xe2\x82")}, `stdout 0-1 "a" stdout 1-3 "` + "\ufffd" + `"`},
		{"not UTF-8", "", []execution.OutputPiece{out(0, "a\xffb")}, `stdout 0-3 "a` + "\ufffd" + `b"`},
	} {
		var to told
		tell := teller{query: outputQuery{stream: tt.stream}, to: &to}
		for _, p := range tt.pieces {
			if err := tell.piece(p); err != nil {
				t.Fatal(err)
			}
		}
		if err := tell.flush(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(to.events, " "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
