package client

import (
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// checkInfo fails when something of a Guest's word is passed on that could not be.
func checkInfo(t *testing.T, info execution.ProcessInfo) {
	t.Helper()
	for _, s := range []string{info.Name, info.Command, info.Cwd, info.User, info.Shell} {
		if !utf8.ValidString(s) || len(s) > 3*maxShown {
			t.Fatalf("%.100q is passed on", s)
		}
	}
	switch {
	case !execution.ValidGuestProcessID(info.ID):
		t.Fatalf("the ID %q is passed on", info.ID)
	case info.OutputStart < 0 || info.OutputEnd < info.OutputStart:
		t.Fatalf("output from %d to %d is passed on", info.OutputStart, info.OutputEnd)
	case info.Timeout < 0 || info.Timeout > execution.MaxProcessTimeout:
		t.Fatalf("a timeout of %v is passed on", info.Timeout)
	case info.PTY != nil && (info.PTY.Cols < 1 || info.PTY.Cols > execution.MaxTerminalSide || info.PTY.Rows < 1 || info.PTY.Rows > execution.MaxTerminalSide):
		t.Fatalf("a terminal of %v is passed on", *info.PTY)
	case (info.End == nil) != info.EndedAt.IsZero() || info.StartedAt.Year() > 9999 || info.EndedAt.Year() > 9999:
		t.Fatalf("times are passed on: %v to %v", info.StartedAt, info.EndedAt)
	}
}

// Whatever a Guest tells while output is read, offsets only grow.
func FuzzOutputMessage(f *testing.F) {
	for _, m := range []*guestv1.ReadOutputResponse{
		{NextOffset: 5, Process: &guestv1.ProcessInfo{Id: "#aaaaaaaaaaaaaaaa", OutputEnd: 5, Terminal: &guestv1.Terminal{Cols: 80}, StartedUnixNanos: 1}},
		{NextOffset: 7, Pieces: []*guestv1.OutputPiece{{Offset: 5, Data: []byte("a")}, {Offset: 6, Stderr: true, Data: []byte("b")}}},
		{NextOffset: -1, Process: &guestv1.ProcessInfo{Id: "#aaaaaaaaaaaaaaaa", Name: "\xff", TimeoutMillis: 1 << 62, Ended: &guestv1.RunEnded{ExitCode: -5, Signal: 99}}},
	} {
		raw, err := proto.Marshal(m)
		if err == nil {
			f.Add(raw, int64(5))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, from int64) {
		var m guestv1.ReadOutputResponse
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		from = max(from, 0)
		o, err := outputOf(&m, from)
		if err != nil {
			return
		}
		at := from
		for _, p := range o.Pieces {
			if p.Offset < at || len(p.Data) == 0 {
				t.Fatalf("a piece of %d bytes at %d comes after %d", len(p.Data), p.Offset, at)
			}
			at = p.Offset + int64(len(p.Data))
		}
		if o.Next < at {
			t.Fatalf("the next offset is %d after %d", o.Next, at)
		}
		if o.Process != nil {
			checkInfo(t, *o.Process)
		}
	})
}

func FuzzProcessInfo(f *testing.F) {
	f.Add("#aaaaaaaaaaaaaaaa", "name", int64(1), int64(2), int64(3), int64(4), int64(5), uint32(80), int32(3), true)
	f.Add("#aaaaaaaaaaaaaaaa", "\xff\x00", int64(-1), int64(1<<62), int64(-3), int64(1<<62), int64(-5), uint32(1<<31), int32(-3), true)
	f.Fuzz(func(t *testing.T, id, text string, started, ended, from, to, timeout int64, side uint32, code int32, over bool) {
		m := &guestv1.ProcessInfo{
			Id: id, Name: text, Command: text, Cwd: text, User: text, Shell: text, StartedUnixNanos: started, EndedUnixNanos: ended,
			OutputStart: from, OutputEnd: to, TimeoutMillis: timeout, Terminal: &guestv1.Terminal{Cols: side, Rows: ^side},
		}
		if over {
			m.Ended = &guestv1.RunEnded{ExitCode: code, Signal: code, Message: text, Status: guestv1.RunStatus(code)}
		}
		if info, err := processOf(m); err == nil {
			checkInfo(t, info)
		}
	})
}
