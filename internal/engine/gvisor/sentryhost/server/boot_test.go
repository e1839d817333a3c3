package server

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
)

// TestHost runs the sentry host with real sentries. Building the test's binaries takes
// most of the time, so the cases share one rig.
func TestHost(t *testing.T) {
	r := newRig(t)
	for name, check := range map[string]func(*testing.T, *rig){
		"a boot answers and leaves nothing":        bootAndStop,
		"the sentry is nobody":                     sentryIsNobody,
		"control sockets stay apart":               socketsStayApart,
		"limits are seen inside the cgroup":        limitsHold,
		"limits change":                            limitsChange,
		"memory runs out for a process":            memoryRunsOut,
		"the host makes room":                      hostMakesRoom,
		"the limit stays ahead of use":             limitStaysAhead,
		"ends out of memory":                       endsOutOfMemory,
		"nobody makes room":                        nobodyMakesRoom,
		"a killed sentry is told and freed":        killedSentry,
		"the crash stderr of a sentry is kept":     crashStderrIsKept,
		"a new host takes boots up":                newHostTakesUp,
		"a new host limits the processor again":    newHostLimitsAgain,
		"a start takes a sentry that waits":        sparesAreTaken,
		"sentries of no use do not wait":           sparesOfNoUse,
		"a new host ends sentries that wait":       newHostEndsSpares,
		"a start that was cut off leaves nothing":  cutOffStart,
		"bad requests leave nothing":               badRequests,
		"files do not count as memory":             filesAreNotMemory,
		"the disk quota holds and can be freed":    diskQuota,
		"how a boot stands is found out":           unsureStand,
		"thawed without a record":                  thawUnrecorded,
		"stopped processes stay stopped":           heldProcesses,
		"a guest does not let itself be looked at": silentGuest,
		"saved while programs start":               savedWhileStarting,
		"a program never starts":                   neverStarted,
		"no room to save":                          noRoomToSave,
		"no memory to save":                        noMemoryToSave,
		"many files and descriptors are saved":     manyAreSaved,
		"a heap gets room and gives it back":       heapGetsRoom,
		"a layer gets page cache while it is read": layerGetsCache,
		"no room to start from what is saved":      noRoomToStart,
		"holes are not filled":                     holesAreNotFilled,
		"drafts are removed":                       draftsAreRemoved,
	} {
		t.Run(name, func(t *testing.T) {
			r := r.in(t)
			check(t, r)
			r.nothingLeft()
		})
	}
}

// in returns the same rig for a subtest.
func (r *rig) in(t *testing.T) *rig {
	c := *r
	c.t = t
	return &c
}

// nothingLeft stops all Boots and checks that no Boot, cgroup or folder is left.
func (r *rig) nothingLeft() {
	r.t.Helper()
	for _, b := range r.host.list() {
		must(r.t, r.host.stop(r.t.Context(), b.ID))
	}
	names, err := r.host.groups.Names()
	must(r.t, err)
	for _, dir := range []string{"boots", "sentries"} {
		entries, err := os.ReadDir(filepath.Join(r.cfg.Dir, dir))
		must(r.t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	uppers, err := os.ReadDir(r.cfg.UpperDir)
	must(r.t, err)
	if len(names) > 0 || len(uppers) > 0 || len(r.host.boots) > 0 {
		r.t.Errorf("left behind: %v, %v, %d boots", names, uppers, len(r.host.boots))
	}
}

// withMemory returns the default Shape with a memory size in MiB.
func withMemory(mib int64) sandbox.Shape {
	s := sandbox.DefaultShape()
	s.MemoryBytes = mib << 20
	return s
}

func bootAndStop(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	if got := get(t, c, "/ping"); got != "pong" {
		t.Errorf("ping = %q", got)
	}
	must(t, r.host.stop(t.Context(), id))
	must(t, r.host.stop(t.Context(), id)) // unknown now: a success
}

func sentryIsNobody(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, withMemory(256))
	for _, pid := range withDescendants(r.host.boots[id].record.Pid) {
		status := readStatus(t, pid)
		if status["Uid"] != "65534\t65534\t65534\t65534" || status["CapEff"] != "0000000000000000" || status["NoNewPrivs"] != "1" || status["Seccomp"] == "0" {
			t.Errorf("process %d has uid %q, capabilities %s, no-new-privs %s, seccomp %s", pid, status["Uid"], status["CapEff"], status["NoNewPrivs"], status["Seccomp"])
		}
	}
}

// A sentry inherits its own control socket, once, and none of another sentry, even one
// that starts concurrently.
func socketsStayApart(t *testing.T, r *rig) {
	ids := []string{sandbox.NewBootID(), sandbox.NewBootID()}
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() { r.start(id, withMemory(256)) })
	}
	wg.Wait()
	listening, err := os.ReadFile("/proc/net/unix")
	must(t, err)
	const listens = "00010000"   // among the flags; connections have the name too
	owner := map[string]string{} // of the link in /proc/PID/fd
	for line := range strings.Lines(string(listening)) {
		f := strings.Fields(line)
		for _, id := range ids {
			if len(f) == 8 && f[3] == listens && strings.Contains(f[7], id) {
				owner["socket:["+f[6]+"]"] = id
			}
		}
	}
	if len(owner) != len(ids) {
		t.Fatalf("control sockets: %v", owner)
	}
	for _, id := range ids {
		held := map[string]int{}
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.host.boots[id].record.Pid))
		must(t, err)
		for _, l := range links {
			if to, _ := os.Readlink(l); owner[to] != "" {
				held[owner[to]]++
			}
		}
		if len(held) != 1 || held[id] != 1 {
			t.Errorf("the sentry of %s holds control sockets %v", id, held)
		}
	}
}

