package gvisor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// makeTree makes files of all kinds in the writable layer, and changes files of the
// image.
const makeTree = `set -e
mkdir -p /workspace/tree/a/b && cd /workspace/tree
python3 -c "
import random
r = random.Random(1)
with open('big', 'wb') as f:
    for _ in range(100): f.write(r.randbytes(1 << 20))
with open('sparse', 'wb') as f:
    f.seek(64 << 20); f.write(b'end')
for i in range(500): open(f'a/b/{i}', 'wb').write(r.randbytes(r.randrange(9000)))
"
ln big hard && ln -s ../nowhere soft && mkfifo pipe && chmod 4751 a/b/7 && touch -d 2001-02-03T04:05:06.789 a/b/8
sudo chown 7:8 a/b/9 && sudo rm /etc/issue && sudo rm -r /usr/share/doc/bash && sudo mkdir /usr/share/doc/bash
sudo sh -c 'echo changed >>/etc/motd; echo new >/usr/share/doc/bash/new'`

// sumTree prints a checksum of the files of makeTree, with owners, modes, times and links.
// sumFiles omits times, because a save of files alone rounds them to seconds.
const sumTree = `cd /workspace/tree
{ find . -type f -print0 | sort -z | xargs -0 sha256sum; cat /etc/motd
find . /usr/share/doc/bash -printf '%p %y %m %U %G %s %T@ %l %n\n' | sort; ls /etc/issue; } 2>&1 | sha256sum`

var sumFiles = strings.Replace(sumTree, " %T@", "", 1)

// beginPython sets up state in a Python context that a saved Boot must keep: threads, a
// server with a connected client, a transaction, half a file, a file without a name,
// memory and a child.
const beginPython = `import hashlib, http.client, http.server, os, random, sqlite3, subprocess, threading, time, uuid
n = 0
def count():
    global n
    while True:
        n += 1
        with open("/dev/shm/count.new", "w") as f: f.write(str(n))
        os.rename("/dev/shm/count.new", "/dev/shm/count")
        time.sleep(0.002)
for _ in range(4): threading.Thread(target=count if _ == 0 else time.sleep, args=() if _ == 0 else (1e6,), daemon=True).start()
class Pong(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "4"); self.end_headers(); self.wfile.write(b"pong")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8099), Pong)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = http.client.HTTPConnection("127.0.0.1", 8099)
def ping(): client.request("GET", "/"); return client.getresponse().read().decode()
ping()
db = sqlite3.connect("/workspace/db", check_same_thread=False)
db.execute("create table t (x)"); db.commit(); db.execute("insert into t values (42)")
memory = random.Random(7).randbytes(50 << 20); digest = hashlib.sha256(memory).hexdigest()
half = open("/workspace/half", "w"); half.write("first "); half.flush()
nameless = open("/workspace/nameless", "w+"); nameless.write("still here"); nameless.flush(); os.unlink("/workspace/nameless")
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
random.seed(1)`

// goOnPython prints the state that beginPython has set up.
const goOnPython = `half.write("second"); half.flush(); nameless.seek(0)
db.commit()
child.stdin.write("hello\n"); child.stdin.flush()
before = n
while n == before: time.sleep(0.001)
print(ping(), list(db.execute("select x from t")), hashlib.sha256(memory).hexdigest() == digest, open("/workspace/half").read(),
    nameless.read(), child.stdout.readline().strip(), subprocess.call("true"))`

const wentOnPython = "pong [(42,)] True first second still here hello 0"

const beginNode = `const net = require("net"); let ticks = 0; setInterval(() => ticks++, 5).unref();
const server = net.createServer((s) => s.pipe(s)).listen(8098, "127.0.0.1");
await new Promise((go) => server.once("listening", go));
const peer = net.connect(8098, "127.0.0.1");
const echo = (text) => new Promise((go) => { peer.once("data", (d) => go(String(d))); peer.write(text); });
await echo("one")`

const goOnNode = `const before = ticks; while (ticks === before) await new Promise((go) => setTimeout(go, 2)); await echo("two")`

// draw prints random numbers of Python and Node.
const drawPython = "print(random.random(), uuid.uuid4(), os.urandom(4).hex())"

