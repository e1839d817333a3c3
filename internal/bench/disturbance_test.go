package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// machine is a /proc that a test makes up.
type machine struct {
	t   *testing.T
	dir string
}

func (m machine) write(name, content string) {
	m.t.Helper()
	file := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// used says what all processors have used, in clock ticks.
func (m machine) used(user, idle, steal int) {
	m.write("stat", fmt.Sprintf("cpu  %d 0 0 %d 0 0 0 %d 0 0\ncpu0 1 2 3\n", user, idle, steal))
}

// process says what a process has used: itself, and its children that have ended.
func (m machine) process(pid, parent, own, children int, written int64, line string) {
	dir := fmt.Sprint(pid)
	m.write(dir+"/stat", fmt.Sprintf("%d (a ) b) S %d 0 0 0 0 0 0 0 0 0 %d 0 %d 0 20 0 1 0 %d 0 0\n", pid, parent, own, children, 1000+pid))
	m.write(dir+"/io", fmt.Sprintf("rchar: 1\nwrite_bytes: %d\n", written))
	m.write(dir+"/cmdline", line)
}

func (m machine) ends(pid int) {
	if err := os.RemoveAll(filepath.Join(m.dir, fmt.Sprint(pid))); err != nil {
		m.t.Fatal(err)
	}
}

func TestDisturbance(t *testing.T) {
	const self = 100
	begin := func(m machine) {
		m.used(1000, 1000, 0)
		m.process(1, 0, 50, 0, 0, "init")
		m.process(2, 0, 0, 0, 0, "")
		m.process(self, 1, 10, 10, 0, "perf")
		m.process(101, self, 10, 0, 0, "dockerd")
		m.process(102, 1, 10, 0, 0, "sentry\x00--root=/scratch/data/x")
		m.process(200, 1, 40, 10, 0, "make")
		m.process(201, 200, 30, 0, 0, "cc")
	}
	for _, tt := range []struct {
		name                          string
		change                        func(machine)
		steal, bench, others, written float64
		text                          string
	}{
		{"nothing", func(machine) {}, 0, 0, 0, 0, ""},
		{"steal", func(m machine) { m.used(1100, 1880, 20) }, 2, 0, 0, 0, "steal 2 %"},
		{"what is ours", func(m machine) {
			m.process(self, 1, 400, 10, 0, "perf")
			m.process(101, self, 110, 0, 1e9, "dockerd")
			m.process(102, 1, 60, 0, 1e9, "sentry\x00--root=/scratch/data/x")
			m.process(103, 102, 50, 0, 0, "a new descendant")
		}, 0, 20, 0, 0, ""},
		{"others", func(m machine) {
			m.process(200, 1, 90, 10, 0, "make")
			m.process(300, 1, 10, 0, 4e9, "a new one")
		}, 0, 0, 6, 4000, "others' CPU 6 %, others' writes 4000 MB"},
		{"a child that ended counts once", func(m machine) {
			m.ends(201)
			m.process(200, 1, 40, 10+30+20, 0, "make")
		}, 0, 0, 2, 0, ""},
		{"what ended of ours is not init's", func(m machine) {
			m.ends(102)
			m.process(1, 0, 50, 500, 1e9, "init")
		}, 0, 0, 0, 0, ""},
		{"the kernel's threads", func(m machine) { m.process(3, 2, 500, 0, 1e9, "") }, 0, 0, 0, 0, ""},
		{"a number that is used again", func(m machine) {
			m.process(201, 200, 5, 0, 0, "cc")
			m.write("201/stat", strings.Replace(string(read(t, m.dir+"/201/stat")), "1201", "9999", 1))
			m.process(200, 1, 40, 10+30, 0, "make")
		}, 0, 0, 0.5, 0, ""},
	} {
		m := machine{t, t.TempDir()}
		begin(m)
		w := &Watch{proc: m.dir, self: self, marks: []string{"/scratch"}}
		if err := w.Begin(); err != nil {
			t.Fatal(err)
		}
		w.began.at = time.Now().Add(-time.Second)
		m.used(1100, 1900, 0) // a thousand ticks later
		tt.change(m)
		d, err := w.Since()
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if d.StealPercent != tt.steal || d.BenchPercent != tt.bench || d.OthersPercent != tt.others || d.OthersWrittenMB != tt.written || d.String() != tt.text {
			t.Errorf("%s: %+v, %q", tt.name, d, d)
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// On the real machine the same process is the bench's for who started it or knows
// its mark, and another's for everybody else.
func TestWatchThisMachine(t *testing.T) {
	mark := "mark-" + t.Name()
	watches := map[string]*Watch{
		"its parent": {proc: "/proc", self: os.Getpid()},
		"its mark":   {proc: "/proc", self: -1, marks: []string{mark}},
		"nobody":     {proc: "/proc", self: -1},
	}
	for _, w := range watches {
		if err := w.Begin(); err != nil {
			t.Skip(err)
		}
	}
	spin := exec.CommandContext(t.Context(), "bash", "-c", "while :; do :; done", mark)
	if err := spin.Start(); err != nil {
		t.Skip(err)
	}
	defer func() { _ = spin.Wait() }()
	defer func() { _ = spin.Process.Kill() }()
	w := &Watch{proc: "/proc", self: os.Getpid()}
	for range 1000 {
		if p, err := w.process(spin.Process.Pid); err == nil && p.ticks >= 50 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for who, w := range watches {
		d, err := w.Since()
		if err != nil {
			t.Fatal(err)
		}
		if who == "nobody" && d.OthersPercent <= 0 || who != "nobody" && d.BenchPercent <= 0 {
			t.Errorf("with %s: %+v", who, d)
		}
	}
}