func limitsHold(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, withMemory(256))
	b := r.host.boots[id]
	inside, err := b.group.Procs()
	must(t, err)
	in := map[int]bool{}
	for _, pid := range inside {
		in[pid] = true
	}
	for _, pid := range withDescendants(b.record.Pid) {
		if !in[pid] {
			t.Errorf("process %d of the sentry is outside its group", pid)
		}
	}
	u, err := r.host.usage(id)
	must(t, err)
	if u.MemoryBytes <= 0 || u.MemoryBytes > 64<<20 || u.CPU <= 0 || u.Pids < int64(len(inside)) {
		t.Errorf("usage of an idle boot = %+v", u)
	}
}

// freeMemoryFor acts as the node: it kills the guest's processes whenever memory is full,
// until stop is called.
func freeMemoryFor(t *testing.T, r *rig, id string, c *http.Client) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
			b := r.host.boots[id]
			if over, err := b.group.OverMark(b.memoryMark()); err == nil && over > 0 {
				get(t, c, "/kill")
			}
		}
	}()
	return func() { close(done); <-ended }
}

func memoryRunsOut(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	stop := freeMemoryFor(t, r, id, c)
	defer stop()
	for range 3 {
		if got := get(t, c, "/bomb?mb=1000&wait=1"); got != "signal: killed" {
			t.Fatalf("the bomb ended with %q", got)
		}
		if got := get(t, c, "/ping"); got != "pong" {
			t.Fatalf("after the bomb the guest answers %q", got)
		}
	}
}

// If the Guest kills nothing, the host does, and signals the reason to the Guest.
func hostMakesRoom(t *testing.T, r *rig) {
	for _, bomb := range []string{"/bomb?mb=2000&wait=1", "/bomb?mb=8&forks=1&wait=1"} {
		id := sandbox.NewBootID()
		c := r.start(id, withMemory(256))
		bystander := get(t, c, "/bomb?mb=1")
		if got := get(t, c, bomb); got != "signal: killed" {
			t.Errorf("%s ended with %q", bomb, got)
		}
		if got := get(t, c, "/told"); got != "user defined signal 1" {
			t.Errorf("%s: the guest was told %q", bomb, got)
		}
		if got := get(t, c, "/ping"); got != "pong" {
			t.Errorf("after %s the guest answers %q", bomb, got)
		}
		if got := get(t, c, "/alive?pid="+bystander); got != "true" {
			t.Errorf("%s took a bystander along: %s", bomb, got)
		}
		must(t, r.host.stop(t.Context(), id))
	}
}

// A Guest that itself uses too much memory ends with CauseOOM.
func nobodyMakesRoom(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	b := r.host.boots[id]
	go func() { _, _ = c.Get("http://guest/eat?mb=2000") }()
	select {
	case <-b.gone:
	case <-time.After(sandbox.OOMGrace + patience):
		t.Fatal("a boot without room lives on")
	}
	r.waitGone(id)
	if b.ended != sandbox.CauseOOM {
		t.Errorf("the cause is %q", b.ended)
	}
}

