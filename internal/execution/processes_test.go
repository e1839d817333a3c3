package execution

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestProcessIDs(t *testing.T) {
	sb := sandbox.Sandbox{Timeline: 3}
	own := newProcessID()
	if !ValidGuestProcessID(own) || processNamePattern.MatchString(own) {
		t.Errorf("%q is no ID of a guest's process", own)
	}
	for _, tt := range []struct {
		process, want string
		code          error
	}{
		{publicID(3, own), own, nil},
		{publicID(2, own), "", sandbox.Conflict},
		{publicID(4, own), "", sandbox.NotFound},
		{"p99999999999999999999-aaaaaaaaaaaaaaaa", "p99999999999999999999-aaaaaaaaaaaaaaaa", nil}, // a name then
		{"web", "web", nil},
		{"", "", sandbox.Invalid},
		{own, "", sandbox.Invalid},
		{"a/b", "", sandbox.Invalid},
		{"..", "", sandbox.Invalid},
		{strings.Repeat("a", 64), "", sandbox.Invalid},
	} {
		got, err := guestID(sb, tt.process)
		if got != tt.want || !errors.Is(err, tt.code) {
			t.Errorf("%q = %q, %v", tt.process, got, err)
		}
	}
}

// slow is a Guest whose Process takes a few bytes of input at a time.
type slow struct {
	Guest
	takes []int         // of the calls in turn; afterwards everything
	after time.Duration // that each takes
	got   string
	eof   bool
	from  []int64 // that were said
}

func (s *slow) Close() {}

func (s *slow) WriteInput(ctx context.Context, _ string, in Input) (int64, error) {
	select {
	case <-time.After(s.after):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	n := len(in.Data)
	if len(s.takes) > 0 {
		n, s.takes = min(n, s.takes[0]), s.takes[1:]
	}
	s.got += string(in.Data[:n])
	s.eof = in.EOF && n == len(in.Data)
	if in.From != nil {
		s.from = append(s.from, *in.From)
	}
	return int64(n), nil
}

// Input waits for a Process that reads late, and is given once.
func TestFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ref := ProcessRef{Sandbox: "i00000000000000000000", Process: "p"}
		g := &slow{takes: []int{3, 0, 0, 2}, after: 30 * time.Second}
		if err := newService(newOne(), g).Feed(t.Context(), "t", ref, Input{Data: []byte("0123456789"), EOF: true, From: new(int64(7))}); err != nil || g.got != "0123456789" || !g.eof || !slices.Equal(g.from, []int64{7, 10, 10, 10, 12}) {
			t.Errorf("it got %q, %v, from %v, %v", g.got, g.eof, g.from, err)
		}
		g = &slow{takes: []int{0, 0, 0}}
		start := time.Now()
		if err := newService(newOne(), g).Feed(t.Context(), "t", ref, Input{Data: []byte("x")}); err != nil || time.Since(start) < 3*feedPace {
			t.Errorf("a guest that answers at once is asked again after %v, %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		g = &slow{takes: make([]int, 1000), after: 30 * time.Second}
		if err := newService(newOne(), g).Feed(ctx, "t", ref, Input{Data: []byte("x")}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("once its client has left: %v", err)
		}
		g = &slow{takes: []int{3}}
		if err := newService(newOne(), g).WriteInput(t.Context(), "t", ref, Input{Data: []byte("12345")}); !errors.Is(err, sandbox.Timeout) || !strings.Contains(err.Error(), "3 of 5") {
			t.Errorf("one write: %v", err)
		}
	})
}

func TestFingerprint(t *testing.T) {
	base := StartRequest{Sandbox: "i", Command: "a", Key: "k"}
	same := base
	same.Sandbox, same.Background, same.Yield, same.MaxOutput = "name", true, 5, 6
	if string(base.fingerprint()) != string(same.fingerprint()) {
		t.Error("how the client waits makes it another request")
	}
	for name, change := range map[string]func(*StartRequest){
		"command": func(r *StartRequest) { r.Command = "b" }, "cwd": func(r *StartRequest) { r.Cwd = "/" },
		"env": func(r *StartRequest) { r.Env = map[string]string{"a": "b"} }, "stdin": func(r *StartRequest) { r.Stdin = "x" },
		"pty": func(r *StartRequest) { r.PTY = &TerminalSize{1, 2} }, "user": func(r *StartRequest) { r.User = "root" },
	} {
		other := base
		change(&other)
		if string(base.fingerprint()) == string(other.fingerprint()) {
			t.Errorf("another %s is the same request", name)
		}
	}
}

