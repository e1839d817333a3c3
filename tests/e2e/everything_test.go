package e2e

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// live creates a Python session's state: a numpy array if numpy is installed, and a
// half-written file.
const (
	live = `import hashlib, os, sys
sys.path.insert(0, "/workspace/numpy")
try:
    import numpy
    array = numpy.arange(2_000_000, dtype=numpy.float64) ** 0.5
    view, digest = array[::2], hashlib.sha256(array.tobytes()).digest()
except ImportError:
    numpy = None
half = open("/workspace/half", "w")
half.write("first line\nsecond "); half.flush(); half.write("li")
born = os.getpid()
print(numpy is not None)`
	livesOn = `if numpy is not None:
    assert hashlib.sha256(array.tobytes()).digest() == digest, array
    view *= 2
    assert (array[4], array[9]) == (4.0, 3.0), array
half.write("ne\nthird line\n"); half.close()
print(open("/workspace/half").read() == "first line\nsecond line\nthird line\n", born == os.getpid())`
)

// page requests /page from a port of a Sandbox through the gateway.
func page(t *testing.T, c *rig.Client, id, port string) (string, error) {
	t.Helper()
	req, err := http.NewRequest("GET", c.URL+"/page", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("E2b-Sandbox-Id", id)
	req.Header.Set("E2b-Sandbox-Port", port)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// A session has a live Python array, a background server, a terminal editor and a
// half-written file. It is paused, the whole service is killed, the page cache is
// dropped and the service is started again. All four continue after a resume.
func TestAllGoesOnAfterTheServiceDied(t *testing.T) {
	t.Parallel()
	srv := rig.Own(t, rig.Options{})
	c := srv.Client(t, "everything")
	id := create(t, c, rig.Body{"name": "monday"}).ID
	s := station{c, id}
	if rig.Program(rig.NumpyWheel) != "" {
		c.Put(t, id, rig.Program(rig.NumpyWheel), "/tmp/numpy.whl")
		c.Sh(t, id, "python3 -m zipfile -e /tmp/numpy.whl /workspace/numpy")
	}
	if got := output(t, c, id, "python", live); got != "True\n" {
		t.Logf("without numpy: there is no %s, or it is none for this Python; scripts/programs.sh fetches it", rig.NumpyWheel)
		if rig.Program(rig.NumpyWheel) != "" {
			t.Errorf("numpy is there and cannot be imported: %q", got)
		}
	}
	c.Sh(t, id, "echo served > /workspace/page")
	s.start(t, rig.Body{"argv": []string{"python3", "-m", "http.server", "8000"}, "name": "server", "background": true})
	rig.Within(t, rig.Patience, "the page", func() bool { got, err := page(t, c, id, "8000"); return err == nil && got == "served\n" })
	s.start(t, rig.Body{
		"argv": []string{"nano", "/workspace/letter"}, "pty": rig.Body{"cols": 80, "rows": 24}, "env": rig.Body{"TERM": "xterm"}, "name": "editor", "background": true,
	})
	editor := s.attach(t, "editor", "from", "0")
	editor.sees(t, "letter")
	editor.send(t, websocket.MessageBinary, "Dear reader,")
	editor.sees(t, "reader,")

	if got := act(t, c, id, "pause", rig.Body{}); got.State != "paused" {
		t.Fatalf("paused as %+v", got)
	}
	srv.KillAll(t)
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0); err != nil {
		t.Logf("the page cache stays: %v", err)
	}
	if err := srv.Launch(); err != nil {
		t.Fatal(err)
	}
	if got := c.Get(t, "monday"); got.State != "paused" {
		t.Fatalf("after all was killed it is %s: %s", got.State, got.Cause())
	}
	if got := act(t, c, "monday", "resume", rig.Body{}); got.State != "running" || got.ID != id {
		t.Fatalf("resumed as %+v", got)
	}

	if got := output(t, c, id, "python", livesOn); got != "True True\n" {
		t.Errorf("its variables and its file: %q", got)
	}
	if got, err := page(t, c, id, "8000"); err != nil || got != "served\n" {
		t.Errorf("its server says %q, %v", got, err)
	}
	editor = s.attach(t, "editor", "from", "0")
	editor.send(t, websocket.MessageBinary, " it went on.\x0f\r")
	editor.sees(t, "Wrote 1 line")
	editor.send(t, websocket.MessageBinary, "\x18")
	if met, p := s.wait(t, "editor", "exit"); !met || p.Status != "ok" {
		t.Errorf("the editor's end: %v, %s", met, p)
	}
	if got := c.Sh(t, id, "cat /workspace/letter"); strings.TrimSpace(got) != "Dear reader, it went on." {
		t.Errorf("the letter says %q", got)
	}
}