// The hard limit stays above use while the host frees memory, so that the sentry is never
// refused memory. The raise is bounded per Boot and in total, and is undone afterwards.
func limitStaysAhead(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, withMemory(256))
	b, err := r.host.find(id)
	must(t, err)
	hard := b.memoryMark() + memoryReserve
	before := r.host.raised.Load()
	k := killer{host: r.host, boot: b}
	for _, tt := range []struct{ over, want int64 }{
		{memoryReserve / 4, 0},
		{memoryReserve - raiseStep, 0},
		{memoryReserve - raiseStep + 1, raiseStep},
		{memoryReserve / 4, raiseStep},
		{memoryReserve + raiseStep + 1, 3 * raiseStep},
		{100 * memoryReserve, maxRaise},
	} {
		k.raiseLimit(tt.over)
		if got, all := b.group.Limit()-hard, r.host.raised.Load()-before; got != tt.want || all != max(0, tt.want-ownRaise) {
			t.Errorf("with %d above the mark the limit is raised by %d, of all Boots by %d, not by %d", tt.over, got, all, tt.want)
		}
	}
	less := b.record.Limits
	less.MemoryBytes -= 64 << 20
	must(t, r.host.limit(sentryhost.LimitRequest{ID: id, Limits: less}))
	hard -= 64 << 20
	if got := b.group.Limit() - hard; got != maxRaise {
		t.Errorf("with 64 MiB less memory the limit is raised by %d", got)
	}
	k.settle()
	if got := b.group.Limit(); got != hard || r.host.raised.Load() != before {
		t.Errorf("afterwards the limit is %d, not %d, and limits are raised by %d", got, hard, r.host.raised.Load())
	}
	r.host.raised.Add(maxRaiseAll - raiseStep)
	k.raiseLimit(100 * memoryReserve)
	if got := b.group.Limit() - hard; got != ownRaise+raiseStep {
		t.Errorf("of the last %d for all it got %d", raiseStep, got-ownRaise)
	}
	k.settle()
	r.host.raised.Add(raiseStep - maxRaiseAll)

	// A host that crashed while it freed memory left the limit raised.
	must(t, b.group.SetMemory(hard+maxRaise))
	old := *r
	r.open()
	defer old.waitGone(id)
	if b, err = r.host.find(id); err != nil || b.group.Limit() != hard {
		t.Errorf("the next host leaves the limit at %d: %v", b.group.Limit(), err)
	}
	must(t, r.host.stop(t.Context(), id))
}

// A sentry that ends right after memory was full counts as ended by it.
func endsOutOfMemory(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, withMemory(256))
	b := r.host.boots[id]
	r.host.setFull(b, true)
	r.host.setFull(b, false)
	must(t, unix.Kill(b.record.Pid, unix.SIGKILL))
	r.waitGone(id)
	if b.ended != sandbox.CauseOOM {
		t.Errorf("the cause is %q", b.ended)
	}
}

// waitGone waits until the host has freed a Boot that ended by itself.
func (r *rig) waitGone(id string) {
	r.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		r.host.mu.Lock()
		b := r.host.boots[id]
		r.host.mu.Unlock()
		if b == nil {
			return
		}
		if time.Now().After(end) {
			r.t.Fatal("a boot that ended by itself was not freed")
		}
	}
}

func killedSentry(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, withMemory(256))
	b := r.host.boots[id]
	must(t, unix.Kill(b.record.Pid, unix.SIGKILL))
	r.waitGone(id)
	if b.how != "signal SIGKILL" {
		t.Errorf("it ended by %q", b.how)
	}
}

// The stderr of a crashed sentry is kept, also by a host that has adopted it.
func crashStderrIsKept(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	old := *r
	r.open()
	defer old.waitGone(id)
	b, err := r.host.find(id)
	must(t, err)
	stderr, err := duplicate(b.stderr)
	must(t, err)
	defer stderr.Close()
	// Without more address space the Go runtime crashes with a stack trace.
	must(t, unix.Prlimit(b.record.Pid, unix.RLIMIT_AS, &unix.Rlimit{}, nil))
	go func() { _, _ = c.Get("http://guest/eat?mb=100") }()
	r.waitGone(id)
	if said := (&boot{stderr: stderr}).crashStderr(); !strings.Contains(said, "goroutine ") || len(said) > maxCrashStderr {
		t.Errorf("its crash stderr is %q", said)
	}
}

func newHostTakesUp(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	old := *r
	r.open()               // the old one still exists, but is not used again
	defer old.waitGone(id) // it notices the end too, on its own
	if got := r.host.list(); len(got) != 1 || got[0].ID != id || got[0].Shape != withMemory(256) {
		t.Fatalf("the new host lists %+v", got)
	}
	if got := get(t, c, "/ping"); got != "pong" {
		t.Errorf("ping = %q", got)
	}
	if _, err := r.host.usage(id); err != nil {
		t.Error(err)
	}
	must(t, r.host.stop(t.Context(), id))
}

