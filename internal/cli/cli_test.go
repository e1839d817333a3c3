package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

func TestReport(t *testing.T) {
	away := sandbox.Errorf(sandbox.Unavailable, "no server answers")
	for _, tt := range []struct {
		name string
		runs bool
		json bool
		err  error
		code int
		said string
	}{
		{"well", false, false, nil, 0, ""},
		{"failed", false, false, errors.New("it failed"), 1, "cloud-sandbox: it failed\n"},
		{"failed, of what runs code", true, false, away, 125, "cloud-sandbox: no server answers\n"},
		{"wrapped", false, false, fmt.Errorf("box: %w", away), 1, "cloud-sandbox: box: no server answers\n"},
		{"cause is not told twice", false, false, away.WithCause(io.EOF), 1, "cloud-sandbox: no server answers\n"},
		{"usage", false, false, usagef("no such flag"), 2, "cloud-sandbox: no such flag\n"},
		{"usage of what runs code", true, false, usagef("no such flag"), 125, "cloud-sandbox: no such flag\n"},
		{"exit code", true, false, &exitError{code: 7}, 7, ""},
		{"Ctrl-C", true, false, fmt.Errorf("read: %w", context.Canceled), 130, ""},
		{"retry", false, false, &sandbox.Error{Code: sandbox.Exhausted, Detail: "full", RetryAfter: 2 * time.Second}, 1, "cloud-sandbox: full; try again in 2s\n"},
		{"JSON", false, true, &sandbox.Error{Code: sandbox.Exhausted, Detail: "full", RetryAfter: 2 * time.Second}, 1, `{"error":{"code":"exhausted","message":"full; try again in 2s","retry_after_seconds":2}}` + "\n"},
		{"JSON, usage", false, true, usagef("bad"), 2, `{"error":{"code":"invalid","message":"bad"}}` + "\n"},
		{"escapes", false, false, errors.New("a\x1b[31mb"), 1, "cloud-sandbox: a\\x1b[31mb\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var said bytes.Buffer
			cmd := &cobra.Command{}
			cmd.SetErr(&said)
			clientFlags(cmd)
			if tt.json {
				_ = cmd.PersistentFlags().Set("json", "true")
			}
			_ = cmd.ParseFlags(nil)
			if tt.runs {
				cmd.Annotations = map[string]string{runsCode: "yes"}
			}
			if code := Report(cmd, tt.err); code != tt.code || said.String() != tt.said {
				t.Errorf("code %d, said %q, want %d and %q", code, said.String(), tt.code, tt.said)
			}
		})
	}
}

// Every command has examples, which begin as they are typed, and refuses flags
// that it does not have.
func TestCommandsHelp(t *testing.T) {
	for _, cmd := range Commands(func(string) string { return "" }) {
		if !strings.Contains(cmd.Example, "cloud-sandbox "+cmd.Name()) || cmd.Short == "" || cmd.Long == "" {
			t.Errorf("%s lacks help", cmd.Name())
		}
		if cmd.GroupID != GroupID || cmd.PersistentFlags().Lookup("json") == nil {
			t.Errorf("%s is not as the others", cmd.Name())
		}
		for line := range strings.Lines(cmd.Example + "\n" + cmd.Long) {
			if len([]rune(line)) > 100 {
				t.Errorf("%s: a line of its help is too long: %s", cmd.Name(), line)
			}
		}
	}
}

func TestExecArguments(t *testing.T) {
	for _, tt := range []struct {
		args string
		want string
		bad  string
	}{
		{"box ls -la", "'ls' '-la'", ""},
		{"box -- ls -- x", "'ls' '--' 'x'", ""},
		{"box it's", `'it'\''s'`, ""},
		{"", "", "name a SANDBOX"},
		{"box", "", "no program"},
		{"box --", "", "no program"},
		{"box --timeout 3 -- ls", "", "before the SANDBOX"},
	} {
		id, program, err := (&execOptions{}).check(strings.Fields(tt.args))
		if tt.bad != "" {
			if err == nil || !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("%s: the error is %v, want one with %q", tt.args, err, tt.bad)
			}
			continue
		}
		if err != nil || id != "box" || quote(program) != tt.want {
			t.Errorf("%s: got %s, %q, %v", tt.args, id, program, err)
		}
	}
}