func TestParseCondition(t *testing.T) {
	for s, want := range map[string]Condition{
		"": {}, "exit": {}, "port:80": {Port: 80}, "http:8080": {HTTP: 8080, Path: "/"}, "http:8080/a?b=c:d": {HTTP: 8080, Path: "/a?b=c:d"},
		"log:a:b": {Log: "a:b"}, "log:(?i)ready$": {Log: "(?i)ready$"},
	} {
		if got, err := parseCondition(s); got != want || err != nil {
			t.Errorf("%q = %+v, %v", s, got, err)
		}
	}
}

func FuzzParseCondition(f *testing.F) {
	for _, s := range []string{"exit", "port:80", "http:80/x?y", "http:80//evil/", "log:a+", "log:(", "http:1/\x00", "port:-1", strings.Repeat("log:(", 500)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseCondition(s)
		if err != nil {
			if code := sandbox.CodeOf(err); code != sandbox.Invalid && code != sandbox.TooLarge {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if c.Port < 0 || c.Port > 65535 || c.HTTP < 0 || c.HTTP > 65535 || c.Path != "" && (c.Path[0] != '/' || strings.ContainsAny(c.Path, " \r\n\x00")) {
			t.Fatalf("%q gives %+v", s, c)
		}
	})
}

func FuzzGuestProcessID(f *testing.F) {
	for _, s := range []string{"p1-aaaaaaaaaaaaaaaa", "web", "#aaaaaaaaaaaaaaaa", "p1-", "../x", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := guestID(sandbox.Sandbox{Timeline: 1}, s)
		if err == nil && !ValidGuestProcessID(id) && !processNamePattern.MatchString(id) {
			t.Fatalf("%q gives %q", s, id)
		}
		if n, err := signalNumber(s); err == nil && (n < 1 || n > 31) {
			t.Fatalf("%q is signal %d", s, n)
		}
	})
}

// Text in pieces is the text as a whole.
func FuzzTextInPieces(f *testing.F) {
	f.Add([]byte("a€b\xffc\xe2\x82"), 2)
	f.Fuzz(func(t *testing.T, raw []byte, size int) {
		var text Text
		var got strings.Builder
		size = max(size&7, 1)
		for at := 0; at < len(raw); at += size {
			s, _ := text.Add(raw[at:min(at+size, len(raw))])
			got.WriteString(s)
			if n := text.Waiting(); n < 0 || n >= utf8.UTFMax {
				t.Fatalf("%d bytes wait", n)
			}
		}
		end, _ := text.End()
		got.WriteString(end)
		if !utf8.ValidString(got.String()) || utf8.Valid(raw) && got.String() != string(raw) {
			t.Fatalf("%q becomes %q", raw, got.String())
		}
	})
}

// A Process that ended by itself when a client asked it to says so: its Sandbox is
// still there.
func TestProcessThatWasAskedToEnd(t *testing.T) {
	for _, tt := range []struct {
		end      RunEnd
		exitCode int
		message  string
	}{
		{RunEnd{Status: StatusKilled, ExitCode: 3}, 137, "it ended on request"},
		{RunEnd{Status: StatusKilled, ExitCode: -1, Signal: 9}, 137, "signal 9 ended it: killed"},
	} {
		p := processOf(sandbox.Sandbox{}, ProcessInfo{End: &tt.end})
		if p.Status != StatusKilled || p.ExitCode != tt.exitCode || p.Problem.Name != "signal" || p.Problem.Message != tt.message {
			t.Errorf("%+v: %s, %d, %+v", tt.end, p.Status, p.ExitCode, p.Problem)
		}
	}
}
