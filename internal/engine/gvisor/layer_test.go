package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
)

// disorder leaves a writable layer whose files lie between holes: some are deleted,
// sparse, overwritten in the middle, mapped or appended to.
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

// sums prints a checksum of all files.
const sums = `cd /workspace && find . -type f | sort | xargs md5sum | md5sum`

// layerOf returns the size of the layer in place in the pages of a saved state.
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

// startFrom starts and thaws a Boot from a saved state.
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

// A large writable layer is saved in place. Each Boot that starts from the state has all
// files unchanged, also after several generations.
func TestLayersInPlace(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	e := s.open(t)
	defer endAll(t, e)
	id := s.startBound(t, e)
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

// A thawed Boot takes its layer back from the saved state. Its later writes do not change
// the state, and it cannot read memory saved behind the layer, also after a crash of the
// sentry host.
func TestLayerIsTakenBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.stop()
	parts := filepath.Join(filepath.Dir(os.Getenv("CLOUD_SANDBOX_E2E")), "stage")
	for _, restart := range []bool{false, true} {
		stop := s.startHost(t, parts, "test")
		e := s.open(t)
		id, name := s.startBound(t, e), sandbox.NewSnapshotID()
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
		// Twice the free space between the files, and more than a chunk of gVisor's.
		sh(t, e, id, `cd /workspace && rm -f f* && truncate -s 1200M big && for i in $(seq 0 40); do head -c 1M /dev/urandom | dd of=big bs=1M seek=$((i * 29)) conv=notrunc status=none; done`)
		if got := sh(t, e, id, `cd /workspace && truncate -s 300M holes && tr -d '\0' <holes | wc -c`); got != "0" {
			t.Errorf("a new sparse file has %s bytes that are not zero", got)
		}
		twin := s.startFrom(t, e, name)
		if got := sh(t, e, twin, sums); got != want {
			t.Error("the saved state changed with the Boot that went on")
		}
		endAll(t, e)
		stop()
	}
}

