// Package hostile attacks a real server from inside its sandboxes.
package hostile

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

var shared = rig.Shared{Options: rig.Options{Pool: 3}}

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// An attack is code that must be stopped without stopping anything else.
type attack struct {
	name, language, code string

	create   rig.Body      // of the session; nil: one from the Pool
	timeout  float64       // seconds, zero: 60
	want     []string      // allowed statuses
	within   time.Duration // zero: the timeout and six seconds
	check    func(*testing.T, rig.Result)
	after    string // cleanup in bash, which runs first after the attack
	mayBeEnd bool   // the attack may end its own sandbox
	slow     bool   // the next execution may wait for the end of the attack's processes
	leaves   bool   // its processes may outlive the execution
}

var attacks = []attack{
	{name: "infinite loop", language: "python", code: "while True: pass", timeout: 1, want: []string{"timeout"}},
	{
		name: "infinite loops on every core", language: "bash", timeout: 1, want: []string{"timeout"},
		code: "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait",
	},
	{name: "endless output", language: "bash", code: "yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa & yes bbbbbbbbbbbbbbbbbbb >&2", timeout: 5, want: []string{"timeout"}, check: cut},
	{
		name: "endless output without a line end", language: "python", timeout: 5, want: []string{"timeout"}, check: cutStdout,
		code: "import sys\nwhile True: sys.stdout.write('x' * 65536)",
	},
	{name: "fork bomb in bash", language: "bash", code: ":(){ :|:& };:; sleep 30", want: []string{"pids", "timeout"}, timeout: 5, leaves: true, slow: true},
	{
		name: "fork bomb in Python", language: "python", want: []string{"oom"}, slow: true,
		code: "import os\nwhile True: os.fork()",
	},
	{
		name: "thread bomb", language: "python", want: []string{"pids", "error", "timeout"}, timeout: 4,
		code: "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(1000,)).start()",
	},
	{
		name: "memory bomb in Python", language: "python", want: []string{"oom"},
		code: "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
	},
	{
		name: "memory bomb at once", language: "python", want: []string{"oom", "error"},
		code: "kept = bytearray(4 << 30)",
	},
	{
		name: "memory bomb in JavaScript", language: "javascript", want: []string{"oom"},
		code: "const kept = []; for (;;) kept.push(Buffer.alloc(1 << 20, 1))",
	},
	{name: "tail of an endless line", language: "bash", code: "tail /dev/zero", want: []string{"oom"}},
	{
		name: "memory bomb of many processes", language: "bash", want: []string{"oom"},
		code: "for i in $(seq 40); do python3 -c 'x = bytearray(30 << 20)\nimport time; time.sleep(60)' & done; wait",
	},
	{
		name: "files in memory", language: "bash", want: []string{"oom", "error", "disk_full"}, after: "rm -f /dev/shm/fill",
		code: "dd if=/dev/zero of=/dev/shm/fill bs=1M count=4096",
	},
	{
		name: "disk filler", language: "bash", create: rig.Body{"resources": rig.Body{"disk_mb": 96}}, want: []string{"disk_full"}, after: "rm -f /workspace/fill",
		code: "dd if=/dev/zero of=/workspace/fill bs=1M count=4096",
	},
	{
		name: "a million files", language: "python", create: rig.Body{"resources": rig.Body{"disk_mb": 96}}, timeout: 5, want: []string{"disk_full", "timeout", "error", "oom"}, after: "rm -rf /workspace/many",
		code: "import os\nos.makedirs('/workspace/many')\nfor i in range(1000000): open(f'/workspace/many/{i}', 'w').write('x')",
	},
	{
		name: "deaf to SIGTERM", language: "bash", timeout: 1, want: []string{"timeout"},
		code: "trap '' TERM INT HUP QUIT; while :; do sleep 1; done",
	},
	{name: "kills its parent", language: "bash", code: "kill -9 $PPID; kill -9 1; kill -TERM 1; kill -STOP 1; echo still here", want: []string{"ok"}},
	{name: "kills everything", language: "bash", code: "kill -9 -1", want: []string{"killed", "ok", "error"}},
	{name: "kills everything as root", language: "bash", code: "sudo kill -9 1; sudo kill -9 -1", want: []string{"killed", "ok", "error"}, mayBeEnd: true},
	{
		name: "daemons", leaves: true, language: "bash", want: []string{"ok"}, within: 30 * time.Second,
		code: "nohup sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >/dev/null 2>&1 & (sleep 1000 &) ; echo left",
	},
	{
		name: "daemons that hold the output", leaves: true, language: "bash", want: []string{"ok"}, within: 30 * time.Second,
		code: "setsid sleep 1000 & echo left",
	},
	// Known limit: a process with a new session, another parent and an empty environment
	// is not always found.
	{name: "hides in a new session with no environment", leaves: true, language: "python", timeout: 2, want: []string{"timeout"}, code: hide + "\nwhile True: pass"},
	{name: "hides and ends", leaves: true, language: "python", want: []string{"ok"}, within: 30 * time.Second, code: hide},
	{name: "forks faster than it can be killed", leaves: true, language: "python", timeout: 2, want: []string{"timeout", "pids", "ok"}, // the first one ends at once: the rest are daemons
		code: "import os\nfor i in range(8):\n  if os.fork() == 0: break\nos.setsid() if os.getpid() != os.getpgrp() else 0\nwhile True:\n  if os.fork(): os._exit(0)\n  os.setsid()"},
	{
		name: "writes into the guest", language: "bash", want: []string{"ok", "error"},
		code: "for p in /.cloud-sandbox /proc/1/mem /proc/1/exe; do sudo sh -c \"echo x > $p\"; sudo rm -rf $p; sudo umount $p; done 2>/dev/null; true",
	},
}