// terminal and stopped are the IDs of Processes outside of contexts: a shell on a
// terminal with a job, and a shell that has stopped itself.
const terminal, stopped = "#terminalterminal", "#stoppedstopped00"

func beginPrograms(t *testing.T, e sandbox.Engine, id string) {
	t.Helper()
	g := guestOf(e, id)
	defer g.Close()
	for _, req := range []execution.ProcessStart{
		{ID: terminal, Args: []string{"bash", "--norc"}, PTY: &execution.TerminalSize{Cols: 80, Rows: 24}},
		{ID: stopped, Command: "kill -STOP $$; echo went on"},
	} {
		if _, err := g.StartProcess(t.Context(), req); err != nil {
			t.Fatalf("start %s: %v", req.ID, err)
		}
	}
	typed(t, e, id, terminal, "x=41; sleep 1000 & echo begun: $x\n", "begun: 41\r\n")
	for deadline := time.Now().Add(time.Minute); stateOf(t, e, id, stopped) != "T"; {
		if time.Now().After(deadline) {
			t.Fatal("the process did not stop itself")
		}
	}
}

// programsGoOn checks that the terminal's shell has its variable and its job, and that
// the stopped Process is still stopped and can be continued.
func programsGoOn(t *testing.T, e sandbox.Engine, id string) {
	t.Helper()
	typed(t, e, id, terminal, "jobs; echo v$((x + 1))\n", "Running                 sleep 1000 &\r\nv42\r\n")
	if s := stateOf(t, e, id, stopped); s != "T" {
		t.Errorf("the stopped process is in state %s", s)
	}
	g := guestOf(e, id)
	defer g.Close()
	if _, err := g.SignalProcess(t.Context(), stopped, 18); err != nil {
		t.Errorf("continue the stopped process: %v", err)
	}
	listen(t, e, id, stopped, 0, "went on\n")
}

// stateOf returns the state of a Process, as ps(1) shows it.
func stateOf(t *testing.T, e sandbox.Engine, id, process string) string {
	t.Helper()
	g := guestOf(e, id)
	defer g.Close()
	info, err := g.GetProcess(t.Context(), process)
	if err != nil {
		t.Fatalf("the process %s: %v", process, err)
	}
	return sh(t, e, id, fmt.Sprintf("sed 's/.*) \\(.\\).*/\\1/' /proc/%d/stat", info.PID))
}

// typed writes to a Process and reads its output until it contains want.
func typed(t *testing.T, e sandbox.Engine, id, process, input, want string) {
	t.Helper()
	g := guestOf(e, id)
	defer g.Close()
	info, err := g.GetProcess(t.Context(), process)
	if err != nil {
		t.Errorf("the process %s: %v", process, err)
		return
	}
	if _, err := g.WriteInput(t.Context(), process, execution.Input{Data: []byte(input)}); err != nil {
		t.Errorf("write to %s: %v", process, err)
	}
	listen(t, e, id, process, info.OutputEnd, want)
}

var errHeard = errors.New("heard")

// listen reads the output of a Process until it contains want.
func listen(t *testing.T, e sandbox.Engine, id, process string, from int64, want string) {
	t.Helper()
	g := guestOf(e, id)
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	said := ""
	err := g.ReadOutput(ctx, process, from, true, func(o execution.Output) error {
		for _, p := range o.Pieces {
			said += string(p.Data)
		}
		if strings.Contains(said, want) {
			return errHeard
		}
		return nil
	})
	if !errors.Is(err, errHeard) {
		t.Errorf("%s said %q, %v, want %q", process, said, err, want)
	}
}