// A Boot can be saved while its sentry still reads the layer that it was restored with.
// The state has all files, including later changes.
func TestPauseWhileLayerIsRead(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	e := s.open(t)
	defer endAll(t, e)
	id, name := s.startBound(t, e), sandbox.NewSnapshotID()
	sh(t, e, id, disorder+"cat large >last && head -c 400M large >>last\n")
	python(t, e, id, "value = 41")
	want := sh(t, e, id, sums)
	s.pauseAs(t, e, id, name)
	met := 0
	for round := 0; met < 2 && round < 10; round++ {
		if err := e.Stop(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		id = s.startFrom(t, e, name)
		running := sandbox.NewSnapshotID()
		if round == 0 {
			if _, err := e.Save(t.Context(), id, running, true); err != nil {
				t.Fatal(err)
			}
			s.check(t, e, running, want)
			continue
		}
		sh(t, e, id, fmt.Sprintf("echo %d >>/workspace/small1 && rm -f /workspace/f1 && head -c 1M /dev/urandom >/workspace/f1", round))
		want = sh(t, e, id, `cd /workspace && md5sum small1 f1`)
		if err := e.Freeze(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if s.isRead(t, e, id, name) < 1 {
			met++
		}
		later := sandbox.NewSnapshotID()
		if _, err := e.Save(t.Context(), id, later, true); err != nil {
			t.Fatal(err)
		}
		if s.layerOf(t, later) == 0 {
			t.Error("the layer is not in place")
		}
		name = later
		twin := s.startFrom(t, e, name)
		if got := sh(t, e, twin, `cd /workspace && md5sum small1 f1`); got != want {
			t.Errorf("round %d: what changed before the pause is %q, not %q", round, got, want)
		}
		if got := sh(t, e, twin, `cd /workspace && cmp -n 419430400 large last && echo same`); got != "same" {
			t.Errorf("round %d: the large files are others: %q", round, got)
		}
		if got := python(t, e, twin, "print(value + 1)"); got != "42" {
			t.Errorf("round %d: %q is in memory", round, got)
		}
		if err := e.Stop(t.Context(), twin, 0); err != nil {
			t.Fatal(err)
		}
	}
	if met == 0 && !t.Failed() {
		t.Skip("this machine reads a layer before a pause can meet it")
	}
}

// The files alone of a Boot can be saved while its sentry still reads the layer that it
// was restored with, whether the Boot runs or is frozen.
func TestFilesAreSavedWhileLayerIsRead(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	e := s.open(t)
	defer endAll(t, e)
	id, name := sandbox.NewBootID(), sandbox.NewSnapshotID()
	spec := sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}
	if err := e.Start(t.Context(), id, spec); err != nil {
		t.Fatal(err)
	}
	bind(t, e, id)
	sh(t, e, id, "cd /workspace && for i in 1 2 3; do head -c 300M /dev/urandom >f$i; done")
	want := sh(t, e, id, sums)
	s.pauseAs(t, e, id, name)
	for _, frozen := range []bool{false, true} {
		if err := e.Stop(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		id = s.startFrom(t, e, name)
		if frozen {
			if err := e.Freeze(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		read, files := s.isRead(t, e, id, name), sandbox.NewSnapshotID()
		if _, err := e.Save(t.Context(), id, files, false); err != nil {
			t.Fatalf("frozen %t: saved when %.0f %% of the layer were read: %v", frozen, 100*read, err)
		}
		cold := sandbox.NewBootID()
		spec.From = files
		if err := e.Start(t.Context(), cold, spec); err != nil {
			t.Fatal(err)
		}
		bind(t, e, cold)
		if got := sh(t, e, cold, sums); got != want {
			t.Errorf("frozen %t: the files are others", frozen)
		}
		if err := e.Stop(t.Context(), cold, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// Files deleted after a resume take no room in later saves, also if another sentry host
// adopted the Boot meanwhile.
func TestLayerShrinks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.stop()
	parts := filepath.Join(filepath.Dir(os.Getenv("CLOUD_SANDBOX_E2E")), "stage")
	s.startHost(t, parts, "test")
	e := s.open(t)
	id, name := s.startBound(t, e), sandbox.NewSnapshotID()
	sh(t, e, id, "cd /workspace && head -c 24M /dev/urandom >small && head -c 600M /dev/urandom >large")
	s.pauseAs(t, e, id, name)
	for _, restart := range []bool{false, true} {
		if err := e.Stop(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		id = s.startFrom(t, e, name)
		sh(t, e, id, "rm /workspace/large")
		if restart {
			s.killHost(t)
			s.startHost(t, parts, "test")
			_ = e.Close()
			e = s.open(t)
		}
		for deadline := time.Now().Add(30 * time.Second); ; { // until the sentry has read its layer
			later := sandbox.NewSnapshotID()
			s.pauseAs(t, e, id, later)
			layer := s.layerOf(t, later)
			if layer < 300<<20 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("restart %t: %d MiB of layer are saved when 24 MiB of files are left", restart, layer>>20)
			}
			if err := e.Thaw(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	endAll(t, e)
}

// check compares the files of a saved state with an earlier output of sums.
func (s *stage) check(t *testing.T, e *Engine, name, want string) {
	t.Helper()
	id := s.startFrom(t, e, name)
	if got := sh(t, e, id, sums); got != want {
		t.Errorf("the files of %s are others", name)
	}
	if err := e.Stop(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
}

// startBound starts a Boot of the image and binds its Guest.
func (s *stage) startBound(t *testing.T, e *Engine) string {
	t.Helper()
	id := sandbox.NewBootID()
	if err := e.Start(t.Context(), id, sandbox.BootSpec{Image: s.image, Shape: sandbox.DefaultShape()}); err != nil {
		t.Fatal(err)
	}
	bind(t, e, id)
	return id
}

// isRead returns the fraction of a saved state's layer that a Boot restored from it has on
// its disk.
func (s *stage) isRead(t *testing.T, e *Engine, id, name string) float64 {
	t.Helper()
	u, err := e.Usage(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(s.dir, "saved", name, checkpointfiles.PagesFileName), &st); err != nil {
		t.Fatal(err)
	}
	const slack = 64 << 20 // memory is behind the layer
	return float64(u.DiskBytes) / float64(st.Blocks*512-slack)
}

// A crash of the sentry host loses nothing while it saves a Boot whose layer is still
// being read. The Boot goes on, and the state that it was restored from is whole.
func TestCrashWhilePauseReadsLayer(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.stop()
	parts := filepath.Join(filepath.Dir(os.Getenv("CLOUD_SANDBOX_E2E")), "stage")
	s.startHost(t, parts, "test")
	e := s.open(t)
	id, name := s.startBound(t, e), sandbox.NewSnapshotID()
	sh(t, e, id, disorder+"head -c 400M large >last\n")
	want := sh(t, e, id, sums)
	s.pauseAs(t, e, id, name)
	for round := 0; ; round++ {
		if round == 10 {
			t.Fatal("no crash met a save that had begun")
		}
		if err := e.Stop(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		id = s.startFrom(t, e, name)
		if err := e.Freeze(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		next, ended := sandbox.NewSnapshotID(), make(chan struct{})
		go func() { // it may return before the sentry host is killed
			defer close(ended)
			_, _ = e.Save(t.Context(), id, next, true)
		}()
		s.awaitGiven(t, next, ended)
		s.killHost(t)
		<-ended
		_, err := os.Stat(filepath.Join(s.dir, "saved", next))
		s.startHost(t, parts, "test")
		_ = e.Close()
		e = s.open(t)
		if err := e.Thaw(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, e, id, sums); got != want {
			t.Error("the files of the Boot that went on are others")
		}
		s.check(t, e, name, want)
		// A new sparse file reads as zeros, not as memory saved behind the layer.
		if got := sh(t, e, id, `cd /workspace && truncate -s 300M holes && tr -d '\0' <holes | wc -c; rm holes`); got != "0" {
			t.Errorf("a new sparse file has %s bytes that are not zero", got)
		}
		again := sandbox.NewSnapshotID()
		s.pauseAs(t, e, id, again)
		s.check(t, e, again, want)
		if name = again; errors.Is(err, fs.ErrNotExist) { // the crash came before the state was renamed into place
			break
		}
	}
	endAll(t, e)
}

// awaitGiven waits until a Boot's layer is given to the state being saved, or the save has
// ended.
func (s *stage) awaitGiven(t *testing.T, name string, ended <-chan struct{}) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		select {
		case <-ended:
			return
		default:
		}
		drafts, _ := filepath.Glob(filepath.Join(s.dir, "saved", "."+name+"-*", checkpointfiles.PagesFileName))
		for _, draft := range drafts {
			// Before the sentry writes, only a given layer makes the file non-empty.
			if info, err := os.Stat(draft); err == nil && info.Size() > 0 {
				return
			}
		}
	}
	t.Fatal("the layer was not given to the state")
}

// killHost kills the sentry host, like a crash. Its children live on.
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