const hide = `import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(64):
            try: os.close(fd)
            except OSError: pass
        os.execve('/usr/bin/env', ['env', '-i', '/bin/sleep', '1000'], {})
    os._exit(0)
os.wait()`

// cut checks that both streams are truncated at the limit and report the dropped bytes.
func cut(t *testing.T, r rig.Result) {
	cutStdout(t, r)
	if r.Truncated == nil || r.Truncated.StderrBytesDropped == 0 || len(r.Stderr) != 1<<20 {
		t.Errorf("stderr has %d bytes and was cut: %+v", len(r.Stderr), r.Truncated)
	}
}

func cutStdout(t *testing.T, r rig.Result) {
	if r.Truncated == nil || r.Truncated.StdoutBytesDropped == 0 || len(r.Stdout) != 1<<20 {
		t.Errorf("stdout has %d bytes and was cut: %+v", len(r.Stdout), r.Truncated)
	}
}

// Every attack is stopped at its limit with its status. Its Sandbox keeps running with
// its files, no process is left behind, and a neighbour is not delayed.
func TestAttacks(t *testing.T) {
	s := shared.Server(t)
	attacker, other := s.Client(t, "attacker"), s.Client(t, "neighbour")
	near := other.Acquire(t)
	other.Sh(t, near, "true")
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			// A real effect on the neighbour repeats. A single delay may come from the
			// machine.
			var d time.Duration
			for range 3 {
				s.PoolIdle(t) // otherwise starts would delay the neighbour
				worst := watchNeighbour(t, other, near)
				run(t, attacker, a)
				if d = worst(); d <= 2*time.Second || t.Failed() {
					return
				}
			}
			t.Errorf("the neighbour waited %v for `true`", d)
		})
	}
}