// runFor parses args as run does and returns its options.
func runFor(t *testing.T, args []string) (*cobra.Command, *runOptions, []string) {
	t.Helper()
	o := &runOptions{}
	cmd := &cobra.Command{Use: "run"}
	o.register(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	cmd.SetIn(strings.NewReader("from stdin"))
	return cmd, o, cmd.Flags().Args()
}

func TestRunSource(t *testing.T) {
	for _, tt := range []struct {
		args           []string
		code, language string
		bad            string
	}{
		{[]string{"-c", "x"}, "x", "python", ""},
		{[]string{"-c", "x", "-l", "bash"}, "x", "bash", ""},
		{[]string{"-"}, "from stdin", "python", ""},
		{[]string{"testdata/hello.js"}, "console.log('hello')\n", "javascript", ""},
		{[]string{"testdata/hello.js", "-l", "typescript"}, "console.log('hello')\n", "typescript", ""},
		{[]string{"--", "ls", "-c"}, "exec -- 'ls' '-c'", "bash", ""},
		{[]string{"-c", "x", "--", "ls"}, "", "", "after -- comes a program"},
		{nil, "", "", "no code to run"},
		{[]string{"--"}, "", "", "no code to run"},
		{[]string{"-c", " \n"}, "", "", "the code is empty"},
		{[]string{"-c", "x", "a.py"}, "", "", "both --code and a.py"},
		{[]string{"a.py", "b.py"}, "", "", "more than one FILE"},
		{[]string{"-i", "-"}, "", "", "both the code (-) and its input"},
		{[]string{"a.xyz"}, "", "", "name the language with --language"},
		{[]string{"testdata/none.py"}, "", "", "no such file"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			cmd, o, args := runFor(t, tt.args)
			code, language, err := o.source(cmd, args)
			if tt.bad != "" {
				if err == nil || !strings.Contains(err.Error(), tt.bad) {
					t.Errorf("the error is %v, want one with %q", err, tt.bad)
				}
				return
			}
			if err != nil || code != tt.code || language != tt.language {
				t.Errorf("got %q, %q, %v", code, language, err)
			}
		})
	}
}

