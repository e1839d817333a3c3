package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runscboot "gvisor.dev/gvisor/runsc/boot"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// answersWithin reports whether the Guest answers. A frozen Boot does not.
func answersWithin(t *testing.T, c *http.Client, limit time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", "http://guest/ping", nil)
	must(t, err)
	resp, err := c.Do(r)
	if err == nil {
		resp.Body.Close()
	}
	return err == nil
}

// dialled returns a connection to the sentry of a Boot.
func (r *rig) dialled(id string) *sentry {
	rpc, err := connect(r.host.boots[id].record.Socket, lookLimit)
	must(r.t, err)
	r.t.Cleanup(func() { rpc.Close() })
	return rpc
}

func goingNow(t *testing.T, rpc *sentry, id string) []int32 {
	t.Helper()
	all, err := processes(rpc, id)
	must(t, err)
	return goingProcesses(all)
}

func statesNow(t *testing.T, rpc *sentry, id string) map[int32]byte {
	t.Helper()
	all, err := processes(rpc, id)
	must(t, err)
	states := map[int32]byte{}
	for _, p := range all {
		states[p.pid] = p.state
	}
	return states
}

// A sentry host crashes while it freezes, thaws or saves a Boot. The next one brings the
// Boot to its recorded state.
func unsureStand(t *testing.T, r *rig) {
	for name, tt := range map[string]struct {
		frozen, stands bool
	}{
		"cut off while it was saved":   {false, true},
		"cut off before it was frozen": {true, false},
		"cut off after it was frozen":  {true, true},
		"cut off when it was let go":   {false, false},
	} {
		id := sandbox.NewBootID()
		c := r.start(id, withMemory(256))
		child := get(t, c, "/bomb?mb=1")
		rpc := r.dialled(id)
		if tt.stands {
			must(t, rpc.Call(runscboot.ContMgrPause, nil, nil))
		}
		going := goingNow(t, rpc, id)
		if len(going) != 1 {
			t.Fatalf("processes: %v", going)
		}
		must(t, signalEach(rpc, id, going, unix.SIGSTOP))
		b := r.host.boots[id]
		r.host.change(b, func(r *record) { r.Unsure, r.Frozen, r.Stopped = true, tt.frozen, going })
		must(t, r.host.writeRecord(b))
		old := *r
		r.open()
		r.host.lockStand(r.host.boots[id])() // wait for the recovery
		limit := patience
		if tt.frozen {
			limit = 300 * time.Millisecond // a frozen Boot never answers
		}
		if answersWithin(t, c, limit) == tt.frozen {
			t.Errorf("%s: it stands still: %t", name, !tt.frozen)
		}
		must(t, r.host.thaw(id))
		if got := get(t, c, "/ping"); got != "pong" {
			t.Errorf("%s: ping = %q", name, got)
		}
		if states := statesNow(t, rpc, id); states[going[0]] == stoppedInside {
			t.Errorf("%s: the process %s is %c", name, child, states[going[0]])
		}
		must(t, r.host.stop(t.Context(), id))
		old.waitGone(id)
	}
}

// A frozen Boot continues although its record cannot be written, as on a full disk.
func thawUnrecorded(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	must(t, r.host.freeze(id))
	inTheWay := filepath.Join(r.host.bootDir(r.host.boots[id].record.name()), sentryhost.RecordName+".new")
	must(t, os.Mkdir(inTheWay, 0o700))
	must(t, r.host.thaw(id))
	if got := get(t, c, "/ping"); got != "pong" {
		t.Errorf("ping = %q", got)
	}
	if err := r.host.freeze(id); err == nil || !answersWithin(t, c, patience) {
		t.Errorf("it was frozen without a record: %v", err)
	}
	must(t, os.Remove(inTheWay))
	path := filepath.Join(filepath.Dir(inTheWay), sentryhost.RecordName)
	for deadline := time.Now().Add(patience + writeAgain); ; time.Sleep(10 * time.Millisecond) {
		if raw, err := os.ReadFile(path); err == nil && !bytes.Contains(raw, []byte(`"frozen":true`)) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("its record still says that it is frozen")
		}
	}
	must(t, r.host.stop(t.Context(), id))
}