// watchNeighbour runs `true` in a Sandbox repeatedly until worst is called. worst
// returns the longest duration.
func watchNeighbour(t *testing.T, c *rig.Client, id string) (worst func() time.Duration) {
	t.Helper()
	quit, done := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		var slowest time.Duration
		defer func() { done <- slowest }()
		for {
			began := time.Now()
			if r, err := c.TryRun(id, "bash", "true", nil); err != nil || r.Status != "ok" {
				t.Errorf("the neighbour's execute failed: %v %s", err, r)
				return
			}
			slowest = max(slowest, time.Since(began))
			select {
			case <-quit:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	var once sync.Once
	end := func() { once.Do(func() { close(quit) }) }
	t.Cleanup(end)
	return func() time.Duration { end(); return <-done }
}

func run(t *testing.T, c *rig.Client, a attack) {
	t.Helper()
	id := ""
	if a.create != nil {
		id = c.Create(t, a.create).ID
	} else {
		id = c.Acquire(t)
	}
	c.Must(t, "PUT", rig.Files("", id, "/workspace/kept"), []byte("precious"), nil)
	if a.timeout == 0 {
		a.timeout = 60
	}
	if a.within == 0 {
		a.within = time.Duration(a.timeout*float64(time.Second)) + 20*time.Second
	}
	began := time.Now()
	r, err := c.TryRun(id, a.language, a.code, rig.Body{"timeout_seconds": a.timeout})
	took := time.Since(began)
	t.Logf("%v: %v", took.Round(time.Millisecond), r)
	if took > a.within {
		t.Errorf("it took %v, more than %v", took, a.within)
	}
	if a.mayBeEnd && endedByItself(t, c, id) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(a.want, r.Status) {
		t.Errorf("the status is %q, want one of %q", r.Status, a.want)
	}
	if a.check != nil {
		a.check(t, r)
	}
	livesOn(t, c, id, a.after, a.slow)
	if left := processes(t, c, id); len(left) > 0 && !a.leaves {
		t.Errorf("left behind: %q", left)
	}
}

// A guest that its user stopped delays only that user: an execution times out and a
// release works.
func TestStoppedGuest(t *testing.T) {
	s := shared.Server(t)
	c := s.Client(t, "stopper")
	id := c.Acquire(t)
	began := time.Now()
	r, err := c.TryRun(id, "bash", "sudo kill -STOP 1; sleep 100", rig.Body{"timeout_seconds": 1})
	if d := time.Since(began); d > 25*time.Second {
		t.Errorf("an execution of 1 s took %v: %v %v", d, r, err)
	}
	began = time.Now()
	c.Must(t, "POST", "/api/v1/sandbox/release", rig.Body{"sandbox_id": id}, nil)
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("the release took %v", d)
	}
}

// endedByItself reports whether the attack ended its own Sandbox. If so, it checks the
// recorded cause.
func endedByItself(t *testing.T, c *rig.Client, id string) bool {
	t.Helper()
	var last rig.Sandbox
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if last = c.Get(t, id); last.State == "ended" {
			if cause := last.Cause(); cause != "guest_exit" {
				t.Errorf("it ended with the cause %q", cause)
			}
			return true
		}
		if r, err := c.TryRun(id, "bash", "echo alive", rig.Body{"timeout_seconds": 2}); err == nil && r.Stdout == "alive\n" && c.Get(t, id).State == "running" {
			return false
		}
	}
	t.Errorf("it neither answers nor has it ended: %+v", last)
	return true
}

func livesOn(t *testing.T, c *rig.Client, id, after string, slow bool) {
	t.Helper()
	patience := 20 * time.Second
	if slow {
		patience = 40 * time.Second
	}
	if after != "" {
		c.Sh(t, id, after)
	}
	began := time.Now()
	if r := c.Run(t, id, "python", "print(6*7)", rig.Body{"timeout_seconds": 10 + patience.Seconds()}); r.Stdout != "42\n" {
		t.Errorf("the next execution: %s", r)
	}
	if d := time.Since(began); d > patience {
		t.Errorf("the next execution took %v", d)
	}
	status, kept, err := c.Do("GET", rig.Files("", id, "/workspace/kept"), nil)
	if err != nil || status != 200 || string(kept) != "precious" {
		t.Errorf("the file is %q: %d %v", kept, status, err)
	}
	if s := c.Get(t, id); s.State != "running" {
		t.Errorf("the sandbox is %s: %s", s.State, s.Cause())
	}
}