func TestRunCreates(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want *v1.CreateRequest
		bad  string
	}{
		{nil, &v1.CreateRequest{TimeoutSeconds: v1.SecondsOf(2 * time.Minute), OnTimeout: "end"}, ""},
		{[]string{"--timeout", "5"}, &v1.CreateRequest{TimeoutSeconds: v1.SecondsOf(2 * time.Minute), OnTimeout: "end"}, ""},
		{[]string{"--sandbox", "box"}, nil, ""},
		{[]string{"--keep"}, &v1.CreateRequest{}, ""},
		{[]string{"--network", "none"}, &v1.CreateRequest{Network: `{"mode":"none"}`, TimeoutSeconds: v1.SecondsOf(2 * time.Minute), OnTimeout: "end"}, ""},
		{[]string{"--keep", "--allow", "a,b", "--deny", "c"}, &v1.CreateRequest{Network: `{"mode":"none","allow":["a","b"],"deny":["c"]}`}, ""},
		{[]string{"--keep", "--deny", "c"}, &v1.CreateRequest{Network: `{"mode":"public","deny":["c"]}`}, ""},
		{[]string{"--keep", "--network", "public", "--allow", "a"}, &v1.CreateRequest{Network: `{"mode":"public","allow":["a"]}`}, ""},
		{
			[]string{"--memory-mb", "256", "--cpus", "0.5", "--timeout", "10m"},
			&v1.CreateRequest{TimeoutSeconds: v1.SecondsOf(11 * time.Minute), OnTimeout: "end", Resources: &v1.Resources{CPUs: new(0.5), MemoryMB: new(int64(256))}}, "",
		},
		{[]string{"--sandbox", "box", "--keep"}, nil, "--keep is for a new sandbox"},
		{[]string{"--sandbox", "box", "--template", "x"}, nil, "--template is for a new sandbox"},
		{[]string{"--sandbox", "box", "--deny", "x"}, nil, "--deny is for a new sandbox"},
	} {
		cmd, o, _ := runFor(t, tt.args)
		got, err := o.creates(cmd)
		if (err != nil) != (tt.bad != "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
			t.Errorf("%v: the error is %v", tt.args, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%v: %s", tt.args, diff)
		}
	}
}

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		text string
		want seconds // 0: refused
	}{
		{"90", 90},
		{"0.5", 0.5},
		{"1m30s", 90},
		{"2h", 7200},
		{"0", 0},
		{"-1", 0},
		{"NaN", 0},
		{"1e300", 0},
		{"soon", 0},
		{"", 0},
	} {
		var s seconds
		if err := s.Set(tt.text); s != tt.want || (err != nil) != (tt.want == 0) {
			t.Errorf("%q: %v, %v", tt.text, s, err)
		}
	}
	p := pairs{getenv: func(k string) string { return map[string]string{"HERE": "h"}[k] }}
	for text, ok := range map[string]bool{"A=1": true, "B=": true, "C=x=y": true, "HERE": true, "GONE": false, "=x": false, "": false} {
		if err := p.Set(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	if diff := cmp.Diff(map[string]string{"A": "1", "B": "", "C": "x=y", "HERE": "h"}, p.values); diff != "" {
		t.Error(diff)
	}
	if err := (&pairs{}).Set("HERE"); err == nil {
		t.Error("a label without a value is taken")
	}
}

func TestEnded(t *testing.T) {
	for _, tt := range []struct {
		status     string
		exit, want int
	}{
		{"ok", 0, 0},
		{"error", 7, 7},
		{"error", 0, 1},
		{"error", 256, 1},
		{"timeout", 124, 124},
		{"killed", 137, 137},
		{"ok", 3, 3},
		{"error", -1, 255},
	} {
		err := ended(v1.ExecuteResult{Status: tt.status, ExitCode: tt.exit})
		var exit *exitError
		got := 0
		if errors.As(err, &exit) {
			got = exit.code
		}
		if got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}

func TestForPeople(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0s", 59 * time.Second: "59s", 90 * time.Second: "1m", 47 * time.Hour: "47h", 100 * time.Hour: "4d"} {
		if got := brief(d); got != want {
			t.Errorf("%v is %q", d, got)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 300 << 20: "300.0 MiB", 1 << 40: "1.0 TiB"} {
		if got := size(n); got != want {
			t.Errorf("%d is %q", n, got)
		}
	}
	if got := row("a\tb\n", "", "\x1b[1m\u202e"); got != "a b \t-\t\\x1b[1m\\x202e" {
		t.Errorf("row gives %q", got)
	}
	p := &progress{what: "f", total: 2048, began: time.Unix(0, 0)}
	p.done.Store(1024)
	if got := p.line(time.Unix(2, 0)); got != "f  1.0 KiB of 2.0 KiB, 50 %  512 B/s" {
		t.Errorf("progress shows %q", got)
	}
	var b bytes.Buffer
	ends := time.Unix(1e9, 0)
	list := []v1.Sandbox{{ID: "i1", Name: "box", State: "running", Template: "base", CreatedAt: ends.Add(-time.Hour), Deadline: ends}}
	if err := printSandboxes(&b, list, ends.Add(-time.Minute)); err != nil || !strings.Contains(b.String(), "i1        box    running   base       59m ago   in 1m\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
	b.Reset()
	lost := 75.5
	list[0].LostSeconds = &lost
	if err := printSandboxes(&b, list, ends.Add(-time.Minute)); err != nil || !strings.Contains(b.String(), "i1        box    running (lost 1m)   base") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestRetry(t *testing.T) {
	away := fmt.Errorf("read: %w", sandbox.Errorf(sandbox.Unavailable, "away"))
	for _, tt := range []struct {
		name  string
		tries []bool // of each that fails, whether something came before
		last  error
		want  int // tries
	}{
		{"at once", nil, nil, 1},
		{"never began", []bool{false}, nil, 1},
		{"comes back", []bool{true, false, false}, nil, 4},
		{"is gone for good", []bool{true}, sandbox.Errorf(sandbox.NotFound, "gone"), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				err := retry(t.Context(), func() (bool, error) {
					n++
					if n <= len(tt.tries) {
						return tt.tries[n-1], away
					}
					return true, tt.last
				}, func(int) {})
				if n != tt.want || tt.want > len(tt.tries) && !errors.Is(err, tt.last) {
					t.Errorf("%d tries, and %v", n, err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // away for ever
		began := time.Now()
		err := retry(t.Context(), func() (bool, error) { return time.Since(began) == 0, away }, func(int) {})
		if took := time.Since(began); !errors.Is(err, sandbox.Unavailable) || took < giveUp || took > giveUp+lastPause {
			t.Errorf("given up after %v with %v", took, err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // ended meanwhile
		ctx, cancel := context.WithCancel(t.Context())
		if err := retry(ctx, func() (bool, error) { return true, away }, func(int) { cancel() }); !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// entered runs a command line, its words apart by spaces, and returns what it
// printed. The environment names the server at url with a key; empty: it names nothing.
func entered(t *testing.T, url, line string) (out, problems string, err error) {
	t.Helper()
	root := &cobra.Command{Use: "cloud-sandbox", SilenceErrors: true, SilenceUsage: true}
	root.AddGroup(&cobra.Group{ID: GroupID})
	environment := map[string]string{}
	if url != "" {
		environment = map[string]string{"CLOUD_SANDBOX_URL": url, "CLOUD_SANDBOX_API_KEY": "k"}
	}
	root.AddCommand(Commands(func(name string) string { return environment[name] })...)
	var printed, told strings.Builder
	root.SetOut(&printed)
	root.SetErr(&told)
	root.SetArgs(strings.Fields(line))
	err = root.ExecuteContext(t.Context())
	return printed.String(), told.String(), err
}

// A command comes back to a busy server when it is told to, and says that it waits.
func TestBusyServer(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":{"code":"unavailable","message":"too many sandboxes wait"}}`)
			return
		}
		_, _ = io.WriteString(w, `{"sandbox_id":"i1"}`)
	}))
	defer server.Close()
	out, problems, err := entered(t, server.URL, "create")
	if err != nil || !strings.Contains(out, "i1") || asked != 2 || problems != "cloud-sandbox: the server is busy; trying again in 1s\n" {
		t.Errorf("asked %d times: %q, %q, %v", asked, out, problems, err)
	}
}