// A Boot that starts from a saved one keeps its state: files byte for byte, memory,
// threads, connections inside, a transaction, and terminals with their jobs. Stopped
// processes stay stopped. No program runs before Thaw. Copies draw different random
// numbers.
func TestAllGoesOn(t *testing.T) {
	s := newStage(t)
	e := s.open(t)
	defer endAll(t, e)
	spec := sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}
	origin := sandbox.NewBootID()
	if err := e.Start(t.Context(), origin, spec); err != nil {
		t.Fatal(err)
	}
	bind(t, e, origin)
	sh(t, e, origin, makeTree)
	sum := sh(t, e, origin, sumTree)
	python(t, e, origin, beginPython)
	cell(t, e, origin, "javascript", beginNode)
	beginPrograms(t, e, origin)
	name := sandbox.NewSnapshotID()
	saved, err := e.Save(t.Context(), origin, name, true)
	if err != nil {
		t.Fatalf("Save: %v", err)
	}
	t.Logf("%d MiB were saved", saved.Bytes>>20)

	drawn := map[string]string{}
	goesOn := func(what, id string) {
		if got := python(t, e, id, goOnPython); got != wentOnPython {
			t.Errorf("%s: Python goes on with %q", what, got)
		}
		if got := cell(t, e, id, "javascript", goOnNode); got != "'two'" {
			t.Errorf("%s: Node goes on with %q", what, got)
		}
		programsGoOn(t, e, id)
		if got := sh(t, e, id, sumTree); got != sum {
			t.Errorf("%s: the files differ", what)
		}
		for _, number := range strings.Fields(python(t, e, id, drawPython) + " " + cell(t, e, id, "javascript", drawNode)) {
			if other, twice := drawn[number]; twice {
				t.Errorf("%s draws %s, as %s did", what, number, other)
			}
			drawn[number] = what
		}
	}
	for _, what := range []string{"one", "two"} {
		id := sandbox.NewBootID()
		from := spec
		from.From = name
		if err := e.Start(t.Context(), id, from); err != nil {
			t.Fatalf("Start from a saved state: %v", err)
		}
		standsStill(t, e, id)
		bind(t, e, id)
		standsStill(t, e, id)
		if err := e.Thaw(t.Context(), id); err != nil {
			t.Fatalf("Thaw: %v", err)
		}
		wallClock(t, e, id)
		goesOn(what, id)
		if what == "two" {
			filesGoOn(t, e, id, spec)
		}
		if err := e.Stop(t.Context(), id, 0); err != nil {
			t.Error(err)
		}
	}
	goesOn("the origin", origin)
}

const drawNode = "[Math.random(), require('crypto').randomUUID(), require('crypto').randomBytes(4).toString('hex')].forEach((x) => console.log(x))"

// standsStill checks that no program of the user runs.
func standsStill(t *testing.T, e sandbox.Engine, id string) {
	t.Helper()
	if counts := strings.Fields(sh(t, e, id, "cat /dev/shm/count; echo; sleep 0.1; cat /dev/shm/count")); len(counts) != 2 || counts[0] != counts[1] {
		t.Errorf("a program runs before Thaw: %v", counts)
	}
}

// wallClock checks that the clock of a Boot agrees with the host's.
func wallClock(t *testing.T, e sandbox.Engine, id string) {
	t.Helper()
	now, err := strconv.ParseFloat(python(t, e, id, "print(time.time())"), 64)
	if off := time.Since(time.UnixMicro(int64(now * 1e6))); err != nil || off < -5*time.Second || off > 30*time.Second {
		t.Errorf("the wall clock is off by %v, %v", off, err)
	}
}

// filesGoOn checks that a Boot that starts from saved files alone has all files, and no
// process of the saved Boot.
func filesGoOn(t *testing.T, e *Engine, id string, spec sandbox.BootSpec) {
	t.Helper()
	sum := sh(t, e, id, sumFiles)
	name := sandbox.NewSnapshotID()
	if _, err := e.Save(t.Context(), id, name, false); err != nil {
		t.Fatalf("Save: %v", err)
	}
	cold := sandbox.NewBootID()
	spec.From = name
	if err := e.Start(t.Context(), cold, spec); err != nil {
		t.Fatalf("Start from saved files: %v", err)
	}
	bind(t, e, cold)
	if got := sh(t, e, cold, sumFiles); got != sum {
		t.Error("the files differ after a save of files alone")
	}
	if got := sh(t, e, cold, "cat /workspace/half; ls /dev/shm | wc -l; python3 -c 'import sqlite3; print(list(sqlite3.connect(\"/workspace/db\").execute(\"select x from t\")))'"); got != "first second0\n[(42,)]" {
		t.Errorf("the files hold %q", got)
	}
	if err := e.Stop(t.Context(), cold, 0); err != nil {
		t.Error(err)
	}
}