// A save does not continue processes that were stopped before. A parent is stopped after
// its children.
func heldProcesses(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	get(t, c, "/bomb?mb=1")
	get(t, c, "/bomb?mb=1")
	rpc := r.dialled(id)
	both := goingNow(t, rpc, id)
	if len(both) != 2 {
		t.Fatalf("processes: %v", both)
	}
	must(t, signalEach(rpc, id, both[:1], unix.SIGSTOP))
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		going := goingNow(t, rpc, id)
		if slices.Equal(going, both[1:]) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v go on, want %v", going, both[1:])
		}
	}
	name := sandbox.NewSnapshotID()
	_, err := r.host.save(sentryhost.SaveRequest{ID: id, Name: name, Memory: true})
	must(t, err)
	m, _, err := r.host.readManifest(name)
	if err != nil || !slices.Equal(m.Held, both[1:]) {
		t.Errorf("held are %v, %v, want %v", m.Held, err, both[1:])
	}
	// A missing process is logged, and the others are continued.
	var told bytes.Buffer
	telling := &Host{log: slog.New(slog.NewTextHandler(&told, nil))}
	must(t, signalEach(rpc, id, both[1:], unix.SIGSTOP))
	telling.continueAll(rpc, r.host.boots[id], []int32{30000, both[1]})
	if !strings.Contains(told.String(), "continuing a process that was stopped for a save failed") {
		t.Errorf("told %q", told.String())
	}
	if states := statesNow(t, rpc, id); states[both[0]] != stoppedInside || states[both[1]] == stoppedInside {
		t.Errorf("after the save the processes are %c and %c", states[both[0]], states[both[1]])
	}
	must(t, r.host.deleteSaved(name))
}

// A Boot that is saved while its Guest starts programs works when it is restored: no child
// is stopped between fork and exec, where the Guest would wait for it.
func savedWhileStarting(t *testing.T, r *rig) {
	for _, frozen := range []bool{true, false} {
		id := sandbox.NewBootID()
		c := r.start(id, withMemory(256))
		get(t, c, "/starts")
		for range 3 {
			name := sandbox.NewSnapshotID()
			if frozen {
				must(t, r.host.freeze(id))
			}
			_, err := r.host.save(sentryhost.SaveRequest{ID: id, Name: name, Memory: true})
			must(t, err)
			must(t, r.host.thaw(id))
			restored := sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "test", Shape: withMemory(256), From: name}
			c, _ := r.startAs(restored)
			if got := get(t, c, "/ping"); got != "pong" {
				t.Errorf("ping = %q", got)
			}
			must(t, r.host.stop(t.Context(), restored.ID))
			must(t, r.host.deleteSaved(name))
		}
		must(t, r.host.stop(t.Context(), id))
	}
}

// A program that stays between fork and exec delays a save for a bounded time.
func neverStarted(t *testing.T, r *rig) {
	id, name := sandbox.NewBootID(), sandbox.NewSnapshotID()
	c := r.start(id, withMemory(256))
	// The Guest does not answer if its program is stopped before the answer is written.
	go func() { _, _ = c.Get("http://guest/starts?stopped=1") }()
	rpc := r.dialled(id)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		must(t, pause(rpc)) // so that no process ends during the look
		all, err := processes(rpc, id)
		must(t, errors.Join(err, resume(rpc)))
		if starts(all) && slices.ContainsFunc(all, func(p process) bool { return p.state == stoppedInside }) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing stands between fork and exec: %+v", all)
		}
	}
	want, saved := r.cpuQuota(id), make(chan error, 1)
	began := time.Now()
	go func() { saved <- codetest.ErrOf(r.host.save(sentryhost.SaveRequest{ID: id, Name: name, Memory: true})) }()
	for lifted := false; !lifted; {
		select {
		case err := <-saved:
			t.Fatalf("saved within its own limit of the processor, %v", err)
		default:
		}
		lifted = r.cpuQuota(id) != want
	}
	if took := time.Since(began); took < startingLimit {
		t.Errorf("the limit of the processor was taken away after %v, when a program went on", took)
	}
	must(t, <-saved)
	must(t, r.host.deleteSaved(name))
	began = time.Now()
	must(t, r.host.freeze(id))
	if took := time.Since(began); took < startingLimit {
		t.Errorf("frozen after %v, when the program had not started", took)
	}
	_, err := r.host.save(sentryhost.SaveRequest{ID: id, Name: name, Memory: true})
	must(t, err)
	must(t, r.host.deleteSaved(name))
}

