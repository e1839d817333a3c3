package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// shell is a user's command line, with a folder of its own.
type shell struct {
	server *rig.Server
	user   string
	key    string // empty: the user's dev mode token
	folder string
}

func newShell(t *testing.T, user string) *shell {
	t.Helper()
	s := shared.Server(t)
	sh := &shell{server: s, user: user, key: s.Key(t, user), folder: t.TempDir()}
	c := s.Client(t, user)
	t.Cleanup(func() {
		var list struct {
			Sessions []rig.Sandbox `json:"sessions"`
		}
		if c.Try("GET", "/api/v1/sessions", nil, &list) == nil {
			for _, s := range list.Sessions {
				_, _, _ = c.Do("DELETE", "/api/v1/sessions/"+s.ID, nil)
			}
		}
	})
	return sh
}

// command is the binary with arguments, in the user's folder.
func (sh *shell) command(args ...string) *exec.Cmd {
	cmd := rig.Command(sh.server.Bin, args...)
	cmd.Dir = sh.folder
	cmd.Env = append(os.Environ(), "CLOUD_SANDBOX_URL="+sh.server.URL, "CLOUD_SANDBOX_USER_ID="+sh.user, "CLOUD_SANDBOX_API_KEY="+sh.key)
	return cmd
}

// told is a command's output and exit code.
type told struct {
	out, err string
	code     int
}

func (sh *shell) try(t *testing.T, stdin string, args ...string) told {
	t.Helper()
	cmd := sh.command(args...)
	var out, err bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &err
	if e := cmd.Run(); e != nil && cmd.ProcessState == nil {
		t.Fatal(e)
	}
	return told{out.String(), err.String(), cmd.ProcessState.ExitCode()}
}

// must runs a command that must succeed and returns its stdout.
func (sh *shell) must(t *testing.T, args ...string) string {
	t.Helper()
	r := sh.try(t, "", args...)
	if r.code != 0 {
		t.Fatalf("%q ended with %d: %s", args, r.code, r.err)
	}
	return r.out
}