// processes lists the processes in a Sandbox except its guest, its interpreters and the
// listing shell.
func processes(t *testing.T, c *rig.Client, id string) (left []string) {
	t.Helper()
	out := c.Sh(t, id, `for p in /proc/[0-9]*; do pid=${p#/proc/}; [ $pid = 1 ] || [ $pid = $$ ] || echo "$pid $(tr '\0\n' '  ' <$p/cmdline)"; done 2>/dev/null`)
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); !strings.Contains(line, "cloud-sandbox-context") {
			left = append(left, line)
		}
	}
	return left
}

// Code has no capability that allows an escape or access to other Sandboxes, as user or
// as root.
func TestRightsInside(t *testing.T) {
	c := shared.Server(t).Client(t, "rights")
	id := c.Acquire(t)
	if got := c.Sh(t, id, "id -un; id -u; sudo id -u; pwd"); got != "user\n1000\n0\n/workspace\n" {
		t.Errorf("the users are %q", got)
	}
	for _, as := range []string{"", "sudo "} {
		t.Run("as "+as, func(t *testing.T) {
			for line := range strings.Lines(c.Sh(t, id, as+"grep ^Cap /proc/self/status")) {
				name, hex, _ := strings.Cut(strings.TrimSpace(line), ":")
				caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
				if err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				for bit, right := range map[int]string{12: "NET_ADMIN", 13: "NET_RAW", 16: "SYS_MODULE", 17: "SYS_RAWIO", 19: "SYS_PTRACE", 21: "SYS_ADMIN"} {
					if caps&(1<<bit) != 0 {
						t.Errorf("%s holds %s", name, right)
					}
				}
			}
		})
	}
	for _, forbidden := range []string{
		"sudo mount -t tmpfs none /mnt", "sudo ip link set eth0 down", "sudo unshare -n true", "sudo chroot / mount -t proc p /mnt", "sudo dmesg -C && test -w /dev/kmsg",
		"sudo python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)'",
		"sudo python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
	} {
		if r := c.Run(t, id, "bash", forbidden, nil); r.Status == "ok" {
			t.Errorf("%s worked", forbidden)
		}
	}
}

// A sentry runs as the user nobody, without rights on the host.
func TestRightsOfTheSentry(t *testing.T) {
	s := shared.Server(t)
	c := s.Client(t, "sentry")
	id := c.Acquire(t)
	p := s.SentryOf(t, id)
	status := rig.Status(t, p.Pid)
	for field, want := range map[string]string{
		"Uid": "65534\t65534\t65534\t65534", "Gid": "65534\t65534\t65534\t65534",
		"CapEff": zeros, "CapPrm": zeros, "CapInh": zeros, "CapAmb": zeros, "CapBnd": zeros,
		"NoNewPrivs": "1", "Seccomp": "2",
	} {
		if status[field] != want {
			t.Errorf("%s of the sentry is %q, want %q", field, status[field], want)
		}
	}
}

const zeros = "0000000000000000"

// The server and the link shards, which parse data from guests and clients, have no
// capabilities either.
func TestRightsOfTheServer(t *testing.T) {
	s := shared.Server(t)
	for _, role := range []rig.Role{rig.ServerRole, rig.LinkShard} {
		for _, p := range s.Processes(role) {
			status := rig.Status(t, p.Pid)
			if uid, _, _ := strings.Cut(status["Uid"], "\t"); uid == "0" {
				t.Errorf("the %s runs as root", role)
			}
			for _, field := range []string{"CapEff", "CapPrm", "CapInh", "CapAmb"} {
				if status[field] != zeros {
					t.Errorf("%s of the %s is %q", field, role, status[field])
				}
			}
			if groups := status["Groups"]; role == rig.LinkShard && groups != "" {
				t.Errorf("the %s is in the groups %q", role, groups)
			}
			if role == rig.LinkShard && status["NoNewPrivs"] != "1" {
				t.Errorf("the %s may gain rights", role)
			}
		}
	}
}