// A Guest that blocks the listing of its processes cannot be frozen or saved, and runs on.
// It delays no other call, and no later sentry host.
func silentGuest(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	if got := get(t, c, "/silent"); got != "<nil>" {
		t.Fatalf("silent = %q", got)
	}
	r.host.lookLimit = time.Second
	for what, err := range map[string]error{
		"freeze": r.host.freeze(id),
		"save":   codetest.ErrOf(r.host.save(sentryhost.SaveRequest{ID: id, Name: sandbox.NewSnapshotID(), Memory: true})),
		"files":  codetest.ErrOf(r.host.save(sentryhost.SaveRequest{ID: id, Name: sandbox.NewSnapshotID()})),
	} {
		var told *sandbox.Error
		if !errors.As(err, &told) || told.Code != sandbox.Unavailable || !strings.Contains(told.Detail, "/proc did not report") {
			t.Errorf("%s = %v", what, err)
		}
	}
	if got := get(t, c, "/ping"); got != "pong" {
		t.Errorf("ping = %q", got)
	}

	old := *r // its record is unsure
	opened := make(chan struct{})
	go func() { r.open(); close(opened) }()
	select {
	case <-opened:
	case <-time.After(patience):
		t.Fatal("a sentry host waits for a guest before it serves anybody")
	}
	if r.host.boots[id].pausing.TryLock() {
		t.Error("nobody finds out how it stands")
	}
	must(t, r.host.stop(t.Context(), id)) // which does not wait for that
	old.waitGone(id)

	c = r.start(id, withMemory(256))
	get(t, c, "/silent")
	r.host.recoverLimit = time.Second
	b := r.host.boots[id]
	b.pausing.Lock()
	r.host.recoverBoot(b)
	r.waitGone(id)
	if b.ended != sandbox.CauseEngineLost {
		t.Errorf("the cause is %q", b.ended)
	}
}

// A save that waits for a layer to be read does not occupy a save slot, and does not block
// a freeze of the Boot.
func TestLayerIsAwaitedFirst(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "sentry.sock")
	l, err := net.Listen("unix", socket)
	must(t, err)
	defer l.Close()
	id, name := sandbox.NewBootID(), sandbox.NewSnapshotID()
	b := &boot{gone: make(chan struct{}), running: true}
	b.record = record{Boot: sentryhost.Boot{ID: id, From: "a"}, Socket: socket, Restored: true, Layer: 1 << 30}
	h := &Host{cfg: Config{Saved: t.TempDir()}, saving: make(chan struct{}, 1), boots: map[string]*boot{id: b}, naming: map[string]chan struct{}{}}
	saved := make(chan error, 1)
	go func() {
		_, err := h.save(sentryhost.SaveRequest{ID: id, Name: name, Memory: true})
		saved <- err
	}()
	conn, err := l.Accept() // the host's request to the sentry
	must(t, err)
	_, err = conn.Read(make([]byte, 1))
	must(t, err)
	if len(h.saving) > 0 {
		t.Error("it has a place among those that are saved")
	}
	if !b.pausing.TryLock() {
		t.Error("it keeps the boot from being paused")
	}
	must(t, conn.Close())
	if err := <-saved; !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("save without its sentry = %v", err)
	}
}