func (sh *shell) write(t *testing.T, name, content string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(sh.folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// live returns the user's sandboxes that have not ended.
func (sh *shell) live(t *testing.T) []string { return strings.Fields(sh.must(t, "ls", "-q")) }

func TestCommandRun(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-run")
	sh.write(t, "hello.js", "console.log('from', process.env.WHO)", 0o644)
	for _, tt := range []struct {
		name, stdin string
		args        []string
		want        told
	}{
		{"code", "", []string{"run", "-c", "print(6 * 7)"}, told{"42\n", "", 0}},
		{"file", "", []string{"run", "hello.js", "-e", "WHO=me"}, told{"from me\n", "", 0}},
		{"stdin is code", "echo $((1 + 1))", []string{"run", "-l", "bash", "-"}, told{"2\n", "", 0}},
		{"stdin is input", "abc", []string{"run", "-i", "-c", "print(input()[::-1])"}, told{"cba\n", "", 0}},
		{"program", "", []string{"run", "--", "bash", "-c", "echo out; echo err >&2; exit 7"}, told{"out\n", "err\n", 7}},
		{"value", "", []string{"run", "-c", "2 ** 10"}, told{"1024\n", "", 0}},
		{"exit", "", []string{"run", "-c", "import sys; sys.exit(3)"}, told{"", "", 3}},
		{"of a size", "", []string{"run", "--network", "none", "--memory-mb", "256", "-c", "print('small')"}, told{"small\n", "", 0}},
		{"timeout", "", []string{"run", "--timeout", "0.5", "-l", "bash", "-c", "sleep 60"}, told{"", "cloud-sandbox: it ran longer than", 124}},
		{"signal", "", []string{"run", "-l", "bash", "-c", "kill -9 $$"}, told{"", "cloud-sandbox: signal 9", 137}},
		{"no program", "", []string{"run", "--", "no-such-program"}, told{"", "not found", 127}},
		{"no file", "", []string{"run", "none.py"}, told{"", "no such file", 125}},
		{"no language", "", []string{"run", "-l", "cobol", "-c", "x"}, told{"", "cloud-sandbox: ", 125}},
		{"no sandbox", "", []string{"run", "-s", "none", "-c", "1"}, told{"", "no sandbox", 125}},
		{"no template", "", []string{"run", "--template", "none", "-c", "1"}, told{"", "template", 125}},
		{"no server", "", []string{"run", "--url", "http://127.0.0.1:1", "-c", "1"}, told{"", "no server answers at http://127.0.0.1:1", 125}},
		{"far away without a key", "", []string{"run", "--url", "http://192.0.2.1", "-c", "1"}, told{"", "CLOUD_SANDBOX_API_KEY", 125}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want.err == "CLOUD_SANDBOX_API_KEY" && sh.key != "" {
				t.Skip("the user of a cluster has a key")
			}
			got := sh.try(t, tt.stdin, tt.args...)
			if got.out != tt.want.out || got.code != tt.want.code || !strings.Contains(got.err, tt.want.err) || tt.want.err == "" && got.err != "" {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
	if left := sh.live(t); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
	var result rig.Result
	r := sh.try(t, "", "run", "--json", "-c", "print('x'); 1/0")
	if err := json.Unmarshal([]byte(r.out), &result); err != nil || r.code != 1 || result.Stdout != "x\n" || result.Error.Name != "ZeroDivisionError" {
		t.Errorf("as JSON: %v: %+v", err, r)
	}
	sh.must(t, "run", "--keep", "-c", "x = 41")
	kept := sh.live(t)
	if len(kept) != 1 {
		t.Fatalf("kept are %v", kept)
	}
	if got := sh.must(t, "run", "-s", kept[0], "-c", "x + 1"); got != "42\n" {
		t.Errorf("later code finds %q", got)
	}
	sh.must(t, "run", "-s", kept[0], "--save-results", "out", "-c", "class V:\n  def _repr_svg_(self): return '<svg/>'\nV()")
	if svg, err := os.ReadFile(filepath.Join(sh.folder, "out", "result-1.svg")); err != nil || string(svg) != "<svg/>" {
		t.Errorf("the result is %q, %v", svg, err)
	}
}

// sleeps reports whether a sleep runs in box, ignoring zombies.
func sleeps(t *testing.T, c *rig.Client) bool {
	t.Helper()
	return c.Run(t, "box", "bash", "ps -C sleep -o stat= | grep -v Z", nil).Stdout != ""
}

// Ctrl-C ends the command and the program that it runs in the sandbox.
func TestCommandCancel(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-cancel")
	c := sh.server.Client(t, "command-cancel")
	sh.must(t, "create", "box")
	for _, tt := range []struct {
		name string
		args []string
	}{
		{"exec", []string{"exec", "box", "bash", "-c", "echo begun; sleep 1234 & wait"}},
		{"run", []string{"run", "-s", "box", "-c", "import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sleep', '1234'])"}},
		{"run in its own", []string{"run", "--memory-mb", "256", "-c", "import time\nprint('begun', flush=True)\ntime.sleep(1234)"}},
		{"JSON", []string{"exec", "--json", "box", "sleep", "1234"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := sh.command(tt.args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if tt.name == "JSON" {
				rig.Within(t, rig.Patience, "the program runs", func() bool { return sleeps(t, c) })
			} else if _, err := out.Read(make([]byte, 6)); err != nil {
				t.Fatalf("%v: %s", err, stderr.String())
			}
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 || stderr.Len() > 0 {
				t.Errorf("it ended with %v and said %q", err, stderr.String())
			}
			rig.Within(t, rig.Patience, "the program ends", func() bool { return !sleeps(t, c) })
		})
	}
	if left := sh.live(t); len(left) != 1 {
		t.Errorf("left are %v", left)
	}
}

// The example commands that `make run` prints work when pasted.
func TestWelcome(t *testing.T) {
	t.Parallel()
	s := shared.Machine(t)
	var token struct {
		Access string `json:"access_token"`
	}
	s.Anyone(t).Must(t, "POST", "/api/v1/auth/token", rig.Body{"user_id": "welcome", "role": "user"}, &token)
	said, err := rig.Command("../../scripts/welcome.sh", s.URL, token.Access, s.Bin).Output()
	if err != nil || !strings.Contains(string(said), s.URL) || !strings.Contains(string(said), token.Access) {
		t.Fatalf("%v: %s", err, said)
	}
	tried := 0
	for line := range strings.Lines(string(said)) {
		command, ok := strings.CutPrefix(line, "    ")
		if !ok {
			continue
		}
		tried++
		cmd := rig.Command("bash", "-c", command)
		cmd.Dir = t.TempDir()
		if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "42") {
			t.Errorf("%s%v: %s", command, err, out)
		}
	}
	if tried != 2 {
		t.Errorf("%d commands in\n%s", tried, said)
	}
}

// --network, --allow and --deny set the policy, and `network log` shows its verdicts.
func TestCommandNetworkRules(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-network")
	for _, tt := range []struct {
		name  string
		flags []string
		want  string // the policy
	}{
		{"few", []string{"--allow", "192.0.2.1:443,pypi.org", "--allow", "*.example.com"}, `{"mode":"none","allow":["192.0.2.1:443","pypi.org","*.example.com"]}`},
		{"most", []string{"--deny", "198.51.100.0/24"}, `{"mode":"public","deny":["198.51.100.0/24"]}`},
		{"all", []string{"--network", "public", "--deny", "*", "--allow", "192.0.2.1"}, `{"mode":"public","allow":["192.0.2.1"],"deny":["*"]}`},
		{"nothing", []string{"--network", "none"}, `"none"`},
	} {
		sh.must(t, append([]string{"create", tt.name}, tt.flags...)...)
		var record struct{ Network json.RawMessage }
		sh.server.Client(t, sh.user).Must(t, "GET", "/api/v1/sessions/"+tt.name, nil, &record)
		if got := compact(t, record.Network); got != tt.want {
			t.Errorf("%s: the policy is %s, want %s", tt.name, got, tt.want)
		}
	}
	if got := sh.try(t, "", "exec", "few", "bash", "-c", "timeout 5 bash -c ': </dev/tcp/198.51.100.7/80'"); got.code == 0 {
		t.Errorf("an address that no rule allows: %+v", got)
	}
	all, allowed := sh.must(t, "network", "log", "few"), sh.must(t, "network", "log", "few", "--verdict", "allowed")
	if !strings.Contains(all, "refused") || !strings.Contains(all, "198.51.100.7") || strings.Contains(allowed, "198.51.100.7") {
		t.Errorf("of all\n%s\nallowed are\n%s", all, allowed)
	}
	var log struct{ Refused int }
	if err := json.Unmarshal([]byte(sh.must(t, "network", "log", "few", "--json")), &log); err != nil || log.Refused < 1 {
		t.Errorf("as JSON: %+v, %v", log, err)
	}
	for _, tt := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"create", "--allow", "http://pypi.org"}, "network rule", 1},
		{[]string{"create", "--network", "some"}, "network", 1},
		{[]string{"network", "log", "few", "--verdict", "odd"}, "--verdict must be", 2},
		{[]string{"network", "log", "none"}, "sandbox", 1},
		{[]string{"run", "-s", "few", "--allow", "pypi.org", "-c", "1"}, "--allow is for a new sandbox", 125},
	} {
		if got := sh.try(t, "", tt.args...); got.code != tt.code || !strings.Contains(got.err, tt.want) {
			t.Errorf("%q: %+v", tt.args, got)
		}
	}
}

// compact is JSON without white space.
func compact(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A sandbox starts from a snapshot by its name. If several snapshots have the name, the
// newest is used.
func TestCommandCreateFromSnapshotName(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-named-snapshot")
	for _, name := range []string{"older", "newer"} {
		sh.must(t, "create", name)
		sh.must(t, "exec", name, "bash", "-c", "echo "+name+" >mark")
		sh.must(t, "snapshot", "create", name, "--name", "base-state", "--files-only")
	}
	sh.must(t, "create", "again", "--snapshot", "base-state")
	if got := sh.must(t, "exec", "again", "cat", "mark"); got != "newer\n" {
		t.Errorf("it started from %q", got)
	}
	for _, args := range [][]string{{"create", "--snapshot", "ba"}, {"rollback", "newer", "ba"}} {
		if got := sh.must(t, append([]string{"__complete"}, args...)...); !strings.HasPrefix(got, "base-state\t") || strings.Count(got, "base-state\t") != 1 {
			t.Errorf("%q completes to %q", args, got)
		}
	}
	ids := strings.Fields(sh.must(t, "snapshot", "ls", "-q"))
	if got := sh.must(t, "__complete", "snapshot", "rm", ids[0], "s"); strings.Contains(got, ids[0]) || !strings.Contains(got, ids[1]) {
		t.Errorf("of %q is completed %q", ids, got)
	}
	for name, want := range map[string]string{"no-such": `no snapshot "no-such"`, "Not A Name": "neither the ID nor the name"} {
		if got := sh.try(t, "", "create", "--snapshot", name); got.code != 1 || !strings.Contains(got.err, want) {
			t.Errorf("from %q: %+v", name, got)
		}
	}
}

func TestCommandExecListRemove(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-exec")
	id := strings.TrimSpace(sh.must(t, "create", "box", "--timeout", "20m", "--metadata", "team=blue", "-e", "A=1"))
	if again := strings.TrimSpace(sh.must(t, "create", "box", "--if-exists")); again != id {
		t.Errorf("the sandbox of that name is %q, not %q", again, id)
	}
	if r := sh.try(t, "", "create", "box"); r.code != 1 || !strings.Contains(r.err, "box") {
		t.Errorf("a second of that name: %+v", r)
	}
	for _, tt := range []struct {
		stdin string
		args  []string
		want  told
	}{
		{"", []string{"exec", "box", "printf", "%s|", "a b", "$A", "it's"}, told{"a b|$A|it's|", "", 0}},
		{"", []string{"exec", "--cwd", "/tmp", "-e", "B=2", "box", "--", "bash", "-c", "echo $A $B $PWD"}, told{"1 2 /tmp\n", "", 0}},
		{"", []string{"exec", "--user", "root", id, "id", "-un"}, told{"root\n", "", 0}},
		{"abc", []string{"exec", "-i", "box", "tr", "a-z", "A-Z"}, told{"ABC", "", 0}},
		{"abc", []string{"exec", "box", "cat"}, told{"", "", 0}},
		{"", []string{"exec", "box", "false"}, told{"", "", 1}},
		{"", []string{"exec", "box", "--timeout", "1", "--", "true"}, told{"", "before the SANDBOX", 125}},
		{"", []string{"rm", "none", "nor-this"}, told{"", "nor-this: no sandbox", 1}},
		{"", []string{"rm", "--ignore-missing", "none"}, told{"", "", 0}},
		{"", []string{"ls", "--bad"}, told{"", "unknown flag: --bad; see `cloud-sandbox ls --help`", 2}},
		{"", []string{"ls", "a", "b"}, told{"", "takes at most one", 2}},
		{"", []string{"ls", "--state", "odd"}, told{"", "state", 1}},
		{"", []string{"ls", "--json", "none:"}, told{"", `{"error":{"code":"not_found"`, 1}},
		{"", []string{"nonsense"}, told{"", "no command \"nonsense\"", 2}},
		{"", []string{"ls", "-q", "--metadata", "team=blue"}, told{id + "\n", "", 0}},
		{"", []string{"ls", "-q", "--metadata", "team=red"}, told{"", "", 0}},
	} {
		got := sh.try(t, tt.stdin, tt.args...)
		if got.out != tt.want.out || got.code != tt.want.code || !strings.Contains(got.err, tt.want.err) || tt.want.err == "" && got.err != "" {
			t.Errorf("%q: got %+v, want %+v", tt.args, got, tt.want)
		}
	}
	if other := newShell(t, "command-other"); other.try(t, "", "exec", id, "true").code != 125 || len(other.live(t)) != 0 {
		t.Error("another user sees it")
	}
	if got := sh.must(t, "__complete", "exec", "bo"); !strings.HasPrefix(got, "box\t") {
		t.Errorf("completed is %q", got)
	}
	if got := sh.must(t, "__complete", "cp", "box:/etc/host"); !strings.Contains(got, "box:/etc/hostname\n") {
		t.Errorf("completed is %q", got)
	}
	if got := sh.must(t, "rm", "box"); got != id+"\n" {
		t.Errorf("removed is %q", got)
	}
	var all []rig.Sandbox
	if err := json.Unmarshal([]byte(sh.must(t, "ls", "--all", "--json")), &all); err != nil || len(all) == 0 || all[0].Cause() != "released" {
		t.Errorf("the list says %+v, %v", all, err)
	}
}

// piped is a command with interactive input and output.
type piped struct {
	*exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
}

func (sh *shell) pipe(t *testing.T, args ...string) *piped {
	t.Helper()
	p := &piped{Cmd: sh.command(args...)}
	p.Stderr = &p.stderr
	out, err := p.StdoutPipe()
	if err == nil {
		p.out = bufio.NewReader(out)
		p.in, err = p.StdinPipe()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	return p
}

// answers writes a line and expects the line want.
func (p *piped) answers(t *testing.T, line, want string) {
	t.Helper()
	if _, err := io.WriteString(p.in, line); err != nil {
		t.Fatal(err)
	}
	if got, err := p.out.ReadString('\n'); got != want {
		t.Fatalf("%q is answered by %q, %v: %s", line, got, err, p.stderr.String())
	}
}

// A running program receives its input as it is written.
func TestCommandExecInput(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-input")
	c := sh.server.Client(t, "command-input")
	sh.must(t, "create", "box")

	p := sh.pipe(t, "exec", "-i", "box", "cat")
	p.answers(t, "one\n", "one\n")
	p.answers(t, "two\n", "two\n")
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("after the end of its input: %v: %s", err, p.stderr.String())
	}

	// Without children: once, a bash that was interrupted as its child ended used a whole
	// CPU in user mode from then on and took only SIGKILL. The cause is not known.
	p = sh.pipe(t, "exec", "-i", "box", "bash", "-c", "trap 'echo asked; exit 9' INT; read a; echo $a; while :; do read -t 0.1 b; done")
	p.answers(t, "x\n", "x\n")
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	p.answers(t, "", "asked\n")
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 9 {
		t.Errorf("the program that was interrupted: %v: %s", err, p.stderr.String())
	}

	p = sh.pipe(t, "exec", "-i", "box", "bash", "-c", "read a; echo $a; sleep 1234 & wait")
	p.answers(t, "x\n", "x\n")
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rig.Within(t, rig.Patience, "the program ends with its command", func() bool { return !sleeps(t, c) })

	for _, tt := range []struct {
		stdin string
		args  []string
		want  told
	}{
		{"abc", []string{"bash", "-c", "cat; echo err >&2; exit 7"}, told{"abc", "err\n", 7}},
		{"\xff\x00\xfe", []string{"cat"}, told{"\xff\x00\xfe", "", 0}},
		{"abc", []string{"no-such-program"}, told{"", "not found", 127}},
		{"abc", []string{"bash", "-c", "kill -9 $$"}, told{"", "signal 9", 137}},
		{strings.Repeat("y", 4<<20), []string{"head", "-c", "1"}, told{"y", "", 0}},
		{strings.Repeat("y", 4<<20), []string{"bash", "-c", "exec <&-; sleep 0.5; exit 3"}, told{"", "", 3}},
	} {
		got := sh.try(t, tt.stdin, append([]string{"exec", "-i", "box"}, tt.args...)...)
		if got.out != tt.want.out || got.code != tt.want.code || !strings.Contains(got.err, tt.want.err) || tt.want.err == "" && got.err != "" {
			t.Errorf("%q: got %+v, want %+v", tt.args, got, tt.want)
		}
	}
	if r := sh.try(t, "", "exec", "-i", "--timeout", "0.5", "box", "sleep", "1234"); r.code != 124 {
		t.Errorf("too long: %+v", r)
	}
	if r := sh.try(t, "", "exec", "-i", "none", "cat"); r.code != 125 || !strings.Contains(r.err, "no sandbox") {
		t.Errorf("without a sandbox: %+v", r)
	}
}

// Large input and output pass through unchanged in constant memory.
func TestCommandExecLargeInput(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-large")
	sh.must(t, "create", "box")
	const size = 48 << 20
	source := rand.NewChaCha8([32]byte{1})
	sent := sha256.New()
	cmd := sh.command("exec", "-i", "box", "cat")
	came := &measured{Hash: sha256.New(), cmd: cmd, at: size / 4 * 3}
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = io.TeeReader(io.LimitReader(source, size), sent), came, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	if !bytes.Equal(sent.Sum(nil), came.Sum(nil)) {
		t.Error("what came back is not what was sent")
	}
	if came.used == 0 || came.used > 100<<20 {
		t.Errorf("the command used %d bytes of memory", came.used)
	}
}

// measured hashes a command's output. After at bytes it reads the command's peak memory
// into used.
type measured struct {
	hash.Hash
	cmd  *exec.Cmd
	at   int
	used int64 // bytes
}

func (m *measured) Write(p []byte) (int, error) {
	if m.at > 0 && m.at <= len(p) {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
		_, peak, _ := strings.Cut(string(status), "VmHWM:")
		_, _ = fmt.Sscanf(peak, "%d kB", &m.used)
		m.used <<= 10
	}
	m.at -= len(p)
	return m.Hash.Write(p)
}

func TestCommandCopy(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-copy")
	sh.must(t, "create", "box")
	sh.write(t, "src/run.sh", "#!/bin/sh\necho ran\n", 0o755)
	sh.write(t, "src/deep/er/note", "a note", 0o640)
	if err := os.Symlink("deep/er/note", filepath.Join(sh.folder, "src/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(sh.folder, "src/away")); err != nil {
		t.Fatal(err)
	}
	sh.must(t, "cp", "src", "box:app") // app does not exist: it becomes the copy
	sh.must(t, "cp", "src", "box:app") // app exists: the copy goes into it
	got := sh.must(t, "exec", "box", "bash", "-c", "cd app; src/run.sh; stat -c '%a %N' run.sh deep/er/note link away src/run.sh")
	want := "ran\n755 'run.sh'\n640 'deep/er/note'\n777 'link' -> 'deep/er/note'\n777 'away' -> '/etc/hostname'\n755 'src/run.sh'\n"
	if got != want {
		t.Errorf("in the sandbox is\n%s", got)
	}
	sh.must(t, "cp", "box:app/.", "back")
	if note, err := os.ReadFile(filepath.Join(sh.folder, "back/link")); err != nil || string(note) != "a note" {
		t.Errorf("came back: %q, %v", note, err)
	}
	if info, err := os.Stat(filepath.Join(sh.folder, "back/src/run.sh")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("came back: %v, %v", info, err)
	}
	if _, err := os.Lstat(filepath.Join(sh.folder, "back/away")); !os.IsNotExist(err) {
		t.Errorf("a link that leads out came back: %v", err)
	}
	sh.must(t, "cp", "src/run.sh", "src/deep/er/note", "box:/tmp")
	sh.must(t, "cp", "box:/tmp/run.sh", ".")
	if info, err := os.Stat(filepath.Join(sh.folder, "run.sh")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("a file came back: %v, %v", info, err)
	}
	sh.try(t, "from stdin", "cp", "-q", "-", "box:/tmp/s")
	if got := sh.must(t, "cp", "-q", "box:/tmp/s", "-"); got != "from stdin" {
		t.Errorf("through standard input and output came %q", got)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 2<<20)
	sh.write(t, "big", string(big), 0o644)
	sh.must(t, "cp", "big", "box:")
	sh.must(t, "cp", "box:big", "again")
	if back, err := os.ReadFile(filepath.Join(sh.folder, "again")); err != nil || !bytes.Equal(back, big) {
		t.Errorf("32 MiB came back as %d bytes, %v", len(back), err)
	}
	for _, tt := range []struct {
		args []string
		code int
		err  string
	}{
		{[]string{"a", "b"}, 2, "neither a nor b is in a sandbox"},
		{[]string{"box:a", "box:b"}, 2, "both box:a and box:b"},
		{[]string{"none", "box:"}, 1, "no such file"},
		{[]string{"big", "none:"}, 1, "no sandbox"},
		{[]string{"box:none", "."}, 1, "does not exist"},
		{[]string{"box:../x", "."}, 1, "must not hold .."},
		{[]string{"big", "src", "box:none"}, 2, "is not a directory"},
		{[]string{"box:app", "big"}, 1, "is a local file"},
		{[]string{"box:app", "-"}, 2, "is a directory"},
		{[]string{"src", "box:big"}, 1, "cloud-sandbox: "},
		{[]string{"--max-gib", "0.001", "box:big", "less"}, 1, "--max-gib"},
		{[]string{"big"}, 2, "a SOURCE or more"},
	} {
		r := sh.try(t, "", append([]string{"cp"}, tt.args...)...)
		if r.code != tt.code || !strings.Contains(r.err, tt.err) {
			t.Errorf("%q: %+v, want %d and %q", tt.args, r, tt.code, tt.err)
		}
	}
	if _, err := os.Lstat(filepath.Join(sh.folder, "less")); !os.IsNotExist(err) {
		t.Errorf("half a file stayed: %v", err)
	}
}

func TestCommandPorts(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-ports")
	sh.must(t, "create", "box")
	if got := sh.must(t, "ports", "box", "--json"); got != "[]\n" {
		t.Errorf("before: %s", got)
	}
	c := sh.server.Client(t, "command-ports")
	c.Run(t, "box", "python", "import socket; a = socket.create_server(('127.0.0.1', 8000)); b = socket.create_server(('::', 8001), family=socket.AF_INET6)", nil)
	var ports []struct {
		Port                  int
		Address, Process, URL string
		Loopback, Agent       bool
	}
	if err := json.Unmarshal([]byte(sh.must(t, "ports", "box", "--json")), &ports); err != nil || len(ports) != 2 ||
		ports[0].Port != 8000 || ports[0].Address != "127.0.0.1" || !strings.Contains(ports[0].Process, "python") || ports[1].Port != 8001 {
		t.Errorf("listening are %+v, %v", ports, err)
	}
	if len(ports) == 2 && (!ports[0].Loopback || ports[1].Loopback || !strings.HasPrefix(ports[0].URL, "http://8000-i")) {
		t.Errorf("listening are %+v", ports)
	}
	if got := sh.must(t, "ports", "box"); !strings.Contains(got, "\n8000   127.0.0.1") || !strings.Contains(got, "http://8000-i") {
		t.Errorf("the table is\n%s", got)
	}
	ports = nil
	if err := json.Unmarshal([]byte(sh.must(t, "ports", "box", "--json", "--all")), &ports); err != nil || len(ports) <= 2 {
		t.Errorf("with the agent's %+v, %v", ports, err)
	}
	if got := sh.try(t, "", "ports", "none"); got.code != 1 || !strings.Contains(got.err, "no sandbox") {
		t.Errorf("of none: %+v", got)
	}
}

func TestBenchFromTheCommandLine(t *testing.T) {
	sh := newShell(t, "bench")
	r := sh.try(t, "", "bench", "--rounds", "2", "--calls", "2", "--burst", "2", "--size-mb", "1", "--live", "3", "--json")
	var report struct {
		Machine string
		Series  []struct {
			Operation string
			Samples   []int64 `json:"samples_ns"`
			Failures  int
		}
		Facts []struct {
			What  string
			Value float64
		}
	}
	if err := json.Unmarshal([]byte(r.out), &report); err != nil || r.code != 0 {
		t.Fatalf("exit code %d, %v: %s", r.code, err, r.err)
	}
	facts := 3
	if rig.IsCluster() {
		facts = 2 // the sandboxes' memory is on another machine
	}
	if len(report.Series) < 10 || len(report.Facts) != facts || report.Machine == "" {
		t.Errorf("%d series and %d facts on %q: %s", len(report.Series), len(report.Facts), report.Machine, r.err)
	}
	for _, s := range report.Series {
		if s.Failures != 0 || len(s.Samples) < 2 || s.Samples[0] <= 0 {
			t.Errorf("%s: %+v", s.Operation, s)
		}
	}
	for _, f := range report.Facts[:2] {
		if f.Value <= 0 {
			t.Errorf("%s is %v", f.What, f.Value)
		}
	}
	kept := t.TempDir()
	r = sh.try(t, "", "bench", "--rounds", "2", "--calls", "2", "--burst", "2", "--size-mb", "0", "--parts", "^calls$", "--out", filepath.Join(kept, "new"))
	page, err := os.ReadFile(filepath.Join(kept, "new", "report.md"))
	if r.code != 0 || err != nil || !strings.Contains(r.out, "| calls |") || !strings.HasSuffix(string(page), r.out) {
		t.Errorf("one part: exit code %d, %v, printed\n%s\nbut kept\n%s", r.code, err, r.out, page)
	}
	if r := sh.try(t, "", "bench", "--parts", "nonsense"); r.code != 1 || !strings.Contains(r.err, "creates, calls, burst of 10, transfers") {
		t.Errorf("no part: %d, %s", r.code, r.err)
	}
	for _, flag := range []string{"--full", "--quick"} { // flags of the bench build only
		if r := sh.try(t, "", "bench", flag); r.code != 2 {
			t.Errorf("%s: %d, %s", flag, r.code, r.err)
		}
	}
	if r := sh.try(t, "", "bench", "--live", "-1"); r.code != 2 || !strings.Contains(r.err, "--live must be from 0") {
		t.Errorf("a negative number: %d, %s", r.code, r.err)
	}
}

// A server on this machine is found by its data folder.
func TestCommandFindsServer(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-finds")
	cmd := sh.command("run", "--data", sh.server.Data, "-c", "print('found')")
	cmd.Env = append(cmd.Env, "CLOUD_SANDBOX_URL=")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "found\n" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestCommandSecret(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "cli-secret")
	for _, value := range []string{"first value\n", "second value\n"} {
		if got := sh.try(t, value, "secret", "set", "KEY", "--description", "for tests"); got.code != 0 || got.out != "KEY\n" {
			t.Fatalf("%+v", got)
		}
	}
	if out := sh.must(t, "secret", "ls"); !strings.Contains(out, "KEY") || !strings.Contains(out, "for tests") || strings.Contains(out, "value") {
		t.Errorf("ls: %s", out)
	}
	var list []struct{ Name, Value string }
	if err := json.Unmarshal([]byte(sh.must(t, "secret", "ls", "--json")), &list); err != nil || len(list) != 1 || list[0].Name != "KEY" || list[0].Value != "" {
		t.Errorf("ls --json: %v, %v", list, err)
	}
	for _, tt := range []struct {
		stdin, words string
		args         []string
		code         int
	}{
		{"", "standard input is empty", []string{"set", "KEY"}, 2},
		{"", "is not set", []string{"set", "KEY", "--from-env", "NO_SUCH_VARIABLE"}, 2},
		{"a\nb\n", "line breaks", []string{"set", "KEY"}, 1},
		{"a", "the name of a secret", []string{"set", "no/name"}, 1},
		{"", "one NAME", []string{"set"}, 2},
		{"", "no secret", []string{"rm", "NONE"}, 1},
	} {
		if got := sh.try(t, tt.stdin, append([]string{"secret"}, tt.args...)...); got.code != tt.code || !strings.Contains(got.err, tt.words) {
			t.Errorf("%v: %+v", tt.args, got)
		}
	}
	for _, args := range [][]string{{"secret", "rm", "K"}, {"secret", "set", "K"}, {"create", "--secret", "K"}} {
		if got := sh.must(t, append([]string{"__complete"}, args...)...); !strings.HasPrefix(got, "KEY") {
			t.Errorf("%q completes to %q", args, got)
		}
	}
	if out := sh.must(t, "secret", "rm", "KEY"); out != "KEY\n" {
		t.Errorf("rm: %s", out)
	}
}

// serveRaw listens on loopback. It reads each connection to its end, replies with the
// number of bytes, and closes it.
const serveRaw = `import socket
s = socket.create_server(("127.0.0.1", 9000))
while True:
    c, _ = s.accept()
    n = 0
    while data := c.recv(65536):
        n += len(data)
    c.sendall(b"got %d" % n)
    c.close()
`

// Ports of a sandbox are forwarded to ports of this machine.
func TestCommandForward(t *testing.T) {
	t.Parallel()
	sh := newShell(t, "command-forward")
	sh.must(t, "create", "box")
	sh.must(t, "exec", "-d", "--cwd", "/etc", "box", "python3", "-m", "http.server", "8000")
	sh.must(t, "exec", "-d", "box", "python3", "-c", serveRaw)
	sh.must(t, "exec", "box", "bash", "-c", "until (: </dev/tcp/127.0.0.1/8000) && (: </dev/tcp/127.0.0.1/9000); do sleep 0.1; done 2>/dev/null")
	p := sh.pipe(t, "ports", "box", "--forward", "0:8000", "-f", "0:9000", "-f", "0:1")
	local := map[string]string{}
	for range 3 {
		line, err := p.out.ReadString('\n')
		address, port, ok := strings.Cut(strings.TrimSpace(line), " -> ")
		if err != nil || !ok {
			t.Fatalf("it says %q, %v: %s", line, err, p.stderr.String())
		}
		local[port] = address
	}
	for range 2 {
		resp, err := http.Get("http://" + local["8000"] + "/hostname")
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || len(body) == 0 {
			t.Errorf("HTTP answers %d %q, %v", resp.StatusCode, body, err)
		}
		resp.Body.Close()
	}
	const size = 5 << 20
	conn, err := net.Dial("tcp", local["9000"])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != fmt.Sprintf("got %d", size) {
		t.Errorf("after the end of what is sent: %q, %v", got, err)
	}
	nobody, err := net.Dial("tcp", local["1"])
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	if got, err := io.ReadAll(nobody); err != nil || len(got) > 0 {
		t.Errorf("where nobody listens: %q, %v", got, err)
	}
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil || !strings.Contains(p.stderr.String(), "nothing listens on port 1") {
		t.Errorf("it ends with %v and says %q", err, p.stderr.String())
	}
	for _, tt := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"box", "--forward", "80:"}, "LOCAL:PORT", 2},
		{[]string{"box", "--forward", "0"}, "LOCAL:PORT", 2},
		{[]string{"box", "--forward", "1:70000"}, "LOCAL:PORT", 2},
		{[]string{"box", "--address", "::1"}, "--address needs --forward", 2},
		{[]string{"none", "--forward", "0:80"}, "no sandbox", 1},
	} {
		if got := sh.try(t, "", append([]string{"ports"}, tt.args...)...); got.code != tt.code || !strings.Contains(got.err, tt.want) {
			t.Errorf("%q: %+v", tt.args, got)
		}
	}
}
