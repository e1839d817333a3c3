package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// A row is a program that prints "ready". For each line that it reads it prints "ok" and
// the number of lines so far, or which part of its state is broken.
type row struct {
	name    string
	argv    []string
	files   []string // of testdata/matrix
	needs   string   // a file of the folder of programs
	prepare func(t *testing.T, c *rig.Client, id string)
}

const matrixFolder = "/workspace/matrix/"

// matrix lists the programs, those with a slow setup first: setup is slower while others
// run.
func matrix() []row {
	return []row{
		{name: "jvm", argv: []string{"bash", "-c", "exec /usr/lib/jvm/java-17-openjdk-*/bin/java -Xmx96m Matrix.java"}, files: []string{"Matrix.java"}, needs: rig.JVMArchive, prepare: putJVM},
		{name: "numpy", argv: []string{"env", "PYTHONPATH=" + matrixFolder + "numpy", "python3", "numpy_threads.py"}, files: []string{"numpy_threads.py"}, needs: rig.NumpyWheel, prepare: putNumpy},
		{name: "node", argv: []string{"node", "timers_sockets.js"}, files: []string{"timers_sockets.js"}},
		{name: "go", argv: []string{"./program"}, prepare: putGo},
		{name: "bash", argv: []string{"bash", "jobs.sh"}, files: []string{"jobs.sh"}},
		{name: "sqlite", argv: []string{"python3", "transaction.py"}, files: []string{"transaction.py"}},
		{name: "client", argv: []string{"python3", "client.py"}, files: []string{"client.py", "server.py"}, prepare: func(t *testing.T, c *rig.Client, id string) {
			station{c, id}.start(t, rig.Body{"argv": []string{"python3", "server.py"}, "cwd": matrixFolder, "name": "server", "background": true})
		}},
	}
}

func putNumpy(t *testing.T, c *rig.Client, id string) {
	t.Helper()
	c.Put(t, id, rig.Program(rig.NumpyWheel), "/tmp/numpy.whl")
	c.Sh(t, id, "python3 -m zipfile -e /tmp/numpy.whl "+matrixFolder+"numpy && rm /tmp/numpy.whl")
}

func putJVM(t *testing.T, c *rig.Client, id string) {
	t.Helper()
	c.Unpack(t, id, rig.JVMArchive)
}

func putGo(t *testing.T, c *rig.Client, id string) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "program")
	build := rig.Command("go", "build", "-o", bin, filepath.Join("testdata", "matrix", "program.go"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	c.Put(t, id, bin, matrixFolder+"program")
	c.Sh(t, id, "chmod +x "+matrixFolder+"program")
}

func (r row) begin(t *testing.T, c *rig.Client, id string) {
	t.Helper()
	for _, file := range r.files {
		c.Put(t, id, filepath.Join("testdata", "matrix", file), matrixFolder+file)
	}
	if r.prepare != nil {
		r.prepare(t, c, id)
	}
	station{c, id}.start(t, rig.Body{"argv": r.argv, "cwd": matrixFolder, "name": r.name, "keep_stdin": true, "background": true})
	r.says(t, c, id, "ready\n")
}

// check makes the nth check of the program in a Sandbox.
func (r row) check(t *testing.T, c *rig.Client, id, nth string) {
	t.Helper()
	c.Must(t, "POST", station{c, id}.path(r.name, "stdin"), []byte("check\n"), nil)
	r.says(t, c, id, "ok "+nth+"\n")
}

func (r row) says(t *testing.T, c *rig.Client, id, text string) {
	t.Helper()
	rig.Within(t, 3*time.Minute, r.name+" to say "+text, func() bool {
		status, said, err := c.Do("GET", station{c, id}.path(r.name, "output", "from", "0"), nil)
		if err != nil || status != http.StatusOK {
			t.Fatalf("output of %s: %d %s, %v", r.name, status, said, err)
		}
		if out := string(said); strings.Contains(out, "bad") || strings.Contains(out, "rror") {
			t.Fatalf("%s says %s", r.name, out)
		}
		return strings.HasSuffix(string(said), text)
	})
}

// Threads, timers, sockets, heaps, jobs and transactions of many kinds of programs
// survive a pause, and continue in a fork and its original.
func TestRestoreMatrix(t *testing.T) {
	t.Parallel()
	c := shared.Server(t).Client(t, "matrix")
	s := create(t, c, rig.Body{"resources": rig.Body{"memory_mb": 1024, "cpus": 2}})
	c.Sh(t, s.ID, "mkdir -p "+matrixFolder)
	var rows []row
	for _, r := range matrix() {
		if r.needs != "" && rig.Program(r.needs) == "" {
			t.Run(r.name, func(t *testing.T) { rig.NeedProgram(t, r.needs) })
			continue
		}
		rows = append(rows, r)
		r.begin(t, c, s.ID)
	}
	all := func(stage, id, nth string) {
		for _, r := range rows {
			t.Run(stage+" "+r.name, func(t *testing.T) { r.check(t, c, id, nth) })
		}
	}
	all("begun", s.ID, "1")
	act(t, c, s.ID, "pause", rig.Body{})
	act(t, c, s.ID, "resume", rig.Body{})
	all("resumed", s.ID, "2")
	var reply struct {
		Forks []session `json:"forks"`
	}
	c.Must(t, "POST", "/api/v1/sessions/"+s.ID+"/fork", rig.Body{}, &reply)
	fork := reply.Forks[0].ID
	t.Cleanup(func() { _ = c.Try("DELETE", "/api/v1/sessions/"+fork, nil, nil) })
	all("forked", fork, "3")
	all("forked from", s.ID, "3")
}