// A sentry that never answers, as one may that loads damaged files, is not waited for after
// they are known to be damaged, nor after the end of the request.
func TestRestoreIsCut(t *testing.T) {
	damaged := errors.New("damaged")
	for name, tt := range map[string]struct {
		verified error
		want     error
	}{
		"by damage":                 {damaged, damaged},
		"by the end of the request": {nil, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "sentry.sock")
			l, err := net.Listen("unix", socket)
			must(t, err)
			defer l.Close()
			ours, theirs, err := os.Pipe()
			must(t, err)
			defer ours.Close()
			defer theirs.Close()
			ctx, cancel := context.WithCancel(t.Context())
			asked, over := make(chan struct{}), make(chan error, 1)
			from := &origin{Manifest: sentryhost.Manifest{Name: "a"}, verified: func() error { <-asked; return tt.verified }}
			go func() { over <- restore(ctx, socket, from, theirs) }()
			conn, err := l.Accept()
			must(t, err)
			defer conn.Close()
			_, err = conn.Read(make([]byte, 1))
			must(t, err)
			close(asked)
			if tt.verified == nil {
				cancel()
			}
			defer cancel()
			select {
			case err := <-over:
				if !errors.Is(err, tt.want) {
					t.Errorf("restore = %v, want %v", err, tt.want)
				}
			case <-time.After(patience):
				t.Error("it waits for the sentry")
			}
		})
	}
}

func TestStarts(t *testing.T) {
	guest := process{pid: guestPid, memory: "4096 1"}
	for name, tt := range map[string]struct {
		others []process
		want   bool
	}{
		"nothing runs":              {nil, false},
		"a program":                 {[]process{{pid: 5, parent: guestPid, memory: "8192 2"}}, false},
		"between fork and exec":     {[]process{{pid: 5, parent: guestPid, memory: "8192 2"}, {pid: 6, parent: guestPid, memory: "4096 1"}}, true},
		"a child of another":        {[]process{{pid: 6, parent: 5, memory: "4096 1"}}, false},
		"one that has ended":        {[]process{{pid: 6, parent: guestPid, state: zombie}}, false},
		"as large, less of it used": {[]process{{pid: 6, parent: guestPid, memory: "4096 0"}}, false},
	} {
		if got := starts(append(tt.others, guest)); got != tt.want {
			t.Errorf("%s: starts = %t", name, got)
		}
	}
	if starts([]process{{pid: 6, parent: guestPid}}) || starts([]process{{pid: guestPid}, {pid: 6, parent: guestPid}}) {
		t.Error("a Guest that has ended starts something")
	}
}

func TestReadStat(t *testing.T) {
	line := "7 (a b) c) S 1 7 7 0 0 0 0 0 0 0 1 2 0 0 20 0 1 0 99 4096 3 18446744073709551615 0\n"
	if pid, state, memory := readStat(line); pid != 7 || state != 'S' || memory != "4096 3" {
		t.Errorf("readStat = %d, %c, %q", pid, state, memory)
	}
	if _, state, memory := readStat(strings.Replace(line, "4096 3", "0 0", 1)); state != 'S' || memory != "" {
		t.Errorf("without memory: %c, %q", state, memory)
	}
	for _, bad := range []string{"", "\n", "7", "7 (a) ", "x (a) S 1"} {
		if _, state, _ := readStat(bad); state != 0 {
			t.Errorf("readStat(%q) has the state %c", bad, state)
		}
	}
}

func TestChildrenFirst(t *testing.T) {
	got := childrenFirst(map[int32]int32{1: 0, 5: 1, 3: 5, 9: 3, 4: 1, 7: 99})
	at := func(pid int32) int { return slices.Index(got, pid) }
	if len(got) != 6 || at(9) > at(3) || at(3) > at(5) || at(5) > at(1) || at(4) > at(1) || at(7) < 0 {
		t.Errorf("order %v", got)
	}
}