// A sentry host that crashes while it saves or loads a Boot leaves the Boot without a CPU
// limit. The next host sets the limit again.
func newHostLimitsAgain(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	r.start(id, withMemory(256))
	want := r.cpuQuota(id)
	old := *r
	defer old.waitGone(id)
	must(t, r.host.boots[id].group.UnlimitCPU())
	if r.cpuQuota(id) == want {
		t.Fatalf("the limit %q is not taken away", want)
	}
	r.open()
	if got := r.cpuQuota(id); got != want {
		t.Errorf("the limit of the processor is %q, not %q", got, want)
	}
	must(t, r.host.stop(t.Context(), id))
}

// cpuQuota returns a Boot's CPU limit, as the kernel reports it.
func (r *rig) cpuQuota(id string) string {
	r.t.Helper()
	file := "cpu/" + r.cfg.Parent + "/" + id + "/cpu.cfs_quota_us"
	if r.host.groups.V2() {
		file = r.cfg.Parent + "/" + id + "/cpu.max"
	}
	raw, err := os.ReadFile("/sys/fs/cgroup/" + file)
	must(r.t, err)
	return strings.TrimSpace(string(raw))
}

// A sentry host that is killed between creating a sentry and writing its record leaves a
// sentry in all, some or none of its cgroups. The next host removes it.
func cutOffStart(t *testing.T, r *rig) {
	for _, outside := range []string{"none", "memory", "pids", "all"} {
		id := sandbox.NewBootID()
		r.start(id, withMemory(256))
		old := *r
		b, err := r.host.find(id)
		must(t, err)
		pids := withDescendants(b.record.Pid)
		must(t, os.Remove(filepath.Join(r.host.bootDir(id), "boot.json")))
		for _, controller := range []string{"cpu", "memory", "pids"} {
			top := filepath.Join("/sys/fs/cgroup", controller, "cgroup.procs")
			if _, err := os.Stat(top); err != nil || outside != "all" && outside != controller {
				continue // cgroup v2 has one group for all controllers
			}
			for _, pid := range pids {
				must(t, os.WriteFile(top, []byte(strconv.Itoa(pid)), 0))
			}
		}
		r.open()
		old.waitGone(id)
		r.host.strays.Wait()
		r.nothingLeft()
	}
}

func badRequests(t *testing.T, r *rig) {
	bad := withMemory(256)
	bad.MemoryBytes = 1
	for _, tt := range []struct {
		name string
		req  sentryhost.StartRequest
		want error
	}{
		{"id", sentryhost.StartRequest{ID: "../../etc", Image: "test", Shape: withMemory(256)}, sandbox.Invalid},
		{"image", sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "none", Shape: withMemory(256)}, sandbox.NotFound},
		{"image path", sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "../test", Shape: withMemory(256)}, sandbox.NotFound},
		{"shape", sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "test", Shape: bad}, sandbox.Invalid},
	} {
		a, b := pair(t)
		_, err := r.host.start(t.Context(), tt.req, &fdrpc.Request{Files: []*os.File{a, b}})
		if code := sandbox.CodeOf(err); error(code) != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	_, err := r.host.start(t.Context(), sentryhost.StartRequest{ID: sandbox.NewBootID(), Image: "test", Shape: withMemory(256)}, &fdrpc.Request{})
	if sandbox.CodeOf(err) != sandbox.Invalid {
		t.Errorf("without a link: %v", err)
	}
}

func filesAreNotMemory(t *testing.T, r *rig) {
	id := sandbox.NewBootID()
	c := r.start(id, withMemory(256))
	if got := get(t, c, "/write?mb=600"); got != "<nil>" {
		t.Fatalf("writing 600 MB in a 256 MB sandbox: %s", got)
	}
	u, err := r.host.usage(id)
	must(t, err)
	if u.DiskBytes < 600<<20 || u.MemoryBytes > 128<<20 {
		t.Errorf("after writing 600 MB: %+v", u)
	}
}

func diskQuota(t *testing.T, r *rig) {
	shape := withMemory(256)
	shape.DiskBytes = 100 << 20
	id := sandbox.NewBootID()
	c := r.start(id, shape)
	if got := get(t, c, "/write?mb=150"); got != "write /big: no space left on device" {
		t.Errorf("writing 150 MB into 100 MB: %s", got)
	}
	if got := get(t, c, "/write?mb=50"); got != "<nil>" {
		t.Errorf("writing 50 MB after the file was cut: %s", got)
	}
}