// Every call about another Tenant's Sandbox gets the same answer as one about an absent
// Sandbox.
func TestOtherTenantsSandboxIsAbsent(t *testing.T) {
	s := shared.Server(t)
	owner, thief := s.Client(t, "owner"), s.Client(t, "thief")
	id := owner.Create(t, rig.Body{"name": "mine"}).ID
	const absent = "i0123456789abcdefghij"
	type call struct {
		method, path string
		body         any
	}
	calls := func(id string) []call {
		return []call{
			{"GET", "/api/v1/sessions/" + id, nil},
			{"DELETE", "/api/v1/sessions/" + id, nil},
			{"POST", "/api/v1/sessions/" + id + "/timeout", rig.Body{"timeout_seconds": 1}},
			{"POST", "/api/v1/sandbox/release", rig.Body{"sandbox_id": id}},
			{"POST", "/api/v1/execute", rig.Body{"sandbox_id": id, "language": "bash", "code": "true"}},
			{"POST", "/api/v1/execute", rig.Body{"session_id": id, "language": "bash", "code": "true", "stream": true}},
			{"POST", "/api/v1/execute", rig.Body{"session_id": id, "context_id": "python", "code": "1"}},
			{"GET", "/api/v1/contexts?sandbox_id=" + id, nil},
			{"POST", "/api/v1/contexts", rig.Body{"sandbox_id": id, "language": "python"}},
			{"POST", "/api/v1/contexts/python/restart", rig.Body{"sandbox_id": id}},
			{"POST", "/api/v1/contexts/no/interrupt", rig.Body{"sandbox_id": id}},
			{"DELETE", "/api/v1/contexts/python?sandbox_id=" + id, nil},
			{"GET", rig.Files("", id, "/etc/passwd"), nil},
			{"PUT", rig.Files("", id, "/workspace/x"), []byte("x")},
			{"DELETE", rig.Files("", id, "/workspace/x"), nil},
			{"GET", rig.Files("/list", id, "/workspace"), nil},
			{"GET", rig.Files("/stat", id, "/workspace"), nil},
			{"POST", "/api/v1/files/mkdir", rig.Body{"sandbox_id": id, "path": "/workspace/d"}},
			{"POST", "/api/v1/files/move", rig.Body{"sandbox_id": id, "source": "/a", "destination": "/b"}},
		}
	}
	missing, names := calls(absent), calls("nothing")
	for i, real := range calls(id) {
		t.Run(real.method+" "+strings.SplitN(missing[i].path, "?", 2)[0], func(t *testing.T) {
			wantCode, want := answer(t, thief, missing[i].method, missing[i].path, missing[i].body)
			if wantCode != 404 {
				t.Errorf("an absent sandbox answers %d: %s", wantCode, want)
			}
			if code, got := answer(t, thief, real.method, real.path, real.body); code != wantCode || strings.ReplaceAll(got, id, absent) != want { // both answers repeat the ID
				t.Errorf("another's sandbox answers %d %s, an absent one %d %s", code, got, wantCode, want)
			}
			named := calls("mine")[i]
			if code, got := answer(t, thief, named.method, named.path, named.body); code != wantCode {
				t.Errorf("another's name answers %d %s", code, got)
			} else if _, none := answer(t, thief, names[i].method, names[i].path, names[i].body); strings.ReplaceAll(got, "mine", "nothing") != none {
				t.Errorf("another's name answers %s, an absent one %s", got, none)
			}
		})
	}
	if got := owner.Get(t, id); got.State != "running" {
		t.Errorf("the owner's sandbox is %s", got.State)
	}
	var page struct{ Sessions []rig.Sandbox }
	thief.Must(t, "GET", "/api/v1/sessions?limit=100", nil, &page)
	if len(page.Sessions) != 0 {
		t.Errorf("another's list shows %+v", page.Sessions)
	}
}

func answer(t *testing.T, c *rig.Client, method, path string, body any) (int, string) {
	t.Helper()
	code, raw, err := c.Do(method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return code, string(raw)
}