// A save without disk space fails and leaves nothing, and the Boot runs on.
func noRoomToSave(t *testing.T, r *rig) {
	must(t, unix.Mount("tmpfs", r.cfg.Saved, "tmpfs", 0, "size=96m"))
	defer unix.Unmount(r.cfg.Saved, 0)
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	for _, memory := range []bool{true, false} {
		_, err := r.host.save(sentryhost.SaveRequest{ID: id, Name: sandbox.NewSnapshotID(), Memory: memory})
		if !errors.Is(err, sandbox.Exhausted) {
			t.Errorf("save without room = %v", err)
		}
	}
	if got := get(t, c, "/ping"); got != "pong" {
		t.Errorf("ping = %q", got)
	}
	if left, err := os.ReadDir(r.cfg.Saved); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A start from a state is refused if its content does not fit on the disk. The state is
// unchanged.
func noRoomToStart(t *testing.T, r *rig) {
	id, name := sandbox.NewBootID(), sandbox.NewSnapshotID()
	c := r.start(id, withMemory(256))
	if got := get(t, c, "/write?mb=8"); got != "<nil>" {
		t.Fatalf("write = %q", got)
	}
	_, err := r.host.save(sentryhost.SaveRequest{ID: id, Name: name})
	must(t, err)
	must(t, r.host.stop(t.Context(), id))
	start := sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "test", Shape: withMemory(256), From: name}

	must(t, unix.Mount("tmpfs", r.cfg.UpperDir, "tmpfs", 0, "size=132m")) // the margin, but not all of the content
	hostEnd, guestEnd := pair(t)
	_, err = r.host.start(t.Context(), start, &fdrpc.Request{Files: []*os.File{guestEnd, hostEnd}})
	must(t, unix.Unmount(r.cfg.UpperDir, 0))
	if !errors.Is(err, sandbox.Exhausted) || !strings.Contains(err.Error(), "starting from the saved state") {
		t.Errorf("start without room = %v", err)
	}
	c, _ = r.startAs(start)
	if got := get(t, c, "/ping"); got != "pong" {
		t.Errorf("ping = %q", got)
	}
	must(t, r.host.deleteSaved(name))
}

// Holes in files take no disk space in a saved state.
func holesAreNotFilled(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	shape := withMemory(256)
	shape.DiskBytes = 128 << 20
	c := r.start(id, shape)
	if got := get(t, c, "/write?mb=8&hole=100000"); got != "<nil>" {
		t.Fatalf("write = %q", got)
	}
	name := sandbox.NewSnapshotID()
	saved, err := r.host.save(sentryhost.SaveRequest{ID: id, Name: name})
	if err != nil || saved.Bytes < 8<<20 || saved.Bytes > 40<<20 {
		t.Errorf("save = %+v, %v", saved, err)
	}
	if got := get(t, c, "/ping"); got != "pong" {
		t.Errorf("ping = %q", got)
	}
	must(t, r.host.deleteSaved(name))
}

// A new sentry host removes unfinished states and keeps finished ones.
func draftsAreRemoved(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, withMemory(256))
	name := sandbox.NewSnapshotID()
	_, err := r.host.save(sentryhost.SaveRequest{ID: id, Name: name, Memory: true})
	must(t, err)
	must(t, os.Mkdir(r.host.savedDir(asidePrefix+name+"-1"), 0o700))
	must(t, os.WriteFile(r.host.savedDir(asidePrefix+name+"-1")+"/pages.img", []byte("half"), 0o600))
	old := *r
	r.open()
	defer old.waitGone(id)
	if names, err := r.host.listSaved(); err != nil || !slices.Equal(names, []string{name}) {
		t.Errorf("saved are %v, %v", names, err)
	}
	if all, err := os.ReadDir(r.cfg.Saved); err != nil || len(all) != 1 {
		t.Errorf("the folder holds %v, %v", all, err)
	}
	must(t, r.host.deleteSaved(name))
	must(t, r.host.stop(t.Context(), id))
}
