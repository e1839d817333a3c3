package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/sentryhost"
)

// disorder leaves a writable layer in which files lie between holes: what is deleted,
// sparse, written in the middle, mapped and appended to.
const disorder = `set -e
cd /workspace
for i in 1 2 3 4 5 6; do head -c 8M /dev/urandom >f$i; done
rm f2 f4
truncate -s 64M sparse
printf middle | dd of=sparse bs=1 seek=30000000 conv=notrunc status=none
head -c 1M /dev/urandom | dd of=f5 bs=1M seek=3 conv=notrunc status=none
python3 - <<'P'
import mmap
with open("f6", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
    m[4096 * 7 : 4096 * 7 + 5] = b"mapped"[:5]
P
fallocate -l 48M reserved
truncate -s 64M unread
python3 - <<'P'
import mmap
with open("unread", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
    assert not sum(m[::4096])
P
dd if=/dev/zero of=zeros bs=1M count=8 status=none
head -c 400M /dev/urandom >large && head -c 1M large >>large
fallocate -l 48M behind
for i in $(seq 300); do echo $i >small$i; done
`

// sums prints what all files hold.
const sums = `cd /workspace && find . -type f | sort | xargs md5sum | md5sum`

// layerOf returns how much of the pages of a saved state is a layer in place.
func (s *stage) layerOf(t *testing.T, name string) int64 {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.dir, "saved", name, sentryhost.ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	var m sentryhost.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m.Files[len(m.Files)-1].Layer
}

// startFrom starts a Boot that goes on from a saved state.
func (s *stage) startFrom(t *testing.T, e sandbox.Engine, name string) string {
	t.Helper()
	id := sandbox.NewBootID()
	if err := e.Start(t.Context(), id, sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape(), From: name}); err != nil {
		t.Fatal(err)
	}
	bind(t, e, id)
	if err := e.(*Engine).Thaw(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

// A large writable layer is saved in place, whoever goes on with it afterwards: all
// files are as they were, in each that starts from it and in each later generation.
func TestLayersInPlace(t *testing.T) {
	s := newStage(t)
	e := s.open(t)
	defer endAll(t, e)
	id := sandbox.NewBootID()
	if err := e.Start(t.Context(), id, sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}); err != nil {
		t.Fatal(err)
	}
	bind(t, e, id)
	sh(t, e, id, disorder)
	python(t, e, id, "value = 41")
	for generation := range 3 {
		want := sh(t, e, id, sums)
		running, name := sandbox.NewSnapshotID(), sandbox.NewSnapshotID()
		if _, err := e.Save(t.Context(), id, running, true); err != nil {
			t.Fatal(err)
		}
		sh(t, e, id, fmt.Sprintf("echo more >>/workspace/small1; head -c 3M /dev/urandom >/workspace/late%d", generation))
		wantLater := sh(t, e, id, sums)
		s.pauseAs(t, e, id, name)
		for _, saved := range []string{running, name} {
			if s.layerOf(t, saved) == 0 {
				t.Errorf("generation %d: the layer is not in place", generation)
			}
		}
		if err := e.Stop(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		twins := []string{s.startFrom(t, e, name), s.startFrom(t, e, name), s.startFrom(t, e, running)}
		for i, twin := range twins {
			expect := wantLater
			if i == 2 {
				expect = want
			}
			if got := sh(t, e, twin, sums); got != expect {
				t.Errorf("generation %d: the files of start %d are others", generation, i)
			}
			if got := python(t, e, twin, "print(value + 1)"); got != "42" {
				t.Errorf("generation %d: start %d has %q in memory", generation, i, got)
			}
			sh(t, e, twin, fmt.Sprintf("cd /workspace && rm f1 && head -c 8M /dev/urandom >f1 && echo %d >>small2", i))
		}
		for _, twin := range twins[1:] {
			if err := e.Stop(t.Context(), twin, 0); err != nil {
				t.Fatal(err)
			}
		}
		id = twins[0]
	}
}

// pauseAs freezes and saves a Boot.
func (s *stage) pauseAs(t *testing.T, e *Engine, id, name string) {
	t.Helper()
	if err := e.Freeze(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Save(t.Context(), id, name, true); err != nil {
		t.Fatal(err)
	}
}

// A Boot that goes on after its layer was given to a saved state takes it back: what
// it writes then is not in the state, and it finds nothing of what was saved behind
// the layer, also when the sentry host died in between.
func TestLayerIsTakenBack(t *testing.T) {
	s := newStage(t)
	s.stop()
	parts := filepath.Join(filepath.Dir(os.Getenv("CLOUD_SANDBOX_E2E")), "stage")
	for _, restart := range []bool{false, true} {
		stop := s.startHost(t, parts, "test")
		e := s.open(t)
		id, name := sandbox.NewBootID(), sandbox.NewSnapshotID()
		if err := e.Start(t.Context(), id, sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}); err != nil {
			t.Fatal(err)
		}
		bind(t, e, id)
		sh(t, e, id, disorder)
		want := sh(t, e, id, sums)
		s.pauseAs(t, e, id, name)
		if s.layerOf(t, name) == 0 {
			t.Fatal("the layer is not in place")
		}
		if restart {
			s.killHost(t)
			stop = s.startHost(t, parts, "test")
			_ = e.Close()
			e = s.open(t)
		}
		if err := e.Thaw(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, e, id, sums); got != want {
			t.Error("the files of the Boot that went on are others")
		}
		// Twice as much as was free between the files, and more than a chunk of gVisor's.
		sh(t, e, id, `cd /workspace && rm -f f* && truncate -s 1200M big && for i in $(seq 0 40); do head -c 1M /dev/urandom | dd of=big bs=1M seek=$((i * 29)) conv=notrunc status=none; done`)
		if got := sh(t, e, id, `cd /workspace && truncate -s 300M holes && tr -d '\0' <holes | wc -c`); got != "0" {
			t.Errorf("%s bytes are in a file that nobody wrote", got)
		}
		twin := s.startFrom(t, e, name)
		if got := sh(t, e, twin, sums); got != want {
			t.Error("the saved state changed with the Boot that went on")
		}
		endAll(t, e)
		stop()
	}
}

// killHost ends the sentry host as a crash does; what it started lives on.
func (s *stage) killHost(t *testing.T) {
	t.Helper()
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		b, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(b), "\x00host\x00--socket\x00"+s.socket+"\x00") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(s.socket); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no sentry host")
}
